"""What a config says beside its sizes is used, noted in the answer, or refused: never ignored in silence."""

from __future__ import annotations

import json

import pytest

from planner import inputs
from planner.dialects.families import check_family, check_windows, targets_for
from planner.errors import EmitError, SpecError
from planner.model.huggingface import WITHOUT_FILES
from planner.model.load import MODEL_TYPES, from_config, from_file, with_overrides
from planner.model.operators import attention_flop_per_token, keys_seen, parameter_count

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
#: A vision-language model of the 32B class, the shape published as Qwen3-VL-32B.
VISION = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    },
    "vision_config": {"model_type": "qwen3_vl", "depth": 27, "hidden_size": 1152},
}  # fmt: skip


def test_the_language_part_is_planned_and_the_vision_part_named():
    model = from_config(VISION)
    assert parameter_count(model) == 32_762_123_264
    assert model.family == "qwen3"
    assert model.note == "Only the language part is planned; vision_config is left out."


def test_the_text_part_alone_is_the_same_shape():
    alone = from_config(VISION["text_config"])
    assert parameter_count(alone) == 32_762_123_264
    assert alone.note == ""


@pytest.mark.parametrize("where", ["text_config", "llm_config", "language_config"])
def test_nested_parts_take_tied_tables_from_outside(where):
    assert from_config({"model_type": "any_vl", "tie_word_embeddings": True, where: LLAMA}).tied_embeddings
    inner = LLAMA | {"tie_word_embeddings": False}
    assert not from_config({"model_type": "any_vl", "tie_word_embeddings": True, where: inner}).tied_embeddings


def test_a_part_within_a_part():
    omni = {"model_type": "omni", "thinker_config": {"text_config": LLAMA, "audio_config": {}, "vision_config": {}}}
    assert "vision_config, audio_config" in from_config(omni).note


def test_a_nested_part_that_is_no_object():
    with pytest.raises(SpecError, match="text_config is 5; it must be an object"):
        from_config({"model_type": "any_vl", "text_config": 5})


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, 32),
        ({"model_type": "mistral", "sliding_window": None}, 0, 0),
        ({"model_type": "qwen2", "sliding_window": 4096}, 0, 0),  # use_sliding_window is off unless given
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 20}, 64, 12),
        ({"model_type": "gemma2", "sliding_window": 4096}, 4096, 16),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 512, 27),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 4}, 512, 24),
        ({"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}, 4096, 24),
        ({"model_type": "olmo3", "sliding_window": 64, "layer_types": [*["sliding_attention"] * 31, "full_attention"]},
         64, 31),
        ({"sliding_window": 4096}, 0, 0),  # Llama has none
    ],
)  # fmt: skip
def test_windows(changes, window, layers):
    model = from_config(LLAMA | changes)
    assert (model.window, model.windowed_layers) == (window, layers)


def test_a_window_the_family_does_not_have_is_noted():
    note = from_config(LLAMA | {"sliding_window": 4096}).note
    assert note == "sliding_window=4096 is not part of this family's network; not used."


@pytest.mark.parametrize("value", ["4096", -5, True, 1.5])
def test_an_illegal_window(value):
    with pytest.raises(SpecError, match="sliding_window"):
        from_config(LLAMA | {"model_type": "mistral", "sliding_window": value})


def test_model_flop_count_the_window():
    whole, near = (
        from_config(LLAMA | {"model_type": "gemma2"}),
        from_config(LLAMA | {"model_type": "gemma2", "sliding_window": 1024}),
    )
    each = 2 * 32 * 256
    assert attention_flop_per_token(whole, 4096) == 2048 * 2 * each
    assert attention_flop_per_token(near, 4096) == (2048 + 896) / 2 * 2 * each
    assert attention_flop_per_token(near, 512) == attention_flop_per_token(whole, 512)


@pytest.mark.parametrize(("seq", "window"), [(64, 8), (64, 64), (50, 7), (9, 30)])
def test_keys_seen_are_the_mean_of_a_counted_mask(seq, window):
    """Half a key a token is the convention's difference from the counted mask."""
    rows = [min(i + 1, window) for i in range(seq)]
    width = min(window, seq)
    assert keys_seen(seq, window) == pytest.approx(sum(rows) / seq - width / (2 * seq))
    chunk = sum(i % width + 1 for i in range(seq - seq % width)) / (seq - seq % width)
    assert keys_seen(seq, window, chunked=True) == chunk - 0.5


