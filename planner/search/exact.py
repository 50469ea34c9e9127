"""The best layers and recompute of one strategy by CP-SAT.

For every stage all counts of layers near the present ones are options, priced by the same memory and time functions as
the search, each with the least recompute under the stage's memory.  CP-SAT picks one option a stage: layers add up to
the model, dense layers stand where the model has them, and micro-batches times the longest stage plus filling and
draining is least.  What it picks, and the strategy as it was, then go through the single moves of
`planner.search.balance.polished`, and simulation has the last word.  OR-Tools is imported here only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from planner.cost.memory.peak import least_recompute, memory
from planner.cost.strategies import FloatArray, Strategies, Strategy
from planner.cost.time.pipeline import locked_chunks
from planner.model.records import DENSE
from planner.search.balance import polished
from planner.search.objective import estimated, timed
from planner.search.request import Request
from planner.timeline.chunks import chunk_seconds

#: How far from its present layers a chunk may go, by number of chunks a stage; more chunks may only grow by one.
REACH: Final = {1: 4, 2: 3, 3: 1}
#: Work the solver may do on one strategy, in its own deterministic seconds.
SOLVER_WORK: Final = 4.0
MICROSECONDS: Final = 1e6
#: Parts of a layer in which the stall is counted.
UNITS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Layers of one stage: of each chunk, how many of the first are dense, the least recompute, and the time [s]."""

    layers: tuple[int, ...]
    dense: int
    full: int
    selective: int
    stage_s: float


def balanced(request: Request, strategy: Strategy) -> Strategy:
    """The strategy with the best layers and recompute found; as it was where nothing that fits is faster."""
    if strategy.pp == 1:
        return strategy
    options = stage_options(request, strategy)
    if not all(options):
        return strategy
    chosen = _solve(request, strategy, options)
    starts = [strategy]
    if chosen is not None:
        starts.append(
            replace(
                strategy,
                layers=tuple(tuple(option.layers[v] for option in chosen) for v in range(strategy.vpp)),
                recompute_full=tuple(option.full for option in chosen),
                recompute_selective=tuple(option.selective for option in chosen),
            )
        )
    return fastest(request, [polished(request, start) for start in starts])


def fastest(request: Request, strategies: list[Strategy]) -> Strategy:
    """The one that fits and is fastest by simulation; the first of equals, and where none fits."""
    found = estimated(request, Strategies.of(strategies))
    return strategies[int(np.argmin(np.where(found.fits, found.step_s, np.inf)))]


# --- options --------------------------------------------------------------------------------------------------------


def stage_options(request: Request, strategy: Strategy) -> list[list[Option]]:
    """Options of every stage that fit."""
    wanted = [
        (stage, layers, dense)
        for stage in range(strategy.pp)
        for layers in _counts(strategy, stage)
        for dense in _dense_choices(request, strategy, stage, layers)
    ]
    rows = [_alone(request, strategy, *item) for item in wanted]
    table = Strategies.of([row for row in rows if row is not None])
    wanted = [item for item, row in zip(wanted, rows, strict=True) if row is not None]
    stage = np.array([item[0] for item in wanted])
    plain = _priced(request, table, stage)
    some = _priced(request, table.replace(recompute_selective_CS=table.layers_CS), stage)
    options: list[list[Option]] = [[] for _ in range(strategy.pp)]
    for i, (place, layers, dense) in enumerate(wanted):
        time_s, full, selective = min(plain[i], some[i])
        if np.isfinite(time_s):
            found = Option(layers=layers, dense=dense, full=int(full), selective=int(selective), stage_s=float(time_s))
            options[place].append(found)
    return options


def _counts(strategy: Strategy, stage: int) -> list[tuple[int, ...]]:
    present = [strategy.layers[v][stage] for v in range(strategy.vpp)]
    down = REACH.get(strategy.vpp, 0)
    up = max(down, 1)
    least = [0 if _outer(strategy, v, stage) else 1 for v in range(strategy.vpp)]
    ranges = [range(max(n - down, low), n + up + 1) for n, low in zip(present, least, strict=True)]
    return list(itertools.product(*ranges))


def _outer(strategy: Strategy, chunk: int, stage: int) -> bool:
    """The first or the last chunk in model order, which may be empty."""
    end = 0 if strategy.schedule == "zero_bubble_v" else strategy.pp - 1
    return (chunk, stage) in ((0, 0), (strategy.vpp - 1, end))


def _dense_layers(request: Request) -> int:
    kinds = request.model.layer_kinds
    return kinds.count(DENSE) if request.model.moe is not None else 0


def _dense_choices(request: Request, strategy: Strategy, stage: int, layers: tuple[int, ...]) -> list[int]:
    dense = min(_dense_layers(request), layers[0])
    if stage == 0:
        return [dense]
    return list(range(dense + 1)) if stage < strategy.pp - 1 or strategy.vpp > 1 else [0]


def _alone(request: Request, strategy: Strategy, stage: int, layers: tuple[int, ...], dense: int) -> Strategy | None:
    """A strategy whose stage holds these layers, of which the first ``dense`` are the model's last dense ones.

    The other stages take what is left, wherever it does not move the stage's layers; they are not looked at.
    """
    total, first = request.model.layers, _dense_layers(request)
    before = 0 if stage == 0 else first - dense if dense else first
    if stage == strategy.pp - 1 and strategy.vpp == 1:
        before = total - layers[0]
    after = total - before - sum(layers)
    if before < 0 or after < 0 or (dense == 0 and before < first and stage > 0):
        return None
    grid = np.zeros((strategy.vpp, strategy.pp), np.int64)
    if stage:
        grid[0, stage - 1] = before
    grid[:, stage] = layers
    other = stage - 1 if stage else 1
    place = (0, stage + 1) if strategy.vpp == 1 and stage < strategy.pp - 1 else (strategy.vpp - 1, other)
    grid[place] += after
    zeros = (0,) * strategy.pp
    held = tuple(tuple(row) for row in grid.tolist())
    return replace(strategy, layers=held, recompute_full=zeros, recompute_selective=zeros)


