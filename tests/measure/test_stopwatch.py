"""Slopes, marks and the clock of the benchmark programs."""

import pytest

from planner.measure.bench import stopwatch


def test_the_slope_takes_the_call_off():
    found = stopwatch.slope_of([0.010 + 0.002] * 5, [0.010 + 5 * 0.002] * 5, 5)
    assert (found["best_s"], found["median_s"], found["mark"]) == (pytest.approx(0.002), pytest.approx(0.002), "")


def test_the_fastest_calls_make_the_best():
    found = stopwatch.slope_of([0.012, 0.012, 0.020], [0.020, 0.030, 0.040], 5)
    assert found["best_s"] == pytest.approx(0.002)
    assert found["median_s"] == pytest.approx(0.0045)
    assert found["mark"] == "noisy"


@pytest.mark.parametrize(
    ("singles", "several", "words"),
    [([0.0, -1.0], [1.0, 1.0], "clock"), ([1.0, 1.0], [-1.0, 0.0], "clock"), ([1.0, 1.0], [0.9, 0.9], "told from")],
)
def test_impossible_readings_are_no_measurement(singles, several, words):
    assert words in stopwatch.slope_of(singles, several, 5)["error"]


def test_a_step_back_of_the_clock_is_dropped_and_marked():
    found = stopwatch.slope_of([1.0, -3.0, 1.0, 1.0], [5.0, 5.0, 5.0, 5.0], 5)
    assert (found["best_s"], found["repeats"], found["mark"]) == (1.0, 3, "clock")


def test_a_steady_slow_down_is_throttling():
    times = [1.0] * 5 + [1.3] * 5 + [1.7] * 5
    assert stopwatch.mark_of(times, 1.0, 1.3) == "throttled"
    assert stopwatch.mark_of(times[::-1], 1.0, 1.3) == ""


def test_repeats_end_with_the_budget_but_never_before_the_least():
    calls = []
    found = stopwatch.slope(lambda: calls.append(1), lambda: [i * i for i in range(20000)], 5, budget_s=0.0, least=7)
    assert (found["repeats"], len(calls)) == (7, 7)
    assert found["load"] is None or 0.0 <= found["load"] <= 1.0
