"""Overrides, explicit sizes and shapes for a parameter count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.model.load import OVERRIDES, catalogue, closest, find, from_sizes, scaled, with_overrides
from planner.model.operators import parameter_count

LLAMA = find("Llama-3.1-8B")
QWEN_MOE = find("Qwen3-30B-A3B")
DEEPSEEK = find("DeepSeek-V3")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (0.5e9, "Qwen2.5-0.5B"),
        (1.5e9, "Qwen2.5-1.5B"),
        (3e9, "Qwen2.5-3B"),
        (4e9, "Qwen3-4B"),
        (7e9, "Llama-2-7B"),
        (8e9, "Llama-3.1-8B"),
        (13e9, "Llama-2-13B"),
        (14e9, "Qwen3-14B"),
        (32e9, "Qwen3-32B"),
        (70e9, "Llama-3.1-70B"),
        (70_000_000_000, "Llama-3.1-70B"),
        (72e9, "Qwen2.5-72B"),
        (405e9, "Llama-3.1-405B"),
        (110e9, "Qwen1.5-110B"),  # not on the ladder, but of its kind
        (123e9, "Mistral-Large-123B"),
        (1e9, "Llama-like-1.00B"),
        (175e9, "Llama-like-175B"),  # GPT-3 has other tensors: only by name
    ],
)
def test_the_shape_of_a_count(asked, name):
    assert closest(asked).name == name


@given(st.floats(1e6, 1e14))
def test_any_count_gets_a_shape_near_it(asked):
    model = closest(asked)
    error = abs(parameter_count(model) - asked) / asked
    if model.source.startswith("scaled"):
        assert error <= 0.05
        nearest = min(abs(parameter_count(e.model) - asked) for e in catalogue() if e.reference)
        assert nearest > 0.15 * asked * (1 - 1e-9)
        assert "Llama-like shape" in model.source
    else:
        assert error <= 0.15
        assert model.moe is None


@given(st.floats(20e6, 1e14))
def test_scaled_shapes_are_near_and_split_well(asked):
    model = scaled(asked)
    assert parameter_count(model) == pytest.approx(asked, rel=0.02)
    attention = model.attention
    assert attention.heads * attention.head_dim == model.hidden
    if asked >= 1e9:
        assert model.hidden % 1024 == attention.heads % 8 == model.layers % 4 == model.ffn % 256 == 0
        assert (attention.head_dim, attention.kv_heads, model.vocab) == (128, 8, 128256)
    if asked >= 5e9:
        assert 90 <= model.hidden / model.layers <= 130
        assert 3.2 <= model.ffn / model.hidden <= 3.8
    assert model.tied_embeddings == (asked < 4e9)


def test_scaled_meets_a_known_shape_of_its_kind():
    """The rules come from Llama 3: asked for its counts they must land on its widths and near its depths."""
    for name, layers in (("Llama-3.1-8B", 2), ("Llama-3.1-70B", 6), ("Llama-3.1-405B", 12)):
        known = find(name)
        model = scaled(parameter_count(known))
        assert model.hidden in (known.hidden, known.hidden - 1024, known.hidden + 1024)
        assert abs(model.layers - known.layers) <= layers


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (0, "out of range; legal: 1M to 100T"),
        (-7e9, "out of range"),
        (999_999, "out of range"),
        (1.01e14, "101T parameters .* out of range"),
        (10**30, "out of range"),
        (float("inf"), "out of range"),
        (float("nan"), "nan is not a count"),
        (True, "True is not a count"),
        ("70B", "'70B' is not a count"),
    ],
)
def test_absurd_counts(asked, message):
    for function in (closest, scaled):
        with pytest.raises(SpecError, match=message):
            function(asked)


def test_nothing_given_changes_nothing():
    assert with_overrides(LLAMA) is LLAMA
    assert with_overrides(LLAMA, layers=None, hidden=None) is LLAMA
    assert with_overrides(LLAMA, name="mine") == replace(LLAMA, name="mine")


def test_an_override_is_named_in_the_source():
    model = with_overrides(LLAMA, layers=4, vocab=32000)
    assert (model.name, model.layers, model.vocab) == ("Llama-3.1-8B-modified", 4, 32000)
    assert model.source.endswith("with layers=4, vocab=32000")
    assert replace(model, name=LLAMA.name, source=LLAMA.source, vocab=128256, layer_kinds=("dense",) * 32) == LLAMA


@pytest.mark.parametrize(
    ("base", "sizes", "heads", "kv_heads", "head_dim"),
    [
        (LLAMA, {"heads": 64}, 64, 8, 64),  # head width stays hidden / heads
        (LLAMA, {"hidden": 8192}, 32, 8, 256),
        (LLAMA, {"hidden": 8192, "heads": 64}, 64, 8, 128),
        (LLAMA, {"hidden": 8192, "head_dim": 128}, 32, 8, 128),
        (LLAMA, {"kv_heads": 32}, 32, 32, 128),
        (find("Llama-2-7B"), {"heads": 16}, 16, 16, 256),  # one key/value head per head stays so
        (find("Qwen3-32B"), {"heads": 32}, 32, 8, 128),  # 64 x 128 is not hidden: the width is its own
        (find("Qwen3-32B"), {"hidden": 4096}, 64, 8, 128),
    ],
)
def test_attention_follows_as_a_config_would(base, sizes, heads, kv_heads, head_dim):
    attention = with_overrides(base, **sizes).attention
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (heads, kv_heads, head_dim)
    assert attention.v_head_dim == head_dim


def test_latent_attention_overrides():
    model = with_overrides(DEEPSEEK, heads=64, qk_nope_dim=96, kv_lora_rank=256, q_lora_rank=0, v_head_dim=64)
    attention = model.attention
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.v_head_dim) == (64, 64, 160, 64)
    assert (attention.kv_lora_rank, attention.q_lora_rank) == (256, 0)


def test_dense_layers_in_front_stay():
    assert with_overrides(DEEPSEEK, layers=10).layer_kinds == ("dense",) * 3 + ("moe",) * 7
    assert with_overrides(DEEPSEEK, layers=100).layer_kinds == ("dense",) * 3 + ("moe",) * 97
    assert with_overrides(DEEPSEEK, layers=4, dense_layers=1).layer_kinds == ("dense", "moe", "moe", "moe")
    assert with_overrides(DEEPSEEK, dense_layers=0).layer_kinds == ("moe",) * 61


def test_a_pattern_of_layers_is_continued():
    alternating = replace(QWEN_MOE, layer_kinds=("moe", "dense") * 24)
    assert with_overrides(alternating, layers=5).layer_kinds == ("moe", "dense", "moe", "dense", "moe")
    assert with_overrides(alternating, layers=51).layer_kinds == ("moe", "dense") * 25 + ("moe",)


def test_experts_can_be_changed_added_and_removed():
    assert with_overrides(QWEN_MOE, experts=64, topk=4).moe == replace(QWEN_MOE.moe, experts=64, topk=4)
    dense = with_overrides(QWEN_MOE, experts=0)
    assert (dense.moe, dense.kinds, dense.family, dense.ffn) == (None, ("dense",), "qwen3", 6144)
    mixture = with_overrides(LLAMA, experts=8, topk=2, expert_ffn=14336)
    assert (mixture.kinds, mixture.family) == (("moe",), "mixtral")
    known = find("Mixtral-8x7B")
    same = with_overrides(mixture, vocab=32000, name=known.name)
    assert parameter_count(same) == 46_702_792_704


def test_learned_positions_follow_the_longest_sequence():
    model = with_overrides(find("GPT-3-13B"), max_seq=4096)
    assert (model.learned_positions, model.max_seq) == (4096, 4096)
    assert with_overrides(LLAMA, max_seq=4096).learned_positions == 0


ILLEGAL = [
    (LLAMA, {"depth": 3}, "'depth' is not a size that can be given here; legal: layers, dense_layers, hidden"),
    (LLAMA, {"layers": 0}, "layers=0 is out of range; legal: a whole number from 1 to 10000"),
    (LLAMA, {"layers": -1}, "layers=-1 is out of range"),
    (LLAMA, {"layers": 10**7}, "layers=10000000 is out of range"),
    (LLAMA, {"hidden": 4096.5}, "hidden is 4096.5; it must be a whole number"),
    (LLAMA, {"hidden": "4096"}, "hidden is '4096'"),
    (LLAMA, {"heads": 33}, r"hidden=4096 is not a multiple of heads=33; give head_dim.*nearest: 32, 64"),
    (LLAMA, {"kv_heads": 5}, "5 key/value heads do not divide 32 attention heads; legal: 1, 2, 4, 8, 16, 32"),
    (LLAMA, {"topk": 2}, "Llama-3.1-8B has no experts; to add them give also experts, expert_ffn"),
    (LLAMA, {"experts": 8, "topk": 9, "expert_ffn": 64}, "topk=9 is more than the 8 experts"),
    (LLAMA, {"dense_layers": 2}, "has no experts: all are dense"),
    (LLAMA, {"kv_lora_rank": 64}, "kv_lora_rank belongs to latent attention"),
    (LLAMA, {"tied_embeddings": 1}, "tied_embeddings is 1; legal: true, false"),
    (DEEPSEEK, {"head_dim": 128}, "give those"),
    (DEEPSEEK, {"kv_heads": 8}, r"kv_heads=8 with latent attention; legal: 128"),
    (DEEPSEEK, {"layers": 3}, "layers=3 leaves no MoE layer, as the first 3 of DeepSeek-V3 are dense"),
    (DEEPSEEK, {"dense_layers": 61}, "dense_layers=61 of 61 layers leaves none for experts; legal: 0 to 60"),
    (DEEPSEEK, {"experts": 0, "topk": 2}, "leave out topk"),
    (DEEPSEEK, {"experts": 60_000, "hidden": 2**20}, "parameters"),
]


@pytest.mark.parametrize(("base", "sizes", "message"), ILLEGAL)
def test_illegal_overrides(base, sizes, message):
    with pytest.raises(SpecError, match=message):
        with_overrides(base, **sizes)


@given(st.sampled_from([LLAMA, QWEN_MOE, DEEPSEEK]), st.integers(4, 200), st.integers(4, 200))
def test_overriding_layers_twice_is_overriding_once(base, first, second):
    twice = with_overrides(with_overrides(base, layers=first), layers=second, name="x")
    assert replace(twice, source="") == replace(with_overrides(base, layers=second, name="x"), source="")


def sizes_of(model):
    """Every override that names what the model already has."""
    attention, moe = model.attention, model.moe
    sizes = {"layers": model.layers, "hidden": model.hidden, "ffn": model.ffn, "vocab": model.vocab}
    sizes |= {"heads": attention.heads, "kv_heads": attention.kv_heads, "max_seq": model.max_seq}
    sizes |= {"tied_embeddings": model.tied_embeddings, "mtp_layers": model.mtp_layers}
    if attention.kind == "mla":
        names = ("q_lora_rank", "kv_lora_rank", "qk_nope_dim", "qk_rope_dim", "v_head_dim")
        sizes |= {name: getattr(attention, name) for name in names}
    else:
        sizes["head_dim"] = attention.head_dim
    if moe is not None:
        sizes |= {"experts": moe.experts, "topk": moe.topk, "expert_ffn": moe.expert_ffn, "shared_ffn": moe.shared_ffn}
        sizes["dense_layers"] = model.layer_kinds.count("dense")
    return sizes


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_overriding_with_its_own_sizes_is_the_model_itself(entry):
    model = entry.model
    assert set(sizes_of(model)) <= set(OVERRIDES)
    assert replace(with_overrides(model, **sizes_of(model), name=model.name), source=model.source) == model


def test_explicit_sizes_make_known_models():
    llama = from_sizes(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
    assert parameter_count(llama) == 70_553_706_496
    qwen = from_sizes(
        layers=64, hidden=5120, heads=64, kv_heads=8, head_dim=128, ffn=25600, vocab=151936, family="qwen3"
    )
    assert parameter_count(qwen) == 32_762_123_264
    moe = from_sizes(
        layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, vocab=151936, experts=128, topk=8, expert_ffn=768
    )
    assert (parameter_count(moe), moe.family) == (30_532_122_624, "qwen3_moe")
    gpt = from_sizes(layers=96, hidden=12288, heads=96, ffn=49152, vocab=50257, family="gpt", tied_embeddings=True)
    assert parameter_count(gpt) == parameter_count(find("GPT-3-175B"))
    assert llama.name == "llama-80x8192"
    assert llama.source.startswith("sizes: layers=80")


def test_explicit_sizes_with_dense_layers_in_front():
    model = from_sizes(
        layers=5,
        dense_layers=2,
        hidden=64,
        heads=4,
        ffn=128,
        vocab=100,
        experts=4,
        topk=2,
        expert_ffn=32,
        shared_ffn=32,
    )
    assert model.layer_kinds == ("dense", "dense", "moe", "moe", "moe")


GIVEN = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "ffn": 128}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "lacks layers, hidden, heads, vocab, ffn; give also those"),
        ({"layers": 2, "hidden": 64}, "lacks heads, vocab, ffn"),
        (GIVEN | {"ffn": None}, "lacks ffn"),
        (GIVEN | {"ffn": 0}, "lacks ffn"),
        (GIVEN | {"experts": 4}, "lacks topk, expert_ffn"),
        (GIVEN | {"heads": 5}, "hidden=64 is not a multiple of heads=5"),
        (GIVEN | {"heads": 0}, "heads=0 is out of range"),
        (GIVEN | {"shared_ffn": 4}, "belong to a model with experts"),
        (GIVEN | {"dense_layers": 1}, "belong to a model with experts"),
        (GIVEN | {"family": "mamba"}, "family='mamba' for a shape without experts; legal: llama, qwen3, gpt"),
        (GIVEN | {"family": "qwen3_moe"}, "family='qwen3_moe' for a shape without experts"),
        (GIVEN | {"q_lora_rank": 5}, "'q_lora_rank' is not a size that can be given here"),
    ],
)
def test_illegal_explicit_sizes(sizes, message):
    with pytest.raises(SpecError, match=message):
        from_sizes(**sizes)
