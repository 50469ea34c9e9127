"""Seconds of all micro-batches of a step under a schedule, simulated pass by pass with its steady state skipped.

Why skipping is exact.  The ends of a block's passes follow from those of the block before by additions and maxima.
Let d be how much later each pass ended than its like in the block before.  If every pass's d equals the d of the pass
that bound it, the next block moves by the same d, as long as the same passes bind; by how much they bind changes by the
same amount every block, so the number of blocks until the first one stops binding is known and all of them are skipped
at once.  The same holds for c blocks at a time.  Lengths are rounded to multiples of a power of two so small that every
sum is exact (one part in 10^11 of the step), hence equal means equal, and a row does not depend on the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import FloatArray, IntArray
from planner.timeline.program import Compiled, Program, compiled

#: Blocks at a time that are tried as one period.
PERIODS: Final = (1, 2, 3, 4)
#: Cells of a block's ends that are handled at once.
CELLS: Final = 2**18
#: Bits of a double's mantissa.
MANTISSA: Final = 52


def makespans(
    schedule: str,
    forward_VSN: FloatArray,
    backward_VSN: FloatArray,
    weights_VSN: FloatArray,
    micro_batches: int | IntArray,
    transfer_N: FloatArray | None = None,
) -> FloatArray:
    """Seconds from the first pass to the end of the last one, of N sets of lengths, shape (N,).

    Parameters
    ----------
    schedule : str
        One of `planner.timeline.orders.KNOWN`.
    forward_VSN, backward_VSN : ndarray, shape (V, S, N)
        One micro-batch in each chunk of each stage; backward includes the gradients of weights [s].
    weights_VSN : ndarray, shape (V, S, N)
        Part of backward that a schedule may delay [s].
    micro_batches : int or ndarray of int, shape (N,)
        Micro-batches of a step; sets that differ by whole rounds are simulated together.
    transfer_N : ndarray, shape (N,), optional
        Delay of one hand-over between stages during which both may work on [s].

    Examples
    --------
    Four micro-batches on two equal stages, (m + p - 1)(f + b) = 5 x 3:

    >>> one = np.ones((1, 2, 1))
    >>> makespans("1f1b", one, 2 * one, one, 4).tolist()
    [15.0]
    """
    chunks, stages, count = forward_VSN.shape
    transfer = np.zeros(count) if transfer_N is None else transfer_N
    micro_N = np.broadcast_to(micro_batches, (count,))
    if schedule == "gpipe" and chunks == 1:
        return _two_runs(forward_VSN[0], backward_VSN[0], micro_N, transfer)
    programs = {m: compiled(schedule, stages, chunks, m) for m in sorted(set(micro_N.tolist()))}
    early = backward_VSN - weights_VSN if schedule == "zero_bubble_v" else backward_VSN
    lengths = np.stack([forward_VSN, early, weights_VSN]).reshape(3 * chunks * stages, count)
    lengths, transfer = _rounded(lengths, transfer, micro_N * chunks + 3.0 * stages * chunks)
    blocks = np.array([programs[m][1] for m in micro_N.tolist()], np.int64)
    kind = np.array([id(programs[m][0]) for m in micro_N.tolist()], np.int64)
    out = np.zeros(count)
    for program in {id(found): found for found, _ in programs.values()}.values():
        rows = np.flatnonzero(kind == id(program))
        wide = max(CELLS // max(len(program.body or program.head), 1), 1)
        for part in (rows[begin : begin + wide] for begin in range(0, len(rows), wide)):
            out[part] = _makespan(program, lengths[:, part], transfer[part], blocks[part])
    return out


def _two_runs(forward_SN: FloatArray, backward_SN: FloatArray, m: IntArray, transfer_N: FloatArray) -> FloatArray:
    """GPipe: equal jobs through a line of stages, and back; the sum of a run and m - 1 times its slowest stage."""
    out = 2.0 * (len(forward_SN) - 1) * transfer_N
    for way_SN in (forward_SN, backward_SN):
        out = out + np.cumsum(way_SN, axis=0)[-1] + (m - 1) * way_SN.max(axis=0)
    return np.asarray(out)


def _rounded(lengths_DN: FloatArray, transfer_N: FloatArray, slots_N: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Multiples of a power of two of which the longest possible step holds fewer than 2**52.

    No step is longer than one whose passes all take as long as the longest of their kind.
    """
    kinds = lengths_DN.reshape(3, -1, lengths_DN.shape[1]).max(axis=1).sum(axis=0)
    longest = 2.0 * slots_N * (kinds + 2.0 * transfer_N) + np.finfo(np.float64).tiny
    unit = np.exp2(np.ceil(np.log2(longest)) - MANTISSA)
    return np.rint(lengths_DN / unit) * unit, np.rint(transfer_N / unit) * unit


