"""Tensor parallelism: sizes that tp must divide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.legality.context import Context, Rule, divisors, listed, rows
from planner.model.records import DENSE, Model


def _tp_choices(context: Context, *sizes: int) -> tuple[int, ...]:
    common = int(np.gcd.reduce([size for size in sizes if size] or [1]))
    return divisors(common)


def _tp_advice(context: Context, legal: Sequence[int]) -> str:
    node = context.cluster.hardware.devices_per_node
    inside = [tp for tp in legal if tp <= node and node % tp == 0]
    text = f"legal tp: {listed(legal)}"
    if tuple(inside) != tuple(legal):
        text += f" (inside a node of {node}: {listed(inside)})"
    return f"{text}. Try tp={inside[-1]}."


def _divides_tp(code: str, what: str, size: Callable[[Model], int]) -> Rule:
    """Rule: tp divides a size of the model (0: the model has no such part)."""

    def holds(context: Context, table: Strategies) -> BoolArray:
        return rows(table, size(context.model) % table.tp == 0)

    def explain(context: Context, s: Strategy) -> str:
        number = size(context.model)
        padding = ""
        if code == "vocab":
            padding = f"Or pad the vocabulary to {-(-number // s.tp) * s.tp} in the model and pay its memory: "
        advice = _tp_advice(context, divisors(number))
        return f"{code}: tp={s.tp} does not divide {number} {what}. {padding}{advice}"

    return Rule(code, f"tp divides the {what}", holds, explain)


def _kv_heads(model: Model) -> int:
    return model.attention.kv_heads if model.attention.kind == "gqa" else 0


def _dense_ffn(model: Model) -> int:
    return model.ffn if DENSE in model.layer_kinds else 0


def _shared_ffn(model: Model) -> int:
    return model.moe.shared_ffn if model.moe else 0


def _heads_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, context.model.attention.heads % (table.tp * table.ulysses_degree) == 0)


def _heads_explain(context: Context, s: Strategy) -> str:
    heads, kv = context.model.attention.heads, _kv_heads(context.model)
    legal = divisors(heads)
    if s.ulysses_degree > 1:
        return (
            f"heads: tp={s.tp} x ulysses_degree={s.ulysses_degree} = {s.tp * s.ulysses_degree} does not divide {heads} "
            f"attention heads; legal products: {listed(legal)}. Lower either, or use cp_algorithm=ring."
        )
    advice = _tp_advice(context, _tp_choices(context, heads, kv) if kv else legal)
    return f"heads: tp={s.tp} does not divide {heads} attention heads; legal here: {listed(legal)}. {advice}"


HEADS: Final = Rule("heads", "tp x ulysses degree divides the attention heads", _heads_holds, _heads_explain)
KV_HEADS: Final = _divides_tp("kv-heads", "key/value heads", _kv_heads)
HIDDEN: Final = _divides_tp("hidden", "hidden size", lambda model: model.hidden)
FFN: Final = _divides_tp("ffn", "feed-forward width", _dense_ffn)
SHARED_FFN: Final = _divides_tp("shared-ffn", "width of the shared experts", _shared_ffn)
VOCAB: Final = _divides_tp("vocab", "vocabulary", lambda model: model.vocab)
