"""Closed forms of pipeline schedules against hand computation and against the event simulation."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.schedule import Durations, simulate
from planner.cost.strategies import FloatArray, Strategies, Strategy
from planner.cost.time.pipeline import pipeline_time


def row(p: int, v: int, m: int, schedule: str) -> Strategy:
    return Strategy(
        dp=1, tp=1, pp=p, vpp=v, layers=((1,) * p,) * v, recompute_full=(0,) * p, recompute_selective=(0,) * p,
        micro_batches=m, schedule=schedule,
    )  # fmt: skip


def closed(schedule: str, v: int, m: int, f: FloatArray, b: FloatArray, w: FloatArray) -> tuple[int, float, float]:
    result = pipeline_time(Strategies.of([row(len(f), v, m, schedule)]), f[None], b[None], w[None])
    return int(result.stage[0]), float(result.busy_s[0]), float(result.bubble_s[0])


def simulated(schedule: str, v: int, m: int, f: FloatArray, b: FloatArray, w: FloatArray) -> float:
    forward, backward, weights = (tuple(tuple(float(x) / v for x in values) for _ in range(v)) for values in (f, b, w))
    return simulate(schedule, Durations(forward_s=forward, backward_s=backward, weights_s=weights), m).makespan_s


def test_bubble_of_a_published_layout() -> None:
    # 16 stages, 16 micro-batches: (p - 1) / (m + p - 1) = 48 %, with 3 chunks 24 % (MindSpore performance guide)
    f, b = np.full(16, 3.0), np.full(16, 6.0)
    _, busy, bubble = closed("1f1b", 1, 16, f, b, f)
    assert bubble / (busy + bubble) == pytest.approx(15 / 31)
    _, busy, bubble = closed("interleaved", 3, 16, f, b, f)
    assert bubble / (busy + bubble) == pytest.approx(5 / 21)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble_v"])
@pytest.mark.parametrize("p", [1, 2, 4, 7])
@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_equal_stages_match_the_simulation(schedule: str, p: int, rounds: int) -> None:
    v = {"interleaved": 3, "zero_bubble_v": 2}.get(schedule, 1)
    f, b, w = np.full(p, 6.0), np.full(p, 12.0), np.full(p, 6.0)
    _, busy, bubble = closed(schedule, v, rounds * p, f, b, w)
    assert busy + bubble == pytest.approx(simulated(schedule, v, rounds * p, f, b, w), rel=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 6])
def test_few_micro_batches_match_the_simulation(m: int) -> None:
    f, b = np.full(5, 1.0), np.full(5, 2.0)
    _, busy, bubble = closed("1f1b", 1, m, f, b, f)
    assert busy + bubble == pytest.approx((m + 4) * 3.0) == simulated("1f1b", 1, m, f, b, f)


def test_slow_first_and_slow_last_stage_by_hand() -> None:
    f = np.array([2.0, 1.0, 1.0, 1.0])
    # first: runs ahead 3 x 2 while the first gradient takes 9 to come back
    assert closed("1f1b", 1, 8, f, 2 * f, f) == (0, 48.0, 3.0)
    # last: waits for three forwards and, at the end, three backwards of 3 in all each
    assert closed("1f1b", 1, 8, f[::-1], 2 * f[::-1], f[::-1]) == (3, 48.0, 9.0)


#: Largest and mean deviation of the closed form from the simulation over the random stages below.
DEVIATION = {
    "1f1b": (0.02, 0.001),
    "gpipe": (1e-12, 1e-12),
    "interleaved": (0.06, 0.008),
    "zero_bubble_v": (0.21, 0.025),
}


@pytest.mark.parametrize("schedule", sorted(DEVIATION))
def test_unequal_stages_stay_near_the_simulation(schedule: str) -> None:
    rng = np.random.default_rng(7)
    errors = []
    for _ in range(60):
        p = int(rng.integers(2, 8))
        v = {"interleaved": 2, "zero_bubble_v": 2}.get(schedule, 1)
        m = int(rng.integers(2, 5)) * p
        f = 1.0 + rng.random(p) * rng.choice([0.1, 0.3, 1.0])
        b, w = f * rng.uniform(1.6, 3.0), f * rng.uniform(0.6, 1.0)
        _, busy, bubble = closed(schedule, v, m, f, b, w)
        errors.append((busy + bubble) / simulated(schedule, v, m, f, b, w) - 1.0)
    largest, mean = DEVIATION[schedule]
    assert np.abs(errors).max() <= largest
    assert np.abs(errors).mean() <= mean
    if schedule == "1f1b":
        assert max(errors) <= 1e-12  # every stage's bound is a lower bound


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "seqpipe", "zero_bubble_v"])
def test_a_row_costs_the_same_in_a_wider_table(schedule: str) -> None:
    v = 2 if schedule in {"interleaved", "seqpipe", "zero_bubble_v"} else 1
    rng = np.random.default_rng(3)
    f = rng.random(3)
    alone = closed(schedule, v, 6, f, 2.1 * f, 0.9 * f)
    table = Strategies.of([row(3, v, 6, schedule), row(8, 4, 16, "interleaved")])
    wide = np.zeros((2, 8))
    wide[0, :3], wide[1] = f, rng.random(8)
    result = pipeline_time(table, wide, 2.1 * wide, 0.9 * wide)
    assert (int(result.stage[0]), float(result.busy_s[0]), float(result.bubble_s[0])) == alone


def test_uneven_chunks_lie_between_fullest_stage_and_locked_stages() -> None:
    """Pace of interleaving with unequal chunks: 61, 80 and 94 layers as a search splits them, and random layers."""
    from planner.cost.time.pipeline import locked_layers
    from planner.search.layouts import layouts

    rng = np.random.default_rng(5)
    cases = [
        lay for shape in ((61, 1, 8, 4), (61, 1, 16, 3), (80, 0, 8, 3), (94, 0, 8, 3)) for lay in layouts(*shape, False)
    ]
    cases += [rng.integers(1, 4, (v, p)) for v, p in ((2, 4), (3, 4), (2, 8), (3, 8))]
    errors = []
    for lay in cases:
        v, p = lay.shape
        seconds = tuple(tuple(float(x) for x in line) for line in lay.tolist())
        twice = tuple(tuple(2 * x for x in line) for line in seconds)
        ends = [simulate("interleaved", Durations(forward_s=seconds, backward_s=twice, weights_s=seconds), n * p)
                for n in (5, 8)]  # fmt: skip
        pace = (ends[1].makespan_s - ends[0].makespan_s) / (3 * p) / 3.0
        low, high = float(lay.sum(axis=0).max()), float(locked_layers(lay[None])[0])
        assert low <= pace + 1e-9
        assert pace <= high + 1e-9
        errors.append((low + high) / 2 / pace - 1)
    assert np.abs(errors).max() <= 0.08
    assert np.abs(errors).mean() <= 0.03
