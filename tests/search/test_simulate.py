"""Chunks priced by the cost functions and simulated event by event."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.strategies import Strategies, Strategy
from planner.search.objective import timed
from planner.search.simulate import chunk_durations, pipeline_s, simulated_s, timeline
from planner.search.suggest import Request
from tests.search.requests import request
from tests.search.shapes import moe
from tests.search.test_user_cases import plan

LLAMA = request("Llama-3.1-70B", 64, batch=256)
MIXED = request(moe(13, experts=8, dense_layers=2, mtp_layers=1), 8, batch=64)

CASES = [
    (LLAMA, plan(80, tp=4, pp=8, dp=2, micro_batches=128, recompute_full=(4, 3, 2, 1, 0, 0, 0, 0))),
    (LLAMA, plan(80, tp=8, pp=4, dp=2, vpp=3, micro_batches=128, recompute_full=(8, 5, 2, 0))),
    (LLAMA, plan(80, tp=8, pp=4, dp=2, vpp=2, micro_batches=128, schedule="zero_bubble_v")),
    (MIXED, plan(13, pp=4, dp=2, vpp=2, micro_batches=32, recompute_selective=(2, 2, 2, 1))),
]


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_chunks_add_up_to_their_stage(asked: Request, strategy: Strategy) -> None:
    durations = chunk_durations(asked, strategy)
    time = timed(asked, Strategies.of([strategy]))
    forward = np.array(durations.forward_s).sum(axis=0)
    backward = np.array(durations.backward_s).sum(axis=0)
    np.testing.assert_allclose(forward, time.forward_CS[0], rtol=1e-9)
    np.testing.assert_allclose(backward, time.backward_CS[0], rtol=1e-9)


def test_the_head_is_work_of_the_last_chunk_in_model_order() -> None:
    plain = chunk_durations(LLAMA, CASES[1][1]).forward_s
    assert CASES[1][1].layers[2] == (6, 6, 6, 6)
    assert plain[2][3] > 1.05 * plain[2][2]  # last chunk of the last stage
    bent = chunk_durations(LLAMA, CASES[2][1]).forward_s
    assert bent[1][0] == max(max(row) for row in bent)  # the V ends on the first stage


@pytest.mark.parametrize(("asked", "strategy"), [CASES[0], CASES[1], CASES[3]])
def test_the_closed_form_stays_near_the_simulation(asked: Request, strategy: Strategy) -> None:
    closed = pipeline_s(timed(asked, Strategies.of([strategy])), Strategies.of([strategy]))[0]
    assert closed == pytest.approx(timeline(asked, strategy).makespan_s, rel=0.06)


def test_without_interleaving_both_agree() -> None:
    asked, strategy = CASES[0]
    closed = pipeline_s(timed(asked, Strategies.of([strategy])), Strategies.of([strategy]))[0]
    assert closed == pytest.approx(timeline(asked, strategy).makespan_s, rel=1e-9)


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_few_rounds_tell_the_length_of_many(asked: Request, strategy: Strategy) -> None:
    assert simulated_s(asked, strategy) == pytest.approx(timeline(asked, strategy).makespan_s, rel=0.01)
