"""Points that people have: raw CSVs of earlier calibrations, tables of m, k, n and time, what runs left behind."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from planner.errors import CalibrationError
from planner.measure import raw
from planner.measure.raw import Facts
from planner.observe.points import Point

#: Names of a time column and seconds of one unit.
_TIMES: Final = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time": 1.0, "seconds": 1.0}
_SHAPE: Final = ("m", "k", "n")
#: No device multiplies faster than this; a time below it is in another unit [FLOP/s].
_FASTEST: Final = 1e16


def read_points(paths: Sequence[Path]) -> tuple[tuple[Point, ...], Facts | None, Mapping[str, str]]:
    """Points of all files, the device where the files name it, and what it could not do.

    Raises
    ------
    CalibrationError
        A file cannot be read, holds impossible numbers, or two files are of different devices.
    """
    points: list[Point] = []
    facts: Facts | None = None
    unsupported: dict[str, str] = {}
    for path in paths:
        if not path.exists():
            raise CalibrationError(f"--from {path}: no such file.")
        if path.is_file() and raw.is_raw(path):
            rows = raw.read(path)
            points += raw.points(rows, path.name)
            unsupported |= raw.unsupported(rows)
            for row in rows:
                if facts is not None and (other := facts.differs(row.facts)):
                    raise CalibrationError(f"{path}, line {row.line}: measured with {other}; calibrate devices apart.")
                facts = row.facts
        else:
            points += _table(path) if path.is_file() and _is_table(path) else _observed(path)
    return tuple(points), facts, unsupported


def _is_table(path: Path) -> bool:
    """Whether a file's first line names m, k, n and a time."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            names = [name.strip().lower() for name in file.readline().split(",")]
    except (OSError, UnicodeDecodeError):
        return False
    return set(_SHAPE) <= set(names) and not set(_TIMES).isdisjoint(names)


def _table(path: Path) -> list[Point]:
    """A table of matmul times; ``dtype`` is optional (bfloat16 where it is missing)."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        names = {name.strip().lower(): name for name in reader.fieldnames or ()}
        column = next(name for name in _TIMES if name in names)
        points = []
        for line, row in enumerate(reader, start=2):
            where = f"{path}, line {line}"
            sizes = {key: round(_number(where, key, row[names[key]])) for key in _SHAPE}
            seconds = _number(where, column, row[names[column]]) * _TIMES[column]
            rate = 2.0 * sizes["m"] * sizes["k"] * sizes["n"] / seconds
            if rate > _FASTEST:
                raise CalibrationError(
                    f"{where}: {seconds:g} s would be {rate / 1e12:.0f} TFLOP/s; name the column time_us or time_ms "
                    "if it is not in seconds."
                )
            dtype = row[names["dtype"]] if "dtype" in names else "bfloat16"
            points.append(
                Point(
                    kind="matmul", op="matmul", dtype=dtype, mode="csv", sizes=sizes, best_s=seconds, median_s=seconds,
                    source=where,
                )
            )  # fmt: skip
    return points


def _number(where: str, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise CalibrationError(f"{where}: {name} is '{text}'; it must be a finite number above 0. Delete the line.")
    return value


def _observed(path: Path) -> Sequence[Point]:
    """What the readers of runs make of a file or folder."""
    try:
        from planner.observe.read import read
    except ImportError:
        raise CalibrationError(
            f"--from {path} is neither a raw CSV of planner calibrate nor a table of m, k, n and time."
        ) from None
    return tuple(read(path).points)