def _priced(request: Request, table: Strategies, stage: FloatArray) -> list[tuple[float, int, int]]:
    """(time, full, selective) of the wanted stage of each row; infinite time where it does not fit."""
    index = np.arange(len(table))
    limit = np.full(table.layers_CS.shape, np.inf)
    limit[index, stage] = request.limit
    filled, _ = least_recompute(request.model, request.workload, table, limit)
    peak = memory(request.model, request.workload, filled).peak_bytes_CS[index, stage]
    seconds = np.where(peak <= request.limit, timed(request, filled).stage_s_CS[index, stage], np.inf)
    full, selective = filled.recompute_full_CS[index, stage], filled.recompute_selective_CS[index, stage]
    return list(zip(seconds.tolist(), full.tolist(), selective.tolist(), strict=True))


# --- choice ---------------------------------------------------------------------------------------------------------


def _solve(request: Request, strategy: Strategy, options: list[list[Option]]) -> list[Option] | None:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    picked = [[model.new_bool_var(f"s{s}o{o}") for o in range(len(row))] for s, row in enumerate(options)]
    for row in picked:
        model.add_exactly_one(row)

    def sums(values: list[list[int]]) -> list[Any]:
        return [sum(x * y for x, y in zip(row, of, strict=True)) for row, of in zip(picked, values, strict=True)]

    layers = [sums([[option.layers[v] for option in row] for row in options]) for v in range(strategy.vpp)]
    model.add(sum(sum(row) for row in layers) == request.model.layers)
    _place_dense(model, request, layers[0], sums([[option.dense for option in row] for row in options]))
    times = sums([[round(option.stage_s * MICROSECONDS) for option in row] for row in options])
    most = max(round(option.stage_s * MICROSECONDS) for row in options for option in row)
    longest = model.new_int_var(0, most, "longest")
    for time in times:
        model.add(time <= longest)
    passes = strategy.vpp * strategy.micro_batches
    scale = 6 * strategy.pp * UNITS  # keeps the stall a whole number
    cost = scale * (passes * longest + sum(times))
    if strategy.schedule in ("interleaved", "seqpipe"):
        each = [option.stage_s / sum(option.layers) for row in options for option in row if sum(option.layers)]
        layer = max(round(MICROSECONDS * sum(each) / len(each)), 1)
        cost += passes * layer * _stall(model, request, strategy, layers)
    model.minimize(cost)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = SOLVER_WORK
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [
        next(option for option, x in zip(row, of, strict=True) if solver.value(x))
        for row, of in zip(options, picked, strict=True)
    ]


def _place_dense(model: Any, request: Request, layers: list[Any], dense: list[Any]) -> None:
    """Dense layers are the model's first: stage s holds min(D, layers up to it) minus those before it."""
    first = _dense_layers(request)
    if not first:
        return
    before: Any = 0
    held: Any = 0
    for stage, count in enumerate(layers):
        upto = before + count
        reached = model.new_int_var(0, first, f"dense{stage}")
        model.add_min_equality(reached, [upto, first])
        model.add(dense[stage] == reached - held)
        before, held = upto, reached
    model.add(held == first)


def _stall(model: Any, request: Request, strategy: Strategy, layers: list[list[Any]]) -> Any:
    """Layers lost to longer chunks elsewhere, times 6 pp `UNITS`: half of `locked_layers` beyond the fullest stage."""
    forward, backward = locked_chunks(strategy.pp, strategy.vpp)
    head = 3 * _head_units(request, strategy)
    turns = []
    for turn in range(strategy.pp * strategy.vpp):
        slowest = model.new_int_var(0, 3 * UNITS * request.model.layers + head, f"turn{turn}")
        for stage in range(strategy.pp):
            more = head if stage == strategy.pp - 1 and turn < strategy.pp else 0
            taken = layers[forward[turn, stage]][stage] + 2 * layers[backward[turn, stage]][stage]
            model.add(UNITS * taken + more <= slowest)
        turns.append(slowest)
    fullest = model.new_int_var(0, UNITS * request.model.layers + head, "fullest")
    for stage in range(strategy.pp):
        more = head // 3 if stage == strategy.pp - 1 else 0
        model.add(fullest >= UNITS * sum(row[stage] for row in layers) + more)
    return sum(turns) - 3 * strategy.pp * fullest


def _head_units(request: Request, strategy: Strategy) -> int:
    """Head, loss and MTP modules in layers, times `UNITS`."""
    table = Strategies.of([strategy])
    longest = chunk_seconds(request.model, request.workload, request.cluster, request.calibration, table)
    chunk_s = (longest.forward_CVS + longest.backward_CVS)[0]
    count = np.array(strategy.layers)
    each = np.divide(chunk_s, count, out=np.full(count.shape, np.inf), where=count > 0)
    layer_s = float(np.median(each[np.isfinite(each)]))
    return max(round(UNITS * (float(chunk_s[-1, -1]) / layer_s - float(count[-1, -1]))), 0)
