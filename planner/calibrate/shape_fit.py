"""Matmul times over shapes: the smooth law of the time model, and a table of what it misses.

The law has two constants (`planner.cost.time.compute.matmul_s`); they are fitted to logarithms with a soft loss, points
measured on a busy machine counting less.  What is left over is smoothed over log2(m, k, n), see
`planner.calibrate.smoothing`; where no table does better than the law, there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate import smoothing
from planner.calibrate.smoothing import Smoothing, best_smoothing
from planner.cluster.records import Constant
from planner.cluster.tables import ShapeTable, shape_factor
from planner.cost.time.compute import matmul_s
from planner.observe.points import Point

FloatArray = NDArray[np.float64]
Shape = tuple[float, float, float]

#: Scatter of a calm measurement [log].
CALM: Final = 0.04
#: Noise written into a table whose rows are smoothed already.
SMOOTHED: Final = 0.02
#: Folds in which shapes are held out.
FOLDS: Final = 8
#: Bounds of the law's constants: share of the peak, elements.
EFFICIENCY: Final = (1e-4, 100.0)
K0: Final = (0.01, 4000.0)
#: Normal 90th percentile.
T90: Final = 1.2816


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """One shape beside the fit; ``name`` is matmul or matmul_backward."""

    name: str
    shape: Shape
    measured_s: float
    fitted_s: float
    held_out_s: float
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Constants of the smooth law on one device, and the rates it is a share of."""

    efficiency: float
    k0: float
    peak_flop_per_s: float
    bytes_per_s: float
    element_bytes: float

    def seconds(self, shapes: Sequence[Shape]) -> FloatArray:
        """Time of shapes [s]."""
        m, k, n = np.array(shapes, np.float64).reshape(-1, 3).T
        rate = self.peak_flop_per_s * self.efficiency
        return np.asarray(matmul_s(m, k, n, rate, self.k0, self.bytes_per_s, self.element_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFit:
    """Law, backward ratio and tables of one data type."""

    law: Law
    backward_ratio: float
    forward: ShapeTable | None
    backward: ShapeTable | None
    constants: dict[str, Constant]
    rows: tuple[ShapeRow, ...]


def shape_of(point: Point) -> Shape:
    """(m, k, n) of a matmul."""
    return float(point.sizes["m"]), float(point.sizes["k"]), float(point.sizes["n"])


def sigmas(points: Sequence[Point]) -> FloatArray:
    """How far a measurement may be off [log]."""
    return smoothing.sigmas([p.spread_s / p.best_s for p in points], [p.load for p in points], CALM)


def fit_shapes(
    forward: Sequence[Point],
    backward: Sequence[Point],
    peak_flop_per_s: float,
    bytes_per_s: float,
    element_bytes: float,
) -> ShapeFit:
    """Fit law, backward ratio and tables; backward points may be absent."""
    start = Law(
        efficiency=0.5, k0=30.0, peak_flop_per_s=peak_flop_per_s, bytes_per_s=bytes_per_s, element_bytes=element_bytes
    )
    law, scatter = fit_law(forward, start)
    left = _left_over(forward, law, 1.0)
    how = best_smoothing(_places(forward), left, sigmas(forward))
    ratio = _ratio(backward, law)
    constants = _constants(law, scatter, len(forward), backward, ratio)
    table = _table(forward, left, how)
    behind = _table(backward, _left_over(backward, law, ratio), how) if backward else None
    rows = [*_rows("matmul", forward, law, 1.0, table), *_rows("matmul_backward", backward, law, ratio, behind)]
    held = [*_held_out(forward, start, how), *_held_out_backward(backward, law, how)]
    return ShapeFit(
        law=law,
        backward_ratio=ratio,
        forward=table,
        backward=behind,
        constants=constants,
        rows=tuple(
            ShapeRow(
                name=name, shape=shape_of(p), measured_s=p.best_s, fitted_s=fitted, held_out_s=float(out), mark=p.mark
            )
            for (name, p, fitted), out in zip(rows, held, strict=True)
        ),
    )


def fit_law(points: Sequence[Point], start: Law) -> tuple[Law, FloatArray]:
    """Efficiency and k0 of points, and the covariance of their logarithms."""
    from scipy.optimize import least_squares

    shapes = [shape_of(p) for p in points]
    logs, weights = np.log([p.best_s for p in points]), 1.0 / sigmas(points)

    def errors(x: FloatArray) -> FloatArray:
        return np.asarray((np.log(_with(start, x).seconds(shapes)) - logs) * weights)

    bounds = np.log([EFFICIENCY, K0]).T
    best = min(
        (
            least_squares(errors, np.log([efficiency, k0]), bounds=bounds, loss="soft_l1")
            for efficiency in (0.1, 0.8)
            for k0 in (3.0, 100.0)
        ),
        key=lambda found: float(found.cost),
    )
    freedom = max(1, len(points) - 2)
    spread = float((best.fun**2).sum() / freedom)
    covariance = np.linalg.pinv(best.jac.T @ best.jac) * max(spread, 1e-4)
    return _with(start, best.x), covariance


def _with(law: Law, x: FloatArray) -> Law:
    return Law(
        efficiency=float(np.exp(x[0])), k0=float(np.exp(x[1])), peak_flop_per_s=law.peak_flop_per_s,
        bytes_per_s=law.bytes_per_s, element_bytes=law.element_bytes,
    )  # fmt: skip


def _left_over(points: Sequence[Point], law: Law, ratio: float) -> FloatArray:
    """log(measured / law)."""
    if not points:
        return np.zeros(0)
    best = np.log(np.array([p.best_s for p in points]))
    return np.asarray(best - np.log(ratio * law.seconds([shape_of(p) for p in points])), np.float64)


def _ratio(points: Sequence[Point], law: Law) -> float:
    """Backward over forward law: the weighted median, which a few loaded points do not move."""
    if not points:
        return 2.0
    left, weights = _left_over(points, law, 1.0), 1.0 / sigmas(points) ** 2
    order = np.argsort(left)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(np.exp(left[order][np.searchsorted(share, 0.5)]))


def _constants(
    law: Law, covariance: FloatArray, count: int, backward: Sequence[Point], ratio: float
) -> dict[str, Constant]:
    half = T90 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    source = f"{count} shapes"
    found = {
        name: Constant(
            value=value,
            low=value * math.exp(-min(margin, 3.0)),
            high=value * math.exp(min(margin, 3.0)),
            kind="measured",
            source=source,
        )
        for name, value, margin in (
            ("matmul_efficiency", law.efficiency, float(half[0])),
            ("matmul_k0", law.k0, float(half[1])),
        )
    }
    if backward:
        scatter = float(np.std(_left_over(backward, law, ratio))) / math.sqrt(len(backward))
        margin = T90 * max(scatter, 0.02)
        found["matmul_backward"] = Constant(
            value=ratio,
            low=ratio * math.exp(-margin),
            high=ratio * math.exp(margin),
            kind="measured",
            source=f"{len(backward)} shapes",
        )
    return found


def _places(points: Sequence[Point]) -> FloatArray:
    return np.asarray(np.log2(np.array([shape_of(p) for p in points], np.float64).reshape(-1, 3)))


def _table(points: Sequence[Point], left: FloatArray, how: Smoothing) -> ShapeTable | None:
    """Smoothed left-overs at the measured shapes."""
    if how.strength == 0.0 or not points:
        return None
    values = smoothing.smoothed(_places(points), left, sigmas(points), how)
    return ShapeTable(
        shapes=tuple(shape_of(p) for p in points),
        log_ratio=tuple(round(float(value), 4) for value in values),
        width=how.width,
        noise=SMOOTHED,
    )


def predicted_s(law: Law, ratio: float, table: ShapeTable | None, shapes: Sequence[Shape]) -> FloatArray:
    """Time of shapes under law and table [s]."""
    m, k, n = np.array(shapes, np.float64).reshape(-1, 3).T
    return np.asarray(ratio * law.seconds(shapes) * shape_factor(table, m, k, n))


def _rows(
    name: str, points: Sequence[Point], law: Law, ratio: float, table: ShapeTable | None
) -> list[tuple[str, Point, float]]:
    if not points:
        return []
    fitted = predicted_s(law, ratio, table, [shape_of(p) for p in points])
    return [(name, p, float(value)) for p, value in zip(points, fitted, strict=True)]


def _held_out(points: Sequence[Point], start: Law, how: Smoothing) -> FloatArray:
    """Each shape predicted by a law and table that never saw its fold [s]."""
    out = np.zeros(len(points))
    for fold in range(min(FOLDS, len(points))):
        rest = [p for i, p in enumerate(points) if i % FOLDS != fold]
        away = [p for i, p in enumerate(points) if i % FOLDS == fold]
        law, _ = fit_law(rest, start)
        table = _table(rest, _left_over(rest, law, 1.0), how)
        out[fold::FOLDS] = predicted_s(law, 1.0, table, [shape_of(p) for p in away])
    return out


def _held_out_backward(points: Sequence[Point], law: Law, how: Smoothing) -> FloatArray:
    """The same of backward products, whose law is that of the forward ones."""
    out = np.zeros(len(points))
    for fold in range(min(FOLDS, len(points))):
        rest = [p for i, p in enumerate(points) if i % FOLDS != fold]
        away = [p for i, p in enumerate(points) if i % FOLDS == fold]
        ratio = _ratio(rest, law)
        table = _table(rest, _left_over(rest, law, ratio), how)
        out[fold::FOLDS] = predicted_s(law, ratio, table, [shape_of(p) for p in away])
    return out
