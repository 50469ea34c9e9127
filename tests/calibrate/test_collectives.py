from pathlib import Path

import pytest

from planner.calibrate.collectives import alpha_beta, alpha_betas
from planner.errors import CalibrationError
from planner.observe.points import Point
from planner.observe.read import read

SAMPLES = Path(__file__).parents[1] / "observe" / "data" / "i_hccl_test"


def points(op, ranks, alpha_s, bus, sizes):
    factor = {"allreduce": 2.0, "allgather": 1.0}[op] * (ranks - 1) / ranks
    return [
        Point(kind="collective", op=op, dtype="float32", mode="csv", sizes={"bytes": size, "ranks": ranks},
              best_s=(time_s := alpha_s + size * factor / bus), median_s=time_s)
        for size in sizes
    ]  # fmt: skip


def test_the_synthetic_log_gives_back_its_constants():
    """35 us and 110 GB/s on the bus of 8 ranks; two printed decimals of a microsecond."""
    (fit,) = alpha_betas(read(SAMPLES / "synthetic_current_format_8npu_allreduce.log").points)
    assert (fit.op, fit.ranks, fit.sizes) == ("allreduce", 8, 6)
    assert fit.alpha_s == pytest.approx(35e-6, rel=1e-3)
    assert fit.bus_bytes_per_s == pytest.approx(110e9, rel=1e-3)
    assert fit.worst_error_frac < 1e-4


def test_operations_and_groups_are_fitted_apart():
    sizes = [2**20, 2**24, 2**28]
    found = alpha_betas(
        [*points("allgather", 16, 60e-6, 20e9, sizes), *points("allreduce", 4, 10e-6, 50e9, sizes)],
    )
    assert [(f.op, round(f.alpha_s * 1e6), round(f.bus_bytes_per_s / 1e9)) for f in found] == [
        ("allgather", 60, 20), ("allreduce", 10, 50),
    ]  # fmt: skip


def test_one_bad_size_moves_the_fit_little_and_shows():
    made = points("allreduce", 8, 35e-6, 110e9, [2**k for k in range(16, 30, 2)])
    slow = Point(kind="collective", op="allreduce", dtype="float32", mode="csv", sizes=made[3].sizes,
                 best_s=made[3].best_s * 1.3, median_s=made[3].median_s * 1.3)  # fmt: skip
    fit = alpha_beta([*made[:3], slow, *made[4:]])
    assert fit.bus_bytes_per_s == pytest.approx(110e9, rel=0.1)
    assert fit.worst_error_frac > 0.15


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([2**20], "two sizes or more"), ([2**20, 2**20], "two sizes or more")],
)
def test_too_few_sizes(sizes, message):
    with pytest.raises(CalibrationError, match=message):
        alpha_beta(points("allreduce", 8, 35e-6, 110e9, sizes))
