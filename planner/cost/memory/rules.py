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
    layout : {"mcore", "legacy", "pynative", "megatron", "mindspeed", "fsdp", "native-cpu"}
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
    gathered_logits : bool
        Every rank of a tensor-parallel group holds the logits of the whole vocabulary at the loss (Megatron's
        ``parallel_output=False``, and trainers whose loss is PyTorch's own).
    eager_norms : bool
        A norm is made of single operators: it keeps its input in float32, and its result before the weight.
    gradient_placeholders : bool
        An unused 16-bit tensor of every weight shape is kept for autograd (Transformer Engine with gradient
        accumulation fused into the weight-gradient product).
    workspace_bytes : float
        Work areas of the matmul library inside the pool [bytes].
    compressed_mask : bool
        Attention takes a fixed 2048 x 2048 mask; False: one mask of seq x seq is built for every micro-batch.
    ring_attention : bool
        Keys and values travel between context-parallel ranks and are not gathered; no mask of seq x seq is built.
    batch_parts : int
        Parts into which MindFormers cuts a micro-batch; they run one after the other in the same pass, and what each
        keeps waits for the backward pass of all.
    sequence_pieces : int
        Pieces into which MindFormers cuts a sequence; they go through the pipeline one after the other, and each keeps
        the keys and values of all before it.
    float32_residual : bool
        Residuals are float32, and with them what lies between the norms and the casts of the next projection
        (MindFormers); the inner products still run in the compute type.
    selective_legacy : bool
        Selective recompute takes effect in legacy networks of MindFormers.  With MindSpore 2.9 and MindFormers 1.9 it
        does not: the compiled graph keeps the activations it names.
    selective_operators : bool
        Layers that are recomputed selectively make cheap operators again.
    gathered_layers : tuple of int
        Layers of each stage, the first ones of those that are recomputed selectively, that gather the outputs of their
        norms again for the backward pass.
    vocabulary_split : bool
        Embedding table and output projection are split over tp; False: only in a pipeline (MindFormers resets
        ``vocab_emb_dp`` there), otherwise every rank holds them whole.
    fused_swiglu : bool
        The gated activation is one operator that keeps only its input.
    casts_weights : bool
        Each product casts its weight to the compute type and keeps the cast for its backward pass (MindFormers'
        PyNative ``Linear``).
    swap_frees : bool
        Swapped optimizer states are away from the device between updates; False: the compiled step of MindFormers
        holds a place for them all the time and loads them into a second one (docs/memory.md).
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
    gathered_logits: bool = False
    eager_norms: bool = False
    gradient_placeholders: bool = False
    workspace_bytes: float = 0.0
    compressed_mask: bool = True
    ring_attention: bool = False
    batch_parts: int = 1
    sequence_pieces: int = 1
    float32_residual: bool = False
    selective_legacy: bool = False
    selective_operators: bool = True
    gathered_layers: tuple[int, ...] = ()
    vocabulary_split: bool = True
    fused_swiglu: bool = False
    casts_weights: bool = False
    swap_frees: bool = True
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

#: The emitted MindSpore script on the CPU, see `planner.cost.memory.native`.
NATIVE_CPU: Final = "native-cpu"

#: ``Workload.switches`` and what each changes.
SWITCHES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "full-attention-mask": {"compressed_mask": False},  # MindFormers use_attn_mask_compression: False
        "ring-attention": {"ring_attention": True},  # MindFormers use_ring_attention: True
        "float32-residual": {"float32_residual": True},  # fp32_residual_connection: True
        "selective-legacy": {"selective_legacy": True},  # releases up to 1.5, see docs/memory.md
        "gathers-alone": {"selective_operators": False},  # select_comm_recompute without select_recompute
        "whole-vocabulary": {"vocabulary_split": False},  # MindFormers, legacy: vocab_emb_dp: True
        "fused-swiglu": {"fused_swiglu": True},  # bias_swiglu_fusion: True
        "fsdp": _FSDP,
        # the same under DeepSpeed, with its reduction bucket (5e8 16-bit elements by default)
        "deepspeed": {**_FSDP, "workspace_bytes": 1e9},
        "gathered-logits": {"gathered_logits": True, "fused_cross_entropy": False, "loss_copies": 3.0},
        "eager-norms": {"eager_norms": True},
        # operators of plain PyTorch instead of Transformer Engine's
        "plain-operators": {"gradient_placeholders": False, "fused_swiglu": False, "workspace_bytes": 0.0},
        "fused-cross-entropy": {"fused_cross_entropy": True},
        "unfused-cross-entropy": {"fused_cross_entropy": False},
        "reuse-fp32-param": {"reuse_master": True},
        "plain-dryrun": {"optimizer_runs": False},
        frameworks.NO_TP_OVERLAP: {},  # changes time only
        "frozen-weights": {"frozen_weights": True},
        NATIVE_CPU: {"layout": NATIVE_CPU},
    }
)

#: Switches that carry a number or one for each stage, ``name=4`` or ``name=4,2``, and the rule that they set.
NUMBERED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch-parts": "batch_parts",  # MindFormers micro_batch_interleave_num
        "sequence-pieces": "sequence_pieces",  # MindFormers, legacy: seq_split_num
        "gathers": "gathered_layers",  # MindFormers select_comm_recompute, layers of each stage
    }
)


def _numbered(name: str, text: str) -> dict[str, int | tuple[int, ...]]:
    numbers = tuple(int(part) for part in text.split(","))
    return {NUMBERED[name]: numbers if name == "gathers" else numbers[0]}


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
        casts_weights=framework.tensors == "pynative",
        swap_frees=not framework.graph,
        workspace_bytes=_WORKSPACES if framework.transformer_engine else 0.0,
    )


@lru_cache(maxsize=64)
def _rules(framework: str, switches: tuple[str, ...]) -> MemoryRules:
    rules = _plain(frameworks.of(framework))
    for switch in switches:
        name, _, value = switch.partition("=")
        changes: Mapping[str, Any] = _numbered(name, value) if name in NUMBERED else SWITCHES.get(name, {})
        rules = replace(rules, **changes)
    return rules


def rules_for(workload: Workload) -> MemoryRules:
    """Rules of the workload's framework and switches; short sequences have no compressed mask in MindFormers."""
    switches = workload.switches
    if workload.seq < workload.runs_on.least_compressed_seq and "ring-attention" not in switches:
        switches = (*switches, "full-attention-mask")
    return _rules(workload.framework, switches)


def selective_saves(workload: Workload) -> bool:
    """Whether selective recompute has any effect: not in legacy networks, see ``selective_legacy``."""
    rules = rules_for(workload)
    return rules.layout != "legacy" or rules.selective_legacy


def bytes_of(dtype: str) -> float:
    """Bytes of one element [bytes]."""
    return float(DTYPE_BYTES[dtype])
