"""Measured throughputs over sizes: a small CSV of one's own."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Final

from planner.errors import SpecError
from planner.study.scaling import Measured

_SPEEDS: Final = ("tokens_per_s_per_card", "tokens_per_s", "step_s")
_LIMIT_BYTES: Final = 2**20


def read_runs(path: str, seq: int) -> tuple[Measured, ...]:
    """Rows with ``cards`` and one of ``tokens_per_s_per_card``, ``tokens_per_s``, ``step_s`` (with ``global_batch``).

    Raises
    ------
    SpecError
        The file cannot be read, or a row is wrong: names the line.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _LIMIT_BYTES:
            raise SpecError(f"{path} is larger than {_LIMIT_BYTES} bytes; a line for each run is enough.")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}.") from None
    rows = csv.DictReader(text.splitlines())
    names = [name.strip() for name in rows.fieldnames or ()]
    speeds = [name for name in _SPEEDS if name in names]
    if "cards" not in names or not speeds:
        raise SpecError(f"{path}: columns {', '.join(names) or 'none'}; needed: cards and one of {', '.join(_SPEEDS)}.")
    rows.fieldnames = names
    found = tuple(_run(row, speeds[0], seq, f"{path}:{rows.line_num}") for row in rows)
    if not found:
        raise SpecError(f"{path} has no runs below its first line.")
    return found


def _run(row: dict[str, str | None], speed: str, seq: int, place: str) -> Measured:
    cards = _number(row, "cards", place)
    batch = _number(row, "global_batch", place) if (row.get("global_batch") or "").strip() else 0.0
    value = _number(row, speed, place)
    if cards != int(cards) or batch != int(batch):
        raise SpecError(f"{place}: cards and global_batch must be whole numbers.")
    if speed == "tokens_per_s":
        value /= cards
    if speed == "step_s":
        if not batch:
            raise SpecError(f"{place}: step_s says a throughput only with global_batch; add that column.")
        value = batch * seq / (value * cards)
    return Measured(devices=int(cards), tokens_per_s_per_device=value, global_batch=int(batch))


def _number(row: dict[str, str | None], name: str, place: str) -> float:
    try:
        value = float((row.get(name) or "").strip())
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise SpecError(f"{place}: {name} '{row.get(name) or ''}' is not a positive number.")
    return value
