"""Hugging Face config.json -> `Model`, one small reader per family.

What a family's network holds is read off its ``modeling_*.py`` (transformers 4.57; internlm2, chatglm and baichuan:
their remote code).  Fields that do not change tensor shapes are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from planner.errors import SpecError
from planner.model.fields import Fields
from planner.model.operators import parameter_count
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe
from planner.units import format_count

_HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS: Final = ("num_attention_heads", "n_head")
_KV_HEADS: Final = ("num_key_value_heads", "multi_query_group_num")
_FFN: Final = ("intermediate_size", "ffn_hidden_size", "n_inner")
_VOCAB: Final = ("vocab_size", "padded_vocab_size")
_MAX_SEQ: Final = ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length")

#: More parameters than this are refused: nothing of the kind has been proposed, a size must be wrong.
MAX_PARAMETERS: Final = 10**14


def from_config(mapping: Mapping[str, Any], *, name: str = "", source: str = "") -> Model:
    """Model of a parsed Hugging Face config.

    Parameters
    ----------
    mapping : mapping
        The config's fields; ``model_type`` picks the family (see `MODEL_TYPES`).
    name : str
        Name to report; the model type if empty.
    source : str
        Where the config comes from, for messages and the plan.

    Examples
    --------
    >>> from_config({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    ...              "num_attention_heads": 32, "vocab_size": 32000}).attention.head_dim
    128
    """
    where = source or name or "config.json"
    model_type = mapping.get("model_type")
    if not isinstance(model_type, str):
        raise SpecError(f"{where} lacks the field 'model_type'; known: {', '.join(MODEL_TYPES)}.")
    reader = _READERS.get(model_type)
    if reader is None:
        nested = mapping.get("text_config")
        hint = ""
        if isinstance(nested, Mapping) and nested.get("model_type") in _READERS:
            hint = f" Its text_config is a {nested['model_type']}: pass that part alone to plan the text model."
        raise SpecError(f"{where}: model_type '{model_type}' is not known; known: {', '.join(MODEL_TYPES)}.{hint}")
    try:
        return sane(reader(Fields(mapping, where), name or model_type, source or name or model_type))
    except SpecError as error:
        raise SpecError(str(error) if where in str(error) else f"{where}: {error}") from None


def sane(model: Model) -> Model:
    """The model itself, unless its sizes multiply to an absurd number of parameters."""
    count = parameter_count(model)
    if count > MAX_PARAMETERS:
        raise SpecError(
            f"{model.name} comes to {format_count(count)} parameters ({model.layers} layers of hidden {model.hidden}); "
            f"legal: up to {format_count(MAX_PARAMETERS)}. Is one of the sizes wrong?"
        )
    return model


# ------------------------------------------------------------------------------------------------------ pieces


def _attention(
    fields: Fields,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    grouped: bool = True,
    absent_head_dim: int = 0,
) -> Attention:
    """Grouped-query attention; ``absent_head_dim`` is the family's own default, 0 for hidden / heads."""
    heads = fields.size("heads", *_HEADS)
    hidden = fields.size("hidden", *_HIDDEN)
    head_dim = fields.size("head_dim", "head_dim", "kv_channels", default=0)
    if "head_dim" not in fields.mapping and not head_dim:
        head_dim = absent_head_dim
    if not head_dim:
        if hidden % heads:
            raise SpecError(
                f"{fields.where}: hidden_size={hidden} is not a multiple of num_attention_heads={heads}; "
                "give head_dim or sizes that divide."
            )
        head_dim = hidden // heads
    kv_heads = fields.size("kv_heads", *_KV_HEADS, default=heads) if grouped else heads
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )


def _latent_attention(fields: Fields) -> Attention:
    heads = fields.size("heads", *_HEADS)
    nope, rope = fields.size("head_dim", "qk_nope_head_dim"), fields.size("head_dim", "qk_rope_head_dim")
    bias = fields.flag("attention_bias", default=False)
    return Attention(
        kind="mla",
        heads=heads,
        kv_heads=heads,
        head_dim=nope + rope,
        v_head_dim=fields.size("head_dim", "v_head_dim"),
        qkv_bias=bias,
        output_bias=bias,
        q_lora_rank=fields.size("q_lora_rank", "q_lora_rank", default=0, minimum=0),
        kv_lora_rank=fields.size("kv_lora_rank", "kv_lora_rank"),
        qk_nope_dim=nope,
        qk_rope_dim=rope,
    )


