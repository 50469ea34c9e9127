"""What a config.json says beside the sizes: nested parts, windows, other kinds of layers, quantised weights, heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from planner.errors import SpecError
from planner.model.fields import Fields, check_size
from planner.model.records import Model

#: Where multimodal configs keep their language model, in the order tried.
_TEXT: Final = ("text_config", "llm_config", "language_config", "thinker_config")
#: Parts of a multimodal config that are not the language model.
_OTHER_PARTS: Final = ("vision_config", "audio_config", "vit_config", "talker_config", "code2wav_config", "visual")
#: Families whose published networks use the window their config names.
WINDOWED: Final = frozenset({
    "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_vl_text",
    "qwen2_5_vl", "qwen2_5_vl_text", "gemma2", "gemma3_text", "gpt_oss", "phi3", "phimoe", "exaone4", "cohere2",
    "starcoder2", "olmo3", "llama4_text", "smollm3",
})  # fmt: skip
#: Every n-th layer sees the whole sequence where the config lists no layer types.
_PERIOD: Final = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "exaone4": 4, "cohere2": 4, "olmo3": 4, "llama4_text": 4}
_ATTENDING: Final = frozenset({
    "full_attention", "sliding_attention", "chunked_attention", "attention", "deepseek_sparse_attention",
})  # fmt: skip


def text_part(mapping: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The language model's fields and a sentence for each part left out.

    A nested part takes ``tie_word_embeddings`` from the outer config where it has none.
    """
    others = [name for name in _OTHER_PARTS if isinstance(mapping.get(name), Mapping)]
    left_out = (f"Only the language part is planned; {', '.join(others)} is left out.",) if others else ()
    for name in _TEXT:
        nested = mapping.get(name)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise SpecError(f"{where}: {name} is {nested!r}; it must be an object with the language model's sizes.")
        inner, more = text_part(nested, where)
        tied = mapping.get("tie_word_embeddings")
        if tied is not None and "tie_word_embeddings" not in inner:
            inner = {**inner, "tie_word_embeddings": tied}
        return inner, tuple(dict.fromkeys((*left_out, *more))) or (f"Only its {name} is planned.",)
    return mapping, left_out


def refuse_other_layers(fields: Fields) -> None:
    """Refuse layer kinds beyond full and windowed attention.

    Raises
    ------
    SpecError
    """
    odd = sorted(set(_layer_types(fields)) - _ATTENDING)
    if odd:
        raise SpecError(
            f"{fields.where}: layer_types has {', '.join(odd)}, and only layers of full, sliding or chunked attention "
            "can be planned. Ways out: --as FAMILY reads the sizes as if every layer were that family's; --layers "
            "--hidden --heads --vocab ... give them one by one."
        )


def _layer_types(fields: Fields) -> tuple[str, ...]:
    listed = fields.mapping.get("layer_types") or ()
    if not isinstance(listed, (list, tuple)) or not all(isinstance(kind, str) for kind in listed):
        raise SpecError(f"{fields.where}: layer_types is {listed!r}; it must be a list of words.")
    return tuple(listed)


def with_windows(model: Model, fields: Fields) -> Model:
    """The model with the layers whose attention is limited to a window or a chunk of the sequence."""
    family = fields.text("model_type")
    chunked = family == "llama4_text"
    name = "attention_chunk_size" if chunked else "sliding_window"
    value = fields.mapping.get(name)
    off = fields.mapping.get("use_sliding_window") is False or value in (None, 0, -1, False)
    if off or family not in WINDOWED:
        return model
    window = check_size(value, "max_seq", f"{fields.where}: {name}")
    count = _windowed_layers(model, fields, family)
    return replace(model, window=window if count else 0, windowed_layers=count, chunked_windows=chunked and count > 0)


def _windowed_layers(model: Model, fields: Fields, family: str) -> int:
    kinds = _layer_types(fields)
    if kinds:
        if len(kinds) != model.layers:
            raise SpecError(f"{fields.where}: layer_types names {len(kinds)} layers, the model has {model.layers}.")
        return sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    if family == "smollm3":
        return 0
    if family.startswith("qwen"):  # use_sliding_window is off unless given
        full = fields.size("layers", "max_window_layers", default=28, minimum=0)
        return max(0, model.layers - full) if fields.flag("use_sliding_window", default=False) else 0
    if family == "exaone4" and isinstance(fields.mapping.get("sliding_window_pattern"), str):
        pattern = fields.mapping["sliding_window_pattern"]
        near = (pattern[i % len(pattern)] == "L" and i != model.layers - 1 for i in range(model.layers))
        return sum(near) if pattern else 0
    period = _PERIOD.get(family)
    if period is None:
        return model.layers
    period = fields.size(
        "layers", "sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval", default=period
    )
    return model.layers - model.layers // period


def notes(model: Model, text: Mapping[str, Any], outer: Mapping[str, Any], as_family: str | None) -> tuple[str, ...]:
    """Sentences on what the config says and the shape does not hold."""
    said = []
    if as_family is not None and text.get("model_type") != as_family:
        said.append(
            f"Read as {as_family}, as asked; the config says {text.get('model_type')!r}, whose network may differ."
        )
    if as_family is not None and (odd := sorted({str(k) for k in text.get("layer_types") or ()} - _ATTENDING)):
        said.append(f"Its layers of {', '.join(odd)} are planned as ordinary attention.")
    if model.windowed_layers:
        kind = "chunks" if model.chunked_windows else "a window"
        said.append(
            f"Attention of {model.windowed_layers} layers is limited to {kind} of {model.window} tokens: model FLOP "
            "count that, the predicted time is that of whole attention."
        )
    elif not _off(text) and text.get("model_type") not in WINDOWED:
        said.append(f"sliding_window={text['sliding_window']} is not part of this family's network; not used.")
    if model.attention.index_heads:
        said.append(
            "The sparse indexer's weights and products are counted, what it keeps for the backward pass is not; the "
            "predicted time is that of whole attention."
        )
    said += _weights(text, outer)
    return tuple(said)


def _off(text: Mapping[str, Any]) -> bool:
    return text.get("sliding_window") in (None, 0, -1, False) or text.get("use_sliding_window") is False


def _weights(text: Mapping[str, Any], outer: Mapping[str, Any]) -> list[str]:
    said = []
    quantised = outer.get("quantization_config") or text.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "") if isinstance(quantised, Mapping) else ""
        said.append(f"The published weights are quantised ({method or 'quantization_config'}); training is not.")
    names = outer.get("architectures") or ()
    for name in names if isinstance(names, (list, tuple)) else ():
        if isinstance(name, str) and name.endswith(("Classification", "RewardModel", "QuestionAnswering")):
            said.append(f"{name}: its own small head is not counted, the language model's head is.")
    return said
