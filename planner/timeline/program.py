"""Orders compiled into steps of arrays: passes by level, each with what it waits for.

A pass waits for the pass before it on its stage and for one pass elsewhere (its input, or the gradient of its output).
Passes of one level wait for lower levels only, so a level is one array operation over all stages and candidates.

A long step is three programs: a head (warm-up and one block), a body (one block, from the block before it) and a tail.
The body is the same for every block, which the compiler checks rather than assumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.strategies import BoolArray, FloatArray, IntArray
from planner.timeline.orders import BACKWARD, FORWARD, Orders, orders, repeats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """Passes in the order of their levels; place 0 holds zeros, then come ``given`` known ends, then the passes.

    Attributes
    ----------
    given : int
        Ends known beforehand: those of the last block.
    own, other : ndarray of int, shape (P,)
        Places of the pass before on the same stage and of the one waited for; 0 for none.
    what : ndarray of int, shape (P,)
        Place of the pass's length in (kind, chunk, stage).
    crosses : ndarray of bool, shape (P,)
        The one waited for is on another stage.
    levels : tuple of (begin, end, own, other, crosses)
        The passes of each level, and those columns cut to it.
    """

    given: int
    own: IntArray
    other: IntArray
    what: IntArray
    crosses: BoolArray
    levels: tuple[tuple[int, int, IntArray, IntArray, BoolArray], ...]

    def __len__(self) -> int:
        return len(self.own)

    def run(self, seconds_DN: FloatArray, transfer_N: FloatArray, known_GN: FloatArray | None = None) -> FloatArray:
        """Ends of all places for N sets of lengths, shape (1 + given + P, N), in the unit of the lengths."""
        ends = np.zeros((1 + self.given + len(self), seconds_DN.shape[1]))
        if known_GN is not None:
            ends[1 : 1 + self.given] = known_GN
        length, found = seconds_DN.take(self.what, 0), ends[1 + self.given :]
        delays, take = bool(transfer_N.any()), ends.take
        for begin, end, own, other, crosses in self.levels:
            ready = take(other, 0)
            if delays:
                ready += crosses[:, None] * transfer_N
            np.maximum(ready, take(own, 0), out=ready)
            np.add(ready, length[begin:end], out=found[begin:end])
        return ends


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compiled:
    """Programs of one schedule.

    Attributes
    ----------
    head : Program
        Everything, where nothing repeats; else warm-up and the first block.
    block_of_head : ndarray of int
        Places of the first block's ends in the head, in the body's order.
    body, tail : Program or None
        A block after a block; what is left behind the last block.
    orders : Orders
        Of the step that the programs were compiled from.
    place : tuple of ndarray
        Stage and position in its order of every pass of the head.
    """

    head: Program
    orders: Orders
    place: tuple[IntArray, IntArray]
    block_of_head: IntArray
    body: Program | None = None
    tail: Program | None = None


def compiled(schedule: str, stages: int, chunks: int, micro_batches: int) -> tuple[Compiled, int]:
    """Programs for a step, and how often its body runs."""
    short, blocks = repeats(schedule, stages, chunks, micro_batches)
    if not blocks:
        return whole(schedule, stages, chunks, micro_batches), 0
    return _cut(schedule, stages, chunks, short), blocks - 1


@lru_cache(maxsize=32)
def whole(schedule: str, stages: int, chunks: int, micro_batches: int) -> Compiled:
    """The program of every pass of a step, none of it repeated."""
    graph = _graph(orders(schedule, stages, chunks, micro_batches), stages, chunks, micro_batches)
    everything = np.arange(len(graph.stage))
    head, sequence = _program(graph, everything, everything[:0])
    return Compiled(
        head=head,
        orders=graph.orders,
        place=(graph.stage[sequence], graph.position[sequence]),
        block_of_head=everything[:0],
    )


@lru_cache(maxsize=96)
def _cut(schedule: str, stages: int, chunks: int, micro_batches: int) -> Compiled:
    """Head, body and tail of a step of two blocks."""
    graph = _graph(orders(schedule, stages, chunks, micro_batches), stages, chunks, micro_batches)
    found = graph.orders
    assert found.blocks == 2, f"{schedule} with {micro_batches} micro-batches has {found.blocks} blocks"
    turn = (graph.position - np.array(found.before)[graph.stage]) // found.block
    body, second = _program(graph, np.flatnonzero(turn == 1), None)
    # the first block in the order of the second: the same stage and place within the block
    offset = np.cumsum([0] + [len(line) for line in found.passes])
    first = offset[graph.stage[second]] + graph.position[second] - found.block
    body, second = _program(graph, np.flatnonzero(turn == 1), first, second)
    head, sequence = _program(graph, np.flatnonzero(turn < 1), first[:0])
    where = np.empty(len(graph.stage), np.int64)
    where[sequence] = np.arange(len(sequence))
    tail, _ = _program(graph, np.flatnonzero(turn > 1), second)
    return Compiled(
        head=head,
        orders=found,
        place=(graph.stage[sequence], graph.position[sequence]),
        block_of_head=1 + where[first],
        body=body,
        tail=tail,
    )


# --- graph ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Graph:
    """Passes of all stages in one line, stage by stage; -1 for no pass."""

    orders: Orders
    stage: IntArray
    position: IntArray
    own: IntArray
    other: IntArray
    what: IntArray
    level: IntArray


def _graph(found: Orders, p: int, v: int, m: int) -> _Graph:
    lengths = [len(line) for line in found.passes]
    stage = np.repeat(np.arange(p), lengths)
    position = np.concatenate([np.arange(n) for n in lengths])
    kind, micro, chunk = np.concatenate(found.passes).T
    count = len(stage)
    index = np.full((3, v, p, m), -1)
    index[kind, chunk, stage, micro] = np.arange(count)
    own = np.where(position > 0, np.arange(count) - 1, -1)
    reverse = found.v_shaped & (chunk % 2 == 1)
    along = chunk * p + np.where(reverse, p - 1 - stage, stage)
    near = np.where(kind == FORWARD, along - 1, along + 1)  # forward waits for the chunk before, backward for the next
    inside = (near >= 0) & (near < p * v)
    near_chunk, near_place = np.divmod(np.clip(near, 0, p * v - 1), p)
    near_stage = np.where(found.v_shaped & (near_chunk % 2 == 1), p - 1 - near_place, near_place)
    other = np.where(inside, index[np.minimum(kind, BACKWARD), near_chunk, near_stage, micro], -1)
    own_forward = index[FORWARD, chunk, stage, micro]
    other = np.where((kind == BACKWARD) & (along == p * v - 1), own_forward, other)
    other = np.where(kind > BACKWARD, -1, other)  # gradients of weights come behind their own backward pass anyway
    what = (kind * v + chunk) * p + stage
    level = _levels(lengths, own, other)
    return _Graph(orders=found, stage=stage, position=position, own=own, other=other, what=what, level=level)


def _levels(lengths: list[int], own: IntArray, other: IntArray) -> IntArray:
    """Length of the longest chain of waits before each pass."""
    waits = other.tolist()
    level = [-1] * len(waits)
    ends = np.cumsum(lengths).tolist()
    at = [end - length for end, length in zip(ends, lengths, strict=True)]
    last = [-1] * len(lengths)
    todo = True
    while todo:
        todo = False
        for stage, end in enumerate(ends):
            here, highest = at[stage], last[stage]
            while here < end:
                wait = waits[here]
                if wait >= 0:
                    needed = level[wait]
                    if needed < 0:
                        break
                    if needed > highest:
                        highest = needed
                highest += 1
                level[here] = highest
                here += 1
            todo = todo or here > at[stage]
            at[stage], last[stage] = here, highest
    found = np.array(level, np.int64)
    stuck = int((found < 0).sum())
    assert not stuck, f"schedule stalls before {stuck} of {len(level)} passes"
    return found


def _program(
    graph: _Graph, members: IntArray, known: IntArray | None, sequence: IntArray | None = None
) -> tuple[Program, IntArray]:
    """Program of some passes after known ones, and its passes in order."""
    if sequence is None:
        sequence = members[np.argsort(graph.level[members], kind="stable")]
    level = graph.level[sequence]
    bounds = [*np.flatnonzero(np.diff(level, prepend=-1)).tolist(), len(sequence)]
    place = np.full(len(graph.stage) + 1, -1)
    place[-1] = 0  # no pass
    given = 0 if known is None else len(known)
    if known is not None:
        place[known] = 1 + np.arange(given)
    place[sequence] = 1 + given + np.arange(len(sequence))
    own, other = place[graph.own[sequence]], place[graph.other[sequence]]
    if known is not None:
        assert (own >= 0).all(), "a block waits for a pass before the last block"
        assert (other >= 0).all(), "a block waits for a pass before the last block"
    crosses = (graph.other[sequence] >= 0) & (graph.stage[graph.other[sequence]] != graph.stage[sequence])
    return Program(
        given=given,
        own=own,
        other=other,
        what=graph.what[sequence],
        crosses=crosses,
        levels=tuple((a, b, own[a:b], other[a:b], crosses[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)),
    ), sequence
