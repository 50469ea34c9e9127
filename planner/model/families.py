"""Readers of families that no framework here has a training class for, one line or one small function each.

Their counts are exact, their plans are those of any network of the shape; writing files refuses them by name.  What a
network holds is read off its ``modeling_*.py`` (transformers 4.57, else the model's own remote code).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from planner.errors import SpecError
from planner.model.fields import Fields
from planner.model.pieces import attention_of, common, dense, fine_grained_moe, latent_attention, layers_of, mixture
from planner.model.records import DENSE, MOE, LayerKind, Model, Moe

_Reader = Callable[[Fields, str, str], Model]


def _with(fields: Fields, **defaults: Any) -> Fields:
    """The fields, the family's own defaults where they are absent."""
    return Fields({**defaults, **fields.mapping}, fields.where)


def _plain(
    *, tied: bool = False, bias: str = "", qkv_bias: str = "", default: bool = False, head_dim: int = 0, qk: str = "",
    norms: int = 2, norm_bias: bool = False, gated: bool = True, mlp_bias: str = "", **defaults: Any,
) -> _Reader:  # fmt: skip
    """Reader of a dense grouped-query family.

    Parameters
    ----------
    bias, qkv_bias, mlp_bias : str
        Field that switches biases of all attention projections, of the first only, of the MLP; "" for none.
    default : bool
        Value of these fields where they are absent.
    qk : {"", "head", "whole"}
        Norms of queries and keys: none, one width of a head, or of all heads together.
    """

    def read(given: Fields, name: str, source: str) -> Model:
        fields = _with(given, **defaults)
        both = bool(bias) and fields.flag(bias, default=default)
        first = bool(qkv_bias) and fields.flag(qkv_bias, default=default)
        attention = attention_of(
            fields,
            qkv_bias=both or first,
            output_bias=both,
            qk_norm=bool(qk),
            norm_whole=qk == "whole",
            absent_head_dim=head_dim,
        )
        return dense(
            fields,
            name,
            source,
            fields.text("model_type"),
            attention,
            tied=tied,
            norms_per_layer=norms,
            norm_bias=norm_bias,
            gated_mlp=gated,
            mlp_bias=bool(mlp_bias) and fields.flag(mlp_bias, default=default),
        )

    return read


def _command(fields: Fields, name: str, source: str) -> Model:
    """Cohere's Command: attention and MLP side by side behind one norm; Command-R+ has norms of whole queries."""
    qk = "whole" if fields.flag("use_qk_norm", default=False) else ""
    return _plain(tied=True, bias="attention_bias", norms=1, qk=qk)(fields, name, source)


def _stablelm(fields: Fields, name: str, source: str) -> Model:
    if fields.flag("qk_layernorm", default=False):
        raise SpecError(f"{fields.where}: qk_layernorm of stablelm (a norm for each head) is not known; legal: false.")
    norms = 1 if fields.flag("use_parallel_residual", default=False) else 2
    return _plain(qkv_bias="use_qkv_bias", norm_bias=True, norms=norms)(fields, name, source)


def _old(fields: Fields, name: str, source: str, **shape: Any) -> Model:
    """GPT-like: a non-gated MLP of 4 h, tied tables."""
    hidden = fields.size("hidden", "hidden_size", "n_embd", "d_model")
    kv = shape.pop("kv_heads", 0)
    attention = attention_of(
        _with(fields, num_key_value_heads=kv) if kv else fields,
        qkv_bias=shape["mlp_bias"],
        output_bias=shape["mlp_bias"],
        grouped=kv > 0,
    )
    kinds: tuple[LayerKind, ...] = (DENSE,) * layers_of(fields)
    ffn = fields.size("ffn", "ffn_dim", "n_inner", "ffn_hidden_size", "intermediate_size", default=4 * hidden)
    return Model(
        name=name, family=fields.text("model_type"), source=source, attention=attention, ffn=ffn, layer_kinds=kinds,
        gated_mlp=False, **(common(fields, tied=True) | shape),
    )  # fmt: skip


def _bloom(fields: Fields, name: str, source: str) -> Model:
    return _old(fields, name, source, mlp_bias=True, norm_bias=True, embedding_norm=True)


