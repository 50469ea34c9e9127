"""Command-line flags of MindSpeed-LLM and Megatron-LM that are emitted or read, with the kind of value each takes.

Names as in Megatron-LM core_v0.12.1 (``megatron/training/arguments.py``), which MindSpeed-LLM 26.0 follows, and in the
argument modules of MindSpeed and MindSpeed-LLM; values that any release up to MindSpeed-LLM's main branch of 2026-08
takes are legal.  ``flags.json`` pins where each is known from: extracted from published packages, or stated (`STATED`);
a test holds this table against it.  ``names.json`` lists the names that any of these releases defines.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Final

SWITCH: Final = "switch"
#: Where flags are known from that no published package holds, by their origin.
STATED: Final = {
    "megatron": "named in Megatron-LM core_v0.12.1, megatron/training/arguments.py (read in its repository)",
    "mindspeed": "named in the argument modules of MindSpeed / MindSpeed-LLM 26.0 (read in their repositories)",
    "published": "as in the launch scripts and feature pages that MindSpeed-LLM publishes; not looked up in source",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag: ``kind`` is "switch", "int", "float", "str" or "words" (one or more values)."""

    kind: str
    choices: tuple[str, ...] = ()
    origin: str = "megatron"


def _flags(kind: str, names: str, origin: str = "megatron") -> dict[str, Flag]:
    return {f"--{name}": Flag(kind=kind, origin=origin) for name in names.split()}


def _choice(name: str, *choices: str, origin: str = "megatron") -> dict[str, Flag]:
    return {f"--{name}": Flag(kind="str", choices=choices, origin=origin)}


