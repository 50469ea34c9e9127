"""Makespans of schedules: by hand, by closed forms that are exact, and against the plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.strategies import FloatArray
from planner.errors import SpecError
from planner.timeline import simulation
from planner.timeline.orders import KNOWN
from planner.timeline.program import compiled
from planner.timeline.simulation import makespans
from tests.timeline.plain import plain_makespan

CHUNKS = {"gpipe": 1, "1f1b": 1, "zero_bubble_v": 2}


def seconds(schedule: str, f: FloatArray, b: FloatArray, w: FloatArray, m: int, transfer: float = 0.0) -> float:
    """Makespan of lengths of shape (V, S)."""
    one = makespans(schedule, f[..., None], b[..., None], w[..., None], m, np.array([transfer]))
    return float(one[0])


def equal(p: int, v: int, f: float, b: float, w: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Stages of one length in v chunks."""
    return tuple(np.full((v, p), x / v) for x in (f, b, w))  # type: ignore[return-value]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("m", [1, 2, 5, 8, 13, 2048])
@pytest.mark.parametrize(("f", "b"), [(1.0, 2.0), (2.0, 3.0), (1.0, 1.0)])
def test_equal_stages_take_m_plus_p_minus_1_turns(schedule: str, p: int, m: int, f: float, b: float) -> None:
    assert seconds(schedule, *equal(p, 1, f, b, f), m) == (m + p - 1) * (f + b)


@pytest.mark.parametrize("schedule", ["interleaved", "interleaved_less_memory", "seqpipe"])
@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("v", [2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 5, 500])
def test_interleaving_divides_the_fill_by_the_chunks(schedule: str, p: int, v: int, rounds: int) -> None:
    m = rounds * p
    assert seconds(schedule, *equal(p, v, 4.0, 8.0, 4.0), m) == m * 12.0 + (p - 1) * 12.0 / v


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("m", [4, 5, 501])
def test_zero_bubble_leaves_only_the_run_through_half_a_forward(p: int, m: int) -> None:
    assert seconds("zero_bubble_v", *equal(p, 2, 2.0, 4.0, 2.0), m * p) == m * p * 6.0 + (p - 1) * 1.0


def test_transfers_delay_the_fill_by_hand() -> None:
    # one micro-batch through three stages: 2 transfers forward, 2 back
    assert seconds("1f1b", *equal(3, 1, 1.0, 2.0, 1.0), 1, transfer=0.25) == 3 * 3.0 + 4 * 0.25
    assert seconds("gpipe", *equal(3, 1, 1.0, 2.0, 1.0), 1, transfer=0.25) == 3 * 3.0 + 4 * 0.25


def test_slow_first_stage_hides_the_others() -> None:
    # stage 0 of length 6 works without a break but for 3 s: the first gradient comes back after 9, it ran ahead for 6
    f = np.array([[2.0, 1.0, 1.0, 1.0]])
    assert seconds("1f1b", f, 2 * f, f, 8) == 8 * 6.0 + 3.0
    assert seconds("1f1b", f, 2 * f, f, 8000) == 8000 * 6.0 + 3.0


@st.composite
def instances(draw: st.DrawFn) -> tuple[str, FloatArray, FloatArray, FloatArray, int, float]:
    schedule = draw(st.sampled_from(KNOWN))
    p = draw(st.integers(1, 6))
    v = CHUNKS.get(schedule) or draw(st.integers(1, 4))
    m = draw(st.integers(1, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.003, 0.1, 1.0, 4.0]))
    f = 1.0 + spread * rng.random((v, p))
    if draw(st.booleans()):
        f = np.rint(2 * f) / 2  # many equal lengths, ties everywhere
    b = f * rng.uniform(1.2, 3.0, (v, p))
    return schedule, f, b, f * rng.uniform(0.3, 1.0), m, draw(st.sampled_from([0.0, 0.0, 0.3]))


@settings(max_examples=300, deadline=None)
@given(instances())
def test_skipping_the_steady_state_changes_nothing(
    instance: tuple[str, FloatArray, FloatArray, FloatArray, int, float],
) -> None:
    schedule, f, b, w, m, transfer = instance
    lengths = (f.tolist(), b.tolist(), w.tolist())
    plain = plain_makespan(schedule, *lengths, micro_batches=m, transfer=transfer)
    assert seconds(schedule, f, b, w, m, transfer) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("interleaved", 3), ("zero_bubble_v", 2)])
def test_two_stages_that_pass_each_other_late(schedule: str, v: int) -> None:
    """The slower of two stages far apart sets the pace only after hundreds of micro-batches."""
    f = np.full((v, 6), 0.7)
    f[:, 0], f[:, -1] = 1.0, 1.002
    lengths = (f.tolist(), (2 * f).tolist(), f.tolist())
    plain = plain_makespan(schedule, *lengths, micro_batches=1203)
    assert seconds(schedule, f, 2 * f, f, 1203) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize(("schedule", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 4),
                                             ("interleaved_less_memory", 4), ("zero_bubble_v", 2)])  # fmt: skip
def test_few_blocks_of_a_long_step_are_run(schedule: str, v: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step of 2,048 micro-batches on 16 stages costs, in blocks that are run rather than in seconds."""
    ran = []
    blocks_alike = simulation._skip
    monkeypatch.setattr(simulation, "_skip", lambda *args: ran.append(1) or blocks_alike(*args))
    f = np.ones((v, 16))
    f[-1, 0 if schedule == "zero_bubble_v" else -1] = 1.7
    seconds(schedule, f, 2 * f, f, 2048)
    assert len(ran) <= 6


def test_a_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(1)
    f = 0.013 * (1.0 + rng.random((3, 4, 40)))
    together = makespans("interleaved", f, 2.1 * f, f, 257)
    alone = [makespans("interleaved", part, 2.1 * part, part, 257)[0] for part in np.split(f, 40, axis=2)]
    assert together.tolist() == alone


def test_unknown_schedule_and_wrong_chunks_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="schedule 'dualpipe' is not known; legal: gpipe, 1f1b"):
        seconds("dualpipe", *equal(2, 1, 1.0, 2.0, 1.0), 2)
    with pytest.raises(SpecError, match="zero_bubble_v needs 2 chunks"):
        seconds("zero_bubble_v", *equal(2, 1, 1.0, 2.0, 1.0), 2)


def test_a_block_waits_for_the_block_before_at_most() -> None:
    """The compiler checks it for every shape; long steps of every schedule are cut into blocks."""
    for schedule in KNOWN[1:]:
        for p in (1, 2, 3, 8, 16):
            for v in (1, 2, 5) if schedule not in CHUNKS else (CHUNKS[schedule],):
                for m in (16 * p, 16 * p + p - 1, 16 * p + p // 2):
                    program, blocks = compiled(schedule, p, v, m)
                    assert program.body is not None
                    assert blocks >= 8
