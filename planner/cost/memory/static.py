"""Parameters, gradients and optimizer states of each stage, and the buffers that come with them [bytes].

Weights fall into classes that are split and shared alike.  Every quantity here is linear in the weights of a stage, so
it is reduced to bytes per layer of each kind and per table, shape (C,), before it is spread over stages.  What a rank
holds of a weight is `planner.cost.parameters`.

Sharing: experts are copied over ``dp cp tp / (ep etp)`` ranks, everything else over ``dp cp`` (context-parallel ranks
hold the same parameters).  ``optimizer_shard`` of these ranks share one copy of what the ZeRO level names; where it
covers all of dp x cp, experts are shared by all their copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.layers import StageLayers
from planner.cost.memory.kept_megatron import weight_shapes
from planner.cost.memory.rules import MemoryRules, bytes_of
from planner.cost.parameters import Classes, Parameters, dot, is_glm, rank_parameters, whole_vocabulary
from planner.cost.strategies import BoolArray, FloatArray, Strategies
from planner.model.operators import gemms
from planner.model.records import DENSE, LayerKind, Model, Workload

_FLOAT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """What a stage stores, shape (C, S) [bytes].

    Attributes
    ----------
    static : mapping of str to array
        ``parameters``, ``gradients`` and ``optimizer_states``.
    always_CS : array
        Buffers that exist all the time.
    gathered_CS : array
        Parameters in the compute type, whole, from forward to backward.
    cast, recast : mapping of kind to array, shape (C,)
        Parameters of a layer in the compute type that each micro-batch makes for itself, and what is gathered for
        them and stays where the layer is recomputed.
    reduced : mapping of kind to array, shape (C,)
        Gradient of a layer's last projection, whole, and this rank's share of it while it is reduced to its owners.
    waiting : mapping of kind to array, shape (C,)
        All gradients of a layer, whole, and this rank's share of them, where they stay until the backward pass of a
        micro-batch has left the stage.
    waiting_ends_CS : array
        The same of the head and of MTP modules, whose gradients are made before those of the layers.
    embedding_CS, experts_CS : array
        Gathered weights that are needed while forward passes are still to come: the embedding table, and the experts,
        of which each micro-batch keeps its own copy for the backward pass.
    head_gradient_CS : array
        Gradient of the output projection before it is added to the accumulated one.
    update_CS : array
        Temporaries of the optimizer step.
    """

    static: Mapping[str, FloatArray]
    always_CS: FloatArray
    gathered_CS: FloatArray
    cast: Mapping[LayerKind, FloatArray]
    recast: Mapping[LayerKind, FloatArray]
    reduced: Mapping[LayerKind, FloatArray]
    waiting: Mapping[LayerKind, FloatArray]
    waiting_ends_CS: FloatArray
    embedding_CS: FloatArray
    experts_CS: FloatArray
    head_gradient_CS: FloatArray
    update_CS: FloatArray


def stored(model: Model, workload: Workload, table: Strategies, layers: StageLayers, rules: MemoryRules) -> Stored:
    """Parameters, gradients, optimizer states and their buffers of every stage."""
    numbers_CS = {kind: layers.count(kind).astype(np.float64) for kind in model.kinds}
    weights, copies = rank_parameters(model, table, numbers_CS, rules), _copies(model, table, rules)
    sharded = table.zero_level >= (1 if rules.sharded_weights else 3)
    zero = np.zeros(table.layers_CS.shape)
    static = {
        "parameters": weights.spread(_each(bytes_of(workload.params_dtype), copies, sharded)),
        "gradients": zero if rules.frozen_weights else weights.spread(_gradients(workload, table, copies, rules)),
        "optimizer_states": _states(workload, table, weights, copies, rules),
    }
    if rules.sharded_weights:
        waiting = _waiting(workload, table, copies, sharded)
        return Stored(
            static=static,
            always_CS=_embedding_copy(workload, weights, copies, sharded)
            + _embedding_early(workload, table, weights, copies, rules),
            gathered_CS=_gathered(workload, weights, copies, sharded),
            cast={kind: dot(weights.layer[kind], _cast(workload, sharded)) for kind in model.kinds},
            recast={kind: dot(weights.layer[kind], _recast(workload, sharded)) for kind in model.kinds},
            reduced={DENSE: _reduced(model, workload, table, copies)},
            waiting={kind: dot(weights.layer[kind], waiting) for kind in model.kinds},
            waiting_ends_CS=weights.at_head(dot(weights.last, waiting)),
            embedding_CS=_gathered_embedding(workload, weights, copies, sharded),
            experts_CS=weights.spread(_whole(workload, copies, sharded, ("experts",))),
            head_gradient_CS=zero,
            update_CS=_update(model, workload, table, weights, copies) if rules.optimizer_runs else zero,
        )
    placeholders = rules.gradient_placeholders
    head_gradient = bytes_of(workload.compute_dtype) * model.vocab * model.hidden / table.tp
    return Stored(
        static=static,
        always_CS=rules.workspace_bytes + (_placeholders(model, workload, table, layers) if placeholders else zero),
        gathered_CS=_gathered_in_turn(workload, table, weights, sharded, rules),
        cast={kind: dot(weights.layer[kind], _kept_casts(workload, rules)) for kind in model.kinds},
        recast={},
        reduced={},
        waiting={},
        waiting_ends_CS=zero,
        embedding_CS=zero,
        experts_CS=zero,
        head_gradient_CS=weights.at_head(head_gradient) if placeholders else zero,
        update_CS=zero,
    )


# ---------------------------------------------------------------------------------------------------------- sharing


def _copies(model: Model, table: Strategies, rules: MemoryRules) -> Classes:
    """Ranks that share one copy of each class, shape (C,).

    MindSpore shares a weight over all ranks that hold the same slice, so tp adds to those of a weight it does not
    split; norms stay below the size from which it shares, and legacy networks exempt the embedding table.  GLM networks
    share the table over all ranks of a stage, and split the head over them.
    """
    ranks, tp = table.dp * table.cp, table.tp
    shard = table.optimizer_shard.astype(np.float64)
    experts = np.where(table.optimizer_shard >= ranks, table.expert_copies, np.minimum(shard, table.expert_copies))
    mindspore, glm = rules.sharded_weights, is_glm(model, rules)
    one = np.ones_like(shard)
    return {
        "split": shard,
        "whole": shard * tp if mindspore else shard,
        "norms": one if mindspore else shard,
        "experts": experts,
        "embedding": ranks * tp * one if glm else one if rules.layout == "legacy" else shard,
        "head": one if glm else np.where(whole_vocabulary(table, rules), shard * tp, shard),
    }


# ---------------------------------------------------------------------------------------------------- bytes a weight


def _each(size: float, copies: Classes, shared: BoolArray) -> dict[str, FloatArray | float]:
    """Bytes per weight of each class where copies share it, shape (C,)."""
    return {name: size / np.where(shared, number, 1.0) for name, number in copies.items()}


def _gradients(
    workload: Workload, table: Strategies, copies: Classes, rules: MemoryRules
) -> dict[str, FloatArray | float]:
    level = table.zero_level
    if not rules.sharded_weights:
        return _each(bytes_of(workload.grads_dtype), copies, level >= 2)
    each = _each(bytes_of(workload.params_dtype), copies, level >= 2)
    return {name: np.where(_accumulated(table), size, 0.0) for name, size in each.items()}


def _accumulated(table: Strategies) -> BoolArray:
    """MindSpore: where gradients have a place of their own; otherwise they live from backward to update, shape (C,)."""
    return (table.pp > 1) | (table.micro_batches > 1)


def _states(
    workload: Workload, table: Strategies, weights: Parameters, copies: Classes, rules: MemoryRules
) -> FloatArray:
    """Moments, and a float32 copy of 16-bit parameters and of 16-bit gradients."""
    size = workload.moments * bytes_of(workload.states_dtype)
    if workload.master_weights:
        size += 2.0 if rules.reuse_master else _FLOAT
        size += 0.0 if bytes_of(workload.grads_dtype) == _FLOAT else _FLOAT
    if rules.frozen_weights or not rules.optimizer_runs:
        size = 0.0
    each = _each(size, copies, table.zero_level >= 1)
    away = table.swap_optimizer & rules.swap_frees
    return weights.spread({name: np.where(away, 0.0, number) for name, number in each.items()})


def _whole(
    workload: Workload, copies: Classes, sharded: BoolArray, classes: tuple[str, ...]
) -> dict[str, FloatArray | float]:
    """MindSpore: weights in the compute type, gathered or cast."""
    cast = workload.params_dtype != workload.compute_dtype
    size = bytes_of(workload.compute_dtype)
    return {name: size * (cast | ((copies[name] > 1) & sharded)).astype(np.float64) for name in classes}


def _cast(workload: Workload, sharded: BoolArray) -> dict[str, FloatArray | float]:
    """MindSpore: weights of layers that each micro-batch casts, or copies, without optimizer parallelism.

    With it, too, where the type changes but not its width: such weights are gathered as they are stored.
    """
    size = bytes_of(workload.compute_dtype)
    late = workload.params_dtype != workload.compute_dtype and size == bytes_of(workload.params_dtype)
    return {name: size * (~sharded | late).astype(np.float64) for name in ("split", "whole")}


def _kept_casts(workload: Workload, rules: MemoryRules) -> dict[str, FloatArray | float]:
    """Operator by operator: casts of weights that a micro-batch keeps for its backward pass."""
    cast = rules.casts_weights and workload.params_dtype != workload.compute_dtype
    return {name: bytes_of(workload.compute_dtype) * cast for name in ("split", "whole", "experts")}


def _recast(workload: Workload, sharded: BoolArray) -> dict[str, FloatArray | float]:
    """MindSpore: of these, what is gathered: it stays for recomputed layers, which cast it again."""
    return {name: np.where(sharded, size, 0.0) for name, size in _cast(workload, sharded).items()}


def _reduced(model: Model, workload: Workload, table: Strategies, copies: Classes) -> FloatArray:
    """MindSpore: the gradient of an MLP's second product where accumulated gradients are sharded, shape (C,)."""
    accumulated = (table.zero_level >= 2) & (copies["split"] > 1)
    return (
        bytes_of(workload.params_dtype)
        * accumulated
        * (model.hidden * model.ffn / table.tp)
        * (1 + 1 / copies["split"])
    )


