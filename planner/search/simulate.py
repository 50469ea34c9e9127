"""Finalists simulated event by event: what the closed forms of the search cannot see.

The closed forms know a stage by its length; the simulation knows every chunk.  A chunk's time comes from the same cost
functions: the chunks in model order are priced as the stages of a pipeline of pp x vpp stages without interleaving.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.layers import dealt
from planner.cost.schedule import Durations, Timeline, simulate
from planner.cost.strategies import SCHEDULES, FloatArray, IntArray, Strategies, Strategy
from planner.cost.time.step import StepTime
from planner.search.objective import timed
from planner.search.request import Request

#: Micro-batches simulated, in rounds of pp; the rest run at the pace of the last rounds.
ROUNDS: Final = 5


def chunk_durations(request: Request, strategy: Strategy) -> Durations:
    """Seconds of one micro-batch in each chunk of each stage."""
    table = _unrolled(strategy)
    time = timed(request, table)
    order = _model_order(strategy)

    def by_chunk(values_CS: FloatArray) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(values_CS[0, place]) for place in row) for row in order.tolist())

    return Durations(
        forward_s=by_chunk(time.forward_CS),
        backward_s=by_chunk(time.backward_CS),
        weights_s=by_chunk(time.weight_gradient_CS),
    )


def _model_order(strategy: Strategy) -> IntArray:
    """Place of each chunk of each stage in the order of the model, shape (V, S)."""
    order = np.arange(strategy.vpp * strategy.pp).reshape(strategy.vpp, strategy.pp)
    if strategy.schedule == "zero_bubble_v":
        order[1::2] = order[1::2, ::-1]
    return order


def _unrolled(strategy: Strategy) -> Strategies:
    """The strategy with every chunk as a stage of its own."""
    layers = np.array(strategy.layers, np.int64)
    full, selective = (np.array(column, np.int64) for column in (strategy.recompute_full, strategy.recompute_selective))
    whole, some = dealt(layers, full), dealt(layers, full + selective)
    place = np.argsort(_model_order(strategy).ravel())
    table = Strategies.of([strategy])
    stages = strategy.pp * strategy.vpp
    return table.replace(
        pp=np.array([stages]),
        vpp=np.array([1]),
        schedule=np.array([SCHEDULES.index("1f1b")]),
        layers_CVS=layers.ravel()[place][None, None],
        recompute_full_CS=whole.ravel()[place][None],
        recompute_selective_CS=(some - whole).ravel()[place][None],
    )


def timeline(request: Request, strategy: Strategy, micro_batches: int | None = None) -> Timeline:
    """Events of one step; of fewer micro-batches when asked."""
    return simulate(strategy.schedule, chunk_durations(request, strategy), micro_batches or strategy.micro_batches)


def simulated_s(request: Request, strategy: Strategy) -> float:
    """Seconds of all micro-batches of a step.

    Long steps are simulated for `ROUNDS` and one fewer rounds of pp micro-batches; the difference is the pace of the
    rest.
    """
    durations, count = chunk_durations(request, strategy), strategy.micro_batches
    most = ROUNDS * strategy.pp
    if count <= most:
        return simulate(strategy.schedule, durations, count).makespan_s
    long, short = (simulate(strategy.schedule, durations, n).makespan_s for n in (most, most - strategy.pp))
    return long + (count - most) * (long - short) / strategy.pp


def pipeline_s(time: StepTime, table: Strategies) -> FloatArray:
    """Seconds of all micro-batches by the closed form, shape (C,)."""
    longest = np.take_along_axis(time.stage_s_CS, time.pace_stage[:, None], axis=1)[:, 0]
    return table.micro_batches * longest + time.bubble_s


def step_s(request: Request, strategy: Strategy) -> float:
    """Seconds of a step with the pipeline simulated; optimizer, gradients and fixed cost as in the closed form."""
    table = Strategies.of([strategy])
    time = timed(request, table)
    return float(time.step_s[0] - pipeline_s(time, table)[0]) + simulated_s(request, strategy)
