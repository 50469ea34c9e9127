"""Which layers a stage holds, which of them are recomputed, and how many micro-batches are in flight.

Legend of suffixes: ``C`` candidates, ``V`` chunks, ``S`` stages, ``U`` distinct rows, ``N`` places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost.rows import distinct, mixers
from planner.cost.strategies import SCHEDULES, BoolArray, FloatArray, IntArray, Strategies
from planner.model.operators import layer_kind_prefix
from planner.model.records import LayerKind, Model

_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLayers:
    """Layers of each stage by kind, and how many of them the first n recomputed layers are.

    Within a chunk the first layers are the recomputed ones, and dense layers come before MoE layers (as in every
    published model), so the number of recomputed layers fixes how many of each kind they are.  Rows that agree in
    layers, pp, vpp, schedule and micro-batches share one entry U; each of its stages has a place N for every number of
    layers from 0 to its own, so everything a search asks for is looked up.

    Attributes
    ----------
    entry : array, shape (C,)
        Entry of each row.
    layers_US, start_US : array
        Layers of each stage, and its place for 0 layers.
    count_US : mapping of kind to array
        Layers of the kind in each stage.
    first_N : mapping of kind to array
        Layers of the kind among the first ones of the stage.
    kept_N : mapping of kind to array
        The same, each layer counted once for every micro-batch of its chunk in flight.
    first_flight_US, last_flight_US, passes_US : array
        Micro-batches in flight in the first and in the last chunk of a stage, and over all its chunks.
    """

    entry: IntArray
    layers_US: IntArray
    start_US: IntArray
    count_US: Mapping[LayerKind, IntArray]
    first_N: Mapping[LayerKind, IntArray]
    kept_N: Mapping[LayerKind, FloatArray]
    first_flight_US: FloatArray
    last_flight_US: FloatArray
    passes_US: FloatArray

    def flights_CS(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Micro-batches in flight in the first chunk, in the last chunk and over all chunks, each (C, S)."""
        first, last, passes = self.first_flight_US, self.last_flight_US, self.passes_US
        return tuple(np.take(flight, self.entry, axis=0) for flight in (first, last, passes))  # type: ignore[return-value]

    def count(self, kind: LayerKind) -> IntArray:
        """Layers of ``kind`` in each stage, shape (C, S)."""
        return np.take(self.count_US[kind], self.entry, axis=0)

    @property
    def in_flight_CS(self) -> FloatArray:
        """Micro-batches in flight, mean over the layers of a stage, shape (C, S)."""
        whole = self.start_US + self.layers_US
        total = np.zeros(whole.shape)
        for kept in self.kept_N.values():
            total = total + kept[whole]
        mean = np.divide(total, self.layers_US, out=np.zeros_like(total), where=self.layers_US > 0)
        return np.take(mean, self.entry, axis=0)

    def take(self, rows: IntArray) -> StageLayers:
        """The same for some rows of the table."""
        return replace(self, entry=self.entry[rows])

    def places(self, layers_CS: IntArray) -> IntArray:
        """Places of the first so many layers of each stage, for `of_kind` and `kept`."""
        inside = np.minimum(layers_CS, np.take(self.layers_US, self.entry, axis=0))
        places: IntArray = np.take(self.start_US, self.entry, axis=0) + inside
        return places

    def of_kind(self, kind: LayerKind, places: IntArray) -> IntArray:
        """Layers of ``kind`` among the first ones, shape (C, S)."""
        found: IntArray = np.take(self.first_N[kind], places)
        return found

    def kept(self, kind: LayerKind, places: IntArray) -> FloatArray:
        """Layers of ``kind`` among the first ones times their micro-batches in flight, shape (C, S)."""
        found: FloatArray = np.take(self.kept_N[kind], places)
        return found


def head_stage(table: Strategies) -> IntArray:
    """Stage with the head and the loss, shape (C,): the last one, the first of a V-shaped schedule."""
    return np.where(table.schedule == SCHEDULES.index("zero_bubble_v"), 0, table.pp - 1)


def head_CS(table: Strategies) -> BoolArray:
    """Where the head and the loss are, shape (C, S)."""
    return np.asarray(np.arange(table.stages)[None, :] == head_stage(table)[:, None])


def stage_layers(model: Model, table: Strategies) -> StageLayers:
    """Layers of each chunk and stage by kind, counted along the model's order."""
    rows, entry = _structures(table)
    table = table.take(rows)
    layers_US = table.layers_CS
    size = (layers_US + 1).ravel()
    start = np.cumsum(size) - size
    stage_N = np.repeat(np.arange(len(size)), size)
    first_VN = dealt(_by_stage(table.layers_CVS)[:, stage_N], np.arange(len(stage_N)) - start[stage_N])
    flight_UVS = in_flight_CVS(table)
    last = np.broadcast_to((table.vpp - 1)[:, None, None], (len(table), 1, table.stages))
    flight_VN = _by_stage(flight_UVS)[:, stage_N]
    before = np.zeros_like(first_VN)
    count_US: dict[LayerKind, IntArray] = {}
    first_N: dict[LayerKind, IntArray] = {}
    kept_N: dict[LayerKind, FloatArray] = {}
    for kind, count in _by_kind(model, table).items():  # dense before MoE
        count_VN = _by_stage(count)[:, stage_N]
        some = np.clip(first_VN - before, 0, count_VN)
        count_US[kind] = np.asarray(count.sum(axis=1))
        first_N[kind] = np.asarray(some.sum(axis=0))
        kept_N[kind] = np.asarray((some * flight_VN).sum(axis=0))  # whole numbers: exact in any order
        before = before + count_VN
    return StageLayers(
        entry=entry,
        layers_US=layers_US,
        start_US=start.reshape(layers_US.shape),
        count_US=count_US,
        first_N=first_N,
        kept_N=kept_N,
        first_flight_US=flight_UVS[:, 0],
        last_flight_US=np.take_along_axis(flight_UVS, last, axis=1)[:, 0],
        passes_US=np.asarray(flight_UVS.sum(axis=1)),
    )


