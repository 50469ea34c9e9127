"""Start-up time and bandwidth of a collective from its measured times.

    t(n) = alpha + n / (bus bandwidth / factor),

n the operation's bytes, factor 2 (p - 1)/p for an all-reduce, (p - 1)/p for all-gather, reduce-scatter and all-to-all
and 1 for the rest (NVIDIA/nccl-tests, doc/PERFORMANCE.md), p the number of ranks.  Errors are relative: the sum of
(t_fitted / t_measured - 1)^2 is minimised with alpha and the slope not negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import CalibrationError
from planner.observe.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """Fit of one operation on one group.

    Attributes
    ----------
    op : str
    ranks : int
    alpha_s : float
        Start-up time [s].
    bus_bytes_per_s : float
        Bus bandwidth of large messages [bytes/s].
    sizes : int
        Sizes that were fitted.
    median_error_frac, worst_error_frac : float
        Of the fitted times, relative.
    """

    op: str
    ranks: int
    alpha_s: float
    bus_bytes_per_s: float
    sizes: int
    median_error_frac: float
    worst_error_frac: float


def bus_factor(op: str, ranks: int) -> float:
    """Bus over algorithm bandwidth.

    >>> bus_factor("allreduce", 8), bus_factor("allgather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    part = (ranks - 1) / ranks
    return {"allreduce": 2.0 * part, "allgather": part, "reducescatter": part, "alltoall": part}.get(op, 1.0)


def alpha_beta(points: Sequence[Point]) -> AlphaBeta:
    """Fit of the points of one operation and group.

    Raises
    ------
    CalibrationError
        Fewer than two sizes, several operations or groups, or times that do not grow with the size.
    """
    from scipy.optimize import nnls

    kinds = {(point.op, point.sizes.get("ranks")) for point in points}
    sizes = np.array([point.sizes["bytes"] for point in points], float)
    if len(kinds) != 1 or len(np.unique(sizes)) < 2:
        raise CalibrationError(
            "alpha and bandwidth need one operation on one group at two sizes or more; given: "
            f"{', '.join(sorted(map(str, kinds)))} at {len(np.unique(sizes))} size(s)."
        )
    op, ranks = kinds.pop()
    if ranks is None or ranks < 2:
        raise CalibrationError(f"{op}: the number of ranks is not known; name it in the log's file name (8npu).")
    times = np.array([point.median_s for point in points])
    (alpha_s, slope), _ = nnls(np.column_stack((1.0 / times, sizes / times)), np.ones(len(times)))
    if slope <= 0.0:
        raise CalibrationError(
            f"{op}: times do not grow from {sizes.min():.0f} to {sizes.max():.0f} bytes; no bandwidth."
        )
    errors = np.abs((alpha_s + slope * sizes) / times - 1.0)
    return AlphaBeta(
        op=op, ranks=ranks, alpha_s=float(alpha_s), bus_bytes_per_s=float(bus_factor(op, ranks) / slope),
        sizes=len(sizes), median_error_frac=float(np.median(errors)), worst_error_frac=float(errors.max()),
    )  # fmt: skip


def alpha_betas(points: Iterable[Point]) -> tuple[AlphaBeta, ...]:
    """Fits of all collectives among the points that have two sizes or more on a known group."""
    groups: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for point in points:
        if point.kind == "collective" and point.sizes.get("ranks", 0) > 1 and not point.mark:
            groups[point.op, point.sizes["ranks"], point.sizes.get("nodes", 0)].append(point)
    return tuple(alpha_beta(found) for found in groups.values() if len({p.sizes["bytes"] for p in found}) > 1)
