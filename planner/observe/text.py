"""Files as they really are: any line end, UTF-8 with or without mark, UTF-16, GB 18030, gzip, of any length.

Lines come as bytes, one chunk of the file in memory at a time; the words that formats are recognised by are ASCII,
which UTF-8 and GB 18030 share, so most lines never need decoding.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from planner.errors import SpecError

#: What a format is recognised by [bytes].
HEAD_BYTES: Final = 64 * 1024
#: Read at once [bytes].
CHUNK_BYTES: Final = 4 * 2**20
#: Longer lines are cut: no format has them, binary files do [bytes].
LINE_BYTES: Final = 4 * 2**20
#: Largest JSON or database file that is read whole [bytes].
WHOLE_BYTES: Final = 2**30

_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_MISSING: Final = frozenset(("", "n/a", "na", "none", "null", "-", "--", "unavailable", "nan"))


@dataclass(frozen=True)
class File:
    """A file that is about to be read.

    Attributes
    ----------
    path : Path
    rank : int or None
        Global rank it belongs to, where its folder knows.
    problems : list of str
        What went wrong while it was read, without stopping.
    """

    path: Path
    rank: int | None = None
    problems: list[str] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        """Name in lower case: formats differ by content, but the name breaks ties."""
        return self.path.name.lower()

    @cached_property
    def raw_head(self) -> bytes:
        """First bytes, unpacked."""
        head = b""
        with self._open() as stream:
            try:
                while len(head) < HEAD_BYTES and (piece := stream.read1(HEAD_BYTES - len(head))):
                    head += piece
            except EOFError:  # a gzip file that ends in the middle: ``_chunks`` says so
                pass
            except (OSError, zlib.error) as error:
                raise SpecError(f"{self.path} cannot be read: {error}.") from None
        return head

    @cached_property
    def encoding(self) -> str:
        """Name of the text encoding."""
        head = self.raw_head
        for mark, name in _MARKS:
            if head.startswith(mark):
                return name
        if b"\0" in head[:4096]:
            even, odd = head[0:4096:2].count(0), head[1:4096:2].count(0)
            if min(even, odd) * 8 < max(even, odd) > len(head[:4096]) // 8:  # every other byte of most letters is 0
                return "utf-16-le" if odd > even else "utf-16-be"
        try:
            codecs.getincrementaldecoder("utf-8")().decode(head)
        except UnicodeDecodeError:
            return "gb18030"
        return "utf-8"

    @cached_property
    def head(self) -> str:
        """First part as text."""
        return self.raw_head.decode(self.encoding, errors="replace")

    @property
    def is_binary(self) -> bool:
        """Not text in any of the known encodings."""
        return "\0" in self.head[:4096]

    def lines(self) -> Iterator[bytes]:
        """Lines without their ends, in UTF-8 (or GB 18030 as they are)."""
        for block in self.blocks():
            yield from block.splitlines()

    def blocks(self) -> Iterator[bytes]:
        """The file in pieces that end with a line's end; the last one may not, when the file does not."""
        rest = b""
        for chunk in self._chunks():
            whole = rest + chunk if rest else chunk
            cut = max(whole.rfind(b"\n"), whole.rfind(b"\r", 0, -1)) + 1
            rest = whole[cut:] if cut else whole[:LINE_BYTES]
            if cut:
                yield whole[:cut]
        if rest:
            yield rest

    def text_lines(self) -> Iterator[str]:
        """Lines as text."""
        encoding = "gb18030" if self.encoding == "gb18030" else "utf-8"
        for line in self.lines():
            yield line.decode(encoding, errors="replace").lstrip("\ufeff")

    def json(self) -> Any:
        """The whole file as JSON; NaN and Infinity are accepted.

        Raises
        ------
        SpecError
            Cut short, damaged or too large.
        """
        if self.path.stat().st_size > WHOLE_BYTES:
            raise SpecError(f"{self.path} has over 1 GiB; JSON is read whole. Profile fewer steps.")
        with self._open() as stream:
            text = stream.read().decode(self.encoding, errors="replace")
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            at_end = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
            where = "ends in the middle" if at_end else "is damaged"
            raise SpecError(f"{self.path} {where} (character {error.pos}: {error.msg}); copy it again.") from None
        except RecursionError:
            raise SpecError(f"{self.path} is nested too deeply for a profile.") from None

    def _open(self) -> gzip.GzipFile | BufferedReader:
        try:
            with self.path.open("rb") as stream:
                packed = stream.read(2) == b"\x1f\x8b"
            return gzip.GzipFile(self.path) if packed else self.path.open("rb")
        except OSError as error:
            raise SpecError(f"{self.path} cannot be read: {error.strerror}.") from None

    def _chunks(self) -> Iterator[bytes]:
        wide = self.encoding.startswith("utf-16")
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace") if wide else None
        first = True
        with self._open() as stream:
            while True:
                try:
                    chunk = stream.read1(CHUNK_BYTES)
                except (OSError, EOFError, zlib.error):  # a gzip file that ends in the middle
                    self.problems.append(f"{self.path.name} ends in the middle; what is there was read.")
                    return
                if not chunk:
                    return
                if first and chunk.startswith(codecs.BOM_UTF8):
                    chunk = chunk[3:]
                first = False
                yield decoder.decode(chunk).encode() if decoder else chunk


def number(cell: str | float | None) -> float:
    """A cell as a number; NaN for none, N/A and the like, and for text.

    >>> number(" 1,234.50 "), number("N/A"), number('"3"')
    (1234.5, nan, 3.0)
    """
    if cell is None:
        return math.nan
    if isinstance(cell, (int, float)):
        return float(cell)
    word = cell.strip().strip('"').strip()
    if word.lower() in _MISSING:
        return math.nan
    try:
        return float(word)
    except ValueError:
        pass
    try:
        return float(word.replace(",", ""))
    except ValueError:
        return math.nan


def whole(cell: str | float | None) -> int | None:
    """A cell as a whole number; None for anything else.

    >>> whole("13"), whole(""), whole("2.5")
    (13, None, None)
    """
    value = number(cell)
    return int(value) if math.isfinite(value) and value == int(value) else None