def _by_stage(values_UVS: NDArray[_Number]) -> NDArray[_Number]:
    """Chunks first, entries and stages in one axis."""
    return np.moveaxis(values_UVS, 1, 0).reshape(values_UVS.shape[1], -1)


def _structures(table: Strategies) -> tuple[IntArray, IntArray]:
    """Rows that stand for all that agree in what this module reads, and which of them each row is like."""
    depth, width = table.layers_CVS.shape[1:]
    flat = table.layers_CVS.reshape(len(table), depth * width)
    columns = (table.pp, table.vpp, table.schedule, table.micro_batches)
    key = flat @ mixers(depth * width)
    for column, factor in zip(columns, mixers(4, start=977), strict=True):
        key = key + column * factor
    rows, entry = distinct(key)
    like = rows[entry]
    same = all(np.array_equal(column[like], column) for column in columns) and np.array_equal(flat[like], flat)
    if not same:  # two different rows with one key: give every row its own entry
        rows = entry = np.arange(len(table))
    return rows, entry


def dealt(room_VN: IntArray, number_N: IntArray) -> IntArray:
    """A number of layers dealt to the chunks of a stage one by one from the first, shape (V, N).

    What a full chunk cannot take goes to the next chunk with room.
    """
    used = np.maximum((room_VN > 0).sum(axis=0), 1)
    chunk = np.arange(len(room_VN))[:, None]
    out: IntArray = np.minimum(np.maximum((number_N + used - 1 - chunk) // used, 0), room_VN)
    left = number_N - out.sum(axis=0)
    for v in range(len(room_VN)):
        more = np.minimum(left, room_VN[v] - out[v])
        out[v] += more
        left = left - more
    return out


def _by_kind(model: Model, table: Strategies) -> dict[LayerKind, IntArray]:
    """Layers of each kind in each chunk and stage, shape (C, V, S)."""
    layers = table.layers_CVS
    if len(model.kinds) == 1:
        return {model.kinds[0]: layers}
    ordered = _model_order(table, layers)
    ends = np.cumsum(ordered.reshape(len(table), layers.shape[1] * layers.shape[2]), axis=1).reshape(layers.shape)
    starts = ends - ordered
    limit = model.layers
    by_kind = {}
    for kind, prefix in layer_kind_prefix(model).items():
        count = prefix[np.minimum(ends, limit)] - prefix[np.minimum(starts, limit)]
        by_kind[kind] = _model_order(table, count)
    return by_kind


def _model_order(table: Strategies, values_CVS: IntArray) -> IntArray:
    """Chunk 1 of a V-shaped schedule runs from the last stage to the first; its own inverse."""
    v_shaped = table.schedule == SCHEDULES.index("zero_bubble_v")
    if not v_shaped.any() or values_CVS.shape[1] < 2:
        return values_CVS
    out: IntArray = values_CVS.copy()
    reverse = (table.pp[:, None] - 1 - np.arange(table.stages)[None, :]) % table.stages
    turned = np.take_along_axis(values_CVS[:, 1], reverse, axis=1)
    out[v_shaped, 1] = turned[v_shaped]
    return out


def in_flight_CVS(table: Strategies) -> FloatArray:
    """Micro-batches of each chunk whose activations are alive at once, shape (C, V, S) [count].

    With m micro-batches, p stages, v chunks, s the stage from 0:

    * gpipe: m.  1f1b: ``min(m, p - s)``.
    * interleaved (Megatron-LM, arXiv 2104.04473, and MindSpore's pipeline_interleave): at most
      ``(v - 1) p + 2 (p - s) - 1`` chunk passes: p of each chunk, the rest of the last and, beyond p, of the first.
    * zero_bubble_v (arXiv 2405.15362): at most 2p passes on every stage, s + 1 of them of chunk 1.
    * seqpipe: as interleaved.
    """
    stage = np.arange(table.stages)[None, :]
    pp, vpp, micro = (x[:, None] for x in (table.pp, table.vpp, table.micro_batches))
    schedule = table.schedule[:, None]
    out = np.zeros(table.layers_CVS.shape)
    rest = 2 * (pp - stage) - 1
    gpipe = schedule == SCHEDULES.index("gpipe")
    v_shape = schedule == SCHEDULES.index("zero_bubble_v")
    single = np.where(gpipe, micro, np.minimum(micro, pp - stage))
    for v in range(table.layers_CVS.shape[1]):
        last = v == vpp - 1
        chunk = np.where(last, np.minimum(pp, rest), pp) + (np.maximum(rest - pp, 0) if v == 0 else 0)
        bent = np.where(v == 0, 2 * pp - stage - 1, stage + 1) if v < 2 else 0
        chunk = np.where(v_shape, np.minimum(bent, 2 * pp), chunk)
        chunk = np.where(vpp > 1, np.where(gpipe, micro, np.minimum(micro, chunk)), single)
        out[:, v] = np.where((v < vpp) & (stage < pp), np.maximum(chunk, 0), 0)
    return out
