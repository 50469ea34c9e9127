"""Order and keys of tables of strategies, whatever table a row stands in."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.rows import mixers
from planner.cost.strategies import FloatArray, IntArray, Strategies

#: Columns that make a combination of degrees, and those that break ties, in this order.
DEGREES: Final = ("dp", "tp", "pp", "cp", "ep", "etp")
TIE_COLUMNS: Final = (
    "pp", "tp", "cp", "ep", "etp", "vpp", "micro_batch_size", "zero_level", "schedule", "cp_algorithm",
    "ulysses_degree", "optimizer_shard", "swap_optimizer", "sequence_parallel", "dp",
)  # fmt: skip


def concatenate(tables: list[Strategies]) -> Strategies:
    """One table of all rows in order, padded to the widest."""
    tables = [table for table in tables if len(table)] or tables[:1]
    depth = max(table.layers_CVS.shape[1] for table in tables)
    width = max(table.stages for table in tables)
    columns = {}
    for name in Strategies.__dataclass_fields__:
        parts = [getattr(table, name) for table in tables]
        if name == "layers_CVS":
            parts = [_padded(part, (depth, width)) for part in parts]
        elif name.endswith("_CS"):
            parts = [_padded(part, (width,)) for part in parts]
        columns[name] = np.concatenate(parts)
    return Strategies(**columns)


def _padded(array: IntArray, shape: tuple[int, ...]) -> IntArray:
    if array.shape[1:] == shape:
        return array
    return np.pad(array, [(0, 0)] + [(0, size - had) for size, had in zip(shape, array.shape[1:], strict=True)])


def degree_keys(table: Strategies) -> IntArray:
    """One number per combination of degrees, shape (C,); each but dp stays below 2**12."""
    key = np.zeros(len(table), np.int64)
    for name in DEGREES[1:]:
        key = key * (1 << 12) + np.minimum(getattr(table, name), (1 << 12) - 1)
    return key


def variant_keys(table: Strategies) -> IntArray:
    """One number per combination of degrees, chunks of a stage and micro-batch size, shape (C,)."""
    columns = np.stack([degree_keys(table), table.vpp, table.micro_batch_size], axis=1)
    key: IntArray = columns @ mixers(3, start=1931)
    return key


def order(table: Strategies, value: FloatArray) -> IntArray:
    """Rows from the least value up; equal values by less recompute, then by the strategy's own columns.

    The last word have the layers of each stage, as a number that does not depend on padding.
    """
    recompute = table.recompute_full_CS.sum(axis=1), table.recompute_selective_CS.sum(axis=1)
    layers = _layout_number(table)
    columns = [getattr(table, name) for name in TIE_COLUMNS]
    return np.lexsort([layers, *reversed(columns), *reversed(recompute), value])


def _layout_number(table: Strategies) -> IntArray:
    """Same for the same layers of each chunk and stage, whatever the padding; wraps around."""
    depth, width = table.layers_CVS.shape[1:]
    chunk = _powers(1_000_003, depth)
    stage = _powers(998_244_353, width)
    weights = chunk[:, None] * stage[None, :]
    number: IntArray = (table.layers_CVS * weights[None]).sum(axis=(1, 2))
    return number


def _powers(base: int, count: int) -> IntArray:
    powers = np.ones(count, np.int64)
    for i in range(1, count):
        powers[i] = np.int64((int(powers[i - 1]) * base) % (1 << 62))
    return powers
