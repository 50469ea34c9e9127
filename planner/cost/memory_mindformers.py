"""Tensors that MindFormers keeps in graph mode (MindSpore 2.9, MindFormers 1.9, jit_level O0)."""

from __future__ import annotations

from planner.cost.memory_megatron import layer_tensors as _plain_layer
from planner.cost.memory_rules import MemoryRules, bytes_of
from planner.cost.memory_tensors import EndTensors, LayerTensors, Tensor
from planner.model.records import LayerKind, Model, Workload

_FLOAT = 4.0
_STATISTICS = 8.0  # the fused attention operator returns maximum and sum with a trailing axis of 8


def layer_tensors(model: Model, workload: Workload, kind: LayerKind, rules: MemoryRules) -> LayerTensors:
    """Kept and working tensors of one layer."""
    return _plain_layer(model, workload, kind, rules)


def end_tensors(model: Model, workload: Workload, rules: MemoryRules) -> EndTensors:
    """What stages keep and need beside their layers."""
    hidden, vocab = float(model.hidden), float(model.vocab)
    width = bytes_of(workload.compute_dtype)
    return EndTensors(
        last=(
            Tensor("final norm input in float32", hidden, "sequence", _FLOAT),
            Tensor("head input", hidden, "whole", width),
        ),
        loss=(Tensor("logits in float32 and the products of its loss", 4.0 * vocab, "tensor", _FLOAT),),
    )