def _waiting(
    workload: Workload, table: Strategies, copies: Classes, sharded: BoolArray
) -> dict[str, FloatArray | float]:
    """MindSpore: bytes per weight of gradients on their way into a sharded accumulator: whole, and the owner's share.

    Both sides of a collective are released when the computing stream next waits for the communicating one.  Layers that
    communicate themselves do so all the time; otherwise the first wait is for the sums behind the last gradient of a
    micro-batch.  The embedding table comes last and waits for nothing.  Gradients that are not accumulated wait for the
    update, when the gathered weights they come from are free.
    """
    size, accumulated = bytes_of(workload.params_dtype), _accumulated(table)
    at_once, gathered = _at_once(workload, table, copies), _whole(workload, copies, sharded, ("split", "whole", "head"))
    quiet = (table.zero_level >= 2) & (table.tp * table.cp * table.ep == 1)
    classes = {name: number for name, number in copies.items() if name != "embedding"}
    return {
        name: np.where(
            accumulated, size * (quiet & (number > 1)) * (1.0 + 1.0 / number), at_once[name] - gathered.get(name, 0.0)
        )
        for name, number in classes.items()
    }


def _at_once(workload: Workload, table: Strategies, copies: Classes) -> dict[str, FloatArray]:
    """MindSpore: bytes per weight of gradients that nothing accumulates, between their making and the update.

    A gradient that is cast to the float32 type of its parameter is reduced after that, all of them at the end of the
    backward pass: both sides of the collectives stay.  Otherwise, from bfloat16 to float16 as well, each is reduced as
    it is made, and the owner casts its share.
    """
    cast = bytes_of(workload.params_dtype) > bytes_of(workload.compute_dtype)
    own = {name: np.where(table.zero_level >= 1, number, 1.0) for name, number in copies.items()}
    both = 1.0 if cast else 0.0
    return {name: _FLOAT * (both + np.where(table.dp * table.cp > 1, 1.0 / n, 1.0 - both)) for name, n in own.items()}


