import pytest

from planner.errors import CalibrationError
from planner.observe.points import Point


def point(**changes):
    values = {"kind": "matmul", "op": "matmul", "dtype": "float32", "mode": "graph", "sizes": {"m": 8, "k": 4, "n": 2}}
    return Point(**{**values, "best_s": 1e-3, "median_s": 2e-3, **changes})


def test_a_point_keeps_its_numbers():
    assert (point().best_s, point().median_s, point().sizes["k"]) == (1e-3, 2e-3, 4)


@pytest.mark.parametrize(
    "changes",
    [{"kind": "gemm"}, {"mode": "eager"}, {"best_s": 0.0}, {"best_s": 3e-3}, {"median_s": float("nan")},
     {"best_s": float("inf"), "median_s": float("inf")}],
)  # fmt: skip
def test_impossible_points_are_refused(changes):
    with pytest.raises(CalibrationError):
        point(**changes)
