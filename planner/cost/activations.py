"""Tensors kept for the backward pass, per layer and micro-batch.

A layer's kept memory is a list of `Tensor` records: elements per token, how the tensor is split, bytes per element, and
whether it survives selective recompute.  The list depends on the model only; `layer_bytes` reduces it to a few sums
and multiplies them with each candidate's tokens and degrees, so cost does not grow with the number of tensors.

Tokens of one rank and micro-batch: ``T = micro_batch_size * seq / cp``.

=========  =================  ============================================
split      elements per rank  tensors
=========  =================  ============================================
whole      T w                not split over tp
sequence   T w / tp           outside tensor-parallel regions (T w without sequence parallel)
tensor     T w / tp           heads, MLP columns
routed     T topk w / tp      tokens sent to experts (does not change with ep)
=========  =================  ============================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np

from planner.cost.memory_rules import MemoryRules, bytes_of
from planner.cost.strategies import FloatArray, IntArray, Strategies
from planner.model.records import DENSE, LayerKind, Model, Workload

Split = Literal["whole", "sequence", "tensor", "routed"]
SPLITS: Final[tuple[Split, ...]] = ("whole", "sequence", "tensor", "routed")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A kept tensor: name, elements per token, split, bytes per element, kept under selective recompute."""

    name: str
    width: float
    split: Split
    size: float
    selective: bool = True
    dispatch: bool = False

    @property
    def bytes_per_token(self) -> float:
        """Unsplit bytes per token [bytes]."""
        return self.width * self.size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBytes:
    """Bytes of one layer of one kind and one micro-batch, shape (C,).

    Attributes
    ----------
    none, selective, full : array
        Kept for backward without recompute, with cheap operators recomputed, and with the whole layer recomputed.
    dispatch : array
        Part of ``none`` that holds routed tokens.
    working : array
        Alive in addition while backward runs through the layer.
    """

    none: FloatArray
    selective: FloatArray
    full: FloatArray
    dispatch: FloatArray
    working: FloatArray

    def take(self, rows: IntArray) -> LayerBytes:
        """The same for some rows of the table."""
        return LayerBytes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def tokens(workload: Workload, table: Strategies) -> FloatArray:
    """Tokens of one micro-batch on one rank, ``mbs * seq / cp``, shape (C,) [count]."""
    return table.micro_batch_size * (float(workload.seq) / table.cp)


def layer_bytes(model: Model, workload: Workload, table: Strategies, kind: LayerKind, rules: MemoryRules) -> LayerBytes:
    """Kept bytes of one layer of ``kind`` for each candidate."""
    kept = kept_tensors(model, workload, kind, rules)
    elements = split_elements(model, workload, table)
    width = bytes_of(workload.compute_dtype)
    none = reduce_bytes(kept, elements)
    return LayerBytes(
        none=none,
        selective=reduce_bytes((t for t in kept if t.selective), elements),
        full=model.hidden * width * elements["sequence"],
        dispatch=reduce_bytes((t for t in kept if t.dispatch), elements),
        working=reduce_bytes(working_tensors(model, workload, kind), elements),
    )


def split_elements(model: Model, workload: Workload, table: Strategies) -> dict[Split, FloatArray]:
    """Elements of a one-wide tensor on one rank for each way of splitting it, shape (C,) [count]."""
    count = tokens(workload, table)
    sequence = count / np.where(table.sequence_parallel, table.tp, 1)
    topk = float(model.moe.topk) if model.moe is not None else 0.0
    return {"whole": count, "sequence": sequence, "tensor": count / table.tp, "routed": sequence * topk}


def reduce_bytes(tensors: Iterable[Tensor], elements: dict[Split, FloatArray]) -> FloatArray:
    """Bytes of tensors on one rank, shape (C,) [bytes]."""
    per_split = dict.fromkeys(SPLITS, 0.0)
    for tensor in tensors:
        per_split[tensor.split] += tensor.bytes_per_token
    total = np.zeros_like(elements["whole"])
    for split in SPLITS:
        total = total + per_split[split] * elements[split]
    return total


