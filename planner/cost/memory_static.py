"""Parameters, gradients and optimizer states of each stage, and the buffers that come with them [bytes].

Sharding: experts are copied over ``dp cp tp / (ep etp)`` ranks, everything else over ``dp cp`` (context-parallel ranks
hold the same parameters).  ``optimizer_shard`` of these ranks share one copy of what the ZeRO level names; where it
covers all of dp x cp, experts are shared by all their copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.memory_megatron import weight_shapes
from planner.cost.memory_rules import MemoryRules, bytes_of
from planner.cost.memory_stages import StageLayers, head_CS
from planner.cost.strategies import BoolArray, FloatArray, Strategies
from planner.model.operators import (
    Shards,
    embedding_parameters,
    final_norm_parameters,
    gemms,
    head_parameters,
    layer_parameters,
)
from planner.model.records import DENSE, LayerKind, Model, Workload

_FLOAT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """What a stage stores, shape (C, S) [bytes].

    Attributes
    ----------
    static : mapping of str to array
        ``parameters``, ``gradients`` and ``optimizer_states``.
    always_CS : array
        Buffers that exist all the time.
    gathered_CS : array
        Parameters in the compute type, whole, from forward to backward.
    embedding_CS, experts_CS : array
        Gathered weights that are needed while forward passes are still to come: the embedding table, and the experts,
        of which each micro-batch keeps its own copy for the backward pass.
    head_gradient_CS : array
        Gradient of the output projection before it is added to the accumulated one.
    update_CS : array
        Temporaries of the optimizer step.
    """

    static: Mapping[str, FloatArray]
    always_CS: FloatArray
    gathered_CS: FloatArray
    embedding_CS: FloatArray
    experts_CS: FloatArray
    head_gradient_CS: FloatArray
    update_CS: FloatArray


#: Classes of weights that are split and shared alike.
_CLASSES: Final = ("split", "whole", "norms", "experts", "embedding", "head")

_Classes = Mapping[str, FloatArray]


def stored(model: Model, workload: Workload, table: Strategies, layers: StageLayers, rules: MemoryRules) -> Stored:
    """Parameters, gradients, optimizer states and their buffers of every stage."""
    counts, copies = _counts(model, table, layers, rules), _copies(table, rules)
    level = table.zero_level[:, None]
    zero = np.zeros(table.layers_CS.shape)
    sharded = level >= (1 if rules.sharded_weights else 3)
    static = {
        "parameters": _bytes(counts, copies, bytes_of(workload.params_dtype), sharded),
        "gradients": _gradients(workload, table, counts, copies, rules),
        "optimizer_states": _bytes(counts, copies, _state_bytes(workload, rules), level >= 1)
        * np.where(table.swap_optimizer, 0.0, 1.0)[:, None],
    }
    if rules.frozen_weights or not rules.optimizer_runs:
        static |= {"optimizer_states": zero}
    if rules.frozen_weights:
        static |= {"gradients": zero}
    if rules.sharded_weights:
        return Stored(
            static=static,
            always_CS=_embedding_copy(model, workload, table, counts, copies, sharded),
            gathered_CS=_gathered(workload, counts, copies, sharded),
            embedding_CS=_gathered_embedding(workload, counts, copies, sharded),
            experts_CS=_gathered_experts(workload, counts, copies, sharded),
            head_gradient_CS=zero,
            update_CS=_update(model, table, counts, copies, layers) if rules.optimizer_runs else zero,
        )
    placeholders = rules.gradient_placeholders
    return Stored(
        static=static,
        always_CS=rules.workspace_bytes
        + (_placeholders(model, workload, table, layers, rules) if placeholders else zero),
        gathered_CS=_gathered_in_turn(workload, table, counts, sharded),
        embedding_CS=zero,
        experts_CS=zero,
        head_gradient_CS=_head_gradient(model, workload, table) if placeholders else zero,
        update_CS=zero,
    )


def _state_bytes(workload: Workload, rules: MemoryRules) -> float:
    """Optimizer bytes per parameter: moments, and a float32 copy of 16-bit parameters and of 16-bit gradients."""
    size = workload.moments * bytes_of(workload.states_dtype)
    if workload.master_weights:
        size += 2.0 if rules.reuse_master else _FLOAT
        size += 0.0 if bytes_of(workload.grads_dtype) == _FLOAT else _FLOAT
    return size


def _bytes(counts: _Classes, copies: _Classes, size: float, shared: BoolArray) -> FloatArray:
    """Bytes of elements of ``size`` bytes, split over their copies where ``shared``, shape (C, S)."""
    total = np.zeros(counts["split"].shape)
    for name in _CLASSES:
        total = total + counts[name] / np.where(shared, copies[name], 1.0)
    return size * total


def _gradients(
    workload: Workload, table: Strategies, counts: _Classes, copies: _Classes, rules: MemoryRules
) -> FloatArray:
    level = table.zero_level[:, None]
    if not rules.sharded_weights:
        return _bytes(counts, copies, bytes_of(workload.grads_dtype), level >= 2)
    accumulated = (table.pp > 1) | (table.micro_batches > 1)
    shared = (level >= 2) | ((level >= 1) & ~accumulated[:, None])
    return _bytes(counts, copies, bytes_of(workload.params_dtype), shared)


def _counts(model: Model, table: Strategies, layers: StageLayers, rules: MemoryRules) -> _Classes:
    """Parameters of one rank of each stage by class, shape (C, S) [count]."""
    tp, ep = table.tp[:, None], table.ep[:, None] * (table.tp[:, None] if rules.expert_tensor_parallel else 1)
    last = head_CS(table)
    first = np.broadcast_to(np.arange(table.stages)[None, :] == 0, last.shape)
    split, whole, norms, experts = (np.zeros(last.shape) for _ in range(4))
    for kind in model.kinds:
        each, count = _layer(model, kind, rules), layers.count(kind)
        split = split + count * (each["split"] / tp)
        whole, norms = whole + count * each["whole"], norms + count * each["norms"]
        experts = experts + count * (each["experts"] / ep)
    embedding, head = embedding_parameters(model), head_parameters(model)
    head_here = last
    if model.tied_embeddings:
        head, head_here = Shards(tp=embedding.tp), last & (table.pp > 1)[:, None]
    mtp = _predicted(model, rules)
    copy = last & ~first if model.mtp_layers else np.zeros_like(last)
    return {
        "split": split + last * (mtp["split"] / tp),
        "whole": whole + last * mtp["whole"],
        "norms": norms + last * (mtp["norms"] + final_norm_parameters(model).replicated),
        "experts": experts + last * (mtp["experts"] / ep),
        "embedding": (first | copy) * (embedding.tp / tp + embedding.replicated),
        "head": head_here * (head.tp / tp),
    }


def _layer(model: Model, kind: LayerKind, rules: MemoryRules) -> dict[str, float]:
    """Parameters of one layer by class, unsplit.  MindFormers (mcore) runs shared experts whole on every tp rank."""
    each, att = layer_parameters(model, kind), model.attention
    inner = att.q_lora_rank + att.kv_lora_rank if att.kind == "mla" else 2 * att.head_dim * att.qk_norm
    norms = model.norms_per_layer * model.hidden * (2 if model.norm_bias else 1) + inner
    shared = 0
    if rules.name == "mindformers" and kind != DENSE and model.moe is not None:
        shared = (3 if model.gated_mlp else 2) * model.hidden * model.moe.shared_ffn
    return {
        "split": float(each.tp - shared),
        "whole": float(each.replicated - norms + shared),
        "norms": float(norms),
        "experts": float(each.expert),
    }


def _predicted(model: Model, rules: MemoryRules) -> dict[str, float]:
    """Parameters of all MTP modules by class, unsplit; they look tokens up in a copy of the embedding table.

    MindFormers does not split the 2h x h projection over tp.
    """
    if not model.mtp_layers:
        return dict.fromkeys(("split", "whole", "norms", "experts"), 0.0)
    module = _layer(model, model.layer_kinds[-1], rules)
    module["norms"] += 3.0 * model.hidden * (2 if model.norm_bias else 1)
    module["whole" if rules.sharded_weights else "split"] += 2.0 * model.hidden * model.hidden
    return {name: model.mtp_layers * number for name, number in module.items()}


def _copies(table: Strategies, rules: MemoryRules) -> _Classes:
    """Ranks that share one copy of each class, shape (C, 1).

    MindSpore shares a weight over all ranks that hold the same slice, so tp adds to those of a weight it does not
    split; norms stay below the size from which it shares, and legacy networks exempt the embedding table.
    """
    ranks, tp = table.dp * table.cp, table.tp
    shard = table.optimizer_shard.astype(np.float64)
    experts = np.maximum(ranks * (1 if rules.expert_tensor_parallel else tp) / table.ep, 1.0)
    experts = np.where(table.optimizer_shard >= ranks, experts, np.minimum(shard, experts))
    mindspore = rules.sharded_weights
    one = np.ones_like(shard)
    found = {
        "split": shard,
        "whole": shard * tp if mindspore else shard,
        "norms": one if mindspore else shard,
        "experts": experts,
        "embedding": one if rules.name == "mindformers-legacy" else shard,
        "head": shard,
    }
    return {name: copies[:, None] for name, copies in found.items()}


def _embedding_copy(
    model: Model, workload: Workload, table: Strategies, counts: _Classes, copies: _Classes, sharded: BoolArray
) -> FloatArray:
    """The constant that MindSpore makes of the shard of the second embedding table, which MTP modules use, (C, S)."""
    second = counts["embedding"] * (head_CS(table) & (table.pp > 1)[:, None]) * (model.mtp_layers > 0)
    return bytes_of(workload.params_dtype) * second / np.where(sharded, copies["embedding"], 1.0)


def _gathered(workload: Workload, counts: _Classes, copies: _Classes, sharded: BoolArray) -> FloatArray:
    """MindSpore: whole weights in the compute type, from their first use to the last backward pass, shape (C, S)."""
    cast = workload.params_dtype != workload.compute_dtype
    total = np.zeros(counts["split"].shape)
    for name in ("split", "whole", "head"):
        total = total + counts[name] * (cast | ((copies[name] > 1) & sharded))
    return bytes_of(workload.compute_dtype) * total


def _gathered_in_turn(workload: Workload, table: Strategies, counts: _Classes, sharded: BoolArray) -> FloatArray:
    """ZeRO level 3: two layers (this and the next) and the tables, shape (C, S)."""
    layers = counts["split"] + counts["whole"] + counts["norms"] + counts["experts"]
    two_layers = np.minimum(2.0, table.layers_CS) / np.maximum(table.layers_CS, 1) * layers
    return bytes_of(workload.compute_dtype) * sharded * (two_layers + counts["embedding"] + counts["head"])


def _gathered_embedding(workload: Workload, counts: _Classes, copies: _Classes, sharded: BoolArray) -> FloatArray:
    """The embedding table gathered for look-ups, in its own type, shape (C, S)."""
    return bytes_of(workload.params_dtype) * counts["embedding"] * ((copies["embedding"] > 1) & sharded)


def _gathered_experts(workload: Workload, counts: _Classes, copies: _Classes, sharded: BoolArray) -> FloatArray:
    """Experts in the compute type, gathered or cast, shape (C, S)."""
    cast = workload.params_dtype != workload.compute_dtype
    return bytes_of(workload.compute_dtype) * counts["experts"] * (cast | ((copies["experts"] > 1) & sharded))


def _update(model: Model, table: Strategies, counts: _Classes, copies: _Classes, layers: StageLayers) -> FloatArray:
    """Temporaries of MindFormers' update, float32, shape (C, S).

    Gradients are unscaled whole (a cast and a product) and reduced to their owners one after the other, clipped
    together, then applied one by one with three temporaries each.  This runs in the order of parameters: the embedding
    first, when all clipped gradients are still alive, the head last, when only its own is.
    """
    sharded = (table.zero_level >= 1)[:, None]
    own = {name: np.where(sharded, number, 1.0) for name, number in copies.items()}
    clipped = _bytes(counts, copies, _FLOAT, sharded)
    within = np.zeros(counts["split"].shape)
    for kind in model.kinds:
        dense, expert = _largest(model, kind, table)
        most = np.maximum(dense[:, None] / own["split"], expert[:, None] / own["experts"])
        within = np.maximum(within, most * (layers.count(kind) > 0))
    embedding, head = _FLOAT * counts["embedding"], _FLOAT * counts["head"]
    own_embedding, own_head = embedding / own["embedding"], head / own["head"]
    return np.maximum.reduce(
        [
            clipped + 3.0 * within,
            clipped + 3.0 * own_embedding,
            4.0 * own_head,
            2.0 * embedding + own_embedding,
            2.0 * head + clipped,
        ]
    )


def _largest(model: Model, kind: LayerKind, table: Strategies) -> tuple[FloatArray, FloatArray]:
    """Float32 bytes of the largest weight of a layer on one rank, outside and inside experts, shape (C,)."""
    dense, expert = np.zeros(len(table)), np.zeros(len(table))
    for gemm in gemms(model, kind):
        size = _FLOAT * gemm.k * gemm.n
        if gemm.shard.startswith("expert"):
            assert model.moe is not None
            expert = np.maximum(expert, size * model.moe.experts / table.ep)
        elif gemm.shard != "replicated":
            dense = np.maximum(dense, size / table.tp)
    return dense, expert


def _head_gradient(model: Model, workload: Workload, table: Strategies) -> FloatArray:
    return head_CS(table) * (bytes_of(workload.compute_dtype) * model.vocab * model.hidden / table.tp)[:, None]


def _placeholders(
    model: Model, workload: Workload, table: Strategies, layers: StageLayers, rules: MemoryRules
) -> FloatArray:
    """One unused 16-bit tensor of each weight shape on a stage, shape (C, S)."""
    present = {kind: layers.count(kind) > 0 for kind in model.kinds}
    splits = {
        "whole": np.ones(len(table)),
        "tp": 1.0 / table.tp,
        "expert": 1.0 / table.tp if rules.expert_tensor_parallel else np.ones(len(table)),
    }
    total = np.zeros(table.layers_CS.shape)
    for shape in weight_shapes(model):
        here = np.logical_or.reduce([present[kind] for kind in model.kinds if kind in shape.kinds])
        total = total + here * (shape.elements * splits[shape.split])[:, None]
    return total * bytes_of(workload.compute_dtype)
