"""Bytes that one layer keeps for its backward pass, for every candidate.

Which tensors a framework keeps is listed per framework: `planner.cost.memory.kept_megatron` (Megatron-LM, MindSpeed)
and `planner.cost.memory.kept_mindformers` (MindFormers in graph mode).  Here the lists become bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import ModuleType

import numpy as np

from planner.cost.memory import kept_megatron as memory_megatron
from planner.cost.memory import kept_mindformers as memory_mindformers
from planner.cost.memory import kept_pynative as memory_pynative
from planner.cost.memory.rules import MemoryRules
from planner.cost.memory.tensors import EndTensors, LayerTensors, Split, reduce_bytes, tokens
from planner.cost.strategies import FloatArray, IntArray
from planner.model.records import LayerKind, Model, Workload

__all__ = ["LayerBytes", "end_tensors", "layer_bytes", "layer_tensors", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBytes:
    """Bytes of one layer of one kind and one micro-batch, shape (C,).

    Attributes
    ----------
    none, selective, full : array
        Kept for backward without recompute, with cheap operators recomputed, and with the whole layer recomputed.
    saved : array
        Of ``selective``, what is not kept where gathers are repeated.
    dispatch : array
        Part of ``none`` that holds routed tokens.
    forward, backward, backward_selective : array
        Alive in addition where the layer's forward and backward pass are widest; the last where cheap operators are
        recomputed.
    always, copied : array
        Alive all the time for every layer, and for every recomputed one.
    recast : array
        Gathered weights of a recomputed layer that stay to be cast again.
    begun : array
        Made for every layer that is not recomputed when a backward pass begins.
    waiting : array
        Gradients of the layer that wait for the backward pass to leave the stage.
    rebuilt, rebuilt_next : array
        Alive in addition to what is kept of it where a recomputed layer's backward pass is widest: for one such layer,
        and where several follow each other.
    """

    none: FloatArray
    selective: FloatArray
    full: FloatArray
    saved: FloatArray
    dispatch: FloatArray
    forward: FloatArray
    backward: FloatArray
    backward_selective: FloatArray
    always: FloatArray
    copied: FloatArray
    recast: FloatArray
    begun: FloatArray
    waiting: FloatArray
    rebuilt: FloatArray
    rebuilt_next: FloatArray

    def take(self, rows: IntArray) -> LayerBytes:
        """The same for some rows of the table."""
        return LayerBytes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def _lists(rules: MemoryRules) -> ModuleType:
    if rules.layout == "pynative":
        return memory_pynative
    return memory_mindformers if rules.layout in ("mcore", "legacy") else memory_megatron


def layer_tensors(model: Model, workload: Workload, kind: LayerKind, rules: MemoryRules) -> LayerTensors:
    """Tensors of one layer as the framework keeps them."""
    found: LayerTensors = _lists(rules).layer_tensors(model, workload, kind, rules)
    return found


def end_tensors(model: Model, workload: Workload, rules: MemoryRules) -> EndTensors:
    """Tensors of a stage beside its layers, as the framework keeps them."""
    found: EndTensors = _lists(rules).end_tensors(model, workload, rules)
    return found


def layer_bytes(
    lists: LayerTensors,
    elements: dict[Split, FloatArray],
    working: dict[Split, FloatArray],
    cast: FloatArray | float = 0.0,
    recast: FloatArray | float = 0.0,
    reduced: FloatArray | float = 0.0,
    waiting: FloatArray | float = 0.0,
) -> LayerBytes:
    """Bytes of a layer for each candidate, from its tensors and the candidates' `split_elements`.

    ``working`` are those of the part of a micro-batch that runs at one time.
    ``cast`` are weights in the compute type that each micro-batch keeps for itself unless the layer is recomputed,
    ``recast`` gathered weights that stay where it is, to be cast again, ``reduced`` gradients that are on their way to
    their owners where the backward pass is widest, ``waiting`` those that stay until it has left the stage.
    """
    none, full = reduce_bytes(lists.kept, elements) + cast, reduce_bytes(lists.full, elements)
    part = reduce_bytes(lists.kept, working) + cast
    rebuilt = part + np.maximum(reduce_bytes(lists.rebuilt, working), reduce_bytes(lists.rebuilt_scores, working))
    backward = np.maximum(reduce_bytes(lists.backward, working) + reduced, reduce_bytes(lists.backward_first, working))
    return LayerBytes(
        none=none,
        selective=reduce_bytes((t for t in lists.kept if t.selective), elements) + cast,
        saved=reduce_bytes(lists.saved, elements),
        full=full,
        dispatch=reduce_bytes((t for t in lists.kept if t.dispatch), elements),
        forward=reduce_bytes(lists.forward, working),
        backward=np.maximum(backward, reduce_bytes(lists.backward_scores, working)),
        backward_selective=np.maximum(backward, reduce_bytes(lists.backward_scores_selective, working)),
        always=reduce_bytes(lists.always, elements),
        copied=reduce_bytes(lists.copied, elements),
        recast=recast + np.zeros_like(none),
        begun=reduce_bytes(lists.begun, elements),
        waiting=waiting + np.zeros_like(none),
        rebuilt=rebuilt,
        rebuilt_next=np.maximum(rebuilt, part + reduce_bytes(lists.rebuilt_next, working)),
    )
