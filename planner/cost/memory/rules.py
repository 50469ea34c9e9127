"""How each framework lays out memory: what is sharded, in which type, and what exists at the same time.

One frozen record per framework; `rules_for` picks it from ``Workload.framework`` and applies ``Workload.switches``.
Rules are facts of a framework's implementation; sizes and degrees never enter here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from planner import frameworks
from planner.frameworks import Framework, TensorLayout
from planner.model.records import DTYPE_BYTES, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """Memory layout of one framework.

    Attributes
    ----------
    layout : {"mcore", "legacy", "megatron", "mindspeed", "fsdp"}
        Which kept tensors are listed, see ``planner.cost.memory.kept``.
    sharded_weights : bool
        MindSpore's optimizer parallelism: ZeRO level 1 and above also splits the stored parameters, which are gathered
        for use; gradients are accumulated in the type of the parameters, or reduced to their owners at once where
        nothing accumulates.  False: parameters stay whole below level 3.
    fused_cross_entropy : bool
        Loss and its gradient are computed in place of the logits.
    loss_copies : float
        float32 tensors of the logits' shape alive at an unfused loss.
    reuse_master : bool
        16-bit parameters share storage with their float32 copy, which then costs 2 bytes (MindSpeed).
    gradient_placeholders : bool
        An unused 16-bit tensor of every weight shape is kept for autograd (Transformer Engine with gradient
        accumulation fused into the weight-gradient product).
    workspace_bytes : float
        Work areas of the matmul library inside the pool [bytes].
    compressed_mask : bool
        Attention takes a fixed 2048 x 2048 mask; False: one mask of seq x seq is built for every micro-batch.
    gathered_kept : bool
        Gathered parameters stay from their first use to the last backward pass of the step; False: they are
        gathered again for the backward pass.
    recompute_communication : bool
        Recomputed layers repeat their tensor-parallel collectives; False: the gathered tensors are kept.
    float32_residual : bool
        Residuals are float32, and with them what lies between the norms and the casts of the next projection
        (MindFormers); the inner products still run in the compute type.
    selective_legacy : bool
        Selective recompute takes effect in legacy networks of MindFormers.  With MindSpore 2.9 and MindFormers 1.9 it
        does not: the compiled graph keeps the activations it names.
    vocabulary_split : bool
        Embedding table and output projection are split over tp; False: only in a pipeline (MindFormers resets
        ``vocab_emb_dp`` there), otherwise every rank holds them whole.
    fused_swiglu : bool
        The gated activation is one operator that keeps only its input.
    optimizer_runs : bool
        False: the update and its states are left out, as in a plain DryRun of MindFormers, whose branch around the
        optimizer is not taken on a simulated device.
    frozen_weights : bool
        Weights have neither gradients nor optimizer states (adapter tuning; the adapters themselves are neglected).
    """

    layout: TensorLayout
    sharded_weights: bool = False
    fused_cross_entropy: bool = False
    loss_copies: float = 1.0
    reuse_master: bool = False
    gradient_placeholders: bool = False
    workspace_bytes: float = 0.0
    compressed_mask: bool = True
    gathered_kept: bool = True
    recompute_communication: bool = True
    float32_residual: bool = False
    selective_legacy: bool = False
    vocabulary_split: bool = True
    fused_swiglu: bool = False
    optimizer_runs: bool = True
    frozen_weights: bool = False


#: PyTorch with sharded parameters; logits, their float32 copy, log-softmax and gradient.
_FSDP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "layout": "fsdp",
        "fused_swiglu": False,
        "gradient_placeholders": False,
        "fused_cross_entropy": False,
        "loss_copies": 3.0,
    }
)

#: ``Workload.switches`` and what each changes.
SWITCHES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "full-attention-mask": {"compressed_mask": False},  # MindFormers use_attn_mask_compression: False
        "optimizer-comm-recompute": {"gathered_kept": False},  # parallel_optimizer_comm_recompute: True
        "no-comm-recompute": {"recompute_communication": False},  # mp_comm_recompute: False
        "float32-residual": {"float32_residual": True},  # fp32_residual_connection: True
        "selective-legacy": {"selective_legacy": True},  # releases up to 1.5, see docs/memory.md
        "whole-vocabulary": {"vocabulary_split": False},  # MindFormers, legacy: vocab_emb_dp: True
        "fused-swiglu": {"fused_swiglu": True},  # bias_swiglu_fusion: True
        "fsdp": _FSDP,
        # the same under DeepSpeed, with its reduction bucket (5e8 16-bit elements by default)
        "deepspeed": {**_FSDP, "workspace_bytes": 1e9},
        "fused-cross-entropy": {"fused_cross_entropy": True},
        "unfused-cross-entropy": {"fused_cross_entropy": False},
        "reuse-fp32-param": {"reuse_master": True},
        "plain-dryrun": {"optimizer_runs": False},
        frameworks.NO_TP_OVERLAP: {},  # changes time only
        "frozen-weights": {"frozen_weights": True},
    }
)

#: Work areas of NVIDIA's matmul library and of Transformer Engine, 32 MiB each on Hopper and later [bytes].
_WORKSPACES: Final = 2.0 * 32 * 2**20


def _plain(framework: Framework) -> MemoryRules:
    """Rules of a run with no switches."""
    return MemoryRules(
        layout=framework.tensors,
        sharded_weights=framework.sharded_weights,
        fused_cross_entropy=framework.fused_loss,
        fused_swiglu=framework.transformer_engine,
        gradient_placeholders=framework.transformer_engine,
        workspace_bytes=_WORKSPACES if framework.transformer_engine else 0.0,
    )


@lru_cache(maxsize=64)
def _rules(framework: str, switches: tuple[str, ...]) -> MemoryRules:
    rules = _plain(frameworks.of(framework))
    for switch in switches:
        rules = replace(rules, **SWITCHES.get(switch, {}))
    return rules


def rules_for(workload: Workload) -> MemoryRules:
    """Rules of the workload's framework and switches; short sequences have no compressed mask in MindFormers."""
    switches = workload.switches
    if workload.seq < workload.runs_on.least_compressed_seq:
        switches = (*switches, "full-attention-mask")
    return _rules(workload.framework, switches)


def bytes_of(dtype: str) -> float:
    """Bytes of one element [bytes]."""
    return float(DTYPE_BYTES[dtype])
