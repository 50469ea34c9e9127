"""GLM and TeleChat3 MoE: what their MindFormers classes take, and what they silently do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from planner.dialects import traits
from planner.dialects.graph.read import read_graph
from planner.dialects.graph.write import render
from planner.dialects.text.yaml_read import loads
from planner.errors import EmitError, SpecError
from planner.model.load import find
from tests.dialects.samples import plan, small


def glm(**changes):
    llama = small("llama")
    attention = replace(llama.attention, kv_heads=2, qkv_bias=True)
    return replace(llama, **{"family": "glm", "attention": attention, **changes})


def config_of(chosen):
    return yaml.safe_load(render(chosen).text)


@pytest.mark.parametrize(("name", "norms"), [("GLM-4-9B", False), ("GLM-4-9B-0414", True)])
def test_sizes_of_published_models(name, norms):
    body = config_of(plan(find(name), dp=2, tp=2, pp=2))
    section = body["model"]["model_config"]
    assert (section["padded_vocab_size"], section["ffn_hidden_size"], section["multi_query_group_num"]) == (
        151552, 13696, 2,
    )  # fmt: skip
    assert section["post_self_attn_layernorm"] is section["post_mlp_layernorm"] is norms
    assert section["add_qkv_bias"] is True
    assert body["use_legacy"] is True
    assert body["train_dataset"]["input_columns"] == ["input_ids", "labels"]


def test_selective_recompute_names_operators():
    """The default patterns are Llama's and match nothing here."""
    section = config_of(plan(glm(), pp=2, full=(1, 0), selective=(2, 1)))["recompute_config"]
    assert section["recompute"] == [1, 0]
    assert section["select_recompute"] == {
        r"mlp\.activation_func\.mul": [3, 1], r"mlp\.activation_func\.silu\.silu": [3, 1],
    }  # fmt: skip
    assert config_of(plan(glm(), pp=2))["recompute_config"]["select_recompute"] is False


def test_other_patterns_than_the_planner_s_are_named_when_read():
    text = render(plan(glm(), pp=2, selective=(2, 1))).text.replace(r"silu\.silu: [2, 1]", r"silu\.silu: [1, 1]")
    assert ["operator patterns" in line for line in read_graph(loads(text)).unread] == [True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tied_embeddings": True}, "keeps embedding and head apart"),
        ({"mlp_bias": True}, "biases in MLP and output projection together"),
        ({"gated_mlp": False}, "a gated MLP"),
        ({"mtp_layers": 1}, "no MTP modules"),
        ({"learned_positions": 2048}, "rotary positions only"),
    ],
)
def test_what_the_glm_class_cannot_hold(changes, message):
    with pytest.raises(EmitError, match=message):
        render(plan(glm(**changes)))


def test_one_norm_behind_attention_only_is_not_read():
    text = render(plan(glm())).text.replace("post_mlp_layernorm: False", "post_mlp_layernorm: True")
    with pytest.raises(SpecError, match="post_mlp_layernorm"):
        read_graph(loads(text))


def test_widths_of_telechat3_moe_go_by_the_names_its_converter_takes():
    moe = replace(small("deepseek_v3"), family="telechat3_moe")
    text = render(plan(moe, tp=2, ep=2)).text
    section = yaml.safe_load(text)["model"]["model_config"]
    assert (section["qk_head_dim"], section["qk_pos_emb_head_dim"]) == (64, 32)
    assert "qk_nope_head_dim" not in section
    renamed = text.replace("qk_head_dim: 64", "qk_nope_head_dim: 64").replace("qk_pos_emb_head_dim", "qk_rope_head_dim")
    back = read_graph(loads(renamed))
    assert (back.model.attention.qk_nope_dim, back.model.attention.qk_rope_dim) == (128, 64)
    assert len(back.unread) == 1
    assert all(f"model.model_config.{name}" in back.unread[0] for name in ("qk_nope_head_dim", "qk_rope_head_dim"))


@pytest.mark.parametrize(("topk", "groups"), [(8, 8), (4, 8), (6, 0), (2, 0)])
def test_groups_only_where_the_chosen_ones_divide_the_chosen_experts(topk, groups):
    """MindFormers: `moe_router_topk` must be divisible by `moe_router_group_topk` (4 in DeepSeek-V3)."""
    model = small("deepseek_v3")
    assert traits.of(replace(model, moe=replace(model.moe, topk=topk))).groups == groups
