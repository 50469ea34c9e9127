"""Comma-separated tables, read by the names of their columns, row by row."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.errors import SpecError
from planner.observe.text import File, number, whole

#: Spellings of one column over the releases: old to new.
_SAME: Final = {
    "step_id": "step",
    "step_num": "step",
    "op_name": "name",
    "op_type": "type",
    "task_type": "accelerator_core",
    "core_type": "accelerator_core",
    "task_start_time(us)": "start_time(us)",
    "task_duration(us)": "duration(us)",
    "task_wait_time(us)": "wait_time(us)",
    "block_num": "block_dim",
    "mix_block_num": "mix_block_dim",
}
csv.field_size_limit(2**24)


def column(name: str) -> str:
    """One spelling of a column's name.

    >>> column(" Step ID "), column("Task Duration(us)"), column('"Block Num"')
    ('step', 'duration(us)', 'block_dim')
    """
    plain = re.sub(r"[\s_]+", "_", name.strip().strip('"').strip().lower().lstrip("\ufeff"))
    return _SAME.get(plain, plain)


def header(file: File) -> tuple[str, ...]:
    """Column names of the first line that is not empty; () when it is no table."""
    for line in file.head.splitlines():
        if line.strip():
            return tuple(column(cell) for cell in next(csv.reader([line], skipinitialspace=True)))
    return ()


@dataclass(frozen=True, slots=True)
class Row:
    """One row by column.

    Attributes
    ----------
    cells : mapping of str to str
    line : int
        Number in the file, from 1 (the header's).
    """

    cells: Mapping[str, str]
    line: int

    def number(self, *names: str) -> float:
        """First of the columns that exists, as a number; NaN without."""
        for name in names:
            if name in self.cells:
                return number(self.cells[name])
        return float("nan")

    def whole(self, *names: str) -> int | None:
        """First of the columns that exists, as a whole number."""
        return next((whole(self.cells[name]) for name in names if name in self.cells), None)

    def text(self, *names: str) -> str:
        """First of the columns that exists, stripped; ``""`` without and for N/A."""
        word = next((self.cells[name] for name in names if name in self.cells), "").strip().strip('"').strip()
        return "" if word.lower() in ("n/a", "na", "nan") else word


@dataclass
class Table:
    """A table that is being read: iterate once, then see ``notes``."""

    file: File
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names in the file's order."""
        return header(self.file)

    def need(self, names: Collection[str], what: str) -> None:
        """Refuse a table that lacks a column.

        Raises
        ------
        SpecError
        """
        lacking = [name for name in names if name not in self.columns]
        if lacking:
            raise SpecError(f"{self.file.path}: {what} lacks column {', '.join(lacking)}; there are: {self._shown()}.")

    def __iter__(self) -> Iterator[Row]:
        names: tuple[str, ...] = ()
        short, between = 0, 0
        reader = csv.reader(self.file.text_lines(), skipinitialspace=True)
        try:
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if not names:
                    names = tuple(column(cell) for cell in cells)
                    continue
                between += short > 0
                short = len(cells) if len(cells) < len(names) else 0
                if not short:
                    yield Row(dict(zip(names, cells, strict=False)), reader.line_num)
        except csv.Error as error:
            self.notes.append(f"{self.file.path.name}, line {reader.line_num}: {error}; the rest was left out.")
        if between:
            self.notes.append(
                f"{self.file.path.name}: {between} row(s) with fewer columns than the header were left out."
            )
        if short:
            self.notes.append(
                f"{self.file.path.name}: the last row has {short} of {len(names)} columns, the file is cut short; "
                "that row was left out."
            )

    def _shown(self) -> str:
        names = self.columns
        return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
