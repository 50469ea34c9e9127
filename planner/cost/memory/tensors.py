"""Tensors as records: width per token, how they are split, element size; and their bytes for a table of strategies.

The lists of tensors depend on the model only.  `reduce_bytes` sums them by split before any candidate is looked at, so
the cost of a table does not grow with the number of tensors.

Tokens of one rank and micro-batch: ``T = micro_batch_size * seq / cp``; of a piece, where sequences are cut in pieces.

=========  ========================  ==================================================================
split      elements per rank         tensors
=========  ========================  ==================================================================
whole      T w                       not split over tp
sequence   T w / tp                  outside tensor-parallel regions (T w without sequence parallel)
tensor     T w / tp                  heads, MLP columns, vocabulary
exchanged  T w / tp, 0 without       second copies made by the all-to-all of Ulysses context parallelism
           Ulysses
alone      T w / tp, 0 with cp > 1   second copies made only without context parallelism
routed     T topk w / tp, without    tokens sent to experts; does not change with ep
           sequence parallel etp
           times that
received   T topk w etp / tp         tokens as the experts' matrix products see them
columns    T topk w / tp             columns of the experts' matrix products, split over etp
context    T cp w / tp               keys and values of the whole sequence
rows       T w, 0 with cp > 1        an attention mask that nothing parts
parted     T u w, 0 without cp       rows of an attention mask on one context-parallel rank: Ulysses exchanges
                                     heads for u times the queries
unparted   T cp w, 0 without cp      the same before they are parted
global     T cp w                    not split at all
unpiped    T w, 0 with a pipeline    logits of a whole vocabulary
regrouped  T g w / tp, g = min(dp,   logits that MindFormers exchanges between data- and context-parallel ranks
           cp), 0 unless both > 1
exchanging T w / tp, 0 unless both   logits before that exchange
           > 1
left       T g w / tp, twice where   what that exchange leaves at the loss
           dp = cp
expert     w / (ep etp)              copies of expert weights, one for every micro-batch
weights    w / tp                    weights of a projection and their gradients
once       w                         independent of tokens
=========  ========================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from planner.cost.strategies import FloatArray, Strategies
from planner.model.records import Model, Workload

Split = Literal[
    "whole",
    "sequence",
    "tensor",
    "exchanged",
    "alone",
    "routed",
    "received",
    "columns",
    "context",
    "rows",
    "parted",
    "unparted",
    "global",
    "unpiped",
    "regrouped",
    "exchanging",
    "left",
    "expert",
    "weights",
    "once",
]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, or several alike.

    Attributes
    ----------
    width : float
        Elements per token, unsplit.
    size : float
        Bytes of an element.
    selective : bool
        Still kept when cheap operators are recomputed.
    dispatch : bool
        Holds routed tokens.
    """

    name: str
    width: float
    split: Split
    size: float
    selective: bool = True
    dispatch: bool = False

    @property
    def bytes_per_token(self) -> float:
        """Unsplit bytes per token [bytes]."""
        return self.width * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """Tensors of one layer and one micro-batch.

    Attributes
    ----------
    kept : tuple of Tensor
        Kept for the backward pass when nothing is recomputed.
    saved : tuple of Tensor
        Of these, what is not kept where the outputs of norms are gathered again; their slices are, as negative widths.
    full : tuple of Tensor
        Kept when the whole layer is recomputed.
    forward, backward : tuple of Tensor
        Alive in addition where the layer's forward and backward pass are widest.
    backward_first : tuple of Tensor
        The same where the backward pass begins: its widest place in layers with narrow MLPs.
    backward_scores, backward_scores_selective : tuple of Tensor
        The same where attention without a fused operator runs backward through its scores; the second where cheap
        operators are recomputed and the scores are among them.
    always, copied : tuple of Tensor
        Alive all the time for every layer, and for every recomputed one.
    begun : tuple of Tensor
        Made for every layer that is not recomputed when the backward pass of a micro-batch begins.
    rebuilt, rebuilt_next : tuple of Tensor
        Alive beside all of ``kept`` where the backward pass of a recomputed layer is widest, for the layer where
        backward begins and for those that follow; negative widths for what is already freed.
    rebuilt_scores : tuple of Tensor
        The same at the scores of attention without a fused operator.
    """

    kept: tuple[Tensor, ...]
    full: tuple[Tensor, ...]
    saved: tuple[Tensor, ...] = ()
    forward: tuple[Tensor, ...] = ()
    backward: tuple[Tensor, ...] = ()
    backward_first: tuple[Tensor, ...] = ()
    backward_scores: tuple[Tensor, ...] = ()
    backward_scores_selective: tuple[Tensor, ...] = ()
    always: tuple[Tensor, ...] = ()
    copied: tuple[Tensor, ...] = ()
    begun: tuple[Tensor, ...] = ()
    rebuilt: tuple[Tensor, ...] = ()
    rebuilt_next: tuple[Tensor, ...] = ()
    rebuilt_scores: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTensors:
    """Tensors of a stage beside its layers, for one micro-batch.

    Attributes
    ----------
    stage, first, last : tuple of Tensor
        Kept for the backward pass on every, the first and the last stage.
    first_rebuilt : tuple of Tensor
        In place of ``first`` where the first layer is recomputed.
    plain, rebuilt : tuple of Tensor
        Kept as ``stage`` is where a layer is not recomputed, and where one is, whole or in part.
    constant, chunk_constant : tuple of Tensor
        Alive all the time on every stage, whatever the number of micro-batches; the second once for every chunk.
    refill : tuple of Tensor
        Alive on every stage and for every chunk while more micro-batches are still to come.
    start, sent : tuple of Tensor
        Alive where a micro-batch begins its forward pass; the second are left by the pass before it.
    predictor, predictor_full : tuple of Tensor
        Kept by an MTP module beside its layer, and where the module is recomputed.
    loss : tuple of Tensor
        Alive in addition at the loss.
    split_loss : tuple of Tensor
        Alive beside ``loss`` where a schedule splits the backward pass.
    head_backward : tuple of Tensor
        Alive in addition in the backward pass of the output projection.
    exchange : tuple of Tensor
        Alive in addition where logits and their gradients are exchanged between ranks; ``refill`` is free by then.
    lookup : tuple of Tensor
        Alive where a micro-batch is looked up in the embedding table, before anything of it is kept.
    labels : tuple of Tensor
        Alive on the last stage from the start of a micro-batch's forward pass.
    """

    stage: tuple[Tensor, ...] = ()
    first: tuple[Tensor, ...] = ()
    first_rebuilt: tuple[Tensor, ...] = ()
    last: tuple[Tensor, ...] = ()
    plain: tuple[Tensor, ...] = ()
    rebuilt: tuple[Tensor, ...] = ()
    constant: tuple[Tensor, ...] = ()
    chunk_constant: tuple[Tensor, ...] = ()
    refill: tuple[Tensor, ...] = ()
    start: tuple[Tensor, ...] = ()
    sent: tuple[Tensor, ...] = ()
    predictor: tuple[Tensor, ...] = ()
    predictor_full: tuple[Tensor, ...] = ()
    loss: tuple[Tensor, ...] = ()
    split_loss: tuple[Tensor, ...] = ()
    head_backward: tuple[Tensor, ...] = ()
    exchange: tuple[Tensor, ...] = ()
    lookup: tuple[Tensor, ...] = ()
    labels: tuple[Tensor, ...] = ()


