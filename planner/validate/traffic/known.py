"""What MindFormers' graph mode exchanges beside, or instead of, what the time model prices, and why.

Each rule was read in compiled graphs (mindspore 2.9.0, mindformers 1.9.0; docs/dryrun.md) and gives number and bytes
for one rank of one stage in one step.  Both are positive where the compiler has more than the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planner.cost.layers import head_stage
from planner.cost.time import messages
from planner.cost.time.setting import Setting
from planner.cost.time.volumes import passes
from planner.model.records import DTYPE_BYTES, MOE, LayerKind

#: Optimizer sharding leaves smaller parameters whole [bytes] (``parallel_optimizer_threshold``, 64 KiB by default).
SHARD_THRESHOLD: Final = 64 * 1024
_HALF, _FLOAT32 = 2.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One known difference, compiled minus planned.

    Attributes
    ----------
    group, primitive : str
        Row of `planner.validate.traffic.comparison`.
    count : float
        Collectives; 0 for gradients and parameters, whose number is not compared.
    size_bytes : float
        Bytes of all of them.
    why : str
    """

    group: str
    primitive: str
    count: float
    size_bytes: float
    why: str


def known_differences(given: Setting, stage: int, *, legacy: bool) -> tuple[Known, ...]:
    """Differences of one stage under one strategy; groups of one rank have none."""
    rank = _Rank(given, stage, legacy=legacy)
    found: list[Known] = []
    if rank.tp > 1:
        found += [*_gathered_once(rank), *_head(rank)]
    if rank.table_split > 1:
        found += _embedding(rank)
    found += _four_exchanges(rank)
    if rank.ep > 1:
        found += _routing_map(rank)
    if rank.stages > 1:
        found += _ends(rank)
    if rank.replicas > 1:
        found += [*_gathered_parameters(rank), *_once_a_step(rank), *_table_over_cp(rank), *_whole_weights(rank)]
    return tuple(found)


class _Rank:
    """Sizes of one rank of a stage that the rules share."""

    def __init__(self, given: Setting, stage: int, *, legacy: bool) -> None:
        table, share = given.table, given.share
        self.given, self.stage, self.legacy, self.model = given, stage, legacy, given.model
        self.tp, self.ep, self.tokens = float(share.tp[0]), float(share.ep[0]), float(share.tokens[0])
        self.sequence = bool(share.sp[0] > 1)
        self.micro, self.stages = float(table.micro_batches[0]), int(table.pp[0])
        self.replicas, self.shard = int(table.dp[0] * table.cp[0]), int(table.optimizer_shard[0])
        self.sharded = bool(table.zero_level[0] > 0) and self.shard > 1
        self.first, self.last = stage == 0, stage == int(head_stage(table)[0])
        #: Modules of multi-token prediction on this stage.
        self.modules = given.model.mtp_layers if self.last else 0
        #: Parameters of the embedding, and ranks over which it is split: legacy networks take cp as well.
        self.table = float(given.model.vocab * given.model.hidden)
        over = int(table.tp[0] * table.cp[0]) if legacy else int(table.tp[0])
        self.table_split = over if given.model.vocab % over == 0 else 1
        self.cp = int(table.cp[0])
        #: Whether the last stage works with the embedding of the first.
        self.borrows = given.model.tied_embeddings or given.model.mtp_layers > 0
        self.stored = float(DTYPE_BYTES[given.workload.params_dtype])
        self.gradient = float(DTYPE_BYTES[given.workload.grads_dtype])

    def layers(self, kind: LayerKind) -> float:
        """Layers of a kind on this stage, those of multi-token prediction among them."""
        return passes(self.given, kind, self.stage)[0] / self.micro


