"""Layers and recompute of finalists moved between stages until no single move helps.

Every move is costed by the same memory and time functions as the search: a neighbour is one more row of a table.  A
move takes one layer from a chunk of the stage that sets the pace and gives it to a chunk of another stage; the least
recompute that fits is found anew.  Rows never get worse.  `planner.search.exact` finds the optimum with CP-SAT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.cost.memory import memory
from planner.cost.step import step_time
from planner.cost.strategies import FloatArray, IntArray, Strategies
from planner.search.legality import LAYER_RULES, apply_rules

if TYPE_CHECKING:
    from planner.search.suggest import Request

#: Rounds of moves at most; each moves one layer of every row that still improves.
ROUNDS = 12


def rebalance(request: Request, table: Strategies) -> Strategies:
    """Rows with layers moved from the pace-setting stage to others, and no more recompute than fits."""
    groups = [np.flatnonzero(table.pp == pp) for pp in np.unique(table.pp)]
    parts = [_rebalanced(request, _narrow(table.take(rows))) for rows in groups]
    from planner.search.tables import concatenate

    balanced = concatenate(parts)
    back = np.argsort(np.concatenate(groups), kind="stable")
    return balanced.take(back)


def _narrow(table: Strategies) -> Strategies:
    """The table without padding beyond its own widest row."""
    depth, width = int(table.vpp.max()), int(table.pp.max())
    return table.replace(
        layers_CVS=table.layers_CVS[:, :depth, :width],
        recompute_full_CS=table.recompute_full_CS[:, :width],
        recompute_selective_CS=table.recompute_selective_CS[:, :width],
    )


def _rebalanced(request: Request, table: Strategies) -> Strategies:
    table = less_selective(request, table)
    best_s, pace = _timed(request, table)
    active = np.flatnonzero(table.pp > 1)
    for _ in range(ROUNDS):
        if not len(active):
            break
        base, moved = neighbours(table, active, pace)
        moved, kept = _legal_and_fitting(request, moved)
        base = base[kept]
        if not len(base):
            break
        value, stage = _timed(request, moved)
        winner = _best_of(base, value, len(table))
        better = winner[(winner >= 0)]
        better = better[value[better] < best_s[base[better]]]
        rows = base[better]
        table = _placed(table, rows, moved.take(better))
        best_s[rows], pace[rows] = value[better], stage[better]
        active = rows
    return table


def _timed(request: Request, table: Strategies) -> tuple[FloatArray, IntArray]:
    time = step_time(request.model, request.workload, request.cluster, request.calibration, table)
    return time.step_s, time.pace_stage.copy()


def neighbours(table: Strategies, rows: IntArray, pace: IntArray) -> tuple[IntArray, Strategies]:
    """All moves of one layer from each row's pace-setting stage to another of its stages.

    The layer leaves the fullest chunk of the one stage and joins the emptiest chunk of the other.

    Returns
    -------
    (base, moved)
        Row that each neighbour comes from, and the neighbours, recompute not yet chosen.
    """
    stage = np.arange(table.stages)[None, :]
    from_row, target = np.nonzero((stage != pace[rows, None]) & (stage < table.pp[rows, None]))
    base = rows[from_row]
    source = pace[base]
    moved = table.take(base)
    layers = moved.layers_CVS.copy()
    index = np.arange(len(base))
    exists = np.arange(layers.shape[1])[None, :] < moved.vpp[:, None]
    give = np.argmax(np.where(exists, layers[index, :, source], -1), axis=1)
    join = np.argmin(np.where(exists, layers[index, :, target], np.iinfo(np.int64).max), axis=1)
    layers[index, give, source] -= 1
    layers[index, join, target] += 1
    selective = np.asarray(moved.recompute_selective_CS.any(axis=1))
    return base, moved.replace(
        layers_CVS=layers,
        recompute_full_CS=np.zeros_like(moved.recompute_full_CS),
        recompute_selective_CS=layers.sum(axis=1) * selective[:, None],
    )


def _legal_and_fitting(request: Request, moved: Strategies) -> tuple[Strategies, IntArray]:
    from planner.search.suggest import fitted

    legal, _ = apply_rules(request.context, moved, LAYER_RULES)
    kept = np.flatnonzero(legal)
    table, fits = fitted(request, moved.take(kept))
    return less_selective(request, table), kept[fits]


def less_selective(request: Request, table: Strategies) -> Strategies:
    """The fewest selectively recomputed layers of each stage that still fit, by bisection."""
    high = table.recompute_selective_CS.copy()
    if not high.any():
        return table
    low = np.zeros_like(high)
    while (low < high).any():
        middle = (low + high) // 2
        good = _peaks(request, table.replace(recompute_selective_CS=middle)) <= request.limit
        high = np.where(good, middle, high)
        low = np.where(good, low, np.minimum(middle + 1, high))
    return table.replace(recompute_selective_CS=high)


def _peaks(request: Request, table: Strategies) -> FloatArray:
    return memory(request.model, request.workload, table).peak_bytes_CS


def _best_of(base: IntArray, value: FloatArray, count: int) -> IntArray:
    """Index of each row's best neighbour, -1 without one; the first of equals."""
    ranked = np.lexsort([np.arange(len(base)), value, base])
    first = np.ones(len(ranked), bool)
    first[1:] = base[ranked][1:] != base[ranked][:-1]
    winner = np.full(count, -1)
    winner[base[ranked[first]]] = ranked[first]
    return winner


def _placed(table: Strategies, rows: IntArray, new: Strategies) -> Strategies:
    columns = {}
    for name in ("layers_CVS", "recompute_full_CS", "recompute_selective_CS"):
        column = getattr(table, name).copy()
        column[rows] = getattr(new, name)
        columns[name] = column
    return table.replace(**columns)

