"""Hugging Face config.json -> `Model`: the door, and the readers of families that the frameworks here train.

What a family's network holds is read off its ``modeling_*.py`` (transformers 4.57; internlm2, chatglm and baichuan:
their remote code).  Fields that do not change tensor shapes are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from planner.errors import SpecError
from planner.model import configs, hybrids
from planner.model.families import READERS as NEWER
from planner.model.fields import Fields
from planner.model.operators import parameter_count
from planner.model.pieces import (
    FFN,
    HIDDEN,
    MAX_SEQ,
    attention_of,
    common,
    dense,
    fine_grained_moe,
    latent_attention,
    layers_of,
    mixture,
    with_indexer,
)
from planner.model.records import DENSE, MOE, LayerKind, Model, Moe
from planner.units import format_count

#: More parameters than this are refused: nothing of the kind has been proposed, a size must be wrong.
MAX_PARAMETERS: Final = 10**14

#: What a user can do with a config that is not read.
WAYS: Final = (
    "Ways out: --as FAMILY reads its sizes as those of a known family; --layers --hidden --heads --vocab ... give them "
    "one by one."
)


def from_config(mapping: Mapping[str, Any], *, name: str = "", source: str = "", as_family: str | None = None) -> Model:
    """Model of a parsed Hugging Face config.

    Of a multimodal config the language part is taken.  What the config says beyond the shape (quantised weights, a
    classification head, a vision part) is in the model's ``note``.

    Parameters
    ----------
    mapping : mapping
        The config's fields; ``model_type`` picks the family (see `MODEL_TYPES`).
    name : str
        Name to report; the model type if empty.
    source : str
        Where the config comes from, for messages and the plan.
    as_family : str, optional
        Read the sizes as this family's, whatever ``model_type`` says.

    Raises
    ------
    SpecError
        An unknown family, layers that no framework here trains, a field missing or illegal; the message names the way
        out.

    Examples
    --------
    >>> from_config({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    ...              "num_attention_heads": 32, "vocab_size": 32000}).attention.head_dim
    128
    """
    where = source or name or "config.json"
    text, left_out = configs.text_part(mapping, where)
    model_type = text.get("model_type") if as_family is None else as_family
    if not isinstance(model_type, str):
        raise SpecError(f"{where} lacks the field 'model_type'; known: {', '.join(MODEL_TYPES)}. {WAYS}")
    reader = READERS.get(model_type)
    if reader is None:
        raise SpecError(_unknown(model_type, text, where, as_family is not None))
    fields = Fields({**text, "model_type": model_type}, where)
    try:
        if as_family is None:
            configs.refuse_other_layers(fields)
        model = reader(fields, name or model_type, source or name or model_type)
        model = configs.with_windows(model, fields)
        notes = (*left_out, *_files_note(model_type), *configs.notes(model, text, mapping, as_family))
        return sane(replace(model, note=" ".join(notes)))
    except SpecError as error:
        raise SpecError(str(error) if where in str(error) else f"{where}: {error}") from None


def _files_note(family: str) -> tuple[str, ...]:
    """Said of families that no target's files hold."""
    if family not in WITHOUT_FILES:
        return ()
    return (
        f"A plan of {family}'s tensors; no files are written for it (--as FAMILY plans it as a family that has some).",
    )


def _unknown(model_type: str, text: Mapping[str, Any], where: str, asked: bool) -> str:
    if asked:
        return f"--as {model_type} is not a family that is known; known: {', '.join(MODEL_TYPES)}."
    try:
        held = hybrids.describe(Fields(text, where))
    except SpecError:
        held = ""
    if held:
        return f"{where}: {held} {WAYS}"
    return f"{where}: model_type '{model_type}' is not known; known: {', '.join(MODEL_TYPES)}. {WAYS}"


def sane(model: Model) -> Model:
    """The model itself, unless its sizes multiply to an absurd number of parameters."""
    count = parameter_count(model)
    if count > MAX_PARAMETERS:
        raise SpecError(
            f"{model.name} comes to {format_count(count)} parameters ({model.layers} layers of hidden {model.hidden}); "
            f"legal: up to {format_count(MAX_PARAMETERS)}. Is one of the sizes wrong?"
        )
    return model


# ---------------------------------------------------------------------------------------------------- families


def _llama(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias)
    return dense(fields, name, source, "llama", attention, mlp_bias=fields.flag("mlp_bias", default=False))


def _mistral(fields: Fields, name: str, source: str) -> Model:
    return dense(fields, name, source, "mistral", attention_of(fields))


def _qwen2(fields: Fields, name: str, source: str) -> Model:
    return dense(fields, name, source, "qwen2", attention_of(fields, qkv_bias=True))


def _qwen3(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias, qk_norm=True, absent_head_dim=128)
    return dense(fields, name, source, "qwen3", attention)


