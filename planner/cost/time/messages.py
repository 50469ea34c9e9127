"""What travels between ranks: the collectives of one layer and of one step, their bytes and how often they happen.

`planner.cost.time.communication` prices these messages, `planner.cost.time.volumes` counts them; sizes stand here
alone.
Groups come from ``planner.cluster.placement``.  Activations travel in the compute type.  All arrays are (C,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.cluster.placement import Group, place_on, strides
from planner.cost.parameters import whole_shared
from planner.cost.strategies import FloatArray, Strategies
from planner.cost.time.setting import Number, Setting
from planner.errors import SpecError
from planner.model.records import DTYPE_BYTES, MOE, LayerKind, Model, Workload

GroupName = Literal["tp", "ulysses", "ring", "ep", "etp", "pp", "shard", "replica", "expert_shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Placed groups of each row of a table.

    ``ep`` are the ranks that exchange tokens, ``etp`` those that hold parts of the same experts.  ``shard`` are the
    ranks that share one copy of the optimizer states, ``replica`` the holders of equal shards; ``expert_shard`` the
    ranks with the same parts of the same experts.
    """

    tp: Group
    ulysses: Group
    ring: Group
    ep: Group
    etp: Group
    pp: Group
    shard: Group
    replica: Group
    expert_shard: Group

    def of(self, name: GroupName) -> Group:
        """Group by name."""
        group: Group = getattr(self, name)
        return group


def activation_bytes(setting: Setting) -> float:
    """Bytes of one element of an activation."""
    return float(DTYPE_BYTES[setting.workload.compute_dtype])


