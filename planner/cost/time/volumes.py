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
from planner.cost.time.boundaries import hand_over
from planner.cost.time.message import GroupName, Groups, Held, Message, place_groups
from planner.cost.time.setting import Execution, Setting, default_execution, setting
from planner.cost.time.stages import held_CS, layer_counts
from planner.model.records import LayerKind, Model, Workload

GroupKind = Literal["tp", "cp", "ep", "pp", "dp"]

#: Kind of each group: what is exchanged over it, not which axes it spans.
KIND_OF: Final[dict[GroupName, GroupKind]] = {
    "tp": "tp", "vocabulary": "tp", "ring": "cp", "ulysses": "cp", "ep": "ep", "etp": "ep", "ends": "pp",
    "replicas": "dp", "shard": "dp", "replica": "dp", "expert_shard": "dp",
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
        Sorted by kind and operation; groups of one rank are left out.  A ``sendrecv`` between stages is one message
        sent and as many received.
    """
    groups = place_groups(given)
    found: dict[tuple[GroupKind, str], tuple[float, float]] = {}

    def add(kind: GroupKind, op: str, count: float, size_bytes: float) -> None:
        if count * size_bytes != 0.0:
            before = found.get((kind, op), (0.0, 0.0))
            found[kind, op] = (before[0] + count, before[1] + count * size_bytes)

    add("pp", "sendrecv", _handed_over(given, stage), float(messages.boundary_bytes(given)[0]))
    for item, count in (
        *_of_layers(given, groups, stage),
        *_of_ends(given, groups, stage),
        *_of_step(given, groups, stage),
    ):
        if groups.of(item.group).size[0] > 1:
            add(KIND_OF[item.group], item.op, count, float(item.size_bytes[0]))
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
            number = float(item.forward[0]) * forward + float(item.repeated[0]) * again
            yield item, number + float(item.backward[0]) * backward


def _of_ends(given: Setting, groups: Groups, stage: int) -> Iterator[tuple[Message, float]]:
    """Messages of embedding, head and loss, those of MTP modules among them; and the embedding that the ends share."""
    sent, micro = messages.sent_by(given.workload), float(given.table.micro_batches[0])
    at_head = bool(head_CS(given.table)[0, stage])
    modules = given.model.mtp_layers if at_head else 0
    for item in sent.embedding_messages(given):
        yield item, micro * (float(stage == 0) + modules) * float(item.forward[0] + item.backward[0])
    for item in sent.head_messages(given):
        yield item, micro * at_head * (1 + modules) * float(item.forward[0] + item.backward[0])
    if (stage == 0) != at_head:
        for item in sent.borrowed_messages(given, groups):
            yield item, float(item.forward[0] + item.backward[0])


def _handed_over(given: Setting, stage: int) -> float:
    """Hand-overs to other stages in one step."""
    passed = hand_over(given)
    return float(given.table.micro_batches[0]) * float(passed.forward[0, stage] + passed.backward[0, stage])


def _of_step(given: Setting, groups: Groups, stage: int) -> Iterator[tuple[Message, float]]:
    """Gradients and parameters, and their number."""
    sent, every = messages.sent_by(given.workload), held_CS(given, layer_counts(given))
    held = Held(
        dense=every.dense[:, stage],
        expert=every.expert[:, stage],
        small=every.small[:, stage],
        table=every.table[:, stage],
    )
    for item in (*sent.gradient_messages(given, groups, held), *sent.parameter_messages(given, held)):
        yield item, float(item.forward[0] + item.backward[0])