def _opt(fields: Fields, name: str, source: str) -> Model:
    hidden = fields.size("hidden", "hidden_size")
    if fields.mapping.get("word_embed_proj_dim", hidden) != hidden or not fields.flag(
        "do_layer_norm_before", default=True
    ):
        raise SpecError(f"{fields.where}: OPT with word_embed_proj_dim or post-norms (the 350M model) is not known.")
    rows = fields.size("max_seq", "max_position_embeddings") + 2
    return _old(fields, name, source, mlp_bias=True, norm_bias=True, learned_positions=rows)


def _bigcode(fields: Fields, name: str, source: str) -> Model:
    kv = 1 if fields.flag("multi_query", default=True) else 0
    rows = fields.size("max_seq", "n_positions")
    return _old(fields, name, source, mlp_bias=True, norm_bias=True, learned_positions=rows, kv_heads=kv)


def _mpt(fields: Fields, name: str, source: str) -> Model:
    if not fields.flag("no_bias", default=True):
        raise SpecError(f"{fields.where}: MPT with biases is not known; legal: no_bias true.")
    return _old(_with(fields, hidden_size=fields.mapping.get("d_model")), name, source, mlp_bias=False)


def _falcon(fields: Fields, name: str, source: str) -> Model:
    """Falcon-7B: one norm, one key/value head; the newer decoder: two norms, groups."""
    newer = fields.flag("new_decoder_architecture", default=False)
    heads = fields.size("heads", "num_attention_heads", "n_head")
    kv = fields.size("kv_heads", "num_kv_heads", "n_head_kv", default=heads) if newer else 1
    kv = kv if newer or fields.flag("multi_query", default=True) else heads
    parallel = fields.flag("parallel_attn", default=True)
    norms = 2 if newer or not parallel else 1
    bias = fields.flag("bias", default=False)
    return _old(fields, name, source, mlp_bias=bias, norm_bias=True, norms_per_layer=norms, kv_heads=kv)


# ------------------------------------------------------------------------------------------------------- experts


def _uniform(fields: Fields, *names: str) -> Fields:
    """The fields, lists of one value for every layer (Hunyuan) as that value."""
    changed = {}
    for name in names:
        value = fields.mapping.get(name)
        if isinstance(value, (list, tuple)):
            if len(set(map(str, value))) != 1:
                raise SpecError(f"{fields.where}: {name} differs between layers; legal: one value for all.")
            changed[name] = value[0]
    return Fields({**fields.mapping, **changed}, fields.where)


def _every_layer(fields: Fields) -> tuple[LayerKind, ...]:
    return (MOE,) * layers_of(fields)


def _experts(fields: Fields, width: str = "intermediate_size", **more: Any) -> Moe:
    return Moe(
        experts=fields.size("experts", "num_local_experts", "num_experts"),
        topk=fields.size("topk", "num_experts_per_tok", "moe_topk"),
        expert_ffn=fields.size("expert_ffn", width),
        **more,
    )


def _gpt_oss(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=True)
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias, sinks=True, absent_head_dim=64)
    return mixture(fields, name, source, "gpt_oss", attention, _every_layer(fields), _experts(fields, expert_bias=True))


def _minimax_m2(fields: Fields, name: str, source: str) -> Model:
    whole = fields.flag("use_qk_norm", default=True)
    attention = attention_of(fields, qk_norm=whole, norm_whole=whole)
    moe = _experts(fields, router_bias=fields.flag("use_routing_bias", default=True))
    return mixture(fields, name, source, "minimax_m2", attention, _every_layer(fields), moe)


def _olmoe(fields: Fields, name: str, source: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias, qk_norm=True, norm_whole=True)
    return mixture(fields, name, source, "olmoe", attention, _every_layer(fields), _experts(fields))


def _granite_moe(fields: Fields, name: str, source: str) -> Model:
    return mixture(
        fields, name, source, "granitemoe", attention_of(fields), _every_layer(fields), _experts(fields),
    )  # fmt: skip