FLAGS: Final[dict[str, Flag]] = {
    # parallelism
    **_flags(
        "int",
        "tensor-model-parallel-size pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
        "num-virtual-stages-per-pipeline-rank context-parallel-size expert-model-parallel-size "
        "expert-tensor-parallel-size decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers",
    ),
    **_flags("switch", "sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather"),
    **_flags("switch", "no-overlap-p2p-communication use-legacy-models", "published"),
    **_flags("str", "num-layer-list noop-layers pipeline-num-transformer-layers swap-modules", "mindspeed"),
    **_choice(
        "context-parallel-algo", "megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo", "hybrid_adaptive_cp_algo",
        "kvallgather_cp_algo", "adaptive_cp_algo", "mamba_cp_algo", origin="mindspeed",
    ),
    **_flags("int", "ulysses-degree-in-cp cp-window-size swap-optimizer-times tp-x tp-y", "mindspeed"),
    **_flags(
        "switch",
        "use-cp-send-recv-overlap moe-tp-extend-ep moe-permutation-async-comm moe-alltoall-overlap-comm moe-fb-overlap "
        "reuse-fp32-param swap-optimizer swap-attention smart-swap use-ascend-mc2 use-ascend-coc tp-2d",
        "mindspeed",
    ),
    **_flags("switch", "adaptive-recompute-device-swap", "published"),
    **_flags("int", "lora-r", "published"),
    **_choice("attention-mask-type", "general", "causal", origin="mindspeed"),
    **_choice("schedules-method", "dualpipev", origin="mindspeed"),
    # batch and recompute
    **_flags("int", "micro-batch-size global-batch-size recompute-num-layers"),
    **_choice("recompute-granularity", "full", "selective"),
    **_choice("recompute-method", "uniform", "block"),
    **_flags("words", "recompute-modules"),
    **_flags("int", "recompute-activation-function-num-layers", "mindspeed"),
    **_flags(
        "switch",
        "recompute-activation-function recompute-norm enable-recompute-layers-per-pp-rank recompute-in-bubble "
        "recompute-in-advance",
        "mindspeed",
    ),
    # shape
    **_flags(
        "int",
        "num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels seq-length "
        "max-position-embeddings make-vocab-size-divisible-by q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim "
        "v-head-dim num-experts moe-router-topk moe-ffn-hidden-size mtp-num-layers moe-router-num-groups "
        "moe-router-group-topk rotary-base moe-shared-expert-intermediate-size",
    ),
    **_flags("int", "vocab-size", "published"),
    **_flags("str", "moe-layer-freq", "published"),
    **_flags("float", "moe-expert-capacity-factor"),
    **_flags("str", "pipeline-model-parallel-layout"),
    **_flags("switch", "account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split"),
    **_flags("switch", "moe-pad-expert-input-to-capacity"),
    **_flags("int", "padded-vocab-size first-k-dense-replace n-shared-experts", "mindspeed"),
    **_flags(
        "switch",
        "group-query-attention swiglu untie-embeddings-and-output-weights qk-layernorm multi-latent-attention "
        "disable-bias-linear add-qkv-bias moe-grouped-gemm moe-router-enable-expert-bias",
    ),
    **_flags("switch", "norm-topk-prob shared-expert-gate", "published"),
    **_flags("switch", "geglu gelu-tanh post-norm add-dense-bias", "mindspeed"),
    **_flags("switch", "use-rotary-position-embeddings use-mcore-models", "published"),
    **_choice("normalization", "LayerNorm", "RMSNorm"),
    **_choice(
        "position-embedding-type", "learned_absolute", "rope", "mrope", "yarn", "relative", "alibi", "deepseek4", "none"
    ),
    **_choice("moe-token-dispatcher-type", "allgather", "alltoall", "flex", "alltoall_seq"),
    **_choice(
        "moe-router-load-balancing-type", "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none",
        "group_limited_greedy", "softmax_topk", "pai_megatron_aux_loss", "sparsemixer_topk", "noaux_tc",
    ),
    **_choice("moe-router-score-function", "softmax", "sigmoid", "sqrtsoftplus"),
    **_flags(
        "float",
        "norm-epsilon init-method-std attention-dropout hidden-dropout moe-aux-loss-coeff "
        "moe-router-topk-scaling-factor mtp-loss-scaling-factor moe-router-bias-update-rate",
    ),
    # kernels and types
    **_flags("switch", "bf16 fp16 use-flash-attn no-masked-softmax-fusion attention-softmax-in-fp32 "
                       "no-gradient-accumulation-fusion"),
    **_choice("transformer-impl", "local", "transformer_engine"),
    **_choice("attention-backend", "flash", "fused", "unfused", "local", "auto"),
    **_flags("switch", "use-fused-rmsnorm use-fused-swiglu use-fused-rotary-pos-emb", "mindspeed"),
    # training
    **_flags("int", "train-iters lr-warmup-iters save-interval log-interval eval-interval eval-iters seed"),
    **_flags("float", "lr min-lr weight-decay clip-grad adam-beta1 adam-beta2"),
    **_choice("lr-decay-style", "constant", "linear", "cosine", "inverse-square-root", "WSD"),
    **_flags("float", "lr-warmup-fraction", "published"),
    **_flags("str", "save load distributed-backend optimizer"),
    **_flags("str", "tokenizer-name-or-path split tokenizer-type", "published"),
    **_flags("words", "data-path", "published"),
    **_flags("switch", "no-load-optim no-load-rng"),
}  # fmt: skip


#: Older names of flags that MindSpeed and MindSpeed-LLM take over (``features_manager/arguments/deprecated_args.py``).
ALIASES: Final = {
    f"--{old}": f"--{new}"
    for old, new in (
        ("moe-intermediate-size", "moe-ffn-hidden-size"),
        ("num-nextn-predict-layers", "mtp-num-layers"),
        ("multi-head-latent-attention", "multi-latent-attention"),
        ("qk-nope-head-dim", "qk-head-dim"),
        ("qk-rope-head-dim", "qk-pos-emb-head-dim"),
        ("n-group", "moe-router-num-groups"),
        ("topk-group", "moe-router-group-topk"),
        ("routed-scaling-factor", "moe-router-topk-scaling-factor"),
    )
}


@functools.cache
def pinned() -> dict[str, dict[str, dict[str, object]]]:
    """The pinned list: ``sources``, ``arguments``, ``fields`` and ``stated``."""
    path = resources.files("planner.dialects.mindspeed") / "flags.json"
    content: dict[str, dict[str, dict[str, object]]] = json.loads(path.read_text(encoding="utf-8"))
    return content


def real_names() -> frozenset[str]:
    """Every flag that is known to exist, modelled or not."""
    return frozenset(FLAGS) | frozenset(pinned()["arguments"]) | frozenset(f"--{name}" for name in _released())


@functools.cache
def _released() -> frozenset[str]:
    """Names that any release defines, without their hyphens in front."""
    path = resources.files("planner.dialects.mindspeed") / "names.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    return frozenset(name for source in body["sources"] for name in body[source].split())