def _gathered(workload: Workload, weights: Parameters, copies: Classes, sharded: BoolArray) -> FloatArray:
    """MindSpore: whole weights in the compute type that all micro-batches use, shape (C, S).

    One gathering or casting serves all micro-batches; without optimizer parallelism each casts the weights of its
    layers anew.
    """
    whole, cast = _whole(workload, copies, sharded, ("split", "whole", "head")), _cast(workload, sharded)
    shared = {name: np.maximum(size - cast.get(name, 0.0), 0.0) for name, size in whole.items()}
    return weights.spread(shared) + weights.at_head(dot(weights.last, cast))


def _gathered_embedding(workload: Workload, weights: Parameters, copies: Classes, sharded: BoolArray) -> FloatArray:
    """The embedding table gathered for look-ups, in its own type, shape (C, S)."""
    size = bytes_of(workload.params_dtype) * ((copies["embedding"] > 1) & sharded)
    total = weights.at_head(size * weights.last["embedding"])
    total[:, 0] += size * weights.first["embedding"]
    return total


def _embedding_copy(workload: Workload, weights: Parameters, copies: Classes, sharded: BoolArray) -> FloatArray:
    """The constant that MindSpore makes of the shard of the second embedding table, which MTP modules use, (C, S)."""
    share = np.where(sharded, copies["embedding"], 1.0)
    return weights.at_head(bytes_of(workload.params_dtype) * weights.last["embedding"] / share)


