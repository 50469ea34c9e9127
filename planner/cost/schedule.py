"""Pipeline schedules simulated event by event, for the few candidates that are compared in the end.

The closed forms of ``planner.cost.time.pipeline`` know stages only by their length; the simulation also sees chunks of
unequal length, the order of work on each stage and the time of transfers between them.

A stage works on one pass at a time.  A pass is (kind, micro-batch, chunk): ``F`` forward, ``B`` backward, ``W`` the
weight gradients where the schedule delays them.  A pass may start when the passes it needs have arrived.  Events wait
in a heap of (time, order of insertion), so equal times are handled in the order they were foreseen and a run is
deterministic.

Sources of the orders: 1F1B and interleaving as in Megatron-LM (arXiv 2104.04473), the V schedule as in zero bubble
(arXiv 2405.15362): chunk 1 returns through the stages backwards, at most about 2p chunk passes are in flight, weight
gradients fill
the gaps.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from planner.errors import SpecError

FORWARD: Final = "F"
BACKWARD: Final = "B"
WEIGHTS: Final = "W"


class Pass(NamedTuple):
    """One unit of work of a stage."""

    kind: str
    micro_batch: int
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A pass with its place and time [s]."""

    stage: int
    work: Pass
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What every stage does in one step, without optimizer and gradient traffic.

    Attributes
    ----------
    events : tuple of Event
        In order of their start.
    makespan_s : float
        End of the last pass [s].
    busy_s : tuple of float
        Work of each stage [s]; the rest of the makespan is its bubble.
    """

    events: tuple[Event, ...]
    makespan_s: float
    busy_s: tuple[float, ...]

    @property
    def bubble_s(self) -> tuple[float, ...]:
        """Waiting of each stage [s]."""
        return tuple(self.makespan_s - busy for busy in self.busy_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of one micro-batch in each chunk of each stage, ``[chunk][stage]``.

    ``backward_s`` includes the gradients of weights; ``weights_s`` is the part a schedule may delay.  ``transfer_s`` is
    the delay of one hand-over between stages during which both may work on.
    """

    forward_s: tuple[tuple[float, ...], ...]
    backward_s: tuple[tuple[float, ...], ...]
    weights_s: tuple[tuple[float, ...], ...]
    transfer_s: float = 0.0

    @property
    def chunks(self) -> int:
        """Chunks of a stage."""
        return len(self.forward_s)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return len(self.forward_s[0])


def simulate(schedule: str, durations: Durations, micro_batches: int) -> Timeline:
    """Timeline of one step under a schedule.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b", "interleaved", "seqpipe", "zero_bubble_v"}
        ``seqpipe`` with one slice a sequence is interleaving.
    micro_batches : int
        Micro-batches of the step.

    Examples
    --------
    Four micro-batches on two equal stages, (m + p - 1)(f + b) = 5 x 3:

    >>> equal = Durations(forward_s=((1.0, 1.0),), backward_s=((2.0, 2.0),), weights_s=((1.0, 1.0),))
    >>> simulate("1f1b", equal, 4).makespan_s
    15.0
    """
    if schedule == "zero_bubble_v":
        if durations.chunks != 2:
            raise SpecError(f"zero_bubble_v needs 2 chunks a stage (vpp=2); given {durations.chunks}.")
        return _run(_Greedy(durations, micro_batches))
    if schedule not in _ORDERS:
        raise SpecError(f"schedule '{schedule}' is not known; legal: {', '.join((*_ORDERS, 'zero_bubble_v'))}.")
    order = _ORDERS[schedule]
    p, v = durations.stages, durations.chunks
    return _run(_Fixed(durations, micro_batches, [order(stage, p, v, micro_batches) for stage in range(p)]))


# ------------------------------------------------------------------------------------------------------- orders


def _gpipe(stage: int, p: int, v: int, m: int) -> list[Pass]:
    passes = [(chunk, micro) for chunk in range(v) for micro in range(m)]
    return [Pass(FORWARD, micro, chunk) for chunk, micro in passes] + [
        Pass(BACKWARD, micro, chunk) for chunk, micro in reversed(passes)
    ]


