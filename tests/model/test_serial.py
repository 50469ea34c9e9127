"""Models to plain data and back."""

from __future__ import annotations

import json

import pytest

from planner.errors import SpecError
from planner.model.load import catalogue, find, from_dict, scaled, to_dict, with_overrides


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_round_trip_through_json(entry):
    assert from_dict(json.loads(json.dumps(to_dict(entry.model)))) == entry.model


@pytest.mark.parametrize("model", [scaled(3e12), with_overrides(find("DeepSeek-V3"), layers=7)])
def test_round_trip_of_made_models(model):
    assert from_dict(json.loads(json.dumps(to_dict(model)))) == model


def test_layer_kinds_are_runs():
    assert to_dict(find("DeepSeek-V3"))["layer_kinds"] == [["dense", 3], ["moe", 58]]
    assert to_dict(find("Llama-3.1-8B"))["moe"] is None


def test_optional_keys_may_be_left_out():
    full = to_dict(find("Llama-3.1-8B"))
    needed = ("name", "family", "hidden", "ffn", "vocab", "attention", "layer_kinds", "max_seq", "source")
    assert from_dict({key: full[key] for key in needed}) == find("Llama-3.1-8B")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": "4096"}, "model.hidden is '4096'; it must be of type int"),
        ({"hidden": True}, "model.hidden is True; it must be of type int"),
        ({"hidden": -1}, "hidden=-1 must be a positive whole number"),
        ({"tied_embeddings": 0}, "model.tied_embeddings is 0; it must be of type bool"),
        ({"name": 5}, "model.name is 5; it must be of type str"),
        ({"width": 5}, "model has the unknown key 'width'; legal: name, family, hidden"),
        ({"attention": None}, "model.attention is None; it must be an object"),
        ({"attention": {"heads": 4}}, "model.attention lacks kv_heads, head_dim, v_head_dim"),
        ({"moe": []}, r"model.moe is \[\]; it must be an object"),
        ({"moe": {"experts": 4, "topk": 2, "expert_ffn": 8}}, "must be given together"),
        ({"layer_kinds": None}, "model.layer_kinds is None; it must be a list"),
        ({"layer_kinds": [["dense", 10**12]]}, "at most 10000 layers"),
        ({"layer_kinds": [["dense", 0]]}, "it must be a list of"),
        ({"layer_kinds": ["dense"]}, "it must be a list of"),
        ({"layer_kinds": []}, "layers=0 must be a positive whole number"),
        ({"layer_kinds": [["sparse", 4]]}, r"layer kinds \['sparse'\] are not known; legal: dense, moe"),
        ({"norms_per_layer": 3}, "norms_per_layer=3; legal: 1, 2, 4"),
        ({"mtp_layers": -1}, "mtp_layers=-1 must not be negative"),
    ],
)
def test_illegal_data(changes, message):
    with pytest.raises(SpecError, match=message):
        from_dict(to_dict(find("Llama-3.1-8B")) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "linear"}, "kind='linear'; legal: gqa, mla"),
        ({"head_dim": 100}, "head_dim=100 must be qk_nope_dim"),
        ({"kv_lora_rank": 0}, "kv_lora_rank=0 must be a positive"),
        ({"kind": "gqa"}, "v_head_dim=128 must equal head_dim=192"),
        ({"kv_heads": 3}, "3 key/value heads do not divide 128"),
    ],
)
def test_illegal_attention(changes, message):
    data = to_dict(find("DeepSeek-V3"))
    with pytest.raises(SpecError, match=message):
        from_dict(data | {"attention": data["attention"] | changes})


@pytest.mark.parametrize("data", [None, 3, [], "model"])
def test_not_an_object(data):
    with pytest.raises(SpecError, match="it must be an object"):
        from_dict(data)


@pytest.mark.parametrize("key", ["name", "family", "hidden", "ffn", "vocab", "attention", "layer_kinds"])
def test_each_needed_key_is_named(key):
    data = to_dict(find("Llama-3.1-8B"))
    del data[key]
    with pytest.raises(SpecError, match=key):
        from_dict(data)