def tokens(workload: Workload, table: Strategies) -> FloatArray:
    """Tokens of one micro-batch on one rank, ``mbs * seq / cp``, shape (C,) [count]."""
    return table.micro_batch_size * (float(workload.seq) / table.cp)


def split_elements(model: Model, workload: Workload, table: Strategies, pieces: int = 1) -> dict[Split, FloatArray]:
    """Elements of a one-wide tensor on one rank for each way of splitting it, shape (C,) [count].

    ``pieces`` of a sequence go through the pipeline one after the other; elements are those of one.
    """
    count = tokens(workload, table) / pieces
    sequence = count / np.where(table.sequence_parallel, table.tp, 1)
    tensor = count / table.tp
    exchanging = tensor * ((table.dp > 1) & (table.cp > 1))
    columns = tensor * (float(model.moe.topk) if model.moe is not None else 0.0)
    return {
        "whole": count,
        "sequence": sequence,
        "tensor": tensor,
        "exchanged": tensor * (table.ulysses_degree > 1),
        "alone": tensor * (table.cp == 1),
        "routed": columns * np.where(table.sequence_parallel, 1, table.etp),
        "received": columns * table.etp,
        "columns": columns,
        "context": tensor * table.cp * pieces,
        "rows": count * (table.cp == 1),
        "parted": count * table.ulysses_degree * (table.cp > 1),
        "unparted": count * table.cp * (table.cp > 1),
        "global": count * table.cp,
        "unpiped": count * (table.pp == 1),
        "regrouped": exchanging * np.minimum(table.dp, table.cp),
        "exchanging": exchanging,
        "left": exchanging * np.minimum(table.dp, table.cp) * np.where(table.dp == table.cp, 2, 1),
        "expert": 1.0 / (table.ep * table.etp),
        "weights": 1.0 / table.tp,
        "once": np.ones_like(count),
    }


#: Splits whose elements do not grow with the tokens of a micro-batch.
_FIXED: Final[tuple[Split, ...]] = ("expert", "weights", "once")


def part_elements(elements: dict[Split, FloatArray], parts: int) -> dict[Split, FloatArray]:
    """The same for one of ``parts`` equal parts of a micro-batch."""
    return {split: number if split in _FIXED else number / parts for split, number in elements.items()}


def reduce_bytes(tensors: Iterable[Tensor], elements: dict[Split, FloatArray]) -> FloatArray:
    """Bytes of tensors on one rank, shape (C,) [bytes]."""
    per_split = dict.fromkeys(SPLITS, 0.0)
    for tensor in tensors:
        per_split[tensor.split] += tensor.bytes_per_token
    total = np.zeros_like(elements["whole"])
    for split, size in per_split.items():
        if size:
            total = total + size * elements[split]
    return total
