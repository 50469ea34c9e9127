"""Each rank's mean steady step, cut into parts that add up to it.

The bubble is recomputed, because profiles count it wrongly: what a rank waits in point-to-point operators, and in
collectives of groups that reach over several stages (tied embeddings), beyond the transfer.  A collective that several
ranks of its group were seen in takes what the last one to arrive needed; the others waited the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from planner.diagnose.records import RankTime
from planner.observe.records import CommunicationOp, Observation, StepTrace

#: Kinds of groups that reach over stages: who waits in them waits for another stage.
ACROSS_STAGES: Final = frozenset(("pp", "embd", "pos_embd", "mp", "position_embedding", "embedding"))
#: Marks of rows that are left out when others are there.
_DOUBTFUL: Final = frozenset(("", "last profiled step", "first profiled step"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A communication operator, its time cut in two [s]."""

    op: CommunicationOp
    moving_s: float
    waiting_s: float

    @property
    def kind(self) -> str:
        """Kind of its group as people name it: ``"dp"`` also for ``"dp_cp"``; ``""`` when unknown."""
        kind = self.op.group_kind
        return "pp" if self.op.op == "sendrecv" and not kind else {"dp_cp": "dp", "tp_cp": "tp"}.get(kind, kind)


def traffic(observation: Observation) -> tuple[Traffic, ...]:
    """Every operator with what it moved and what it waited."""
    least: dict[tuple[str, str, int | None], list[float]] = defaultdict(list)
    for op in observation.communication:
        if op.group and op.op != "sendrecv":
            least[op.name, op.group, op.step].append(op.elapse_s)
    found = []
    for op in observation.communication:
        seen = least.get((op.name, op.group, op.step), ())
        moving = min(seen) if len(seen) > 1 else op.elapse_s - op.waiting_s
        found.append(Traffic(op=op, moving_s=moving, waiting_s=op.elapse_s - moving))
    return tuple(found)


def used_steps(observation: Observation, rank: int | None) -> tuple[StepTrace, ...]:
    """Steps of a rank that describe a steady step: without marks, where such are there."""
    rows = observation.steps_of(rank)
    return tuple(row for row in rows if not row.mark) or tuple(row for row in rows if row.mark in _DOUBTFUL)


def per_step(
    observation: Observation, moved: Iterable[Traffic]
) -> Mapping[int | None, tuple[tuple[Traffic, ...], int]]:
    """Operators of each rank's used steps, and how many steps they are of."""
    mine: dict[int | None, list[Traffic]] = defaultdict(list)
    for one in moved:
        mine[one.op.rank].append(one)
    out = {}
    for rank, ops in mine.items():
        numbers = {step.step for step in used_steps(observation, rank)}
        kept = [one for one in ops if one.op.step in numbers] or ops
        out[rank] = tuple(kept), max(1, len({one.op.step for one in kept}))
    return out


def rank_times(observation: Observation, moved: tuple[Traffic, ...]) -> tuple[RankTime, ...]:
    """Mean steady step of every rank."""
    operators = per_step(observation, moved)
    ranks = sorted(
        {step.rank for step in observation.steps if not step.ranks}, key=lambda rank: -1 if rank is None else rank
    )
    data = {pipeline.rank: pipeline.waited_frac for pipeline in observation.pipelines}
    out = []
    for rank in ranks:
        if steps := used_steps(observation, rank):
            ops, count = operators.get(rank, ((), 1))
            across = sum(one.waiting_s for one in ops if one.op.op != "sendrecv" and one.kind in ACROSS_STAGES)
            out.append(_mean(steps, across / count, data.get(rank)))
    return tuple(out)


def _mean(steps: tuple[StepTrace, ...], across_s: float, data_frac: float | None) -> RankTime:
    """Mean of a rank's steps, cut into parts."""
    n = len(steps)
    compute, exposed, free = (
        sum(getattr(step, name) or 0.0 for step in steps) / n for name in ("compute_s", "exposed_s", "free_s")
    )
    waited = sum(_waited(step) for step in steps) / n
    bubble = min(waited + across_s, exposed)
    data = sum(step.preparing_s or 0.0 for step in steps) / n
    if data_frac is not None:
        data = max(data, data_frac * (compute + exposed + free))
    data = min(data, free)
    off = [frac for step in steps if (frac := step.invariant_frac) is not None]
    return RankTime(
        rank=steps[0].rank, stage=steps[0].stage, steps=n, compute_s=compute, exposed_s=exposed - bubble, data_s=data,
        bubble_s=bubble, free_s=free - data, overlapped_s=sum(step.overlapped_s or 0.0 for step in steps) / n,
        pipeline_wait_s=min(waited, exposed), off_frac=max(off, default=None),
    )  # fmt: skip


def _waited(step: StepTrace) -> float:
    """Waiting in point-to-point operators: recomputed, else received alone, else as the file writes it [s]."""
    return step.pipeline_wait_s or step.receive_s or step.bubble_s or 0.0
