"""80 % intervals from the errors of left-out rows, honest for few rows.

A new row is not one of those that made the interval, so the plain 10th and 90th percentile of n errors hold less than
80 % of new ones: ``(n - 1) / (n + 1) * 80 %``.  From `ENOUGH_ROWS` on the order statistics at ``p (n + 1)`` are taken,
which hold 80 % whatever the distribution; below, Student's t around zero with one degree of freedom a row, so that bias
counts as error.

A generation of a framework shows its own scatter only by its own rows, and those are few.  Variances of generations are
taken as inverse chi-square with `POOLED_ROWS` degrees of freedom around a common value (matching moments of their
logarithms over the A2 generations gives 3.5), so that an error of an unknown generation follows Student's t with as
many degrees, whose 80 % interval is that of all rows together; each row of a generation adds a degree and its squared
error.
A generation never gets a narrower interval than all rows together: a new cluster or release is not one of its rows.

Rows of one source share its cluster, release and habits, so what a new source will do is told by sources, not by rows:
`source_interval` counts every source once, with its mean square error.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]

#: Ends of the interval [percent].
PERCENTILES: Final = (10.0, 90.0)
#: From so many rows on, order statistics; fewer do not tell the tails.
ENOUGH_ROWS: Final = 20
#: Rows that the scale of all generations counts for beside the rows of one.
POOLED_ROWS: Final = 4


def interval(errors: FloatArray) -> Interval:
    """Where 80 % of new errors lie, from those of left-out rows.

    >>> interval(np.zeros(3))
    (0.0, 0.0)
    """
    if len(errors) >= ENOUGH_ROWS:
        low, high = np.percentile(errors, PERCENTILES, method="weibull")
        return float(low), float(high)
    half = _t90(len(errors)) * math.sqrt(float((errors**2).mean()))
    return -half + 0.0, half


def generation_interval(pooled: Interval, own: FloatArray) -> Interval:
    """Interval of one generation from that of all rows and the errors of its own.

    Parameters
    ----------
    pooled : (float, float)
        Interval of all generations.
    own : ndarray
        Errors of left-out rows of the generation; may be empty.
    """
    half = 0.5 * (pooled[1] - pooled[0])
    if not len(own) or half == 0.0:
        return pooled
    rows = POOLED_ROWS + len(own)
    squares = POOLED_ROWS * (half / _t90(POOLED_ROWS)) ** 2 + float((own**2).sum())
    factor = max(1.0, _t90(rows) * math.sqrt(squares / rows) / half)
    return factor * pooled[0], factor * pooled[1]


def source_interval(by_source: Sequence[FloatArray]) -> Interval:
    """Where 80 % of the errors of a new source lie, from the errors of some sources, each counted once.

    >>> source_interval([np.array([0.1, -0.1]), np.array([0.1])])[1].__round__(3)
    0.189
    """
    squares = [float((errors**2).mean()) for errors in by_source if len(errors)]
    half = _t90(len(squares)) * math.sqrt(sum(squares) / len(squares)) if squares else 0.0
    return -half + 0.0, half


def widened(first: Interval, second: Interval) -> Interval:
    """The interval that holds both.

    >>> widened((-0.1, 0.2), (-0.3, 0.1))
    (-0.3, 0.2)
    """
    return min(first[0], second[0]), max(first[1], second[1])


def pooled_interval(errors: FloatArray, sources: Sequence[Hashable] | None = None) -> Interval:
    """Interval of rows, never narrower than the scatter between their sources where those are told."""
    rows = interval(errors)
    if sources is None:
        return rows
    labels = list(sources)
    parts = [errors[[label == one for label in labels]] for one in dict.fromkeys(labels)]
    return widened(rows, source_interval(parts))


def coverage(
    errors: FloatArray,
    together: Sequence[Hashable],
    generations: Sequence[Hashable] | None = None,
    sources: Sequence[Hashable] | None = None,
) -> float:
    """Share of rows inside the interval that the rows left out with none of them give.

    Parameters
    ----------
    together : sequence
        Rows with equal values are left out together.
    generations : sequence, optional
        Generation of each row, where generations have intervals of their own.
    sources : sequence, optional
        Source of each row, where the scatter between sources counts.
    """
    inside = 0
    for i, error in enumerate(errors):
        others = np.array([label != together[i] for label in together])
        kept = None if sources is None else [source for source, other in zip(sources, others, strict=True) if other]
        low, high = pooled_interval(errors[others], kept)
        if generations is not None:
            own = others & np.array([generation == generations[i] for generation in generations])
            low, high = generation_interval((low, high), errors[own])
        inside += bool(low <= error <= high)
    return inside / len(errors)


def _t90(degrees: int) -> float:
    """90th percentile of Student's t."""
    return float(stdtrit(degrees, 0.9))
