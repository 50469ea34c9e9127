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
from planner.cost.time.messages import Groups, Held, Message
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
    forward, backward = setting.zero, setting.zero
    for item in items:
        once = collective_s(setting, item.op, item.size_bytes * stretch, groups.of(item.group))
        forward = forward + item.forward * once
        backward = backward + item.backward * once
    return forward, backward


def split(total_s: FloatArray, share: Number, window_s: FloatArray) -> Traffic:
    """Part ``share`` of the traffic is exposed, more when the rest does not fit beside ``window_s`` of computation."""
    exposed = np.maximum(share * total_s, total_s - window_s)
    return Traffic(exposed_s=exposed, hidden_s=total_s - exposed)


def tp_traffic(setting: Setting, groups: Groups, kind: LayerKind, matmul_s: FloatArray) -> tuple[Traffic, Traffic]:
    """Tensor-parallel collectives of one layer, forward and backward, beside its matmuls."""
    forward, backward = wire_s(setting, groups, messages.tp_messages(setting, kind))
    exposed = setting.constants["tp_exposed_overlapped" if setting.run.tp_overlap else "tp_exposed"]
    return split(forward, exposed, matmul_s), split(backward, exposed, 2.0 * matmul_s)


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


def ep_traffic(setting: Setting, groups: Groups, kind: LayerKind) -> tuple[Traffic, Traffic]:
    """Expert dispatch and combine of one layer, forward and backward.

    The fullest rank receives ``expert_imbalance`` of the mean, and the others wait for it.
    """
    stretch = 1.0 if setting.run.balanced_experts else setting.constants["expert_imbalance"]
    forward, backward = wire_s(setting, groups, messages.ep_messages(setting, groups, kind), stretch)
    exposed, unlimited = setting.constants["ep_exposed"], np.full_like(forward, np.inf)
    return split(forward, exposed, unlimited), split(backward, exposed, unlimited)


def pp_transfer_s(setting: Setting, groups: Groups) -> FloatArray:
    """One direction of a micro-batch's boundary crossings at one stage, all chunks [s]; 0 without pipeline."""
    return wire_s(setting, groups, messages.pp_messages(setting))[0]


def reduce_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Reducing the gradients of a stage, all of one step [s]."""
    return wire_s(setting, groups, messages.gradient_messages(setting, groups, held))[1]


def gather_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Gathering the sharded parameters of a stage, all of one step [s]; 0 where nothing is sharded."""
    forward, backward = wire_s(setting, groups, messages.parameter_messages(setting, held))
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
