"""The order in which every stage works through a step, and what of it repeats.

A pass is one unit of work of a stage: (kind, micro-batch, chunk), the kinds being forward, backward and, where the
schedule delays them, the gradients of weights.  An order does not depend on how long passes take; in-flight counts
follow from it alone.

=======================  ============================================================================================
gpipe                    all forwards, then all backwards, last micro-batch first
1f1b                     p - 1 - s forwards ahead, then one forward and one backward in turn
interleaved              passes go in rounds of p micro-batches, chunk by chunk; 2 (p - 1 - s) + (v - 1) p passes ahead
interleaved_less_memory  the same with p - 1 - s + (v - 1) p passes ahead: fewer activations, no slack for transfers
seqpipe                  as interleaved (one slice a sequence)
zero_bubble_v            chunk 1 returns through the stages backwards; F B W of chunk 0 and F B W of chunk 1 in turn
=======================  ============================================================================================

Micro-batches that p does not divide are done in the first round when interleaving.

Sources: Narayanan et al. 2021 (arXiv 2104.04473, section 2.2) for 1F1B and interleaving; MindSpore's
``pipeline_transformer/pipeline_scheduler.cc`` (``InterleavedScheduler``) for the first round and for the variant with
less memory (``MemoryOptimizedReorder``; the graphs of the DryRun grid, MindSpore 2.9, keep what the ordinary order
keeps); Qi et al. 2024 (arXiv 2405.15362, appendix) for the V schedule, whose hand-made order keeps 2p - s - 1
micro-batches of chunk 0 and s + 1 of chunk 1, as `planner.cost.layers.in_flight_CVS` counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.strategies import IntArray
from planner.errors import SpecError

FORWARD: Final = 0
BACKWARD: Final = 1
WEIGHTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Orders:
    """What every stage does, in order.

    Attributes
    ----------
    passes : tuple of ndarray, shape (L, 3)
        Kind, micro-batch and chunk of each pass, one array a stage.
    before : tuple of int
        Passes of each stage before the repeating blocks begin.
    block : int
        Passes of a stage in one block; 0 where nothing repeats.  A block is p micro-batches further than the last one.
    blocks : int
        Whole blocks that all stages go through.
    v_shaped, splits : bool
        Odd chunks run backwards through the stages; gradients of weights are passes of their own.
    """

    passes: tuple[IntArray, ...]
    before: tuple[int, ...]
    block: int
    blocks: int
    v_shaped: bool = False
    splits: bool = False


def orders(schedule: str, stages: int, chunks: int, micro_batches: int) -> Orders:
    """Orders of all stages under a schedule.

    >>> [list(work) for work in orders("1f1b", 2, 1, 2).passes[0][:, :2].tolist()]
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if schedule not in _BUILDERS:
        raise SpecError(f"schedule '{schedule}' is not known; legal: {', '.join(_BUILDERS)}.")
    if schedule == "zero_bubble_v" and chunks != 2:
        raise SpecError(f"zero_bubble_v needs 2 chunks a stage (vpp=2); given {chunks}.")
    return _BUILDERS[schedule](stages, chunks, micro_batches)


def repeats(schedule: str, stages: int, chunks: int, micro_batches: int) -> tuple[int, int]:
    """Micro-batches of the step of two blocks with the same beginning and end, and blocks of the whole step.

    (0, 0) where the step is too short to repeat anything.
    """
    blocks = _blocks(schedule, stages, chunks, micro_batches)
    if blocks < 3:
        return 0, 0
    return micro_batches - (blocks - 2) * stages, blocks


