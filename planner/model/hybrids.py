"""Networks whose layers differ in kind (linear attention, state spaces): counted to the unit, not planned.

No framework here trains them, and what their layers keep for the backward pass is not known; a plan would be a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.errors import SpecError
from planner.model.fields import Fields

_GATED_DELTA: Final = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Trainable parameters [count] without MTP modules, those one token uses, and how many layers are unusual.

    ``active`` includes embedding and head, as `operators.active_parameter_count`.
    """

    total: int
    active: int
    layers: int
    unusual: int
    kind: str


def describe(fields: Fields) -> str:
    """One sentence on a network that is counted but not planned; empty for one that is not known."""
    held = count(fields)
    if held is None:
        return ""
    return (
        f"{fields.text('model_type')} has {held.total} trainable parameters ({held.active} active, embedding and head "
        f"included, MTP left out), but {held.unusual} of its {held.layers} layers are {held.kind}, which no framework "
        "here trains; no plan is made of it as it is."
    )


def count(fields: Fields) -> Counted | None:
    """Parameters of a hybrid network; None for a model type that is not one."""
    family = fields.text("model_type")
    if family in _GATED_DELTA:
        return _gated_delta(fields)
    if family == "nemotron_h":
        return _nemotron(fields)
    if family in ("minimax", "minimax_text_01", "minimax_m1"):
        return _lightning(fields)
    return None


