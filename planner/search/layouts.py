"""Layers of each stage: the splits of a model over pp x vpp chunks that a search looks at.

A split is even over weighted slots: the embedding, the head and each MTP module may count as layers of the first and
last chunk, so that 61, 62 and 94 layers divide (94 + embedding + head = 96).  What does not divide is spread over the
middle, or put at the front or the back.  `planner.search.balance` moves single layers of the finalists afterwards.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.cost.strategies import IntArray

#: How many layers the embedding counts as, and how many the head (with MTP modules on top).
_EMBEDDING_SLOTS = (0, 1)
_HEAD_SLOTS = (0, 1, 2)


@lru_cache(maxsize=4096)
def layouts(layers: int, mtp_layers: int, pp: int, vpp: int, v_shape: bool, every: bool = False) -> IntArray:
    """Distinct splits of the layers, shape (N, vpp, pp); N = 0 when the chunks cannot be filled.

    Parameters
    ----------
    layers, mtp_layers : int
        Decoder layers to split, and MTP modules that sit with the head.
    pp, vpp : int
        Stages and chunks per stage.
    v_shape : bool
        Chunk 1 runs backwards through the stages (zero_bubble_v).
    every : bool
        Also the less likely splits: remainder in front or behind, uneven weights.

    >>> layouts(48, 0, 5, 1, False)[0].tolist()
    [[9, 10, 10, 10, 9]]
    >>> layouts(94, 0, 8, 4, False)[0].tolist()
    [[2, 3, 3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3, 3, 2]]
    """
    chunks = pp * vpp
    found: list[tuple[int, ...]] = []
    for line in _lines(layers, mtp_layers, chunks, every):
        if min(line[1:-1], default=1) >= 1 and min(line) >= 0 and line not in found:
            found.append(line)
    array = np.array(found, np.int64).reshape(len(found), vpp, pp)
    if v_shape and vpp > 1:
        array[:, 1::2] = array[:, 1::2, ::-1]
    array.setflags(write=False)
    return array


def _lines(layers: int, mtp_layers: int, chunks: int, every: bool) -> list[tuple[int, ...]]:
    if chunks == 1:
        return [(layers,)]
    if chunks > layers + 2:
        return []
    head = [slots + mtp_layers for slots in _HEAD_SLOTS]
    pairs = [(0, 0), (0, head[1]), (1, head[1])]
    places = ["middle"]
    if every:
        pairs = [(0, 0)] + [(first, last) for first in _EMBEDDING_SLOTS for last in (0, *head)]
        places = ["middle", "front", "back"]
    return [_split(layers, chunks, first, last, place) for first, last in pairs for place in places]


def _split(layers: int, chunks: int, first: int, last: int, place: str) -> tuple[int, ...]:
    """One line of chunks in model order; ``first`` and ``last`` count as layers of the outer chunks."""
    base, extra = divmod(layers + first + last, chunks)
    line = np.full(chunks, base, np.int64)
    start = {"front": 0, "back": chunks - extra, "middle": (chunks - extra) // 2}[place]
    line[start : start + extra] += 1
    line[0] -= first
    line[-1] -= last
    while line[-1] < 0:  # a head heavier than a chunk: the chunk is empty, others carry less
        line[-1] += 1
        line[int(np.argmax(line))] -= 1
    return tuple(line.tolist())
