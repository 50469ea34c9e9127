"""The raw CSV of a calibration: one row a measurement, appended as soon as it is there, so that nothing is lost.

A task that was measured several times has several rows; `points` keeps the fastest, and its mark only when every row
is marked.  What the device cannot do is a row, too, without times and with the reason.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from planner.errors import CalibrationError
from planner.observe.points import Point

COLUMNS: Final = (
    "when", "device_target", "device_name", "mindspore", "host", "cores", "memory_bytes", "kind", "op", "dtype", "mode",
    "sizes", "best_s", "median_s", "spread_s", "repeats", "load", "mark", "unsupported",
)  # fmt: skip
#: Load of the machine by others from which a point counts as loaded [share of its cores].
LOADED: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Which device, and what ran on it."""

    device_target: str
    device_name: str
    mindspore: str
    host: str
    cores: int = 0
    memory_bytes: int = 0

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Facts:
        """Facts among others."""
        values: dict[str, Any] = {f.name: str(found.get(f.name, "")) for f in fields(cls)}
        return cls(**values | {name: int(found.get(name) or 0) for name in ("cores", "memory_bytes")})

    def differs(self, other: Facts) -> str:
        """What is another device or version, in words; empty where measurements belong together."""
        for name in ("device_target", "device_name", "mindspore", "host"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} {getattr(other, name)!r}, not {getattr(self, name)!r}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: a measurement, or why there is none."""

    when: str
    facts: Facts
    kind: str
    op: str
    dtype: str
    mode: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    mark: str = ""
    unsupported: str = ""
    line: int = 0

    @property
    def key(self) -> str:
        """As `planner.measure.sweep.Task.key`."""
        sizes = " ".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        return " ".join(word for word in (self.mode, self.op, self.dtype, sizes) if word)


def row_of(when: str, facts: Facts, task: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
    """The row of a task and what a child program reported of it."""
    same = {name: task[name] for name in ("kind", "op", "dtype", "mode", "sizes")}
    problem = str(found.get("unsupported") or found.get("error") or "")
    if problem:
        return Row(when=when, facts=facts, **same, unsupported=problem)
    load = found.get("load")
    mark = str(found.get("mark") or "")
    if not mark and load is not None and load > LOADED:
        mark = "loaded"
    names = ("best_s", "median_s", "spread_s", "repeats", "load")
    times = {name: float(found[name]) for name in names if found.get(name) is not None}
    return Row(when=when, facts=facts, **same, times=times, mark=mark)


def append(path: Path, rows: Iterable[Row]) -> None:
    """Write rows behind those that are there; a new file starts with its header."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(COLUMNS)
            for row in rows:
                writer.writerow(_cells(row))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CalibrationError(f"measurements cannot be written to {path}: {error.strerror or error}.") from error


