"""Seconds of communication of one layer, one micro-batch or one step, and how much of it computation hides.

Every function gives exposed and hidden seconds; their sum is the time on the wire.  Messages come from
``planner.cost.time.messages``, times of single collectives from ``planner.cluster.collectives``.  All arrays are (C,).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from planner.cluster.collectives import collective_s as library_s
from planner.cluster.placement import Group
from planner.cluster.tables import size_seconds
from planner.cost.strategies import FloatArray
from planner.cost.time import messages
from planner.cost.time.message import Groups, Held, Message
from planner.cost.time.setting import Number, Setting
from planner.model.records import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Communication split into what adds to the step and what runs beside computation [s]."""

    exposed_s: FloatArray
    hidden_s: FloatArray

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(exposed_s=self.exposed_s + other.exposed_s, hidden_s=self.hidden_s + other.hidden_s)


def collective_s(setting: Setting, op: str, size_bytes: FloatArray, group: Group) -> FloatArray:
    """Time of one collective of every row [s].

    Groups of a measured size take their times from the measured table, the others from the library's algorithms with
    the calibration's link constants over the profile's.
    """
    constants = cast("Mapping[str, float]", setting.constants)
    seconds = library_s(op, size_bytes, group, setting.cluster.hardware, constants)
    for table in setting.measured.of_op(op):
        rows = (group.size == table.ranks) & (group.outer == table.nodes) & (size_bytes > 0.0)
        if rows.any():
            seconds = np.where(rows, size_seconds(table, size_bytes), seconds)
    return seconds