def test_other_layers_are_refused_with_a_way_out_and_read_as_asked():
    odd = LLAMA | {"layer_types": ["linear_attention", "full_attention"] * 16}
    with pytest.raises(SpecError, match="layer_types has linear_attention.*--as FAMILY.*--layers --hidden"):
        from_config(odd)
    model = from_config(odd, as_family="llama")
    assert model.layers == 32
    assert "linear_attention are planned as ordinary attention" in model.note


def test_an_unknown_family_has_a_way_out():
    unknown = LLAMA | {"model_type": "someone_new"}
    with pytest.raises(SpecError, match="'someone_new' is not known.*--as FAMILY.*--layers --hidden"):
        from_config(unknown)
    model = from_config(unknown, as_family="llama")
    assert parameter_count(model) == parameter_count(from_config(LLAMA))
    assert model.note == "Read as llama, as asked; the config says 'someone_new', whose network may differ."
    with pytest.raises(SpecError, match="--as nothing is not a family that is known"):
        from_config(unknown, as_family="nothing")


def test_quantised_weights_and_classification_heads_are_noted():
    note = from_config(LLAMA | {"quantization_config": {"quant_method": "fp8"}}).note
    assert note == "The published weights are quantised (fp8); training is not."
    note = from_config(LLAMA | {"architectures": ["LlamaForSequenceClassification"]}).note
    assert "LlamaForSequenceClassification: its own small head is not counted" in note
    assert from_config(LLAMA | {"architectures": ["LlamaForCausalLM"]}).note == ""


def test_a_key_given_twice(tmp_path):
    path = tmp_path / "config.json"
    text = json.dumps(LLAMA)
    path.write_text(text[:-1] + ', "hidden_size": 5120}')
    with pytest.raises(SpecError, match="gives 'hidden_size' twice, as 4096 and 5120; keep one"):
        from_file(path)
    path.write_text(text[:-1] + ', "hidden_size": 4096}')
    assert from_file(path).hidden == 4096


def test_fewer_layers_keep_the_share_of_windows():
    model = with_overrides(from_config(LLAMA | {"model_type": "gemma2", "sliding_window": 1024}), layers=8)
    assert (model.layers, model.windowed_layers, model.window) == (8, 4, 1024)
    one = with_overrides(model, layers=1)
    assert (one.windowed_layers, one.window) == (0, 0)


def test_files_refuse_a_window_shorter_than_the_sequence():
    model = from_config(LLAMA | {"model_type": "mistral", "sliding_window": 4096})
    check_windows(model, "mindspeed", 4096)
    with pytest.raises(EmitError, match="32 layers see 4096 tokens.*on all 8192"):
        check_windows(model, "mindspeed", 8192)


#: Features that no target's files can say; a family that has one of them must not be in any target's list.
RARE = ("norm_whole", "sinks", "index_heads")


def test_no_target_holds_a_family_with_features_it_cannot_write():
    sizes = LLAMA | {
        "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "n_routed_experts": 4, "first_k_dense_replace": 0, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 8, "index_n_heads": 2, "index_head_dim": 4, "index_topk": 8,
    }  # fmt: skip
    found = 0
    for name in MODEL_TYPES:
        try:
            model = from_config(sizes | {"model_type": name})
        except SpecError:
            continue
        rare = any(getattr(model.attention, field) for field in RARE)
        odd = rare or model.embedding_norm or model.norms_per_layer == 1 or bool(model.moe and model.moe.expert_bias)
        if odd:
            found += 1
            assert targets_for(model) == ()
            with pytest.raises(EmitError, match="No target trains it"):
                check_family(model, "mindspeed")
    assert found >= 6


def test_as_family_from_python(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": "someone_new"}))
    assert inputs.model_for(path, "llama").family == "llama"
    with pytest.raises(SpecError, match="as_family='llama' says how to read a config.json; '70b-of-mine' is none"):
        inputs.model_for("70b-of-mine", "llama")


def test_families_without_files_say_so():
    for name in MODEL_TYPES:
        held = name not in WITHOUT_FILES
        try:
            model = from_config(LLAMA | {"model_type": name})
        except SpecError:
            continue
        assert ("no files are written for it" in model.note) is not held
        if not held:
            assert targets_for(model) == ()
