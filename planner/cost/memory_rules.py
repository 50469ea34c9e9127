"""How each framework lays out memory: what is sharded, in which type, and what exists at the same time.

One frozen record per framework; `rules_for` picks it from ``Workload.framework``.  Rules are facts of a framework's
implementation, so each names where it was read; sizes and degrees never enter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.model.records import DTYPE_BYTES, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """Memory layout of one framework.

    Attributes
    ----------
    name : {"mindformers", "megatron", "mindspeed", "fsdp"}
        Which kept tensors `planner.cost.activations` lists.
    sharded_weights : bool
        ZeRO level 1 and above also splits the stored parameters, which are gathered for use (MindSpore's
        optimizer parallelism); False: parameters stay whole below level 3.
    gathered_kept : bool
        Gathered parameters live from their first use to the end of the step; False: they are freed after each layer.
    expert_tensor_parallel : bool
        Experts are also split over tp.
    fused_cross_entropy : bool
        Loss and its gradient are computed in place of the logits.
    reuse_master : bool
        16-bit parameters share storage with their float32 copy, which then costs 2 bytes (MindSpeed).
    first_iteration : bool
        The peak is that of the first iteration, before Adam's moments exist.
    loss_copies : float
        float32 copies of the logits alive at the loss.
    """

    name: str
    sharded_weights: bool = False
    gathered_kept: bool = False
    expert_tensor_parallel: bool = False
    fused_cross_entropy: bool = False
    reuse_master: bool = False
    first_iteration: bool = False
    loss_copies: float = 2.0


_RULES: Final = {
    "mindformers": MemoryRules(name="mindformers", sharded_weights=True, gathered_kept=True),
    "mindformers-legacy": MemoryRules(name="mindformers", sharded_weights=True, gathered_kept=True),
    "mindformers-pynative": MemoryRules(name="megatron"),
    "megatron": MemoryRules(name="megatron", fused_cross_entropy=True),
    "mindspeed": MemoryRules(name="mindspeed", expert_tensor_parallel=True),
}


def rules_for(workload: Workload) -> MemoryRules:
    """Rules of the workload's framework."""
    return _RULES[workload.framework]


def bytes_of(dtype: str) -> float:
    """Bytes of one element [bytes]."""
    return float(DTYPE_BYTES[dtype])
