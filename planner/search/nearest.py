"""The candidate that comes closest where none is legal, and a strategy in one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.strategies import Strategy
from planner.legality.apply import Violation, violations
from planner.legality.rules import SCALAR_RULES
from planner.search.layouts import layouts
from planner.search.request import Request
from planner.search.space import bare_rows


def describe(strategy: Strategy) -> str:
    """Degrees of a strategy in one line.

    >>> describe(Strategy(dp=2, tp=4, pp=8, layers=((10,) * 8,), recompute_full=(0,) * 8,
    ...                   recompute_selective=(0,) * 8, micro_batches=16))
    'dp 2, tp 4, pp 8, micro-batches 16 x 1'
    """
    parts = [f"dp {strategy.dp}", f"tp {strategy.tp}", f"pp {strategy.pp}"]
    parts += [f"{name} {value}" for name in ("vpp", "cp", "ep", "etp") if (value := getattr(strategy, name)) > 1]
    return ", ".join([*parts, f"micro-batches {strategy.micro_batches} x {strategy.micro_batch_size}"])


def nearest_violations(request: Request) -> list[Violation]:
    """Rules broken by the candidate of the request's space that breaks fewest, and of those is nearest in batch."""
    best: tuple[int, int, Strategy] | None = None
    for table in bare_rows(request.context, request.pins):
        broken = np.zeros(len(table), np.int64)
        for rule in SCALAR_RULES:
            broken += ~rule.holds(request.context, table)
        batch = table.dp * table.micro_batch_size * table.micro_batches
        missed = np.abs(batch - request.workload.global_batch)
        missed[missed == 0] = np.iinfo(np.int64).max  # a batch that could be met is the clearer remedy
        row = int(np.lexsort([missed, broken])[0])
        if best is None or (broken[row], missed[row]) < best[:2]:
            best = int(broken[row]), int(missed[row]), with_layers(request, table.row(row))
    assert best is not None
    return violations(request.context, best[2])


def with_layers(request: Request, strategy: Strategy) -> Strategy:
    """The strategy with an even split of the model, no recompute; as it is where none exists."""
    model, v_shape = request.model, strategy.schedule == "zero_bubble_v"
    splits = layouts(model.layers, model.mtp_layers, strategy.pp, strategy.vpp, v_shape)
    zeros = (0,) * strategy.pp
    rows = splits[0].tolist() if len(splits) else [[0] * strategy.pp] * strategy.vpp
    layers = tuple(tuple(row) for row in rows)
    return replace(strategy, layers=layers, recompute_full=zeros, recompute_selective=zeros)