def _embedding_early(
    workload: Workload, table: Strategies, weights: Parameters, copies: Classes, rules: MemoryRules
) -> FloatArray:
    """A float32 copy of the embedding table that its update makes before the first pass, shape (C, S).

    It is the first operator of the optimizer and waits for nothing, so the compiler puts it in front of the step: the
    cast of a 16-bit table, and in legacy networks without accumulation the decayed table.  On a device the overflow
    check may hold it back; the DryRun has none (docs/dryrun.md).
    """
    narrow, legacy = bytes_of(workload.params_dtype) < _FLOAT, rules.layout == "legacy"
    early = rules.optimizer_runs & (narrow | (legacy & ~_accumulated(table)))
    own = np.where(table.zero_level >= 1, copies["embedding"], 1.0)
    return weights.at_first(_FLOAT * early * weights.first["embedding"] / own)


def _gathered_in_turn(
    workload: Workload, table: Strategies, weights: Parameters, sharded: BoolArray, rules: MemoryRules
) -> FloatArray:
    """ZeRO level 3: two layers (this and the next) and the tables, shape (C, S).

    In the compute type, or as they are stored where each product casts its own.
    """
    stored_as = workload.params_dtype if rules.casts_weights else workload.compute_dtype
    size: FloatArray = bytes_of(stored_as) * sharded.astype(np.float64)
    layers = weights.spread({"split": size, "whole": size, "norms": size, "experts": size})
    share = np.minimum(2.0, table.layers_CS) / np.maximum(table.layers_CS, 1)
    return share * layers + weights.spread({"embedding": size, "head": size})


# ------------------------------------------------------------------------------------------------------- temporaries


