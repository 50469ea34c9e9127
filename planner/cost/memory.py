"""Device memory of each pipeline stage [bytes].

Memory of a stage is what is always there (parameters, gradients, optimizer states), what is kept for the backward pass
of the micro-batches in flight, and what a moment of the step needs on top.  Four moments are compared:

========  ===========================================================================================
forward   the stage is full of micro-batches and runs one more forward
loss      last stage only: logits, their float32 copies and gradient
backward  the widest layer runs backward; a recomputed layer first rebuilds all it would have kept
update    gradients are complete, no activations; optimizer temporaries
========  ===========================================================================================

``Memory.terms`` holds each term as it is at the stage's heaviest moment, so terms sum to the peak.

Legend of suffixes: ``C`` candidates, ``V`` chunks, ``S`` stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from planner.cost.activations import LayerBytes, layer_bytes, logits_bytes, tokens
from planner.cost.memory_rules import MemoryRules, bytes_of, rules_for
from planner.cost.memory_stages import StageLayers, stage_layers
from planner.cost.strategies import BoolArray, FloatArray, IntArray, Strategies
from planner.model.operators import (
    Shards,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
)
from planner.model.records import LayerKind, Model, Workload

#: Terms of `Memory.terms` in the order they are reported.
TERMS: Final = (
    "parameters",
    "gradients",
    "optimizer_states",
    "gathered_parameters",
    "activations",
    "moe_dispatch",
    "recompute_working",
    "logits_loss",
    "temporaries",
)

#: Terms that do not change during the step.
STATIC_TERMS: Final = ("parameters", "gradients", "optimizer_states")

MOMENTS: Final = ("forward", "loss", "backward", "update")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """Memory of a table of strategies.

    Attributes
    ----------
    terms : mapping of str to array, shape (C, S)
        Each term at the heaviest moment of its stage [bytes]; their sum is ``peak_bytes_CS``.  Keys: `TERMS`.
    static_bytes_CS : array, shape (C, S)
        Parameters, gradients and optimizer states [bytes].
    peak_bytes_CS : array, shape (C, S)
        Largest sum of what is alive at one moment [bytes]; 0 where a stage does not exist.
    in_flight_CS : array, shape (C, S)
        Micro-batches whose activations a stage holds at once; fractions count chunks of an interleaved schedule.
    moment_CS : array of int, shape (C, S)
        Index into `MOMENTS` of the heaviest moment.
    """

    terms: Mapping[str, FloatArray]
    static_bytes_CS: FloatArray
    peak_bytes_CS: FloatArray
    in_flight_CS: FloatArray
    moment_CS: IntArray

    @property
    def peak_bytes(self) -> FloatArray:
        """Peak of the heaviest stage, shape (C,) [bytes]."""
        return np.asarray(self.peak_bytes_CS.max(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parts:
    """What `memory` adds up, before recompute is chosen."""

    layers: StageLayers
    layers_CS: IntArray
    bytes_by_kind: Mapping[LayerKind, LayerBytes]
    static: Mapping[str, FloatArray]
    gathered_CS: FloatArray
    loss_CS: FloatArray
    ends_CS: FloatArray
    update_CS: FloatArray

    def take(self, rows: IntArray) -> _Parts:
        """The same for some rows of the table."""
        return _Parts(
            layers=self.layers.take(rows),
            bytes_by_kind={kind: size.take(rows) for kind, size in self.bytes_by_kind.items()},
            static={name: term[rows] for name, term in self.static.items()},
            **{f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name.endswith("_CS")},
        )


def memory(model: Model, workload: Workload, table: Strategies, rules: MemoryRules | None = None) -> Memory:
    """Memory per stage of every strategy.

    Parameters
    ----------
    rules : MemoryRules, optional
        Overrides the rules of ``workload.framework``.
    """
    parts = _parts(model, workload, table, rules or rules_for(workload))
    return _assemble(parts, table)


def least_recompute(
    model: Model, workload: Workload, table: Strategies, limit_bytes: float, rules: MemoryRules | None = None
) -> tuple[Strategies, BoolArray]:
    """Fewest fully recomputed layers per stage that fit, and whether every stage fits.

    ``recompute_selective_CS`` says how many of the other layers may recompute cheap operators; it comes back as the
    fewest that still fit beside the fully recomputed ones.  Memory never rises with a recomputed layer beyond the
    first, so both answers are found by bisection; rows that fit without or not at all are told apart first.

    Returns
    -------
    (Strategies, array of bool)
        The table with recompute filled in (all layers where even that does not fit) and the mask of rows whose every
        stage is within ``limit_bytes``, a number or an array (C, 1).
    """
    parts = _parts(model, workload, table, rules or rules_for(workload))
    full, selective, most = np.zeros_like(table.layers_CS), table.recompute_selective_CS.copy(), table.layers_CS
    none = _peak_CS(parts, full, selective) <= limit_bytes
    full = np.where(none, 0, most)
    fits = (none | (_peak_CS(parts, full, selective) <= limit_bytes) | ~table.stage_mask_CS).all(axis=1)
    limit = np.broadcast_to(limit_bytes, (len(table), 1))
    rows = np.flatnonzero(fits & ~none.all(axis=1))
    spare = selective[rows]
    full[rows] = _fewest(parts.take(rows), full[rows], limit[rows], lambda number: (number, spare))
    selective = np.minimum(selective, most - full)
    rows = np.flatnonzero(fits & selective.any(axis=1))
    held = full[rows]
    selective[rows] = _fewest(parts.take(rows), selective[rows], limit[rows], lambda number: (held, number))
    return table.replace(recompute_full_CS=full, recompute_selective_CS=selective), np.asarray(fits)


def _fewest(
    parts: _Parts, high: IntArray, limit: FloatArray, settings: Callable[[IntArray], tuple[IntArray, IntArray]]
) -> IntArray:
    """Least number up to ``high``, which fits, whose (full, selective) recompute still fits."""
    low = np.zeros_like(high)
    while (low < high).any():
        middle = (low + high) // 2
        good = _peak_CS(parts, *settings(middle)) <= limit
        high = np.where(good, middle, high)
        low = np.where(good, low, np.minimum(middle + 1, high))
    return high


def _assemble(parts: _Parts, table: Strategies) -> Memory:
    kept, dispatch, working = _kept(parts, table.recompute_full_CS, table.recompute_selective_CS)
    static = sum_terms(parts.static.values())
    moments = _moments(parts, static, kept, working)
    moment = np.argmax(np.stack(moments), axis=0)
    peak = np.maximum.reduce(moments)
    busy = moment < MOMENTS.index("update")
    zero = np.zeros_like(peak)
    terms = dict(parts.static) | {
        "gathered_parameters": np.where(busy, parts.gathered_CS, zero),
        "activations": np.where(busy, kept - dispatch + parts.ends_CS, zero),
        "moe_dispatch": np.where(busy, dispatch, zero),
        "recompute_working": np.where(moment == MOMENTS.index("backward"), working, zero),
        "logits_loss": np.where(moment == MOMENTS.index("loss"), parts.loss_CS, zero),
        "temporaries": np.where(busy, zero, parts.update_CS),
    }
    mask = table.stage_mask_CS
    return Memory(
        terms={name: _frozen(np.where(mask, terms[name], zero)) for name in TERMS},
        static_bytes_CS=_frozen(np.where(mask, static, zero)),
        peak_bytes_CS=_frozen(np.where(mask, peak, zero)),
        in_flight_CS=_frozen(parts.layers.in_flight_CS),
        moment_CS=moment,
    )


def _moments(parts: _Parts, static: FloatArray, kept: FloatArray, working: FloatArray) -> list[FloatArray]:
    busy = static + parts.gathered_CS + kept + parts.ends_CS
    return [busy, busy + parts.loss_CS, busy + working, static + parts.update_CS]


def _peak_CS(parts: _Parts, full_CS: IntArray, selective_CS: IntArray) -> FloatArray:
    kept, _, working = _kept(parts, full_CS, selective_CS)
    peak: FloatArray = np.maximum.reduce(_moments(parts, sum_terms(parts.static.values()), kept, working))
    return peak


def sum_terms(terms: object) -> FloatArray:
    """Sum in the given order, so that a row's bits do not depend on the table around it."""
    total: FloatArray | None = None
    for term in terms:  # type: ignore[attr-defined]
        total = term if total is None else total + term
    assert total is not None
    return total