def _makespan(program: Compiled, lengths_DN: FloatArray, transfer_N: FloatArray, blocks_N: IntArray) -> FloatArray:
    ends = program.head.run(lengths_DN, transfer_N)
    if program.body is None or program.tail is None:
        return np.asarray(ends.max(axis=0))
    last = ends[program.block_of_head]
    last = _steady(program.body, lengths_DN, transfer_N, last, blocks_N)
    tail = program.tail.run(lengths_DN, transfer_N, last)
    return np.asarray(tail.max(axis=0))


def _steady(
    body: Program, lengths_DN: FloatArray, transfer_N: FloatArray, state: FloatArray, blocks_N: IntArray
) -> FloatArray:
    """Ends of the last block, so many after the given one; at least one each."""
    left = blocks_N.copy()
    out: FloatArray = state.copy()
    rows = np.arange(state.shape[1])
    history = [state]
    while len(rows):
        ends = body.run(lengths_DN[:, rows], transfer_N[rows], history[-1])
        left[rows] -= 1
        history = [*history[-2 * PERIODS[-1] + 1 :], ends[1 + body.given :]]
        skipped = _skip(body, history, transfer_N[rows], left[rows])
        if skipped is not None:
            history[-1] = history[-1] + skipped[1]
            left[rows] -= skipped[0]
            if (skipped[0] > 0).any():
                history = history[-1:]
        out[:, rows] = history[-1]
        going = left[rows] > 0
        if not going.all():
            rows, history = rows[going], [block[:, going] for block in history]
    return out


def _skip(
    body: Program, history: list[FloatArray], transfer_N: FloatArray, left: IntArray
) -> tuple[IntArray, FloatArray] | None:
    """Blocks that each row may skip, and how far its ends move meanwhile; None where none may."""
    for period in PERIODS:
        if len(history) < 2 * period:
            return None
        moved = [history[-1 - j] - history[-1 - j - period] for j in range(period)]
        often = left // period
        for j in range(period):
            often = np.minimum(often, _blocks_alike(body, history, moved, j, transfer_N))
        if (often > 0).any():
            return often * period, moved[0] * often
    return None


def _blocks_alike(
    body: Program, history: list[FloatArray], moved: list[FloatArray], back: int, transfer_N: FloatArray
) -> IntArray:
    """How often block ``back`` from the last moves as it did, by its binding passes; 0 where it does not at all."""
    nothing = np.zeros((1, len(transfer_N)))
    before = moved[(back + 1) % len(moved)]
    known = np.concatenate([nothing, history[-2 - back], history[-1 - back]])
    moves = np.concatenate([nothing, before, moved[back]])
    own_moves, other_moves = moves[body.own], moves[body.other]
    lead = known[body.own] - known[body.other] - body.crosses[:, None] * transfer_N
    drift = own_moves - other_moves
    by_own = (lead > 0) | ((lead == 0) & (drift >= 0))
    alike = (np.where(by_own, own_moves, other_moves) == moved[back]).all(axis=0)
    closing = np.where(by_own, drift < 0, drift > 0)
    blocks = np.full(lead.shape, np.inf)
    np.divide(np.abs(lead), np.abs(drift), out=blocks, where=closing)
    often = np.minimum(np.floor(blocks.min(axis=0)), 2.0**40)
    return np.where(alike, often, 0).astype(np.int64)
