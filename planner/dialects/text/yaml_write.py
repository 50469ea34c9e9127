"""YAML as a person would write it: ordered, two spaces, one reason behind a value, the same text every time.

A document is a list of `Entry`; the value of an entry is a scalar, a list or again a list of entries.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Widest column at which comments of a block are aligned.
_COMMENT_COLUMN: Final = 46
_LINE: Final = 118
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping.

    Attributes
    ----------
    key : str
    value : scalar, list or list of Entry
        A list of entries is a nested mapping; ``Items`` is a block list.
    note : str
        Comment behind the value.
    above : str
        Comment on the lines above the key; an empty line separates it from what came before.
    anchor : str
        Name under which the file refers to this value again.
    """

    key: str
    value: Any
    note: str = ""
    above: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Alias:
    """A reference to an anchored value."""

    name: str


@dataclass(frozen=True, slots=True)
class Items:
    """A block list: every item on lines of its own."""

    items: tuple[Sequence[Entry] | Any, ...]


def document(header: Sequence[str], entries: Sequence[Entry]) -> str:
    """Text of a file: comment lines, then the entries."""
    lines = [f"# {comment(line)}".rstrip() for line in header]
    return "\n".join([*lines, *_block(entries, "")]) + "\n"


def comment(text: str) -> str:
    """Text made safe for one comment line."""
    return _CONTROL.sub(" ", text)


def _block(entries: Sequence[Entry], indent: str) -> list[str]:
    column = _column(entries, indent)
    lines: list[str] = []
    for entry in entries:
        if entry.above:
            lines += ["", *(f"{indent}# {comment(line)}" for line in entry.above.splitlines())]
        lines += _entry(entry, indent, column)
    return lines


def _column(entries: Sequence[Entry], indent: str) -> int:
    widths = [len(_first_line(e, indent)) for e in entries if e.note]
    return min(max(widths, default=0), _COMMENT_COLUMN) + 2


def _first_line(entry: Entry, indent: str) -> str:
    anchor = f" &{entry.anchor}" if entry.anchor else ""
    if _is_block(entry.value):
        return f"{indent}{entry.key}:{anchor}"
    return f"{indent}{entry.key}:{anchor} {scalar(entry.value)}"


def _is_block(value: Any) -> bool:
    return isinstance(value, Items) or (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, Entry) for item in value)
    )


def _entry(entry: Entry, indent: str, column: int) -> list[str]:
    first = _first_line(entry, indent)
    lines = _wrapped(entry, first, indent) if len(first) > _LINE else [first]
    if entry.note:
        note = comment(entry.note)
        if len(lines) == 1 and max(len(first) + 2, column) + 2 + len(note) <= _LINE + 12:
            lines = [f"{first.ljust(column)}# {note}" if len(first) < column else f"{first}  # {note}"]
        else:
            lines = [f"{indent}# {note}", *lines]
    if isinstance(entry.value, Items):
        return lines + _items(entry.value, indent + "  ")
    return lines + (_block(entry.value, indent + "  ") if _is_block(entry.value) else [])


def _wrapped(entry: Entry, first: str, indent: str) -> list[str]:
    """A long nested list with one row a line."""
    if not (isinstance(entry.value, (list, tuple)) and any(isinstance(row, (list, tuple)) for row in entry.value)):
        return [first]
    rows = [f"{indent}  {scalar(row)}" for row in entry.value]
    return [f"{indent}{entry.key}: [", *(row + "," for row in rows[:-1]), rows[-1], f"{indent}]"]


def _items(items: Items, indent: str) -> list[str]:
    lines: list[str] = []
    for item in items.items:
        if _is_block(item):
            block = _block(item, indent + "  ")
            lines += [f"{indent}- {block[0].lstrip()}", *block[1:]]
        else:
            lines.append(f"{indent}- {scalar(item)}")
    return lines


def scalar(value: Any) -> str:
    """One value in flow style, as YAML 1.1 readers understand it.

    >>> scalar(1e-8), scalar(True), scalar([[1, 0], [0, 1]]), scalar(None), scalar("a: b")
    ('1.0e-8', 'True', '[[1, 0], [0, 1]]', 'null', '"a: b"')
    """
    if value is None:
        return "null"
    if isinstance(value, Alias):
        return f"*{value.name}"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    raise TypeError(f"no YAML form for {type(value).__name__}")


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError("a configuration holds finite numbers only")
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = exponent[0] if exponent[0] in "+-" else "+"
    return f"{mantissa}e{sign}{exponent.lstrip('+-').lstrip('0') or '0'}"
