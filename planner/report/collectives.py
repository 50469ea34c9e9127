"""What `collective` prints: cost by algorithm, bus bandwidth against size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from planner.cluster.collectives import bus_bytes_per_s, by_algorithm, chosen, collective_s
from planner.cluster.placement import Group, place_on
from planner.cluster.records import Cluster, Hardware
from planner.errors import SpecError
from planner.report.documents import head
from planner.report.text import table, wrapped
from planner.units import KIB, format_bytes, format_seconds

#: Sizes of the curve: powers of four from 4 KiB to 4 GiB.
CURVE_BYTES: Final = tuple(4 * KIB * 4**i for i in range(11))
_BAR: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveQuestion:
    """One operation of one group."""

    op: str
    size_bytes: int
    ranks: int
    stride: int
    hardware: Hardware

    @property
    def group(self) -> Group:
        """Where the group lies: ``stride`` apart, on as many whole nodes as it needs."""
        if self.ranks < 2:
            raise SpecError(f"--ranks {self.ranks}: a collective needs at least 2 ranks.")
        span = self.ranks * self.stride
        node = self.hardware.devices_per_node
        devices = span if span <= node else -(-span // node) * node
        return place_on(Cluster(hardware=self.hardware, devices=devices), self.ranks, self.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoint:
    """Time at one size."""

    size_bytes: int
    time_s: float
    bus_bytes_per_s: float
    algorithm: str


def curve(question: CollectiveQuestion) -> list[CollectivePoint]:
    """Times over `CURVE_BYTES` and at the size asked for, last."""
    sizes = np.array([*CURVE_BYTES, question.size_bytes], np.float64)
    group, hardware = question.group, question.hardware
    times = collective_s(question.op, sizes, group, hardware)
    names = chosen(question.op, sizes, group, hardware)
    bus = bus_bytes_per_s(question.op, sizes, question.ranks, times)
    return [
        CollectivePoint(size_bytes=int(n), time_s=float(t), bus_bytes_per_s=float(b), algorithm=str(a))
        for n, t, b, a in zip(sizes, times, bus, names, strict=True)
    ]


def algorithms(question: CollectiveQuestion) -> dict[str, float]:
    """Time of the size asked for under each algorithm [s], fastest first."""
    times = by_algorithm(question.op, float(question.size_bytes), question.group, question.hardware)
    flat = {name: float(np.ravel(time)[0]) for name, time in times.items()}
    return dict(sorted(flat.items(), key=lambda item: item[1]))


def collective_lines(question: CollectiveQuestion, points: list[CollectivePoint]) -> list[str]:
    """Cost by algorithm, then the curve."""
    asked = points[-1]
    group = question.group
    inner, outer = int(np.ravel(group.inner)[0]), int(np.ravel(group.outer)[0])
    where = f"{inner} a node on {outer} nodes" if outer > 1 else "in one node"
    what = f"{question.op} of {format_bytes(question.size_bytes)} on {question.ranks} x {question.hardware.name}"
    lines = wrapped(
        f"{what}, {where}: "
        f"{format_seconds(asked.time_s)}, {asked.bus_bytes_per_s / 1e9:.1f} GB/s bus bandwidth ({asked.algorithm})"
    )
    rows = []
    for name, time in algorithms(question).items():
        bus = float(bus_bytes_per_s(question.op, question.size_bytes, question.ranks, time))
        rows.append([name, format_seconds(time), f"{bus / 1e9:.1f}", "chosen" if name == asked.algorithm else ""])
    lines += ["", *table(("algorithm", "time", "bus GB/s", ""), rows, left=(0, 3))]
    top = max(point.bus_bytes_per_s for point in points)
    bars = []
    for point in points[:-1]:
        width = round(_BAR * point.bus_bytes_per_s / top)
        bars.append([format_bytes(point.size_bytes), format_seconds(point.time_s), f"{point.bus_bytes_per_s / 1e9:.1f}",
                     "#" * width])  # fmt: skip
    return [*lines, "", *table(("size", "time", "bus GB/s", ""), bars, left=(3,))]


def collective_document(question: CollectiveQuestion, points: list[CollectivePoint]) -> dict[str, Any]:
    """The same as JSON holds it."""
    asked = points[-1]
    return {
        **head("collective"),
        "op": question.op,
        "size_bytes": question.size_bytes,
        "ranks": question.ranks,
        "stride": question.stride,
        "hardware": question.hardware.name,
        "time_s": asked.time_s,
        "bus_bytes_per_s": asked.bus_bytes_per_s,
        "algorithm": asked.algorithm,
        "algorithms_s": algorithms(question),
        "curve": [
            {"size_bytes": p.size_bytes, "time_s": p.time_s, "bus_bytes_per_s": p.bus_bytes_per_s,
             "algorithm": p.algorithm}
            for p in points[:-1]
        ],
    }  # fmt: skip
