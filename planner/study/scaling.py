"""How a job scales over devices: the best layout at every size, and what keeps the next size from being as good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from planner.cost.estimate import Estimate
from planner.cost.time.step import COLUMNS
from planner.errors import PlannerError, SpecError
from planner.search.request import Request
from planner.search.suggest import search

Mode = Literal["weak", "strong"]
MODES: Final[tuple[Mode, ...]] = ("weak", "strong")

#: Retained speed of a device below which a size scales badly; the customary mark of a good linearity.
GOOD: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size.

    Attributes
    ----------
    global_batch : int
        Samples of a step at this size.
    estimate : Estimate or None
        Of the best layout; None where there is none, and ``why`` says why.
    retention : float or None
        Tokens/s of a device over that at the smallest size that fits; the linearity.
    speedup : float or None
        Tokens/s of the job over that at the smallest size.
    blame : str or None
        Term of the step that grew most, in device-seconds a token, since the smallest size.
    blame_share : float or None
        Its part of all that grew.
    """

    devices: int
    global_batch: int
    estimate: Estimate | None
    why: str = ""
    retention: float | None = None
    speedup: float | None = None
    blame: str | None = None
    blame_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Sizes in order: weak (samples of a device stay) or strong (samples of a step stay)."""

    mode: Mode
    points: tuple[Point, ...]

    @property
    def fitting(self) -> tuple[Point, ...]:
        """Sizes with a layout."""
        return tuple(point for point in self.points if point.estimate is not None)

    @property
    def falls(self) -> Point | None:
        """Smallest size that keeps less than `GOOD` of a device's speed."""
        return next((p for p in self.points if p.retention is not None and p.retention < GOOD), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured throughput [tokens/s/device] at a size; ``global_batch`` 0 where it was not given."""

    devices: int
    tokens_per_s_per_device: float
    global_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Measured over predicted throughput as ``level x growth**log2(devices / smallest)``.

    Attributes
    ----------
    ratios : tuple of (Measured, Mode, float)
        Each point, the curve it belongs to, and measured over predicted.
    level : float
        Ratio at the smallest measured size.
    growth : float or None
        Factor a doubling; None for a single size.
    spread : float
        Root mean square of the logarithms the fit leaves.
    """

    ratios: tuple[tuple[Measured, Mode, float], ...]
    level: float
    growth: float | None
    spread: float


def scale(request: Request, sizes: Sequence[int], mode: Mode) -> Curve:
    """Best layout at every size; the request's devices and batch are what a device's share is taken from.

    Raises
    ------
    PlannerError
        Nothing fits at any size: the error of the largest.
    """
    last: PlannerError | None = None
    points = []
    for devices in sorted(set(sizes)):
        batch = _batch(request, devices, mode)
        try:
            asked = replace(request.on(devices), workload=replace(request.workload, global_batch=batch), top=1)
            points.append(Point(devices=devices, global_batch=batch, estimate=search(asked).estimates.row(0)))
        except PlannerError as error:
            last = error
            points.append(Point(devices=devices, global_batch=batch, estimate=None, why=str(error)))
    if last is not None and all(point.estimate is None for point in points):
        raise last
    return Curve(mode=mode, points=_compared(points, request.workload.seq))


def _batch(request: Request, devices: int, mode: Mode) -> int:
    if mode == "strong":
        return request.workload.global_batch
    return max(round(request.workload.global_batch * devices / request.cluster.devices), 1)


def _compared(points: Sequence[Point], seq: int) -> tuple[Point, ...]:
    first = next(point for point in points if point.estimate is not None)
    base = first.estimate
    assert base is not None
    unit = base.tokens_per_s_per_device or math.nan
    before = _costs(first, seq)
    out = []
    for point in points:
        if point.estimate is None:
            out.append(point)
            continue
        retention = (point.estimate.tokens_per_s_per_device or math.nan) / unit
        grown = {name: cost - before[name] for name, cost in _costs(point, seq).items() if cost > before[name]}
        blame = max(grown, key=lambda name: grown[name]) if grown and point is not first else None
        out.append(
            replace(
                point,
                retention=retention,
                speedup=retention * point.devices / first.devices,
                blame=blame,
                blame_share=None if blame is None else grown[blame] / sum(grown.values()),
            )
        )
    return tuple(out)


def _costs(point: Point, seq: int) -> dict[str, float]:
    """Device-seconds a token of each term of the step."""
    assert point.estimate is not None
    terms = point.estimate.time_s or {}
    return {name: terms.get(name, 0.0) * point.devices / (point.global_batch * seq) for name in COLUMNS}


def fit(curves: Sequence[Curve], measured: Sequence[Measured]) -> Fit:
    """Measured points beside the curves.

    A point with a batch belongs to the curve that has this batch at its size, one without to the first curve.

    Raises
    ------
    SpecError
        A point lies on no curve.
    """
    ratios = []
    for point in measured:
        mode, estimate = _of(curves, point)
        assert estimate.tokens_per_s_per_device is not None
        ratios.append((point, mode, point.tokens_per_s_per_device / estimate.tokens_per_s_per_device))
    doublings = np.log2([point.devices for point in measured])
    doublings -= doublings.min()
    logs = np.log([ratio for _, _, ratio in ratios])
    several = len(set(doublings.tolist())) > 1
    columns = [np.ones(len(logs)), doublings] if several else [np.ones(len(logs))]
    found, *_ = np.linalg.lstsq(np.stack(columns, axis=1), logs, rcond=None)
    left = logs - np.stack(columns, axis=1) @ found
    return Fit(
        ratios=tuple(ratios),
        level=float(np.exp(found[0])),
        growth=float(np.exp(found[1])) if several else None,
        spread=float(np.sqrt(np.mean(left**2))),
    )


def _of(curves: Sequence[Curve], measured: Measured) -> tuple[Mode, Estimate]:
    for curve in curves:
        for point in curve.fitting:
            if point.devices == measured.devices and measured.global_batch in (0, point.global_batch):
                assert point.estimate is not None
                return curve.mode, point.estimate
    batch = f" with a global batch of {measured.global_batch}" if measured.global_batch else ""
    known = ", ".join(f"{p.devices} with {p.global_batch}" for curve in curves for p in curve.fitting)
    raise SpecError(f"measured: {measured.devices} cards{batch} is no point of the curve; it has {known}.")