def _common(fields: Fields, *, tied: bool = False) -> dict[str, Any]:
    return {
        "hidden": fields.size("hidden", *_HIDDEN),
        "vocab": fields.size("vocab", *_VOCAB),
        "max_seq": fields.size("max_seq", *_MAX_SEQ, default=0, minimum=0),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=tied),
    }


def _layers(fields: Fields) -> int:
    return fields.size("layers", *_LAYERS)


def _dense(
    fields: Fields, name: str, source: str, family: str, attention: Attention, *, tied: bool = False, **shape: Any
) -> Model:
    return Model(
        name=name,
        family=family,
        source=source,
        attention=attention,
        ffn=fields.size("ffn", *_FFN),
        layer_kinds=(DENSE,) * _layers(fields),
        **(_common(fields, tied=tied) | shape),
    )


def _mixture(
    fields: Fields,
    name: str,
    source: str,
    family: str,
    attention: Attention,
    kinds: tuple[LayerKind, ...],
    moe: Moe,
    **shape: Any,
) -> Model:
    """A model with routed experts; one whose pattern leaves no MoE layer is dense."""
    needs_ffn = DENSE in kinds
    return Model(
        name=name,
        family=family,
        source=source,
        attention=attention,
        ffn=fields.size("ffn", *_FFN) if needs_ffn else fields.size("ffn", *_FFN, default=0),
        layer_kinds=kinds,
        moe=moe if MOE in kinds else None,
        **(_common(fields) | shape),
    )


# ---------------------------------------------------------------------------------------------------- families


