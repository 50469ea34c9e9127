"""Words and tables of reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.memory.peak import TERMS
from planner.cost.strategies import Strategy
from planner.cost.time.step import COLUMNS
from planner.report import estimation, text
from planner.search.explain import TIME_WORDS

PLAIN = Strategy(
    dp=2, tp=8, pp=4, layers=((20, 20, 20, 20),), recompute_full=(3, 0, 0, 0), recompute_selective=(1, 2, 0, 0),
    micro_batches=64, optimizer_shard=2,
)  # fmt: skip


def test_every_term_has_a_word() -> None:
    """A new term of the models must get a name, or it would vanish from tables."""
    assert tuple(text.MEMORY_WORDS) == TERMS
    assert set(TIME_WORDS) == set(COLUMNS)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.000"), (0.0004, "0.000"), (0.1234, "0.123"), (0.9996, "1.000"), (1.234, "1.23"), (97.25, "97.2"),
     (100.4, "100"), (123456.7, "123457")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [((), ""), ((4,), "4"), ((4, 4), "4, 4"), ((4, 4, 4), "4 x3"), ((10, 8, 6, 0, 0, 0), "10, 8, 6, 0 x3")],
)
def test_runs(values: tuple[int, ...], shown: str) -> None:
    assert text.runs(values) == shown


@given(st.lists(st.integers(0, 99), max_size=40))
def test_runs_lose_nothing(values: list[int]) -> None:
    back: list[int] = []
    for part in filter(None, text.runs(values).split(", ")):
        value, _, times = part.partition(" x")
        back += [int(value)] * int(times or 1)
    assert back == values


@given(st.sets(st.integers(1, 200)))
def test_ranges_lose_nothing(ranks: set[int]) -> None:
    back: set[int] = set()
    for part in filter(None, text.joined(sorted(ranks)).split(", ")):
        first, _, last = part.partition("-")
        back |= set(range(int(first), int(last or first) + 1))
    assert back == ranks


def test_table_columns_line_up() -> None:
    lines = text.table(("#", "name", "s"), [("1", "ab", "10.0"), ("12", "c", "9.99")], left=(1,))
    assert lines == [" #  name     s", " 1  ab    10.0", "12  c     9.99"]


def test_narrow_table_keeps_two_spaces_while_it_can() -> None:
    fits = text.narrow_table(["a" * 26] * 3, [["1"] * 3])  # 3 x 26 + 2 x 2 > 80, + 2 x 1 = 80
    assert len(fits[0]) == 80
    assert text.narrow_table(["a" * 25] * 3, [["1"] * 3])[0] == "  ".join(["a" * 25] * 3)


def test_degrees_leave_out_ones_and_name_the_context_algorithm() -> None:
    assert text.degrees(PLAIN) == "dp 2, tp 8, pp 4, micro-batch 1 x 64"
    long = replace(PLAIN, cp=2, dp=1, cp_algorithm="ulysses", ulysses_degree=2, ep=2)
    assert text.degrees(long) == "tp 8, pp 4, cp 2, ep 2, cp by ulysses, micro-batch 1 x 64"


def test_recompute_words() -> None:
    assert text.recompute_word(PLAIN) == "3+3s"
    assert text.recompute_line(PLAIN) == "full on 3, 0 x3; selective on 1, 2, 0, 0"
    bare = replace(PLAIN, recompute_full=(0,) * 4, recompute_selective=(0,) * 4)
    assert (text.recompute_word(bare), text.recompute_line(bare)) == ("0", "none")


def test_extras() -> None:
    assert text.extras(PLAIN) == "optimizer sharded over 2 (level 1), sequence parallel, 1f1b schedule"
    single = Strategy(dp=1, tp=1, pp=1, layers=((4,),), recompute_full=(0,), recompute_selective=(0,), micro_batches=1,
                      zero_level=0, swap_optimizer=True)  # fmt: skip
    assert text.extras(single) == "optimizer not sharded, optimizer states on the host"


def test_many_stages_are_shown_by_weight() -> None:
    peaks = [1.0] * 40
    peaks[17] = 9.0
    shown = estimation.shown_stages(peaks)
    assert len(shown) == estimation.MOST_STAGES
    assert {0, 17, 39} <= set(shown)
    assert shown == sorted(shown)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=300))
def test_wrapped_text_stays_in_80_columns_unless_a_word_is_longer(words: str) -> None:
    for line in text.wrapped(words, "    "):
        assert len(line) <= 80 or " " not in line.strip()
