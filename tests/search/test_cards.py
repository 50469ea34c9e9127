"""Fewest cards: against trying every number, and published minimum cards."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.cost.strategies import Strategies
from planner.errors import InfeasibleError, SpecError
from planner.inputs import request_for
from planner.legality.apply import violations
from planner.search.cards import bytes_per_parameter, counts, fewest_cards, lightest_rows, state_floor
from planner.search.objective import estimated
from planner.search.request import Request
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
    with pytest.raises(InfeasibleError, match="fits on none of .* numbers of 910B2 tried, from 128 to 4096") as caught:
        fewest_cards(request("Llama-3.1-405B", 8, batch=4096, pins={"tp": {1}, "pp": {1}}), 4096)
    assert "more devices do not split further: temporaries" in str(caught.value)


def test_a_sequence_that_context_parallelism_does_not_split_is_named() -> None:
    """70B at 1 Mi tokens: MindFormers' ranks gather keys and values of the whole sequence, however many they are."""
    with pytest.raises(
        InfeasibleError, match=r"stage 0 needs .* GiB, which more devices do not split further"
    ) as caught:
        fewest_cards(request_for("llama-3.1-70b", 8, seq=2**20, framework="mindformers-legacy"))
    needed = float(re.search(r"stage 0 needs ([\d.]+) GiB", str(caught.value))[1])
    assert 58 < needed < 80


@pytest.mark.parametrize(("pins", "rule"), [({"tp": {3}}, "heads: tp=3"), ({"pp": {200}}, "chunks")])
def test_what_no_rule_allows_is_not_called_too_large(pins: dict[str, set[int]], rule: str) -> None:
    with pytest.raises(SpecError, match="is legal on any number") as caught:
        fewest_cards(request("Llama-3.1-70B", 8, batch=1024, pins=pins))
    assert rule in str(caught.value)


def test_degrees_that_are_no_power_of_two_are_found() -> None:
    """Three stages: numbers of cards that three divides are looked at."""
    asked = request(dense(12, 3072, 24, 24, ffn=9216), 8, batch=96, pins={"pp": {3}})
    found = fewest_cards(asked)
    assert found.devices == 24
    assert found.strategy.pp == 3
    assert search(asked.on(24)).fitting > 0


#: Models of every family kind, frameworks and sequences; batches that follow the cards, and one that does not.
JOBS = [
    ("llama-3.1-8b", "mindformers-legacy", 4096, None, {}),
    ("llama-3.1-8b", "mindformers-legacy", 32_768, 64, {}),
    ("llama-3.1-70b", "mindspeed", 4096, None, {}),
    ("llama-3.1-70b", "mindformers-legacy", 8192, 256, {"zero_level": {1}}),
    ("qwen3-32b", "mindformers", 4096, None, {}),
    ("qwen3-8b", "mindformers-pynative", 4096, 96, {}),
    ("qwen3-30b-a3b", "mindformers", 4096, None, {}),
    ("qwen3-30b-a3b", "mindspeed", 4096, 128, {"tp": {1, 2}}),
    ("glm-4-9b", "mindformers", 4096, None, {}),
    ("qwen3-32b", "mindformers", 4096, 256, {"recompute": "none"}),
    ("qwen3-32b", "mindspeed", 4096, 256, {"recompute": "selective"}),
]


@pytest.mark.parametrize(("model", "framework", "seq", "batch", "settings"), JOBS)
def test_cards_and_suggest_agree_on_every_number(model, framework, seq, batch, settings) -> None:
    """A number of cards is feasible for `cards` just when `suggest` answers on it; the fewest is the first of them."""
    asked = request_for(model, 8, seq=seq, global_batch=batch, framework=framework)
    how = {key: value for key, value in settings.items() if key == "recompute"}
    asked = replace(asked, pins={k: v for k, v in settings.items() if k not in how}, balance="none", **how)
    fewest = fewest_cards(asked)
    assert fewest.devices >= fewest.floor
    for devices in [n for n in counts(8, 2 * fewest.devices) if n >= fewest.devices // 2]:
        lightest = lightest_rows(asked.on(devices))[1]
        feasible = bool(len(lightest)) and bool(lightest.min() <= asked.limit)
        assert feasible == _answers(asked.on(devices)), devices
        assert not (feasible and devices < fewest.devices)


def _answers(asked: Request) -> bool:
    try:
        return search(asked).fitting > 0
    except (InfeasibleError, SpecError):
        return False


def test_the_three_commands_name_one_minimum() -> None:
    """Kimi-K2: 432 cards, though 440 do not do: 11 divides badly.  A batch that nobody gave follows the number."""
    asked = request_for("kimi-k2", 440)
    assert fewest_cards(asked).devices == 432
    with pytest.raises(InfeasibleError, match=r"It fits on 432 cards, and on 448, the next number above") as caught:
        search(asked)
    assert caught.value.minimum_devices == 432
    assert asked.on(432).workload.global_batch == 1296
    assert "global batch 1296" in asked.on(432).workload.notes
    assert request_for("kimi-k2", 440, global_batch=1320).on(432).workload.global_batch == 1320