def wire_s(
    setting: Setting, groups: Groups, items: Iterable[Message], stretch: Number = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Time of messages, each ``stretch`` times its size, in the forward and in the backward pass [s]."""
    forward, backward, _ = passes_s(setting, groups, items, stretch)
    return forward, backward


def passes_s(
    setting: Setting, groups: Groups, items: Iterable[Message], stretch: Number = 1.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """`wire_s`, and the time of messages in a forward pass that full recompute repeats [s]."""
    forward, backward, again = setting.zero, setting.zero, setting.zero
    for item in items:
        size = item.size_bytes * stretch / item.pieces
        once = item.pieces * collective_s(setting, item.op, size, groups.of(item.group))
        forward = forward + item.forward * once
        backward = backward + item.backward * once
        again = again + item.repeated * once
    return forward, backward, again


def split(total_s: FloatArray, share: Number, window_s: FloatArray) -> Traffic:
    """Part ``share`` of the traffic is exposed, more when the rest does not fit beside ``window_s`` of computation."""
    exposed = np.maximum(share * total_s, total_s - window_s)
    return Traffic(exposed_s=exposed, hidden_s=total_s - exposed)


def tp_traffic(
    setting: Setting, groups: Groups, kind: LayerKind, matmul_s: FloatArray
) -> tuple[Traffic, Traffic, Traffic]:
    """Tensor-parallel collectives of one layer beside its matmuls: forward, backward, and a repeated forward pass."""
    items = messages.sent_by(setting.workload).tp_messages(setting, kind)
    forward, backward, again = passes_s(setting, groups, items)
    exposed = tp_share(setting)
    return split(forward, exposed, matmul_s), split(backward, exposed, 2.0 * matmul_s), split(again, exposed, matmul_s)


def tp_share(setting: Setting) -> Number:
    """Share of tensor-parallel traffic that computation does not hide.

    Pipelining with matmuls works on the parts of a sequence, so it needs sequence parallelism; MC2's operators do not
    take experts.
    """
    plain = setting.constants["tp_exposed"]
    if not setting.run.tp_overlap or setting.model.moe is not None:
        return plain
    overlapped = np.minimum(setting.constants["tp_exposed_overlapped"], plain)
    return np.where(setting.share.sp > 1, overlapped, plain)


def embedding_s(setting: Setting, groups: Groups) -> tuple[FloatArray, FloatArray]:
    """Looking up the tokens of a micro-batch in a split embedding, forward and backward [s]; nothing hides it."""
    return wire_s(setting, groups, messages.sent_by(setting.workload).embedding_messages(setting))


def head_s(setting: Setting, groups: Groups) -> tuple[FloatArray, FloatArray]:
    """Exposed traffic of one output projection and loss, forward and backward [s]."""
    forward, backward = wire_s(setting, groups, messages.sent_by(setting.workload).head_messages(setting))
    return forward * tp_share(setting), backward * tp_share(setting)


def cp_traffic(
    setting: Setting, groups: Groups, attention_s: FloatArray, attention_backward_s: FloatArray
) -> tuple[Traffic, Traffic]:
    """Context-parallel exchange of one layer, forward and backward.

    Each transfer of a ring runs beside the attention of the block before it; gathered keys and values and the head
    exchange of Ulysses are on the critical path.
    """
    forward, backward = wire_s(setting, groups, messages.ring_messages(setting))
    critical = (*messages.ulysses_messages(setting), *messages.key_messages(setting))
    bare, bare_back = wire_s(setting, groups, critical)
    share = setting.share
    window = (share.ring - 1.0) / share.ring * (1.0 if setting.run.cp_overlap else 0.0)
    return (
        split(forward, 0.0, window * attention_s) + _bare(bare),
        split(backward, 0.0, window * attention_backward_s) + _bare(bare_back),
    )


def _bare(total_s: FloatArray) -> Traffic:
    return Traffic(exposed_s=total_s, hidden_s=np.zeros_like(total_s))


def ep_traffic(
    setting: Setting, groups: Groups, kind: LayerKind, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[Traffic, Traffic]:
    """Expert dispatch and combine of one layer, forward and backward.

    The fullest rank receives ``expert_imbalance`` of the mean, and the others wait for it.  With overlap the traffic of
    one micro-batch runs beside as much computation of another, all but ``ep_exposed_overlapped`` of it.
    """
    stretch = 1.0 if setting.run.balanced_experts else setting.constants["expert_imbalance"]
    tokens = messages.ep_messages(setting, groups, kind)
    routing = messages.sent_by(setting.workload).routing_messages(setting, kind)
    forward, backward = wire_s(setting, groups, (*tokens, *routing), stretch)
    exposed, unlimited = setting.constants["ep_exposed"], np.full_like(forward, np.inf)
    if setting.run.ep_overlap:
        exposed = np.minimum(setting.own("ep_exposed_overlapped"), exposed)
        return split(forward, exposed, forward_s), split(backward, exposed, backward_s)
    return split(forward, exposed, unlimited), split(backward, exposed, unlimited)


def reduce_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Reducing the gradients of a stage, all of one step [s]."""
    return wire_s(setting, groups, messages.sent_by(setting.workload).gradient_messages(setting, groups, held))[1]


def borrowed_s(setting: Setting, groups: Groups) -> FloatArray:
    """The embedding that first and last stage share, once a step [s]; nothing hides it."""
    items = messages.sent_by(setting.workload).borrowed_messages(setting, groups)
    forward, backward = wire_s(setting, groups, items)
    return forward + backward


def gather_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Gathering the sharded parameters of a stage, all of one step [s]; 0 where nothing is sharded."""
    forward, backward = wire_s(setting, groups, messages.sent_by(setting.workload).parameter_messages(setting, held))
    return forward + backward


def dp_traffic(
    setting: Setting, groups: Groups, held: Held, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[Traffic, Traffic]:
    """Gradient reduction and parameter gathering of one step.

    What happens in every micro-batch (parameters at zero level 3, gradients from level 2 on) runs beside a micro-batch
    of computation; what happens once, beside the last backward and the first forward pass.  ``dp_exposed`` is never
    hidden.
    """
    table = setting.table
    times = np.where(table.zero_level >= 2, table.micro_batches, 1)
    overlap = setting.constants["dp_window"] if setting.run.dp_overlap else 0.0
    floor = setting.constants["dp_exposed"] if setting.run.dp_overlap else 1.0
    beside = np.where(table.zero_level == 3, table.micro_batches * (forward_s + backward_s), forward_s)
    reduced = split(reduce_s(setting, groups, held), floor, overlap * times * backward_s)
    gathered = split(gather_s(setting, groups, held), floor, overlap * beside)
    return reduced, gathered