def _update(model: Model, workload: Workload, table: Strategies, weights: Parameters, copies: Classes) -> FloatArray:
    """Temporaries of MindFormers' update, float32, shape (C, S).

    Gradients are unscaled whole (a cast and a product) and reduced to their owners one after the other, clipped
    together, then applied one by one with three temporaries each.  What each adds to the first moment is made while the
    first is applied, so nearly two tensors of every parameter are there.  This runs in the order of
    parameters: the embedding first, then the layers from their first projection on, the head last.  Where nothing
    accumulates, all gradients are reduced before, and both sides of these collectives stay until the last one is done.
    """
    sharded = table.zero_level >= 1
    own = {name: np.where(sharded, number, 1.0) for name, number in copies.items()}
    clipped = weights.spread(_each(_FLOAT, copies, sharded))
    query = _FLOAT * model.hidden * model.attention.heads * model.attention.head_dim / table.tp / own["split"]
    within = np.zeros(clipped.shape)
    for kind, numbers in weights.numbers_CS.items():
        dense, expert = _largest(model, kind, table)
        most = np.maximum(dense / own["split"], expert / own["experts"])
        within = np.maximum(within, most[:, None] * (numbers > 0))
    peak = np.maximum(clipped + 3.0 * within, 2.0 * clipped + query[:, None])
    embedding, head = _FLOAT * weights.first["embedding"], _FLOAT * weights.last["head"]
    own_embedding, own_head = embedding / own["embedding"], head / own["head"]
    at_clip = np.maximum(clipped[:, 0] + 3.0 * own_embedding, 2.0 * embedding + own_embedding)
    peak[:, 0] = np.maximum(at_clip, 2.0 * clipped[:, 0] + own_embedding)
    at = np.arange(len(table)), weights.head_stage
    peak[at] = np.maximum(peak[at], np.maximum(4.0 * own_head, 2.0 * head + clipped[at]))
    peak = np.where(table.swap_optimizer[:, None], np.maximum(peak, _moved(weights, own, clipped, within)), peak)
    at_once = weights.spread(_at_once(workload, table, copies))
    return np.where(_accumulated(table)[:, None], peak, np.maximum(peak, at_once))


def _moved(weights: Parameters, own: Classes, clipped: FloatArray, within: FloatArray) -> FloatArray:
    """Update of MindFormers with ``optimizer.swap: True``, shape (C, S).

    The compiled step loads both moments of a parameter for its update and holds them until all are sent back; of the
    parameter in turn there are two more copies and a quotient, of those to come a clipped gradient and what it adds.
    """
    most = within.copy()
    most[:, 0] = np.maximum(most[:, 0], _FLOAT * weights.first["embedding"] / own["embedding"])
    at = np.arange(len(most)), weights.head_stage
    most[at] = np.maximum(most[at], _FLOAT * weights.last["head"] / own["head"])
    return np.asarray(2.0 * clipped + 3.0 * most, np.float64)


def _largest(model: Model, kind: LayerKind, table: Strategies) -> tuple[FloatArray, FloatArray]:
    """Float32 bytes of the largest weight of a layer on one rank, outside and inside experts, shape (C,)."""
    dense, expert = np.zeros(len(table)), np.zeros(len(table))
    for gemm in gemms(model, kind):
        size = _FLOAT * gemm.k * gemm.n
        if gemm.shard.startswith("expert"):
            assert model.moe is not None
            expert = np.maximum(expert, size * model.moe.experts / (table.ep * table.etp))
        elif gemm.shard != "replicated":
            dense = np.maximum(dense, size / table.tp)
    return dense, expert


def _placeholders(model: Model, workload: Workload, table: Strategies, layers: StageLayers) -> FloatArray:
    """One unused 16-bit tensor of each weight shape on a stage, shape (C, S)."""
    present = {kind: layers.count(kind) > 0 for kind in model.kinds}
    splits = {
        "whole": np.ones(len(table)),
        "tp": 1.0 / table.tp,
        "expert": 1.0 / table.etp,
    }
    by_kinds: dict[frozenset[LayerKind], FloatArray] = {}
    for shape in weight_shapes(model):
        size = bytes_of(workload.compute_dtype) * shape.elements * splits[shape.split]
        by_kinds[shape.kinds] = by_kinds.get(shape.kinds, 0.0) + size
    total = np.zeros(table.layers_CS.shape)
    for kinds, size in by_kinds.items():
        here = np.logical_or.reduce([present[kind] for kind in model.kinds if kind in kinds])
        total = total + here * size[:, None]
    return total
