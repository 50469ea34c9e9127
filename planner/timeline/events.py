"""A step as a timeline: every pass with its place and time, and what its stage holds meanwhile.

The same orders and the same recurrence as the simulation that ranks plans, every pass kept instead of the last end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.strategies import FloatArray, IntArray
from planner.timeline.orders import BACKWARD, FORWARD
from planner.timeline.program import whole

#: Names of the kinds of passes, by their number.
KINDS: Final = ("forward", "backward", "weights")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Passes of one step in the order of their start; no optimizer, no gradient traffic.

    Attributes
    ----------
    kind, stage, micro_batch, chunk : ndarray of int, shape (E,)
        What each pass is, `KINDS` by number, and where.
    start_s, end_s : ndarray, shape (E,)
        [s].
    needs : ndarray of int, shape (E,)
        The pass whose output it takes, -1 for none; on another stage where something is sent.
    stages, chunks, micro_batches : int
    """

    kind: IntArray
    stage: IntArray
    micro_batch: IntArray
    chunk: IntArray
    start_s: FloatArray
    end_s: FloatArray
    needs: IntArray
    stages: int
    chunks: int
    micro_batches: int

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def makespan_s(self) -> float:
        """End of the last pass [s]."""
        return float(self.end_s.max(initial=0.0))

    @property
    def busy_S(self) -> FloatArray:
        """Work of each stage [s]; the rest of the makespan is its bubble."""
        return np.asarray(np.bincount(self.stage, self.end_s - self.start_s, minlength=self.stages), np.float64)

    def held_by(self, stage: int) -> tuple[FloatArray, IntArray]:
        """Times at which a stage takes or frees activations [s], and micro-batches of each chunk it holds from then on.

        A micro-batch is held from the start of its forward to the end of its backward pass (of the input gradients,
        where the schedule delays those of the weights).  Shapes (T,) and (T, V).
        """
        mine = np.flatnonzero((self.stage == stage) & (self.kind <= BACKWARD))
        forward = self.kind[mine] == FORWARD
        when = np.where(forward, self.start_s[mine], self.end_s[mine])
        change = np.zeros((len(mine), self.chunks), np.int64)
        change[np.arange(len(mine)), self.chunk[mine]] = np.where(forward, 1, -1)
        order = np.lexsort([forward, when])  # at equal times what ends frees first
        return when[order], np.cumsum(change[order], axis=0)


def timeline(
    schedule: str,
    forward_VS: FloatArray,
    backward_VS: FloatArray,
    weights_VS: FloatArray,
    micro_batches: int,
    transfer_s: float = 0.0,
) -> Timeline:
    """Every pass of one step; arguments as in `planner.timeline.simulation.makespans`, one set of lengths.

    Examples
    --------
    Stage 1 of two equal ones: F0 from 1 to 2, B0 to 4, F1 to 5, B1 to 7.

    >>> one = np.ones((1, 2))
    >>> found = timeline("1f1b", one, 2 * one, one, 2)
    >>> found.end_s[found.stage == 1].tolist(), found.makespan_s
    ([2.0, 4.0, 5.0, 7.0], 9.0)
    """
    chunks, stages = forward_VS.shape
    compiled = whole(schedule, stages, chunks, micro_batches)
    early = backward_VS - weights_VS if compiled.orders.splits else backward_VS
    lengths = np.stack([forward_VS, early, weights_VS]).reshape(-1, 1)
    head = compiled.head
    ends = head.run(lengths, np.array([transfer_s]))[:, 0]
    starts = np.maximum(ends[head.own], ends[head.other] + head.crosses * transfer_s)
    ends = ends[1:]
    stage, position = compiled.place
    offset = np.cumsum([0] + [len(line) for line in compiled.orders.passes])
    kind, micro, chunk = np.concatenate(compiled.orders.passes)[offset[stage] + position].T
    order = np.lexsort([position, stage, starts])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    needs = head.other[order] - 1
    return Timeline(
        kind=kind[order],
        stage=stage[order],
        micro_batch=micro[order],
        chunk=chunk[order],
        start_s=starts[order],
        end_s=ends[order],
        needs=np.where(needs >= 0, rank[needs], -1),
        stages=stages,
        chunks=chunks,
        micro_batches=micro_batches,
    )
