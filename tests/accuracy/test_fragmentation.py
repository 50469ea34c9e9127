"""The fitted share of the pool: remade from the published rows, and cross-validated by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.accuracy import fragmentation as module
from planner.accuracy.fragmentation import Pool, error_percent, fragmentation, pools_of, read, share, table
from planner.cluster.load import data_directory
from planner.errors import CalibrationError
from planner.observe.published import read_memory_cases, read_simulator_rows

TRUTH = Path(__file__).parents[2] / "calibration" / "measurements"


def pool(name: str, family: str, allocated: float, reserved: float) -> Pool:
    return Pool(case_id=name, family=family, allocated_gib=allocated, reserved_gib=reserved)


POOLS = (pool("a", "llama", 100.0, 104.0), pool("b", "llama", 50.0, 51.0), pool("c", "deepseek", 10.0, 10.6))


def test_share_and_left_out_errors_by_hand():
    assert share(POOLS) == pytest.approx(0.04)
    assert share(POOLS, "llama") == pytest.approx(0.06)
    assert share(POOLS, "deepseek") == pytest.approx(0.03)
    assert error_percent(POOLS, POOLS[0]) == pytest.approx(100 * (106 / 104 - 1))
    assert error_percent(POOLS, POOLS[2]) == pytest.approx(100 * (10.3 / 10.6 - 1))


def test_a_single_family_cannot_be_left_out():
    with pytest.raises(CalibrationError, match="no run is left"):
        share(POOLS[:2], "llama")


def test_the_fit_file_is_what_the_published_rows_give():
    rows = [*read_memory_cases(TRUTH / "memory-cases.csv"), *read_simulator_rows(TRUTH / "simulator-rows.csv")]
    path = data_directory("calibration") / module.FILE
    assert path.read_text(encoding="utf-8") == table(pools_of(rows))
    assert len(read(path)) == 17
    assert {found.family for found in read(path)} == set(module.FAMILIES)


def test_the_shipped_share():
    """S10: 84.70 GiB reserved of 81.59 allocated is 3.8 %; the 17 runs lie between 2.8 and 9.3 %."""
    shares = [found.share for found in module.fitted_pools()]
    assert (min(shares), max(shares)) == (pytest.approx(0.0278, abs=1e-4), pytest.approx(0.0928, abs=1e-4))
    assert fragmentation() == pytest.approx(sum(shares) / 17)
