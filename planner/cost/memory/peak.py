"""Device memory of each pipeline stage [bytes].

Memory of a stage is what is always there (parameters, gradients, optimizer states, buffers), what is kept for the
backward pass of the micro-batches in flight, and what a moment of the step needs on top.  Four moments are compared:

========  ===========================================================================================
forward   the stage is full of micro-batches and the last of them is at the widest place of a layer
loss      last stage only: logits, their copies and gradient, or the backward pass of the output projection
backward  the widest layer runs backward; a recomputed layer first rebuilds all it would have kept
update    gradients are complete, no activations; temporaries of clipping and of the optimizer
========  ===========================================================================================

``Memory.terms`` holds each term as it is at the stage's heaviest moment, so terms sum to the peak.

Legend of suffixes: ``C`` candidates, ``V`` chunks, ``S`` stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from planner.cost.layers import StageLayers, head_CS, stage_layers
from planner.cost.memory.kept import LayerBytes, end_tensors, layer_bytes, layer_tensors
from planner.cost.memory.native import NativeMoments, native_moments
from planner.cost.memory.rules import NATIVE_CPU, MemoryRules, rules_for
from planner.cost.memory.static import stored
from planner.cost.memory.tensors import part_elements, reduce_bytes, split_elements
from planner.cost.strategies import SCHEDULES, BoolArray, FloatArray, IntArray, Strategies
from planner.model.records import MOE, LayerKind, Model, Workload

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

#: Tensors beside the layers that each part of a micro-batch has for itself.
_PASSING: Final = frozenset(("start", "sent", "lookup", "labels", "head_backward", "exchange", "split_loss"))

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
    """What `memory` adds up, before recompute is chosen.

    Arrays (C, S) [bytes]: ``always`` is alive at all moments, ``gathered``, ``ends`` and ``refill`` at all but the
    update, the others at the moment they are named after.  ``refill`` serves passes still to come, ``shared`` is the
    same where no pass is to come beyond those in flight; ``waiting`` are gradients of the ends in the backward pass.
    ``idle_experts`` are experts gathered for recomputed layers alone, were all layers recomputed; ``passes`` counts
    micro-batches in flight over all chunks; ``predicted_CS`` counts MTP layers
    times micro-batches in flight.
    """

    layers: StageLayers
    layers_CS: IntArray
    chunks_C1: IntArray
    last_kind: LayerKind
    predicted_CS: FloatArray | None
    predictor: tuple[FloatArray, FloatArray]
    passes_CS: FloatArray
    pieces_CS: FloatArray
    gathers_CS: IntArray
    start_CS: FloatArray
    first_start_CS: FloatArray
    begins_CS: BoolArray
    lookup_CS: FloatArray
    shared_CS: FloatArray
    refill_CS: FloatArray
    static_CS: FloatArray
    bytes_by_kind: Mapping[LayerKind, LayerBytes]
    static: Mapping[str, FloatArray]
    always_CS: FloatArray
    gathered_CS: FloatArray
    idle_experts_CS: FloatArray
    ends_CS: FloatArray
    first_CS: FloatArray
    first_rebuilt_CS: FloatArray
    plain_CS: FloatArray
    rebuilt_CS: FloatArray
    loss_CS: FloatArray
    backward_CS: FloatArray
    waiting_CS: FloatArray
    update_CS: FloatArray

    def take(self, rows: IntArray) -> _Parts:
        """The same for some rows of the table."""
        return _Parts(
            layers=self.layers.take(rows),
            bytes_by_kind={kind: size.take(rows) for kind, size in self.bytes_by_kind.items()},
            static={name: term[rows] for name, term in self.static.items()},
            chunks_C1=self.chunks_C1[rows],
            last_kind=self.last_kind,
            predicted_CS=None if self.predicted_CS is None else self.predicted_CS[rows],
            predictor=(self.predictor[0][rows], self.predictor[1][rows]),
            **{
                f.name: getattr(self, f.name)[rows]
                for f in fields(self)
                if f.type in ("FloatArray", "BoolArray") or f.name in ("layers_CS", "gathers_CS")
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layers:
    """Sums over the layers of a stage for one choice of recompute, shape (C, S) [bytes].

    ``kept`` holds all micro-batches in flight, ``dispatch`` its part of routed tokens; ``gathered`` are experts that
    recomputed layers gather again, ``constants`` their masks; ``forward`` and ``backward`` are the widest places, the
    latter of a recomputed layer where ``recomputed``.
    """

    kept: FloatArray
    gathered: FloatArray
    dispatch: FloatArray
    constants: FloatArray
    forward: FloatArray
    backward: FloatArray
    recomputed: BoolArray


def memory(model: Model, workload: Workload, table: Strategies, rules: MemoryRules | None = None) -> Memory:
    """Memory per stage of every strategy.

    Parameters
    ----------
    rules : MemoryRules, optional
        Overrides the rules of ``workload.framework``.
    """
    rules = rules or rules_for(workload)
    if rules.layout == NATIVE_CPU:
        return _native(native_moments(model, workload, table), table)
    return _assemble(_parts(model, workload, table, rules), table)


def least_recompute(
    model: Model,
    workload: Workload,
    table: Strategies,
    limit_bytes: float | FloatArray,
    rules: MemoryRules | None = None,
) -> tuple[Strategies, BoolArray]:
    """Fewest fully recomputed layers per stage that fit, and whether every stage fits.

    ``recompute_selective_CS`` says how many of the other layers may recompute cheap operators; it comes back as the
    fewest that still fit beside the fully recomputed ones.  Memory never rises with a recomputed layer beyond the
    first as long as all of them fit, so both answers are found by bisection; rows that fit without or not at all are
    told apart first.

    Returns
    -------
    (Strategies, array of bool)
        The table with recompute filled in (all layers where even that does not fit) and the mask of rows whose every
        stage is within ``limit_bytes``, a number or an array (C, 1) or (C, S).
    """
    parts = _parts(model, workload, table, rules or rules_for(workload))
    full, selective, most = np.zeros_like(table.layers_CS), table.recompute_selective_CS.copy(), table.layers_CS
    none = _peak_CS(parts, full, selective) <= limit_bytes
    full = np.where(none, 0, most)
    fits = (none | (_peak_CS(parts, full, selective) <= limit_bytes) | ~table.stage_mask_CS).all(axis=1)
    limit = np.broadcast_to(limit_bytes, most.shape)
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


def _native(found: NativeMoments, table: Strategies) -> Memory:
    """Memory of a script whose moments are known in closed form: one stage, one micro-batch in flight."""
    sums = {name: _add(terms.values()) for name, terms in found.moments.items()}
    highest: FloatArray = np.asarray(np.maximum.reduce(list(sums.values())), np.float64)
    static = _add(found.static.values())
    terms = {name: found.static.get(name, np.zeros(len(table))) for name in TERMS}
    moment = np.full(len(table), MOMENTS.index("update"))
    for name in reversed(list(found.moments)):
        at = sums[name] == highest
        moment = np.where(at, MOMENTS.index(name), moment)
    for name, parts in found.moments.items():
        for term, size in parts.items():
            terms[term] = terms[term] + size * (moment == MOMENTS.index(name))
    column = table.stage_mask_CS
    return Memory(
        terms={name: _frozen(term[:, None] * column) for name, term in terms.items()},
        static_bytes_CS=_frozen(static[:, None] * column),
        peak_bytes_CS=_frozen((static + highest)[:, None] * column),
        in_flight_CS=_frozen(column.astype(np.float64)),
        moment_CS=moment[:, None] * column,
    )


def _assemble(parts: _Parts, table: Strategies) -> Memory:
    layers = _sum_layers(parts, table.recompute_full_CS, table.recompute_selective_CS)
    moments = _moments(parts, layers)
    peak = np.maximum.reduce(moments)
    moment = np.full(peak.shape, len(MOMENTS) - 1)
    for index in reversed(range(len(MOMENTS) - 1)):
        moment[moments[index] == peak] = index
    mask = table.stage_mask_CS
    at = {name: (moment == index) & mask for index, name in enumerate(MOMENTS)}
    busy = mask & ~at["update"]
    terms = {name: term * mask for name, term in parts.static.items()} | {
        "gathered_parameters": (parts.gathered_CS + layers.gathered) * busy,
        "activations": (layers.kept - layers.dispatch + parts.ends_CS + parts.refill_CS) * busy,
        "moe_dispatch": layers.dispatch * busy,
        "recompute_working": layers.backward * (at["backward"] & layers.recomputed),
        "logits_loss": parts.loss_CS * at["loss"],
        "temporaries": (parts.always_CS + layers.constants) * mask
        + _forward(parts, layers) * at["forward"]
        + layers.backward * (at["backward"] & ~layers.recomputed)
        + parts.backward_CS * at["backward"]
        + parts.update_CS * at["update"],
    }
    return Memory(
        terms={name: _frozen(terms[name]) for name in TERMS},
        static_bytes_CS=_frozen(parts.static_CS * mask),
        peak_bytes_CS=_frozen(peak * mask),
        in_flight_CS=_frozen(parts.layers.in_flight_CS * parts.pieces_CS),
        moment_CS=moment,
    )


def _moments(parts: _Parts, layers: _Layers) -> list[FloatArray]:
    always = parts.static_CS + parts.always_CS + layers.constants
    busy = always + (parts.gathered_CS + layers.gathered) + layers.kept + parts.ends_CS + parts.refill_CS
    return [
        busy + _forward(parts, layers),
        busy + parts.loss_CS,
        busy + (parts.backward_CS + layers.backward),
        always + parts.update_CS,
    ]


def _forward(parts: _Parts, layers: _Layers) -> FloatArray:
    """What the last forward passes need at their widest place, shape (C, S).

    That is inside a layer; or the start of the last pass, when all that it keeps is still to come; or the start of the
    pass before, when what serves all passes is still there.  Where that is the first pass of the step, no weights are
    gathered yet and no output of an earlier pass is on its way.
    """
    to_come = (layers.kept + parts.ends_CS) / np.maximum(parts.passes_CS, 1.0)
    last = np.maximum(parts.start_CS, parts.lookup_CS) - to_come
    first = parts.first_start_CS - parts.gathered_CS - layers.gathered
    start = np.where(parts.begins_CS, first, parts.start_CS)
    before = start + parts.shared_CS + parts.lookup_CS - 2.0 * to_come
    return np.maximum(np.maximum(layers.forward, last), np.where(parts.passes_CS > 1.0, before, 0.0))


def _peak_CS(parts: _Parts, full_CS: IntArray, selective_CS: IntArray) -> FloatArray:
    peak: FloatArray = np.maximum.reduce(_moments(parts, _sum_layers(parts, full_CS, selective_CS)))
    return peak


def _sum_layers(parts: _Parts, full_CS: IntArray, selective_CS: IntArray) -> _Layers:
    """What the layers of each stage add up to when the first ``full_CS`` are recomputed whole, the next selectively."""
    layers = parts.layers
    again_CS = full_CS + np.minimum(selective_CS, parts.gathers_CS)
    numbers = (full_CS, again_CS, full_CS + selective_CS, parts.layers_CS)
    whole_at, again_at, some_at, all_at = (layers.places(number) for number in numbers)
    kept, forward = np.zeros(full_CS.shape), np.zeros(full_CS.shape)
    gathered = dispatch = constants = kept
    for kind, size in parts.bytes_by_kind.items():
        none, selective, full = (x[:, None] for x in (size.none, size.selective, size.full))
        count, some, whole = (layers.kept(kind, at) for at in (all_at, some_at, whole_at))
        kept = kept + parts.pieces_CS * ((count - some) * none + (some - whole) * selective + whole * full)
        kept = kept - parts.pieces_CS * (layers.kept(kind, again_at) - whole) * size.saved[:, None]
        of_kind, of_whole = layers.of_kind(kind, all_at), layers.of_kind(kind, whole_at)
        constants = constants + of_whole * size.copied[:, None] + layers.of_kind(kind, all_at) * size.always[:, None]
        forward = np.maximum(forward, size.forward[:, None] * (of_kind > 0))
        gathered = gathered + of_whole * size.recast[:, None]
        if kind == MOE:
            dispatch = parts.pieces_CS * (count - whole) * size.dispatch[:, None]
            gathered = gathered + parts.idle_experts_CS * (of_whole / np.maximum(of_kind, 1))
    again = full_CS + selective_CS
    kept = kept + parts.plain_CS * (again < parts.layers_CS) + parts.rebuilt_CS * (again > 0)
    kept = kept + np.where(full_CS > 0, parts.first_rebuilt_CS, parts.first_CS)
    if parts.predicted_CS is not None:
        kept = kept + parts.predicted_CS * _predicted(parts, full_CS, selective_CS)
    backward, rebuilt = _backward(parts, (whole_at, again_at, some_at, all_at))
    return _Layers(
        kept=kept,
        gathered=gathered,
        dispatch=dispatch,
        constants=constants,
        forward=forward,
        backward=np.maximum(backward, rebuilt),
        recomputed=rebuilt > backward,
    )


def _backward(parts: _Parts, places: tuple[IntArray, IntArray, IntArray, IntArray]) -> tuple[FloatArray, FloatArray]:
    """What the backward pass needs at its widest place, without and with rebuilding a layer, shape (C, S) [bytes].

    It enters a stage at its last layer.  At the first layer of a kind everything that this micro-batch kept of the
    layers behind it is free, and their gradients wait where accumulated gradients are sharded; these sums change
    evenly in between, so one of both ends is widest.  Recomputed layers come first.
    """
    whole_at, again_at, some_at, all_at = places
    layers, chunks = parts.layers, parts.chunks_C1
    entered, first, rebuilt = (np.zeros(all_at.shape) for _ in range(3))
    freed, waiting, begun = np.zeros(all_at.shape), parts.waiting_CS, np.zeros(all_at.shape)
    for kind, size in reversed(list(parts.bytes_by_kind.items())):  # backward meets MoE layers before dense ones
        none, selective, wait = (x[:, None] for x in (size.none, size.selective, size.waiting))
        of_kind, of_some, of_whole = (layers.of_kind(kind, at) for at in (all_at, some_at, whole_at))
        cheap = of_some > of_whole
        at_last = cheap & (of_some == of_kind)
        backward = np.where(at_last, size.backward_selective[:, None], size.backward[:, None])
        entered = np.maximum(entered, backward * (of_kind > 0))
        freed = freed + ((of_kind - of_some) * none + (of_some - of_whole) * selective) / chunks
        waiting = waiting + of_kind * wait / chunks
        repeated = layers.of_kind(kind, again_at) - of_whole
        freed = freed - repeated * size.saved[:, None] / chunks
        own = np.where(cheap, selective - size.saved[:, None] * (repeated > 0), none)
        backward = np.where(cheap, size.backward_selective[:, None], size.backward[:, None])
        at_first = (backward + own) - freed + (waiting - wait)
        first = np.maximum(first, at_first * ((of_kind > 0) & (of_whole == 0)))
        again = size.rebuilt[:, None] * (of_whole > 0)
        if kind == MOE:
            again = np.maximum(again, size.rebuilt_next[:, None] * (of_whole > chunks))
            begun = (of_kind - of_whole) * size.begun[:, None] / chunks
        rebuilt = np.maximum(rebuilt, (again - freed + (waiting - wait)) * (of_whole > 0))
    return np.maximum(entered + begun, first), rebuilt


def _predicted(parts: _Parts, full_CS: IntArray, selective_CS: IntArray) -> FloatArray:
    """Kept bytes of an MTP module, which is recomputed as the last layer of its stage is, shape (C, S)."""
    size, (beside, beside_full) = parts.bytes_by_kind[parts.last_kind], parts.predictor
    some = np.where(full_CS + selective_CS >= parts.layers_CS, size.selective[:, None], size.none[:, None])
    whole = (full_CS >= parts.layers_CS) & (full_CS > 0)
    return np.where(whole, size.full[:, None] + beside_full, some + beside)


def _parts(model: Model, workload: Workload, table: Strategies, rules: MemoryRules) -> _Parts:
    layers = stage_layers(model, table)
    elements = split_elements(model, workload, table, rules.sequence_pieces)
    working = part_elements(elements, rules.batch_parts)
    ends = end_tensors(model, workload, rules)
    last_CS = head_CS(table)
    first_CS = np.broadcast_to(np.arange(table.stages)[None, :] == 0, last_CS.shape)
    kept = stored(model, workload, table, layers, rules)
    size = {
        f.name: reduce_bytes(getattr(ends, f.name), working if f.name in _PASSING else elements)[:, None]
        for f in fields(ends)
    }
    pieces = _pieces(table, layers, rules)
    first_flight, last_flight, passes = (flight * pieces for flight in layers.flights_CS())
    chunks = table.vpp[:, None]
    split = (table.schedule == SCHEDULES.index("zero_bubble_v"))[:, None]
    more_CS, refill = table.micro_batches[:, None] * chunks * rules.sequence_pieces > passes, chunks * size["refill"]
    return _Parts(
        layers=layers,
        layers_CS=table.layers_CS,
        chunks_C1=chunks,
        last_kind=model.layer_kinds[-1],
        predicted_CS=model.mtp_layers * last_flight * last_CS if model.mtp_layers else None,
        predictor=(size["predictor"], size["predictor_full"]),
        passes_CS=passes,
        pieces_CS=pieces,
        gathers_CS=_gathers(table, rules),
        first_start_CS=size["start"] + size["labels"] * last_CS,
        begins_CS=(passes == 2.0) & ~more_CS,
        start_CS=size["start"]
        + size["sent"]
        + size["labels"] * last_CS
        + (kept.embedding_CS + kept.experts_CS) * ~more_CS,
        static_CS=_add(kept.static.values()),
        bytes_by_kind={
            kind: layer_bytes(
                layer_tensors(model, workload, kind, rules),
                elements,
                working,
                cast=kept.cast.get(kind, 0.0),
                recast=kept.recast.get(kind, 0.0),
                reduced=kept.reduced.get(kind, 0.0),
                waiting=kept.waiting.get(kind, 0.0),
            )
            for kind in model.kinds
        },
        static=kept.static,
        always_CS=kept.always_CS + size["constant"] + chunks * size["chunk_constant"],
        gathered_CS=kept.gathered_CS + (kept.embedding_CS + kept.experts_CS) * more_CS,
        idle_experts_CS=kept.experts_CS * ~more_CS,
        lookup_CS=size["lookup"] * first_CS,
        shared_CS=refill * ~more_CS,
        refill_CS=refill * more_CS,
        ends_CS=passes * size["stage"] + last_flight * size["last"] * last_CS,
        first_CS=first_flight * size["first"] * first_CS,
        first_rebuilt_CS=first_flight * size["first_rebuilt"] * first_CS,
        plain_CS=passes * size["plain"],
        rebuilt_CS=passes * size["rebuilt"],
        loss_CS=np.maximum(
            np.maximum(size["loss"] + split * size["split_loss"], size["head_backward"] + kept.head_gradient_CS),
            size["exchange"] - refill * more_CS,
        )
        * last_CS,
        backward_CS=kept.head_gradient_CS,
        waiting_CS=kept.waiting_ends_CS,
        update_CS=kept.update_CS,
    )


def _gathers(table: Strategies, rules: MemoryRules) -> IntArray:
    """Layers that gather again, shape (C, S): as listed where the list is for as many stages, else none."""
    listed = np.zeros(table.stages, np.int64)
    if len(rules.gathered_layers) == table.stages:
        listed += rules.gathered_layers
    gathers: IntArray = np.broadcast_to(listed, table.layers_CS.shape) * (table.pp == table.stages)[:, None]
    return gathers


def _pieces(table: Strategies, layers: StageLayers, rules: MemoryRules) -> FloatArray:
    """Pieces of sequences in flight for each micro-batch that would be, shape (C, S).

    The backward pass of a sequence begins with its last piece, so all of them are in flight before it, and one for
    each stage behind.
    """
    whole = layers.flights_CS()[2]
    if rules.sequence_pieces == 1:
        return np.ones_like(whole)
    number = np.minimum(whole + rules.sequence_pieces - 1.0, rules.sequence_pieces * table.micro_batches[:, None])
    return np.where(whole > 0, number / np.maximum(whole, 1.0), 1.0)


def _add(terms: Iterable[FloatArray]) -> FloatArray:
    """Sum in the given order, so that a row's bits do not depend on the table around it."""
    total: FloatArray | None = None
    for term in terms:
        total = term if total is None else total + term
    assert total is not None
    return total


def _frozen(array: FloatArray) -> FloatArray:
    array.flags.writeable = False
    return array
