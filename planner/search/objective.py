"""Recompute of rows, and what a search minimises."""

from __future__ import annotations

import numpy as np

from planner.cost.estimate import Estimates, evaluate
from planner.cost.memory import least_recompute, memory
from planner.cost.step import StepTime, step_time
from planner.cost.strategies import BoolArray, FloatArray, Strategies
from planner.search.request import Request


def fitted(request: Request, table: Strategies) -> tuple[Strategies, BoolArray]:
    """Rows that fit with their least recompute, or the one asked for, and the mask of them in the table given."""
    if not len(table):
        return table, np.zeros(0, bool)
    if request.recompute == "auto":
        filled, fits = least_recompute(request.model, request.workload, table, request.limit)
    else:
        filled = leanest(request, table)
        fits = np.asarray(memory(request.model, request.workload, filled).peak_bytes <= request.limit)
    return filled.take(fits), fits


def leanest(request: Request, table: Strategies) -> Strategies:
    """The recompute asked for; where it is free, every layer whole."""
    none = np.zeros_like(table.layers_CS)
    full = none if request.recompute in ("none", "selective") else table.layers_CS
    some = table.layers_CS if request.recompute == "selective" else none
    return table.replace(recompute_full_CS=full, recompute_selective_CS=some)


def objective_of(request: Request, table: Strategies) -> FloatArray:
    """What is minimised: seconds of a step, or peak bytes of the heaviest stage, shape (C,)."""
    if request.objective == "memory":
        return memory(request.model, request.workload, leanest(request, table)).peak_bytes
    return timed(request, table).step_s


def timed(request: Request, table: Strategies) -> StepTime:
    """Step time of every row."""
    return step_time(request.model, request.workload, request.cluster, request.calibration, table)


def estimated(request: Request, table: Strategies) -> Estimates:
    """Estimates of every row against the request's limit."""
    return evaluate(
        request.model, request.workload, request.cluster, request.calibration, table, limit_bytes=request.limit
    )


def flattened(request: Request, table: Strategies) -> Strategies:
    """Least recompute that still reaches each row's own lowest peak."""
    if request.recompute != "auto":
        return table
    lowest = objective_of(request, table)
    filled, _ = least_recompute(request.model, request.workload, table, lowest[:, None])  # type: ignore[arg-type]
    return filled