def _kept(parts: _Parts, full_CS: IntArray, selective_CS: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Kept bytes, their dispatch part and the backward working set, shape (C, S)."""
    layers = parts.layers
    whole_at, some_at, all_at = (layers.places(n) for n in (full_CS, full_CS + selective_CS, parts.layers_CS))
    kept = np.zeros(full_CS.shape)
    dispatch = np.zeros(full_CS.shape)
    working = np.zeros(full_CS.shape)
    for kind, size in parts.bytes_by_kind.items():
        none, selective, full = (x[:, None] for x in (size.none, size.selective, size.full))
        count, some, whole = (layers.kept(kind, at) for at in (all_at, some_at, whole_at))
        kept = kept + ((count - some) * none + (some - whole) * selective + whole * full)
        dispatch = dispatch + (count - whole) * size.dispatch[:, None]
        rebuilt = (none - full) * (layers.of_kind(kind, whole_at) > 0)
        working = np.maximum(working, (size.working[:, None] + rebuilt) * (layers.count(kind) > 0))
    return kept, dispatch, working


def _parts(model: Model, workload: Workload, table: Strategies, rules: MemoryRules) -> _Parts:
    layers = stage_layers(model, table)
    last = np.arange(table.stages)[None, :] == table.pp[:, None] - 1
    first = np.zeros_like(last)
    first[:, 0] = True
    kinds = {kind: layer_bytes(model, workload, table, kind, rules) for kind in model.kinds}
    shards = _stage_shards(model, table, layers, first, last)
    static = _static(workload, table, rules, shards)
    width = bytes_of(workload.compute_dtype)
    count = tokens(workload, table)
    sequence = np.where(table.sequence_parallel, table.tp, 1)
    hidden = (model.hidden * width * count / sequence)[:, None]
    loss = logits_bytes(model, workload, table, rules)[:, None] * last
    return _Parts(
        layers=layers,
        layers_CS=table.layers_CS,
        bytes_by_kind=kinds,
        static=static,
        gathered_CS=_gathered(workload, table, rules, shards),
        loss_CS=loss,
        ends_CS=hidden * (1.0 * first + 2.0 * last),
        update_CS=np.zeros_like(loss),
    )


def _stage_shards(
    model: Model, table: Strategies, layers: StageLayers, first: BoolArray, last: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Parameters of one rank of each stage: outside and inside experts, shape (C, S) [count]."""
    tp, ep = table.tp[:, None], table.ep[:, None]
    dense = np.zeros(first.shape)
    expert = np.zeros(first.shape)
    for kind in model.kinds:
        each, count = layer_parameters(model, kind), layers.count(kind)
        dense = dense + count * (each.tp / tp + each.replicated)
        expert = expert + count * (each.expert / ep)
    embedding, head = embedding_parameters(model), head_parameters(model)
    if model.tied_embeddings:
        head = Shards(tp=embedding.tp)
        last = last & (table.pp > 1)[:, None]
    ends = [(embedding, first), (head, last), (final_norm_parameters(model), last)]
    if model.mtp_layers:
        mtp = mtp_parameters(model)
        ends.append((mtp, last))
        expert = expert + last * (mtp.expert / ep)
    for each, where in ends:
        dense = dense + where * (each.tp / tp + each.replicated)
    return dense, expert


def _expert_shard(table: Strategies, rules: MemoryRules) -> FloatArray:
    """Ranks that share one copy of what is sharded of an expert, shape (C,)."""
    ranks = table.dp * table.cp
    copies = ranks * (1 if rules.expert_tensor_parallel else table.tp) / table.ep
    copies = np.maximum(copies, 1.0)
    return np.where(table.optimizer_shard >= ranks, copies, np.minimum(table.optimizer_shard, copies))


def _static(
    workload: Workload, table: Strategies, rules: MemoryRules, shards: tuple[FloatArray, FloatArray]
) -> dict[str, FloatArray]:
    etp = np.where(rules.expert_tensor_parallel, table.tp, 1)[:, None]
    dense, expert = shards[0], shards[1] / etp
    share = table.optimizer_shard[:, None].astype(np.float64)
    expert_share = _expert_shard(table, rules)[:, None]
    level = table.zero_level[:, None]
    params, grads = bytes_of(workload.params_dtype), bytes_of(workload.grads_dtype)
    states = workload.moments * bytes_of(workload.states_dtype)
    if workload.master_weights:
        states += 2.0 if rules.reuse_master else 4.0

    def split(size: float, lowest: int) -> FloatArray:
        over = level >= lowest
        return size * (dense / np.where(over, share, 1.0) + expert / np.where(over, expert_share, 1.0))

    return {
        "parameters": split(params, 1 if rules.sharded_weights else 3),
        "gradients": split(grads, 2),
        "optimizer_states": split(states, 1) * np.where(table.swap_optimizer, 0.0, 1.0)[:, None],
    }


def _gathered(
    workload: Workload, table: Strategies, rules: MemoryRules, shards: tuple[FloatArray, FloatArray]
) -> FloatArray:
    if not rules.sharded_weights:
        return np.zeros_like(shards[0])
    share = (table.optimizer_shard > 1) & (table.zero_level >= 1)
    expert_share = (_expert_shard(table, rules) > 1) & (table.zero_level >= 1)
    size = bytes_of(workload.compute_dtype)
    return size * (shards[0] * share[:, None] + shards[1] * expert_share[:, None])


def _frozen(array: FloatArray) -> FloatArray:
    array.flags.writeable = False
    return array
