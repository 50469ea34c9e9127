"""Pipeline schedules in closed form, for stages of unequal length.

Symbols: m micro-batches, p stages, v chunks a stage; of stage s: f, b forward and backward time of all its layers for
one micro-batch, w the part of b that computes weight gradients, t = f + b, and n = p - 1 - s stages behind it.

Every stage bounds the step from below by its own work and the waiting it cannot avoid; the step takes the largest
bound.  A stage starts after the first micro-batch has come through the stages before it and ends before the last
gradient goes back through them (``lead``).  In between it waits for the first gradient, while it can only run ahead by
its warm-up of W passes (``first``), and, once its forward passes are over, for the last gradient (``last``):

=============  ==========================================================================================
lead           ``sum of t before s / v``
W              ``n`` for one chunk, else ``2 n + (v - 1) p``
first          ``max(0, sum of t behind s / v + (v - 1) / v (sum of f) - W f / v)``
last           ``max(0, sum of t behind s / v + (v - 1) / v (sum of b) - W b / v)``
1f1b           ``max over s of m t + lead + first + last``; with equal stages (m + p - 1)(f + b)
interleaved    the same; with equal stages (m + (p - 1) / v)(f + b)
seqpipe        as interleaved (one slice a sequence)
gpipe          ``sum of t + (m - 1)(max f + max b)``
zero_bubble_v  ``max over s of m t + sum before s of max(f, b - w) / 2``; weight gradients fill all other gaps
=============  ==========================================================================================

Interleaving adds what longer chunks elsewhere cost (`_stall`).  With fewer micro-batches than the warm-up, ``first``
and ``last`` are one wait and the longer counts.  Sources: Narayanan et al. 2021 (arXiv 2104.04473, section 2.2) for
1F1B and interleaving with equal stages; Qi et al. 2024 (arXiv 2405.15362) for the V schedule, whose remainder, like the
bounds for unequal stages, was checked against ``planner.timeline``, which simulates the same schedules pass by pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.rows import distinct, mixers
from planner.cost.strategies import SCHEDULES, BoolArray, FloatArray, IntArray, Strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Time of all micro-batches of a step.

    Attributes
    ----------
    stage : ndarray of int, shape (C,)
        The stage that sets the pace; the first of equals.
    busy_s, bubble_s : ndarray, shape (C,)
        Work of that stage, and its waiting [s]; their sum is the time of all micro-batches.
    """

    stage: IntArray
    busy_s: FloatArray
    bubble_s: FloatArray


def pipeline_time(
    table: Strategies,
    forward_CS: FloatArray,
    backward_CS: FloatArray,
    weight_gradient_CS: FloatArray,
    head_s: FloatArray | None = None,
) -> Pipeline:
    """Time of the micro-batches of a step under each row's schedule.

    Parameters
    ----------
    table : Strategies
        ``pp``, ``vpp``, ``micro_batches`` and ``schedule`` are read.
    forward_CS, backward_CS : ndarray, shape (C, S)
        Time of one micro-batch in all layers of each stage, recompute included; 0 beyond a row's own stages [s].
    weight_gradient_CS : ndarray, shape (C, S)
        Part of ``backward_CS`` that computes gradients of weights and may be delayed [s].
    head_s : ndarray, shape (C,), optional
        Part of the last stage's time that head, loss and MTP modules take, all in its last chunk [s].
    """
    total_CS = forward_CS + backward_CS
    work_CS = table.micro_batches[:, None] * total_CS
    wait_CS = np.where(
        _is(table.schedule, "zero_bubble_v")[:, None],
        _before(0.5 * np.maximum(forward_CS, backward_CS - weight_gradient_CS)),
        _turn_taking(table, forward_CS, backward_CS),
    )
    bound_CS = np.where(table.stage_mask_CS, work_CS + wait_CS, 0.0)
    longest = np.argmax(total_CS, axis=1)
    gpipe = _is(table.schedule, "gpipe")
    stage = np.where(gpipe, longest, np.argmax(bound_CS, axis=1))
    busy = at_stage(work_CS, stage)
    ends = (table.micro_batches - 1) * (forward_CS.max(axis=1) + backward_CS.max(axis=1))
    filled = np.cumsum(total_CS, axis=1)[:, -1] + ends
    bubble = np.where(gpipe, np.maximum(filled - busy, 0.0), at_stage(wait_CS, stage) + _stall(table, total_CS, head_s))
    return Pipeline(stage=stage, busy_s=busy, bubble_s=bubble)


def _turn_taking(table: Strategies, forward_CS: FloatArray, backward_CS: FloatArray) -> FloatArray:
    """Waiting of each stage while forward and backward passes take turns, shape (C, S) [s]."""
    chunks = table.vpp[:, None].astype(np.float64)
    behind = (table.pp[:, None] - 1 - np.arange(table.stages)[None, :]).astype(np.float64)
    more = chunks - 1.0
    warm = np.where(chunks > 1.0, 2.0 * behind + more * table.pp[:, None], behind)
    total_CS = forward_CS + backward_CS
    before = _before(total_CS)
    after = _all(total_CS) - before - total_CS
    first = (after + more * _all(forward_CS) - warm * forward_CS) / chunks
    last = (after + more * _all(backward_CS) - warm * backward_CS) / chunks
    passes = table.micro_batches[:, None] * chunks
    apart = np.maximum(first, 0.0) + np.maximum(last, 0.0)
    # With passes <= warm-up + 1 all forwards come first: one wait, of the first or the last gradient.
    slack = (passes - 1.0) * np.minimum(forward_CS, backward_CS) / chunks
    joint = (after + more * np.minimum(_all(forward_CS), _all(backward_CS))) / chunks - slack
    return before / chunks + np.where(passes > warm + 1.0, apart, np.maximum(joint, 0.0))


