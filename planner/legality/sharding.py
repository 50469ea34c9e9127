"""Sharding and swapping of the optimizer."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.legality.context import Context, Rule, divisors, listed, rows
from planner.legality.experts import experts_of


def _shard_holds(context: Context, table: Strategies) -> BoolArray:
    ranks = table.dp * table.cp  # context-parallel ranks hold the same parameters, so they share the optimizer too
    return rows(table, np.where(table.zero_level == 0, table.optimizer_shard == 1, ranks % table.optimizer_shard == 0))


def _shard_explain(context: Context, s: Strategy) -> str:
    if s.zero_level == 0:
        return f"optimizer-shard: zero_level=0 shards nothing; optimizer_shard={s.optimizer_shard}, legal: 1."
    return (
        f"optimizer-shard: optimizer_shard={s.optimizer_shard} does not divide dp={s.dp} x cp={s.cp} = {s.dp * s.cp}; "
        f"legal: {listed(divisors(s.dp * s.cp))}."
    )


def _zero_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, np.isin(table.zero_level, context.runs_on.zero_levels))


def _zero_explain(context: Context, s: Strategy) -> str:
    legal = context.runs_on.zero_levels
    return f"zero-level: zero_level={s.zero_level} does not exist in {context.framework}; legal: {listed(legal)}."


def _muon_holds(context: Context, table: Strategies) -> BoolArray:
    if context.workload.optimizer.lower() != "muon" or not context.runs_on.graph:
        return rows(table, True)
    return rows(table, experts_of(context) % (table.optimizer_shard * table.ep) == 0)


def _muon_explain(context: Context, s: Strategy) -> str:
    legal = divisors(experts_of(context) // int(np.gcd(experts_of(context), s.ep)))
    return (
        f"muon-experts: Muon needs optimizer_shard={s.optimizer_shard} x ep={s.ep} to divide {experts_of(context)} "
        f"experts; legal optimizer_shard: {listed(legal)}."
    )


def _swap_holds(context: Context, table: Strategies) -> BoolArray:
    if not context.runs_on.swaps_in_pipeline:
        return rows(table, ~table.swap_optimizer | (table.pp == 1))
    return rows(table, ~table.swap_optimizer | (table.zero_level >= context.runs_on.swap_level))


def _swap_explain(context: Context, s: Strategy) -> str:
    if not context.runs_on.swaps_in_pipeline:
        return f"swap: PyNative mode refuses swapping with pp={s.pp}; legal: pp=1, or swap_optimizer off."
    return f"swap: swap_optimizer needs the distributed optimizer, zero_level={s.zero_level}; legal: 1."


ZERO_LEVEL: Final = Rule("zero-level", "the framework has the sharding level", _zero_holds, _zero_explain)
OPTIMIZER_SHARD: Final = Rule("optimizer-shard", "divides dp x cp, 1 at level 0", _shard_holds, _shard_explain)
MUON_EXPERTS: Final = Rule("muon-experts", "Muon: optimizer_shard x ep divides the experts", _muon_holds, _muon_explain)
SWAP: Final = Rule("swap", "optimizer swap only where the framework allows it", _swap_holds, _swap_explain)
