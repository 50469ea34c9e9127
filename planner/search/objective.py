"""Recompute of rows, and what a search minimises."""

from __future__ import annotations

import numpy as np

from planner.cost.estimate import Estimates, joined
from planner.cost.memory.peak import least_recompute, memory
from planner.cost.strategies import BoolArray, FloatArray, Strategies
from planner.cost.time.step import StepTime, step_time
from planner.legality.context import SEQPIPE
from planner.search.request import Request
from planner.search.tables import concatenate
from planner.timeline.estimate import simulated_time


def fitted(request: Request, table: Strategies) -> tuple[Strategies, BoolArray]:
    """Rows that fit with their least recompute, or the one asked for, and the mask of them in the table given."""
    if not len(table):
        return table, np.zeros(0, bool)
    if request.recompute == "auto":
        filled, fits = least_recompute(request.model, request.workload, table, request.limit)
    else:
        filled = leanest(request, table)
        fits = np.asarray(memory(request.model, request.workload, filled).peak_bytes <= request.limit)
    fits = fits & _allowed(filled)
    return filled.take(fits), fits


def fitted_both(request: Request, table: Strategies) -> tuple[Strategies, int]:
    """Distinct plans that fit, and how many of the rows fit in no way.

    Each row with its least recompute of whole layers; and once more with selective recompute beside it, where the row
    recomputes or does not fit without and where some layer then really uses it.  Other rows would only stand twice:
    least recompute gives up selective recompute before it is any use.
    """
    plain, fits = fitted(request, table)
    if not request.tries_selective or not len(table):
        return plain, int((~fits).sum())
    tried = ~fits
    tried[np.flatnonzero(fits)] = plain.recompute_full_CS.any(axis=1)
    again = table.take(tried)
    some, some_fits = fitted(request, again.replace(recompute_selective_CS=again.layers_CS))
    either = fits.copy()
    either[np.flatnonzero(tried)] |= some_fits
    used = np.flatnonzero(some.recompute_selective_CS.any(axis=1))
    return concatenate([plain, some.take(used)]), int((~either).sum())


def _allowed(table: Strategies) -> BoolArray:
    """Recompute only where the schedule allows it."""
    recomputed = (table.recompute_full_CS + table.recompute_selective_CS).sum(axis=1) > 0
    return np.asarray((table.schedule != SEQPIPE) | ~recomputed)


def fitted_by_stage(request: Request, table: Strategies) -> tuple[Strategies, BoolArray]:
    """As `fitted`, each stage with selective recompute or without, whichever is faster there."""
    pinned = {bool(value) for value in request.pins.get("selective", (False, True))}
    if request.recompute != "auto" or len(pinned) == 1 or not len(table):
        every = table.layers_CS if True in pinned else np.zeros_like(table.layers_CS)
        return fitted(request, table.replace(recompute_selective_CS=every))
    none = table.replace(recompute_selective_CS=np.zeros_like(table.layers_CS))
    both = concatenate([none, table.replace(recompute_selective_CS=table.layers_CS)])
    filled, fits = least_recompute(request.model, request.workload, both, request.limit)
    count, stage_s = len(table), timed(request, filled).stage_s_CS
    plain, some = fits[:count, None], fits[count:, None]
    chosen = some & (~plain | (stage_s[count:] < stage_s[:count]))
    columns = {
        name: np.where(chosen, getattr(filled, name)[count:], getattr(filled, name)[:count])
        for name in ("recompute_full_CS", "recompute_selective_CS")
    }
    merged = table.replace(**columns)
    kept = (plain | some)[:, 0] & _allowed(merged)
    return merged.take(kept), kept


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
    """Step time of every row by the closed forms: what a scan compares."""
    return step_time(request.model, request.workload, request.cluster, request.calibration, table)


def simulated(request: Request, table: Strategies) -> StepTime:
    """Step time of every row, its pipeline simulated: what is shown, and what finalists are ranked by."""
    return simulated_time(request.model, request.workload, request.cluster, request.calibration, table)


def estimated(request: Request, table: Strategies, time: StepTime | None = None) -> Estimates:
    """Simulated estimates of every row against the request's limit."""
    found = simulated(request, table) if time is None else time
    job = (request.model, request.workload, request.cluster, request.calibration)
    return joined(*job, table, found, limit_bytes=request.limit)


def flattened(request: Request, table: Strategies) -> Strategies:
    """Least recompute that still reaches each row's own lowest peak."""
    if request.recompute != "auto":
        return table
    lowest = objective_of(request, table)
    filled, _ = least_recompute(request.model, request.workload, table, lowest[:, None])
    return filled
