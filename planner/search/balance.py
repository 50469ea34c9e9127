"""Layers and recompute of finalists moved between stages until no single move helps.

Every move is costed by the same memory and time functions as the search: a neighbour is one more row of a table.  A
move takes one layer from a chunk of the stage that sets the pace and gives it to a chunk of another stage; the least
recompute that fits is found anew.  Rows never get worse.  `planner.search.exact` finds the optimum with CP-SAT.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import FloatArray, IntArray, Strategies, Strategy
from planner.legality.apply import LAYER_RULES, apply_rules
from planner.search.objective import fitted, fitted_by_stage, simulated, timed
from planner.search.request import Request

#: Rounds of moves at most; each moves one layer of every row that still improves.
ROUNDS: Final = 8
#: Stages that may receive the layer: those with least work.
RECEIVERS: Final = 6
#: Stages that `polished` takes a layer from, those with most work, and gives it to, those with least.
GIVING: Final = 3
TAKING: Final = 4


def rebalance(request: Request, table: Strategies) -> Strategies:
    """Rows with layers moved from the pace-setting stage to others, and no more recompute than fits."""
    time = timed(request, table)
    best_s, stage_s, pace = time.step_s, time.stage_s_CS.copy(), time.pace_stage.copy()
    active = np.flatnonzero(table.pp > 1)
    for _ in range(ROUNDS):
        base, moved = neighbours(table, active, pace, stage_s)
        moved, kept = _legal_and_fitting(request, moved)
        base = base[kept]
        if not len(base):
            break
        time = timed(request, moved)
        value = time.step_s
        winner = _best_of(base, value, len(table))
        better = winner[winner >= 0]
        better = better[value[better] < best_s[base[better]]]
        active = base[better]
        table = _placed(table, active, moved.take(better))
        best_s[active], pace[active], stage_s[active] = value[better], time.pace_stage[better], time.stage_s_CS[better]
    return _recompute_by_stage(request, table)


def _recompute_by_stage(request: Request, table: Strategies) -> Strategies:
    """Rows with the faster kind of recompute on every stage, where that is faster over all."""
    mixed, fits = fitted_by_stage(request, table)
    rows = np.flatnonzero(fits)
    better = timed(request, mixed).step_s < timed(request, table.take(rows)).step_s
    return _placed(table, rows[better], mixed.take(better))


def polished(request: Request, strategy: Strategy, rounds: int = ROUNDS) -> Strategy:
    """The strategy after every single move of a layer between chunks that its simulated step gains from, best first.

    Unlike `rebalance`, which compares closed forms, this sees which chunk of a stage a layer is in.
    """
    table = Strategies.of([strategy])
    time = simulated(request, table)
    best_s, stage_s = float(time.step_s[0]), time.stage_s_CS[0]
    for _ in range(rounds if strategy.pp > 1 else 0):
        moved = _chunk_moves(table, stage_s)
        legal, _ = apply_rules(request.context, moved, LAYER_RULES)
        moved, _ = fitted_by_stage(request, moved.take(np.flatnonzero(legal)))
        if not len(moved):
            break
        time = simulated(request, moved)
        winner = int(np.argmin(time.step_s))
        if time.step_s[winner] >= best_s:
            break
        table = moved.take([winner])
        best_s, stage_s = float(time.step_s[winner]), time.stage_s_CS[winner]
    return table.row(0)


def _chunk_moves(table: Strategies, stage_s: FloatArray) -> Strategies:
    """One layer from a chunk of a long stage to a chunk of a short one, or within a stage; recompute not yet chosen."""
    layers = table.layers_CVS[0]
    by_time = np.argsort(-stage_s, kind="stable")
    givers = layers[:, by_time[:GIVING]] > 0
    chunk, place = np.nonzero(givers)
    to_chunk, to_place = np.nonzero(np.ones((len(layers), min(TAKING, layers.shape[1])), bool))
    source = np.stack([chunk, by_time[:GIVING][place]], axis=1)
    target = np.stack([to_chunk, by_time[::-1][:TAKING][to_place]], axis=1)
    give, take = (index.ravel() for index in np.indices((len(source), len(target))))
    differ = (source[give] != target[take]).any(axis=1)
    give, take = give[differ], take[differ]
    row = np.arange(len(give))
    moved = np.tile(layers, (len(give), 1, 1))
    moved[row, source[give, 0], source[give, 1]] -= 1
    moved[row, target[take, 0], target[take, 1]] += 1
    nothing = np.zeros((len(give), layers.shape[1]), np.int64)
    return table.take(np.zeros(len(give), np.int64)).replace(
        layers_CVS=moved, recompute_full_CS=nothing, recompute_selective_CS=nothing
    )


def neighbours(table: Strategies, rows: IntArray, pace: IntArray, stage_s: FloatArray) -> tuple[IntArray, Strategies]:
    """Moves of one layer from each row's pace-setting stage to the stages with least work.

    The layer leaves the fullest chunk of the one stage and joins the emptiest chunk of the other.

    Returns
    -------
    (base, moved)
        Row that each neighbour comes from, and the neighbours, recompute not yet chosen.
    """
    stage = np.arange(table.stages)[None, :]
    open_to = (stage != pace[rows, None]) & (stage < table.pp[rows, None])
    ranked = np.argsort(np.where(open_to, stage_s[rows], np.inf), axis=1, kind="stable")[:, :RECEIVERS]
    from_row, place = np.nonzero(np.take_along_axis(open_to, ranked, axis=1))
    target = ranked[from_row, place]
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
    legal, _ = apply_rules(request.context, moved, LAYER_RULES)
    kept = np.flatnonzero(legal)
    table, fits = fitted(request, moved.take(kept))
    return table, kept[fits]


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
