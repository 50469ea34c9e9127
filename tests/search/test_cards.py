"""Fewest cards: against trying every number, and published minimum cards."""

from __future__ import annotations

import pytest

from planner.cost.strategies import Strategies
from planner.errors import InfeasibleError
from planner.legality.apply import violations
from planner.search.cards import bytes_per_parameter, counts, fewest_cards, state_floor
from planner.search.objective import estimated
from planner.search.suggest import search
from planner.units import GIB
from tests.search.requests import request
from tests.search.shapes import dense, moe


def test_counts_are_parts_of_a_node_then_whole_nodes() -> None:
    assert list(counts(8, 40)) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert list(counts(16, 32)) == [1, 2, 4, 8, 16, 32]
    assert list(counts(8, 5)) == [1, 2, 4]


@pytest.mark.parametrize(
    "asked",
    [
        request(dense(9, 2048, 16, 8, ffn=8192), 8, batch=96, limit_bytes=2 * GIB),
        request(moe(9, experts=8, dense_layers=1), 8, batch=96, limit_bytes=1.5 * GIB),
        request(dense(12, 4096, 32, 8, ffn=11_008), 8, batch=96, limit_bytes=3 * GIB),
    ],
    ids=["dense", "moe", "wide"],
)
def test_no_smaller_number_fits_and_this_one_does(asked: object) -> None:
    found = fewest_cards(asked)  # type: ignore[arg-type]
    assert found.devices > 1
    assert found.devices >= found.floor
    result = search(asked.on(found.devices))  # type: ignore[attr-defined]
    assert result.fitting > 0
    for fewer in counts(8, found.devices - 1):
        with pytest.raises(InfeasibleError):
            search(asked.on(fewer))  # type: ignore[attr-defined]


def test_the_strategy_named_is_legal_and_fits() -> None:
    asked = request("Llama-3.1-70B", 64, batch=256)
    found = fewest_cards(asked)
    on = asked.on(found.devices)
    assert violations(on.context, found.strategy) == []
    row = estimated(on, Strategies.of([found.strategy])).row(0)
    assert row.fits
    assert row.peak_bytes == found.peak_bytes


@pytest.mark.parametrize(("model", "seq", "most"), [("Llama-3.1-70B", 4096, 32), ("Llama-3.1-70B", 8192, 64)])
def test_published_minimum_cards_suffice(model: str, seq: int, most: int) -> None:
    """ModelArts runs 70B at 4096 on 32 and at 8192 on 64 cards of 64 GB."""
    assert fewest_cards(request(model, 8, seq=seq, batch=256)).devices <= most


def test_states_bound_the_number_from_below() -> None:
    asked = request("Llama-3.1-70B", 64, batch=256)
    # 70 553 706 496 parameters x 16 bytes / 58 GiB = 18.1
    assert bytes_per_parameter(asked.workload) == 16.0
    assert state_floor(asked) == 19
    assert fewest_cards(asked).devices >= 19


def test_swapped_states_need_fewer_cards() -> None:
    asked = request("Llama-3.1-70B", 64, batch=256)
    swapped = request("Llama-3.1-70B", 64, batch=256, pins={"swap_optimizer": {True}})
    assert state_floor(swapped) == 10  # 8 bytes a parameter
    assert fewest_cards(swapped).devices <= fewest_cards(asked).devices


def test_nothing_fits_whatever_the_number() -> None:
    with pytest.raises(InfeasibleError, match="fits on no number of 910B2 up to 4096"):
        fewest_cards(request("Llama-3.1-405B", 8, batch=64, pins={"tp": {1}, "pp": {1}}), 4096)