def _one_forward_one_backward(stage: int, p: int, v: int, m: int) -> list[Pass]:
    """Warm-up forwards, then one forward and one backward in turn, then the remaining backwards.

    With chunks, passes go in rounds of p micro-batches: chunk 0 of p micro-batches, chunk 1 of the same, and so on; the
    warm-up is ``2 (p - s - 1) + (v - 1) p`` passes, without chunks ``p - s - 1``.
    """
    forwards = [Pass(FORWARD, micro, chunk) for micro, chunk in _rounds(p, v, m)]
    backwards = [Pass(BACKWARD, micro, v - 1 - chunk) for micro, chunk in _rounds(p, v, m)]
    warm = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    warm = min(warm, len(forwards))
    steady = [work for pair in zip(forwards[warm:], backwards, strict=False) for work in pair]
    return forwards[:warm] + steady + backwards[len(forwards) - warm :]


def _rounds(p: int, v: int, m: int) -> list[tuple[int, int]]:
    starts = range(0, m, p)
    return [(micro, chunk) for start in starts for chunk in range(v) for micro in range(start, min(start + p, m))]


_ORDERS: Final = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _one_forward_one_backward,
    "seqpipe": _one_forward_one_backward,
}


# ------------------------------------------------------------------------------------------------------ policies


class _Policy:
    """What may run where and how long it takes; subclasses choose the next pass of an idle stage."""

    splits_weights = False
    v_shaped = False

    def __init__(self, durations: Durations, micro_batches: int) -> None:
        self.durations = durations
        self.micro_batches = micro_batches
        self.arrived: list[set[Pass]] = [set() for _ in range(durations.stages)]
        first = self.virtual(0)
        self.arrived[first[1]] = {Pass(FORWARD, micro, first[0]) for micro in range(micro_batches)}

    def virtual(self, position: int) -> tuple[int, int]:
        """Chunk and stage of a position along the model."""
        chunk, stage = divmod(position, self.durations.stages)
        return chunk, self.durations.stages - 1 - stage if self.v_shaped and chunk % 2 else stage

    def position(self, chunk: int, stage: int) -> int:
        """Position along the model of a chunk of a stage."""
        p = self.durations.stages
        return chunk * p + (p - 1 - stage if self.v_shaped and chunk % 2 else stage)

    def seconds(self, stage: int, work: Pass) -> float:
        """Length of a pass [s]."""
        d = self.durations
        if work.kind == FORWARD:
            return d.forward_s[work.chunk][stage]
        if work.kind == WEIGHTS:
            return d.weights_s[work.chunk][stage]
        late = d.weights_s[work.chunk][stage] if self.splits_weights else 0.0
        return d.backward_s[work.chunk][stage] - late

    def finished(self, stage: int, work: Pass) -> list[tuple[int, Pass, float]]:
        """Passes that a finished pass makes possible: stage, pass, delay [s]."""
        here = self.position(work.chunk, stage)
        last = self.durations.chunks * self.durations.stages - 1
        out: list[tuple[int, Pass, float]] = []
        if work.kind == FORWARD:
            if here == last:
                out.append((stage, Pass(BACKWARD, work.micro_batch, work.chunk), 0.0))
            else:
                out.append(self._hand_over(here + 1, stage, FORWARD, work.micro_batch))
        elif work.kind == BACKWARD:
            if here > 0:
                out.append(self._hand_over(here - 1, stage, BACKWARD, work.micro_batch))
            if self.splits_weights:
                out.append((stage, Pass(WEIGHTS, work.micro_batch, work.chunk), 0.0))
        return out

    def _hand_over(self, position: int, stage: int, kind: str, micro: int) -> tuple[int, Pass, float]:
        chunk, target = self.virtual(position)
        return target, Pass(kind, micro, chunk), self.durations.transfer_s if target != stage else 0.0

    def choose(self, stage: int) -> Pass | None:
        """Next pass of an idle stage, None to wait."""
        raise NotImplementedError


