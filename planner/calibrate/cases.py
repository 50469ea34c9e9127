"""Published measurements as cases that can be predicted, and why the other rows cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from planner.calibrate.fit import TimeCase, time_case
from planner.cluster.load import data_directory
from planner.errors import CalibrationError, PlannerError
from planner.observe.published import (
    SIMULATOR_ROWS,
    STEP_TIMES,
    TruthRow,
    kind_of,
    read_simulator_rows,
    read_step_times,
)

#: Files that the accuracy figures stand on.
TRUTH_FILES: Final = ("step-times.csv", "simulator-rows.csv", "sweep-times.csv", "more-times.csv")


def truth_paths() -> tuple[Path, ...]:
    """Shipped measurements, beside the calibrations.

    Raises
    ------
    CalibrationError
        They are not installed.
    """
    paths = tuple(data_directory("calibration") / "measurements" / name for name in TRUTH_FILES)
    if all(path.is_file() for path in paths):
        return paths
    raise CalibrationError(f"the measurements {', '.join(TRUTH_FILES)} are not installed; name a file with --data.")


def read_cases(paths: Sequence[str | Path]) -> tuple[list[TimeCase], dict[str, str]]:
    """Rows of measurement files that can be predicted, and why the others cannot."""
    cases: list[TimeCase] = []
    skipped: dict[str, str] = {}
    for path in paths:
        for row in _rows(path):
            try:
                cases.append(time_case(row))
            except PlannerError as error:
                skip(skipped, row.case_id, error)
    return cases, skipped


def skip(skipped: dict[str, str], case_id: str, error: PlannerError) -> None:
    """Note why a row is skipped; names that stand twice are counted."""
    name, count = case_id, 1
    while name in skipped:
        count += 1
        name = f"{case_id} ({count})"
    skipped[name] = str(error).removeprefix(f"{case_id}: ")


def _rows(path: str | Path) -> list[TruthRow]:
    kind = kind_of(path)
    if kind == STEP_TIMES:
        return read_step_times(path)
    if kind == SIMULATOR_ROWS:
        return read_simulator_rows(path)
    raise CalibrationError(f"{path}: a {kind} table has no step times; legal: {STEP_TIMES} or {SIMULATOR_ROWS} tables.")
