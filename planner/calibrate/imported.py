"""Points that people have: raw CSVs of earlier calibrations, and whatever ``planner.observe`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.calibrate.device import DTYPES
from planner.cluster.algorithms import OPS
from planner.cluster.records import Hardware
from planner.errors import CalibrationError
from planner.measure import raw
from planner.measure.raw import Facts
from planner.observe.points import Point
from planner.observe.read import read


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
            points += read(path).points
    return tuple(points), facts, unsupported


def usable(points: Sequence[Point], hardware: Hardware) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """Points in the words of the fit, and remarks on those that say too little.

    A matmul of a table or profile is a matmul whatever its kernel is called, and one without a type is of the type that
    networks compute in on this device; a collective that does not say which it is and of how many ranks is left out.
    """
    usual = next((kind for kind in DTYPES if kind in hardware.device.peak_flop_per_s), "float32")
    kept, lost = [], 0
    for point in points:
        if point.kind == "collective" and ("ranks" not in point.sizes or point.op not in OPS):
            lost += 1
            continue
        changes: dict[str, str] = {}
        if point.kind == "matmul" and point.mode in ("csv", "profile"):
            changes["op"] = "matmul"
        if point.dtype in ("", "unknown"):
            changes["dtype"] = usual
        kept.append(replace(point, **changes))  # type: ignore[arg-type]
    remark = f"{lost} collective points do not say which operation it was, or of how many ranks, and are left out"
    return tuple(kept), (remark,) if lost else ()
