"""Text of published rows: recompute settings and layer lists as people write them, and names of switches."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Final

from planner.errors import CalibrationError

#: Switches that the column ``flags`` of a row may name.
FLAGS: Final = frozenset(
    "mc2 fine-grain-interleave micro-batch-interleave reuse-fp32-param recompute-activation-function "
    "overlap-grad-reduce swap-optimizer offload lora capacity-drop tp-overlap compile noop-layers "
    "expert-tensor-parallel first-iteration-peak fused-cross-entropy alibi o2-optimizer adaptive-cp "
    "general-mask".split()
)

_LIST: Final = r"\[([\d, ]+)\]"


def number(text: str) -> float | None:
    """A finite number, or None for an empty or wordy cell."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def cells(row: dict[str, str]) -> dict[str, int]:
    """Cells that hold whole numbers."""
    found = {}
    for key, text in row.items():
        value = number(text)
        if value is not None and value == int(value):
            found[key] = int(value)
    return found


def flags_of(row: dict[str, str]) -> frozenset[str]:
    """Switches that a row names, separated by spaces, and those that have a column of their own.

    Raises
    ------
    CalibrationError
        A name that is not known.
    """
    found = set(row.get("flags", "").split())
    if found - FLAGS:
        raise CalibrationError(f"flags: {', '.join(sorted(found - FLAGS))}; legal: {', '.join(sorted(FLAGS))}.")
    if row.get("ce_fusion") == "1":
        found.add("fused-cross-entropy")
    if row.get("capacity_padded") == "1":
        found.add("capacity-padded")
    return frozenset(found)


def options_of(row: dict[str, str], notes: str) -> dict[str, int]:
    """Numbers of switches: interleaved micro-batches, sequence slices, vocabulary padding."""
    found = {}
    for name, pattern in (
        ("micro_batch_interleave", r"micro_batch_interleave_num=(\d+)"),
        ("fine_grain_interleave", r"fine_grain_interleave=(\d+)"),
    ):
        match = re.search(pattern, notes)
        if match:
            found[name] = int(match[1])
    pad = re.match(r"(\d+)\*tp", row.get("vocab_pad_multiple", ""))
    if pad:
        found["vocab_pad"] = int(pad[1])
    return found


def stage_values(notes: str) -> tuple[list[float], list[float]]:
    """Peaks and static bytes by printed rank [GiB]."""
    out: list[list[float]] = []
    for pattern in (r"peak by stage ([\d./]+) GiB", r"after-step allocated by stage ([\d./]+) GiB"):
        match = re.search(pattern, notes)
        out.append([float(part) for part in match[1].split("/")] if match else [])
    return out[0], out[1]


def spread(total: int, parts: int) -> tuple[int, ...]:
    """Whole layers over parts, as level as possible; ends, which also hold embedding and head, get the smaller share.

    >>> spread(44, 6), spread(61, 4), spread(8, 2)
    ((7, 7, 8, 8, 7, 7), (15, 15, 16, 15), (4, 4))
    """
    base, rest = divmod(total, parts)
    first = (parts - rest + 1) // 2
    return tuple(base + (first <= i < first + rest) for i in range(parts))


def layers_per_chunk(row: dict[str, str], notes: str, layers: int, pp: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk and stage, from an explicit list, offsets, a chunk size, or as level as possible."""
    per_stage = re.search(r"layers per stage ([\d,]+)", notes)
    if per_stage:
        values = tuple(int(v) for v in per_stage[1].strip(",").split(","))
        if len(values) == pp and sum(values) == layers:
            return (values,)
    offsets = re.search(r"offset (?:per stage )?(\[[-\d, \[\]]+\])", notes)
    if offsets:
        shifted = _shifted(offsets[1], layers, pp)
        if shifted:
            return shifted
    vpp = int(number(row.get("vpp", "")) or 1)
    chunk = re.search(r"layers per virtual chunk (\d+)", notes)
    if chunk and layers % (pp * int(chunk[1])) == 0:
        vpp = layers // (pp * int(chunk[1]))
    if vpp == 1 and "dualpipev" in notes:
        vpp = 2
    flat = spread(layers, pp * vpp)
    return tuple(flat[c * pp : (c + 1) * pp] for c in range(vpp))


def _shifted(text: str, layers: int, pp: int) -> tuple[tuple[int, ...], ...]:
    rows = re.findall(r"\[([-\d, ]+)\]", text)
    values = [[int(v) for v in row.split(",")] for row in rows]
    if any(len(row) != pp for row in values):
        return ()
    base = layers // (pp * len(values))
    chunks = tuple(tuple(base + v for v in row) for row in values)
    return chunks if sum(map(sum, chunks)) == layers else ()


def recompute_layers(
    text: str, per_stage: tuple[int, ...], vpp: int, flags: Collection[str], assumed: set[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers of each stage that are recomputed whole, and selectively.

    ``full-block-n`` recomputes n layers of every chunk; ``uniform`` all layers; lists are counts per stage; "selective"
    without a list covers the layers that are not recomputed whole.  Unreadable text adds "recompute" to ``assumed``.
    """
    lower = text.lower()
    lists = [[int(v) for v in found.split(",")] for found in re.findall(_LIST, lower)]
    lists = [values for values in lists if len(values) == len(per_stage)]
    full = _whole_layers(lower, lists, per_stage, vpp)
    selective = (0,) * len(per_stage)
    if full is None:
        full = selective
        assumed.add("recompute")
    elif ("select" in lower and "every 2nd" not in lower) or lower.startswith("activation-function"):
        after_full = lists[1:] if re.match(r"(partial|full)", lower) else lists
        selective = _rest(after_full[0] if after_full else None, per_stage, full)
    if "recompute-activation-function" in flags and not any(selective):
        selective = _rest(None, per_stage, full)
    return full, selective


def _whole_layers(lower: str, lists: list[list[int]], per_stage: tuple[int, ...], vpp: int) -> tuple[int, ...] | None:
    """Layers recomputed whole; None when the text does not tell."""
    block = re.search(r"block-(\d+)", lower)
    if block:
        return tuple(min(n, int(block[1]) * vpp) for n in per_stage)
    if "every 2nd layer" in lower:
        return tuple(n // 2 for n in per_stage)
    if lower.startswith("full") or lower == "default":
        return _clip(tuple(lists[0]), per_stage) if lists else per_stage
    if lower.startswith("partial"):
        return _clip(tuple(lists[0]), per_stage) if lists else None
    known = lower == "none" or lower.startswith(("select", "activation-function"))
    return (0,) * len(per_stage) if known else None


def _rest(listed: list[int] | None, per_stage: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    wanted = tuple(listed) if listed is not None else per_stage
    return tuple(min(w, n - f) for w, n, f in zip(wanted, per_stage, full, strict=True))


def _clip(values: tuple[int, ...], limits: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(v, n) for v, n in zip(values, limits, strict=True))
