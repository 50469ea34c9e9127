"""What a device did in micro-benchmarks, as tables: matmuls by shape, collectives by size.

A smooth law with a few constants misses what a library does at single shapes, and one line misses where it changes
its algorithm.  A table corrects the law near what was measured, and fades to the law away from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import CalibrationError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeTable:
    """Logarithms of measured over smooth-law time at matmul shapes.

    Between shapes they are interpolated as a Gaussian process with zero mean (Rasmussen and Williams 2006, eq. 2.25):
    a correction fades within a few ``width`` of the nearest measured shape.

    Attributes
    ----------
    shapes : tuple of (m, k, n)
        Measured shapes [elements].
    log_ratio : tuple of float
        log(measured / law) at each.
    width : float
        Correlation length in each direction [octaves].
    noise : float
        Scatter of one measurement over the scatter between shapes.
    """

    shapes: tuple[tuple[float, float, float], ...]
    log_ratio: tuple[float, ...]
    width: float
    noise: float

    def __post_init__(self) -> None:
        if len(self.shapes) != len(self.log_ratio) or not self.shapes:
            raise CalibrationError(
                f"{len(self.shapes)} shapes and {len(self.log_ratio)} ratios; legal: as many, above 0."
            )
        if not (self.width > 0.0 and self.noise > 0.0 and min(map(min, self.shapes)) > 0.0):
            raise CalibrationError("a table of shapes needs shapes, width and noise above 0.")


def kernel(a: FloatArray, b: FloatArray, width: float) -> FloatArray:
    """Correlation of shapes (..., 3) with shapes (n, 3), both as log2: ``exp(-distance^2 / (2 width^2))``."""
    gap = (a[..., None, :] - b) / width
    correlation: FloatArray = np.exp(-0.5 * (gap * gap).sum(axis=-1))
    return correlation


@lru_cache(maxsize=64)
def _weights(table: ShapeTable) -> tuple[FloatArray, FloatArray]:
    places = np.log2(np.array(table.shapes, np.float64))
    covariance = kernel(places, places, table.width) + table.noise**2 * np.eye(len(places))
    return places, np.linalg.solve(covariance, np.array(table.log_ratio))


def shape_factor(table: ShapeTable | None, m: ArrayLike, k: ArrayLike, n: ArrayLike) -> FloatArray:
    """What to multiply a smooth law's time with at a shape; 1 without a table.

    >>> table = ShapeTable(shapes=((256.0, 256.0, 256.0),), log_ratio=(0.5,), width=1.0, noise=1e-6)
    >>> [round(float(shape_factor(table, m, 256, 256)), 3) for m in (256, 512, 2**16)]
    [1.649, 1.354, 1.0]
    """
    if table is None:
        return np.ones(())
    places, weights = _weights(table)
    at = np.stack(np.broadcast_arrays(*(np.log2(np.asarray(v, np.float64)) for v in (m, k, n))), axis=-1)
    flat, back = np.unique(at.reshape(-1, 3), axis=0, return_inverse=True)
    # one row at a time, so that a row's digits do not depend on the others
    each = np.exp((kernel(flat, places, table.width) * weights).sum(axis=1))
    return np.asarray(each[back.reshape(-1)].reshape(at.shape[:-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTable:
    """Times of one collective by its size, for one group size.

    Attributes
    ----------
    op : str
        As in `planner.cluster.collectives`.
    ranks, nodes : int
        Ranks of the group, and nodes it spans.
    size_bytes, seconds : tuple of float
        Sizes in rising order [bytes] and times [s].
    """

    op: str
    ranks: int
    nodes: int
    size_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.size_bytes) != len(self.seconds) or not self.size_bytes:
            raise CalibrationError(f"{self.op}: {len(self.size_bytes)} sizes and {len(self.seconds)} times.")
        if min(self.seconds) <= 0.0 or min(self.size_bytes) <= 0.0 or any(np.diff(self.size_bytes) <= 0.0):
            raise CalibrationError(f"{self.op} of {self.ranks} ranks: sizes must rise, sizes and times be above 0.")


def size_seconds(table: SizeTable, size_bytes: ArrayLike) -> FloatArray:
    """Time of a size [s]: log-log between samples, constant below the first, at the last one's bandwidth above it.

    >>> table = SizeTable(op="allreduce", ranks=2, nodes=1, size_bytes=(1e3, 1e5), seconds=(1e-3, 1e-2))
    >>> [round(float(size_seconds(table, size)), 6) for size in (10, 1e4, 1e6)]
    [0.001, 0.003162, 0.1]
    """
    size = np.maximum(np.asarray(size_bytes, np.float64), 1.0)
    inside = np.interp(np.log(size), np.log(table.size_bytes), np.log(table.seconds))
    beyond = np.maximum(1.0, size / table.size_bytes[-1])
    return np.asarray(np.exp(inside) * beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Tables of one device.

    Attributes
    ----------
    dtype : str
        Type the matmuls were measured in; the tables hold for workloads that compute in it.
    matmul, matmul_backward : ShapeTable or None
        Corrections of the forward product, and of its two backward products together.
    collectives : tuple of SizeTable
        Measured groups.
    """

    dtype: str = ""
    matmul: ShapeTable | None = None
    matmul_backward: ShapeTable | None = None
    collectives: tuple[SizeTable, ...] = field(default=())

    def of_op(self, op: str) -> tuple[SizeTable, ...]:
        """Tables of one collective."""
        return tuple(table for table in self.collectives if table.op == op)


#: No measurements.
NOTHING = Measured()
