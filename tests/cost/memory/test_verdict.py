"""Room of a card: margins and probabilities against their sources."""

import csv
from pathlib import Path
from statistics import fmean, stdev

import pytest

from planner.cost.memory.verdict import FRAGMENTATION, FRAGMENTATION_SCATTER, GIB, growing, planned
from planner.errors import SpecError

CALIBRATION = Path(__file__).parents[3] / "calibration"


def test_constants_are_those_of_the_fit_file():
    with (CALIBRATION / "memory-fragmentation.csv").open(encoding="utf-8") as stream:
        shares = [float(r["reserved_gib"]) / float(r["allocated_gib"]) - 1.0 for r in csv.DictReader(stream)]
    assert fmean(shares) == pytest.approx(FRAGMENTATION, abs=5e-5)
    assert stdev(shares) == pytest.approx(FRAGMENTATION_SCATTER, abs=5e-5)


@pytest.mark.parametrize("room", [growing(79.15 * GIB), planned(58 * GIB)])
def test_probability_and_peak_are_inverse(room):
    for chance in (0.5, 0.8, 0.95, 0.999):
        assert room.probability(room.peak_bytes(chance)) == pytest.approx(chance, abs=1e-9)
    peaks = [room.peak_bytes(chance) for chance in (0.5, 0.8, 0.95, 0.999)]
    assert peaks == sorted(peaks, reverse=True)


def test_a_pool_that_grows_keeps_more_than_a_planned_one():
    assert growing(58 * GIB).peak_bytes(0.95) < planned(58 * GIB).peak_bytes(0.95) < 58 * GIB


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0, float("nan")])
def test_probabilities_without_a_margin_are_refused(chance):
    with pytest.raises(SpecError, match="fit probability"):
        growing(80 * GIB).peak_bytes(chance)