def _llama4(fields: Fields, name: str, source: str) -> Model:
    """A shared expert as wide as a routed one; dense layers between the MoE layers have a width of their own."""
    layers, step = layers_of(fields), fields.size("layers", "interleave_moe_layer_step", default=1)
    listed = fields.mapping.get("moe_layers")
    sparse = frozenset(listed if isinstance(listed, (list, tuple)) else range(step - 1, layers, step))
    kinds: tuple[LayerKind, ...] = tuple(MOE if i in sparse else DENSE for i in range(layers))
    bias = fields.flag("attention_bias", default=False)
    moe = _experts(fields, shared_ffn=fields.size("shared_ffn", "intermediate_size"))
    ffn = fields.size("ffn", "intermediate_size_mlp", default=0, minimum=0)
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias)
    return mixture(fields, name, source, "llama4_text", attention, kinds, moe, ffn=ffn)


def _ernie_moe(fields: Fields, name: str, source: str) -> Model:
    given = _with(fields, tie_word_embeddings=True)
    kinds, moe = fine_grained_moe(given, router_bias=True)
    bias = given.flag("use_bias", default=False)
    attention = attention_of(given, qkv_bias=bias, output_bias=bias)
    return mixture(given, name, source, "ernie4_5_moe", attention, kinds, moe, mlp_bias=bias)


def _bailing(fields: Fields, name: str, source: str) -> Model:
    """Ling: version 2 has norms of queries and keys and a selection bias."""
    second = fields.text("model_type") != "bailing_moe"
    kinds, moe = fine_grained_moe(
        fields, router_bias=fields.flag("moe_router_enable_expert_bias", default=second)
    )  # fmt: skip
    bias = fields.flag("use_bias", default=False)
    qkv = fields.flag("use_qkv_bias", default=False)
    attention = attention_of(
        fields, qkv_bias=bias or qkv, output_bias=bias, qk_norm=fields.flag("use_qk_norm", default=second)
    )
    mtp = fields.size("mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    return mixture(fields, name, source, fields.text("model_type"), attention, kinds, moe, mtp_layers=mtp)


def _dots(fields: Fields, name: str, source: str) -> Model:
    kinds, moe = fine_grained_moe(fields, router_bias=True)
    bias = fields.flag("attention_bias", default=False)
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias, qk_norm=True)
    return mixture(fields, name, source, "dots1", attention, kinds, moe)


def _hunyuan_moe(fields: Fields, name: str, source: str) -> Model:
    given = _uniform(fields, "moe_intermediate_size", "moe_topk", "num_shared_expert", "num_experts")
    width = "moe_intermediate_size" if given.mapping.get("moe_intermediate_size") else "intermediate_size"
    routed = given.size("expert_ffn", width)
    shared = given.size("experts", "num_shared_expert", default=1, minimum=0) * routed
    norm = given.flag("use_qk_norm", default=True)
    bias = given.flag("attention_bias", default=False)
    attention = attention_of(given, qkv_bias=bias, output_bias=bias, qk_norm=norm)
    kinds, moe = _every_layer(given), _experts(given, width, shared_ffn=shared)
    tied = given.flag("tie_word_embeddings", default=True)
    return mixture(given, name, source, "hunyuan_v1_moe", attention, kinds, moe, tied_embeddings=tied)


def _pangu_moe(fields: Fields, name: str, source: str) -> Model:
    """Pangu Pro MoE: biases on all attention projections, shared experts without a gate."""
    bias = fields.flag("attention_bias", default=True)
    moe = _experts(
        fields, "moe_intermediate_size", shared_ffn=fields.size("shared_ffn", "shared_expert_intermediate_size")
    )
    attention = attention_of(fields, qkv_bias=bias, output_bias=bias)
    return mixture(fields, name, source, "PanguProMoE", attention, _every_layer(fields), moe)


