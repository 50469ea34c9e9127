"""Texts of options -> values; every refusal names the option."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.cli.options import ModelOptions, PinOptions
from planner.errors import SpecError
from planner.limits import (
    LEAST_PARAMETERS,
    MOST_CARDS,
    MOST_PARAMETERS,
    MOST_TOKENS,
)
from planner.units import GIB, TIB, format_bytes, format_count, parse_bytes, parse_count, parse_length

if TYPE_CHECKING:
    from planner.search.suggest import Request

#: Largest values that make sense; beyond them a typing error is likelier than a machine.
MOST_SIZE = 10**8
MOST_DIGITS = 18

#: Options whose name differs from the dimension they pin.
_PIN_NAMES = {"micro_batch": "micro_batch_size"}
_WORDS = ("schedule", "cp_algorithm")
_HOW = ("auto", "none", "selective", "full")
_PREFIXES = {"M": 1e6, "G": 1e9, "T": 1e12}
_SPEED = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([MGT])B/s\s*")
_SLOWEST, _FASTEST = 1e6, 1e15
_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|min|h|d)\s*")
_LONGEST_S = 1000 * 86400.0
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


def whole(text: str, option: str, most: int = MOST_SIZE, least: int = 1) -> int:
    """Whole number of an option within its limits.

    >>> whole("64", "--cards")
    64
    """
    if text.strip().isdigit() and len(text) > MOST_DIGITS:
        raise SpecError(f"{option} has {len(text)} digits; legal: {least} to {most}.")
    if _WHOLE.fullmatch(text) is None:
        raise SpecError(f"{option} '{text}' is not a whole number; write it like {option} 8.")
    return _within(int(text), text, option, least, most)


def parameters(text: str, option: str = "--params") -> int:
    """Parameter count: 70B, 500M."""
    return _read(parse_count, text, option, LEAST_PARAMETERS, MOST_PARAMETERS, format_count)


def tokens(text: str, option: str = "--tokens") -> int:
    """Training budget: 1.5T."""
    return _read(parse_count, text, option, 1, MOST_TOKENS, format_count)


def length(text: str, option: str, most: int) -> int:
    """Length or batch: 4096, 4k."""
    return _read(parse_length, text, option, 1, most)


def memory(text: str, option: str = "--max-memory") -> int:
    """Memory size [bytes]; a bare number would mean bytes and is almost never meant."""
    if _WHOLE.fullmatch(text):
        raise SpecError(f"{option} '{text}' has no unit; write it like {option} 54GB.")
    return _read(parse_bytes, text, option, GIB, 1024 * TIB, format_bytes)


def message(text: str, option: str = "--size") -> int:
    """Size of a message [bytes]."""
    return _read(parse_bytes, text, option, 1, TIB, format_bytes)


def speed(text: str, option: str) -> float:
    """Rate of storage or memory [bytes/s], decimal as such rates are quoted: 40GB/s.

    >>> speed("2GB/s", "--storage")
    2000000000.0
    """
    match = _SPEED.fullmatch(text)
    value = float(match[1]) * _PREFIXES[match[2]] if match else 0.0
    if not _SLOWEST <= value <= _FASTEST:
        raise SpecError(f"{option} '{text}' is no rate from 1 MB/s to 1000 TB/s; write it like {option} 40GB/s.")
    return value


def duration(text: str, option: str, least: float = 1.0) -> float:
    """Seconds of a time with its unit: 90s, 15min, 3h, 2d.

    >>> duration("15min", "--restart"), duration("1.5h", "--restart")
    (900.0, 5400.0)
    """
    match = _DURATION.fullmatch(text)
    value = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not least <= value <= _LONGEST_S:
        raise SpecError(
            f"{option} '{text}' is no time from {least:g} s to 1000 d; write it like {option} 15min (s, min, h, d)."
        )
    return value


def listed(text: str, option: str, least: int = 0) -> tuple[int, ...]:
    """Whole numbers separated by commas, one for each stage.

    >>> listed("9,10,10,9", "--stage-layers")
    (9, 10, 10, 9)
    """
    return tuple(whole(part, option, least=least) for part in text.split(","))


def several(text: str, option: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers separated by commas, each once.

    >>> several("1,2,4", "--pp")
    (1, 2, 4)
    """
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        if any(part.strip() for part in parts):
            raise SpecError(f"{option} '{text}' has an empty place between its commas; write it like {option} 1,2,4.")
        raise SpecError(f"{option} '{text}' holds no number; write it like {option} 8 or {option} 1,2,4.")
    return tuple(dict.fromkeys(whole(part, option, MOST_CARDS, least) for part in parts))


def pins_of(options: PinOptions) -> dict[str, tuple[int | str, ...]]:
    """Pinned dimensions; ``recompute`` is not one of them."""
    pins: dict[str, tuple[int | str, ...]] = {}
    for field in dataclasses.fields(options):
        text = getattr(options, field.name)
        if text is None or field.name == "recompute":
            continue
        option = f"--{field.name.replace('_', '-')}"
        name = _PIN_NAMES.get(field.name, field.name)
        words = tuple(part.strip() for part in text.split(",") if part.strip())
        if field.name not in _WORDS:
            pins[name] = several(text, option, least=0 if field.name == "zero_level" else 1)
        elif words:
            pins[name] = words
        else:
            raise SpecError(f"{option} '{text}' names nothing.")
    return pins


def searched(request: Request, options: PinOptions) -> Request:
    """The request with pins and the recompute asked for."""
    how = recompute(options.recompute)
    if not isinstance(how, str):
        raise SpecError(
            f"--recompute {options.recompute} gives layers per stage, which one strategy has: ask planner estimate; "
            f"for a search legal: {', '.join(_HOW)}."
        )
    return dataclasses.replace(request, pins=pins_of(options), recompute=how)  # type: ignore[arg-type]


def recompute(text: str | None) -> str | tuple[int, ...]:
    """How to recompute: a word, or fully recomputed layers of each stage.

    >>> recompute("10,8,4,0"), recompute(None)
    ((10, 8, 4, 0), 'auto')
    """
    if text is None or text in _HOW:
        return text or "auto"
    if not text[:1].isdigit():
        raise SpecError(
            f"--recompute '{text}' is not known; legal: {', '.join(_HOW)}, or layers per stage like 10,8,4,0."
        )
    return listed(text, "--recompute", least=0)


def sizes_of(options: ModelOptions) -> dict[str, int]:
    """Explicit model sizes."""
    sizes = {}
    for field in dataclasses.fields(options):
        text = getattr(options, field.name)
        if text is not None and field.name not in ("params", "model", "config", "as_family"):
            sizes[field.name] = whole(
                text, f"--{field.name.replace('_', '-')}", least=0 if _optional(field.name) else 1
            )
    return sizes


def _optional(name: str) -> bool:
    return name in ("mtp_layers", "shared_ffn")


def _read(
    parse: Callable[..., int], text: str, option: str, least: int, most: int, shown: Callable[[float], str] = str
) -> int:
    if text.strip().startswith("-"):
        raise SpecError(f"{option} '{text}' must be positive.")
    try:
        value = parse(text, option)
    except OverflowError:
        value = most + 1
    return _within(value, text, option, least, most, shown)


def _within(value: int, text: str, option: str, least: int, most: int, shown: Callable[[float], str] = str) -> int:
    if not least <= value <= most:
        raise SpecError(f"{option} '{text}' is out of range; legal: {shown(least)} to {shown(most)}.")
    return value
