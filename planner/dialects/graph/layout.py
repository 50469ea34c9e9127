"""How MindFormers writes a strategy down, and back: layer offsets, recompute lists, pipeline scheduler, cp algorithm.

Pure functions on lists and records.  Rows are virtual chunks, columns are pipeline stages, as in ``Strategy.layers``;
for zero-bubble-V the second row is in stage order too (the framework reverses it itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.cost.strategies import Strategy
from planner.errors import SpecError

Counts = tuple[tuple[int, ...], ...]
#: A bool for all layers, one number a stage, or one row a chunk.
ListForm = bool | list[int] | list[list[int]]

#: Context-parallel algorithm of a strategy and what MindFormers calls it.
CP_NAMES: Final = {"ring": "colossalai_cp", "ulysses": "ulysses_cp", "hybrid": "hybrid_cp"}


def offset(strategy: Strategy) -> int | list[int] | list[list[int]]:
    """Deviation of each chunk from the even share, as ``model_config.offset``; 0 when there is none.

    >>> plan = dict(dp=1, tp=1, pp=4, micro_batches=8, recompute_full=(0,) * 4, recompute_selective=(0,) * 4)
    >>> offset(Strategy(layers=((15, 15, 16, 15),), **plan)), offset(Strategy(layers=((16, 16, 16, 16),), **plan))
    ([0, 0, 1, 0], 0)
    """
    share = sum(strategy.layers_per_stage) // (strategy.pp * strategy.vpp)
    rows = [[count - share for count in chunk] for chunk in strategy.layers]
    if not any(any(row) for row in rows):
        return 0
    return rows if strategy.vpp > 1 else rows[0]


def layers_from_offset(value: Any, layers: int, pp: int, vpp: int) -> Counts:
    """Layers of each chunk of each stage, from ``offset``.

    Raises
    ------
    SpecError
        Wrong shape, or a sum that is not the remainder of the even split.
    """
    share, rest = divmod(layers, pp * vpp)
    rows = _offset_rows(value, pp, vpp)
    total = sum(sum(row) for row in rows)
    if total != rest and not (pp * vpp == 1):
        raise SpecError(
            f"offset {value!r} adds up to {total}, but {layers} layers over {pp} stages x {vpp} chunks leave {rest}; "
            f"the entries must add up to {rest}."
        )
    counts = tuple(tuple(share + item for item in row) for row in rows) if pp * vpp > 1 else ((layers,),)
    if any(count < 0 for row in counts for count in row):
        raise SpecError(f"offset {value!r} leaves a stage with fewer than 0 layers; entries must be at least {-share}.")
    return counts


def _offset_rows(value: Any, pp: int, vpp: int) -> list[list[int]]:
    if _is_int(value):
        return [[value] * pp for _ in range(vpp)]
    if isinstance(value, list) and value and all(_is_int(item) for item in value) and len(value) == pp:
        return [list(value) for _ in range(vpp)]
    if (
        isinstance(value, list)
        and len(value) == vpp
        and all(isinstance(row, list) and len(row) == pp and all(_is_int(item) for item in row) for row in value)
    ):
        return [list(row) for row in value]
    raise SpecError(
        f"offset {value!r} does not fit: write 0, a list of {pp} numbers (one a stage)"
        + (f" or {vpp} lists of {pp} numbers (one list a chunk)." if vpp > 1 else ".")
    )


def spread(counts: Sequence[int], layers: Counts) -> Counts:
    """Per-stage counts dealt to the chunks of each stage in turn, never more than a chunk has layers.

    The framework deals a flat list the same way; writing the result out leaves nothing to guess.

    >>> spread((4, 3, 2, 1), ((8, 8, 8, 8), (8, 8, 8, 8)))
    ((2, 2, 1, 1), (2, 1, 1, 0))
    """
    rows = [[0] * len(counts) for _ in layers]
    for stage, wanted in enumerate(counts):
        left = min(wanted, sum(chunk[stage] for chunk in layers))
        while left:
            for row, chunk in zip(rows, layers, strict=True):
                if left and row[stage] < chunk[stage]:
                    row[stage] += 1
                    left -= 1
    return tuple(tuple(row) for row in rows)


def recompute(strategy: Strategy) -> ListForm:
    """Layers recomputed whole, as ``recompute_config.recompute``."""
    return _list_form(strategy, strategy.recompute_full)


def select_recompute(strategy: Strategy) -> ListForm:
    """Layers recomputed selectively, as ``recompute_config.select_recompute``.

    The framework counts layers from the front of a chunk and lets whole recompute win, so the numbers written are those
    of both kinds together.
    """
    if not any(strategy.recompute_selective):
        return False
    both = [f + s for f, s in zip(strategy.recompute_full, strategy.recompute_selective, strict=True)]
    return _list_form(strategy, both)


def _list_form(strategy: Strategy, counts: Sequence[int]) -> ListForm:
    if not any(counts):
        return False
    if all(count >= layers for count, layers in zip(counts, strategy.layers_per_stage, strict=True)):
        return True
    if strategy.vpp == 1:
        return [int(count) for count in counts]
    return [list(row) for row in spread(counts, strategy.layers)]


def chunk_counts(value: Any, layers: Counts, key: str) -> Counts:
    """Layers of each chunk of each stage that a recompute entry of a file means.

    Raises
    ------
    SpecError
        A form that the framework does not take.

    >>> chunk_counts([1, True], ((2, 2), (2, 2)), "recompute"), chunk_counts(True, ((3, 1),), "recompute")
    (((1, 2), (0, 2)), ((3, 1),))
    """
    pp, vpp = len(layers[0]), len(layers)
    if isinstance(value, bool) or value is None:
        return layers if value else tuple((0,) * pp for _ in layers)
    if isinstance(value, list) and len(value) == pp and all(isinstance(item, (bool, int)) for item in value):
        most = [sum(chunk[stage] for chunk in layers) for stage in range(pp)]
        return spread([_clipped(item, limit, key) for item, limit in zip(value, most, strict=True)], layers)
    if isinstance(value, list) and len(value) == vpp and all(isinstance(row, (list, bool)) for row in value):
        rows = [row if isinstance(row, list) else [row] * pp for row in value]
        if all(len(row) == pp and all(isinstance(item, (bool, int)) for item in row) for row in rows):
            return tuple(
                tuple(_clipped(item, limit, key) for item, limit in zip(row, chunk, strict=True))
                for row, chunk in zip(rows, layers, strict=True)
            )
    raise SpecError(
        f"{key} {value!r} does not fit: write True, False, a list of {pp} numbers (one a stage)"
        + (f" or {vpp} lists of {pp} numbers (one list a chunk)." if vpp > 1 else ".")
    )


def recompute_of(full: Any, select: Any, layers: Counts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Whole and selective recompute of each stage, from the two entries of a file."""
    whole, both = chunk_counts(full, layers, "recompute"), chunk_counts(select, layers, "select_recompute")
    stages = range(len(layers[0]))
    return (
        tuple(sum(row[stage] for row in whole) for stage in stages),
        tuple(sum(max(b[stage] - w[stage], 0) for b, w in zip(both, whole, strict=True)) for stage in stages),
    )