def kept_tensors(model: Model, workload: Workload, kind: LayerKind, rules: MemoryRules) -> tuple[Tensor, ...]:
    """Tensors one layer keeps for its backward pass when nothing is recomputed."""
    width = bytes_of(workload.compute_dtype)
    hidden = float(model.hidden)
    norms = (
        Tensor("attention norm input", hidden, "sequence", width),
        Tensor("attention norm output", hidden, "sequence", width),
        Tensor("mlp norm input", hidden, "sequence", width),
        Tensor("mlp norm output", hidden, "sequence", width),
    )
    return norms + _attention_tensors(model, workload) + _mlp_tensors(model, workload, kind)


def _attention_tensors(model: Model, workload: Workload) -> tuple[Tensor, ...]:
    att, width = model.attention, bytes_of(workload.compute_dtype)
    tensors = [
        Tensor("query", float(att.heads * att.head_dim), "tensor", width),
        Tensor("key", float((att.heads if att.kind == "mla" else att.kv_heads) * att.head_dim), "tensor", width),
        Tensor("value", float((att.heads if att.kind == "mla" else att.kv_heads) * att.v_head_dim), "tensor", width),
        Tensor("attention output", float(att.heads * att.v_head_dim), "tensor", width),
        Tensor("softmax statistics", 2.0 * 8 * att.heads, "tensor", 4.0),
    ]
    if att.kind == "mla":
        tensors.append(
            Tensor("latents", 2.0 * (att.q_lora_rank + att.kv_lora_rank) + att.qk_rope_dim, "sequence", width)
        )
    if not workload.flash_attention:
        tensors.append(Tensor("scores", 2.5 * att.heads * workload.seq, "tensor", width, selective=False))
    return tuple(tensors)


def _mlp_tensors(model: Model, workload: Workload, kind: LayerKind) -> tuple[Tensor, ...]:
    width = bytes_of(workload.compute_dtype)
    if kind == DENSE:
        return _columns(model, float(model.ffn), width, "tensor", "mlp")
    assert model.moe is not None
    moe = model.moe
    routed = (
        Tensor("router", float(2 * moe.experts), "sequence", 4.0),
        Tensor("dispatched tokens", float(model.hidden), "routed", width, dispatch=True),
        Tensor("expert output", float(model.hidden), "routed", width, dispatch=True),
        *_columns(model, float(moe.expert_ffn), width, "routed", "expert"),
    )
    shared = _columns(model, float(moe.shared_ffn), width, "tensor", "shared expert") if moe.shared_ffn else ()
    return routed + shared


def _columns(model: Model, ffn: float, width: float, split: Split, name: str) -> tuple[Tensor, ...]:
    up = 2.0 if model.gated_mlp else 1.0
    return (
        Tensor(f"{name} up", up * ffn, split, width),
        Tensor(f"{name} activation", ffn, split, width, selective=False),
        Tensor(f"{name} product", ffn if model.gated_mlp else 0.0, split, width, selective=False),
    )


def working_tensors(model: Model, workload: Workload, kind: LayerKind) -> tuple[Tensor, ...]:
    """Gradients of activations alive at the widest point of a layer's backward pass."""
    width = bytes_of(workload.compute_dtype)
    up = 2.0 if model.gated_mlp else 1.0
    if kind == DENSE:
        return (
            Tensor("gradient of mlp up", (up + 1.0) * model.ffn, "tensor", width),
            Tensor("gradient of hidden", 2.0 * model.hidden, "sequence", width),
        )
    assert model.moe is not None
    return (
        Tensor("gradient of expert up", (up + 1.0) * model.moe.expert_ffn, "routed", width),
        Tensor("gradient of dispatched tokens", float(model.hidden), "routed", width),
    )


def logits_bytes(model: Model, workload: Workload, table: Strategies, rules: MemoryRules) -> FloatArray:
    """Logits, their float32 copies and gradient at the loss on the last stage, shape (C,) [bytes]."""
    per_token = model.vocab * (bytes_of(workload.compute_dtype) + 4.0 * rules.loss_copies)
    return per_token * tokens(workload, table) / table.tp
