"""Closed forms of pipeline schedules against hand computation and against the event simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.strategies import FloatArray, IntArray, Strategies, Strategy
from planner.cost.time.pipeline import pipeline_time
from planner.search.layouts import layouts
from planner.timeline.simulation import makespans


def row(p: int, v: int, m: int, schedule: str) -> Strategy:
    return Strategy(
        dp=1, tp=1, pp=p, vpp=v, layers=((1,) * p,) * v, recompute_full=(0,) * p, recompute_selective=(0,) * p,
        micro_batches=m, schedule=schedule,
    )  # fmt: skip


def closed(schedule: str, v: int, m: int, f: FloatArray, b: FloatArray, w: FloatArray) -> tuple[int, float, float]:
    result = pipeline_time(Strategies.of([row(len(f), v, m, schedule)]), f[None], b[None], w[None])
    return int(result.stage[0]), float(result.busy_s[0]), float(result.bubble_s[0])


def simulated(schedule: str, v: int, m: int, f: FloatArray, b: FloatArray, w: FloatArray) -> float:
    forward, backward, weights = (np.tile(values / v, (v, 1))[..., None] for values in (f, b, w))
    return float(makespans(schedule, forward, backward, weights, m)[0])


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

    rng = np.random.default_rng(5)
    cases = [
        lay for shape in ((61, 1, 8, 4), (61, 1, 16, 3), (80, 0, 8, 3), (94, 0, 8, 3)) for lay in layouts(*shape, False)
    ]
    cases += [rng.integers(1, 4, (v, p)) for v, p in ((2, 4), (3, 4), (2, 8), (3, 8))]
    errors = []
    for lay in cases:
        v, p = lay.shape
        one = lay[..., None].astype(float)
        ends = [float(makespans("interleaved", one, 2 * one, one, n * p)[0]) for n in (50, 53)]
        pace = (ends[1] - ends[0]) / (3 * p) / 3.0
        low, high = float(lay.sum(axis=0).max()), float(locked_layers(lay[None])[0])
        assert low <= pace + 1e-9
        assert pace <= high + 1e-9
        errors.append((low + high) / 2 / pace - 1)
    assert np.abs(errors).max() <= 0.08
    assert np.abs(errors).mean() <= 0.03


#: Schedule and chunks; lowest, highest and mean size of the closed form's error on layouts that a search tries, with a
#: head of no, half a, one and two layers' time: 61, 80 and 94 layers on 4, 8 and 16 stages, 2 and 8 rounds.
ENVELOPE = {
    ("1f1b", (1,)): (-0.005, 1e-9, 0.0002),
    ("interleaved", (2, 3, 4, 5)): (-0.10, 0.06, 0.0105),
    ("zero_bubble_v", (2,)): (-0.13, 0.003, 0.005),
}


@pytest.mark.parametrize(("schedule", "chunks"), sorted(ENVELOPE))
def test_layouts_of_a_search_with_a_head_stay_in_the_documented_envelope(
    schedule: str, chunks: tuple[int, ...]
) -> None:
    errors = [
        _error(schedule, layout, head, rounds)
        for layers in (61, 80, 94)
        for p in (4, 8, 16)
        for v in chunks
        for layout in layouts(layers, 1, p, v, schedule == "zero_bubble_v")
        for head in (0.0, 0.5, 1.0, 2.0)
        for rounds in (2, 8)
    ]
    low, high, mean = ENVELOPE[schedule, chunks]
    assert low <= min(errors)
    assert max(errors) <= high
    assert np.abs(errors).mean() <= mean


def _error(schedule: str, layout: IntArray, head: float, rounds: int) -> float:
    """Closed form over simulation, less 1; a layer takes 1 forward and 2 backward."""
    v, p = layout.shape
    forward, weights = layout.astype(float), layout.astype(float)
    forward[-1, 0 if schedule == "zero_bubble_v" else -1] += head
    one = Strategies.of([replace(row(p, v, rounds * p, schedule), layers=tuple(map(tuple, layout.tolist())))])
    stages = forward.sum(axis=0)[None]
    found = pipeline_time(one, stages, 2 * stages, weights.sum(axis=0)[None], head_s=np.array([3 * head]))
    parts = (part[..., None] for part in (forward, 2 * forward, weights))
    return float((found.busy_s + found.bubble_s)[0] / makespans(schedule, *parts, rounds * p)[0] - 1)


def test_the_head_is_seen_by_the_stall() -> None:
    """80 layers over 16 stages of 5 chunks of one layer, and a head as long as a layer in the last chunk."""
    layout = np.ones((5, 16), np.int64)
    assert _error("interleaved", layout, 0.0, 8) == pytest.approx(0.0, abs=1e-9)
    assert abs(_error("interleaved", layout, 1.0, 8)) < 0.02
