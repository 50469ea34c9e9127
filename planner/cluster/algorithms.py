"""Costs of the algorithms that collective libraries run: one function per algorithm, arrays in, seconds out.

Symbols: n bytes of the whole operation (``size_bytes``: output of an all-gather, input of a reduce-scatter, buffer of
an all-reduce, bytes one rank sends in all of an all-to-all), p participants, and for one `Hop` a fixed time per step
(alpha), b time per byte on one link (beta), g time to reduce one byte (gamma).

Source of the HCCL formulas: hicann/hccl, docs/zh/user_guide/coll_algo_intro.  All arguments broadcast; every function
is 0 for one participant and uses correctly rounded operations only, so that a row costs the same, bit for bit, alone
and in a table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Op = Literal["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv"]

OPS: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv")


class Hop(NamedTuple):
    """What one step over one kind of link costs: alpha [s], beta [s/byte], gamma [s/byte]."""

    alpha: float | FloatArray
    beta: float | FloatArray
    gamma: float | FloatArray = 0.0


def ceil_log2(ranks: ArrayLike) -> IntArray:
    """Smallest whole L with 2**L >= ranks, exactly."""
    steps: IntArray = np.frexp(np.asarray(ranks, np.float64) - 1)[1].astype(np.int64)
    return steps


def floor_log2(ranks: ArrayLike) -> IntArray:
    """Largest whole f with 2**f <= ranks, exactly."""
    steps: IntArray = np.frexp(np.asarray(ranks, np.float64))[1].astype(np.int64) - 1
    return steps


def is_power_of_two(ranks: ArrayLike) -> NDArray[np.bool_]:
    """True for 1, 2, 4, 8 ..."""
    count = np.asarray(ranks, np.int64)
    power: NDArray[np.bool_] = (count & (count - 1)) == 0
    return power


def mesh(op: Op, size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """Full mesh: every pair has its own link, one step moves n/p over each [s].

    RS  a + n/p b + (p-1)/p n g;  AG  a + n/p b;  AR  RS + AG;  broadcast  2 (a + n/p b);  A2A  a + n/p b.

    Two ranks have one link, eight have seven each: 64 MiB at 18 GB/s a link.

    >>> mesh("allgather", 2**26, [2, 4, 8], Hop(0.0, 1 / 18e9)).round(6).tolist()
    [0.001864, 0.000932, 0.000466]
    """
    n, p, many = _arguments(size_bytes, ranks)
    step = hop.alpha + n / p * hop.beta
    if op in ("allreduce", "broadcast"):
        step = 2 * step
    return _of_many(many, step if op in ("allgather", "broadcast", "alltoall") else _reduced(step, n, p, hop))


def mesh_one_shot(size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """All-reduce in one step: every rank sends its whole buffer to every other; a + n b + (p-1) n g [s]."""
    n, p, many = _arguments(size_bytes, ranks)
    return _of_many(many, hop.alpha + n * hop.beta + (p - 1) * n * hop.gamma)


def ring(op: Op, size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """Ring: p - 1 steps of n/p to the next neighbour [s].

    RS  (p-1) a + (p-1)/p n (b + g);  AG  without g;  AR  RS + AG;  broadcast  (p-1) (a + n b).

    >>> float(ring("allreduce", 8e9, 4, Hop(0.0, 1 / 50e9)))
    0.24
    """
    n, p, many = _arguments(size_bytes, ranks)
    if op == "broadcast":
        return _of_many(many, (p - 1) * (hop.alpha + n * hop.beta))
    return _of_many(many, _stepped(op, p - 1, n, p, hop))


def nhr(op: Op, size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """Non-uniform hierarchical ring: ceil(log2 p) steps, the bytes of a ring [s].

    RS  L a + (p-1)/p n (b + g), L = ceil(log2 p);  AG  without g;  AR  RS + AG;  broadcast  2 (L a + (p-1)/p n b).
    """
    n, p, many = _arguments(size_bytes, ranks)
    if op == "broadcast":
        return _of_many(many, 2 * _stepped("allgather", ceil_log2(p), n, p, hop))
    return _of_many(many, _stepped(op, ceil_log2(p), n, p, hop))


def nb(op: Op, size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """Non-uniform Bruck: the cost of `nhr`; the two differ in who talks to whom [s]."""
    return nhr(op, size_bytes, ranks, hop)


def halving_doubling(op: Op, size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """Recursive halving and doubling (H-D_R) [s].

    p = 2**k: RS  k a + (p-1)/p n (b + g);  AG  without g;  AR  RS + AG.  Other p, with f = floor(log2 p), q = 2**f:
    RS  (a + n b + n g) + sum_{i=1..f} (a + ceil(p / 2**i) n/p (b + g)) + (a + n/p b);  AG  without g;
    AR  (2f+2) a + (2 (q-1)/q + 2) n b + ((q-1)/q + 1) n g.  Broadcast  ceil(log2 p) (a + n b).
    """
    n, p, many = _arguments(size_bytes, ranks)
    if op == "broadcast":
        return _of_many(many, ceil_log2(p) * (hop.alpha + n * hop.beta))
    power = _stepped(op, floor_log2(p), n, p, hop)
    folded = _folded_allreduce(n, p, hop) if op == "allreduce" else _folded(op, n, p, hop)
    return _of_many(many, np.where(is_power_of_two(p), power, folded))


def pairwise(size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """All-to-all with one partner at a time: (p-1) (a + n/p b) [s]."""
    n, p, many = _arguments(size_bytes, ranks)
    return _of_many(many, (p - 1) * (hop.alpha + n / p * hop.beta))


def star(size_bytes: ArrayLike, ranks: ArrayLike, hop: Hop) -> FloatArray:
    """One transfer over one link: a + n b [s]."""
    n, _, many = _arguments(size_bytes, ranks)
    return _of_many(many, hop.alpha + n * hop.beta)


def pipeline(op: Op, size_bytes: ArrayLike, inner: ArrayLike, outer: ArrayLike, node: Hop, net: Hop) -> FloatArray:
    """In-server mesh and between-server ring at the same time [s].

    AG, RS  M (P-1) + n/p b1 + a1 with M = max(n/p b2 + a2, n/p b1 + a1);  AR  RS + AG.  Here p = ``inner`` x
    ``outer``, P = ``outer`` servers, 1 in the server and 2 between servers.

    >>> float(pipeline("allgather", 1e9, 8, 8, Hop(0.0, 1 / 17e9), Hop(0.0, 1 / 22.6e9)).round(6))
    0.007353
    """
    members, servers = np.asarray(inner, np.float64), np.asarray(outer, np.float64)
    n, p, many = _arguments(size_bytes, members * servers)
    inside = n / p * node.beta + node.alpha
    step = np.maximum(n / p * net.beta + net.alpha, inside)
    once = step * (servers - 1) + inside
    return _of_many(many, 2 * once if op == "allreduce" else once)


def two_level(inside: FloatArray, between: FloatArray) -> FloatArray:
    """Levels one after the other [s].

    ``inside`` works in a server on n bytes (for an all-reduce: reduce-scatter before and all-gather after), ``between``
    between servers on n / (cards per server).  Levels nest: a superpod's three are two_level(two_level(...), ...).
    Source: hicann/hccl, hierarchical_comm_principle.md.
    """
    total: FloatArray = inside + between
    return total


def _arguments(size_bytes: ArrayLike, ranks: ArrayLike) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    n, p = np.asarray(size_bytes, np.float64), np.asarray(ranks, np.float64)
    return n, p, p > 1


def _of_many(many: NDArray[np.bool_], time_s: FloatArray | float) -> FloatArray:
    result: FloatArray = np.where(many, time_s, 0.0)
    return result


def _stepped(op: Op, steps: FloatArray | IntArray, n: FloatArray, p: FloatArray, hop: Hop) -> FloatArray:
    """``steps`` steps that move (p-1)/p of the bytes; twice for an all-reduce."""
    moved = (p - 1) / p * n
    gather: FloatArray = steps * hop.alpha + moved * hop.beta
    if op == "allgather":
        return gather
    return _reduced(2 * gather if op == "allreduce" else gather, n, p, hop)


def _reduced(time_s: FloatArray, n: FloatArray, p: FloatArray, hop: Hop) -> FloatArray:
    """Time with the local reduction of (p-1)/p of the bytes, if the hop has any."""
    if isinstance(hop.gamma, float) and hop.gamma == 0.0:
        return time_s
    reduced: FloatArray = time_s + (p - 1) / p * n * hop.gamma
    return reduced


def _folded(op: Op, n: FloatArray, p: FloatArray, hop: Hop) -> FloatArray:
    """H-D_R reduce-scatter or all-gather where p is no power of two: fold, halve, unfold."""
    gamma = hop.gamma if op == "reducescatter" else 0.0
    per_byte = hop.beta + gamma
    rounds = floor_log2(p)
    total: FloatArray = hop.alpha + n * per_byte
    for i in range(1, int(rounds.max(initial=0)) + 1):
        step = hop.alpha + np.ceil(p / 2**i) * (n / p) * per_byte
        total = total + np.where(i <= rounds, step, 0.0)
    return total + (hop.alpha + n / p * hop.beta)


def _folded_allreduce(n: FloatArray, p: FloatArray, hop: Hop) -> FloatArray:
    rounds = floor_log2(p)
    halves = 1 - np.ldexp(1.0, -rounds)
    steps = 2 * rounds + 2
    time: FloatArray = steps * hop.alpha + (2 * halves + 2) * n * hop.beta + (halves + 1) * n * hop.gamma
    return time
