"""Why a strategy lost, and what saves it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.strategies import Strategy
from planner.legality.apply import violations
from planner.search.explain import TIME_WORDS, explain, neighbours, smallest_change
from planner.search.nearest import describe
from planner.search.suggest import search
from planner.units import GIB
from tests.search.requests import request
from tests.search.shapes import dense, moe
from tests.search.test_user_cases import plan

LLAMA = request("Llama-3.1-70B", 64, batch=256)


def test_illegal_names_rules_and_the_nearest_legal_neighbour() -> None:
    asked = request(dense(28, 3584, 28, 4, ffn=18_944, vocab=152_064), 64, batch=256)
    found = explain(asked, plan(28, tp=8, pp=2, dp=4, micro_batches=64))
    assert found.verdict == "illegal"
    assert [violation.code for violation in found.violations] == ["heads", "kv-heads"]
    assert found.reasons[0].startswith("heads: tp=8 does not divide 28")
    assert found.estimate is None
    assert found.change is not None
    assert (found.change.strategy.tp, found.change.strategy.dp) == (4, 8)
    assert found.change.what == "dp 4 -> 8, tp 8 -> 4, optimizer shard 4 -> 8"
    assert violations(asked.context, found.change.strategy) == []


def test_micro_batches_that_miss_the_global_batch_are_mended() -> None:
    found = explain(LLAMA, plan(80, tp=8, pp=8, micro_batches=128))
    assert [violation.code for violation in found.violations] == ["global-batch"]
    assert found.change is not None
    assert found.change.what in ("micro-batches 128 -> 256", "micro-batch size 1 -> 2")
    assert found.change.changed == 1


def test_lost_layers_are_mended() -> None:
    asked = request(dense(30, vocab=32_000), 8, batch=64)
    lost = replace(plan(28, pp=4, dp=2, micro_batches=32), layers=((7, 7, 7, 7),))
    found = explain(asked, lost)
    assert [violation.code for violation in found.violations] == ["layer-sum"]
    assert found.change is not None
    assert found.change.what == "layers per stage 7/7/7/7 -> 7/8/8/7"


def test_out_of_memory_names_stage_excess_and_terms() -> None:
    found = explain(LLAMA, plan(80, tp=4, pp=8, dp=2, micro_batch_size=4, micro_batches=32))
    assert found.verdict == "out of memory"
    assert found.stage == 0  # most micro-batches in flight
    assert found.estimate is not None
    assert found.over_bytes == found.estimate.peak_bytes - 58 * GIB > 0
    assert "stage 0 needs" in found.reasons[0]
    assert "activations" in found.reasons[0]
    assert found.estimate.step_s is None
    assert found.change is not None
    assert found.change.changed == 1
    assert found.change.estimate.fits
    assert found.change.estimate.peak_bytes <= 58 * GIB


def test_out_of_memory_beyond_any_single_change() -> None:
    asked = request("Llama-3.1-405B", 8, batch=64)
    found = explain(asked, plan(126, tp=8, micro_batches=64))
    assert found.verdict == "out of memory"
    assert found.change is None


def test_slower_names_the_terms_and_a_faster_neighbour() -> None:
    result = search(LLAMA)
    slow = plan(80, tp=8, pp=8, micro_batches=256, recompute_full=(10,) * 8)
    found = explain(LLAMA, slow, result)
    assert found.verdict == "slower"
    assert found.estimate is not None
    assert found.estimate.step_s is not None
    best = result.estimates.step_s[0]
    assert f"{found.estimate.step_s / best - 1:.1%} slower" in found.reasons[0]
    assert any(reason.startswith("recompute: ") for reason in found.reasons[1:])
    assert found.change is not None
    assert found.change.estimate.step_s is not None
    assert found.change.estimate.step_s < found.estimate.step_s


def test_the_best_is_told_so() -> None:
    result = search(LLAMA)
    found = explain(LLAMA, result.estimates.table.row(0), result)
    assert found.verdict == "best"
    assert found.change is None


def test_time_words_cover_every_column() -> None:
    from planner.cost.time.step import COLUMNS

    assert set(TIME_WORDS) == set(COLUMNS)


@pytest.mark.parametrize(
    "strategy",
    [
        plan(80, tp=4, pp=8, dp=2, micro_batches=128),
        plan(80, tp=8, pp=4, dp=2, vpp=2, micro_batches=128),
        plan(80, tp=8, dp=8, micro_batches=32),
    ],
)
def test_neighbours_keep_the_devices_and_the_batch(strategy: Strategy) -> None:
    found = list(neighbours(LLAMA, strategy))
    assert len(found) >= 6
    for what, near in found:
        assert near != strategy
        assert what
        assert near.devices == 64
        assert sum(near.layers_per_stage) == 80
        if not violations(LLAMA.context, near):
            assert near.dp * near.micro_batch_size * near.micro_batches == 256


def test_whole_and_split_experts_are_neighbours() -> None:
    asked = request(moe(8, 16), 16, batch=64, framework="mindspeed")
    split = plan(8, tp=4, dp=4, ep=2, etp=4, micro_batches=16)
    changes = {what: near for what, near in neighbours(asked, split) if "etp" in what}
    assert changes["ep 2 -> 8, etp 4 -> 1"] == replace(split, ep=8, etp=1)
    back = dict(neighbours(asked, replace(split, ep=8, etp=1)))
    assert back["ep 8 -> 2, etp 1 -> 4"] == split
    wider = next(near for what, near in neighbours(asked, split) if what.startswith("dp 4 -> 2, tp 4 -> 8"))
    assert wider.etp == 8  # experts stay split over the tensor-parallel ranks


def test_a_change_is_the_smallest_then_the_fastest() -> None:
    strategy = plan(80, tp=4, pp=8, dp=2, micro_batch_size=4, micro_batches=32)
    change = smallest_change(LLAMA, strategy)
    assert change is not None
    alone = [what for what, near in neighbours(LLAMA, strategy) if not violations(LLAMA.context, near)]
    assert change.what in alone
    assert change.changed == min(1, change.changed)


def test_describe_names_what_is_not_one() -> None:
    strategy = plan(8, tp=2, cp=2, ep=4, dp=2, vpp=2, pp=2, micro_batches=4)
    assert describe(strategy) == "dp 2, tp 2, pp 2, vpp 2, cp 2, ep 4, micro-batches 4 x 1"
