"""Contrasts of measured sweeps: sign and size of what one change of a layout does, measured and predicted."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.accuracy.time import shipped_calibration
from planner.calibrate.cases import read_cases
from planner.calibrate.fit import TimeCase, log_error

DATA = Path(__file__).parents[2] / "calibration/measurements"
#: What else names a cell of a sweep.
_REST = ("source", "flags", "flash_attention", "tp", "pp", "mbs", "recompute", "sequence_parallel")


def predicted(path: Path) -> dict[str, tuple[float, float]]:
    """Measured and predicted seconds of every row, with its shipped calibration."""
    cases, _ = read_cases([path])
    values: dict[tuple[str, str], Mapping[str, float]] = {}
    return {
        case.case_id: (case.measured_s, case.measured_s * np.exp(log_error(case, _of(case, values)))) for case in cases
    }


def _of(case: TimeCase, known: dict[tuple[str, str], Mapping[str, float]]) -> Mapping[str, float]:
    key = (case.cluster.hardware.name, case.release)
    if key not in known:
        known[key] = {name: constant.value for name, constant in shipped_calibration(case).constants.items()}
    return known[key]


@pytest.fixture(scope="module")
def sweeps() -> list[tuple[dict[str, str], float, float]]:
    found = predicted(DATA / "sweep-times.csv")
    with (DATA / "sweep-times.csv").open(newline="") as file:
        return [(row, *found[row["case_id"]]) for row in csv.DictReader(file)]


def ratios(
    sweeps: list[tuple[dict[str, str], float, float]], column: str, before: str, after: str, **fixed: str
) -> tuple[float, float]:
    """Median of after / before over pairs that differ in one column (dp follows tp and pp): measured, predicted."""
    cells: defaultdict[tuple[str, ...], dict[str, tuple[float, float]]] = defaultdict(dict)
    for row, measured, found in sweeps:
        if all(row[name] == value or (name == "source" and value in row[name]) for name, value in fixed.items()):
            cells[tuple(row[name] for name in _REST if name != column)][row[column]] = (measured, found)
    pairs = [
        (cell[after][i] / cell[before][i]) for cell in cells.values() if {before, after} <= set(cell) for i in (0, 1)
    ]
    assert len(pairs) >= 4
    return float(np.median(pairs[::2])), float(np.median(pairs[1::2]))


@pytest.mark.parametrize(
    ("column", "before", "after", "fixed", "least", "most", "off"),
    [
        ("recompute", "none", "full", {}, 1.2, 1.4, 0.06),
        ("sequence_parallel", "0", "1", {"tp": "4"}, 0.90, 0.98, 0.05),
        ("tp", "2", "4", {}, 1.08, 1.28, 0.08),
        ("mbs", "1", "2", {"tp": "1", "source": "13B_bfloat16_32"}, 0.95, 1.05, 0.06),
        ("pp", "1", "2", {"source": "30B_bfloat16_256"}, 0.70, 0.96, 0.12),
        ("pp", "1", "2", {"source": "30B_bfloat16_64"}, 0.88, 0.98, 0.08),
    ],
)  # fmt: skip
def test_one_change_of_a_swept_layout(
    sweeps: list[tuple[dict[str, str], float, float]], column: str, before: str, after: str, fixed: dict[str, str],
    least: float, most: float, off: float,
) -> None:  # fmt: skip
    measured, found = ratios(sweeps, column, before, after, **fixed)
    assert least < measured < most
    assert found == pytest.approx(measured, abs=off)


def test_states_inside_a_node_scale_and_states_over_all_ranks_do_not() -> None:
    """InternEvo 7B, fixed work a GPU: 4.26 s on 16 and 7.21 s on 1,024; 4.16 and 4.52 s with states in the node."""
    rows = predicted(DATA / "more-times.csv")
    grown = {
        kind: [rows[f"IE-7B-1024-{kind}"][i] - rows[f"IE-7B-16-{kind}"][i] for i in (0, 1)]
        for kind in ("zeroall", "zero8")
    }
    assert grown["zeroall"] == [pytest.approx(2.95, abs=0.01), pytest.approx(2.0, abs=1.0)]
    assert grown["zero8"] == [pytest.approx(0.36, abs=0.01), pytest.approx(0.36, abs=0.2)]
    assert grown["zeroall"][1] > 2.5 * grown["zero8"][1]


def test_expert_traffic_that_is_deduplicated_or_overlapped_is_cheaper() -> None:
    """Qwen3-30B with EP 16 over two H100 nodes: 45.7 s plain, 24.7 s a token once a node, 20.1 s overlapped as well."""
    cases = {case.case_id: case for case in read_cases([DATA / "more-times.csv"])[0]}
    once, both = cases["MB-Qwen3-30B-H100-16-noov"], cases["MB-Qwen3-30B-H100-16"]
    plain = replace(once, run=replace(once.run, node_dispatch=False))
    values = _of(once, {})
    steps = [case.measured_s * np.exp(log_error(case, values)) for case in (plain, once, both)]
    assert once.run.node_dispatch
    assert both.run.ep_overlap
    assert steps[0] > steps[1] > steps[2]
    assert steps[2] / steps[1] == pytest.approx(20.147 / 24.714, abs=0.05)
    assert steps == pytest.approx([45.7, 24.7, 20.1], rel=0.2)
