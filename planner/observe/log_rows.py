"""Rows of a training log: from lines to columns of numbers, fast and in bounded memory.

A log repeats the shape of its lines.  The first line of a shape is read field by field; from where its values stood,
one pattern for the whole line is made, which reads the following lines at once.  A line that does not fit goes back to
the slow way and adds its own shape.  Values become numbers a block of rows at a time, and lines without a word that
anything is known by are never looked at.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.observe.log_dialects import COMMAS, NUMBER, STAMP, Dialect, Field
from planner.observe.log_events import EventReader
from planner.observe.run import FloatArray
from planner.observe.text import number

#: Rows kept of one run: the newest; earlier ones are counted.
KEPT_STEPS: Final = 2**19
#: Rows turned into numbers at once.
BLOCK_ROWS: Final = 2**15
#: Shapes remembered of one kind of line.
SHAPES: Final = 8
#: Lines with a known word, below which the block is searched for words instead of split.
SPARSE: Final = 0.25
#: Lines with a program's word that are tried before it is another program's log.
_TRIED_LINES: Final = 1000
#: Part of a block that tells how dense it is.
_SAMPLE_BYTES: Final = 2**16
#: A value in front of its word has no more bytes.
_VALUE_BYTES: Final = 24
_GAPS: Final = re.compile(rb"(\d+|\s+)")
#: A column of this many different values among the first `_SAMPLE` is converted by looking up.
_FEW, _SAMPLE = 32, 256
_WORDS: Final = {b"True": 1.0, b"true": 1.0, b"False": 0.0, b"false": 0.0}

Values = tuple[bytes, ...]


@dataclass
class _Shape:
    """One form of a line: its pattern, and the rows that wait to become numbers.

    ``is_whole`` is None until a line of this form was judged: a line cut short has a form too.
    """

    match: Callable[[bytes], re.Match[bytes] | None]
    fields: tuple[Field, ...]
    ids: list[int] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    is_whole: bool | None = None


@dataclass
class _Aside:
    """A kind of line that belongs to steps before it: its fields stand at its word."""

    word: bytes
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        self.found: list[tuple[Field, re.Pattern[bytes], list[int], list[bytes]]] = [
            (one, one.pattern(), [], []) for one in self.fields
        ]

    def read(self, line: bytes, row: int) -> None:
        """Note the fields of a line for a row."""
        start = line.find(self.word) - _VALUE_BYTES
        for _, pattern, ids, values in self.found:
            if (found := pattern.search(line, max(start, 0))) is not None:
                ids.append(row)
                values.append(found[1])

    def taken(self, row: int) -> bool:
        """Whether the last line of this kind was about this row."""
        return any(ids[-1:] == [row] for _, _, ids, _ in self.found)


@dataclass
class _Step:
    """The lines of steps."""

    fields: tuple[Field, ...]
    needed: frozenset[str]
    shapes: list[_Shape] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.patterns = [(one, one.pattern()) for one in self.fields]

    def read(self, line: bytes) -> tuple[_Shape, Values] | None:
        """Shape and values of a line; None when it is not of this kind after all."""
        for index, shape in enumerate(self.shapes):
            if (found := shape.match(line)) is not None:
                if index:
                    self.shapes.insert(0, self.shapes.pop(index))
                return shape, found.groups()
        return self._learn(line)

    def knows(self, line: bytes) -> bool:
        """Whether a line has a shape that was seen before."""
        return any(shape.match(line) for shape in self.shapes)

    def _learn(self, line: bytes) -> tuple[_Shape, Values] | None:
        """Read a line field by field, and remember its shape."""
        found = [(match, one) for one, pattern in self.patterns if (match := pattern.search(line))]
        columns = {one.column for _, one in found}
        if "step" not in columns or not columns & self.needed:
            return None
        found.sort(key=lambda item: item[0].start(1))
        pattern, until = [], 0
        for match, one in found:
            pattern += [_gap(line[until : match.start(1)]), b"(", _QUICK.get(one.value, one.value), b")"]
            until = match.end(1)
        pattern.append(_gap(line[until:]))
        shape = _Shape(re.compile(b"".join(pattern)).fullmatch, tuple(one for _, one in found))
        self.shapes.insert(0, shape)
        return shape, tuple(match[1] for match, _ in found)


@dataclass
class Rows:
    """Rows of a log while it is read.

    Attributes
    ----------
    left_out : int
        Rows that were dropped so that memory stays bounded.
    cut : int
        Steps' lines that were not whole.
    generation : str
    events : EventReader
    """

    dialect: Dialect
    left_out: int = 0
    cut: int = 0
    generation: str = ""
    events: EventReader = field(default_factory=EventReader)

    def __post_init__(self) -> None:
        self._step = _Step(self.dialect.fields, self.dialect.needed)
        self._follow = [_Aside(word, fields) for word, fields in self.dialect.follow]
        self._since = [_Aside(word, fields) for word, fields in self.dialect.since]
        self._count = self._spoken_for = self._most_fields = 0
        self._blocks: list[dict[str, FloatArray]] = []
        self._is_callbacks = self.dialect.is_callbacks

    def read(self, block: bytes, ended: bool = True) -> None:
        """All lines of a block that hold a known word; the last one of a file without end may be cut."""
        if not ended:
            cut = block.rfind(b"\n") + 1
            self.read(block[:cut])
            if not self._step.shapes or self._step.knows(block[cut:]) or self.dialect.marks[0] not in block[cut:]:
                self.read(block[cut:] + b"\n")
            else:
                self.cut += 1
            return
        mark = self.dialect.marks[0]
        kinds = [(kind, kind.word, self._read_follow) for kind in self._follow if kind.word in block]
        kinds += [(kind, kind.word, self._read_since) for kind in self._since if kind.word in block]
        words = [*([mark] if mark in block else []), *(word for _, word, _ in kinds)]
        shape = _Shape(lambda _: None, ())
        for line in _lines(block, words, self.events):
            if mark in line:
                if (found := shape.match(line)) is not None and self._count < BLOCK_ROWS:
                    shape.ids.append(self._count)
                    shape.values.append(found.groups())
                    self._count += 1
                elif (last := self._read_step(line)) is not None:
                    shape = last
                continue
            for kind, word, read in kinds:
                if word in line:
                    read(kind, line)
                    break
            else:
                self.events.read(line)

    def take(self) -> dict[str, FloatArray]:
        """Rows read since the last call, by column, NaN where a row has none; empty without rows.

        A log that is still being written is followed by feeding new blocks and taking what they held.
        """
        self._flush()
        rows = sum(len(block["step"]) for block in self._blocks)
        unknown = np.full(rows, np.nan)
        columns: dict[str, FloatArray] = defaultdict(lambda: unknown)
        for name in sorted({name for block in self._blocks for name in block} - {"step"}):
            parts = [block.pop(name, np.full(len(block["step"]), np.nan)) for block in self._blocks]
            columns[name] = np.concatenate(parts)
        if self._blocks:
            columns["step"] = np.concatenate([block["step"] for block in self._blocks])
        self._blocks = []
        return columns

    def _read_step(self, line: bytes) -> _Shape | None:
        """One step's line; its shape when further lines of it may be added at once."""
        if (found := self._step.read(line)) is None:
            return None
        shape, values = found
        if shape.is_whole is None:
            shape.is_whole = self._is_whole(shape, line)
        if not shape.is_whole:
            self.cut += 1
            return None
        if self._count >= BLOCK_ROWS or len(self._step.shapes) > SHAPES:
            self._flush()
        shape.ids.append(self._count)
        shape.values.append(values)
        self._count += 1
        return shape

    def _is_whole(self, shape: _Shape, line: bytes) -> bool:
        """Whether a line of a new shape is complete: it has its time where all have, and most fields."""
        lacks_time = self.dialect.is_always_timed and all(one.column != "step_s" for one in shape.fields)
        if lacks_time or len(shape.fields) < self._most_fields // 2:
            return False
        if len(shape.fields) > self._most_fields:
            self._most_fields = len(shape.fields)
            self.generation = self.dialect.generation(line)
        return True

    def _read_follow(self, kind: _Aside, line: bytes) -> None:
        """A line about the step before it; one that follows none is a step of its own."""
        if not self._count or (self._is_callbacks and kind.taken(self._count - 1)):
            self._count += 1
        kind.read(line, self._count - 1)

    def _read_since(self, kind: _Aside, line: bytes) -> None:
        """A mean over an epoch: for the rows since the last one, or a row of its own."""
        if self._spoken_for >= self._count:
            self._count += 1
        for row in range(self._spoken_for, self._count):
            kind.read(line, row)
        self._spoken_for = self._count

    def _flush(self) -> None:
        """Turn the waiting rows into numbers; keep the newest `KEPT_STEPS`."""
        if not self._count:
            return
        columns = {"step": np.full(self._count, np.nan)}

        def put(one: Field, ids: Sequence[int], values: Sequence[bytes]) -> None:
            columns.setdefault(one.column, np.full(self._count, np.nan))[ids] = _numbers(one, values)

        for shape in self._step.shapes:
            for one, values in zip(shape.fields, zip(*shape.values, strict=True), strict=False):
                put(one, shape.ids, values)
            shape.ids, shape.values = [], []
        del self._step.shapes[SHAPES:]
        for kind in (*self._since, *self._follow):
            for one, _, ids, late in kind.found:
                put(one, ids, late)
                ids.clear()
                late.clear()
        self._blocks.append(columns)
        self._count = self._spoken_for = 0
        while sum(len(block["step"]) for block in self._blocks[1:]) >= KEPT_STEPS:
            self.left_out += len(self._blocks.pop(0)["step"])


