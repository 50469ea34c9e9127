"""Shape flags of MindSpeed-LLM: the network as Megatron arguments."""

from __future__ import annotations

from collections.abc import Sequence

from planner import frameworks
from planner.dialects import traits
from planner.model.records import DENSE, MOE, Model
from planner.plan import Plan

#: Flag, value (None for a switch) and reason.
Line = tuple[str, "str | int | float | None", str]


def padded_layers(layers: Sequence[Sequence[int]]) -> tuple[int, tuple[int, ...]]:
    """Layers of a stack of equal chunks, and which of its layers do nothing.

    >>> padded_layers(((2, 2), (2, 1)))
    (8, (7,))
    """
    size = max(max(row) for row in layers)
    idle: list[int] = []
    for position, count in enumerate(count for row in layers for count in row):
        idle += range(position * size + count, (position + 1) * size)
    return size * sum(len(row) for row in layers), tuple(idle)


def shape_flags(plan: Plan) -> list[Line]:
    """Every flag that says what the network looks like."""
    model, att, own = plan.model, plan.model.attention, traits.of(plan.model)
    layers = padded_layers(plan.strategy.layers)[0] if plan.strategy.vpp > 1 else model.layers
    lines: list[Line] = [
        ("--num-layers", layers, f"{model.layers} and those that do nothing" if layers != model.layers else ""),
        ("--hidden-size", model.hidden, ""),
        ("--ffn-hidden-size", model.ffn or model.hidden * 4, ""),
        ("--num-attention-heads", att.heads, ""),
        ("--seq-length", plan.workload.seq, ""),
        ("--max-position-embeddings", model.learned_positions or max(plan.workload.seq, model.max_seq), ""),
        ("--padded-vocab-size", vocabulary(plan), f"{model.vocab} tokens" if vocabulary(plan) != model.vocab else ""),
        ("--make-vocab-size-divisible-by", 1, ""),
        ("--normalization", "LayerNorm" if model.norm_bias else "RMSNorm", ""),
        ("--norm-epsilon", own.norm_epsilon, f"from {own.source}"),
        ("--init-method-std", own.initializer_range, ""),
        ("--attention-dropout", 0.0, ""),
        ("--hidden-dropout", 0.0, ""),
        *_positions(model, own.rotary_base, own.source),
        *_attention(model),
    ]
    switches = {
        "--swiglu": model.gated_mlp,
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--disable-bias-linear": not model.mlp_bias,
    }
    lines += [(flag, None, "") for flag, on in switches.items() if on]
    return lines + _experts(model, own)


def vocabulary(plan: Plan) -> int:
    """Rows of the embedding, a multiple of tp."""
    return frameworks.padded_vocab(frameworks.of_target("mindspeed", legacy=False), plan.model.vocab, plan.strategy.tp)


def _positions(model: Model, base: float, source: str) -> list[Line]:
    if model.learned_positions:
        return [("--position-embedding-type", "learned_absolute", "")]
    return [
        ("--position-embedding-type", "rope", ""),
        ("--rotary-base", int(base), f"from {source}"),
        ("--use-rotary-position-embeddings", None, ""),
    ]


def _attention(model: Model) -> list[Line]:
    att = model.attention
    lines: list[Line] = []
    if att.kind == "mla":
        lines += [
            ("--multi-latent-attention", None, ""),
            ("--qk-head-dim", att.qk_nope_dim, ""),
            ("--qk-pos-emb-head-dim", att.qk_rope_dim, ""),
            ("--kv-lora-rank", att.kv_lora_rank, ""),
            ("--v-head-dim", att.v_head_dim, ""),
        ]
        if att.q_lora_rank:
            lines.append(("--q-lora-rank", att.q_lora_rank, ""))
    else:
        if att.kv_heads != att.heads:
            lines += [("--group-query-attention", None, ""), ("--num-query-groups", att.kv_heads, "key/value heads")]
        if att.head_dim * att.heads != model.hidden:
            lines.append(("--kv-channels", att.head_dim, "width of a head"))
    if att.qk_norm or att.kind == "mla":
        lines.append(("--qk-layernorm", None, ""))
    if att.qkv_bias and not model.mlp_bias:
        lines.append(("--add-qkv-bias", None, ""))
    return lines


def _experts(model: Model, own: traits.Traits) -> list[Line]:
    moe = model.moe
    if moe is None:
        return []
    lines: list[Line] = [
        ("--num-experts", moe.experts, ""),
        ("--moe-router-topk", moe.topk, ""),
        ("--moe-ffn-hidden-size", moe.expert_ffn, ""),
        ("--moe-grouped-gemm", None, ""),
        ("--moe-token-dispatcher-type", "alltoall", ""),
        ("--moe-router-load-balancing-type", "seq_aux_loss" if moe.router_bias else "aux_loss", ""),
        ("--moe-aux-loss-coeff", own.aux_loss, ""),
    ]
    dense = model.layer_kinds.index(MOE) if DENSE in model.layer_kinds else 0
    if dense:
        lines += [("--first-k-dense-replace", dense, "dense layers in front"), ("--moe-layer-freq", 1, "")]
    if moe.shared_ffn:
        lines.append(("--n-shared-experts", moe.shared_ffn // moe.expert_ffn, ""))
    if moe.shared_gate:
        lines.append(("--shared-expert-gate", None, ""))
    if own.norm_topk_prob:
        lines.append(("--norm-topk-prob", None, ""))
    if moe.router_bias:
        lines += [("--moe-router-score-function", own.score_function, ""),
                  ("--moe-router-enable-expert-bias", None, ""),
                  ("--moe-router-bias-update-rate", 0.001, "")]  # fmt: skip
    if own.routed_scaling != 1.0:
        lines.append(("--moe-router-topk-scaling-factor", own.routed_scaling, ""))
    if own.groups:
        lines += [("--moe-router-num-groups", own.groups, ""), ("--moe-router-group-topk", own.groups_chosen, "")]
    if model.mtp_layers:
        lines += [("--mtp-num-layers", model.mtp_layers, ""), ("--mtp-loss-scaling-factor", 0.3, "")]
    return lines
