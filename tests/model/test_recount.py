"""Second opinion on every count: list the tensors of the published network by name and shape, and add them up.

Works from the Hugging Face config alone and shares no code with the package.  How a tensor is split over
tensor-parallel ranks is read off its name, as Megatron and MindFormers split it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.load import catalogue, from_config
from planner.model.operators import (
    active_parameter_count,
    parameter_count,
    parameter_shards,
    router_bias_count,
)

GPT = ("gpt", "gpt2", "gpt_neox")
DEEPSEEK = ("deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "telechat3_moe")


def get(config, *names, default=None):
    return next((config[name] for name in names if config.get(name) is not None), default)


def attention_tensors(config):
    family = config["model_type"]
    h, a = get(config, "hidden_size", "n_embd"), get(config, "num_attention_heads", "n_head")
    d = get(config, "head_dim", "kv_channels", default=h // a)
    k = get(config, "num_key_value_heads", "multi_query_group_num", default=a)
    if family in ("deepseek_v2", "deepseek_v3", "kimi_k2", "telechat3_moe"):
        n, p, v = (config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        rank = config["kv_lora_rank"]
        yield "kv_a_proj_with_mqa.weight", (rank + p, h)
        yield "kv_a_layernorm.weight", (rank,)
        yield "kv_b_proj.weight", (a * (n + v), rank)
        yield "o_proj.weight", (h, a * v)
        if config["q_lora_rank"] is None:
            yield "q_proj.weight", (a * (n + p), h)
        else:
            yield "q_a_proj.weight", (config["q_lora_rank"], h)
            yield "q_a_layernorm.weight", (config["q_lora_rank"],)
            yield "q_b_proj.weight", (a * (n + p), config["q_lora_rank"])
        return
    for name, heads in (("q_proj", a), ("k_proj", k), ("v_proj", k)):
        yield f"{name}.weight", (heads * d, h)
        if (
            family in ("qwen2", *GPT)
            or config.get("qkv_bias", family == "qwen2_moe")
            or config.get("attention_bias", family in ("glm", "glm4"))
            or config.get("add_qkv_bias")
            or config.get("bias")
        ):
            yield f"{name}.bias", (heads * d,)
    yield "o_proj.weight", (h, a * d)
    if (
        family in GPT
        or (family in ("llama", "qwen3", "qwen3_moe") and config.get("attention_bias"))
        or config.get("bias")
    ):
        yield "o_proj.bias", (h,)
    if family in ("qwen3", "qwen3_moe") or config.get("use_qk_norm"):
        yield "q_norm.weight", (d,)
        yield "k_norm.weight", (d,)


def gated(prefix, h, f, bias=False):
    for name, shape in (("gate_proj", (f, h)), ("up_proj", (f, h)), ("down_proj", (h, f))):
        yield f"{prefix}{name}.weight", shape
        if bias:
            yield f"{prefix}{name}.bias", shape[:1]


def is_sparse(config, layer):
    family = config["model_type"]
    if family == "mixtral":
        return True
    if family in (*DEEPSEEK, "glm4_moe"):
        return layer >= config["first_k_dense_replace"] and layer % config.get("moe_layer_freq", 1) == 0
    if family in ("qwen2_moe", "qwen3_moe"):
        return layer not in config.get("mlp_only_layers", []) and (layer + 1) % config["decoder_sparse_step"] == 0
    return False


def mlp_tensors(config, layer):
    family = config["model_type"]
    h = get(config, "hidden_size", "n_embd")
    f = get(config, "intermediate_size", "ffn_hidden_size", "n_inner", default=4 * h)
    if family in GPT:
        yield from (
            ("up_proj.weight", (f, h)),
            ("up_proj.bias", (f,)),
            ("down_proj.weight", (h, f)),
            ("down_proj.bias", (h,)),
        )
        return
    if not is_sparse(config, layer):
        yield from gated("", h, f, bias=bool(config.get("mlp_bias")))
        return
    experts = get(config, "num_local_experts", "num_experts", "n_routed_experts")
    width = f if family == "mixtral" else config["moe_intermediate_size"]
    yield "router.weight", (experts, h)
    for expert in range(experts):
        yield from gated(f"experts.{expert}.", h, width)
    if family == "qwen2_moe":
        yield from gated("shared.", h, config["shared_expert_intermediate_size"])
        yield "shared_gate.weight", (1, h)
    elif config.get("n_shared_experts"):
        yield from gated("shared.", h, width * config["n_shared_experts"])
    if family in ("deepseek_v3", "kimi_k2", "glm4_moe", "telechat3_moe"):
        yield "router.correction", (experts,)


def layer_tensors(config, layer):
    h = get(config, "hidden_size", "n_embd")
    yield from attention_tensors(config)
    yield from mlp_tensors(config, layer)
    for norm in range(4 if config["model_type"] == "glm4" else 2):
        yield f"norm.{norm}.weight", (h,)
        if config["model_type"] in GPT:
            yield f"norm.{norm}.bias", (h,)


def model_tensors(config, mtp=True):
    """(name, shape) of each tensor of the network, MTP modules without their copies of embedding and head."""
    h, V = get(config, "hidden_size", "n_embd"), get(config, "vocab_size", "padded_vocab_size")
    layers = get(config, "num_hidden_layers", "n_layer", "num_layers")
    family = config["model_type"]
    yield "embed_tokens.weight", (V, h)
    if family in ("gpt", "gpt2"):
        yield "positions.weight", (get(config, "n_positions", "max_position_embeddings"), h)
    for layer in range(layers):
        for name, shape in layer_tensors(config, layer):
            yield f"layers.{layer}.{name}", shape
    yield "norm.weight", (h,)
    if family in GPT:
        yield "norm.bias", (h,)
    if not get(config, "tie_word_embeddings", default=family in ("gpt", "gpt2")):
        yield "lm_head.weight", (V, h)
    for module in range(config.get("num_nextn_predict_layers", 0) if mtp else 0):
        for name, shape in layer_tensors(config, layers - 1):
            yield f"mtp.{module}.{name}", shape
        yield f"mtp.{module}.eh_proj.weight", (h, 2 * h)
        for norm in ("enorm", "hnorm", "norm"):
            yield f"mtp.{module}.{norm}.weight", (h,)


def split(name):
    """How tensor parallelism splits a tensor, by its name."""
    if ".experts." in name:
        return "expert"
    if any(part in name for part in ("norm", "router", "_a_proj", "shared_gate", "positions")):
        return "replicated"
    if name.endswith((".o_proj.bias", ".down_proj.bias")):
        return "replicated"
    return "tp"


def recount(config, mtp=True):
    totals = {"tp": 0, "replicated": 0, "expert": 0}
    correction = 0
    for name, shape in model_tensors(config, mtp):
        if name.endswith("router.correction"):
            correction += prod(shape)
        else:
            totals[split(name)] += prod(shape)
    return totals, correction


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_catalogue_recounted_tensor_by_tensor(entry):
    totals, correction = recount(entry.config)
    shards = parameter_shards(entry.model)
    assert {"tp": shards.tp, "replicated": shards.replicated, "expert": shards.expert} == totals
    assert router_bias_count(entry.model) == correction
    assert parameter_count(entry.model, trainable=False) == sum(totals.values()) + correction
    without, _ = recount(entry.config, mtp=False)
    assert parameter_count(entry.model, include_mtp=False) == sum(without.values())


def base(draw):
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    return {
        "hidden_size": heads * draw(st.sampled_from([2, 4, 8])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([k for k in (1, 2, 3, 6) if heads % k == 0])),
        "vocab_size": draw(st.integers(1, 50)),
        "max_position_embeddings": draw(st.integers(1, 30)),
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def dense_configs(draw):
    config = base(draw)
    config["model_type"] = family = draw(
        st.sampled_from(
            ["llama", "mistral", "qwen2", "qwen3", "glm", "glm4", "internlm2", "chatglm", "gpt", "gpt_neox"]
        )
    )
    if family in GPT:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if family == "llama":
        config |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    if family in ("qwen3", "glm", "glm4"):
        config |= {"attention_bias": draw(st.booleans()), "head_dim": draw(st.integers(1, 9))}
    if family == "internlm2":
        config["bias"] = draw(st.booleans())
    if family == "chatglm":
        config |= {"add_qkv_bias": draw(st.booleans()), "multi_query_attention": True}
    return config


@st.composite
def mixture_configs(draw):
    config = base(draw)
    config["model_type"] = family = draw(
        st.sampled_from(["mixtral", "qwen2_moe", "qwen3_moe", "deepseek", "deepseek_v2", "deepseek_v3", "glm4_moe"])
    )
    experts = draw(st.integers(1, 6))
    config |= {"num_experts_per_tok": draw(st.integers(1, experts)), "moe_intermediate_size": draw(st.integers(1, 12))}
    config[
        "num_local_experts" if family == "mixtral" else "num_experts" if "qwen" in family else "n_routed_experts"
    ] = experts
    if "qwen" in family:
        config |= {"decoder_sparse_step": draw(st.integers(1, 3)), "mlp_only_layers": draw(st.lists(st.integers(0, 4)))}
        config |= {"shared_expert_intermediate_size": draw(st.integers(1, 12)), "head_dim": draw(st.integers(1, 9))}
    if family in DEEPSEEK or family == "glm4_moe":
        config |= {"first_k_dense_replace": draw(st.integers(0, 6)), "n_shared_experts": draw(st.integers(0, 3))}
    if family in ("deepseek_v3", "glm4_moe"):
        config["num_nextn_predict_layers"] = draw(st.integers(0, 2))
    if family in ("deepseek_v2", "deepseek_v3"):
        config |= {
            "q_lora_rank": draw(st.one_of(st.none(), st.integers(1, 9))),
            "kv_lora_rank": draw(st.integers(1, 9)),
        }
        config |= {name: draw(st.integers(1, 5)) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    if family == "glm4_moe":
        config |= {"attention_bias": draw(st.booleans()), "use_qk_norm": draw(st.booleans())}
    return config


@settings(max_examples=300, deadline=None)
@given(st.one_of(dense_configs(), mixture_configs()))
def test_any_config_recounted_tensor_by_tensor(config):
    model = from_config(config)
    totals, correction = recount(config)
    shards = parameter_shards(model)
    assert {"tp": shards.tp, "replicated": shards.replicated, "expert": shards.expert} == totals
    assert router_bias_count(model) == correction


@settings(max_examples=100, deadline=None)
@given(mixture_configs())
def test_active_parameters_are_those_of_a_model_with_topk_experts(config):
    model = from_config(config)
    if model.moe is None:
        assert active_parameter_count(model) == parameter_count(model)
        return
    fewer = replace(model, moe=replace(model.moe, experts=model.moe.topk))
    sparse = model.layer_kinds.count("moe") + (model.mtp_layers if model.layer_kinds[-1] == "moe" else 0)
    routers = sparse * model.hidden * (model.moe.experts - model.moe.topk)
    assert active_parameter_count(model) == parameter_count(fewer) + routers
