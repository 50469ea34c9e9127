"""Parameters, gradients and optimizer states of each stage, and the buffers that come with them [bytes].

Sharding: experts are copied over ``dp cp tp / (ep etp)`` ranks, everything else over ``dp cp`` (context-parallel ranks
hold the same parameters).  ``optimizer_shard`` of these ranks share one copy of what the ZeRO level names; where it
covers all of dp x cp, experts are shared by all their copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.memory_megatron import weight_shapes
from planner.cost.memory_rules import MemoryRules, bytes_of
from planner.cost.memory_stages import StageLayers
from planner.cost.strategies import BoolArray, FloatArray, Strategies
from planner.model.operators import (
    Shards,
    embedding_parameters,
    final_norm_parameters,
    gemms,
    head_parameters,
    layer_parameters,
    mtp_parameters,
)
from planner.model.records import LayerKind, Model, Workload

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
    refill_CS : array
        Gathered weights that are needed while micro-batches are still to come: the embedding table of the first stage
        and the experts (each micro-batch keeps its own copy of those for the backward pass).
    head_gradient_CS : array
        Gradient of the output projection before it is added to the accumulated one.
    update_CS : array
        Temporaries of the optimizer step.
    """

    static: Mapping[str, FloatArray]
    always_CS: FloatArray
    gathered_CS: FloatArray
    refill_CS: FloatArray
    head_gradient_CS: FloatArray
    update_CS: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counts:
    """Parameters of one rank of each stage, shape (C, S) [count]."""

    layers: FloatArray
    experts: FloatArray
    embedding: FloatArray
    head: FloatArray
    rest: FloatArray

    @property
    def dense(self) -> FloatArray:
        """All outside experts."""
        return self.layers + self.embedding + self.head + self.rest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sharing:
    """Ranks that share one copy of experts, of the embedding table and of the rest, shape (C, 1)."""

    dense: FloatArray
    expert: FloatArray
    embedding: FloatArray

    def bytes_of(self, counts: _Counts, size: float, shared: BoolArray) -> FloatArray:
        """Bytes of elements of ``size`` bytes, split where ``shared``, shape (C, S)."""
        dense = (counts.layers + counts.head + counts.rest) / np.where(shared, self.dense, 1.0)
        experts = counts.experts / np.where(shared, self.expert, 1.0)
        return size * (dense + experts + counts.embedding / np.where(shared, self.embedding, 1.0))


def stored(model: Model, workload: Workload, table: Strategies, layers: StageLayers, rules: MemoryRules) -> Stored:
    """Parameters, gradients, optimizer states and their buffers of every stage."""
    counts = _counts(model, table, layers, rules)
    sharing = _sharing(table, rules)
    level = table.zero_level[:, None]
    zero = np.zeros(counts.layers.shape)
    states = workload.moments * bytes_of(workload.states_dtype)
    if workload.master_weights:
        states += 2.0 if rules.reuse_master else 4.0
    if rules.name == "mindformers-legacy":
        sharing = replace(sharing, embedding=np.ones_like(sharing.dense))
    static = {
        "parameters": sharing.bytes_of(
            counts, bytes_of(workload.params_dtype), level >= (1 if rules.sharded_weights else 3)
        ),
        "gradients": sharing.bytes_of(counts, bytes_of(workload.grads_dtype), level >= 2),
        "optimizer_states": sharing.bytes_of(counts, states, level >= 1)
        * np.where(table.swap_optimizer, 0.0, 1.0)[:, None],
    }
    placeholders = rules.gradient_placeholders
    return Stored(
        static=static,
        always_CS=zero
        + rules.workspace_bytes
        + (_placeholders(model, workload, table, layers, rules) if placeholders else 0.0),
        gathered_CS=_gathered(workload, table, counts, sharing, rules),
        refill_CS=_refill(workload, table, counts, sharing) if rules.sharded_weights else zero,
        head_gradient_CS=_head_gradient(model, workload, table) if placeholders else zero,
        update_CS=_update(model, table, counts, sharing, layers) if rules.sharded_weights else zero,
    )


