"""What fills the peak of a DryRun: reads the files of MindSpore's memory tracker.

The tracker (``MS_ALLOC_CONF=memory_tracker:True``) writes ``rank_*/memory_block.csv`` (every block with its life
span in ticks) and ``rank_*/tracker_graph.ir`` (every operator with types and shapes of its outputs; ``%n`` is the
block allocated at tick n).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from planner.errors import ValidationError

_HOST = "Other"
"""Pool of blocks on the host: with ``optimizer.swap`` the moments' own copies."""
_ASSIGNMENT = re.compile(r"^\((%[^)]*)\) = (\S+?)\(")
_TYPE = re.compile(r"(\w+):\[([\d, ]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One allocation of the memory pool."""

    start: int
    end: int
    size_bytes: int
    kind: str
    """MindSpore's word: Weight, KernelOutput, ConstantValue, Workspace, ..."""
    node: str
    """Operator or parameter it belongs to, with its scope."""
    shape: str
    """Such as ``BFloat16:[2048, 1024]``; empty when the tracker does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The blocks alive when the pool was fullest."""

    tick: int
    operator: str
    """Whose allocation reached the peak."""
    total_bytes: int
    blocks: tuple[Block, ...]


def read_peak(folder: Path) -> Peak:
    """Peak of the rank that wrote its tracker files below `folder`."""
    found = sorted(folder.rglob("memory_block.csv"))
    if not found:
        raise ValidationError(f"{folder} holds no memory_block.csv: run with MS_ALLOC_CONF=memory_tracker:True.")
    blocks = _read_blocks(found[0], _read_shapes(found[0].with_name("tracker_graph.ir")))
    return peak_of(blocks)


def peak_of(blocks: Iterable[Block]) -> Peak:
    """The fullest moment of a list of allocations."""
    known = sorted(blocks, key=lambda block: block.start)
    changes = sorted(
        [(block.start, 1, block.size_bytes) for block in known] + [(block.end, 0, -block.size_bytes) for block in known]
    )
    used, best, tick = 0, -1, 0
    for when, _, change in changes:
        used += change
        if used > best:
            best, tick = used, when
    alive = tuple(block for block in known if block.start <= tick < block.end)
    last = max(alive, key=lambda block: block.start)
    return Peak(tick=tick, operator=last.node, total_bytes=best, blocks=alive)


def _read_blocks(path: Path, shapes: dict[int, str]) -> list[Block]:
    csv.field_size_limit(1 << 24)
    with path.open(newline="", errors="replace") as file:
        return [
            Block(
                start=int(row["start_time_stamp"]),
                end=int(row["end_time_stamp"]),
                size_bytes=int(row["size"]),
                kind=row["type"],
                node=row["node_name"] or row["task_name"],
                shape=shapes.get(int(row["start_time_stamp"]), ""),
            )
            for row in csv.DictReader(file)
            if row.get("pool_type") != _HOST
        ]


def _read_shapes(path: Path) -> dict[int, str]:
    """Type and shape of the block that was allocated at each tick."""
    shapes: dict[int, str] = {}
    names: list[str] = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        assignment = _ASSIGNMENT.match(line)
        if assignment:
            names = [name.strip() for name in assignment[1].split(",")]
        elif names and line.startswith("    (") and "<-" in line:
            types = _TYPE.findall(line.split("<-")[0])
            for name, (kind, dims) in zip(names, types, strict=False):
                if name[1:].isdigit():
                    shapes.setdefault(int(name[1:]), f"{kind}:[{dims}]")
            names = []
    return shapes


TERMS = (
    "parameters",
    "moments",
    "gradient_accumulation",
    "constants",
    "gathered_parameters",
    "activations",
    "head_and_loss",
    "recomputed",
    "backward",
    "optimizer",
    "other",
)
"""What the bytes at a peak are for; `terms` gives every one."""

_HEAD = re.compile(r"output_layer|lm_head|loss|Loss|CrossEntropy|LogSoftmax")


_OPTIMIZER = re.compile(r"/(clip_grad_norm|optimizer)-")
_BY_START = (("Gradients/", "backward"), ("recompute_", "recomputed"), ("Default/", "activations"))
_WRAPPERS = re.compile(r"^.*DataOrderWrapperCell/|network-\w+Cell/")


def terms(peak: Peak) -> dict[str, int]:
    """Bytes at the peak by what they are for; their sum is the peak."""
    total = dict.fromkeys(TERMS, 0)
    for block in peak.blocks:
        total[_term(block)] += block.size_bytes
    return total


def _term(block: Block) -> str:
    node = block.node
    if block.kind == "Weight":
        start = node.split(".")[0]
        return {"adam_m": "moments", "adam_v": "moments", "accu_grads": "gradient_accumulation"}.get(
            start, "parameters"
        )
    if block.kind == "ConstantValue":
        return "constants"
    if node.startswith("Default/AllGather"):
        return "gathered_parameters"
    if _OPTIMIZER.search(node):
        return "optimizer"
    if _HEAD.search(_WRAPPERS.sub("", node)):
        return "head_and_loss"
    for start, term in _BY_START:
        if node.startswith(start):
            return term
    return "other"


def summary(peak: Peak, smallest_bytes: int = 1 << 20) -> list[tuple[int, int, str, str, str]]:
    """(bytes, count, kind, shape, operator) of the blocks at the peak, equal ones taken together, largest sum first."""
    count: Counter[tuple[str, str, str]] = Counter()
    size: Counter[tuple[str, str, str]] = Counter()
    for block in peak.blocks:
        key = (block.kind, block.shape or str(block.size_bytes), _operator(block.node))
        count[key] += 1
        size[key] += block.size_bytes
    rows = [(total, count[key], *key) for key, total in size.items() if total >= smallest_bytes]
    return sorted(rows, reverse=True)


def _operator(node: str) -> str:
    """Name of an operator without its number and without the scopes around the network."""
    return re.sub(r"-op\d+", "", re.sub(r"^.*/network-", "", node))
