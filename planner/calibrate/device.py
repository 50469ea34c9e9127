"""Constants of a device from measured operations: points in, constants with residuals and tables out.

Every constant is a share of a data-sheet rate, a time, or a ratio, so that a fit means the same on every device; the
constants are explained in ``planner.cost.time.step``.  Errors are relative (logarithms), because times span six orders
of magnitude.  A constant that no point determines is left out, and what stands below it holds: the shipped
calibration's, else the prior.  Intervals are 80 %, from the scatter over the points that make a constant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate import operator_fit
from planner.calibrate.collective_fit import CollectiveFit, fit_collectives
from planner.calibrate.shape_fit import ShapeFit, fit_shapes, shape_of
from planner.cluster.records import Calibration, Constant, Hardware
from planner.cluster.tables import Measured
from planner.cost.time.setting import peak_flop_per_s
from planner.errors import CalibrationError
from planner.model.records import DTYPE_BYTES
from planner.observe.points import Point

FloatArray = NDArray[np.float64]

#: Types of matmuls, the one that networks compute in first; the first with enough shapes is fitted.
DTYPES: Final = ("bfloat16", "float16", "float32")
#: Fewest shapes of a matmul fit.
LEAST_SHAPES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One point beside the fitted model.

    Attributes
    ----------
    group : str
        What was fitted: ``"matmul"``, ``"allreduce, 8 ranks"``, ...
    label : str
        The point's sizes in words.
    size : float
        By which the group is drawn: FLOP, or bytes.
    measured_s, fitted_s, held_out_s : float
        Measured, fitted, and predicted from the other points of the group [s].
    """

    group: str
    label: str
    size: float
    measured_s: float
    fitted_s: float
    held_out_s: float
    mark: str = ""

    @property
    def held_out_error(self) -> float:
        """|predicted / measured - 1| of a prediction that never saw the point."""
        return abs(self.held_out_s / self.measured_s - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """What points say about a device.

    Attributes
    ----------
    constants : mapping of str to Constant
        Only those that were measured.
    measured : Measured
        Tables that correct them.
    residuals : tuple of Residual
    collectives : tuple of CollectiveFit
        Piecewise lines of each operation and group, for the reader.
    marks : mapping of str to int
        Doubtful points by mark.
    points : int
        All of them.
    """

    constants: Mapping[str, Constant]
    measured: Measured
    residuals: tuple[Residual, ...]
    collectives: tuple[CollectiveFit, ...]
    marks: Mapping[str, int]
    points: int

    def held_out(self, group: str) -> FloatArray:
        """Held-out errors of the groups whose name begins so."""
        return np.array([row.held_out_error for row in self.residuals if row.group.startswith(group)])


def fit_device(points: Sequence[Point], hardware: Hardware, base: Calibration) -> DeviceFit:
    """Constants and tables of a device.

    Parameters
    ----------
    points : sequence of Point
        Measured operations, each once.
    hardware : Hardware
        The profile whose peaks the constants are shares of.
    base : Calibration
        What holds where nothing was measured.

    Raises
    ------
    CalibrationError
        No point determines anything.
    """
    single = [p for p in points if p.kind != "collective" and "ranks" not in p.sizes]
    dtype = main_dtype(single, hardware)
    found = operator_fit.streaming(single, hardware) | operator_fit.launches(single, hardware)
    in_force = {key: constant.value for key, constant in {**base.constants, **found}.items()}
    bandwidth = hardware.device.hbm_bytes_per_s
    vector, stream = (bandwidth * in_force[key] for key in ("vector_efficiency", "hbm_efficiency"))
    shapes = matmuls(single, dtype, hardware, stream) if dtype else None
    found |= shapes.constants if shapes else {}
    found |= operator_fit.attention(single, dtype, hardware, shapes)
    found |= operator_fit.groups(single, dtype, vector, in_force["launch_s"])
    found |= operator_fit.loss(single, dtype, vector, in_force["launch_s"])
    found |= operator_fit.updates(single, stream)
    together = [p for p in points if p.kind == "matmul" and "ranks" in p.sizes]
    found |= operator_fit.crowding(together, operator_fit.of(single, "matmul", dtype))
    collectives = fit_collectives([p for p in points if p.kind == "collective"], hardware)
    found |= collectives.constants
    if not found:
        raise CalibrationError(
            f"none of the {len(points)} points determines a constant; a matmul fit needs {LEAST_SHAPES} shapes of one "
            "type that the profile has a peak for, a collective two sizes."
        )
    return DeviceFit(
        constants=found,
        measured=Measured(
            dtype=dtype,
            matmul=shapes.forward if shapes else None,
            matmul_backward=shapes.backward if shapes else None,
            collectives=collectives.tables,
        ),
        residuals=(*_shape_residuals(shapes), *_size_residuals(collectives.fits)),
        collectives=collectives.fits,
        marks=dict(Counter(p.mark for p in points if p.mark)),
        points=len(points),
    )


def main_dtype(points: Sequence[Point], hardware: Hardware) -> str:
    """The type whose matmuls are fitted; empty when no type has enough shapes."""
    for dtype in DTYPES:
        shapes = {shape_of(p) for p in operator_fit.of(points, "matmul", dtype)}
        if len(shapes) >= LEAST_SHAPES and dtype in hardware.device.peak_flop_per_s:
            return dtype
    return ""


def matmuls(points: Sequence[Point], dtype: str, hardware: Hardware, bytes_per_s: float) -> ShapeFit:
    """Matmuls of one type, each shape once."""
    forward, backward = (_once(operator_fit.of(points, op, dtype)) for op in ("matmul", "matmul_backward"))
    return fit_shapes(forward, backward, peak_flop_per_s(hardware, dtype), bytes_per_s, float(DTYPE_BYTES[dtype]))


def _once(points: Sequence[Point]) -> list[Point]:
    """The fastest point of each shape."""
    best: dict[tuple[float, float, float], Point] = {}
    for point in points:
        known = best.get(shape_of(point))
        if known is None or point.best_s < known.best_s:
            best[shape_of(point)] = point
    return list(best.values())


def _shape_residuals(fit: ShapeFit | None) -> list[Residual]:
    return [
        Residual(
            group=row.name, label=" x ".join(f"{size:.0f}" for size in row.shape), size=2.0 * math.prod(row.shape),
            measured_s=row.measured_s, fitted_s=row.fitted_s, held_out_s=row.held_out_s, mark=row.mark,
        )
        for row in (fit.rows if fit else ())
    ]  # fmt: skip


def _size_residuals(fits: Sequence[CollectiveFit]) -> list[Residual]:
    return [
        Residual(
            group=group_name(fit), label=f"{size:.0f} bytes", size=size, measured_s=measured, fitted_s=fitted,
            held_out_s=held,
        )
        for fit in fits
        for size, measured, fitted, held in zip(
            fit.size_bytes, fit.measured_s, fit.fitted_s, fit.held_out_s, strict=True
        )
    ]  # fmt: skip


def group_name(fit: CollectiveFit) -> str:
    """Operation and group in words."""
    across = f" on {fit.nodes} nodes" if fit.nodes > 1 else ""
    return f"{fit.op}, {fit.ranks} ranks{across}"
