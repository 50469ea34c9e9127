"""Collectives of one step on one rank of a stage: number and bytes, from the messages that the time model prices.

Nothing here decides what travels: `planner.cost.time.messages` does, `planner.cost.time.step` says how often.
Expert exchange is that of equal shares, without the calibrated imbalance that its seconds are stretched by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from planner.cluster.records import Calibration, Cluster
from planner.cost.layers import head_CS
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time import messages
from planner.cost.time.messages import GroupName, Groups, Held, Message
from planner.cost.time.setting import Execution, Setting, default_execution, setting
from planner.cost.time.stages import held_CS, layer_counts
from planner.model.records import LayerKind, Model, Workload

GroupKind = Literal["tp", "cp", "ep", "pp", "dp"]

#: Kind of each group: what is exchanged over it, not which axes it spans.
KIND_OF: Final[dict[GroupName, GroupKind]] = {
    "tp": "tp", "ring": "cp", "ulysses": "cp", "ep": "ep", "etp": "ep", "pp": "pp", "shard": "dp", "replica": "dp",
    "expert_shard": "dp",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """All collectives of one kind of group and one operation, in one step of one rank.

    Attributes
    ----------
    kind : {"tp", "cp", "ep", "pp", "dp"}
    op : {"allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"}
    count : float
        Collectives as priced.  Gradients and parameters of a stage count as one message a step.
    size_bytes : float
        Bytes of all of them, as `planner.cluster.collectives` defines the size of an operation [bytes].
    """

    kind: GroupKind
    op: str
    count: float
    size_bytes: float


def setting_of(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    strategy: Strategy,
    run: Execution | None = None,
) -> Setting:
    """One strategy as the time model sees it."""
    constants = {key: constant.value for key, constant in calibration.constants.items()}
    table = Strategies.of([strategy])
    return setting(model, workload, cluster, constants, table, run or default_execution(workload), calibration.measured)


def planned_volumes(given: Setting, stage: int) -> tuple[Volume, ...]:
    """Collectives of one step on one rank of a stage, by kind of group and operation.

    Parameters
    ----------
    given : Setting
        Of one strategy, see `setting_of`.
    stage : int
        Pipeline stage; gradients and parameters are those this stage holds, while `step_time` prices the fullest one.

    Returns
    -------
    tuple of Volume
        Sorted by kind and operation; groups of one rank are left out.
    """
    groups = messages.place_groups(given)
    found: dict[tuple[GroupKind, str], tuple[float, float]] = {}
    for item, count in (*_of_layers(given, groups, stage), *_of_step(given, groups, stage)):
        if count * float(item.size_bytes[0]) == 0.0 or groups.of(item.group).size[0] < 2:
            continue
        key = (KIND_OF[item.group], item.op)
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + count, before[1] + count * float(item.size_bytes[0]))
    return tuple(
        Volume(kind=kind, op=op, count=count, size_bytes=size) for (kind, op), (count, size) in sorted(found.items())
    )


def passes(given: Setting, kind: LayerKind, stage: int) -> tuple[float, float, float]:
    """Passes through layers of a kind on a stage in all micro-batches: forward, recomputed forward, backward.

    A module of multi-token prediction is one more layer of the last kind on the stage of the head.
    """
    count, micro = layer_counts(given)[kind], float(given.table.micro_batches[0])
    behind = given.model.mtp_layers if kind == given.model.layer_kinds[-1] and head_CS(given.table)[0, stage] else 0
    once = micro * (float(count.all[0, stage]) + behind)
    return once, micro * float(count.full[0, stage]), once


def _of_layers(given: Setting, groups: Groups, stage: int) -> Iterator[tuple[Message, float]]:
    """Messages of a stage's layers and MTP modules, and their number in all micro-batches."""
    for kind in given.model.kinds:
        forward, again, backward = passes(given, kind, stage)
        for item in messages.layer_messages(given, groups, kind):
            yield item, float(item.forward[0]) * (forward + again) + float(item.backward[0]) * backward


def _of_step(given: Setting, groups: Groups, stage: int) -> Iterator[tuple[Message, float]]:
    """Boundary crossings of all micro-batches, gradients and parameters, and their number."""
    micro = float(given.table.micro_batches[0])
    for item in messages.pp_messages(given):
        yield item, micro * float(item.forward[0] + item.backward[0])
    every = held_CS(given, layer_counts(given))
    held = Held(dense=every.dense[:, stage], expert=every.expert[:, stage])
    for item in (*messages.gradient_messages(given, groups, held), *messages.parameter_messages(given, held)):
        yield item, float(item.forward[0] + item.backward[0])
