"""Seconds of communication of one layer, one micro-batch or one step, and how much of it computation hides.

Every function gives exposed and hidden seconds; their sum is the time on the wire.  Groups come from
``planner.cluster.placement``, times of single collectives from ``planner.cluster.collectives``.
Bytes are of 16-bit activations.  All arrays are (C,) unless a suffix says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from planner.cluster.collectives import collective_s as library_s
from planner.cluster.placement import Group, place_on, strides
from planner.cluster.records import Cluster
from planner.cost.compute import Constants, Execution, Number, Shares
from planner.cost.strategies import FloatArray, Strategies
from planner.model.records import DTYPE_BYTES, MOE, LayerKind, Model, Workload

ACTIVATION_BYTES: Final = 2.0


def collective_s(op: str, size_bytes: FloatArray, group: Group, cluster: Cluster, constants: Constants) -> FloatArray:
    """Time of one collective of every row [s], with the calibration's link constants over the profile's."""
    return library_s(op, size_bytes, group, cluster.hardware, cast("Mapping[str, float]", constants))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Communication split into what adds to the step and what runs beside computation [s]."""

    exposed_s: FloatArray
    hidden_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Placed groups of each row of a table."""

    tp: Group
    ulysses: Group
    ring: Group
    ep: Group
    pp: Group
    shard: Group
    replica: Group
    expert_shard: Group


def place_groups(cluster: Cluster, table: Strategies, share: Shares) -> Groups:
    """Where the groups of each row lie.

    ``shard`` are the ranks that share one copy of the optimizer states, ``replica`` the holders of equal shards;
    ``expert_shard`` the ranks with the same experts.
    """
    kinds = strides(tp=table.tp, cp=table.cp, dp=table.dp, pp=table.pp, ep=table.ep, ulysses=table.ulysses_degree)
    etp = share.etp.astype(np.int64)
    experts = np.maximum(table.dp * table.cp * table.tp // (table.ep * etp), 1)
    replicas = table.dp * table.cp
    shard = np.where(table.zero_level > 0, np.minimum(table.optimizer_shard, replicas), 1)
    placed = {name: place_on(cluster, *kinds[name]) for name in ("tp", "ulysses", "ring")}
    neighbours = np.minimum(table.pp, 2)
    return Groups(
        **placed,
        ep=place_on(cluster, table.ep, etp),
        pp=place_on(cluster, neighbours, kinds["pp"][1]),
        shard=place_on(cluster, shard, table.tp),
        replica=place_on(cluster, replicas // shard, table.tp * shard),
        expert_shard=place_on(cluster, experts, table.ep * etp),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """Communication of one layer and micro-batch: forward and backward, exposed and hidden [s]."""

    tp_forward: Hidden
    tp_backward: Hidden
    cp_forward: Hidden
    cp_backward: Hidden
    ep_forward: Hidden
    ep_backward: Hidden


def split(total_s: FloatArray, share: Number, window_s: FloatArray) -> Hidden:
    """Part ``share`` of the traffic is exposed, more when the rest does not fit beside ``window_s`` of computation."""
    exposed = np.maximum(share * total_s, total_s - window_s)
    return Hidden(exposed_s=exposed, hidden_s=total_s - exposed)


def tp_traffic(
    model: Model, kind: LayerKind, share: Shares, groups: Groups, cluster: Cluster, constants: Constants,
    matmul_s: FloatArray, run: Execution,
) -> tuple[Hidden, Hidden]:  # fmt: skip
    """Tensor-parallel collectives of one layer.

    With sequence parallelism each of attention and MLP gathers its input and scatters its output (2 + 2 forward;
    backward the mirror image and once more the gathering of the saved inputs: 2 + 2 + 2), each over tokens x h.
    Without it each all-reduces its output forward and its input gradient backward.  Experts that are not split over tp
    exchange tokens instead, which `ep_traffic` counts; their shared experts still gather and scatter.
    """
    size = ACTIVATION_BYTES * share.tokens * model.hidden
    gather = collective_s("allgather", size, groups.tp, cluster, constants)
    scatter = collective_s("reducescatter", size, groups.tp, cluster, constants)
    reduce = collective_s("allreduce", size, groups.tp, cluster, constants)
    split_mlp = kind != MOE or (model.moe is not None and model.moe.shared_ffn > 0)
    blocks = np.where(split_mlp | (share.etp >= share.tp), 2.0, 1.0)
    sequence = share.sp > 1
    forward = blocks * np.where(sequence, gather + scatter, reduce)
    backward = blocks * np.where(sequence, 2.0 * gather + scatter, reduce)
    exposed = constants["tp_exposed_overlapped"] if run.tp_overlap else constants["tp_exposed"]
    return split(forward, exposed, matmul_s), split(backward, exposed, 2.0 * matmul_s)


def cp_traffic(
    model: Model, share: Shares, groups: Groups, cluster: Cluster, constants: Constants,
    attention_s: FloatArray, attention_backward_s: FloatArray, run: Execution,
) -> tuple[Hidden, Hidden]:  # fmt: skip
    """Context-parallel exchange of one layer.

    Ring: keys and values of one block pass on ``ring - 1`` times, backward with their gradients too; each transfer
    runs beside the attention of the block before it.  Ulysses: queries, keys, values and the output change from
    sequence to heads and back, four all-to-alls each way, on the critical path.
    """
    attention = model.attention
    kv_heads = np.maximum(attention.kv_heads / share.tp, share.ulysses)
    block = ACTIVATION_BYTES * share.tokens * kv_heads * (attention.head_dim + attention.v_head_dim)
    steps = share.ring - 1.0
    hop = collective_s("sendrecv", block, groups.ring, cluster, constants)
    window = (steps / share.ring) * (1.0 if run.cp_overlap else 0.0)
    heads = attention.heads / share.tp
    exchanged = share.tokens * (heads + kv_heads) * (attention.head_dim + attention.v_head_dim)
    switch = collective_s("alltoall", ACTIVATION_BYTES * exchanged, groups.ulysses, cluster, constants)
    forward = split(steps * hop, 0.0, window * attention_s)
    backward = split(2.0 * steps * hop, 0.0, window * attention_backward_s)
    return (
        Hidden(exposed_s=forward.exposed_s + switch, hidden_s=forward.hidden_s),
        Hidden(exposed_s=backward.exposed_s + switch, hidden_s=backward.hidden_s),
    )


def ep_traffic(
    model: Model, kind: LayerKind, share: Shares, groups: Groups, cluster: Cluster, constants: Constants,
    run: Execution,
) -> tuple[Hidden, Hidden]:  # fmt: skip
    """Expert dispatch and combine of one layer: two all-to-alls forward, two backward.

    A rank sends its tokens (split over tp) topk times; the fullest rank receives ``expert_imbalance`` of the mean.
    """
    zero = np.zeros_like(share.tokens)
    if kind != MOE or model.moe is None:
        return Hidden(exposed_s=zero, hidden_s=zero), Hidden(exposed_s=zero, hidden_s=zero)
    stretch = 1.0 if run.balanced_experts else constants["expert_imbalance"]
    copies = model.moe.topk * (_distinct_nodes(groups.ep, model.moe.topk) if run.node_dispatch else 1.0)
    size = ACTIVATION_BYTES * share.tokens / share.tp * copies * model.hidden * stretch
    once = collective_s("alltoall", size, groups.ep, cluster, constants)
    window = np.full_like(share.tokens, np.inf)
    one_way = split(2.0 * once, constants["ep_exposed"], window)
    return one_way, one_way


def _distinct_nodes(group: Group, topk: int) -> FloatArray:
    """Other nodes that hold experts of a token, over the token's experts on other nodes; 1 inside one node.

    Of topk experts spread evenly over o nodes, ``topk (o - 1) / o`` lie elsewhere, on ``(o - 1)(1 - (1 - 1/o)^topk)``
    different nodes.
    """
    nodes = group.outer.astype(np.float64)
    missed = np.ones_like(nodes)
    for _ in range(topk):
        missed = missed * (1.0 - 1.0 / nodes)
    return np.where(nodes > 1.0, nodes * (1.0 - missed) / topk, 1.0)


def pp_transfer_s(
    model: Model, workload: Workload, share: Shares, groups: Groups, cluster: Cluster, constants: Constants,
    table: Strategies,
) -> FloatArray:  # fmt: skip
    """One direction of a micro-batch's boundary crossings at one stage, all chunks [s]; 0 without pipeline.

    Activations are split over tp with sequence parallelism, and by the Megatron family always (each TP rank sends its
    part and the receivers gather; arXiv 2104.04473, section 4.1).
    """
    split_anyway = workload.framework in {"megatron", "mindspeed"}
    size = ACTIVATION_BYTES * share.tokens * model.hidden / (share.tp if split_anyway else share.sp)
    return table.vpp * collective_s("sendrecv", size, groups.pp, cluster, constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """Gradient reduction and parameter gathering of one step [s]."""

    reduce_s: FloatArray
    gather_s: FloatArray
    split: Hidden


def dp_traffic(
    workload: Workload, groups: Groups, cluster: Cluster, constants: Constants, table: Strategies,
    dense_parameters: FloatArray, expert_parameters: FloatArray, backward_s: FloatArray, forward_s: FloatArray,
    run: Execution,
) -> DataParallel:  # fmt: skip
    """Gradients and parameters of the heaviest stage between replicas.

    Sharded over a group of s with r copies of that group: reduce-scatter over s, all-reduce of the shard over r,
    all-gather over s; s = 1 is the plain all-reduce.  At zero level 3 parameters are gathered for the forward and the
    backward pass of every micro-batch, beside a micro-batch of computation; from level 2 on gradients, whose sum is
    kept sharded, are reduced in every micro-batch (MindSpore: gradient_accumulation_shard).  Below, both happen once a
    step, beside the last backward and the first forward pass.  ``dp_exposed`` is never hidden.
    """
    gradient, weight = float(DTYPE_BYTES[workload.grads_dtype]), float(DTYPE_BYTES[workload.compute_dtype])
    shard_size = groups.shard.size
    reduce = collective_s("reducescatter", gradient * dense_parameters, groups.shard, cluster, constants)
    reduce = reduce + collective_s(
        "allreduce", gradient * dense_parameters / shard_size, groups.replica, cluster, constants
    )
    gather = collective_s("allgather", weight * dense_parameters, groups.shard, cluster, constants)
    sharded = table.zero_level > 0
    expert_rs = collective_s("reducescatter", gradient * expert_parameters, groups.expert_shard, cluster, constants)
    expert_ag = collective_s("allgather", weight * expert_parameters, groups.expert_shard, cluster, constants)
    reduce = reduce + expert_rs + np.where(sharded, 0.0, expert_ag * (gradient / weight))
    gather = gather + np.where(sharded, expert_ag, 0.0)
    every = table.zero_level == 3
    times = np.where(table.zero_level >= 2, table.micro_batches, 1)
    gathers = np.where(every, 2.0 * table.micro_batches, 1.0)
    overlap = constants["dp_window"] if run.dp_overlap else 0.0
    floor = constants["dp_exposed"] if run.dp_overlap else 1.0
    reduced = split(times * reduce, floor, overlap * times * backward_s)
    beside = np.where(every, table.micro_batches * (forward_s + backward_s), forward_s)
    gathered = split(gathers * gather, floor, overlap * beside)
    return DataParallel(
        reduce_s=times * reduce,
        gather_s=gathers * gather,
        split=Hidden(exposed_s=reduced.exposed_s + gathered.exposed_s, hidden_s=reduced.hidden_s + gathered.hidden_s),
    )
