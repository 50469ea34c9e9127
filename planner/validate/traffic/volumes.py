"""Collectives the compiler put into the graph of one rank: how many, how many bytes, over which kind of group.

Read from ``execute_order/`` that MindSpore writes when graphs are saved (`DryRunSettings.graphs`): every
communication operator of one step in launch order, with the ranks of its group and its sizes. The dump lists the
graph twice (before and after the final ordering), so operators are counted once per name.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.errors import ValidationError
from planner.validate.compiler.prepare import Layout

_PEER_TO_PEER = frozenset({"Send", "Receive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One communication operator of a rank's graph."""

    name: str
    primitive: str
    """AllReduce, AllGather, ReduceScatter, AlltoAll, AlltoAllV, Send, Receive, ..."""
    ranks: tuple[int, ...]
    input_bytes: int
    output_bytes: int

    @property
    def payload_bytes(self) -> int:
        """The larger of what goes in and what comes out: the full tensor of a gather or scatter."""
        return max(self.input_bytes, self.output_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """All collectives of one kind of group and one primitive, in one step of one rank."""

    group: str
    """Axes along which the ranks of the group differ, such as ``tp``, ``dp+cp``, ``pp``; ``ep``: expert exchange."""
    group_size: int
    primitive: str
    count: int
    payload_bytes: int


def read_collectives(folder: Path) -> list[Collective]:
    """Communication operators of the rank whose graphs were saved below `folder`."""
    found = sorted(folder.rglob("comm_execute_order.csv"))
    if not found:
        raise ValidationError(
            f"{folder} holds no comm_execute_order.csv: run with DryRunSettings(graphs=True, keep=...)."
        )
    with found[0].open(newline="") as file:
        communication = list(csv.DictReader(file))
    with found[0].with_name("execute_order.csv").open(newline="") as file:
        names = {row["index"]: row["node_name"] for row in csv.DictReader(file)}
    return list(_once_per_name(communication, names))


def _once_per_name(communication: Iterable[dict[str, str]], names: dict[str, str]) -> Iterator[Collective]:
    seen = set()
    for row in communication:
        name = names.get(row["index"], row["index"])
        if name not in seen:
            seen.add(name)
            yield Collective(
                name=name,
                primitive=row["primitive"],
                ranks=tuple(int(rank) for rank in row["comm_rank"].split()),
                input_bytes=_total(row["input_size"]),
                output_bytes=_total(row["output_size"]),
            )


def _total(sizes: str) -> int:
    """Sum of a cell such as ``"16384"`` or ``"8192 8192"``; operators without that side have an empty one."""
    return sum(int(size) for size in sizes.replace(",", " ").split())


def volumes(collectives: Iterable[Collective], layout: Layout) -> list[Volume]:
    """Number and bytes by kind of group and primitive, largest first."""
    count: Counter[tuple[str, int, str]] = Counter()
    payload: Counter[tuple[str, int, str]] = Counter()
    for item in collectives:
        key = (group_kind(item, layout), len(item.ranks), item.primitive)
        count[key] += 1
        payload[key] += item.payload_bytes
    found = [
        Volume(group=key[0], group_size=key[1], primitive=key[2], count=count[key], payload_bytes=payload[key])
        for key in count
    ]
    return sorted(found, key=lambda volume: (-volume.payload_bytes, volume.group, volume.primitive))


def group_kind(item: Collective, layout: Layout) -> str:
    """Axes along which the group's ranks differ.

    MindFormers numbers ranks with tensor parallel innermost, then context, data and pipeline parallel.
    """
    if item.primitive in _PEER_TO_PEER:
        return "pp"
    places = [_place(rank, layout) for rank in item.ranks]
    varying = [axis for axis in ("pp", "dp", "cp", "tp") if len({place[axis] for place in places}) > 1]
    if item.primitive.lower().startswith("alltoall") and varying != ["cp"]:
        return "ep"
    return "+".join(varying) or "self"


def _place(rank: int, layout: Layout) -> dict[str, int]:
    """Coordinates of a rank."""
    place = {}
    for axis, size in (("tp", layout.model_parallel), ("cp", layout.context_parallel), ("dp", layout.data_parallel)):
        rank, place[axis] = divmod(rank, size)
    return place | {"pp": rank}
