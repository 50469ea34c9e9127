"""Counts, shards, products and FLOP against published, counted and hand-computed numbers."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.model.load import find, from_config, from_sizes, with_overrides
from planner.model.operators import (
    Gemm,
    Shards,
    active_parameter_count,
    attention_flop_per_token,
    embedding_parameters,
    final_norm_parameters,
    flop_per_token,
    forward_flop_per_token,
    gemms,
    head_gemms,
    head_parameters,
    layer_flop_per_token,
    layer_kind_prefix,
    layer_parameters,
    mtp_gemms,
    mtp_parameters,
    parameter_count,
    parameter_shards,
    router_bias_count,
)

TRUTH = Path(__file__).parents[2] / "calibration" / "measurements" / "step-times.csv"

# Totals printed by published checkpoints (P), counted from the networks MindFormers builds (R), or worked out from
# the tensor shapes (F), all without MTP modules.
COUNTS = [
    ("Llama-2-7B", 6_738_415_616),  # F
    ("Llama-2-13B", 13_015_864_320),  # F
    ("Llama-2-70B", 68_976_648_192),  # F
    ("Llama-3-8B", 8_030_261_248),  # P
    ("Llama-3.1-8B", 8_030_261_248),  # P
    ("Llama-3.1-70B", 70_553_706_496),  # P, R
    ("Llama-3.3-70B", 70_553_706_496),  # P, R
    ("Llama-3.1-405B", 405_853_388_800),  # F
    ("Qwen2.5-0.5B", 494_032_768),  # F, tied
    ("Qwen2.5-7B", 7_615_616_512),  # F
    ("Qwen2.5-32B", 32_763_876_352),  # F
    ("Qwen2.5-72B", 72_706_203_648),  # F
    ("Qwen3-0.6B", 596_049_920),  # P, tied
    ("Qwen3-8B", 8_190_735_360),  # P, R
    ("Qwen3-32B", 32_762_123_264),  # P, R
    ("Qwen3-30B-A3B", 30_532_122_624),  # P, R
    ("Qwen3-235B-A22B", 235_093_634_560),  # P
    ("Mixtral-8x7B", 46_702_792_704),  # P
    ("Mixtral-8x22B", 140_620_634_112),  # F
    ("DeepSeek-V2-Lite", 15_706_484_224),  # F
    ("DeepSeek-V3", 671_026_404_352),  # R
    ("InternLM2-7B", 7_737_708_544),  # P
    ("InternLM2-20B", 19_861_149_696),  # P
    ("GLM-4-9B-0414", 9_400_279_040),  # P
    ("GLM-4-9B", 9_399_951_360),  # F
]


@pytest.mark.parametrize(("name", "count"), COUNTS)
def test_parameters_to_the_unit(name, count):
    assert parameter_count(find(name), include_mtp=False) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen3-30B-A3B", 3_353_032_704),
        ("Qwen3-235B-A22B", 22_190_763_520),
        ("Mixtral-8x7B", 12_879_925_248),
        ("Llama-3.1-70B", 70_553_706_496),
    ],
)
def test_active_parameters_to_the_unit(name, count):
    assert active_parameter_count(find(name)) == count


def test_deepseek_v3_with_router_bias_and_mtp():
    model = find("DeepSeek-V3")
    main = replace(model, mtp_layers=0)
    assert router_bias_count(main) == 58 * 256 == 14_848
    assert parameter_count(main, trainable=False) == 671_026_419_200
    assert active_parameter_count(main, trainable=False) == 37_552_297_472
    assert mtp_parameters(model).total == 11_610_067_968
    assert parameter_count(model) == 682_636_472_320
    copies = 2 * model.vocab * model.hidden  # the published checkpoint stores embedding and head of the module again
    assert parameter_count(model, trainable=False) + copies == 684_489_845_504


def test_mixtral_with_the_larger_vocabulary():
    assert parameter_count(with_overrides(find("Mixtral-8x22B"), vocab=32768)) == 140_630_071_296


def test_qk_norm_adds_two_heads_widths_per_layer():
    model = find("Llama-3.1-70B")
    forced = replace(model, attention=replace(model.attention, qk_norm=True))
    assert parameter_count(forced) == 70_553_726_976  # counted from MindFormers' Qwen3 network of this shape


TINY = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 10}


def test_shards_of_a_dense_layer_by_hand():
    model = from_config(TINY | {"model_type": "llama", "num_key_value_heads": 2})
    # q 8x8, k and v 4x8 each, out 8x8, gate and up 12x8, down 8x12; two norms of 8
    assert layer_parameters(model, "dense") == Shards(tp=64 + 64 + 64 + 288, replicated=16)
    assert embedding_parameters(model) == head_parameters(model) == Shards(tp=80)
    assert final_norm_parameters(model) == Shards(replicated=8)
    assert parameter_count(model) == 3 * (480 + 16) + 80 + 80 + 8


def test_shards_of_biases_by_hand():
    model = from_config(TINY | {"model_type": "llama", "attention_bias": True, "mlp_bias": True})
    # column biases: qkv 24, gate and up 24; row biases: out 8, down 8; two norms of 8
    assert layer_parameters(model, "dense") == Shards(tp=4 * 64 + 288 + 48, replicated=16 + 16)


def test_shards_of_a_gpt_layer_by_hand():
    model = from_config(
        {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 5, "vocab_size": 10}
    )
    # qkv 24x8+24, out 8x8 (+8), up 32x8+32, down 8x32 (+8); two norms of 8+8
    assert layer_parameters(model, "dense") == Shards(tp=192 + 24 + 64 + 256 + 32 + 256, replicated=8 + 8 + 32)
    assert embedding_parameters(model) == Shards(tp=80, replicated=40)
    assert head_parameters(model) == Shards()
    assert final_norm_parameters(model) == Shards(replicated=16)


def test_shards_of_a_mixture_layer_by_hand():
    model = from_config(
        TINY
        | {"model_type": "qwen2_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 3}
        | {"shared_expert_intermediate_size": 5, "qkv_bias": False}
    )
    # attention 4x64, shared 3x8x5; router 6x8, shared gate 8, norms 16; experts 6 of 3x8x3
    assert layer_parameters(model, "moe") == Shards(tp=256 + 120, replicated=48 + 8 + 16, expert=432)


LATENT = {
    "model_type": "deepseek_v3", "num_nextn_predict_layers": 1, "kv_lora_rank": 5, "q_lora_rank": 6, "v_head_dim": 3,
    "qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 3, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip


def test_shards_of_latent_attention_by_hand():
    model = from_config(TINY | LATENT)
    # up: queries 6x12, keys and values 5x(4x(2+3)), out 12x8; down: 8x6+6 and 8x(5+1)+5; norms 16; MLP 288
    assert layer_parameters(model, "dense") == Shards(tp=72 + 100 + 96 + 288, replicated=54 + 53 + 16)
    # shared expert 72; router 32; experts 4 of 72
    layer = Shards(tp=72 + 100 + 96 + 72, replicated=54 + 53 + 16 + 32, expert=288)
    assert layer_parameters(model, "moe") == layer
    assert mtp_parameters(model) == layer + Shards(tp=128, replicated=24)
    assert router_bias_count(model) == 3 * 4
    assert router_bias_count(model, include_mtp=False) == 2 * 4


def test_latent_attention_biases_sit_on_the_down_projections():
    plain, biased = from_config(TINY | LATENT), from_config(TINY | LATENT | {"attention_bias": True})
    extra = Shards(replicated=6 + 6 + 8)  # queries down, keys and values down, out
    assert layer_parameters(biased, "dense") == layer_parameters(plain, "dense") + extra


def test_products_of_latent_attention_and_experts_by_hand():
    assert gemms(from_config(TINY | LATENT), "moe") == (
        Gemm(name="q_down", k=8, n=6, shard="replicated"),
        Gemm(name="q_up", k=6, n=12, shard="column"),
        Gemm(name="kv_down", k=8, n=6, shard="replicated"),
        Gemm(name="kv_up", k=5, n=20, shard="column"),
        Gemm(name="attention_out", k=12, n=8, shard="row"),
        Gemm(name="router", k=8, n=4, shard="replicated"),
        Gemm(name="expert_up", k=8, n=6, shard="expert_column", tokens_factor=2),
        Gemm(name="expert_down", k=3, n=8, shard="expert_row", tokens_factor=2),
        Gemm(name="shared_up", k=8, n=6, shard="column"),
        Gemm(name="shared_down", k=3, n=8, shard="row"),
    )


def test_products_of_a_llama_layer():
    assert gemms(find("Llama-3.1-70B"), "dense") == (
        Gemm(name="qkv", k=8192, n=10240, shard="column"),
        Gemm(name="attention_out", k=8192, n=8192, shard="row"),
        Gemm(name="mlp_up", k=8192, n=57344, shard="column"),
        Gemm(name="mlp_down", k=28672, n=8192, shard="row"),
    )
    assert head_gemms(find("Llama-3.1-70B")) == (Gemm(name="head", k=8192, n=128256, shard="column"),)
    assert mtp_gemms(find("Llama-3.1-70B")) == ()


WEIGHT_SPLITS = {
    "column": "tp",
    "row": "tp",
    "replicated": "replicated",
    "expert_column": "expert",
    "expert_row": "expert",
}


@pytest.mark.parametrize(
    "name", ["Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3", "DeepSeek-V2-Lite", "Qwen1.5-MoE-A2.7B"]
)
def test_products_and_shards_describe_the_same_weights(name):
    model = find(name)
    for kind in model.kinds:
        sizes = {"tp": 0, "replicated": 0, "expert": 0}
        for gemm in gemms(model, kind):
            copies = model.moe.experts if gemm.shard.startswith("expert") else 1
            sizes[WEIGHT_SPLITS[gemm.shard]] += gemm.k * gemm.n * copies
        shards = layer_parameters(model, kind)
        qkv_bias = (model.attention.heads + 2 * model.attention.kv_heads) * model.attention.head_dim
        assert shards.tp == sizes["tp"] + (qkv_bias if model.attention.qkv_bias else 0)
        assert shards.expert == sizes["expert"]
        inner = model.attention.q_lora_rank + model.attention.kv_lora_rank
        inner += 2 * model.attention.head_dim if model.attention.qk_norm else 0
        assert shards.replicated == sizes["replicated"] + 2 * model.hidden + inner


def test_flop_by_hand():
    model = find("Llama-3.1-70B")
    layer = 2 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672)
    scores = 2 * 2 * 4096 * 8192  # two products over all 4096 keys
    forward = 80 * (layer + scores) + 2 * 8192 * 128256
    assert attention_flop_per_token(model, 4096, causal=False) == scores
    assert attention_flop_per_token(model, 4096) == scores / 2
    assert layer_flop_per_token(model, "dense", 4096, causal=False) == layer + scores
    assert forward_flop_per_token(model, 4096, causal=False) == forward
    assert flop_per_token(model, 4096, causal=False) == 3 * forward == 449_222_541_312
    # the same by the usual 6 N + 12 L s h, N without the look-up table and the norms
    multiplied = 70_553_706_496 - 128256 * 8192 - 161 * 8192
    assert 3 * forward == 6 * multiplied + 12 * 80 * 4096 * 8192


def test_flop_of_latent_attention_counts_both_head_widths():
    assert attention_flop_per_token(find("DeepSeek-V3"), 4096, causal=False) == 2 * 4096 * 128 * (192 + 128)


def test_flop_of_mtp_is_a_layer_a_projection_and_a_head():
    model = find("DeepSeek-V3")
    main = replace(model, mtp_layers=0)
    module = layer_flop_per_token(model, "moe", 4096) + 2 * (2 * 7168 * 7168) + 2 * 7168 * 129280
    assert forward_flop_per_token(model, 4096) == forward_flop_per_token(main, 4096) + module


def truth_rows():
    with TRUTH.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["model_gflops_per_token_full_attn"]]


def number(row, key):
    return int(row[key]) if row[key] else None


def test_flop_of_every_published_dense_run():
    """The measurements' own FLOP column was computed elsewhere, to two decimals."""
    rows = [row for row in truth_rows() if not row["experts"]]
    for row in rows:
        sizes = {key: number(row, key) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "head_dim")}
        model = from_sizes(**sizes, family="gpt" if row["gated_ffn"] == "0" else "llama")
        flop = flop_per_token(model, number(row, "seq"), causal=False)
        assert flop / 1e9 == pytest.approx(float(row["model_gflops_per_token_full_attn"]), abs=0.0051), row["case_id"]
    assert len(rows) > 130


