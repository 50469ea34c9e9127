"""Left-overs of a fitted law, smoothed as a Gaussian process with zero mean (Rasmussen and Williams 2006, chapter 2).

Width and strength are those under which each point is predicted best by the others; where none does better than the
bare law, the strength is 0 and the law stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cluster.tables import kernel

FloatArray = NDArray[np.float64]

#: Candidates for the correlation length [octaves] and the strength [log].
WIDTHS: Final = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
STRENGTHS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """Correlation length [octaves] and strength [log] of left-overs."""

    width: float
    strength: float


def best_smoothing(places: FloatArray, left: FloatArray, sigma: FloatArray) -> Smoothing:
    """The smoothing that predicts left-out points best.

    Parameters
    ----------
    places : ndarray, shape (n, d)
        Sizes as log2.
    left : ndarray, shape (n,)
        log(measured / law).
    sigma : ndarray, shape (n,)
        How far each may be off [log].
    """
    weights = 1.0 / sigma**2
    scored = [(float((weights * left**2).sum()), 1.0, 0.0)]
    for width in WIDTHS:
        for strength in STRENGTHS:
            missed = left_out(places, left, sigma, Smoothing(width=width, strength=strength)) - left
            scored.append((float((weights * missed**2).sum()), width, strength))
    _, width, strength = min(scored)
    return Smoothing(width=width, strength=strength)


def left_out(places: FloatArray, left: FloatArray, sigma: FloatArray, how: Smoothing) -> FloatArray:
    """Each point's left-over as the others predict it (equation 5.12)."""
    inverse = np.linalg.inv(how.strength**2 * kernel(places, places, how.width) + np.diag(sigma**2))
    return np.asarray(left - (inverse @ left) / np.diag(inverse))


def smoothed(
    places: FloatArray, left: FloatArray, sigma: FloatArray, how: Smoothing, at: FloatArray | None = None
) -> FloatArray:
    """Smoothed left-overs at the points, or elsewhere (equation 2.25)."""
    target = places if at is None else at
    if how.strength == 0.0 or not len(left):
        return np.zeros(len(target))
    covariance = how.strength**2 * kernel(places, places, how.width) + np.diag(sigma**2)
    return np.asarray(how.strength**2 * kernel(target, places, how.width) @ np.linalg.solve(covariance, left))


def sigmas(spreads: Sequence[float], loads: Sequence[float | None], calm: float) -> FloatArray:
    """How far measurements may be off [log]: on a calm machine, by their own scatter, by the load while they ran."""
    half = 0.5 * np.minimum(np.array(spreads), 1.0)
    load = np.array([value or 0.0 for value in loads])
    return np.asarray(np.sqrt(calm**2 + half**2 + load**2))