def _stall(table: Strategies, total_CS: FloatArray, head_s: FloatArray | None) -> FloatArray:
    """Waiting of interleaved stages for longer chunks elsewhere, shape (C,) [s].

    Stages are locked to each other within about one pass.  If all moved at the pace of the slowest pass of each turn,
    a micro-batch would take `locked_layers`; if chunks did not matter, the layers of the fullest stage.  The simulation
    lies between the two, on average near the middle (tests hold it there).  The head is so many layers more of the last
    chunk as it takes as long.
    """
    out = np.zeros(len(table))
    turning = np.flatnonzero(_is(table.schedule, "interleaved") | _is(table.schedule, "seqpipe"))
    if not len(turning):
        return out
    table, total_CS = table.take(turning), total_CS[turning]
    head = np.zeros(len(table)) if head_s is None else head_s[turning]
    count = np.maximum(table.layers_CVS.sum(axis=(1, 2)), 1)
    layer_s = (_all(total_CS)[:, 0] - head) / count
    head = np.divide(head, layer_s, out=np.zeros(len(table)), where=layer_s > 0)
    entry = distinct(_layout_keys(table))[1]
    stall = np.zeros(len(table))
    for pp, vpp in sorted(set(zip(table.pp.tolist(), table.vpp.tolist(), strict=True))):
        alike = np.flatnonzero((table.pp == pp) & (table.vpp == vpp))
        first, place = distinct(entry[alike])
        layers = table.layers_CVS[alike[first], :vpp, :pp]
        fullest = layers.sum(axis=1)
        most = np.maximum(fullest.max(axis=1)[place], fullest[place, -1] + head[alike])
        stall[alike] = _MIDDLE * (locked_layers(layers, place, head[alike]) - most)
    out[turning] = table.micro_batches * layer_s * stall
    return out


#: Where between the fullest stage and stages locked to the slowest pass the pace lies; see tests/cost/time.
_MIDDLE: Final = 0.5


def locked_layers(
    layers_CVS: IntArray, entry: IntArray | None = None, head_layers: FloatArray | None = None
) -> FloatArray:
    """Layers a micro-batch takes if in every pass all stages wait for the slowest, shape (C,).

    Backward takes twice as long as forward.

    Parameters
    ----------
    entry, head_layers : ndarray, optional
        Layout of each row, and the layers that the head counts as beside the last chunk's.

    >>> float(locked_layers(np.ones((1, 2, 4), np.int64))[0])
    2.0
    """
    chunks, stages = layers_CVS.shape[1:]
    forward, backward = locked_chunks(stages, chunks)
    stage = np.arange(stages)[None, :]
    passes = layers_CVS[:, forward, stage] + 2 * layers_CVS[:, backward, stage]
    if entry is None or head_layers is None:
        return np.asarray(passes.max(axis=2).sum(axis=1) / (3.0 * stages))
    with_head, others = passes[:, :stages, -1], passes[:, :stages, :-1].max(axis=2, initial=0)
    slowest = np.maximum(others[entry], with_head[entry] + 3.0 * head_layers[:, None])
    rest = passes[:, stages:].max(axis=2).sum(axis=1)
    return np.asarray((slowest.sum(axis=1) + rest[entry]) / (3.0 * stages))


def locked_chunks(stages: int, chunks: int) -> tuple[IntArray, IntArray]:
    """Chunk that each stage runs forward and backward through in each of the p v passes of a turn, shape (p v, p).

    In pass t of the steady state, with u stages behind it, a stage runs forward through chunk
    ``((t + u) // p + v - 1) % v`` and backward through chunk ``v - 1 - ((t - u) // p) % v``.
    """
    turn = np.arange(stages * chunks)[:, None]
    behind = stages - 1 - np.arange(stages)[None, :]
    forward: IntArray = ((turn + behind) // stages + chunks - 1) % chunks
    backward: IntArray = chunks - 1 - ((turn - behind) // stages) % chunks
    return forward, backward


def _layout_keys(table: Strategies) -> IntArray:
    """Equal for equal layers, pp and schedule."""
    flat = table.layers_CVS.reshape(len(table), table.layers_CVS.shape[1] * table.layers_CVS.shape[2])
    key: IntArray = flat @ mixers(flat.shape[1])
    return key + np.stack([table.pp, table.vpp, table.schedule], axis=1) @ mixers(3, start=977)


def _before(values_CS: FloatArray) -> FloatArray:
    """Sum over the stages before each stage, in order (zeros of the padding change nothing)."""
    out = np.zeros_like(values_CS)
    np.cumsum(values_CS[:, :-1], axis=1, out=out[:, 1:])
    return out


def _all(values_CS: FloatArray) -> FloatArray:
    """Sum over all stages, in order, shape (C, 1)."""
    return np.cumsum(values_CS, axis=1)[:, -1:]


def _is(code: IntArray, name: str) -> BoolArray:
    return np.equal(code, SCHEDULES.index(name))


def at_stage(values_CS: FloatArray, stage: IntArray) -> FloatArray:
    """Value of each row at its own stage, shape (C,)."""
    return np.take_along_axis(values_CS, stage[:, None], axis=1)[:, 0]
