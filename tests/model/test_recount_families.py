"""Second opinion on the newer families: tensors listed by name and shape, with each feature set at random."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.load import from_config
from planner.model.operators import expert_parameters, gemms, parameter_shards, router_bias_count

ROWS = {row["name"]: row for row in json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))}

#: What each family's network has beside plain grouped-query attention and a gated MLP, read off its modeling file.
NETWORK = {
    "gemma2": {"norms": 4, "tied": True},
    "gemma3_text": {"norms": 4, "tied": True, "qk": "head"},
    "exaone4": {"qk": "head"},
    "nemotron": {"gated": False, "norm_bias": True},
    "olmo2": {"qk": "whole"},
    "cohere2": {"norms": 1, "tied": True},
    "starcoder2": {"gated": False, "norm_bias": True, "tied": True, "bias": True, "mlp_bias": True},
    "seed_oss": {"qkv_bias": True},
    "PanguEmbedded": {"bias": True},
    "arcee": {"gated": False},
    "phi3": {},
    "gpt_oss": {"bias": True, "sinks": True, "expert_bias": True, "experts": True},
    "minimax_m2": {"qk": "whole", "experts": True, "correction": True},
    "olmoe": {"qk": "whole", "experts": True},
    "llama4_text": {"experts": True, "shared": True},
}


def linear(name, columns, rows, bias):
    yield f"{name}.weight", (columns, rows)
    if bias:
        yield f"{name}.bias", (columns,)


def layer(config, net):
    h, a, k, d = (config[n] for n in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    both = net.get("bias", False)
    for name, heads in (("q_proj", a), ("k_proj", k), ("v_proj", k)):
        yield from linear(name, heads * d, h, both or net.get("qkv_bias", False))
    yield from linear("o_proj", h, a * d, both)
    if net.get("qk"):
        yield "q_norm.weight", (a * d if net["qk"] == "whole" else d,)
        yield "k_norm.weight", (k * d if net["qk"] == "whole" else d,)
    if net.get("sinks"):
        yield "sinks", (a,)
    width = config["intermediate_size"]
    first = ("gate_proj", "up_proj") if net.get("gated", True) else ("up_proj",)
    groups = ["mlp"]
    if net.get("experts"):
        experts, bias = config["num_local_experts"], net.get("expert_bias", False)
        yield from linear("router", experts, h, bias)
        if net.get("correction"):
            yield "router.correction", (experts,)
        groups = [f"experts.{i}" for i in range(experts)] + (["shared"] if net.get("shared") else [])
    for group in groups:
        bias = net.get("expert_bias", False) if "experts" in group else net.get("mlp_bias", False)
        for name in first:
            yield from linear(f"{group}.{name}", width, h, bias)
        yield from linear(f"{group}.down_proj", h, width, bias)
    for norm in range(net.get("norms", 2)):
        yield f"layernorm.{norm}.weight", (h,)
        if net.get("norm_bias"):
            yield f"layernorm.{norm}.bias", (h,)


def recount(config, net):
    h = config["hidden_size"]
    totals = {"tp": config["vocab_size"] * h * (1 if net.get("tied") else 2), "replicated": h, "expert": 0}
    totals["replicated"] += h if net.get("norm_bias") else 0
    correction = 0
    for name, shape in layer(config, net):
        count = config["num_hidden_layers"] * prod(shape)
        if name.endswith("correction"):
            correction += count
        elif "experts." in name:
            totals["expert"] += count
        elif "norm" in name or "router" in name or name.endswith(("o_proj.bias", "down_proj.bias")):
            totals["replicated"] += count
        else:
            totals["tp"] += count
    return totals, correction


@st.composite
def configs(draw):
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    config = {
        "model_type": draw(st.sampled_from(sorted(NETWORK))),
        "hidden_size": heads * draw(st.integers(1, 8)),
        "head_dim": draw(st.integers(1, 9)),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([k for k in (1, 2, 3, 6) if heads % k == 0])),
        "vocab_size": draw(st.integers(1, 50)),
        "num_local_experts": draw(st.integers(2, 6)),
        "num_experts_per_tok": draw(st.integers(1, 2)),
    }
    if config["model_type"] == "gpt_oss":
        config["sliding_window"] = 128
    return config


@settings(max_examples=300, deadline=None)
@given(configs())
def test_any_config_recounted_tensor_by_tensor(config):
    model, (totals, correction) = from_config(config), recount(config, NETWORK[config["model_type"]])
    shards = parameter_shards(model)
    assert {"tp": shards.tp, "replicated": shards.replicated, "expert": shards.expert} == totals
    assert router_bias_count(model) == correction


@settings(max_examples=100, deadline=None)
@given(configs())
def test_products_are_the_weights_of_a_layer(config):
    """Every weight matrix is one product (a routed expert's once); what is left are vectors."""
    model = from_config(config)
    vectors = sum(
        prod(shape) for name, shape in layer(config, NETWORK[config["model_type"]])
        if len(shape) == 1 and "correction" not in name
    )  # fmt: skip
    kind = model.layer_kinds[0]
    weights = sum(gemm.k * gemm.n for gemm in gemms(model, kind))
    if model.moe is not None:
        bias = expert_parameters(model) - 3 * model.hidden * model.moe.expert_ffn
        weights += (model.moe.experts - 1) * (expert_parameters(model) - bias)
    each = parameter_shards(model).total - config["vocab_size"] * model.hidden * (1 if model.tied_embeddings else 2)
    final = model.hidden * (2 if model.norm_bias else 1)
    assert weights + vectors == (each - final) // model.layers


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "GLM-5"])
def test_a_sparse_indexer_adds_its_tensors_to_every_layer(name):
    config = ROWS[name]["config"] | {"num_nextn_predict_layers": 0}
    without = from_config(config | {"model_type": "deepseek_v3"})
    heads, width, h, rank = (config[n] for n in ("index_n_heads", "index_head_dim", "hidden_size", "q_lora_rank"))
    tensors = {
        "wq_b.weight": (heads * width, rank),
        "wk.weight": (width, h),
        "k_norm.weight": (width,),
        "k_norm.bias": (width,),
        "weights_proj.weight": (heads, h),
    }
    more = parameter_shards(from_config(config)).total - parameter_shards(without).total
    assert more == config["num_hidden_layers"] * sum(map(prod, tensors.values()))