def _counts(model: Model, table: Strategies, layers: StageLayers, rules: MemoryRules) -> _Counts:
    tp, ep = table.tp[:, None], table.ep[:, None]
    ep = ep * tp if rules.expert_tensor_parallel else ep
    last = np.arange(table.stages)[None, :] == table.pp[:, None] - 1
    first = np.broadcast_to(np.arange(table.stages)[None, :] == 0, last.shape)
    dense, experts = np.zeros(last.shape), np.zeros(last.shape)
    for kind in model.kinds:
        each, count = layer_parameters(model, kind), layers.count(kind)
        dense = dense + count * _split(each, tp)
        experts = experts + count * (each.expert / ep)
    embedding, head = embedding_parameters(model), head_parameters(model)
    head_here = last
    if model.tied_embeddings:
        head, head_here = Shards(tp=embedding.tp), last & (table.pp > 1)[:, None]
    mtp = mtp_parameters(model)
    return _Counts(
        layers=dense,
        experts=experts + last * (mtp.expert / ep),
        embedding=first * _split(embedding, tp),
        head=head_here * _split(head, tp),
        rest=last * _split(final_norm_parameters(model) + Shards(tp=mtp.tp, replicated=mtp.replicated), tp),
    )


def _split(shards: Shards, tp: FloatArray) -> FloatArray:
    return shards.tp / tp + shards.replicated


def _sharing(table: Strategies, rules: MemoryRules) -> _Sharing:
    ranks = table.dp * table.cp
    copies = np.maximum(ranks * (1 if rules.expert_tensor_parallel else table.tp) / table.ep, 1.0)
    shard = table.optimizer_shard
    expert = np.where(shard >= ranks, copies, np.minimum(shard, copies))
    dense = shard[:, None].astype(np.float64)
    return _Sharing(dense=dense, expert=expert[:, None], embedding=dense)


def _gathered(
    workload: Workload, table: Strategies, counts: _Counts, sharing: _Sharing, rules: MemoryRules
) -> FloatArray:
    """Whole parameters in the compute type from forward to backward, shape (C, S)."""
    size = bytes_of(workload.compute_dtype)
    level = table.zero_level[:, None]
    if rules.sharded_weights:
        cast = workload.params_dtype != workload.compute_dtype
        dense = cast | ((sharing.dense > 1) & (level >= 1))
        return size * (counts.layers + counts.head + counts.rest) * dense
    total = np.maximum(table.layers_CS, 1)
    two_layers = np.minimum(2.0, table.layers_CS) / total * (counts.layers + counts.experts)
    return np.where(level >= 3, size * (two_layers + counts.embedding + counts.head), 0.0)


def _refill(workload: Workload, table: Strategies, counts: _Counts, sharing: _Sharing) -> FloatArray:
    """The embedding table gathered for look-ups in its own type, experts in the compute type, shape (C, S)."""
    sharded = (table.zero_level >= 1)[:, None]
    cast = workload.params_dtype != workload.compute_dtype
    embedding = bytes_of(workload.params_dtype) * counts.embedding * ((sharing.embedding > 1) & sharded)
    experts = bytes_of(workload.compute_dtype) * counts.experts * (cast | ((sharing.expert > 1) & sharded))
    return embedding + experts


def _update(model: Model, table: Strategies, counts: _Counts, sharing: _Sharing, layers: StageLayers) -> FloatArray:
    """Temporaries of MindFormers' update, float32, shape (C, S).

    Gradients are unscaled whole (a cast and a product) and reduced to their owners one after the other, clipped
    together, then applied one by one with three temporaries each.  This runs in the order of parameters: the embedding
    first, when all clipped gradients are still alive, the head last, when only its own is.
    """
    sharded = (table.zero_level >= 1)[:, None]
    owned = sharing.bytes_of(counts, _FLOAT, sharded)
    largest = {kind: _largest(model, kind, table) for kind in model.kinds}
    within = np.zeros(counts.layers.shape)
    for kind, (dense, expert) in largest.items():
        most = np.maximum(
            dense[:, None] / np.where(sharded, sharing.dense, 1.0),
            expert[:, None] / np.where(sharded, sharing.expert, 1.0),
        )
        within = np.maximum(within, most * (layers.count(kind) > 0))
    embedding = _FLOAT * counts.embedding
    head = _FLOAT * counts.head
    own_embedding = embedding / np.where(sharded, sharing.embedding, 1.0)
    own_head = head / np.where(sharded, sharing.dense, 1.0)
    return np.maximum.reduce(
        [
            owned + 3.0 * within,
            owned + 3.0 * own_embedding,
            4.0 * own_head,
            2.0 * embedding + own_embedding,
            2.0 * head + owned,
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
        else:
            dense = np.maximum(dense, size / (1 if gemm.shard == "replicated" else table.tp))
    return dense, expert


def _head_gradient(model: Model, workload: Workload, table: Strategies) -> FloatArray:
    last = np.arange(table.stages)[None, :] == table.pp[:, None] - 1
    return last * (bytes_of(workload.compute_dtype) * model.vocab * model.hidden / table.tp)[:, None]


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
