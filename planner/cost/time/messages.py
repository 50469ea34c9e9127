"""What travels between ranks: the collectives of one layer and of one step, their bytes and how often they happen.

Tensor-parallel traffic, gradients and parameters differ by framework: compiled graphs of MindSpore
(`planner.cost.time.messages_mindformers`) and the code of Megatron (`planner.cost.time.messages_megatron`) are rival
lists with the same functions, and the framework's record chooses.  What all frameworks send alike stands here.

`planner.cost.time.communication` prices these messages, `planner.cost.time.volumes` counts them; sizes stand in these
modules alone.  Activations travel in the compute type.  All arrays are (C,).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from planner.cluster.placement import Group
from planner.cost.strategies import FloatArray
from planner.cost.time import messages_megatron, messages_mindformers
from planner.cost.time.message import Groups, Held, Message, activation_bytes
from planner.cost.time.setting import Setting
from planner.model.records import MOE, LayerKind, Workload


class Sent(Protocol):
    """What a list of a framework's messages has to say."""

    def tp_messages(self, setting: Setting, kind: LayerKind) -> tuple[Message, ...]: ...  # noqa: D102
    def embedding_messages(self, setting: Setting) -> tuple[Message, ...]: ...  # noqa: D102
    def head_messages(self, setting: Setting) -> tuple[Message, ...]: ...  # noqa: D102
    def routing_messages(self, setting: Setting, kind: LayerKind) -> tuple[Message, ...]: ...  # noqa: D102
    def borrowed_messages(self, setting: Setting, groups: Groups) -> tuple[Message, ...]: ...  # noqa: D102
    def gradient_messages(self, setting: Setting, groups: Groups, held: Held) -> tuple[Message, ...]: ...  # noqa: D102
    def parameter_messages(self, setting: Setting, held: Held) -> tuple[Message, ...]: ...  # noqa: D102


def sent_by(workload: Workload) -> Sent:
    """The messages of a workload's framework."""
    return messages_mindformers if workload.runs_on.graph else messages_megatron


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
    """Head exchange of one layer: queries, keys, values and the output go from sequence to heads and back, one by one.

    One all-to-all each way for each of the four.
    """
    attention, share = setting.model.attention, setting.share
    heads, keys = attention.heads / share.tp, kv_heads(setting)
    once, width = np.ones_like(share.tokens), activation_bytes(setting)
    sizes = (
        heads * attention.head_dim, keys * attention.head_dim, keys * attention.v_head_dim, heads * attention.v_head_dim
    )  # fmt: skip
    return tuple(
        Message(group="ulysses", op="alltoall", size_bytes=width * share.tokens * size, forward=once, backward=once)
        for size in sizes
    )


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
        *sent_by(setting.workload).tp_messages(setting, kind),
        *ring_messages(setting),
        *key_messages(setting),
        *ulysses_messages(setting),
        *ep_messages(setting, groups, kind),
        *sent_by(setting.workload).routing_messages(setting, kind),
    )


def boundary_bytes(setting: Setting) -> FloatArray:
    """What a micro-batch hands over at one boundary of stages or chunks, in each direction [bytes].

    Activations are split over tp with sequence parallelism, and by the Megatron family always (each TP rank sends its
    part and the receivers gather; arXiv 2104.04473, section 4.1).
    """
    share = setting.share
    ranks = share.tp if setting.workload.runs_on.sends_parts else share.sp
    return activation_bytes(setting) * share.tokens * setting.model.hidden / ranks
