"""Quantities as people write them."""

import pytest

from planner.errors import SpecError
from planner.units import format_bytes, format_count, format_seconds, parse_bytes, parse_count, parse_length


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("58GB", 58 * 2**30),
        ("58 GiB", 58 * 2**30),
        ("59392MB", 58 * 2**30),
        ("1.5k", 1536),
        ("12", 12),
        ("7B", 7),
        (99, 99),
    ],
)
def test_memory_is_binary_as_in_mindspore(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "count"), [("70B", 70e9), ("70G", 70e9), ("1.5T", 1.5e12), ("6_738_415_616", 6738415616)]
)
def test_counts_are_decimal(text: str, count: float) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(("text", "length"), [("4k", 4096), ("128K", 131072), ("1M", 2**20), ("5000", 5000)])
def test_lengths_are_binary(text: str, length: int) -> None:
    assert parse_length(text) == length


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_length])
@pytest.mark.parametrize("text", ["", "GB", "-4", "4 4", "12X", "nan", "1e", "$(ls)"])
def test_nonsense_is_refused_with_the_legal_form(parse: object, text: str) -> None:
    with pytest.raises(SpecError, match="write it like|legal"):
        parse(text)  # type: ignore[operator]


def test_printing() -> None:
    assert format_bytes(48.26 * 2**30) == "48.3 GiB"
    assert format_count(671_026_404_352) == "671B"
    assert format_seconds(0.96) == "960 ms"
