"""Collective times over sizes: a table for each measured group, and link constants for the groups that were not.

A table holds the piecewise line corrected by what it misses, smoothed; it never falls with size.  The link constants of
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

from planner.calibrate import smoothing
from planner.calibrate.smoothing import Smoothing, best_smoothing
from planner.cluster.collectives import collective_s
from planner.cluster.placement import place
from planner.cluster.rates import defaults
from planner.cluster.records import Constant, Hardware
from planner.cluster.tables import SizeTable
from planner.observe.points import Point

FloatArray = NDArray[np.float64]

#: Scatter of a calm measurement [log].
CALM: Final = 0.05
#: Sizes at which HCCL changes its algorithm [bytes]; facts of its open selector.
SWITCHES: Final = (2.0**16, 2.0**18, 2.0**20, 2.0**24)
#: Constants that an operation's times determine: its start, the share of the links, between nodes that of the ports.
_STARTS: Final[Mapping[str, tuple[str, ...]]] = {"allreduce": ("start_s_allreduce", "start_s_allreduce_large")}
#: Half an interval [log] from which the measured times do not determine a constant, and it is left out.
UNDETERMINED: Final = 1.5
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
    sized = {key: _by_size(members) for key, members in sorted(groups.items())}
    fits = [_fit(*key, given) for key, given in sized.items() if len(given.size) > 1]
    tables = [_table(fit) for fit in fits]
    return CollectiveFits(fits=tuple(fits), tables=tuple(tables), constants=link_constants(tables, hardware))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """The fastest time of each size, in rising order."""

    size: FloatArray
    seconds: FloatArray
    sigma: FloatArray

    def without(self, place: int) -> _Sizes:
        """All but one."""
        rest = np.arange(len(self.size)) != place
        return _Sizes(size=self.size[rest], seconds=self.seconds[rest], sigma=self.sigma[rest])


def _by_size(points: Sequence[Point]) -> _Sizes:
    best: dict[int, Point] = {}
    for point in points:
        known = best.get(point.sizes["bytes"])
        if known is None or point.best_s < known.best_s:
            best[point.sizes["bytes"]] = point
    chosen = [best[size] for size in sorted(best)]
    return _Sizes(
        size=np.array([float(p.sizes["bytes"]) for p in chosen]),
        seconds=np.array([p.best_s for p in chosen]),
        sigma=smoothing.sigmas([p.spread_s / p.best_s for p in chosen], [p.load for p in chosen], CALM),
    )


def _predicted(given: _Sizes, how: Smoothing, at: FloatArray) -> FloatArray:
    """Time of sizes [s]: the piecewise line, and what it misses, smoothed."""
    found = lines(given.size, given.seconds)
    left = np.log(given.seconds) - np.log(line_seconds(found, given.size))
    extra = smoothing.smoothed(np.log2(given.size)[:, None], left, given.sigma, how, np.log2(at)[:, None])
    return np.asarray(line_seconds(found, at) * np.exp(extra))


def _fit(op: str, ranks: int, nodes: int, given: _Sizes) -> CollectiveFit:
    found = lines(given.size, given.seconds)
    left = np.log(given.seconds) - np.log(line_seconds(found, given.size))
    how = best_smoothing(np.log2(given.size)[:, None], left, given.sigma)
    fitted = np.maximum.accumulate(_predicted(given, how, given.size))
    held = [
        float(_predicted(given.without(i), how, given.size[i : i + 1])[0]) if len(given.size) > 2 else float(fitted[i])
        for i in range(len(given.size))
    ]
    return CollectiveFit(
        op=op, ranks=ranks, nodes=nodes, size_bytes=tuple(map(float, given.size)),
        measured_s=tuple(map(float, given.seconds)), fitted_s=tuple(map(float, fitted)), held_out_s=tuple(held),
        lines=found,
    )  # fmt: skip


def _table(fit: CollectiveFit) -> SizeTable:
    return SizeTable(op=fit.op, ranks=fit.ranks, nodes=fit.nodes, size_bytes=fit.size_bytes, seconds=fit.fitted_s)


def line_seconds(found: Sequence[Line], size_bytes: FloatArray) -> FloatArray:
    """Time of sizes on piecewise lines [s]."""
    size = np.asarray(size_bytes, np.float64)
    time = found[0].alpha_s + size / found[0].bytes_per_s
    for line in found[1:]:
        time = np.where(size >= line.from_bytes, line.alpha_s + size / line.bytes_per_s, time)
    return np.asarray(np.maximum(time, 1e-9))


def lines(size_bytes: FloatArray, seconds: FloatArray) -> tuple[Line, ...]:
    """Piecewise lines: a new one at a switch of HCCL's where each side holds three sizes or more and it pays.

    >>> sizes = np.array([2.0**k for k in range(10, 27, 2)])
    >>> [round(line.alpha_s * 1e6, 3) for line in lines(sizes, 35e-6 + sizes / 110e9)]
    [35.0]
    """
    order = np.argsort(size_bytes)
    size, time = size_bytes[order], seconds[order]
    whole = alpha_beta(size, time)
    cuts: tuple[Line, ...] = (whole,)
    best = _misses(size, time, whole)
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
            value=float(np.exp(x)), low=float(np.exp(x - margin)), high=float(np.exp(x + margin)),
            kind="measured", source=source,
        )
        for key, x, margin in zip(keys, found.x, half, strict=True)
        if margin < UNDETERMINED
    }  # fmt: skip


def _keys(tables: Sequence[SizeTable]) -> list[str]:
    """Constants that the measured operations depend on."""
    ops = {table.op for table in tables}
    keys: list[str] = []
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