def test_flop_of_every_published_latent_run():
    v3, v2 = replace(find("DeepSeek-V3"), mtp_layers=0), find("DeepSeek-V2")
    seen = 0
    for row in truth_rows():
        name, layers, seq = row["model"], number(row, "layers"), number(row, "seq")
        if not any(key in name for key in ("DeepSeek", "deepseek2", "Pangu Ultra MoE")):
            continue
        base = v2 if number(row, "experts") == 160 else v3
        model = with_overrides(
            base, layers=layers, hidden=number(row, "hidden"), vocab=number(row, "vocab"),
            dense_layers=number(row, "first_dense_layers"),
        )  # fmt: skip
        expected = float(row["model_gflops_per_token_full_attn"])
        assert flop_per_token(model, seq, causal=False) / 1e9 == pytest.approx(expected, rel=2e-4), row["case_id"]
        seen += 1
    assert seen >= 10


def test_prefix_counts_kinds_of_ranges():
    model = find("DeepSeek-V3")
    prefix = layer_kind_prefix(model)
    assert prefix["dense"].tolist() == [0, 1, 2, 3] + [3] * 58
    assert prefix["moe"].tolist() == [0, 0, 0, 0, *range(1, 59)]
    assert prefix["moe"].dtype == np.int64
    first, last = np.array([0, 2, 4]), np.array([2, 4, 61])
    assert (prefix["dense"][last] - prefix["dense"][first]).tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match="read-only"):
        prefix["moe"][0] = 1


