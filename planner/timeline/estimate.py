"""Estimates whose pipeline is simulated: the seconds that are shown, emitted and compared.

Same signatures as `planner.cost.time.step.step_time` and `planner.cost.estimate.evaluate`, which use the closed forms
of `planner.cost.time.pipeline` and stay what a search scans millions of rows with.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cluster.records import Calibration, Cluster
from planner.cost.estimate import Estimates, joined
from planner.cost.rows import distinct, mixers
from planner.cost.strategies import SCHEDULES, FloatArray, IntArray, Strategies
from planner.cost.time.pipeline import at_stage
from planner.cost.time.setting import Execution
from planner.cost.time.step import StepTime, step_time, with_pipeline
from planner.model.records import Model, Workload
from planner.timeline.chunks import chunk_seconds
from planner.timeline.simulation import makespans

#: Passes of one block of p micro-batches up to which a pipeline is simulated: 256 stages, or 114 of 5 chunks.
MOST_PASSES: Final = 2**17


def evaluate(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    *,
    limit_bytes: float | None = None,
    run: Execution | None = None,
) -> Estimates:
    """Memory, simulated time and derived figures of every candidate; a row does not depend on the others."""
    time = simulated_time(model, workload, cluster, calibration, table, run)
    return joined(model, workload, cluster, calibration, table, time, limit_bytes)


def simulated_time(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    run: Execution | None = None,
) -> StepTime:
    """Seconds of a step of every candidate, its pipeline simulated pass by pass."""
    time = step_time(model, workload, cluster, calibration, table, run)
    seconds = pipeline_s(model, workload, cluster, calibration, table, time, run)
    return with_pipeline(time, table, cluster, calibration, seconds)


def pipeline_s(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    time: StepTime,
    run: Execution | None = None,
) -> FloatArray:
    """Seconds of all micro-batches of each row, shape (C,); by the closed forms beyond `MOST_PASSES`."""
    out = table.micro_batches * at_stage(time.stage_s_CS, time.pace_stage) + time.bubble_s
    several = np.flatnonzero((table.pp > 1) & (2 * table.pp**2 * table.vpp <= MOST_PASSES))
    single = several[table.vpp[several] == 1]
    parts = (time.forward_CS, time.backward_CS, time.weight_gradient_CS)
    _simulate(out, table, single, *(values[single][:, None] for values in parts))
    cut = several[table.vpp[several] > 1]
    if len(cut):
        chunks = chunk_seconds(model, workload, cluster, calibration, table.take(cut), run)
        _simulate(out, table, cut, chunks.forward_CVS, chunks.backward_CVS, chunks.weights_CVS)
    return out


def _simulate(out: FloatArray, table: Strategies, rows: IntArray, *lengths_RVS: FloatArray) -> None:
    """Fill in the makespans of some rows, those with the same shape of pipeline at once."""
    columns = (table.schedule, table.pp, table.vpp)
    first, place = distinct(np.stack([column[rows] for column in columns], axis=1) @ mixers(len(columns)))
    for group, like in enumerate(rows[first].tolist()):
        members = np.flatnonzero(place == group)
        schedule, pp, vpp = (int(column[like]) for column in columns)
        forward, backward, weights = (np.moveaxis(part[members, :vpp, :pp], 0, 2) for part in lengths_RVS)
        micro = table.micro_batches[rows[members]]
        out[rows[members]] = makespans(SCHEDULES[schedule], forward, backward, weights, micro)
