"""Quantities as people write them, and back.

Inside the program every quantity has one unit: bytes, seconds, FLOP, bytes/s, FLOP/s, plain counts.  This module
is the only place that knows prefixes.

* Memory sizes are binary, as MindSpore reads ``max_device_memory: "58GB"``: KB = KiB = 2**10, MB = MiB = 2**20,
  GB = GiB = 2**30, TB = TiB = 2**40 bytes.
* Counts (parameters, tokens) are decimal: K 1e3, M 1e6, B = G 1e9, T 1e12.
* Sequence lengths and batch sizes are counts, except that a lower-case ``k`` means 1024 (``4k`` = 4096).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from planner.errors import SpecError

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TIB: Final = 2**40
GB: Final = 1e9  # bandwidths and parameter counts only

_MEMORY: Final = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_COUNT: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_QUANTITY: Final = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def _split(text: str, what: str, legal: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise SpecError(f"{what} '{text}' is not a number with a unit; write it like {legal}.")
    return float(match[1].replace("_", "").replace(",", "")), match[2]


def parse_bytes(text: str | float, what: str = "memory size") -> int:
    """Memory size as whole bytes.

    >>> parse_bytes("58GB") == 58 * 2**30
    True
    >>> parse_bytes("512MiB")
    536870912
    """
    if not isinstance(text, str):
        return int(text)
    number, unit = _split(text, what, "58GB, 58GiB or 59392MB")
    key = unit.upper().removesuffix("IB").removesuffix("B") if unit.upper() != "B" else "B"
    if key not in _MEMORY:
        raise SpecError(f"{what} '{text}' has unknown unit '{unit}'; legal: B, KB, MB, GB, TB (powers of 1024).")
    return round(number * _MEMORY[key])


def parse_count(text: str | float, what: str = "count") -> int:
    """Count with a decimal prefix.

    >>> parse_count("70B"), parse_count("1.5T"), parse_count("7_000")
    (70000000000, 1500000000000, 7000)
    """
    if not isinstance(text, str):
        return int(text)
    number, unit = _split(text, what, "70B, 500M or 1.5T")
    if unit.upper() not in _COUNT:
        raise SpecError(f"{what} '{text}' has unknown unit '{unit}'; legal: K, M, B (or G), T.")
    return round(number * _COUNT[unit.upper()])


def parse_length(text: str | int, what: str = "sequence length") -> int:
    """Sequence length or batch size, where ``k`` means 1024.

    >>> parse_length("4k"), parse_length("8192"), parse_length("128K")
    (4096, 8192, 131072)
    """
    if not isinstance(text, str):
        return int(text)
    number, unit = _split(text, what, "4096 or 4k")
    if unit.upper() not in {"", "K", "M"}:
        raise SpecError(f"{what} '{text}' has unknown unit '{unit}'; legal: none, or k for 1024, M for 1048576.")
    return round(number * {"": 1, "K": KIB, "M": MIB}[unit.upper()])


def format_bytes(size_bytes: float) -> str:
    """Binary size with three digits.

    >>> format_bytes(58 * 2**30), format_bytes(1536), format_bytes(0)
    ('58.0 GiB', '1.50 KiB', '0 B')
    """
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size_bytes) >= scale:
            return f"{_digits(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def format_count(count: float) -> str:
    """Count with a decimal prefix.

    >>> format_count(70_553_706_496), format_count(512)
    ('70.6B', '512')
    """
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(count) >= scale:
            return f"{_digits(count / scale)}{unit}"
    return f"{count:.0f}"


def format_seconds(time_s: float) -> str:
    """Time with three digits.

    >>> format_seconds(97.2), format_seconds(0.0123), format_seconds(4e-5)
    ('97.2 s', '12.3 ms', '40.0 us')
    """
    if abs(time_s) >= 1 or time_s == 0:
        return f"{_digits(time_s)} s"
    if abs(time_s) >= 1e-3:
        return f"{_digits(time_s * 1e3)} ms"
    return f"{_digits(time_s * 1e6)} us"


def _digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"


def runs(values: Sequence[int]) -> str:
    """A list of whole numbers, long runs shortened.

    >>> runs((3, 3, 3, 3, 2)), runs((10, 8, 6))
    ('3 x4, 2', '10, 8, 6')
    """
    parts: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end] == values[start]:
            continue
        length = end - start
        parts += [f"{values[start]} x{length}"] if length > 2 else [str(values[start])] * length
        start = end
    return ", ".join(parts)