def test_prefix_of_a_dense_model_has_one_kind():
    assert list(layer_kind_prefix(find("Llama-3.1-8B"))) == ["dense"]


def test_a_kind_the_model_lacks_is_refused():
    with pytest.raises(SpecError, match="Llama-3.1-8B has no moe layers; it has: dense"):
        gemms(find("Llama-3.1-8B"), "moe")
    with pytest.raises(SpecError, match="has no dense layers"):
        layer_parameters(find("Mixtral-8x7B"), "dense")


@given(st.integers(1, 200), st.integers(1, 200))
def test_counts_are_linear_in_layers(first, second):
    base = find("Llama-3.1-8B")
    one, two = with_overrides(base, layers=first), with_overrides(base, layers=second)
    layer = layer_parameters(base, "dense").total
    assert parameter_count(one) - parameter_count(two) == (first - second) * layer


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3"])
def test_tying_saves_exactly_one_table(name):
    model = find(name)
    tied = replace(model, tied_embeddings=True)
    assert parameter_count(model) - parameter_count(tied) == model.vocab * model.hidden
    assert flop_per_token(tied, 4096) == flop_per_token(model, 4096)


@given(st.sampled_from(["Llama-3.1-8B", "DeepSeek-V3", "GPT-3-13B"]), st.integers(1, 2**17))
def test_causal_halves_attention_only(name, seq):
    model = find(name)
    attention = 3 * (model.layers + model.mtp_layers) * attention_flop_per_token(model, seq, causal=False)
    difference = flop_per_token(model, seq, causal=False) - flop_per_token(model, seq)
    assert difference == pytest.approx(attention / 2, rel=1e-9)


def test_shards_add_and_scale():
    total = Shards(tp=1, replicated=2, expert=3) + Shards(tp=10) * 2
    assert total == Shards(tp=21, replicated=2, expert=3)
    assert total.total == 26


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Qwen3-235B-A22B", "DeepSeek-V3", "GPT-3-175B"])
def test_parts_add_up_to_the_whole(name):
    model = find(name)
    parts = embedding_parameters(model) + head_parameters(model) + final_norm_parameters(model) + mtp_parameters(model)
    for kind in model.layer_kinds:
        parts += layer_parameters(model, kind)
    assert parts == parameter_shards(model)
    assert parts.total == parameter_count(model)