def place_groups(setting: Setting) -> Groups:
    """Where the groups of each row lie.

    Raises
    ------
    SpecError
        The experts of a row need more ranks than its stages have.
    """
    table, cluster = setting.table, setting.cluster
    _check_experts(table)
    kinds = strides(tp=table.tp, cp=table.cp, dp=table.dp, pp=table.pp, ep=table.ep, ulysses=table.ulysses_degree)
    replicas = table.dp * table.cp
    shard = np.where(table.zero_level > 0, np.minimum(table.optimizer_shard, replicas), 1)
    placed = {name: place_on(cluster, *kinds[name]) for name in ("tp", "ulysses", "ring")}
    return Groups(
        **placed,
        ep=place_on(cluster, table.ep, table.etp),
        etp=place_on(cluster, table.etp, 1),
        pp=place_on(cluster, np.minimum(table.pp, 2), kinds["pp"][1]),
        shard=place_on(cluster, shard, table.tp),
        replica=place_on(cluster, replicas // shard, table.tp * shard),
        expert_shard=place_on(cluster, table.expert_copies, table.ep * table.etp),
    )


def _check_experts(table: Strategies) -> None:
    few = np.flatnonzero(table.expert_copies < 1.0)
    if len(few):
        s = table.row(int(few[0]))
        raise SpecError(
            f"ep={s.ep} x etp={s.etp} = {s.ep * s.etp} parts of the experts need more ranks than the dp={s.dp} x "
            f"cp={s.cp} x tp={s.tp} = {s.dp * s.cp * s.tp} of a stage; lower ep or etp."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """Equal collectives of one layer and micro-batch, or of one step.

    Attributes
    ----------
    group : str
        Field of `Groups`.
    op : {"allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"}
    size_bytes : ndarray, shape (C,)
        Bytes of one of them, as `planner.cluster.collectives` defines the size of an operation.
    forward, backward : ndarray, shape (C,)
        How many there are in the forward and in the backward pass; 0 where a row has none.
    """

    group: GroupName
    op: str
    size_bytes: FloatArray
    forward: FloatArray
    backward: FloatArray


def tp_messages(setting: Setting, kind: LayerKind) -> tuple[Message, ...]:
    """Tensor-parallel collectives of one layer.

    With sequence parallelism each of attention and MLP gathers its input and scatters its output; backward gathers the
    gradient of the output, scatters that of the input and gathers the saved input once more.  With tokens x h
    everywhere that is 2 + 2 forward and 4 + 2 backward.  Without it each all-reduces its output forward and the
    gradient of its input backward.  What latent attention (MLA) gathers is narrower, see `latent_widths`.  Routed
    experts exchange tokens instead, which `ep_messages` counts; shared experts still gather and scatter, except in
    MindFormers' mcore models, which hold them whole on every rank.
    """
    model = setting.model
    mlp = _split_mlp(setting, kind)
    latent = model.attention.kind == "mla"
    items = _exchanges(setting, model.hidden, inputs=mlp if latent else 1.0 + mlp, outputs=1.0 + mlp)
    for width in latent_widths(model) if latent else ():
        items += _exchanges(setting, width, inputs=1.0, outputs=0.0)
    return items


def _split_mlp(setting: Setting, kind: LayerKind) -> Number:
    """1 where a layer's MLP, or the shared experts of one with routed experts, is split over tp, else 0."""
    if kind != MOE or setting.model.moe is None:
        return 1.0
    whole = whole_shared(setting.table, setting.workload.runs_on.tensors)
    return np.where(whole, 0.0, 1.0) if setting.model.moe.shared_ffn else 0.0


def latent_widths(model: Model) -> tuple[int, ...]:
    """Widths of what latent attention gathers, as its down projections work on a rank's own tokens [elements].

    The latents of queries (hidden states without them) and of keys and values, and the rotary part of the key.
    """
    att = model.attention
    return (att.q_lora_rank or model.hidden), att.kv_lora_rank, att.qk_rope_dim


def _exchanges(setting: Setting, width: float, *, inputs: Number, outputs: Number) -> tuple[Message, ...]:
    """Collectives of a layer's tensor-parallel regions with so many inputs and outputs of tokens x width."""
    size = activation_bytes(setting) * setting.share.tokens * width
    sequence = setting.share.sp > 1
    into, out = (np.where(sequence, number, 0.0) for number in (inputs, outputs))
    whole_into, whole_out = (np.where(sequence, 0.0, number) for number in (inputs, outputs))
    return (
        Message(group="tp", op="allgather", size_bytes=size, forward=into, backward=out + into),
        Message(group="tp", op="reducescatter", size_bytes=size, forward=out, backward=into),
        Message(group="tp", op="allreduce", size_bytes=size, forward=whole_out, backward=whole_into),
    )


def ring_messages(setting: Setting) -> tuple[Message, ...]:
    """Ring exchange of one layer: keys and values of one block pass on ``ring - 1`` times, backward with gradients."""
    if gathers_keys(setting.workload):
        return ()
    attention, share = setting.model.attention, setting.share
    widths = attention.head_dim + attention.v_head_dim
    size = activation_bytes(setting) * share.tokens * kv_heads(setting) * widths
    steps = share.ring - 1.0
    return (Message(group="ring", op="sendrecv", size_bytes=size, forward=steps, backward=2.0 * steps),)


def gathers_keys(workload: Workload) -> bool:
    """Whether ranks gather all keys and values before attention instead of passing blocks around.

    MindFormers' graph mode does (``colossalai_cp``): the sequence axis of flash attention's queries alone is split.
    """
    return workload.runs_on.graph


def key_messages(setting: Setting) -> tuple[Message, ...]:
    """Gathering keys and values of the whole sequence in one layer, and scattering their gradients."""
    if not gathers_keys(setting.workload):
        return ()
    attention, share = setting.model.attention, setting.share
    size = activation_bytes(setting) * share.tokens * share.ring * kv_heads(setting)
    once, none = np.ones_like(size), setting.zero
    return tuple(
        Message(group="ring", op=op, size_bytes=size * width, forward=forward, backward=backward)
        for width in (attention.head_dim, attention.v_head_dim)
        for op, forward, backward in (("allgather", once, none), ("reducescatter", none, once))
    )


def ulysses_messages(setting: Setting) -> tuple[Message, ...]:
    """Head exchange of one layer: queries, keys, values and the output go from sequence to heads and back.

    Four all-to-alls each way, counted as one of all their bytes.
    """
    attention, share = setting.model.attention, setting.share
    widths = attention.head_dim + attention.v_head_dim
    exchanged = share.tokens * (attention.heads / share.tp + kv_heads(setting)) * widths
    once = np.ones_like(share.tokens)
    size = activation_bytes(setting) * exchanged
    return (Message(group="ulysses", op="alltoall", size_bytes=size, forward=once, backward=once),)


def kv_heads(setting: Setting) -> FloatArray:
    """Key and value heads of one rank: at least one for each rank that exchanges heads."""
    share = setting.share
    return np.maximum(setting.model.attention.kv_heads / share.tp, share.ulysses)


def ep_messages(setting: Setting, groups: Groups, kind: LayerKind) -> tuple[Message, ...]:
    """Expert dispatch and combine of one layer: two all-to-alls forward, and the same backward.

    A rank sends its tokens (split over tp) topk times; the size is that of equal shares.  Where experts are split over
    etp, every one of these ranks works on the tokens of all: they are gathered, and the outputs scattered, both ways.
    Without sequence parallelism all have the same tokens, send them all, and add up their outputs.
    """
    moe, share = setting.model.moe, setting.share
    if kind != MOE or moe is None:
        return ()
    routed = activation_bytes(setting) * share.tokens / share.tp * moe.topk * setting.model.hidden
    sent = routed * np.where(share.sp > 1, 1.0, share.etp)
    if setting.run.node_dispatch:
        sent = sent * _distinct_nodes(groups.ep, moe.topk)
    twice = np.full_like(routed, 2.0)
    exchange = Message(group="ep", op="alltoall", size_bytes=sent, forward=twice, backward=twice)
    if (share.etp == 1).all():
        return (exchange,)
    once = np.where(share.sp > 1, 1.0, 0.0)
    received = routed * share.etp
    return (
        exchange,
        Message(group="etp", op="allgather", size_bytes=received, forward=once, backward=once),
        Message(group="etp", op="reducescatter", size_bytes=received, forward=once, backward=once),
        Message(group="etp", op="allreduce", size_bytes=received, forward=1.0 - once, backward=1.0 - once),
    )


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


def layer_messages(setting: Setting, groups: Groups, kind: LayerKind) -> tuple[Message, ...]:
    """All collectives of one layer and micro-batch."""
    return (
        *tp_messages(setting, kind),
        *ring_messages(setting),
        *key_messages(setting),
        *ulysses_messages(setting),
        *ep_messages(setting, groups, kind),
    )


def pp_messages(setting: Setting) -> tuple[Message, ...]:
    """Boundary crossings of a micro-batch at one stage, all chunks: one each way for a chunk.

    Activations are split over tp with sequence parallelism, and by the Megatron family always (each TP rank sends its
    part and the receivers gather; arXiv 2104.04473, section 4.1).
    """
    share = setting.share
    ranks = share.tp if setting.workload.runs_on.sends_parts else share.sp
    size = activation_bytes(setting) * share.tokens * setting.model.hidden / ranks
    chunks = setting.table.vpp.astype(np.float64)
    return (Message(group="pp", op="sendrecv", size_bytes=size, forward=chunks, backward=chunks),)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Parameters of one rank outside and inside experts [count], shape (C,) or, by stage, (C, S)."""

    dense: FloatArray
    expert: FloatArray


def gradient_messages(setting: Setting, groups: Groups, held: Held) -> tuple[Message, ...]:
    """Reducing the gradients of a stage, those of one step.

    Sharded over a group of s with r copies of that group: reduce-scatter over s, all-reduce of the shard over r; s = 1
    is the plain all-reduce.  Experts do the same among the ranks that hold them.  From zero level 2 on gradients, whose
    sum is kept sharded, are reduced in every micro-batch (MindSpore: gradient_accumulation_shard), else once.
    """
    table = setting.table
    width = float(DTYPE_BYTES[setting.workload.grads_dtype])
    dense, expert = width * held.dense, width * held.expert
    times = np.where(table.zero_level >= 2, table.micro_batches, 1).astype(np.float64)
    plain = np.where(table.zero_level > 0, 0.0, times)

    def message(group: GroupName, op: str, size: FloatArray, times: FloatArray) -> Message:
        return Message(group=group, op=op, size_bytes=size, forward=setting.zero, backward=times)

    return (
        message("shard", "reducescatter", dense, times),
        message("replica", "allreduce", dense / groups.shard.size, times),
        message("expert_shard", "reducescatter", expert, times),
        message("expert_shard", "allgather", expert, plain),
    )


def parameter_messages(setting: Setting, held: Held) -> tuple[Message, ...]:
    """Gathering the sharded parameters of a stage, in one step.

    Once; at zero level 3 for the forward and the backward pass of every micro-batch.
    """
    table = setting.table
    width = float(DTYPE_BYTES[setting.workload.compute_dtype])
    every = table.zero_level == 3
    forward = np.where(every, table.micro_batches, 1).astype(np.float64)
    backward = np.where(every, table.micro_batches, 0).astype(np.float64)
    sharded: Number = np.where(table.zero_level > 0, 1.0, 0.0)
    return (
        Message(group="shard", op="allgather", size_bytes=width * held.dense, forward=forward, backward=backward),
        Message(
            group="expert_shard",
            op="allgather",
            size_bytes=width * held.expert,
            forward=sharded * forward,
            backward=sharded * backward,
        ),
    )
