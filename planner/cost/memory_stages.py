"""Which layers a stage holds, which of them are recomputed, and how many micro-batches are in flight.

Legend of suffixes: ``C`` candidates, ``V`` chunks, ``S`` stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.strategies import SCHEDULES, FloatArray, IntArray, Strategies
from planner.model.operators import layer_kind_prefix
from planner.model.records import DENSE, LayerKind, Model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLayers:
    """Layers of each chunk and stage by kind.

    Within a chunk the first layers are the recomputed ones, and dense layers come before MoE layers (as in every
    published model), so the number of recomputed layers fixes how many of each kind they are.
    """

    layers_CVS: IntArray
    by_kind: Mapping[LayerKind, IntArray]

    @property
    def chunks(self) -> int:
        """Padded number of chunks V."""
        return int(self.layers_CVS.shape[1])

    def count(self, kind: LayerKind) -> IntArray:
        """Layers of ``kind`` in each stage, shape (C, S)."""
        return np.asarray(self.by_kind[kind].sum(axis=1))

    def first(self, layers_CS: IntArray) -> list[IntArray]:
        """A number of layers per stage, dealt to its chunks one by one from the first chunk, V arrays (C, S).

        What a full chunk cannot take goes to the next chunk with room.
        """
        if self.chunks == 1:
            return [np.minimum(layers_CS, self.layers_CVS[:, 0])]
        used = (self.layers_CVS > 0).sum(axis=1)
        used = np.maximum(used, 1)
        out, left = [], layers_CS
        for v in range(self.chunks):
            share = np.minimum((layers_CS + used - 1 - v) // used, self.layers_CVS[:, v])
            out.append(np.maximum(share, 0))
            left = left - out[-1]
        for v in range(self.chunks):
            more = np.clip(left, 0, self.layers_CVS[:, v] - out[v])
            out[v] = out[v] + more
            left = left - more
        return out

    def of_kind(self, kind: LayerKind, v: int, full: IntArray, some: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Layers of ``kind`` in chunk ``v``: all, recomputed whole, recomputed selectively, shape (C, S)."""
        count = self.by_kind[kind][:, v]
        if len(self.by_kind) == 1:
            return count, full, some - full
        if kind == DENSE:
            whole = np.minimum(full, count)
            return count, whole, np.minimum(some, count) - whole
        before = self.layers_CVS[:, v] - count
        whole = np.maximum(full - before, 0)
        return count, whole, np.maximum(some - before, 0) - whole


def stage_layers(model: Model, table: Strategies) -> StageLayers:
    """Layers of each chunk and stage by kind, counted along the model's order."""
    layers = table.layers_CVS
    if len(model.kinds) == 1:
        return StageLayers(layers_CVS=layers, by_kind={model.kinds[0]: layers})
    ordered = _model_order(table, layers)
    ends = np.cumsum(ordered.reshape(len(table), -1), axis=1).reshape(layers.shape)
    starts = ends - ordered
    limit = model.layers
    by_kind = {}
    for kind, prefix in layer_kind_prefix(model).items():
        count = prefix[np.minimum(ends, limit)] - prefix[np.minimum(starts, limit)]
        by_kind[kind] = _model_order(table, count)
    return StageLayers(layers_CVS=layers, by_kind=by_kind)


def _model_order(table: Strategies, values_CVS: IntArray) -> IntArray:
    """Chunk 1 of a V-shaped schedule runs from the last stage to the first; its own inverse."""
    v_shaped = table.schedule == SCHEDULES.index("zero_bubble_v")
    if not v_shaped.any() or values_CVS.shape[1] < 2:
        return values_CVS
    out = values_CVS.copy()
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
    * zero_bubble_v (arXiv 2405.15362): at most 2p - s passes of chunk 0 and s + 1 of chunk 1.
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
        bent = np.where(v == 0, 2 * pp - stage, stage + 1) if v < 2 else 0
        chunk = np.where(v_shape, np.minimum(bent, 2 * pp), chunk)
        chunk = np.where(vpp > 1, np.where(gpipe, micro, np.minimum(micro, chunk)), single)
        out[:, v] = np.where((v < vpp) & (stage < pp), np.maximum(chunk, 0), 0)
    return out