def _pangu_ultra(fields: Fields, name: str, source: str) -> Model:
    """OpenPangu Ultra MoE: latent attention under names of its own, norms before and behind (sandwich)."""
    names = {"q_lora_rank": "attention_q_lora_dim", "kv_lora_rank": "attention_kv_lora_dim",
             "qk_nope_head_dim": "attention_qk_dim", "qk_rope_head_dim": "attention_qk_rope_dim",
             "v_head_dim": "attention_v_dim", "n_routed_experts": "num_routed_experts"}  # fmt: skip
    renamed = {new: fields.mapping[old] for new, old in names.items() if old in fields.mapping}
    given = _with(fields, **renamed)
    kinds, moe = fine_grained_moe(given, router_bias=False)
    norms = 4 if given.flag("sandwich_norm", default=False) else 2
    mtp = given.size("mtp_layers", "num_mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    return mixture(
        given, name, source, "pangu_ultra_moe", latent_attention(given), kinds, moe, norms_per_layer=norms,
        mtp_layers=mtp,
    )  # fmt: skip


def _minicpm3(fields: Fields, name: str, source: str) -> Model:
    """Dense with latent attention; value heads are hidden / heads wide."""
    hidden, heads = fields.size("hidden", "hidden_size"), fields.size("heads", "num_attention_heads")
    given = _with(fields, v_head_dim=hidden // heads)
    return dense(given, name, source, "minicpm3", latent_attention(given), tied=True)


def _mimo(fields: Fields, name: str, source: str) -> Model:
    mtp = fields.size("mtp_layers", "num_nextn_predict_layers", default=0, minimum=0)
    attention = attention_of(fields, qkv_bias=fields.flag("attention_bias", default=True))
    return dense(fields, name, source, "mimo", attention, mtp_layers=mtp)


_GEMMA3: Final[dict[str, Any]] = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}

READERS: Final[dict[str, _Reader]] = {
    "gemma": _plain(tied=True, bias="attention_bias", head_dim=256),
    "gemma2": _plain(tied=True, bias="attention_bias", head_dim=256, norms=4),
    "gemma3_text": _plain(tied=True, bias="attention_bias", head_dim=256, norms=4, qk="head", **_GEMMA3),
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "phi3": _plain(),
    "ministral": _plain(),
    "ministral3": _plain(),
    "exaone": _plain(),
    "exaone4": _plain(qk="head"),
    "nemotron": _plain(bias="attention_bias", norm_bias=True, gated=False, mlp_bias="mlp_bias"),
    "ernie4_5": _plain(tied=True, bias="use_bias", mlp_bias="use_bias"),
    "ernie4_5_moe": _ernie_moe,
    "minimax_m2": _minimax_m2,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "dots1": _dots,
    "hunyuan_v1_dense": _plain(tied=True, bias="attention_bias", qk="head"),
    "hunyuan_v1_moe": _hunyuan_moe,
    "PanguEmbedded": _plain(bias="bias", default=True),
    "PanguProMoE": _pangu_moe,
    "pangu_ultra_moe": _pangu_ultra,
    "seed_oss": _plain(qkv_bias="attention_bias", default=True, head_dim=128),
    "smollm3": _plain(tied=True, bias="attention_bias", mlp_bias="mlp_bias"),
    "granite": _plain(bias="attention_bias", mlp_bias="mlp_bias"),
    "granitemoe": _granite_moe,
    "olmo2": _plain(bias="attention_bias", qk="whole"),
    "olmo3": _plain(bias="attention_bias", qk="whole"),
    "olmoe": _olmoe,
    "cohere": _command,
    "cohere2": _plain(tied=True, bias="attention_bias", norms=1),
    "starcoder2": _plain(tied=True, bias="use_bias", mlp_bias="use_bias", default=True, norm_bias=True, gated=False),
    "stablelm": _stablelm,
    "arcee": _plain(bias="attention_bias", gated=False, mlp_bias="mlp_bias"),
    "minicpm": _plain(tied=True),
    "minicpm3": _minicpm3,
    "internlm": _plain(bias="bias", default=True),
    "internlm3": _plain(bias="bias", qkv_bias="qkv_bias", mlp_bias="bias"),
    "mimo": _mimo,
    "orion": _plain(norm_bias=True),
    "xverse": _plain(),
    "bloom": _bloom,
    "opt": _opt,
    "gpt_bigcode": _bigcode,
    "mpt": _mpt,
    "falcon": _falcon,
}