def _gathered_once(rank: _Rank) -> Iterator[Known]:
    """The graph keeps gathered inputs, and a recomputed layer ends before its last reduction."""
    for kind in rank.model.kinds:
        _, again, backward = passes(rank.given, kind, rank.stage)
        for item in messages.tp_messages(rank.given, kind):
            size, inputs = float(item.size_bytes[0]), float(item.forward[0])
            if item.op == "allgather" and inputs * backward:
                number = -inputs * backward
                why = "the graph keeps gathered inputs, the planner gathers them again for the backward pass"
                yield Known(group="tp", primitive="allgather", count=number, size_bytes=number * size, why=why)
            if item.op != "allgather" and again and inputs and kind != MOE:
                why = "recompute ends before the layer's last reduction"
                yield Known(group="tp", primitive=item.op, count=-again, size_bytes=-again * size, why=why)


def _embedding(rank: _Rank) -> Iterator[Known]:
    """Partial sums of the vocabulary-parallel look-up, in the stored type, and their gradient.

    Legacy networks look up whole sequences, whatever cp is.
    """
    number = rank.micro * (rank.first + rank.modules)
    size = number * rank.tokens * (rank.cp if rank.legacy else 1) * rank.model.hidden * rank.stored
    if not number:
        return
    why = "look-up in the embedding, in the stored type: not priced"
    if rank.sequence and not rank.legacy:
        for op in ("allgather", "reducescatter"):
            yield Known(group="tp", primitive=op, count=number, size_bytes=size, why=why)
    else:
        yield Known(group="tp", primitive="allreduce", count=2.0 * number, size_bytes=2.0 * size, why=why)


def _head(rank: _Rank) -> Iterator[Known]:
    """Input of the output projection, its gradient, and three reductions of a number a token in each loss.

    Without sequence parallelism the gradient is summed behind the last layer, where the layer's own would be.
    """
    if not rank.last:
        return
    number = rank.micro * (1 + rank.modules)
    size = number * rank.tokens * rank.model.hidden * (_FLOAT32 if rank.legacy else _HALF)
    why = "input of the head and its gradient" + (", float32: not priced" if rank.legacy else ": not priced")
    for op in ("allgather", "reducescatter") if rank.sequence else ():
        yield Known(group="tp", primitive=op, count=number, size_bytes=size, why=why)
    loss = 3.0 * number
    why = "loss over split vocabularies, a float32 a token: not priced"
    yield Known(group="tp", primitive="allreduce", count=loss, size_bytes=loss * rank.tokens * _FLOAT32, why=why)


def _four_exchanges(rank: _Rank) -> Iterator[Known]:
    """Queries, keys, values and the output change from sequence to heads one by one."""
    if int(rank.given.table.ulysses_degree[0]) < 2:
        return
    (item,) = messages.ulysses_messages(rank.given)
    number = 0.0
    for kind in rank.model.kinds:
        forward, again, backward = passes(rank.given, kind, rank.stage)
        number += 3.0 * (float(item.forward[0]) * (forward + again) + float(item.backward[0]) * backward)
    yield Known(group="cp", primitive="alltoall", count=number, size_bytes=0.0, why="four exchanges, priced as one")


def _routing_map(rank: _Rank) -> Iterator[Known]:
    """Which expert each copy of a token goes to, four bytes each."""
    moe = rank.model.moe
    if moe is None:
        return
    forward, again, _ = passes(rank.given, MOE, rank.stage)
    number = forward + again
    size = number * rank.tokens / rank.tp * moe.topk * _FLOAT32
    yield Known(group="ep", primitive="alltoall", count=number, size_bytes=size, why="the routing map: not priced")


def _ends(rank: _Rank) -> Iterator[Known]:
    """The first and the last stage have a neighbour on one side only; the last one borrows the embedding."""
    size = float(messages.pp_messages(rank.given)[0].size_bytes[0])
    borrowed = rank.table / rank.tp * rank.stored / (rank.shard if rank.sharded else 1)
    for op in ("send", "receive"):
        if rank.first or rank.last:
            why = "the planner charges every stage as one with neighbours on both sides"
            yield Known(group="pp", primitive=op, count=-rank.micro, size_bytes=-rank.micro * size, why=why)
        if rank.borrows and (rank.first or rank.last):
            why = "the last stage borrows the embedding, tied or for multi-token prediction: not priced"
            yield Known(group="pp", primitive=op, count=1.0, size_bytes=borrowed, why=why)


