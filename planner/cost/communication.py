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
from planner.cost.setting import Number, Setting
from planner.cost.strategies import FloatArray
from planner.model.records import DTYPE_BYTES, MOE, LayerKind

ACTIVATION_BYTES: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Communication split into what adds to the step and what runs beside computation [s]."""

    exposed_s: FloatArray
    hidden_s: FloatArray

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(exposed_s=self.exposed_s + other.exposed_s, hidden_s=self.hidden_s + other.hidden_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Placed groups of each row of a table.

    ``shard`` are the ranks that share one copy of the optimizer states, ``replica`` the holders of equal shards;
    ``expert_shard`` the ranks with the same experts.
    """

    tp: Group
    ulysses: Group
    ring: Group
    ep: Group
    pp: Group
    shard: Group
    replica: Group
    expert_shard: Group


def place_groups(setting: Setting) -> Groups:
    """Where the groups of each row lie."""
    table, cluster = setting.table, setting.cluster
    kinds = strides(tp=table.tp, cp=table.cp, dp=table.dp, pp=table.pp, ep=table.ep, ulysses=table.ulysses_degree)
    etp = setting.share.etp.astype(np.int64)
    experts = np.maximum(table.dp * table.cp * table.tp // (table.ep * etp), 1)
    replicas = table.dp * table.cp
    shard = np.where(table.zero_level > 0, np.minimum(table.optimizer_shard, replicas), 1)
    placed = {name: place_on(cluster, *kinds[name]) for name in ("tp", "ulysses", "ring")}
    return Groups(
        **placed,
        ep=place_on(cluster, table.ep, etp),
        pp=place_on(cluster, np.minimum(table.pp, 2), kinds["pp"][1]),
        shard=place_on(cluster, shard, table.tp),
        replica=place_on(cluster, replicas // shard, table.tp * shard),
        expert_shard=place_on(cluster, experts, table.ep * etp),
    )


def collective_s(setting: Setting, op: str, size_bytes: FloatArray, group: Group) -> FloatArray:
    """Time of one collective of every row [s], with the calibration's link constants over the profile's."""
    constants = cast("Mapping[str, float]", setting.constants)
    return library_s(op, size_bytes, group, setting.cluster.hardware, constants)


def split(total_s: FloatArray, share: Number, window_s: FloatArray) -> Traffic:
    """Part ``share`` of the traffic is exposed, more when the rest does not fit beside ``window_s`` of computation."""
    exposed = np.maximum(share * total_s, total_s - window_s)
    return Traffic(exposed_s=exposed, hidden_s=total_s - exposed)


def tp_traffic(setting: Setting, groups: Groups, kind: LayerKind, matmul_s: FloatArray) -> tuple[Traffic, Traffic]:
    """Tensor-parallel collectives of one layer, forward and backward.

    With sequence parallelism each of attention and MLP gathers its input and scatters its output (2 + 2 forward;
    backward the mirror image and once more the gathering of the saved inputs: 2 + 2 + 2), each over tokens x h.
    Without it each all-reduces its output forward and its input gradient backward.  Experts that are not split over tp
    exchange tokens instead, which `ep_traffic` counts; their shared experts still gather and scatter.
    """
    share, moe = setting.share, setting.model.moe
    size = ACTIVATION_BYTES * share.tokens * setting.model.hidden
    gather = collective_s(setting, "allgather", size, groups.tp)
    scatter = collective_s(setting, "reducescatter", size, groups.tp)
    reduce = collective_s(setting, "allreduce", size, groups.tp)
    split_mlp = kind != MOE or (moe is not None and moe.shared_ffn > 0)
    blocks = np.where(split_mlp | (share.etp >= share.tp), 2.0, 1.0)
    sequence = share.sp > 1
    forward = blocks * np.where(sequence, gather + scatter, reduce)
    backward = blocks * np.where(sequence, 2.0 * gather + scatter, reduce)
    exposed = setting.constants["tp_exposed_overlapped" if setting.run.tp_overlap else "tp_exposed"]
    return split(forward, exposed, matmul_s), split(backward, exposed, 2.0 * matmul_s)


def cp_traffic(
    setting: Setting, groups: Groups, attention_s: FloatArray, attention_backward_s: FloatArray
) -> tuple[Traffic, Traffic]:
    """Context-parallel exchange of one layer, forward and backward.

    Ring: keys and values of one block pass on ``ring - 1`` times, backward with their gradients too; each transfer
    runs beside the attention of the block before it.  Ulysses: queries, keys, values and the output change from
    sequence to heads and back, four all-to-alls each way, on the critical path.
    """
    attention, share = setting.model.attention, setting.share
    widths = attention.head_dim + attention.v_head_dim
    kv_heads = np.maximum(attention.kv_heads / share.tp, share.ulysses)
    hop = collective_s(setting, "sendrecv", ACTIVATION_BYTES * share.tokens * kv_heads * widths, groups.ring)
    exchanged = share.tokens * (attention.heads / share.tp + kv_heads) * widths
    switch = collective_s(setting, "alltoall", ACTIVATION_BYTES * exchanged, groups.ulysses)
    bare = Traffic(exposed_s=switch, hidden_s=np.zeros_like(switch))
    steps = share.ring - 1.0
    window = steps / share.ring * (1.0 if setting.run.cp_overlap else 0.0)
    forward = split(steps * hop, 0.0, window * attention_s)
    backward = split(2.0 * steps * hop, 0.0, window * attention_backward_s)
    return forward + bare, backward + bare


def ep_traffic(setting: Setting, groups: Groups, kind: LayerKind) -> Traffic:
    """Expert dispatch and combine of one layer: two all-to-alls forward, and the same backward.

    A rank sends its tokens (split over tp) topk times; the fullest rank receives ``expert_imbalance`` of the mean.
    """
    moe = setting.model.moe
    if kind != MOE or moe is None:
        return Traffic(exposed_s=setting.zero, hidden_s=setting.zero)
    stretch = 1.0 if setting.run.balanced_experts else setting.constants["expert_imbalance"]
    copies = moe.topk * (_distinct_nodes(groups.ep, moe.topk) if setting.run.node_dispatch else 1.0)
    size = ACTIVATION_BYTES * setting.share.tokens / setting.share.tp * copies * setting.model.hidden * stretch
    once = collective_s(setting, "alltoall", size, groups.ep)
    return split(2.0 * once, setting.constants["ep_exposed"], np.full_like(once, np.inf))


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


def pp_transfer_s(setting: Setting, groups: Groups) -> FloatArray:
    """One direction of a micro-batch's boundary crossings at one stage, all chunks [s]; 0 without pipeline.

    Activations are split over tp with sequence parallelism, and by the Megatron family always (each TP rank sends its
    part and the receivers gather; arXiv 2104.04473, section 4.1).
    """
    share = setting.share
    ranks = share.tp if setting.workload.framework in {"megatron", "mindspeed"} else share.sp
    size = ACTIVATION_BYTES * share.tokens * setting.model.hidden / ranks
    return setting.table.vpp * collective_s(setting, "sendrecv", size, groups.pp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters of one rank on the stage that holds most of each, shape (C,) [count]."""

    dense: FloatArray
    expert: FloatArray


def reduce_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Reducing all gradients of a stage once [s].

    Sharded over a group of s with r copies of that group: reduce-scatter over s, all-reduce of the shard over r; s = 1
    is the plain all-reduce.  Experts do the same among the ranks that hold them.
    """
    width = float(DTYPE_BYTES[setting.workload.grads_dtype])
    dense, expert = width * held.dense, width * held.expert
    time = collective_s(setting, "reducescatter", dense, groups.shard)
    time = time + collective_s(setting, "allreduce", dense / groups.shard.size, groups.replica)
    time = time + collective_s(setting, "reducescatter", expert, groups.expert_shard)
    whole = collective_s(setting, "allgather", expert, groups.expert_shard)
    return time + np.where(setting.table.zero_level > 0, 0.0, whole)


def gather_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Gathering all sharded parameters of a stage once [s]; 0 where nothing is sharded."""
    width = float(DTYPE_BYTES[setting.workload.compute_dtype])
    time = collective_s(setting, "allgather", width * held.dense, groups.shard)
    experts = collective_s(setting, "allgather", width * held.expert, groups.expert_shard)
    return time + np.where(setting.table.zero_level > 0, experts, 0.0)


def dp_traffic(
    setting: Setting, groups: Groups, held: Held, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[Traffic, Traffic]:
    """Gradient reduction and parameter gathering of one step.

    At zero level 3 parameters are gathered for the forward and the backward pass of every micro-batch, beside a
    micro-batch of computation; from level 2 on gradients, whose sum is kept sharded, are reduced in every micro-batch
    (MindSpore: gradient_accumulation_shard).  Below, both happen once a step, beside the last backward and the first
    forward pass.  ``dp_exposed`` is never hidden.
    """
    table = setting.table
    every = table.zero_level == 3
    times = np.where(table.zero_level >= 2, table.micro_batches, 1)
    gathers = np.where(every, 2.0 * table.micro_batches, 1.0)
    overlap = setting.constants["dp_window"] if setting.run.dp_overlap else 0.0
    floor = setting.constants["dp_exposed"] if setting.run.dp_overlap else 1.0
    beside = np.where(every, table.micro_batches * (forward_s + backward_s), forward_s)
    reduced = split(times * reduce_s(setting, groups, held), floor, overlap * times * backward_s)
    gathered = split(gathers * gather_s(setting, groups, held), floor, overlap * beside)
    return reduced, gathered
