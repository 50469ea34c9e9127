"""Layers and recompute of each stage, and MTP modules."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.legality.context import ZERO_BUBBLE_V, Context, Rule, rows


def _layer_sum_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, table.layers_CVS.sum(axis=(1, 2)) == context.model.layers)


def _layer_sum_explain(context: Context, s: Strategy) -> str:
    total, layers, chunks = sum(s.layers_per_stage), context.model.layers, s.pp * s.vpp
    even = [layers // chunks + (position < layers % chunks) for position in range(chunks)]
    return (
        f"layer-sum: layers per stage {list(s.layers_per_stage)} add up to {total}, {context.model.name} has {layers}; "
        f"{layers} layers over {chunks} chunks: {'/'.join(map(str, even))}."
    )


def _middle_holds(context: Context, table: Strategies) -> BoolArray:
    """Every chunk inside a candidate's own pp x vpp holds a layer, except the first and last in model order."""
    chunks, stages = table.layers_CVS.shape[1:]
    chunk, stage = np.arange(chunks)[None, :, None], np.arange(stages)[None, None, :]
    pp, vpp = table.pp[:, None, None], table.vpp[:, None, None]
    inside = (chunk < vpp) & (stage < pp)
    first = (chunk == 0) & (stage == 0)
    back = (table.schedule == ZERO_BUBBLE_V)[:, None, None]
    last = (chunk == vpp - 1) & (stage == np.where(back, 0, pp - 1))
    least = np.where(inside & ~first & ~last, 1, 0)
    good = (table.layers_CVS >= least) & (inside | (table.layers_CVS == 0))
    return rows(table, good.all(axis=(1, 2)))


def _middle_explain(context: Context, s: Strategy) -> str:
    return (
        f"empty-stage: layers {[list(chunk) for chunk in s.layers]} leave a middle chunk empty; only the first and the "
        f"last chunk may hold no layer. Move layers there, or use pp x vpp <= {context.model.layers}."
    )


def _recompute_holds(context: Context, table: Strategies) -> BoolArray:
    full, selective = table.recompute_full_CS, table.recompute_selective_CS
    return rows(table, ((full >= 0) & (selective >= 0) & (full + selective <= table.layers_CS)).all(axis=1))


def _recompute_explain(context: Context, s: Strategy) -> str:
    return (
        f"recompute: recompute_full={list(s.recompute_full)} + recompute_selective={list(s.recompute_selective)} must "
        f"lie between 0 and the layers of each stage, {list(s.layers_per_stage)}."
    )


def _mtp_holds(context: Context, table: Strategies) -> BoolArray:
    most = context.runs_on.most_mtp
    return rows(table, most is None or context.model.mtp_layers <= most)


def _mtp_explain(context: Context, s: Strategy) -> str:
    return (
        f"mtp: MindFormers trains at most {context.runs_on.most_mtp} multi-token-prediction module, "
        f"{context.model.name} has {context.model.mtp_layers}; legal: 0, 1."
    )


MTP: Final = Rule("mtp", "at most one MTP module", _mtp_holds, _mtp_explain)
LAYER_SUM: Final = Rule("layer-sum", "layers per stage add up to the model", _layer_sum_holds, _layer_sum_explain, True)
EMPTY_STAGE: Final = Rule("empty-stage", "every middle chunk holds a layer", _middle_holds, _middle_explain, True)
RECOMPUTE: Final = Rule("recompute", "recomputed layers exist", _recompute_holds, _recompute_explain, True)