def _gathered_parameters(rank: _Rank) -> Iterator[Known]:
    """Small parameters are not sharded; the embedding is gathered as stored (mcore) or not at all (legacy)."""
    if not rank.sharded:
        return
    size = -_HALF * _unsharded(rank)
    why = "parameters below 64 KiB are not sharded"
    yield Known(group="dp", primitive="allgather", count=0.0, size_bytes=size, why=why)
    if not rank.first:
        return
    table = rank.table / rank.tp
    size = -_HALF * table if rank.legacy else (rank.stored - _HALF) * table
    why = "the embedding is not sharded" if rank.legacy else "the embedding is gathered in the type it is stored in"
    if size:
        yield Known(group="dp", primitive="allgather", count=0.0, size_bytes=size, why=why)


def _once_a_step(rank: _Rank) -> Iterator[Known]:
    """Gradients of what is not sharded are kept whole and reduced once, at every level."""
    if int(rank.given.table.zero_level[0]) < 2 or not rank.sharded:
        return
    size = -(rank.micro - 1.0) * rank.gradient * _unsharded(rank)
    why = "gradients of parameters that are not sharded are reduced once"
    yield Known(group="dp", primitive="reduce", count=0.0, size_bytes=size, why=why)


def _table_over_cp(rank: _Rank) -> Iterator[Known]:
    """The part of a legacy embedding that one rank holds and reduces."""
    size = (rank.table / rank.table_split - rank.table / rank.tp) * rank.gradient
    if rank.legacy and rank.first and size:
        why = "the embedding is split over tp x cp, or whole where the vocabulary does not divide"
        yield Known(group="dp", primitive="reduce", count=0.0, size_bytes=size, why=why)


def _unsharded(rank: _Rank) -> float:
    """Parameters of the stage in tensors that are not sharded."""
    small = sum(rank.layers(kind) * _small(rank, kind) for kind in rank.model.kinds)
    return small + (rank.last + 3.0 * rank.modules) * _norm(rank)


def _norm(rank: _Rank) -> float:
    """Parameters of one layer norm."""
    return rank.model.hidden * (2.0 if rank.model.norm_bias else 1.0)


def _small(rank: _Rank, kind: LayerKind) -> float:
    """Parameters of a layer in tensors that are not sharded: norms, and routers of few experts."""
    model = rank.model
    att, moe = model.attention, model.moe
    inner = att.q_lora_rank + att.kv_lora_rank if att.kind == "mla" else 2 * att.head_dim * att.qk_norm
    router = model.hidden * moe.experts if kind == MOE and moe is not None else 0
    small = router if router * _FLOAT32 < SHARD_THRESHOLD else 0
    return model.norms_per_layer * _norm(rank) + inner + small


def _whole_weights(rank: _Rank) -> Iterator[Known]:
    """Weights of mcore models that are split over tp elsewhere, and the borrowed embedding."""
    if rank.legacy:
        return
    model, rest = rank.model, 1.0 - 1.0 / rank.tp
    shared = 3.0 * model.hidden * model.moe.shared_ffn * rank.layers(MOE) if model.moe else 0.0
    joins = 2.0 * model.hidden**2 * rank.modules
    parts = [("shared experts are whole on every tp rank", rest * shared, _HALF),
             ("the projection of multi-token prediction is whole on every tp rank", rest * joins, _HALF)]  # fmt: skip
    if rank.stages > 1 and rank.last and rank.borrows:
        parts.append(("the borrowed embedding", rank.table / rank.tp, rank.stored))
    for why, number, stored in parts:
        if number:
            yield Known(group="dp", primitive="reduce", count=0.0, size_bytes=number * rank.gradient, why=why)
            if rank.sharded:
                yield Known(group="dp", primitive="allgather", count=0.0, size_bytes=number * stored, why=why)
