"""Why a strategy lost, and what saves it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest

from planner.cli.options import PinOptions
from planner.completion import complete
from planner.cost.strategies import Strategies, Strategy
from planner.legality.apply import violations
from planner.search.explain import TIME_WORDS, average_seconds, explain, smallest_change
from planner.search.nearest import describe
from planner.search.neighbours import OPTIONS, as_options, differences, neighbours
from planner.search.objective import estimated
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
    assert found.change.strategy.tp == 4
    assert found.change.what.startswith("tp 8 -> 4, pp 2 -> 4, layers of the stages 14, 14 -> ")
    assert found.change.changed == found.change.what.count("->") == 3
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
    assert found.change.what == "layers of the stages 7 x4 -> 8 x3, 6"


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
    assert any(reason.startswith("recompute, average of the cards: ") for reason in found.reasons[1:])
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
def test_neighbours_are_legal_and_keep_the_devices_and_the_batch(strategy: Strategy) -> None:
    found = neighbours(LLAMA, strategy)
    assert len(found) >= 6
    assert len(set(found)) == len(found)
    for near in found:
        assert near != strategy
        assert differences(strategy, near)
        assert near.devices == 64
        assert sum(near.layers_per_stage) == 80
        assert violations(LLAMA.context, near) == []
        assert near.dp * near.micro_batch_size * near.micro_batches == 256


def test_whole_and_split_experts_are_neighbours() -> None:
    asked = request(moe(8, 16), 16, batch=64, framework="mindspeed")
    split = plan(8, tp=4, dp=4, ep=2, etp=4, micro_batches=16)
    near = {", ".join(differences(split, other)): other for other in neighbours(asked, split)}
    assert near["ep 2 -> 8, etp 4 -> 1"] == replace(split, ep=8, etp=1)
    back = {
        ", ".join(differences(replace(split, ep=8, etp=1), n)) for n in neighbours(asked, replace(split, ep=8, etp=1))
    }
    assert "ep 8 -> 2, etp 1 -> 4" in back
    wider = next(other for said, other in near.items() if said.startswith("dp 4 -> 2, tp 4 -> 8"))
    assert wider.etp == 8  # experts stay split over the tensor-parallel ranks


def test_every_kind_of_change_is_looked_at() -> None:
    """Ulysses, optimizer level, experts, chunks, schedules and recompute are among the changes."""
    asked = request(moe(16, 16), 64, seq=32_768, batch=64, framework="mindspeed")
    whole = plan(16, tp=2, pp=4, dp=4, cp=2, ep=4, etp=2, zero_level=1, micro_batches=16)
    changed = set()
    for near in neighbours(asked, whole):
        changed |= {name for name in Strategy.__dataclass_fields__ if getattr(near, name) != getattr(whole, name)}
    assert set(OPTIONS) - {"optimizer_shard"} <= changed
    assert {"layers", "recompute_full"} <= changed
    assert "swap_optimizer" not in changed  # no option asks for it


def test_optimizer_levels_are_changes() -> None:
    levels = {
        near.zero_level for near in neighbours(LLAMA, plan(80, tp=4, pp=8, dp=2, zero_level=1, micro_batches=128))
    }
    assert levels == {0, 1, 2, 3}


def test_a_change_is_of_the_fewest_fields() -> None:
    strategy = plan(80, tp=4, pp=8, dp=2, micro_batch_size=4, micro_batches=32)
    change = smallest_change(LLAMA, strategy)
    assert change is not None
    fitting = [
        len(differences(strategy, row.strategy))
        for near in neighbours(LLAMA, strategy)
        if (row := estimated(LLAMA, Strategies.of([near])).row(0)).fits
    ]
    assert change.changed == min(fitting)


def test_fewer_stages_help_seventy_billion_on_eight() -> None:
    """208 s become 198 s with pp 4 and dp 2; the optimizer is then sharded as `estimate` shards it."""
    asked = request("Llama-3.1-70B", 64, batch=1024, chip="910b3", framework="mindformers-legacy")
    found = explain(asked, complete(asked, tp=8, pp=8))
    assert found.verdict == "slower"
    assert found.change is not None
    assert found.estimate is not None
    assert found.estimate.step_s == pytest.approx(208, rel=0.01)
    fewer = next(n for n in neighbours(asked, found.strategy) if (n.pp, n.dp, n.tp, n.micro_batch_size) == (4, 2, 8, 1))
    assert (fewer.zero_level, fewer.optimizer_shard, sum(fewer.layers_per_stage)) == (1, 2, 80)
    assert estimated(asked, Strategies.of([fewer])).step_s[0] == pytest.approx(198, rel=0.01)
    assert found.change.estimate.step_s is not None
    assert found.change.estimate.step_s <= 198 * 1.01
    after = found.change.estimate
    half = math.log(after.step_high_s / after.step_low_s) / 2
    assert found.change.tied is (math.log(found.estimate.step_s / after.step_s) <= half / 3)


#: model, cards, sequence, batch, framework, and degrees of what is explained
JOBS = [
    ("Llama-3.1-70B", 64, 4096, 256, "mindformers-legacy", {"tp": 8, "pp": 1, "recompute": "none"}),
    ("Llama-3.1-70B", 64, 4096, 1024, "mindspeed", {"tp": 8, "pp": 8}),
    ("Llama-3.1-70B", 64, 65_536, 64, "mindspeed", {"tp": 8, "cp": 4, "pp": 2}),
    ("Qwen3-32B", 64, 4096, 1024, "mindformers", {"tp": 3, "pp": 2, "dp": 10}),
    ("Qwen3-30B-A3B", 32, 4096, 1024, "mindformers", {"tp": 2, "pp": 2, "ep": 4}),
    ("Qwen3-30B-A3B", 32, 4096, 1024, "mindspeed", {"tp": 4, "pp": 2, "ep": 4, "recompute": "full"}),
    ("DeepSeek-V3", 1024, 4096, 1024, "mindformers", {"tp": 4, "pp": 8, "ep": 8}),
]


@pytest.mark.parametrize(("model", "cards", "seq", "batch", "framework", "degrees"), JOBS)
def test_every_change_done_as_printed_gives_what_is_printed(model, cards, seq, batch, framework, degrees) -> None:
    """The options of a change, given to `estimate`, make its strategy; its peak and seconds are those printed."""
    asked = request(model, cards, seq=seq, batch=batch, framework=framework)
    before = complete(asked, **degrees)
    expressible = 0
    near = neighbours(asked, before)
    answers = estimated(asked, Strategies.of(near))
    for row, after in enumerate(near):
        options = as_options(asked, after)
        if not options:
            assert any(after.recompute_selective) or after.schedule in ("gpipe", "seqpipe")
            continue
        expressible += 1
        redone = complete(asked, **_arguments(options))
        assert redone == after, options
        answer = estimated(asked, Strategies.of([redone])).row(0)
        assert answer.peak_bytes == answers.peak_bytes[row]
        assert answer.step_s == answers.row(row).step_s
    assert expressible >= 5
    found = explain(asked, before)
    assert found.change is not None
    assert complete(asked, **_arguments(found.change.options)) == found.change.strategy
    if found.verdict == "slower":
        assert found.change.estimate.step_s < found.estimate.step_s


def _arguments(options: str) -> dict[str, object]:
    """Options of the command line as `complete` takes them; each is one the command has."""
    words = options.split()
    flags = {f"--{field.name.replace('_', '-')}": field.name for field in dataclasses.fields(PinOptions)}
    found: dict[str, object] = {}
    for flag, text in zip(words[::2], words[1::2], strict=True):
        name = "stage_layers" if flag == "--stage-layers" else flags[flag]
        number = text.replace(",", "").isdigit()
        if name in ("stage_layers", "recompute") and number:
            found[name] = tuple(map(int, text.split(",")))
        else:
            found["micro_batch_size" if name == "micro_batch" else name] = int(text) if number else text
    return found


def test_only_options_of_the_command_are_proposed() -> None:
    legal = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(PinOptions)}
    assert set(OPTIONS.values()) <= legal


def test_nothing_is_slower_than_itself() -> None:
    """Neither the best, nor a twin of its degrees with layers as they come, is told to be slower by nothing."""
    result = search(LLAMA)
    best = result.estimates.table.row(0)
    twin = complete(LLAMA, **{n: getattr(best, n) for n in ("dp", "tp", "pp", "vpp", "micro_batch_size", "zero_level")})
    for strategy in (best, twin):
        found = explain(LLAMA, strategy, result)
        assert " 0.0% slower" not in " ".join(found.reasons)
        if found.verdict == "slower" and "of the best" in found.reasons[0]:
            assert "the same degrees; " in found.reasons[0]


def test_lost_seconds_are_of_the_average_card() -> None:
    """Averages add up to the step whichever stage sets the pace, so that two of them can be subtracted."""
    rows = [plan(80, tp=8, pp=8, micro_batches=256), plan(80, tp=8, pp=4, dp=2, micro_batches=128)]
    for answer in (estimated(LLAMA, Strategies.of([row])).row(0) for row in rows):
        assert answer.step_s is not None
        average = average_seconds(LLAMA, answer)
        assert sum(average.values()) == pytest.approx(answer.step_s, rel=1e-12)
    # the head is on one stage of eight: its seconds are an eighth of those of the stage that has it
    narrow, wide = (average_seconds(LLAMA, estimated(LLAMA, Strategies.of([row])).row(0)) for row in rows)
    assert narrow["head_loss_s"] == pytest.approx(wide["head_loss_s"], rel=1e-9)


def test_describe_names_what_is_not_one() -> None:
    strategy = plan(8, tp=2, cp=2, ep=4, dp=2, vpp=2, pp=2, micro_batches=4)
    assert describe(strategy) == "dp 2, tp 2, pp 2, vpp 2, cp 2, ep 4, micro-batches 4 x 1"