class _Fixed(_Policy):
    """Every stage follows a list."""

    def __init__(self, durations: Durations, micro_batches: int, orders: Sequence[Sequence[Pass]]) -> None:
        super().__init__(durations, micro_batches)
        self.left = [list(reversed(order)) for order in orders]

    def choose(self, stage: int) -> Pass | None:
        """The next of the list, once it may run."""
        if not self.left[stage] or self.left[stage][-1] not in self.arrived[stage]:
            return None
        return self.left[stage].pop()


class _Greedy(_Policy):
    """Zero-bubble V: backward first, then forward, then weights.

    The first chunk starts a micro-batch only while fewer than 2p chunk passes are in flight (from forward to the end of
    the input gradient); the returning chunk goes before the first and is never held back, so nothing can stall.
    """

    splits_weights = True
    v_shaped = True

    def __init__(self, durations: Durations, micro_batches: int) -> None:
        super().__init__(durations, micro_batches)
        self.in_flight = [0] * durations.stages

    def choose(self, stage: int) -> Pass | None:
        """Highest priority among what has arrived; the later chunk and the earlier micro-batch first."""
        room = 2 * self.durations.stages - self.in_flight[stage]
        ready = [work for work in self.arrived[stage] if work.kind != FORWARD or work.chunk > 0 or room > 0]
        if not ready:
            return None
        best = min(ready, key=lambda work: ("BFW".index(work.kind), self._turn(work), work.micro_batch))
        self.in_flight[stage] += {FORWARD: 1, BACKWARD: -1, WEIGHTS: 0}[best.kind]
        return best

    def _turn(self, work: Pass) -> int:
        return work.chunk if work.kind == BACKWARD else -work.chunk


# ---------------------------------------------------------------------------------------------------------- loop


class _Arrival(NamedTuple):
    """A pass becomes possible on a stage."""

    stage: int
    work: Pass


class _Release(NamedTuple):
    """A stage has finished a pass."""

    stage: int
    work: Pass


def _run(policy: _Policy) -> Timeline:
    """Handle events until nothing is left; every pass must have run."""
    stages = policy.durations.stages
    counter = itertools.count()
    queue: list[tuple[float, int, _Arrival | _Release]] = []
    idle = [True] * stages
    events: list[Event] = []

    def begin(stage: int, now: float) -> None:
        work = policy.choose(stage) if idle[stage] else None
        if work is None:
            return
        policy.arrived[stage].discard(work)
        idle[stage] = False
        end = now + policy.seconds(stage, work)
        events.append(Event(stage=stage, work=work, start_s=now, end_s=end))
        heapq.heappush(queue, (end, next(counter), _Release(stage, work)))

    for stage in range(stages):
        begin(stage, 0.0)
    while queue:
        now, _, event = heapq.heappop(queue)
        if isinstance(event, _Release):
            idle[event.stage] = True
            for stage, work, delay in policy.finished(event.stage, event.work):
                heapq.heappush(queue, (now + delay, next(counter), _Arrival(stage, work)))
        else:
            policy.arrived[event.stage].add(event.work)
        if not queue or queue[0][0] > now:
            for stage in range(stages):
                begin(stage, now)
    return _timeline(policy, events)


def _timeline(policy: _Policy, events: list[Event]) -> Timeline:
    durations = policy.durations
    kinds = 3 if policy.splits_weights else 2
    wanted = kinds * durations.stages * durations.chunks * policy.micro_batches
    assert len(events) == wanted, f"schedule stalled after {len(events)} of {wanted} passes"
    busy = [0.0] * durations.stages
    for event in events:
        busy[event.stage] += event.end_s - event.start_s
    return Timeline(
        events=tuple(events), makespan_s=max((event.end_s for event in events), default=0.0), busy_s=tuple(busy)
    )
