"""Collective times over sizes: a table for each measured group, and link constants for the groups that were not.

A table is monotone (a larger message is never faster) and interpolated log-log.  The link constants of
`planner.cluster.rates` are fitted through the library's own choice of algorithm, so that they carry over to other group
sizes.  `alpha_beta` is the reader's summary: time = alpha + size / bandwidth, piecewise between the sizes where HCCL
changes its algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cluster.collectives import collective_s
from planner.cluster.placement import place
from planner.cluster.rates import defaults
from planner.cluster.records import Constant, Hardware
from planner.cluster.tables import SizeTable, size_seconds
from planner.observe.points import Point

FloatArray = NDArray[np.float64]

#: Sizes at which HCCL changes its algorithm [bytes]; facts of its open selector.
SWITCHES: Final = (2.0**16, 2.0**18, 2.0**20, 2.0**24)
#: Constants that an operation's times determine: its start, the share of the links, between nodes that of the ports.
_STARTS: Final[Mapping[str, tuple[str, ...]]] = {"allreduce": ("start_s_allreduce", "start_s_allreduce_large")}
#: Spread of a start and a share around their defaults before they are measured [log].
_PRIOR: Final = 1.5
#: Normal 90th percentile.
T90: Final = 1.2816


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """time = alpha + size / bandwidth between two sizes."""

    from_bytes: float
    to_bytes: float
    alpha_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """One operation in one group: measured, fitted and held-out times, and its lines."""

    op: str
    ranks: int
    nodes: int
    size_bytes: tuple[float, ...]
    measured_s: tuple[float, ...]
    fitted_s: tuple[float, ...]
    held_out_s: tuple[float, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFits:
    """Everything collectives say about a device."""

    fits: tuple[CollectiveFit, ...]
    tables: tuple[SizeTable, ...]
    constants: Mapping[str, Constant]


def fit_collectives(points: Sequence[Point], hardware: Hardware) -> CollectiveFits:
    """Tables and link constants of collective points; empty without points."""
    groups: dict[tuple[str, int, int], list[Point]] = {}
    for point in points:
        key = (point.op, int(point.sizes["ranks"]), int(point.sizes.get("nodes", 1)))
        groups.setdefault(key, []).append(point)
    tables, fits = [], []
    for (op, ranks, nodes), members in sorted(groups.items()):
        sizes, seconds = _by_size(members)
        if len(sizes) < 2:
            continue
        table = _table(op, ranks, nodes, sizes, seconds)
        tables.append(table)
        fits.append(_fit(table, sizes, seconds))
    return CollectiveFits(fits=tuple(fits), tables=tuple(tables), constants=link_constants(tables, hardware))


def _by_size(points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
    """Sizes in rising order, the fastest time of each."""
    best: dict[float, float] = {}
    for point in points:
        size = float(point.sizes["bytes"])
        best[size] = min(best.get(size, math.inf), point.best_s)
    sizes = np.array(sorted(best))
    return sizes, np.array([best[size] for size in sizes])


def _table(op: str, ranks: int, nodes: int, sizes: FloatArray, seconds: FloatArray) -> SizeTable:
    rising = np.minimum.accumulate(seconds[::-1])[::-1]
    return SizeTable(
        op=op, ranks=ranks, nodes=nodes, size_bytes=tuple(map(float, sizes)), seconds=tuple(map(float, rising))
    )


def _fit(table: SizeTable, sizes: FloatArray, seconds: FloatArray) -> CollectiveFit:
    held = np.array([_without(table, sizes, seconds, i) for i in range(len(sizes))])
    return CollectiveFit(
        op=table.op, ranks=table.ranks, nodes=table.nodes, size_bytes=table.size_bytes,
        measured_s=tuple(map(float, seconds)), fitted_s=table.seconds, held_out_s=tuple(map(float, held)),
        lines=lines(sizes, seconds),
    )  # fmt: skip


def _without(table: SizeTable, sizes: FloatArray, seconds: FloatArray, place: int) -> float:
    """Time of one size from the others; of the smallest from the next, of the largest at the bandwidth before it."""
    rest = np.arange(len(sizes)) != place
    smaller = _table(table.op, table.ranks, table.nodes, sizes[rest], seconds[rest])
    return float(size_seconds(smaller, sizes[place]))


def lines(size_bytes: FloatArray, seconds: FloatArray) -> tuple[Line, ...]:
    """Piecewise lines: a new one at a switch of HCCL's where each side holds three sizes or more and it pays.

    >>> sizes = np.array([2.0**k for k in range(10, 27, 2)])
    >>> [round(line.alpha_s * 1e6, 3) for line in lines(sizes, 35e-6 + sizes / 110e9)]
    [35.0]
    """
    order = np.argsort(size_bytes)
    size, time = size_bytes[order], seconds[order]
    whole = alpha_beta(size, time)
    best, cuts = _misses(size, time, whole), (whole,)
    for switch in SWITCHES:
        below = size <= switch
        if below.sum() < 3 or (~below).sum() < 3:
            continue
        pair = alpha_beta(size[below], time[below]), alpha_beta(size[~below], time[~below])
        missed = _misses(size[below], time[below], pair[0]) + _misses(size[~below], time[~below], pair[1])
        if missed < 0.5 * best and missed < best - 1e-4 * len(size):
            best, cuts = missed, pair
    return cuts


def _misses(size: FloatArray, time: FloatArray, line: Line) -> float:
    return float((np.log((line.alpha_s + size / line.bytes_per_s) / time) ** 2).sum())


def alpha_beta(size_bytes: FloatArray, seconds: FloatArray) -> Line:
    """Start and bandwidth with the least relative squared error, neither below zero."""
    from scipy.optimize import nnls

    size, time = np.asarray(size_bytes, np.float64), np.asarray(seconds, np.float64)
    scale = float(size.max())
    (alpha, slope), _ = nnls(np.stack([1.0 / time, size / scale / time], axis=1), np.ones(len(size)))
    return Line(
        from_bytes=float(size.min()), to_bytes=float(size.max()), alpha_s=float(alpha),
        bytes_per_s=scale / float(slope) if slope > 0.0 else math.inf,
    )  # fmt: skip


def link_constants(tables: Sequence[SizeTable], hardware: Hardware) -> dict[str, Constant]:
    """Starts and link shares under which the library's algorithms take the measured times, with 80 % intervals."""
    from scipy.optimize import least_squares

    if not tables:
        return {}
    known = defaults(hardware)
    keys = [key for key in _keys(tables) if key in known]
    start = np.log([known[key].value for key in keys])

    def errors(x: FloatArray) -> FloatArray:
        own = dict(zip(keys, np.exp(x), strict=True))
        parts = [_log_errors(table, hardware, own) for table in tables]
        return np.concatenate([*parts, (x - start) / _PRIOR * 0.1])

    found = least_squares(errors, start, bounds=(start - 8.0, start + 8.0), loss="soft_l1", f_scale=0.2)
    rows = sum(len(table.seconds) for table in tables)
    spread = float((found.fun[:rows] ** 2).sum() / max(1, rows - len(keys)))
    half = T90 * np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)) * max(spread, 1e-3))
    source = f"{rows} sizes of {', '.join(dict.fromkeys(table.op for table in tables))}"
    return {
        key: Constant(
            value=float(np.exp(x)), low=float(np.exp(x - min(margin, 4.0))), high=float(np.exp(x + min(margin, 4.0))),
            kind="measured", source=source,
        )
        for key, x, margin in zip(keys, found.x, half, strict=True)
    }  # fmt: skip


