"""Sequence and context parallelism: tokens of a rank, and how contexts are split."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.legality.context import RING, ULYSSES, Context, Rule, divisors, listed, rows
from planner.model.records import Model


def _tokens_holds(context: Context, table: Strategies) -> BoolArray:
    ring = (table.cp > 1) & (table.cp_algorithm != ULYSSES)
    return rows(table, context.workload.seq % np.where(ring, 2 * table.cp, table.cp) == 0)


def _tokens_explain(context: Context, s: Strategy) -> str:
    seq, unit = context.workload.seq, s.cp if s.cp_algorithm == "ulysses" else 2 * s.cp
    why = "cp" if s.cp_algorithm == "ulysses" else "2 x cp (ring halves every part for the causal balance)"
    return (
        f"cp-sequence: sequence {seq} is not divisible by {why} = {unit}; legal cp: "
        f"{listed([cp for cp in divisors(seq) if s.cp_algorithm == 'ulysses' or cp == 1 or seq % (2 * cp) == 0])}; "
        f"or pad the sequence to {-(-seq // unit) * unit}."
    )


def _sp_tokens_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, ~table.sequence_parallel | (context.workload.seq % (table.cp * table.tp) == 0))


def _sp_tokens_explain(context: Context, s: Strategy) -> str:
    seq = context.workload.seq
    unit = s.cp * s.tp
    return (
        f"sp-sequence: with sequence_parallel the {seq} tokens are split over cp={s.cp} x tp={s.tp} = {unit}, which "
        f"does not divide them; legal tp: {listed([tp for tp in divisors(seq) if seq % (tp * s.cp) == 0])}; or a "
        f"sequence of {max(seq // unit, 1) * unit} or {(seq // unit + 1) * unit}."
    )


def _sp_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, ~table.sequence_parallel | (table.tp > 1))


def _sp_explain(context: Context, s: Strategy) -> str:
    return f"sp-needs-tp: sequence_parallel needs tp > 1, tp={s.tp}; switch sequence_parallel off."


def _moe_sp_holds(context: Context, table: Strategies) -> BoolArray:
    runs_on = context.runs_on
    if not (runs_on.moe_needs_sp if context.model.moe else runs_on.dense_needs_sp):
        return rows(table, True)
    return rows(table, table.sequence_parallel | (table.tp == 1))


def _moe_sp_explain(context: Context, s: Strategy) -> str:
    who = "MoE layers need" if context.model.moe else "PyNative mode needs"
    return f"tp-needs-sp: {who} sequence_parallel when tp > 1, tp={s.tp}; switch sequence_parallel on, or use tp=1."


def exchanges_heads(model: Model) -> bool:
    """Whether MindFormers' mcore attention of `model` compiles with head exchange (tried under DryRun, 1.9.0)."""
    return model.attention.kind == "mla" and model.attention.v_head_dim == model.attention.head_dim


def _exchange_holds(context: Context, table: Strategies) -> BoolArray:
    able = context.runs_on.exchanges_heads or exchanges_heads(context.model)
    return rows(table, (table.cp == 1) | (table.cp_algorithm == RING) | able)


def _exchange_explain(context: Context, s: Strategy) -> str:
    return (
        f"head-exchange: cp_algorithm={s.cp_algorithm} does not compile in MindFormers' mcore attention, except latent "
        "attention with value heads as wide as query heads; legal: ring, or --framework mindspeed."
    )


def _ulysses_holds(context: Context, table: Strategies) -> BoolArray:
    cp, degree, kind = table.cp, table.ulysses_degree, table.cp_algorithm
    hybrid = (degree > 1) & (degree < cp) & (cp % degree == 0)
    split = np.select([kind == RING, kind == ULYSSES], [degree == 1, degree == cp], hybrid)
    return rows(table, np.where(cp == 1, (degree == 1) & (kind == RING), split))


def _ulysses_explain(context: Context, s: Strategy) -> str:
    if s.cp == 1:
        return (
            f"ulysses-degree: cp=1 has no context-parallel algorithm; given cp_algorithm={s.cp_algorithm}, "
            f"ulysses_degree={s.ulysses_degree}; legal: ring and 1."
        )
    legal = {"ring": (1,), "ulysses": (s.cp,)}.get(s.cp_algorithm, tuple(d for d in divisors(s.cp) if 1 < d < s.cp))
    return (
        f"ulysses-degree: ulysses_degree={s.ulysses_degree} does not fit cp={s.cp} with cp_algorithm="
        f"{s.cp_algorithm}; legal: {listed(legal) or 'none (use ring or ulysses)'}."
    )


def _flash_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, (table.cp == 1) | context.workload.flash_attention)


def _flash_explain(context: Context, s: Strategy) -> str:
    return f"cp-needs-flash: cp={s.cp} > 1 needs flash attention; switch flash_attention on, or use cp=1."


SP_NEEDS_TP: Final = Rule("sp-needs-tp", "sequence parallel only with tp > 1", _sp_holds, _sp_explain)
TP_NEEDS_SP: Final = Rule("tp-needs-sp", "MoE with tp > 1 uses sequence parallel", _moe_sp_holds, _moe_sp_explain)
SP_SEQUENCE: Final = Rule(
    "sp-sequence", "tp divides the tokens of a context-parallel rank", _sp_tokens_holds, _sp_tokens_explain
)
CP_NEEDS_FLASH: Final = Rule("cp-needs-flash", "context parallel uses flash attention", _flash_holds, _flash_explain)
ULYSSES_DEGREE: Final = Rule("ulysses-degree", "the degree fits the algorithm", _ulysses_holds, _ulysses_explain)
HEAD_EXCHANGE: Final = Rule(
    "head-exchange", "MindFormers mcore: ring, but for some latent attention", _exchange_holds, _exchange_explain
)
CP_SEQUENCE: Final = Rule("cp-sequence", "cp (ring: 2 x cp) divides the sequence", _tokens_holds, _tokens_explain)