def _grouped(fields: Fields, query_factor: int = 1, head_dim: int = 0) -> int:
    """Grouped-query attention without biases; the query projection holds an output gate too when the factor is 2."""
    h, a = fields.size("hidden", "hidden_size"), fields.size("heads", "num_attention_heads")
    k = fields.size("kv_heads", "num_key_value_heads", default=a)
    d = fields.size("head_dim", "head_dim", "attention_head_dim", default=head_dim or h // a)
    return h * d * (query_factor * a + 2 * k) + a * d * h


def _tables(fields: Fields) -> int:
    tied = fields.flag("tie_word_embeddings", default=False)
    return fields.size("vocab", "vocab_size") * fields.size("hidden", "hidden_size") * (1 if tied else 2)


def _full_layers(fields: Fields, layers: int) -> int:
    kinds = fields.mapping.get("layer_types")
    if isinstance(kinds, (list, tuple)):
        if len(kinds) != layers:
            raise SpecError(f"{fields.where}: layer_types names {len(kinds)} layers, the model has {layers}.")
        return sum(kind == "full_attention" for kind in kinds)
    return layers // fields.size("layers", "full_attention_interval", default=4)


def _gated_delta(fields: Fields) -> Counted:
    """Qwen3-Next, Qwen3.5: gated delta rule, every fourth layer full attention with an output gate."""
    h, layers = fields.size("hidden", "hidden_size"), fields.size("layers", "num_hidden_layers")
    full = _full_layers(fields, layers)
    nk, nv = (fields.size("heads", f"linear_num_{name}_heads") for name in ("key", "value"))
    dk, dv = (fields.size("head_dim", f"linear_{name}_head_dim") for name in ("key", "value"))
    kernel = fields.size("head_dim", "linear_conv_kernel_dim", default=4)
    key, value = nk * dk, nv * dv
    linear = h * (2 * key + 2 * value + 2 * nv) + (2 * key + value) * kernel + 2 * nv + dv + value * h
    head = fields.size("head_dim", "head_dim", default=256)
    whole = _grouped(fields, query_factor=2, head_dim=256) + 2 * head
    base = full * whole + (layers - full) * linear + layers * 2 * h + h + _tables(fields)
    experts = fields.size("experts", "num_experts", default=0, minimum=0)
    kind = "linear attention (gated delta rule)"
    if not experts:
        total = base + layers * 3 * h * fields.size("ffn", "intermediate_size")
        return Counted(total=total, active=total, layers=layers, unusual=layers - full, kind=kind)
    if fields.mapping.get("mlp_only_layers") or fields.mapping.get("decoder_sparse_step", 1) != 1:
        raise SpecError(f"{fields.where}: dense layers (mlp_only_layers, decoder_sparse_step) are not known here.")
    each = 3 * h * fields.size("expert_ffn", "moe_intermediate_size")
    beside = h * experts + 3 * h * fields.size("shared_ffn", "shared_expert_intermediate_size") + h
    chosen = fields.size("topk", "num_experts_per_tok")
    return Counted(
        total=base + layers * (beside + experts * each),
        active=base + layers * (beside + chosen * each),
        layers=layers,
        unusual=layers - full,
        kind=kind,
    )


def _lightning(fields: Fields) -> Counted:
    """MiniMax-Text-01 and M1: lightning attention with an output gate, every eighth layer softmax attention."""
    h, layers = fields.size("hidden", "hidden_size"), fields.size("layers", "num_hidden_layers")
    kinds = fields.mapping.get("attn_type_list")
    if isinstance(kinds, (list, tuple)) and len(kinds) == layers:
        full = sum(kind == 1 for kind in kinds)
    else:
        listed = fields.mapping.get("layer_types")
        full = _full_layers(fields, layers) if listed else layers // 8
    a = fields.size("heads", "num_attention_heads")
    width = a * fields.size("head_dim", "head_dim", default=h // a)
    linear = 5 * h * width + width
    experts, chosen = fields.size("experts", "num_local_experts"), fields.size("topk", "num_experts_per_tok")
    each = 3 * h * fields.size("expert_ffn", "intermediate_size")
    base = full * _grouped(fields) + (layers - full) * linear + layers * (2 * h + h * experts) + h + _tables(fields)
    return Counted(
        total=base + layers * experts * each,
        active=base + layers * chosen * each,
        layers=layers,
        unusual=layers - full,
        kind="lightning (linear) attention",
    )


def _nemotron(fields: Fields) -> Counted:
    """Nemotron-H: M a Mamba-2 layer, ``*`` attention, ``-`` an MLP, E experts; one norm each, MLPs not gated."""
    pattern = fields.text("hybrid_override_pattern")
    if not pattern or set(pattern) - set("M*-E"):
        raise SpecError(f"{fields.where}: hybrid_override_pattern is {pattern!r}; legal: the letters M, *, -, E.")
    h = fields.size("hidden", "hidden_size")
    heads, width = fields.size("heads", "mamba_num_heads"), fields.size("head_dim", "mamba_head_dim")
    inner = heads * width
    mixed = inner + 2 * fields.size("heads", "n_groups") * fields.size("hidden", "ssm_state_size")
    kernel = fields.size("head_dim", "conv_kernel", default=4)
    conv = mixed * (kernel + (1 if fields.flag("use_conv_bias", default=True) else 0))
    mamba = h * (inner + mixed + heads) + conv + 3 * heads + inner + inner * h
    each, beside, experts, chosen = 0, 0, 0, 0
    if "E" in pattern:
        experts, chosen = fields.size("experts", "n_routed_experts"), fields.size("topk", "num_experts_per_tok")
        each = 2 * h * fields.size("expert_ffn", "moe_intermediate_size")
        shared = fields.size("shared_ffn", "moe_shared_expert_intermediate_size", default=0, minimum=0)
        beside = h * experts + 2 * h * shared * fields.size("experts", "n_shared_experts", default=1, minimum=0)
    mlp = 2 * h * fields.size("ffn", "intermediate_size") if "-" in pattern else 0
    sparse = pattern.count("E")
    base = (
        pattern.count("M") * mamba + pattern.count("*") * _grouped(fields, head_dim=128) + pattern.count("-") * mlp
        + sparse * beside + (len(pattern) + 1) * h + _tables(fields)
    )  # fmt: skip
    return Counted(
        total=base + sparse * experts * each,
        active=base + sparse * chosen * each,
        layers=len(pattern),
        unusual=pattern.count("M"),
        kind="Mamba-2 state spaces",
    )