def _blocks(schedule: str, p: int, v: int, m: int) -> int:
    """Blocks of p micro-batches that all stages go through."""
    if schedule == "gpipe":
        return 0
    if schedule == "zero_bubble_v":
        return max((m - 2 * p + 1) // p, 0)
    pairs = [m * v - _warm(schedule, p, v, m, stage) - _skipped(schedule, p, v, m, stage) for stage in range(p)]
    return max(min(pairs) // (p * v), 0)


def _gpipe(p: int, v: int, m: int) -> Orders:
    micro, chunk = np.tile(np.arange(m), v), np.repeat(np.arange(v), m)
    forward = _of(FORWARD, micro, chunk)
    line = np.concatenate([forward, _of(BACKWARD, micro, chunk)[::-1]])
    return Orders(passes=(line,) * p, before=(0,) * p, block=0, blocks=0)


def _in_turn(schedule: str) -> Callable[[int, int, int], Orders]:
    def build(p: int, v: int, m: int) -> Orders:
        micro, chunk = _rounds(p, v, m)
        forward, backward = _of(FORWARD, micro, chunk), _of(BACKWARD, micro, v - 1 - chunk)
        passes, before = [], []
        for stage in range(p):
            warm = min(_warm(schedule, p, v, m, stage), len(forward))
            pairs = len(forward) - warm
            steady = np.stack([forward[warm:], backward[:pairs]], axis=1).reshape(2 * pairs, 3)
            passes.append(np.concatenate([forward[:warm], steady, backward[pairs:]]))
            before.append(warm + 2 * _skipped(schedule, p, v, m, stage))
        return Orders(passes=tuple(passes), before=tuple(before), block=2 * p * v, blocks=_blocks(schedule, p, v, m))

    return build


def _warm(schedule: str, p: int, v: int, m: int, stage: int) -> int:
    """Forward passes of a stage before its first backward pass."""
    behind = p - 1 - stage
    if v == 1:
        return behind
    return (behind if schedule == "interleaved_less_memory" else 2 * behind) + (v - 1) * (p + m % p)


def _skipped(schedule: str, p: int, v: int, m: int, stage: int) -> int:
    """Pairs of a stage before its first block: those of a longer first round, and a turn for every stage before it.

    With warm-ups of two passes a stage, a pass waits for passes of earlier turns only if stage s counts its turns from
    pair s on.
    """
    skew = stage if v > 1 and schedule != "interleaved_less_memory" else 0
    return skew + ((p + m % p) * v if v > 1 and m % p else 0)


def _rounds(p: int, v: int, m: int) -> tuple[IntArray, IntArray]:
    """Micro-batch and chunk of each pass in one direction: rounds of p micro-batches, chunk by chunk.

    What p does not divide is done in the first round, as MindSpore does.
    """
    first = min(p + m % p, m)
    rest = (m - first) // p
    micro = np.broadcast_to(first + np.arange(rest * p).reshape(rest, 1, p), (rest, v, p)).ravel()
    chunk = np.broadcast_to(np.arange(v)[None, :, None], (rest, v, p)).ravel()
    return (
        np.concatenate([np.tile(np.arange(first), v), micro]),
        np.concatenate([np.repeat(np.arange(v), first), chunk]),
    )


def _zero_bubble_v(p: int, v: int, m: int) -> Orders:
    """Warm-up, then F B W of chunk 0 and of chunk 1 in turn, then the backward passes that are left."""
    n = max(m, 2 * p - 1)  # a shorter step leaves out what it has no micro-batches for
    passes, before = [], []
    for stage in range(p):
        line = _v_line(p, stage, n)
        before.append(2 * (p - stage) - 1 + 2 * stage + 3 * (p - stage))
        passes.append(line[line[:, 1] < m])
    blocks = _blocks("zero_bubble_v", p, v, m)
    return Orders(passes=tuple(passes), before=tuple(before), block=6 * p, blocks=blocks, v_shaped=True, splits=True)


def _v_line(p: int, stage: int, n: int) -> IntArray:
    done = {(kind, chunk): 0 for kind in (FORWARD, BACKWARD, WEIGHTS) for chunk in (0, 1)}
    line: list[tuple[int, int, int]] = []

    def add(*what: tuple[int, int]) -> None:
        for kind, chunk in what:
            if done[kind, chunk] < n:
                line.append((kind, done[kind, chunk], chunk))
                done[kind, chunk] += 1

    ahead, back = (FORWARD, 0), (FORWARD, 1)
    one = [(kind, 0) for kind in (BACKWARD, WEIGHTS)]
    two = [(kind, 1) for kind in (BACKWARD, WEIGHTS)]
    add(*[ahead] * (2 * (p - stage) - 1), *[back, ahead] * stage, *[back, *two] * (p - stage))
    while done[back] < n:
        add(ahead, *one, back, *two)
    add(*[(BACKWARD, 0), (BACKWARD, 1)] * stage, *one * (p - stage))
    add(*[(WEIGHTS, 1)] * (n - done[WEIGHTS, 1]), *[(WEIGHTS, 0)] * (n - done[WEIGHTS, 0]))
    return np.array(line, np.int64)


def _of(kind: int, micro: IntArray, chunk: IntArray) -> IntArray:
    return np.stack([np.full(len(micro), kind), micro, chunk], axis=1)


_BUILDERS: Final[dict[str, Callable[[int, int, int], Orders]]] = {
    "gpipe": _gpipe,
    "1f1b": _in_turn("1f1b"),
    "interleaved": _in_turn("interleaved"),
    "interleaved_less_memory": _in_turn("interleaved_less_memory"),
    "seqpipe": _in_turn("seqpipe"),
    "zero_bubble_v": _zero_bubble_v,
}

#: Schedules that can be simulated.
KNOWN: Final = tuple(_BUILDERS)
