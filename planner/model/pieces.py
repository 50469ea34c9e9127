"""Parts that readers of Hugging Face configs share: attention, experts, sizes under their several spellings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from planner.errors import SpecError
from planner.model.fields import Fields
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe

HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS: Final = ("num_key_value_heads", "multi_query_group_num")
FFN: Final = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
VOCAB: Final = ("vocab_size", "padded_vocab_size")
MAX_SEQ: Final = ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "max_seq_len")


def attention_of(
    fields: Fields,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    norm_whole: bool = False,
    sinks: bool = False,
    grouped: bool = True,
    absent_head_dim: int = 0,
) -> Attention:
    """Grouped-query attention; ``absent_head_dim`` is the family's own default, 0 for hidden / heads."""
    heads = fields.size("heads", *HEADS)
    hidden = fields.size("hidden", *HIDDEN)
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
    kv_heads = fields.size("kv_heads", *KV_HEADS, default=heads) if grouped else heads
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        norm_whole=norm_whole,
        sinks=sinks,
    )


def latent_attention(fields: Fields) -> Attention:
    """Multi-head latent attention under DeepSeek's names."""
    heads = fields.size("heads", *HEADS)
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


def with_indexer(attention: Attention, fields: Fields) -> Attention:
    """Latent attention with DeepSeek-V3.2's sparse indexer in every layer."""
    shared = fields.mapping.get("indexer_types") or ()
    if "shared" in shared or fields.mapping.get("index_topk_freq", 1) not in (1, None):
        raise SpecError(f"{fields.where}: layers that share an indexer (indexer_types, index_topk_freq) are not known; "
                        "leave the field out to count an indexer in every layer.")  # fmt: skip
    return replace(
        attention,
        index_heads=fields.size("heads", "index_n_heads"),
        index_dim=fields.size("head_dim", "index_head_dim"),
        index_topk=fields.size("max_seq", "index_topk"),
    )


def common(fields: Fields, *, tied: bool = False) -> dict[str, Any]:
    """Sizes that every family has; ``tied`` is the family's own default."""
    return {
        "hidden": fields.size("hidden", *HIDDEN),
        "vocab": fields.size("vocab", *VOCAB),
        "max_seq": fields.size("max_seq", *MAX_SEQ, default=0, minimum=0),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=tied),
    }


def layers_of(fields: Fields) -> int:
    """Number of decoder layers."""
    return fields.size("layers", *LAYERS)


def dense(
    fields: Fields, name: str, source: str, family: str, attention: Attention, *, tied: bool = False, **shape: Any
) -> Model:
    """A model without experts."""
    return Model(
        name=name,
        family=family,
        source=source,
        attention=attention,
        ffn=fields.size("ffn", *FFN),
        layer_kinds=(DENSE,) * layers_of(fields),
        **(common(fields, tied=tied) | shape),
    )


def mixture(
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
    ffn = {"ffn": fields.size("ffn", *FFN) if DENSE in kinds else fields.size("ffn", *FFN, default=0)}
    return Model(
        name=name,
        family=family,
        source=source,
        attention=attention,
        layer_kinds=kinds,
        moe=moe if MOE in kinds else None,
        **(common(fields) | ffn | shape),
    )


def fine_grained_moe(fields: Fields, *, router_bias: bool) -> tuple[tuple[LayerKind, ...], Moe]:
    """Layers and experts as DeepSeek writes them: dense first, shared experts of the routed width."""
    first_dense = fields.size(
        "layers", "first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0, minimum=0
    )
    step = fields.size("layers", "moe_layer_freq", "moe_layer_interval", default=1)
    width = fields.size("expert_ffn", "moe_intermediate_size")
    moe = Moe(
        experts=fields.size("experts", "n_routed_experts", "num_experts", "moe_num_experts", "num_local_experts"),
        topk=fields.size("topk", "num_experts_per_tok", "moe_k", "moe_topk"),
        expert_ffn=width,
        shared_ffn=width
        * fields.size(
            "experts", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, minimum=0
        ),
        router_bias=router_bias,
    )
    kinds = tuple(MOE if i >= first_dense and i % step == 0 else DENSE for i in range(layers_of(fields)))
    return kinds, moe
