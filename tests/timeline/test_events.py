"""Timelines: by hand, laws over random instances, and memory that equals the predicted peak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from planner.cost.strategies import FloatArray, Strategies, Strategy
from planner.search.objective import timed
from planner.search.request import Request
from planner.timeline.anatomy import Anatomy, anatomy, memory_curve
from planner.timeline.events import Timeline, timeline
from planner.timeline.orders import BACKWARD, FORWARD, WEIGHTS
from planner.timeline.simulation import makespans
from tests.timeline.plain import plain_ends
from tests.timeline.test_estimate import CASES
from tests.timeline.test_simulation import instances

Instance = tuple[str, FloatArray, FloatArray, FloatArray, int, float]


def passes(line: Timeline) -> dict[tuple[int, int, int, int], tuple[float, float]]:
    keys = zip(line.stage.tolist(), line.kind.tolist(), line.micro_batch.tolist(), line.chunk.tolist(), strict=True)
    return dict(zip(keys, zip(line.start_s.tolist(), line.end_s.tolist(), strict=True), strict=True))


def test_two_stages_two_micro_batches_by_hand() -> None:
    one = np.ones((1, 2))
    line = timeline("1f1b", one, 2 * one, one, 2)
    columns = (line.stage, line.kind, line.micro_batch, line.start_s, line.end_s)
    assert [tuple(row) for row in np.stack(columns, axis=1).tolist()] == [
        (0, 0, 0, 0.0, 1.0), (0, 0, 1, 1.0, 2.0), (1, 0, 0, 1.0, 2.0), (1, 1, 0, 2.0, 4.0),
        (0, 1, 0, 4.0, 6.0), (1, 0, 1, 4.0, 5.0), (1, 1, 1, 5.0, 7.0), (0, 1, 1, 7.0, 9.0),
    ]  # fmt: skip
    assert line.busy_S.tolist() == [6.0, 6.0]
    assert line.needs.tolist() == [-1, -1, 0, 2, 3, 1, 5, 6]


@settings(max_examples=60, deadline=None)
@given(instances())
def test_laws_of_a_timeline(instance: Instance) -> None:
    schedule, f, b, w, m, transfer = instance
    line = timeline(schedule, f, b, w, m, transfer)
    # the plain loop, pass by pass
    plain = plain_ends(schedule, f.tolist(), b.tolist(), w.tolist(), m, transfer)
    mine = passes(line)
    assert mine.keys() == plain.keys()
    np.testing.assert_allclose([mine[key] for key in plain], list(plain.values()), rtol=1e-9, atol=1e-9)
    # work is conserved, and the makespan is the simulation's
    np.testing.assert_allclose(line.busy_S, m * (f + b).sum(axis=0), rtol=1e-9)
    skipped = makespans(schedule, f[..., None], b[..., None], w[..., None], m, np.array([transfer]))[0]
    assert line.makespan_s == pytest.approx(skipped, rel=1e-9)
    # nothing overlaps on a stage; what is needed has arrived
    for stage in range(line.stages):
        on = np.flatnonzero(line.stage == stage)
        assert (line.end_s[on][:-1] <= line.start_s[on][1:] + 1e-9).all()
    takes = np.flatnonzero(line.needs >= 0)
    sent = line.stage[takes] != line.stage[line.needs[takes]]
    assert (line.end_s[line.needs[takes]] + transfer * sent <= line.start_s[takes] + 1e-9).all()


@settings(max_examples=40, deadline=None)
@given(instances())
def test_micro_batches_held_equal_a_plain_count(instance: Instance) -> None:
    schedule, f, b, w, m, transfer = instance
    line = timeline(schedule, f, b, w, m, transfer)
    for stage in range(line.stages):
        _, held = line.held_by(stage)
        assert (held >= 0).all()
        assert not held[-1].any()
        on = np.flatnonzero(line.stage == stage)
        step = np.select([line.kind[on] == FORWARD, line.kind[on] == BACKWARD, line.kind[on] == WEIGHTS], [1, -1, 0])
        assert held.sum(axis=1).max() == np.cumsum(step).max()


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_parts_of_passes_add_up_to_the_columns_of_the_estimate(asked: Request, strategy: Strategy) -> None:
    parts = _anatomy(asked, strategy)
    table = Strategies.of([strategy])
    time = timed(asked, table)
    pace, m = int(time.pace_stage[0]), strategy.micro_batches
    for name in ("tp", "cp", "ep"):
        seconds = m * (parts.exposed_VS[name, "forward"] + parts.exposed_VS[name, "backward"]).sum(axis=0)[pace]
        assert seconds == pytest.approx(float(getattr(time, f"{name}_exposed_s")[0]), rel=1e-9)
    assert m * parts.recompute_VS.sum(axis=0)[pace] == pytest.approx(float(time.recompute_s[0]), rel=1e-9)
    passed = sum(part.sum(axis=0)[pace] for part in parts.passing_VS.values())
    assert m * passed == pytest.approx(float(time.pp_exposed_s[0]), rel=1e-9)


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_the_top_of_the_memory_curve_is_the_predicted_peak(asked: Request, strategy: Strategy) -> None:
    """With interleaving the mix of chunks in flight changes; memory counts that of the first filling, never more."""
    parts = _anatomy(asked, strategy)
    line = timeline(strategy.schedule, parts.forward_VS, parts.backward_VS, parts.weights_VS, strategy.micro_batches)
    for stage in range(strategy.pp):
        times, level = memory_curve(parts, line, stage)
        assert (np.diff(times) >= 0).all()
        assert level[-1] == pytest.approx(parts.base_S[stage], rel=1e-9)
        assert level.max() >= parts.peak_S[stage] * (1 - 1e-9)
        if strategy.schedule != "interleaved":
            assert level.max() == pytest.approx(parts.peak_S[stage], rel=1e-9)


def _anatomy(asked: Request, strategy: Strategy) -> Anatomy:
    return anatomy(asked.model, asked.workload, asked.cluster, asked.calibration, strategy)
