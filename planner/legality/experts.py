"""Experts: how many ranks hold them, whole or split."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from planner import frameworks
from planner.cost.experts import legal_etp
from planner.cost.strategies import BoolArray, IntArray, Strategies, Strategy
from planner.legality.context import Context, Rule, divisors, listed, rows


def expert_ranks(framework: str, dp: IntArray, tp: IntArray, cp: IntArray) -> IntArray:
    """Ranks of a stage that may hold different experts: dp x tp in MindFormers' mcore models, elsewhere times cp."""
    return dp * tp * cp if frameworks.of(framework).experts_over_cp else dp * tp


def _dense_ep_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, (table.ep * table.etp == 1) | (context.model.moe is not None))


def _dense_ep_explain(context: Context, s: Strategy) -> str:
    return f"ep-needs-moe: ep={s.ep}, etp={s.etp} but {context.model.name} has no experts; legal ep and etp: 1."


def experts_of(context: Context) -> int:
    """Routed experts of a layer; 0 in dense models."""
    return context.model.moe.experts if context.model.moe else 0


def _experts_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, experts_of(context) % table.ep == 0)


def _experts_explain(context: Context, s: Strategy) -> str:
    return f"experts: ep={s.ep} does not divide {experts_of(context)} experts; legal ep: " + (
        f"{listed(divisors(experts_of(context)))}."
    )


def _ep_ranks_holds(context: Context, table: Strategies) -> BoolArray:
    parts = table.ep * table.etp
    whole = expert_ranks(context.framework, table.dp, table.tp, table.cp) % parts == 0
    if context.runs_on.nested_experts:  # the mesh cuts tp, then cp x tp, before it cuts dp
        inner = np.where(parts <= table.tp, table.tp, table.cp * table.tp)
        whole = whole & ((parts > inner) | (inner % parts == 0))
    return rows(table, whole)


def _ep_ranks_explain(context: Context, s: Strategy) -> str:
    over_cp = context.runs_on.experts_over_cp
    ranks = s.dp * s.tp * (s.cp if over_cp else 1)
    product = f"dp={s.dp} x tp={s.tp}" + (f" x cp={s.cp}" if over_cp else "")
    legal = [ep for ep in divisors(int(np.gcd(ranks, experts_of(context) or 1))) if _fits_ranks(context, s, ep, s.etp)]
    advice = f"legal ep: {listed(legal) or 'none'}"
    others = [etp for etp in _etp_choices(context, s.tp) if etp != s.etp and _fits_ranks(context, s, s.ep, etp)]
    if s.etp > 1 and others:
        advice += f", or etp: {listed(others)}"
    spread, parts = f"ep={s.ep}", s.ep * s.etp
    whole = spread
    if s.etp > 1:
        spread = f"{spread} x etp={s.etp}"
        whole = f"{spread} = {parts}"
    side = f"pp={s.pp} x {spread} = {s.pp * parts} of {s.devices} devices on the expert side"
    where = f"the {ranks} ranks of a stage that share experts ({product}; {side})"
    return f"ep-ranks: {whole} does not divide {where}; {advice}."


def _fits_ranks(context: Context, s: Strategy, ep: int, etp: int) -> bool:
    return bool(_ep_ranks_holds(context, Strategies.of([replace(s, ep=ep, etp=etp)]))[0])


def _etp_choices(context: Context, tp: int) -> tuple[int, ...]:
    moe = context.model.moe
    return legal_etp(context.framework, experts=moe is not None, tp=tp, width=moe.expert_ffn if moe else 1)


def _etp_holds(context: Context, table: Strategies) -> BoolArray:
    moe = context.model.moe
    if moe is None:
        return rows(table, True)  # said by ep-needs-moe
    legal = {
        "whole": table.etp == 1,
        "tp": (table.etp == 1) | (table.etp == table.tp),
        "any": moe.expert_ffn % table.etp == 0,
    }
    return rows(table, legal[context.runs_on.expert_parts])


def _etp_explain(context: Context, s: Strategy) -> str:
    legal = _etp_choices(context, s.tp)
    return f"expert-tp: {context.framework} does not split experts over etp={s.etp} ranks; legal: {listed(legal)}."


def _fused_holds(context: Context, table: Strategies) -> BoolArray:
    most = context.runs_on.most_local_experts
    return rows(table, not most or experts_of(context) <= most * table.ep)


def _fused_explain(context: Context, s: Strategy) -> str:
    experts, most = experts_of(context), context.runs_on.most_local_experts
    legal = [ep for ep in divisors(experts) if experts <= most * ep]
    return (
        f"fused-experts: ep={s.ep} leaves {experts / s.ep:g} experts on a rank, the fused NPU operators take "
        f"{most}; legal ep: {listed(legal)}."
    )


EP_NEEDS_MOE: Final = Rule("ep-needs-moe", "ep 1 without experts", _dense_ep_holds, _dense_ep_explain)
EXPERTS: Final = Rule("experts", "ep divides the experts", _experts_holds, _experts_explain)
EXPERT_TP: Final = Rule("expert-tp", "the framework splits experts over so many ranks", _etp_holds, _etp_explain)
EP_RANKS: Final = Rule("ep-ranks", "ep x etp divides the ranks that share experts", _ep_ranks_holds, _ep_ranks_explain)
FUSED_EXPERTS: Final = Rule("fused-experts", "MindSpeed: at most 128 experts a rank", _fused_holds, _fused_explain)
