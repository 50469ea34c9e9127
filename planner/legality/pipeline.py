"""Pipeline: schedules, chunks, micro-batches."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import SCHEDULES, BoolArray, Strategies, Strategy
from planner.legality.context import GPIPE, ONE_F_ONE_B, SEQPIPE, ZERO_BUBBLE_V, Context, Rule, rows


def _fill_holds(context: Context, table: Strategies) -> BoolArray:
    if not context.runs_on.fills_pipeline:
        return rows(table, True)
    return rows(table, table.micro_batches >= table.pp)


def _fill_explain(context: Context, s: Strategy) -> str:
    most = context.workload.global_batch // (s.dp * s.micro_batch_size)
    return (
        f"fill-pipeline: MindSpore needs at least as many micro-batches as stages, micro_batches={s.micro_batches} < "
        f"pp={s.pp}; use pp <= {s.micro_batches}, a smaller dp or micro_batch_size, or a global batch of at least "
        f"{s.dp * s.micro_batch_size * s.pp} (now {context.workload.global_batch}, {most} micro-batches)."
    )


def _schedule_holds(context: Context, table: Strategies) -> BoolArray:
    legal = [SCHEDULES.index(name) for name in context.runs_on.schedules]
    return rows(table, np.isin(table.schedule, legal))


def _schedule_explain(context: Context, s: Strategy) -> str:
    legal = ", ".join(context.runs_on.schedules)
    return f"schedule: {context.framework} has no schedule '{s.schedule}'; legal: {legal}."


def _vpp_holds(context: Context, table: Strategies) -> BoolArray:
    plain = (table.schedule == ONE_F_ONE_B) | (table.schedule == GPIPE)
    return rows(table, np.where(plain, table.vpp == 1, (table.vpp > 1) & (table.pp > 1)))


def _vpp_explain(context: Context, s: Strategy) -> str:
    if s.pp == 1 and s.vpp > 1:
        return f"vpp-schedule: vpp={s.vpp} needs pp >= 2; given pp=1. Use vpp=1, or more stages."
    if s.schedule in ("1f1b", "gpipe"):
        return (
            f"vpp-schedule: vpp={s.vpp} needs an interleaving schedule in both the model and the pipeline settings; "
            f"schedule={s.schedule} takes vpp=1. Use schedule=interleaved."
        )
    return (
        f"vpp-schedule: schedule={s.schedule} needs vpp >= 2 and pp >= 2; given vpp={s.vpp}, pp={s.pp}. "
        "Use schedule=1f1b with vpp=1."
    )


def _interleave_holds(context: Context, table: Strategies) -> BoolArray:
    if not context.runs_on.interleaves_rounds:
        return rows(table, True)
    return rows(table, (table.vpp == 1) | (table.micro_batches % table.pp == 0))


def _interleave_explain(context: Context, s: Strategy) -> str:
    lower, upper = s.micro_batches // s.pp * s.pp, -(-s.micro_batches // s.pp) * s.pp
    return (
        f"interleave-batches: interleaving needs micro_batches divisible by pp, {s.micro_batches} % {s.pp} != 0; "
        f"nearest legal: {lower or upper} or {upper}, or vpp=1."
    )


def _chunks_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, table.pp * table.vpp <= context.model.layers + _spare_chunks(context))


def _spare_chunks(context: Context) -> int:
    """Chunks beyond one layer each: MTP modules (MindSpore counts them), empty first and last chunk elsewhere."""
    spare = context.runs_on.spare_chunks
    return context.model.mtp_layers if spare is None else spare


def _chunks_explain(context: Context, s: Strategy) -> str:
    most = context.model.layers + _spare_chunks(context)
    return (
        f"chunks: pp={s.pp} x vpp={s.vpp} = {s.pp * s.vpp} chunks are more than {context.model.layers} layers fill; "
        f"legal: pp x vpp <= {most}."
    )


def _zbv_holds(context: Context, table: Strategies) -> BoolArray:
    legal = (table.vpp == 2) & (table.pp >= 2) & (table.micro_batches >= 2 * table.pp)
    return rows(table, (table.schedule != ZERO_BUBBLE_V) | legal)


def _zbv_explain(context: Context, s: Strategy) -> str:
    return (
        f"zero-bubble-v: needs vpp=2, pp >= 2 and micro_batches >= 2 x pp; given vpp={s.vpp}, pp={s.pp}, "
        f"micro_batches={s.micro_batches} (at least {2 * s.pp} for this pp)."
    )


def _seqpipe_holds(context: Context, table: Strategies) -> BoolArray:
    recomputed = (table.recompute_full_CS + table.recompute_selective_CS).any(axis=1)
    return rows(table, (table.schedule != SEQPIPE) | ~recomputed)


def _seqpipe_explain(context: Context, s: Strategy) -> str:
    return (
        f"seqpipe: runs without recompute; given recompute_full={list(s.recompute_full)}, "
        f"recompute_selective={list(s.recompute_selective)}; legal: zeros."
    )


SCHEDULE: Final = Rule("schedule", "the framework has the schedule", _schedule_holds, _schedule_explain)
VPP_SCHEDULE: Final = Rule("vpp-schedule", "vpp > 1 exactly with interleaving schedules", _vpp_holds, _vpp_explain)
CHUNKS: Final = Rule("chunks", "pp x vpp at most the layers", _chunks_holds, _chunks_explain)
FILL_PIPELINE: Final = Rule("fill-pipeline", "MindSpore: micro-batches >= stages", _fill_holds, _fill_explain)
INTERLEAVE_BATCHES: Final = Rule(
    "interleave-batches", "Megatron: micro-batches divisible by pp", _interleave_holds, _interleave_explain
)
V_SHAPE: Final = Rule("zero-bubble-v", "vpp 2, pp >= 2, micro-batches >= 2 pp", _zbv_holds, _zbv_explain)
NO_RECOMPUTE: Final = Rule("seqpipe", "no recompute under seqpipe", _seqpipe_holds, _seqpipe_explain, True)
