"""Simulated steps: chunks add up, published runs hardly move, unlike chunks do."""

from __future__ import annotations

import numpy as np
import pytest

from planner.calibrate.cases import read_cases, truth_paths
from planner.cluster.load import calibration
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.step import COLUMNS, step_time
from planner.search.objective import simulated, timed
from planner.search.request import Request
from planner.timeline import estimate
from planner.timeline.chunks import chunk_seconds
from planner.timeline.estimate import simulated_time
from tests.search.requests import request
from tests.search.shapes import moe
from tests.search.test_user_cases import plan
from tests.timeline.plain import plain_makespan

LLAMA = request("Llama-3.1-70B", 64, batch=256)
MIXED = request(moe(13, experts=8, dense_layers=2, mtp_layers=1), 8, batch=64)

CASES = [
    (LLAMA, plan(80, tp=4, pp=8, dp=2, micro_batches=128, recompute_full=(4, 3, 2, 1, 0, 0, 0, 0))),
    (LLAMA, plan(80, tp=8, pp=4, dp=2, vpp=3, micro_batches=128, recompute_full=(8, 5, 2, 0))),
    (LLAMA, plan(80, tp=8, pp=4, dp=2, vpp=2, micro_batches=128, schedule="zero_bubble_v")),
    (MIXED, plan(13, pp=4, dp=2, vpp=2, micro_batches=32, recompute_selective=(2, 2, 2, 1))),
]


def lengths(asked: Request, strategy: Strategy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    job = (asked.model, asked.workload, asked.cluster, asked.calibration)
    found = chunk_seconds(*job, Strategies.of([strategy]))
    return found.forward_CVS[0], found.backward_CVS[0], found.weights_CVS[0]


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_chunks_add_up_to_their_stage(asked: Request, strategy: Strategy) -> None:
    forward, backward, weights = lengths(asked, strategy)
    time = timed(asked, Strategies.of([strategy]))
    np.testing.assert_allclose(forward.sum(axis=0), time.forward_CS[0], rtol=1e-9)
    np.testing.assert_allclose(backward.sum(axis=0), time.backward_CS[0], rtol=1e-9)
    np.testing.assert_allclose(weights.sum(axis=0), time.weight_gradient_CS[0], rtol=1e-9)


def test_the_head_is_work_of_the_last_chunk_in_model_order() -> None:
    plain, _, _ = lengths(*CASES[1])
    assert CASES[1][1].layers[2] == (6, 6, 6, 6)
    assert plain[2, 3] > 1.05 * plain[2, 2]  # last chunk of the last stage
    bent, _, _ = lengths(*CASES[2])
    assert bent[1, 0] == bent.max()  # the V ends on the first stage


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_a_step_is_its_simulated_pipeline_and_what_is_beside_it(asked: Request, strategy: Strategy) -> None:
    table = Strategies.of([strategy])
    closed, found = timed(asked, table), simulated(asked, table)
    parts = (part.tolist() for part in lengths(asked, strategy))
    pipeline = plain_makespan(strategy.schedule, *parts, micro_batches=strategy.micro_batches)
    busy = strategy.micro_batches * found.stage_s_CS[0, found.pace_stage[0]]
    assert busy + found.bubble_s[0] == pytest.approx(pipeline, rel=1e-9)
    assert found.step_s[0] == pytest.approx(sum(float(getattr(found, name)[0]) for name in COLUMNS))
    same = [name for name in COLUMNS if name not in ("bubble_s", "straggler_s")]
    assert all(getattr(closed, name)[0] == getattr(found, name)[0] for name in same)
    share = closed.straggler_s[0] / (busy + closed.bubble_s[0])  # the slowest node is behind by a share of the pipeline
    assert found.straggler_s[0] == pytest.approx(share * pipeline)


def test_rows_of_one_table_equal_rows_alone_bit_for_bit() -> None:
    table = Strategies.of([strategy for asked, strategy in CASES if asked is LLAMA])
    together = simulated(LLAMA, table).step_s.tolist()
    assert together == [float(simulated(LLAMA, table.take([i])).step_s[0]) for i in range(len(table))]


def test_published_runs_hardly_move() -> None:
    """Calibrations are fitted with the closed forms; on the published runs with a pipeline the simulation agrees."""
    apart = []
    for case in read_cases(list(truth_paths()))[0]:
        if case.table.pp[0] == 1:
            continue
        constants = calibration(case.cluster.hardware, case.workload.framework)
        job = (case.model, case.workload, case.cluster, constants, case.table, case.run)
        apart.append(float(simulated_time(*job).step_s[0] / step_time(*job).step_s[0] - 1.0))
    assert len(apart) >= 84
    assert np.abs(apart).mean() <= 0.0008
    assert np.abs(apart).max() <= 0.025


def test_pipelines_beyond_the_limit_keep_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, strategy = CASES[1]
    table = Strategies.of([strategy])
    closed, found = timed(asked, table).step_s[0], simulated(asked, table).step_s[0]
    assert found != closed
    monkeypatch.setattr(estimate, "MOST_PASSES", 2 * 4**2 * 3 - 1)
    assert simulated(asked, table).step_s[0] == pytest.approx(closed, rel=1e-12)
