"""Event simulation of pipeline schedules: hand-computed timelines, conservation, order, determinism."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.schedule import Durations, Event, Pass, simulate
from planner.errors import SpecError


def equal(p: int, v: int, f: float, b: float, w: float, transfer: float = 0.0) -> Durations:
    """Stages of one length, in v chunks."""
    return Durations(
        forward_s=((f / v,) * p,) * v,
        backward_s=((b / v,) * p,) * v,
        weights_s=((w / v,) * p,) * v,
        transfer_s=transfer,
    )


def test_two_stages_two_micro_batches_by_hand() -> None:
    # stage 0: F0 0-1, F1 1-2, B0 4-6, B1 7-9; stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7
    events = simulate("1f1b", equal(2, 1, 1.0, 2.0, 1.0), 2).events
    assert [(e.stage, e.work.kind, e.work.micro_batch, e.start_s, e.end_s) for e in events] == [
        (0, "F", 0, 0.0, 1.0), (0, "F", 1, 1.0, 2.0), (1, "F", 0, 1.0, 2.0), (1, "B", 0, 2.0, 4.0),
        (0, "B", 0, 4.0, 6.0),
        (1, "F", 1, 4.0, 5.0), (1, "B", 1, 5.0, 7.0), (0, "B", 1, 7.0, 9.0),
    ]  # fmt: skip


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("m", [1, 2, 5, 8, 13])
@pytest.mark.parametrize(("f", "b"), [(1.0, 2.0), (2.0, 3.0), (1.0, 1.0)])
def test_equal_stages_take_m_plus_p_minus_1_turns(schedule: str, p: int, m: int, f: float, b: float) -> None:
    assert simulate(schedule, equal(p, 1, f, b, f), m).makespan_s == (m + p - 1) * (f + b)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("v", [2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_interleaving_divides_the_fill_by_the_chunks(p: int, v: int, rounds: int) -> None:
    m = rounds * p
    assert simulate("interleaved", equal(p, v, 4.0, 8.0, 4.0), m).makespan_s == m * 12.0 + (p - 1) * 12.0 / v
    assert simulate("seqpipe", equal(p, v, 4.0, 8.0, 4.0), m).makespan_s == m * 12.0 + (p - 1) * 12.0 / v


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zero_bubble_leaves_only_the_run_through_half_a_forward(p: int) -> None:
    m = 4 * p
    assert simulate("zero_bubble_v", equal(p, 2, 2.0, 4.0, 2.0), m).makespan_s == m * 6.0 + (p - 1) * 1.0


def test_transfers_delay_the_fill_by_hand() -> None:
    # one micro-batch through three stages: 2 transfers forward, 2 back
    assert simulate("1f1b", equal(3, 1, 1.0, 2.0, 1.0, transfer=0.25), 1).makespan_s == 3 * 3.0 + 4 * 0.25


def test_slow_first_stage_hides_the_others() -> None:
    # stage 0 of length 6 works without a break but for 3 s: the first gradient comes back after 9, it ran ahead for 6
    uneven = Durations(
        forward_s=((2.0, 1.0, 1.0, 1.0),), backward_s=((4.0, 2.0, 2.0, 2.0),), weights_s=((2.0, 1.0, 1.0, 1.0),)
    )
    timeline = simulate("1f1b", uneven, 8)
    assert timeline.makespan_s == 8 * 6.0 + 3.0
    assert timeline.busy_s == (48.0, 24.0, 24.0, 24.0)
    assert timeline.bubble_s[0] == 3.0


@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "interleaved", "zero_bubble_v"]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    micro_batches=st.integers(1, 9),
)
def test_every_pass_runs_once_in_legal_order(schedule: str, lengths: list[int], micro_batches: int) -> None:
    chunks = 2 if schedule in {"interleaved", "zero_bubble_v"} else 1
    one = tuple(float(n) for n in lengths)
    double = tuple(2.0 * n for n in lengths)
    durations = Durations(forward_s=(one,) * chunks, backward_s=(double,) * chunks, weights_s=(one,) * chunks)
    timeline = simulate(schedule, durations, micro_batches)
    kinds = "FBW" if schedule == "zero_bubble_v" else "FB"
    seen = {(e.stage, e.work): e for e in timeline.events}
    assert len(seen) == len(timeline.events) == len(kinds) * len(lengths) * chunks * micro_batches
    for stage in range(len(lengths)):
        mine = sorted((e for e in timeline.events if e.stage == stage), key=lambda e: e.start_s)
        assert all(a.end_s <= b.start_s for a, b in zip(mine, mine[1:], strict=False))
        for event in mine:
            if event.work.kind == "B":
                assert event.start_s >= seen[stage, event.work._replace(kind="F")].end_s
    assert timeline.makespan_s >= max(timeline.busy_s)
    assert simulate(schedule, durations, micro_batches) == timeline


def test_forward_of_a_later_stage_waits_for_the_earlier() -> None:
    timeline = simulate("interleaved", equal(3, 2, 2.0, 4.0, 2.0), 6)
    ends = {(e.stage, e.work): e for e in timeline.events}
    for micro in range(6):
        path: list[Event] = [ends[stage, Pass("F", micro, chunk)] for chunk in range(2) for stage in range(3)]
        assert all(a.end_s <= b.start_s for a, b in zip(path, path[1:], strict=False))


def test_unknown_schedule_and_wrong_chunks_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="schedule 'dualpipe' is not known; legal: gpipe, 1f1b"):
        simulate("dualpipe", equal(2, 1, 1.0, 2.0, 1.0), 2)
    with pytest.raises(SpecError, match="zero_bubble_v needs 2 chunks"):
        simulate("zero_bubble_v", equal(2, 1, 1.0, 2.0, 1.0), 2)
