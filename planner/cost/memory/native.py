"""Memory of the emitted MindSpore script on the CPU: float32, unfused attention, no pipeline, nothing sharded.

Tensors counted from the profiler's record of the memory pool while sizes were varied one at a time (MindSpore 2.9,
graph mode; docs/validate.md).  Per token and rank a layer keeps

* 8 h: for each of its two norms the input, its square, the scaled and the weighed values;
* 4 heads d / tp: rotated queries and keys, values, attention's output (keys and values are repeated to all heads);
* 2 heads s / tp: scores behind their mask, and their softmax;
* 5 ffn / tp: gate, up, sigmoid, activation and product, of which selective recompute drops one;
* 3 (heads + kv heads) d / tp more with normalised queries and keys;

2 h when it is recomputed whole.  The loss needs 4 h for the last norm and 5 vocabulary / tp: logits, shifted logits,
exponentials, one-hot labels and their product.  A layer's backward pass needs the gradient of its output and of two
tensors of its MLP.  Gradients live until the update, also those that are then added to sums over micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.strategies import FloatArray, Strategies
from planner.errors import SpecError
from planner.model.operators import embedding_parameters, final_norm_parameters, head_parameters, layer_parameters
from planner.model.records import DENSE, Model, Workload

_FLOAT: Final = 4.0
_MOMENTS_OF_ADAM: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NativeMoments:
    """Bytes of one rank, shape (C,).

    ``static`` holds parameters, optimizer states and accumulated gradients by term; ``moments`` what is alive beside
    them at each moment, by term: at the loss, in the backward pass at its widest layer, at the update.
    """

    static: Mapping[str, FloatArray]
    moments: Mapping[str, Mapping[str, FloatArray]]


def native_moments(model: Model, workload: Workload, table: Strategies) -> NativeMoments:
    """What the script holds, and what it needs at each moment of a step.

    Raises
    ------
    SpecError
        Something the script does not do on the CPU: experts, pipelines, context parallelism, sharded states.
    """
    _check(model, table)
    tokens = table.micro_batch_size * float(workload.seq)
    layer, ends = _layer_weights(model, table), _end_weights(model, table)
    weights = _FLOAT * (model.layers * layer + ends)
    added_up = table.micro_batches > 1
    widths = _Widths.of(model, workload, table)
    size: FloatArray = np.asarray(_FLOAT * tokens, np.float64)
    kept, backward, waiting = _backward(model, table, widths, size, _FLOAT * layer)
    head = _FLOAT * head_parameters(model).tp / table.tp
    every = _layers_kept(model, table, widths)
    return NativeMoments(
        static={
            "parameters": weights,
            "optimizer_states": _MOMENTS_OF_ADAM * weights,
            "gradients": np.where(added_up, weights, 0.0),
        },
        moments={
            "loss": {"activations": size * every, "logits_loss": size * widths.loss},
            "backward": {"activations": kept, "recompute_working": backward, "temporaries": waiting + head},
            "update": {"temporaries": weights},
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Widths:
    """Elements per token on one rank, shape (C,): kept of a layer by recompute, the loss, gradients on their way."""

    none: FloatArray
    selective: FloatArray
    full: FloatArray
    loss: FloatArray
    gradients: FloatArray
    rebuilt: FloatArray

    @classmethod
    def of(cls, model: Model, workload: Workload, table: Strategies) -> _Widths:
        att, hidden, tp = model.attention, float(model.hidden), table.tp.astype(np.float64)
        heads = 4.0 * att.heads * att.head_dim + 2.0 * att.heads * workload.seq
        if att.qk_norm:
            heads += 3.0 * (att.heads + att.kv_heads) * att.head_dim
        ffn = float(model.ffn)
        none = 8.0 * hidden + (heads + 5.0 * ffn) / tp
        full = np.full(len(table), 2.0 * hidden)
        return cls(
            none=none,
            selective=none - ffn / tp,
            full=full,
            loss=4.0 * hidden + 5.0 * model.vocab / tp,
            gradients=hidden + 2.0 * ffn / tp,
            rebuilt=none - 2.0 * hidden,  # its input is kept already, and the gradient takes its output's place
        )


def _check(model: Model, table: Strategies) -> None:
    wrong = model.kinds != (DENSE,) or (table.pp > 1).any() or (table.cp > 1).any() or (table.zero_level > 0).any()
    if wrong:
        raise SpecError(
            "memory of the MindSpore script on the CPU is known for dense layers without pipeline, context parallelism "
            "and sharded states."
        )


def _layer_weights(model: Model, table: Strategies) -> FloatArray:
    each = layer_parameters(model, DENSE)
    return np.asarray(each.tp / table.tp + each.replicated)


def _end_weights(model: Model, table: Strategies) -> FloatArray:
    split = embedding_parameters(model).tp + head_parameters(model).tp
    return np.asarray(split / table.tp + final_norm_parameters(model).replicated)


def _layers_kept(model: Model, table: Strategies, widths: _Widths) -> FloatArray:
    """Elements per token of all layers, shape (C,)."""
    full, some = table.recompute_full_CS[:, 0], table.recompute_selective_CS[:, 0]
    total = full * widths.full + some * widths.selective + (model.layers - full - some) * widths.none
    return np.asarray(total)


def _backward(
    model: Model, table: Strategies, widths: _Widths, size: FloatArray, layer_bytes: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Kept, working and waiting bytes where the backward pass is widest, shape (C,).

    It meets the layers from the last to the first; the recomputed ones come first in the model.  What later layers
    kept is free, their gradients wait for the update.  Both change evenly along layers of one kind, so the first and
    the last layer of each kind are compared.
    """
    full, some = table.recompute_full_CS[:, 0], table.recompute_selective_CS[:, 0]
    best = [np.zeros(len(table)) for _ in range(3)]
    total = np.zeros(len(table))
    for at in (np.full(len(table), model.layers), full + some + 1, full + some, full + 1, full, np.minimum(full, 1)):
        behind = np.maximum(at, 1) - 1
        of_full = np.minimum(behind, full)
        of_some = np.clip(behind - full, 0, some)
        before = of_full * widths.full + of_some * widths.selective + (behind - of_full - of_some) * widths.none
        whole, partly = at <= full, (at > full) & (at <= full + some)
        own = np.where(whole, widths.full, np.where(partly, widths.selective, widths.none))
        working = widths.gradients + np.where(whole, widths.rebuilt, np.where(partly, widths.none - own, 0.0))
        wait = (model.layers - at) * layer_bytes
        parts = [size * (before + own), size * working, wait]
        here = (at >= 1) & (at <= model.layers) & (sum(parts) > total)
        total = np.where(here, sum(parts), total)
        best = [np.where(here, part, old) for part, old in zip(parts, best, strict=True)]
    return best[0], best[1], best[2]