def _end_last_line(path: Path) -> None:
    """A run that was killed while it wrote leaves half a line; drop it."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def _cells(row: Row) -> list[str]:
    sizes = " ".join(f"{name}={size}" for name, size in sorted(row.sizes.items()))
    facts = (row.facts.device_target, row.facts.device_name, row.facts.mindspore, row.facts.host)
    times = [_number(row.times.get(name)) for name in ("best_s", "median_s", "spread_s", "repeats", "load")]
    machine = (row.facts.cores, row.facts.memory_bytes)
    cells = (
        row.when,
        *facts,
        *machine,
        row.kind,
        row.op,
        row.dtype,
        row.mode,
        sizes,
        *times,
        row.mark,
        row.unsupported,
    )
    return [str(cell) for cell in cells]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def read(path: Path) -> tuple[Row, ...]:
    """All rows of a raw CSV.

    Raises
    ------
    CalibrationError
        The file cannot be read, is no raw CSV, or a row holds an impossible number; names file, line and cell.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CalibrationError(f"measurements {path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise CalibrationError(f"measurements {path} are not UTF-8 text (byte {error.start}).") from None
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise CalibrationError(f"{path} is no raw CSV of planner calibrate: column '{missing[0]}' is missing.")
    complete = text.endswith("\n")
    cells = list(reader)
    if not complete and cells:
        cells.pop()  # half a line of a run that was killed
    return tuple(_row(path, number, row) for number, row in enumerate(cells, start=2))


def is_raw(path: Path) -> bool:
    """Whether a file begins like a raw CSV."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.readline().strip().split(",") == list(COLUMNS)
    except (OSError, UnicodeDecodeError):
        return False


def _row(path: Path, line: int, cells: Mapping[str, str]) -> Row:
    where = f"{path}, line {line}"
    times = {}
    if not cells["unsupported"]:
        for name in ("best_s", "median_s", "spread_s", "repeats", "load"):
            if cells[name]:
                times[name] = _finite(where, name, cells[name])
        if not 0.0 < times.get("best_s", 0.0) <= times.get("median_s", 0.0) * (1.0 + 1e-9):
            raise CalibrationError(
                f"{where}: best_s '{cells['best_s']}' and median_s '{cells['median_s']}'; times are above 0, and the "
                "best is not above the median. Delete the line."
            )
    try:
        sizes = {name: int(size) for name, _, size in (word.partition("=") for word in cells["sizes"].split())}
    except ValueError:
        raise CalibrationError(f"{where}: sizes '{cells['sizes']}'; write them like 'k=256 m=512'.") from None
    names = ("when", "kind", "op", "dtype", "mode", "mark", "unsupported")
    return Row(**{name: cells[name] for name in names}, facts=Facts.of(cells), sizes=sizes, times=times, line=line)


def _finite(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0.0:
        raise CalibrationError(f"{where}: {name} is '{text}'; it must be a finite number, 0 or more. Delete the line.")
    return value


def point(row: Row, source: str) -> Point:
    """A measured row as a point."""
    return Point(
        kind=row.kind, op=row.op, dtype=row.dtype, mode=row.mode, sizes=row.sizes, best_s=row.times["best_s"],
        median_s=row.times["median_s"], spread_s=row.times.get("spread_s", 0.0),
        repeats=int(row.times.get("repeats", 1)), load=row.times.get("load"), mark=row.mark,
        source=f"{source}, line {row.line}" if row.line else source,
    )  # fmt: skip


def points(rows: Sequence[Row], source: str) -> tuple[Point, ...]:
    """One point for each task that was measured: the fastest row, unmarked when any row of the task was."""
    best: dict[str, Point] = {}
    calm: set[str] = set()
    for row in rows:
        if row.unsupported:
            continue
        found, known = point(row, source), best.get(row.key)
        if not row.mark:
            calm.add(row.key)
        if known is None or found.best_s < known.best_s:
            best[row.key] = found
    return tuple(replace(found, mark="") if key in calm else found for key, found in best.items())


def unsupported(rows: Sequence[Row]) -> dict[str, str]:
    """Operations that never ran, by ``mode op dtype``, with the device's own words."""
    ran = {(row.mode, row.op, row.dtype) for row in rows if not row.unsupported}
    failed = {(row.mode, row.op, row.dtype): row.unsupported for row in rows if row.unsupported}
    return {" ".join(key): why for key, why in failed.items() if key not in ran}


def open_tasks(tasks: Sequence[Any], rows: Sequence[Row], *, attempts: int = 1) -> list[Any]:
    """Tasks without an answer so far: not run, or marked in each of fewer than ``attempts`` runs.

    What the device could not do at one size it is not asked at another.
    """
    runs: dict[str, int] = {}
    settled = set()
    absent = set(unsupported(rows))
    for row in rows:
        runs[row.key] = runs.get(row.key, 0) + 1
        if row.unsupported or not row.mark:
            settled.add(row.key)
    return [
        task
        for task in tasks
        if task.key not in settled
        and runs.get(task.key, 0) < attempts
        and f"{task.mode} {task.op} {task.dtype}" not in absent
    ]
