"""Orders of passes: every pass once, in-flight counts as memory counts them."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.layers import in_flight_CVS
from planner.cost.strategies import SCHEDULES, Strategies, Strategy
from planner.timeline.orders import BACKWARD, FORWARD, KNOWN, WEIGHTS, orders

SHAPES = [(2, 1, 4), (4, 1, 9), (4, 2, 8), (4, 3, 13), (8, 2, 32), (3, 2, 7), (16, 4, 64)]


def flights(schedule: str, p: int, v: int, m: int) -> np.ndarray:
    """Most micro-batches of each chunk and over all chunks between their forward and the end of their backward pass."""
    found = orders(schedule, p, v, m)
    out = np.zeros((v + 1, p), np.int64)
    for stage, line in enumerate(found.passes):
        for chunk in (*range(v), None):
            mine = line if chunk is None else line[line[:, 2] == chunk]
            steps = np.select([mine[:, 0] == FORWARD, mine[:, 0] == BACKWARD], [1, -1], 0)
            out[v if chunk is None else chunk, stage] = np.cumsum(steps).max(initial=0)
    return out


@pytest.mark.parametrize("schedule", KNOWN)
@pytest.mark.parametrize(("p", "v", "m"), SHAPES)
def test_every_pass_stands_once(schedule: str, p: int, v: int, m: int) -> None:
    if schedule == "zero_bubble_v":
        v = 2
    found = orders(schedule, p, v, m)
    kinds = (FORWARD, BACKWARD, WEIGHTS) if found.splits else (FORWARD, BACKWARD)
    every = {(kind, micro, chunk) for kind in kinds for micro in range(m) for chunk in range(v)}
    for line in found.passes:
        assert len(line) == len(every)
        assert set(map(tuple, line.tolist())) == every


def test_1f1b_by_hand() -> None:
    lines = [[(k, m) for k, m, _ in line.tolist()] for line in orders("1f1b", 2, 1, 3).passes]
    assert lines[0] == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2)]
    assert lines[1] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_warm_up_of_mindspore_by_hand() -> None:
    # 5 micro-batches on 2 stages: the first round holds 3, so (2 + 1) (v - 1) + 2 passes ahead on stage 0, or + 1
    for schedule, ahead in (("interleaved", (5, 3)), ("interleaved_less_memory", (4, 3))):
        found = orders(schedule, 2, 2, 5)
        assert tuple(int(np.argmax(line[:, 0] == BACKWARD)) - 1 for line in found.passes) == ahead
        assert found.passes[0][:4, 1:].tolist() == [[0, 0], [1, 0], [2, 0], [0, 1]]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("m", [8, 16, 64])
def test_in_flight_as_memory_counts_it(schedule: str, m: int) -> None:
    v = {"gpipe": 1, "1f1b": 1, "zero_bubble_v": 2}.get(schedule, 3)
    row = Strategy(
        dp=1, tp=1, pp=4, vpp=v, layers=((1,) * 4,) * v, recompute_full=(0,) * 4, recompute_selective=(0,) * 4,
        micro_batches=m, schedule=schedule,
    )  # fmt: skip
    memory = in_flight_CVS(Strategies.of([row]))[0]
    counted = flights(schedule, 4, v, m)
    assert memory.sum(axis=0).tolist() == counted[v].tolist()
    if schedule == "zero_bubble_v":  # memory takes the moment at which chunk 1 is fullest; chunk 0 had one more before
        assert memory[1].tolist() == counted[1].tolist()
        assert (memory[0] + 1).tolist() == counted[0].tolist()
