"""Loose inputs become whole records; both doors give the figures of the rooms below."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner import api, completion, inputs
from planner.cluster.load import hardware
from planner.errors import InfeasibleError, SpecError
from planner.legality.apply import violations
from planner.model.load import closest, find
from planner.search.request import DEFAULT_STEP_TOKENS

LLAMA = "llama-3.1-70b"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("70B", "Llama-3.1-70B"),
        (" 8b ", "Llama-3.1-8B"),
        (70e9, "Llama-3.1-70B"),
        ("8_030_261_248", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-70B", "Llama-3.1-70B"),
        ("DeepSeek-V3", "DeepSeek-V3"),
    ],
)
def test_models_by_count_and_name(text: str | float, name: str) -> None:
    assert inputs.model_for(text).name == name


def test_model_by_config_file_and_record(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    for source in (path, str(path), str(tmp_path)):
        assert inputs.model_for(source).hidden == 256
    model = inputs.model_for(path)
    assert inputs.model_for(model) is model


@pytest.mark.parametrize(
    ("cards", "seq", "batch"),
    [
        (64, 4096, 1024),  # 4 Mi tokens / 4096
        (64, 8192, 512),
        (8, 1024, 4096),
        (24, 4096, 1032),  # up to a multiple of the cards
        (2048, 4096, 2048),  # at least one sample a card
        (16384, 131072, 16384),
    ],
)
def test_default_batch(cards: int, seq: int, batch: int) -> None:
    assert inputs.default_batch(cards, seq) == batch


@given(cards=st.integers(1, 70_000), seq=st.integers(1, 2**20))
def test_default_batch_suits_every_split_of_the_cards(cards: int, seq: int) -> None:
    batch = inputs.default_batch(cards, seq)
    assert batch % cards == 0
    assert batch * seq >= min(DEFAULT_STEP_TOKENS, batch * seq)
    assert (batch - cards) * seq < max(DEFAULT_STEP_TOKENS, cards * seq)


def test_defaults_are_named_only_where_they_were_taken() -> None:
    asked = inputs.workload_for(find(LLAMA), 64, seq=8192, global_batch=128, framework="mindformers-legacy")
    assert asked.notes == ()
    left = inputs.workload_for(find(LLAMA), 64)
    assert left.notes == ("sequence 4096", "global batch 1024")


def test_sequence_default_is_what_learned_positions_allow() -> None:
    assert inputs.workload_for(find("gpt2"), 8).seq == 1024


@pytest.mark.parametrize(
    ("model", "framework"),
    [("llama-3.1-8b", "mindformers-legacy"), ("qwen3-32b", "mindformers"), ("deepseek-v3", "mindformers"),
     ("mixtral-8x7b", "mindspeed"), ("gpt2", "mindspeed")],
)  # fmt: skip
def test_framework_default_is_the_one_that_trains_the_family(model: str, framework: str) -> None:
    request = inputs.request_for(model, 8)
    assert request.workload.framework == framework
    assert f"framework {framework}" in request.workload.notes


def test_framework_default_on_gpus_is_megatron() -> None:
    assert inputs.request_for("8B", 8, "h100").workload.framework == "megatron"
    assert inputs.request_for("8B", 8, "h100", framework="mindspeed").workload.framework == "mindspeed"


def test_types_follow_the_framework() -> None:
    graph = inputs.request_for("8B", 8, framework="mindformers").workload
    assert (graph.params_dtype, graph.master_weights) == ("float32", False)
    torch = inputs.request_for("8B", 8, framework="mindspeed").workload
    assert (torch.params_dtype, torch.master_weights) == ("bfloat16", True)


def test_suggest_and_estimate_agree() -> None:
    result = planner.suggest("8B", 16, seq=4096, global_batch=128, top=3)
    assert len(result.estimates) == 3
    for i in range(3):
        row = result.estimates.row(i)
        assert planner.estimate("8B", row.strategy, seq=4096) == row


def test_suggest_takes_pins_and_a_limit() -> None:
    result = planner.suggest(closest(8e9), 16, hardware("910b2"), pins={"tp": {2}}, max_memory="40GB", global_batch=128)
    assert set(result.estimates.table.tp.tolist()) == {2}
    assert result.estimates.peak_bytes.max() <= 40 * 2**30


def test_infeasible_says_how_many_cards() -> None:
    with pytest.raises(InfeasibleError, match="needs at least (\\d+) cards") as caught:
        planner.suggest("70B", 8)
    fewest = caught.value.minimum_devices
    assert fewest is not None
    assert planner.suggest("70B", fewest, global_batch=1024).estimates.fits.all()


@pytest.mark.parametrize(
    ("framework", "etp", "level"),
    [("mindformers", 1, 1), ("mindformers-legacy", 4, 1), ("mindspeed", 4, 1), ("megatron", 4, 1),
     ("mindformers-pynative", 1, 3)],
)  # fmt: skip
def test_what_is_left_out_is_the_frameworks_own_habit(framework: str, etp: int, level: int) -> None:
    request = inputs.request_for("qwen3-30b-a3b", 16, framework=framework)
    strategy = completion.complete(request, tp=4, ep=2)
    assert (strategy.etp, strategy.zero_level) == (etp, level)
    assert not violations(request.context, strategy)


def test_a_layout_whose_experts_need_more_ranks_than_there_are_is_refused_by_name() -> None:
    request = inputs.request_for("mixtral-8x7b", 8, framework="megatron", hardware="h100")
    strategy = completion.complete(request, tp=4, ep=4)  # ep x etp = 16 ranks of 8
    with pytest.raises(SpecError, match="ep-ranks: ep=4 x etp=4 = 16 does not divide the 8 ranks .* or etp: 1, 2"):
        api.judged(request, strategy)
    with pytest.raises(SpecError, match="16 parts of the experts need more ranks than .* = 8 of a stage"):
        api.estimate_of(request, strategy)
    whole = completion.complete(request, tp=4, ep=4, etp=1)
    assert api.estimate_of(request, whole).strategy.etp == 1


def test_complete_fills_only_what_was_left_out() -> None:
    request = inputs.request_for(LLAMA, 64, seq=4096, global_batch=128)
    strategy = completion.complete(request, tp=8, pp=4)
    assert (strategy.dp, strategy.cp, strategy.ep, strategy.vpp) == (2, 1, 1, 1)
    assert (strategy.micro_batch_size, strategy.micro_batches) == (1, 64)  # 128 / dp 2
    assert strategy.layers_per_stage == (20, 21, 20, 19)  # the last stage has the head and its traffic
    assert strategy.optimizer_shard == 2
    assert violations(request.context, strategy) == []


@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4, 8]), vpp=st.sampled_from([1, 2]),
    size=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_completed_strategies_are_legal_and_whole(tp: int, pp: int, vpp: int, size: int) -> None:
    request = inputs.request_for(LLAMA, 64, seq=4096, global_batch=256)
    vpp = vpp if pp > 1 else 1
    strategy = completion.complete(request, tp=tp, pp=pp, vpp=vpp, micro_batch_size=size)
    assert strategy.devices == 64
    assert strategy.dp * strategy.micro_batch_size * strategy.micro_batches == 256
    assert sum(strategy.layers_per_stage) == 80
    assert [v.code for v in violations(request.context, strategy)] == []


@pytest.mark.parametrize(
    ("how", "full", "selective"),
    [("none", (0, 0), (0, 0)), ("full", (40, 40), (0, 0)), ("selective", (0, 0), (40, 40)), ((7, 3), (7, 3), (0, 0))],
)
def test_recompute_as_asked(how: str | tuple[int, ...], full: tuple[int, ...], selective: tuple[int, ...]) -> None:
    request = inputs.request_for(LLAMA, 16, seq=4096, global_batch=64)
    strategy = completion.complete(request, tp=8, pp=2, stage_layers=(40, 40), recompute=how)
    assert (strategy.recompute_full, strategy.recompute_selective) == (full, selective)


def test_automatic_recompute_is_the_least_that_fits() -> None:
    """One layer less on the stage with most of it would not fit."""
    request = inputs.request_for(LLAMA, 32, seq=8192, global_batch=64)
    strategy = completion.complete(request, tp=8, pp=4, micro_batch_size=4)
    assert api.estimate_of(request, strategy).fits
    assert sum(strategy.recompute_full) > 0
    for stage, count in enumerate(strategy.recompute_full):
        if count:
            fewer = list(strategy.recompute_full)
            fewer[stage] -= 1
            less = replace(strategy, recompute_full=tuple(fewer))
            assert api.estimate_of(request, less).stage_peak_bytes[stage] > request.limit


@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ({"tp": 3}, "tp 3 x pp 1 x cp 1 = 3 does not divide 64 cards"),
        ({"tp": 0}, "tp=0 must be a whole number from 1 to 1000000"),
        ({"zz": 2}, "a strategy has no zz; legal: cp, cp_algorithm, dp"),
        ({"pp": 2, "stage_layers": (40, 30, 10)}, "layers per stage need 2 numbers"),
        ({"pp": 2, "recompute": (1, 2, 3)}, "recompute needs 2 numbers"),
        ({"pp": 2, "recompute": "much"}, "recompute='much' must be one of auto, none, selective, full"),
    ],
)
def test_incomplete_strategies_that_cannot_be_completed(degrees: dict[str, object], words: str) -> None:
    request = inputs.request_for(LLAMA, 64, global_batch=64)
    with pytest.raises(SpecError, match=words.replace("(", r"\(")):
        completion.complete(request, **degrees)  # type: ignore[arg-type]


def test_an_illegal_strategy_is_refused_with_the_rule() -> None:
    with pytest.raises(SpecError, match="heads: tp=8 does not divide 28 attention heads"):
        planner.estimate("qwen2-7b", tp=8, cards=8)  # 28 heads


def test_a_plan_keeps_a_users_own_profile(tmp_path: Path) -> None:
    from planner.cluster.load import data_directory

    path = tmp_path / "mine.yaml"
    text = (data_directory("hardware_profiles") / "910b3.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("name: 910B3", "name: mine"), encoding="utf-8")
    request = inputs.request_for("8B", 8, path, global_batch=64)
    strategy = completion.complete(request, tp=2)
    plan = api.plan_of(request, api.estimate_of(request, strategy), hardware=str(path))
    assert plan.hardware == str(path)
    assert plan.memory_limit_bytes == int(request.limit)
