"""Rows of a table that are alike, found by sorting."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def distinct(keys: IntArray) -> tuple[IntArray, IntArray]:
    """First row of each distinct key, in the order of keys, and for each row the place of its key.

    The same as ``numpy.unique`` with index and inverse, which would import ``numpy.ma`` first.

    >>> rows, place = distinct(np.array([7, 3, 7, 5]))
    >>> rows.tolist(), place.tolist()
    ([1, 3, 0], [2, 0, 2, 1])
    """
    by_key = np.argsort(keys, kind="stable")
    ordered = keys[by_key]
    fresh = np.ones(len(keys), bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    place = np.empty(len(keys), np.int64)
    place[by_key] = np.cumsum(fresh) - 1
    return by_key[fresh], place


@lru_cache(maxsize=256)
def mixers(count: int, start: int = 1) -> IntArray:
    """Factors without any pattern, 64 bits each (SplitMix64); products wrap around."""
    factors = []
    for index in range(start, start + count):
        z = index * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        factors.append(z ^ (z >> 31))
    out = np.array(factors, np.uint64).astype(np.int64)
    out.setflags(write=False)
    return out
