"""Reading Hugging Face configs: what each family's fields mean, and every way a file can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.model.load import MODEL_TYPES, find, from_config, from_file
from planner.model.operators import parameter_count

EXAMPLES = Path(__file__).parents[2] / "examples"

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
DEEPSEEK = json.loads((EXAMPLES / "deepseek-v3" / "config.json").read_text())
QWEN_MOE = json.loads((EXAMPLES / "qwen3-30b-a3b" / "config.json").read_text())


@pytest.mark.parametrize(
    ("folder", "name", "count"),
    [
        ("llama-3.1-70b", "Llama-3.1-70B", 70_553_706_496),
        ("qwen3-30b-a3b", "Qwen3-30B-A3B", 30_532_122_624),
        ("deepseek-v3", "DeepSeek-V3", 682_636_472_320),
    ],
)
def test_examples_are_the_catalogued_models(folder, name, count):
    model = from_file(EXAMPLES / folder / "config.json")
    assert parameter_count(model) == count
    known = find(name)
    assert replace(model, name=known.name, source=known.source) == known
    assert model.name == folder
    assert from_file(EXAMPLES / folder) == model


def test_all_families_of_the_scope_are_read():
    wanted = (
        "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe deepseek_v2 deepseek_v3 glm glm4 glm4_moe internlm2 gpt"
    )
    assert set(wanted.split()) <= set(MODEL_TYPES)


@pytest.mark.parametrize(
    ("changes", "head_dim"),
    [
        ({}, 128),
        ({"head_dim": 64}, 64),
        ({"head_dim": None}, 128),
        ({"hidden_size": 2048}, 64),
        ({"model_type": "mistral", "head_dim": 96}, 96),
        # families with a default of their own take it only when the field is absent
        ({"model_type": "qwen3", "hidden_size": 2048}, 128),
        ({"model_type": "qwen3", "hidden_size": 2048, "head_dim": None}, 64),
        ({"model_type": "glm4", "hidden_size": 2048}, 128),
    ],
)
def test_head_width(changes, head_dim):
    assert from_config(LLAMA | changes).attention.head_dim == head_dim


@pytest.mark.parametrize(
    ("changes", "biases"),
    [
        ({}, (False, False, False)),
        ({"attention_bias": True}, (True, True, False)),
        ({"mlp_bias": True}, (False, False, True)),
        ({"model_type": "qwen2"}, (True, False, False)),
        ({"model_type": "qwen2", "attention_bias": False}, (True, False, False)),  # no such field in this family
        ({"model_type": "qwen3", "attention_bias": True}, (True, True, False)),
        ({"model_type": "mistral", "attention_bias": True}, (False, False, False)),
        ({"model_type": "internlm2", "bias": True}, (True, True, False)),
        ({"model_type": "glm4"}, (True, False, False)),
        ({"model_type": "glm4", "attention_bias": False}, (False, False, False)),
        ({"model_type": "gpt", "max_position_embeddings": 8}, (True, True, True)),
        ({"model_type": "baichuan"}, (False, False, False)),
    ],
)
def test_biases(changes, biases):
    model = from_config(LLAMA | changes)
    assert (model.attention.qkv_bias, model.attention.output_bias, model.mlp_bias) == biases


@pytest.mark.parametrize(
    ("changes", "tied"),
    [
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"model_type": "gpt2", "n_positions": 8}, True),
        ({"model_type": "gpt2", "n_positions": 8, "tie_word_embeddings": False}, False),
        ({"model_type": "gpt_neox"}, False),
    ],
)
def test_tied_tables(changes, tied):
    assert from_config(LLAMA | changes).tied_embeddings is tied


def test_norms_and_positions():
    assert from_config(LLAMA | {"model_type": "glm4"}).norms_per_layer == 4
    assert from_config(LLAMA | {"model_type": "glm"}).norms_per_layer == 2
    gpt = from_config(LLAMA | {"model_type": "gpt", "max_position_embeddings": 2048})
    assert (gpt.learned_positions, gpt.norm_bias, gpt.gated_mlp) == (2048, True, False)
    assert from_config(LLAMA | {"model_type": "gpt_neox", "max_position_embeddings": 2048}).learned_positions == 0


def test_missing_key_value_heads_mean_one_per_head():
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert from_config(config).attention.kv_heads == 32


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, set()),
        ({"mlp_only_layers": [0, 47]}, {0, 47}),
        ({"decoder_sparse_step": 2}, set(range(0, 48, 2))),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, set(range(48)) - {i for i in range(5, 48, 3)}),
    ],
)
def test_which_qwen_layers_are_dense(changes, dense):
    kinds = from_config(QWEN_MOE | changes).layer_kinds
    assert {i for i, kind in enumerate(kinds) if kind == "dense"} == dense


def test_which_deepseek_layers_are_dense():
    kinds = from_config(DEEPSEEK | {"moe_layer_freq": 2}).layer_kinds
    assert [i for i, kind in enumerate(kinds) if kind == "moe"] == list(range(4, 61, 2))
    assert from_config(DEEPSEEK).layer_kinds == ("dense",) * 3 + ("moe",) * 58


def test_all_layers_dense_makes_a_dense_model():
    model = from_config(DEEPSEEK | {"first_k_dense_replace": 61, "num_nextn_predict_layers": 0})
    assert model.moe is None
    assert model.kinds == ("dense",)


def test_latent_attention_fields():
    attention = from_config(DEEPSEEK).attention
    assert (attention.kind, attention.head_dim, attention.v_head_dim, attention.kv_heads) == ("mla", 192, 128, 128)
    assert (attention.q_lora_rank, attention.kv_lora_rank, attention.qk_rope_dim) == (1536, 512, 64)
    assert from_config(DEEPSEEK | {"q_lora_rank": None}).attention.q_lora_rank == 0


def test_router_bias_follows_the_selection_method():
    assert from_config(DEEPSEEK).moe.router_bias
    assert not from_config(DEEPSEEK | {"topk_method": "group_limited_greedy"}).moe.router_bias
    assert not from_config(DEEPSEEK | {"model_type": "deepseek_v2", "topk_method": "greedy"}).moe.router_bias


def test_mixtral_reads_its_own_field_names():
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert from_config(config).moe.experts == 8
    with pytest.raises(SpecError, match="lacks the field 'num_local_experts'"):
        from_config(LLAMA | {"model_type": "mixtral", "num_experts": 8, "num_experts_per_tok": 2})


REQUIRED = [
    *[(LLAMA, key) for key in LLAMA if key != "num_key_value_heads"],
    *[(QWEN_MOE, key) for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "vocab_size")],
    *[
        (DEEPSEEK, key)
        for key in (
            *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"),
            *("num_experts_per_tok", "moe_intermediate_size", "intermediate_size", "num_hidden_layers"),
        )
    ],
]


@pytest.mark.parametrize(("config", "field"), REQUIRED)
@pytest.mark.parametrize("how", ["absent", "null"])
def test_a_missing_field_is_named(config, field, how):
    broken = {key: value for key, value in config.items() if key != field}
    if how == "null":
        broken[field] = None
    with pytest.raises(SpecError, match=f"mine.json lacks the field '{field}'"):
        from_config(broken, source="mine.json")


ILLEGAL = [
    ({"hidden_size": 0}, r"mine.json: hidden_size=0 is out of range; legal: a whole number from 1 to"),
    ({"hidden_size": -4096}, r"hidden_size=-4096 is out of range"),
    ({"hidden_size": 10**12}, r"hidden_size=1000000000000 is out of range"),
    ({"num_hidden_layers": 10**9}, r"num_hidden_layers=1000000000 is out of range"),
    ({"num_hidden_layers": 2.5}, r"num_hidden_layers is 2.5; it must be a whole number"),
    ({"vocab_size": "128256"}, r"vocab_size is '128256'; it must be a whole number"),
    ({"vocab_size": True}, r"vocab_size is True"),
    ({"vocab_size": [1]}, r"vocab_size is \[1\]"),
    ({"vocab_size": float("nan")}, r"vocab_size is nan"),
    ({"intermediate_size": float("inf")}, r"intermediate_size is inf"),
    ({"num_attention_heads": 48}, r"hidden_size=4096 is not a multiple of num_attention_heads=48"),
    (
        {"num_key_value_heads": 5},
        r"mine.json: 5 key/value heads do not divide 32 attention heads; legal: 1, 2, 4, 8, 16, 32",
    ),
    ({"tie_word_embeddings": "no"}, r"tie_word_embeddings is 'no'; legal: true, false"),
    ({"attention_bias": 1}, r"attention_bias is 1; legal: true, false"),
    ({"model_type": "mamba"}, r"model_type 'mamba' is not known; known: llama, mistral"),
    ({"model_type": None}, r"lacks the field 'model_type'; known: llama"),
    ({"model_type": 3}, r"lacks the field 'model_type'"),
    ({"hidden_size": 2**20, "intermediate_size": 2**22, "num_hidden_layers": 10_000}, r"comes to 1\d{5}T parameters"),
]


@pytest.mark.parametrize(("changes", "message"), ILLEGAL)
def test_illegal_fields(changes, message):
    with pytest.raises(SpecError, match=message):
        from_config(LLAMA | changes, source="mine.json")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (QWEN_MOE | {"num_experts_per_tok": 129}, r"mine.json: topk=129 is more than the 128 experts"),
        (QWEN_MOE | {"mlp_only_layers": "0"}, r"mlp_only_layers is '0'; it must be a list"),
        (QWEN_MOE | {"mlp_only_layers": ["0"]}, r"it must be a list of layer indices"),
        (QWEN_MOE | {"decoder_sparse_step": 0}, r"decoder_sparse_step=0 is out of range"),
        (DEEPSEEK | {"first_k_dense_replace": -1}, r"first_k_dense_replace=-1 is out of range"),
        (DEEPSEEK | {"topk_method": 3}, r"topk_method is 3; it must be text"),
        (DEEPSEEK | {"num_nextn_predict_layers": 100}, r"num_nextn_predict_layers=100 is out of range"),
    ],
)
def test_illegal_expert_fields(config, message):
    with pytest.raises(SpecError, match=message):
        from_config(config, source="mine.json")


def test_whole_floats_are_whole_numbers():
    assert from_config(LLAMA | {"hidden_size": 4096.0}) == from_config(LLAMA)


FILES = [
    (b"", "is empty"),
    (b"   \n", "is empty"),
    (b'{"model_type": "llama", "hidden_size": 40', r"is not valid JSON: .* at line 1, column 4\d; is the file whole"),
    (b"hidden_size: 4096", "is not valid JSON"),
    (b"[1, 2]", "holds a list, not an object"),
    (b"7", "holds a int, not an object"),
    (b"\xff\xfe\x00{", "is not a text file"),
    (b"{" * 10, "is not valid JSON"),
    (b"[" * 200_000, "is not a config.json: maximum recursion depth|is not valid JSON"),
    (b'{"vocab_size": ' + b"9" * 5000 + b"}", r"is not a config.json: Exceeds the limit|vocab_size|model_type"),
    (b"{}", "lacks the field 'model_type'"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_unusable_files(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        from_file(path)


def test_paths_that_hold_no_config(tmp_path):
    with pytest.raises(SpecError, match=r"nothing.json: no such file; give a Hugging Face config.json"):
        from_file(tmp_path / "nothing.json")
    with pytest.raises(SpecError, match=r"config.json: no such file"):
        from_file(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(SpecError, match=r"config.json is not a file"):
        from_file(tmp_path)
    with pytest.raises(SpecError, match="is not a file"):
        from_file("/dev/zero")


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "weights.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(SpecError, match="is 1073741824 bytes; a config.json has a few thousand"):
        from_file(path)


def test_a_path_too_long_is_one_error():
    with pytest.raises(SpecError, match="cannot be read: File name too long"):
        from_file("x" * 5000)


def test_byte_order_mark_is_accepted(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert parameter_count(from_file(path)) == 8_030_261_248


@pytest.mark.parametrize(
    ("own", "file", "name"),
    [
        (None, "my-model/config.json", "my-model"),
        (None, "my-model/small.json", "small"),
        ("meta-llama/Llama-3.1-8B", "my-model/config.json", "Llama-3.1-8B"),
        ("./", "my-model/config.json", "my-model"),
    ],
)
def test_the_name_of_a_file(tmp_path, own, file, name):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA | ({"_name_or_path": own} if own else {})))
    assert from_file(path).name == name
    assert from_file(path).source == str(path)