def _keys(tables: Sequence[SizeTable]) -> list[str]:
    """Constants that the measured operations depend on."""
    ops = {table.op for table in tables}
    keys = []
    for op in sorted(ops):
        keys += _STARTS.get(op, (f"start_s_{op}",))
        if op in ("allreduce", "broadcast"):
            keys += ["link_frac_allreduce", "link_frac_allgather"]
            if op == "allreduce" and "reducescatter" not in ops:
                keys.append("link_frac_reducescatter")
        else:
            keys.append(f"link_frac_{op}")
        if any(table.nodes > 1 for table in tables if table.op == op):
            keys.append("nic_frac_sendrecv" if op == "sendrecv" else "nic_frac")
    return list(dict.fromkeys(keys))


def _log_errors(table: SizeTable, hardware: Hardware, own: Mapping[str, float]) -> FloatArray:
    sizes = np.array(table.size_bytes)
    inside = table.ranks // table.nodes
    pod = hardware.superpod.devices if hardware.superpod else 0
    group = place(
        np.full(len(sizes), table.ranks), np.ones(len(sizes), np.int64), inside,
        devices_per_pod=pod, quad_size=hardware.node.quad_size,
    )  # fmt: skip
    predicted = collective_s(table.op, sizes, group, hardware, own)
    return np.asarray(np.log(np.maximum(predicted, 1e-9)) - np.log(table.seconds))