def has_step(dialect: Dialect, block: bytes) -> bool:
    """Whether one of the first lines with the dialect's word is a step of it."""
    step = _Step(dialect.fields, dialect.needed)
    lines = itertools.islice(_sparse_lines(block, dialect.marks[:1]), _TRIED_LINES)
    return any(step.read(line) is not None for line in lines)


#: Looser and faster patterns of values in a line whose shape is known; what is no number fails when it is converted.
_QUICK: Final = {NUMBER: rb"[-+.\deEnaNifI]+", STAMP: rb"\d+-\d+-\d+.[\d:.,]+"}


def _gap(text: bytes) -> bytes:
    """Pattern of what stands between values: digits vary, and so do blanks, but for single ones between words."""
    parts = _GAPS.split(text)
    pattern = []
    for before, part, after in zip([b"", *parts], parts, [*parts[1:], b""], strict=False):
        if part.isdigit():
            pattern.append(rb"\d+")
        elif part and not part.strip():
            inner = part == b" " and before[-1:].isalpha() and after[:1].isalpha()
            pattern.append(b" " if inner else rb"\s*")
        else:
            pattern.append(re.escape(part))
    return b"".join(pattern)


def _lines(block: bytes, words: Sequence[bytes], events: EventReader) -> Iterable[bytes]:
    """Lines of a block that may hold a word, in order."""
    sample = block[:_SAMPLE_BYTES]
    if sum(sample.count(word) for word in words) > SPARSE * sample.count(b"\n"):
        return block.splitlines()
    return _sparse_lines(block, [*words, *events.present(block)])


