"""Collectives that the compiler inserted beside those that the time model prices, for one rank of one stage."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from planner.cost.time.setting import Setting
from planner.cost.time.volumes import planned_volumes
from planner.validate.compiler.prepare import Layout
from planner.validate.traffic.volumes import Collective, group_kind

#: Groups in the order in which they are shown; "other" spans stages: norms of gradients, set-up, barriers.
GROUPS: Final = ("tp", "cp", "ep", "pp", "dp", "other")
#: Rows whose number of collectives is compared.  Gradients and parameters travel tensor by tensor in the graph, while
#: the planner prices one message.
COUNTED: Final = frozenset({"tp", "cp", "ep", "pp"})

#: What belongs to the set-up of a run, not to a step.
_SET_UP: Final = frozenset({"Broadcast", "Barrier"})
#: Bytes of a scalar: norms of gradients, auxiliary losses.
_SCALAR: Final = 4
#: Scopes of operators that add up a parameter's gradient over its copies, that count the tokens of experts or transpose
#: labels, and that gather tokens, labels and masks of the batch.
_GRADIENT: Final = re.compile(r"Grad__(Mirror|MicroStep|Mini)")
_STATISTICS: Final = re.compile(r"[rR]outer/|PreprocessLabelsAndMasks/")
_DATA: Final = re.compile(
    r"(_MicroBatch|ForCausalLM|CrossEntropyLoss|Loss)(/Grad_AllGather)?/(AllGather|ReduceScatter)-op"
)

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRow:
    """One kind of group and one collective.

    Attributes
    ----------
    group : {"tp", "cp", "ep", "pp", "dp", "other"}
    primitive : str
        ``allreduce``, ``allgather``, ``reducescatter``, ``alltoall``, ``send``, ``receive``; ``reduce`` of gradients,
        whether scattered or not; ``broadcast``, ``barrier``.
    planned_count, planned_bytes : float
        What the time model prices.
    compiled_count, compiled_bytes : int
        What the graph holds: the full tensor of each gather or scatter.
    """

    group: str
    primitive: str
    planned_count: float
    planned_bytes: float
    compiled_count: int
    compiled_bytes: int

    @property
    def difference_bytes(self) -> float:
        """Planned minus compiled [bytes]."""
        return self.planned_bytes - self.compiled_bytes

    @property
    def unexplained_bytes(self) -> float:
        """Compiled bytes that the planner does not account for [bytes]."""
        return self.compiled_bytes - self.planned_bytes

    @property
    def unexplained_count(self) -> float:
        """The same for their number; 0 where it is not compared."""
        if self.group not in COUNTED:
            return 0.0
        return self.compiled_count - self.planned_count


@dataclass(slots=True)
class _Sums:
    planned: list[tuple[float, float]] = field(default_factory=list)
    compiled: list[tuple[int, int]] = field(default_factory=list)


def compare(given: Setting, stage: int, collectives: Iterable[Collective], layout: Layout) -> tuple[VolumeRow, ...]:
    """Planned and compiled collectives of one stage, side by side.

    Parameters
    ----------
    given : Setting
        Of the strategy with the micro-batches that were run (`planner.cost.time.volumes.setting_of`).
    collectives : iterable of Collective
        Of the rank that was compiled.
    layout : Layout
        Of the configuration that was compiled.
    """
    sums: defaultdict[Key, _Sums] = defaultdict(_Sums)
    for volume in planned_volumes(given, stage):
        for key in planned_keys(volume.kind, volume.op):
            sums[key].planned.append((volume.count, volume.size_bytes))
    for item in collectives:
        sums[compiled_key(item, layout)].compiled.append((1, item.payload_bytes))
    return tuple(_row(key, sums[key]) for key in sorted(sums, key=lambda key: (GROUPS.index(key[0]), key[1])))


def _row(key: Key, sums: _Sums) -> VolumeRow:
    return VolumeRow(
        group=key[0],
        primitive=key[1],
        planned_count=sum(count for count, _ in sums.planned),
        planned_bytes=sum(size for _, size in sums.planned),
        compiled_count=sum(count for count, _ in sums.compiled),
        compiled_bytes=sum(size for _, size in sums.compiled),
    )


def planned_keys(kind: str, op: str) -> tuple[Key, ...]:
    """Rows of a priced operation: a hand-over is a send and a receive, gradients are reduced scattered or not.

    >>> planned_keys("pp", "sendrecv")
    (('pp', 'send'), ('pp', 'receive'))
    """
    if op == "sendrecv":
        return (kind, "send"), (kind, "receive")
    return ((kind, "reduce" if kind == "dp" and op in ("allreduce", "reducescatter") else op),)


def compiled_key(item: Collective, layout: Layout) -> Key:
    """Row of an operator of the graph."""
    primitive = item.primitive.lower()
    primitive = "alltoall" if primitive.startswith("alltoall") else primitive
    group = exchanged(item, layout)
    return group, "reduce" if group == "dp" and primitive in ("allreduce", "reducescatter") else primitive


def exchanged(item: Collective, layout: Layout) -> str:
    """What a group exchanges, where its axes leave that open.

    Axes with dp hold gradients and parameters, and so do cp and tp alone where there is no other copy; keys and values
    travel over cp inside attention, partial sums of an embedding over cp and tp.  Scalars, statistics of routing and
    the step's tokens are "other", and so is what a rank sends to itself.
    """
    axes = group_kind(item, layout)
    if len(item.ranks) < 2 or item.payload_bytes <= _SCALAR or _STATISTICS.search(item.name):
        return "other"
    if axes == "ep" or (axes == "pp" and item.primitive in ("Send", "Receive")):
        return axes
    if "pp" in axes or item.primitive in _SET_UP:
        return "other"
    if _GRADIENT.search(item.name):
        return "dp"
    if "tp" not in axes and _DATA.search(item.name):
        return "other"
    if axes == "tp" or (axes in ("cp", "cp+tp") and item.primitive == "AllReduce"):
        return "tp"
    inside = "attention" in item.name.lower() or item.primitive.startswith("AlltoAll")
    return "cp" if axes == "cp" and inside else "dp"