def _llama(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = _attention(fields, qkv_bias=bias, output_bias=bias)
    return _dense(fields, name, source, "llama", attention, mlp_bias=fields.flag("mlp_bias", default=False))


def _mistral(fields: Fields, name: str, source: str) -> Model:
    return _dense(fields, name, source, "mistral", _attention(fields))


def _qwen2(fields: Fields, name: str, source: str) -> Model:
    return _dense(fields, name, source, "qwen2", _attention(fields, qkv_bias=True))


def _qwen3(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = _attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=True, absent_head_dim=128)
    return _dense(fields, name, source, "qwen3", attention)


def _telechat3(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    return _dense(fields, name, source, "telechat3", _attention(fields, qkv_bias=bias, absent_head_dim=128))


def _internlm2(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("bias", default=False)
    return _dense(fields, name, source, "internlm2", _attention(fields, qkv_bias=bias, output_bias=bias))


def _baichuan(fields: Fields, name: str, source: str) -> Model:
    return _dense(fields, name, source, "baichuan", _attention(fields, grouped=False))


def _glm(fields: Fields, name: str, source: str) -> Model:
    family = fields.text("model_type")
    attention = _attention(fields, qkv_bias=fields.flag("attention_bias", default=True), absent_head_dim=128)
    return _dense(fields, name, source, family, attention, norms_per_layer=4 if family == "glm4" else 2)


def _chatglm(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("add_bias_linear", default=False)
    grouped = fields.flag("multi_query_attention", default=False)
    attention = _attention(
        fields, qkv_bias=bias or fields.flag("add_qkv_bias", default=False), output_bias=bias, grouped=grouped
    )
    return _dense(fields, name, source, "chatglm", attention, mlp_bias=bias)


def _gpt(fields: Fields, name: str, source: str) -> Model:
    rotary = fields.text("model_type") == "gpt_neox"
    bias = fields.flag("attention_bias", default=True)
    hidden = fields.size("hidden", *_HIDDEN)
    common = _common(fields, tied=not rotary)
    return Model(
        name=name,
        family="gpt_neox" if rotary else "gpt",
        source=source,
        attention=_attention(fields, qkv_bias=bias, output_bias=bias, grouped=False),
        ffn=fields.size("ffn", *_FFN, default=4 * hidden),
        layer_kinds=(DENSE,) * _layers(fields),
        gated_mlp=False,
        mlp_bias=True,
        norm_bias=True,
        learned_positions=0 if rotary else fields.size("max_seq", *_MAX_SEQ),
        **common,
    )


def _qwen_moe_kinds(fields: Fields) -> tuple[LayerKind, ...]:
    """MoE where the index is not listed as dense and its successor is a multiple of ``decoder_sparse_step``."""
    step = fields.size("layers", "decoder_sparse_step", default=1)
    listed = fields.mapping.get("mlp_only_layers") or ()
    if not isinstance(listed, (list, tuple)) or not all(isinstance(i, int) for i in listed):
        raise SpecError(f"{fields.where}: mlp_only_layers is {listed!r}; it must be a list of layer indices.")
    dense = frozenset(listed)
    return tuple(MOE if i not in dense and (i + 1) % step == 0 else DENSE for i in range(_layers(fields)))


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
    attention = _attention(fields, qkv_bias=bias, output_bias=bias and not second, qk_norm=not second)
    family = "qwen2_moe" if second else "qwen3_moe"
    return _mixture(fields, name, source, family, attention, _qwen_moe_kinds(fields), moe)


def _mixtral(fields: Fields, name: str, source: str) -> Model:
    moe = Moe(
        experts=fields.size("experts", "num_local_experts"),
        topk=fields.size("topk", "num_experts_per_tok"),
        expert_ffn=fields.size("expert_ffn", "intermediate_size"),
    )
    kinds: tuple[LayerKind, ...] = (MOE,) * _layers(fields)
    return _mixture(fields, name, source, "mixtral", _attention(fields), kinds, moe)


def _fine_grained_moe(fields: Fields, *, router_bias: bool) -> tuple[tuple[LayerKind, ...], Moe]:
    """Layers and experts as DeepSeek writes them: dense first, shared experts of the routed width."""
    first_dense = fields.size("layers", "first_k_dense_replace", default=0, minimum=0)
    step = fields.size("layers", "moe_layer_freq", default=1)
    width = fields.size("expert_ffn", "moe_intermediate_size")
    moe = Moe(
        experts=fields.size("experts", "n_routed_experts"),
        topk=fields.size("topk", "num_experts_per_tok"),
        expert_ffn=width,
        shared_ffn=width * fields.size("experts", "n_shared_experts", default=0, minimum=0),
        router_bias=router_bias,
    )
    kinds = tuple(MOE if i >= first_dense and i % step == 0 else DENSE for i in range(_layers(fields)))
    return kinds, moe


def _deepseek(fields: Fields, name: str, source: str) -> Model:
    model_type = fields.text("model_type")
    third = model_type not in ("deepseek", "deepseek_v2")
    biased = fields.text("topk_method", "noaux_tc" if third else "greedy") == "noaux_tc"
    kinds, moe = _fine_grained_moe(fields, router_bias=biased)
    bias = fields.flag("attention_bias", default=False)
    latent = model_type != "deepseek"
    attention = _latent_attention(fields) if latent else _attention(fields, qkv_bias=bias, output_bias=bias)
    mtp = fields.size("mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    family = "deepseek_v3" if third and model_type != "telechat3_moe" else model_type
    return _mixture(fields, name, source, family, attention, kinds, moe, mtp_layers=mtp)


def _glm4_moe(fields: Fields, name: str, source: str) -> Model:
    kinds, moe = _fine_grained_moe(fields, router_bias=True)
    attention = _attention(
        fields,
        qkv_bias=fields.flag("attention_bias", default=False),
        qk_norm=fields.flag("use_qk_norm", default=False),
    )
    mtp = fields.size("mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    return _mixture(fields, name, source, "glm4_moe", attention, kinds, moe, mtp_layers=mtp)


_READERS: Final[dict[str, Callable[[Fields, str, str], Model]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen_moe,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "telechat3": _telechat3,
    "telechat3_moe": _deepseek,
    "glm": _glm,
    "glm4": _glm,
    "glm4_moe": _glm4_moe,
    "chatglm": _chatglm,
    "internlm2": _internlm2,
    "baichuan": _baichuan,
    "gpt": _gpt,
    "gpt2": _gpt,
    "gpt_neox": _gpt,
}

#: Known values of ``model_type``.
MODEL_TYPES: Final = tuple(_READERS)