def _sparse_lines(block: bytes, words: Sequence[bytes]) -> Iterator[bytes]:
    """Lines with a word, found by the words."""
    spans = set()
    for word in words:
        at = block.find(word)
        while at >= 0:
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            end = len(block) if end < 0 else end
            spans.add((start, end))
            at = block.find(word, end)
    for start, end in sorted(spans):
        yield from block[start:end].splitlines()


def _numbers(one: Field, values: Sequence[bytes]) -> FloatArray:
    """Values of a field as numbers in the column's unit."""
    if one.value == STAMP:
        return _stamps(values)
    if one.value == COMMAS:
        values = [value.replace(b",", b"") for value in values]
    if len(set(values[:_SAMPLE])) <= _FEW:
        known = {value: _number(value) for value in set(values)}
        return np.fromiter(map(known.__getitem__, values), float, len(values)) * one.scale
    try:
        return np.fromiter(map(float, values), float, len(values)) * one.scale
    except ValueError:
        return np.fromiter(map(_number, values), float, len(values)) * one.scale


def _number(value: bytes) -> float:
    return _WORDS[value] if value in _WORDS else number(value.decode(errors="replace"))


def _stamps(values: Sequence[bytes]) -> FloatArray:
    """Clock stamps [s]; NaN for one that is no date."""
    words = b"\n".join(values).decode(errors="replace").replace(",", ".").replace(" ", "T").split("\n")
    try:
        stamps = np.array(words, dtype="datetime64[us]").astype(np.int64)
        return np.asarray(stamps * 1e-6, np.float64)
    except ValueError:
        return np.array([_stamp(word) for word in words])


def _stamp(word: str) -> float:
    try:
        return float(np.datetime64(word, "us").astype(np.int64)) * 1e-6
    except ValueError:
        return math.nan
