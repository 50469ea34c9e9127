"""Parameters, gradients and optimizer states of each stage, and the buffers that come with them [bytes].

Sharding: experts are copied over ``dp cp tp / (ep etp)`` ranks, everything else over ``dp cp`` (context-parallel ranks
hold the same parameters).  ``optimizer_shard`` of these ranks share one copy of what the ZeRO level names; where it
covers all of dp x cp, experts are shared by all their copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.memory_megatron import weight_shapes
from planner.cost.memory_rules import MemoryRules, bytes_of
from planner.cost.memory_stages import StageLayers
from planner.cost.strategies import BoolArray, FloatArray, Strategies
from planner.model.operators import (
    Shards,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
)
from planner.model.records import Model, Workload

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
    embedding_CS : array
        The gathered embedding table, needed on the first stage while micro-batches are still to come.
    head_gradient_CS : array
        Gradient of the output projection before it is added to the accumulated one.
    update_CS : array
        Temporaries of the optimizer step.
    """

    static: Mapping[str, FloatArray]
    always_CS: FloatArray
    gathered_CS: FloatArray
    embedding_CS: FloatArray
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
    """Ranks that share one copy, outside and inside experts, shape (C, 1)."""

    dense: FloatArray
    expert: FloatArray

    def bytes_of(self, counts: _Counts, size: float, shared: BoolArray) -> FloatArray:
        """Bytes of elements of ``size`` bytes, split where ``shared``, shape (C, S)."""
        dense = counts.dense / np.where(shared, self.dense, 1.0)
        return size * (dense + counts.experts / np.where(shared, self.expert, 1.0))


def stored(model: Model, workload: Workload, table: Strategies, layers: StageLayers, rules: MemoryRules) -> Stored:
    """Parameters, gradients, optimizer states and their buffers of every stage."""
    counts = _counts(model, table, layers, rules)
    sharing = _sharing(table, rules)
    level = table.zero_level[:, None]
    zero = np.zeros(counts.layers.shape)
    states = workload.moments * bytes_of(workload.states_dtype)
    if workload.master_weights:
        states += 2.0 if rules.reuse_master else 4.0
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
        embedding_CS=zero,
        head_gradient_CS=_head_gradient(model, workload, table) if placeholders else zero,
        update_CS=zero,
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
    return _Sharing(dense=shard[:, None].astype(np.float64), expert=expert[:, None])


def _gathered(
    workload: Workload, table: Strategies, counts: _Counts, sharing: _Sharing, rules: MemoryRules
) -> FloatArray:
    size = bytes_of(workload.compute_dtype)
    level = table.zero_level[:, None]
    if rules.sharded_weights:
        dense = counts.dense * ((sharing.dense > 1) & (level >= 1))
        return size * (dense + counts.experts * ((sharing.expert > 1) & (level >= 1)))
    total = np.maximum(table.layers_CS, 1)
    two_layers = np.minimum(2.0, table.layers_CS) / total * (counts.layers + counts.experts)
    return np.where(level >= 3, size * (two_layers + counts.embedding + counts.head), 0.0)


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
