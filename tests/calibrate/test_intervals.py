"""80 % intervals: by hand, by simulation, and never too sure where rows are few."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.calibrate.intervals import (
    ENOUGH_ROWS,
    coverage,
    generation_interval,
    interval,
    pooled_interval,
    source_interval,
)

#: 90th percentile of Student's t, from tables.
T90 = {1: 3.078, 2: 1.886, 4: 1.533, 8: 1.397, 20: 1.325}


def test_many_rows_give_order_statistics() -> None:
    """Of 39 errors the 4th and the 36th hold 80 % of new ones: positions 0.1 and 0.9 of 40."""
    low, high = interval(np.arange(1.0, 40.0)[::-1])
    assert (low, high) == (pytest.approx(4.0), pytest.approx(36.0))


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_few_rows_give_students_t_around_zero(rows: int) -> None:
    low, high = interval(np.full(rows, 0.1))
    assert high == pytest.approx(0.1 * T90[rows], rel=1e-3)
    assert low == -high


@pytest.mark.parametrize("rows", [1, 3, 8, ENOUGH_ROWS, 61])
def test_new_rows_are_held_four_times_in_five(rows: int) -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(4000):
        *old, new = rng.normal(0.0, 0.1, rows + 1)
        low, high = interval(np.array(old))
        held += bool(low <= new <= high)
    assert held / 4000 == pytest.approx(0.80, abs=0.025)


def test_a_generation_without_rows_has_the_interval_of_all() -> None:
    assert generation_interval((-0.12, 0.10), np.zeros(0)) == (-0.12, 0.10)


@pytest.mark.parametrize("rows", [1, 4, 30])
def test_a_generation_is_never_surer_than_all_rows(rows: int) -> None:
    low, high = generation_interval((-0.12, 0.10), np.zeros(rows))
    assert (low, high) == (-0.12, 0.10)


def test_a_noisy_generation_by_hand() -> None:
    """Four rows of 0.18: variance (4 x (0.11 / 1.533)^2 + 4 x 0.18^2) / 8, times t of 8 degrees."""
    half = T90[8] * math.sqrt((4 * (0.11 / T90[4]) ** 2 + 4 * 0.18**2) / 8)
    low, high = generation_interval((-0.11, 0.11), np.array([0.18, -0.18, 0.18, 0.18]))
    assert high == pytest.approx(half, rel=2e-3)
    assert low == pytest.approx(-half, rel=2e-3)


def test_many_loud_rows_widen_and_many_quiet_ones_do_not_narrow() -> None:
    loud, quiet = (generation_interval((-0.11, 0.11), np.full(16, error)) for error in (0.12, 0.03))
    assert quiet == (-0.11, 0.11)
    assert loud[1] == pytest.approx(T90[20] * math.sqrt((4 * (0.11 / T90[4]) ** 2 + 16 * 0.12**2) / 20), rel=2e-3)


def test_rows_left_out_together_do_not_make_their_own_interval() -> None:
    errors = np.array([0.1] * 10 + [0.2] * 10)
    alone = coverage(errors, list(range(20)))
    together = coverage(errors, ["quiet"] * 10 + ["loud"] * 10)
    assert alone == 1.0
    assert together == 0.5  # the loud ones fall outside what the quiet ones say


def test_sources_count_once_each_and_widen() -> None:
    """Two sources of 0.2 and 0.1, however many rows: t of 2 degrees times the root of (0.04 + 0.01) / 2."""
    errors, labels = np.concatenate((np.full(30, 0.1), [0.2])), ["many"] * 30 + ["one"]
    half = T90[2] * math.sqrt((0.2**2 + 0.1**2) / 2)
    assert source_interval([errors[:30], errors[30:]]) == (
        pytest.approx(-half, rel=1e-3),
        pytest.approx(half, rel=1e-3),
    )
    assert pooled_interval(errors, labels)[1] == pytest.approx(half, rel=1e-3)
    assert pooled_interval(errors)[1] == pytest.approx(0.1, abs=0.01)