def _telechat3(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    return dense(fields, name, source, "telechat3", attention_of(fields, qkv_bias=bias, absent_head_dim=128))


def _internlm2(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("bias", default=False)
    return dense(fields, name, source, "internlm2", attention_of(fields, qkv_bias=bias, output_bias=bias))


def _baichuan(fields: Fields, name: str, source: str) -> Model:
    return dense(fields, name, source, "baichuan", attention_of(fields, grouped=False))


def _glm(fields: Fields, name: str, source: str) -> Model:
    family = fields.text("model_type")
    attention = attention_of(fields, qkv_bias=fields.flag("attention_bias", default=True), absent_head_dim=128)
    return dense(fields, name, source, family, attention, norms_per_layer=4 if family == "glm4" else 2)


def _chatglm(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("add_bias_linear", default=False)
    grouped = fields.flag("multi_query_attention", default=False)
    attention = attention_of(
        fields, qkv_bias=bias or fields.flag("add_qkv_bias", default=False), output_bias=bias, grouped=grouped
    )
    return dense(fields, name, source, "chatglm", attention, mlp_bias=bias)


def _gpt(fields: Fields, name: str, source: str) -> Model:
    rotary = fields.text("model_type") == "gpt_neox"
    bias = fields.flag("attention_bias", default=True)
    hidden = fields.size("hidden", *HIDDEN)
    return Model(
        name=name,
        family="gpt_neox" if rotary else "gpt",
        source=source,
        attention=attention_of(fields, qkv_bias=bias, output_bias=bias, grouped=False),
        ffn=fields.size("ffn", *FFN, default=4 * hidden),
        layer_kinds=(DENSE,) * layers_of(fields),
        gated_mlp=False,
        mlp_bias=True,
        norm_bias=True,
        learned_positions=0 if rotary else fields.size("max_seq", *MAX_SEQ),
        **common(fields, tied=not rotary),
    )


def _qwen_moe_kinds(fields: Fields) -> tuple[LayerKind, ...]:
    """MoE where the index is not listed as dense and its successor is a multiple of ``decoder_sparse_step``."""
    step = fields.size("layers", "decoder_sparse_step", default=1)
    listed = fields.mapping.get("mlp_only_layers") or ()
    if not isinstance(listed, (list, tuple)) or not all(isinstance(i, int) for i in listed):
        raise SpecError(f"{fields.where}: mlp_only_layers is {listed!r}; it must be a list of layer indices.")
    without = frozenset(listed)
    return tuple(MOE if i not in without and (i + 1) % step == 0 else DENSE for i in range(layers_of(fields)))


def _qwen_moe(fields: Fields, name: str, source: str) -> Model:
    second = fields.text("model_type") == "qwen2_moe"
    bias = fields.flag("qkv_bias" if second else "attention_bias", default=second)
    moe = Moe(
        experts=fields.size("experts", "num_experts"),
        topk=fields.size("topk", "num_experts_per_tok"),
        expert_ffn=fields.size("expert_ffn", "moe_intermediate_size"),
        shared_ffn=fields.size("shared_ffn", "shared_expert_intermediate_size") if second else 0,
        shared_gate=second,
    )
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias and not second, qk_norm=not second)
    family = "qwen2_moe" if second else "qwen3_moe"
    return mixture(fields, name, source, family, attention, _qwen_moe_kinds(fields), moe)


def _mixtral(fields: Fields, name: str, source: str) -> Model:
    moe = Moe(
        experts=fields.size("experts", "num_local_experts"),
        topk=fields.size("topk", "num_experts_per_tok"),
        expert_ffn=fields.size("expert_ffn", "intermediate_size"),
    )
    kinds: tuple[LayerKind, ...] = (MOE,) * layers_of(fields)
    return mixture(fields, name, source, "mixtral", attention_of(fields), kinds, moe)


def _deepseek(fields: Fields, name: str, source: str) -> Model:
    model_type = fields.text("model_type")
    third = model_type not in ("deepseek", "deepseek_v2")
    biased = fields.text("topk_method", "noaux_tc" if third else "greedy") == "noaux_tc"
    kinds, moe = fine_grained_moe(fields, router_bias=biased)
    bias = fields.flag("attention_bias", default=False)
    latent = model_type != "deepseek" and fields.flag("use_mla", default=True)
    attention = latent_attention(fields) if latent else attention_of(fields, qkv_bias=bias, output_bias=bias)
    mtp = fields.size("mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    own = ("telechat3_moe", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite")
    family = "deepseek_v3" if third and model_type not in own else model_type
    if model_type in ("deepseek_v32", "glm_moe_dsa"):
        attention = with_indexer(attention, fields)
    return mixture(fields, name, source, family, attention, kinds, moe, mtp_layers=mtp)


def _glm4_moe(fields: Fields, name: str, source: str) -> Model:
    kinds, moe = fine_grained_moe(fields, router_bias=True)
    attention = attention_of(
        fields,
        qkv_bias=fields.flag("attention_bias", default=False),
        qk_norm=fields.flag("use_qk_norm", default=False),
    )
    mtp = fields.size("mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    return mixture(fields, name, source, "glm4_moe", attention, kinds, moe, mtp_layers=mtp)


READERS: Final[dict[str, Callable[[Fields, str, str], Model]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_vl": _qwen2,
    "qwen2_vl_text": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "qwen3_moe": _qwen_moe,
    "qwen3_vl_moe_text": _qwen_moe,
    "qwen3_omni_moe_text": _qwen_moe,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "deepseek_v32": _deepseek,
    "glm_moe_dsa": _deepseek,
    "telechat3": _telechat3,
    "telechat3_moe": _deepseek,
    "glm": _glm,
    "glm4": _glm,
    "glm4_moe": _glm4_moe,
    "glm4v_moe_text": _glm4_moe,
    "glm4_moe_lite": _deepseek,
    "chatglm": _chatglm,
    "internlm2": _internlm2,
    "baichuan": _baichuan,
    "gpt": _gpt,
    "gpt2": _gpt,
    "gpt_neox": _gpt,
    **NEWER,
}

#: Families that are planned by their tensors only.
WITHOUT_FILES: Final = frozenset({*NEWER, "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"})

#: Known values of ``model_type``.
MODEL_TYPES: Final = tuple(READERS)