def _clipped(item: bool | int, limit: int, key: str) -> int:
    if isinstance(item, bool):
        return limit if item else 0
    if item < 0:
        raise SpecError(f"{key} holds {item}; numbers of layers cannot be negative.")
    return min(item, limit)


def pipeline_config(strategy: Strategy) -> dict[str, Any] | None:
    """``parallel.pipeline_config``, or None where MindSpore's default (plain 1F1B) is meant."""
    scheduler = {"gpipe": "gpipe", "zero_bubble_v": "zero_bubble_v", "seqpipe": "seqpipe"}.get(
        strategy.schedule, "1f1b"
    )
    if strategy.vpp == 1 and scheduler == "1f1b":
        return None
    return {"pipeline_interleave": True, "pipeline_scheduler": scheduler}


def schedule_of(section: Any, vpp: int) -> str:
    """Schedule of a strategy that ``parallel.pipeline_config`` means."""
    scheduler = section.get("pipeline_scheduler", "1f1b") if isinstance(section, dict) else "1f1b"
    if scheduler == "1f1b":
        return "interleaved" if vpp > 1 else "1f1b"
    if scheduler in ("gpipe", "zero_bubble_v"):
        return str(scheduler)
    if scheduler in ("seqpipe", "seqvpp", "seqsmartvpp"):
        return "seqpipe"
    raise SpecError(
        f"pipeline_scheduler {scheduler!r} does not exist; legal: 1f1b, gpipe, seqpipe, seqvpp, seqsmartvpp, "
        "zero_bubble_v."
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
