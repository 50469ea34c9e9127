"""Communication operators: communication.json of MindSpore 2.5+, torch_npu and msprof-analyze, and the older hccl_raw.

A link table repeats the same bytes under HCCS and SDMA, so the links are not added: the one that carried most is taken,
a named fabric before SDMA.  Bandwidth is recomputed from size and link time (at step level, hccl_raw prints a sum of
rates).  The kind of a group comes from profiler_metadata.json, whose group names the operators carry as a hash.

Sources: Ascend/pytorch and Ascend/msprof-analyze (format and hash of group names); mindspore-ai/mindinsight (hccl_raw).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from planner.errors import SpecError
from planner.observe.points import Point
from planner.observe.records import CommunicationOp, Layout, Observation, StepTrace
from planner.observe.sanity import FASTEST_LINK_BYTES_PER_S, impossible_rate
from planner.observe.tables import Table
from planner.observe.text import File, number

_MS: Final = 1e-3
_MB: Final = 1e6
#: Fabrics; SDMA and SIO are engines that repeat a fabric's bytes, so they count only alone.
FABRICS: Final = ("RDMA", "HCCS", "PCIE")
_OPS: Final = (
    ("batchsendrecv", "sendrecv"), ("sendrecv", "sendrecv"), ("send", "sendrecv"), ("receive", "sendrecv"),
    ("recv", "sendrecv"), ("reducescatter", "reducescatter"), ("allreduce", "allreduce"), ("allgather", "allgather"),
    ("alltoall", "alltoall"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("scatter", "scatter"),
    ("gather", "gather"), ("reduce", "reduce"),
)  # fmt: skip
_MASK: Final = 0xFFFFFFFF


def is_communication_json(file: File) -> bool:
    """communication.json of one rank, or cluster_communication.json."""
    return file.head.lstrip().startswith("{") and "Communication Time Info" in file.head


def operation(name: str) -> str:
    """Operation of an operator's name; ``"other"`` when none is in it.

    >>> operation("hcom_reduceScatter__691_5_1"), operation("stream_41_0_AllReduce-op4582"), operation("Receive-op663")
    ('reducescatter', 'allreduce', 'sendrecv')
    """
    plain = name.lower().replace("_", "")
    return next((op for part, op in _OPS if part in plain), "other")


def group_hash(name: str) -> str:
    """How operators carry the name of their group: two polynomial hashes of 32 bits, side by side.

    >>> group_hash("group_name_19")
    '3985310405473756128'
    """
    high = low = 0
    for letter in name:
        high = (high * 29 + ord(letter)) & _MASK
        low = (low * 131 + ord(letter)) & _MASK
    return str(high << 32 | low)


def read_communication_json(file: File) -> Observation:
    """Operators of one rank, or of all ranks in the cluster's file."""
    ops, notes = [], []
    for path, info in _leaves(file.json(), ()):
        op = _operator(path, info, file.rank)
        if op.size_bytes and impossible_rate(op.size_bytes, op.link_s, FASTEST_LINK_BYTES_PER_S):
            notes.append(f"{op.name}: {op.size_bytes:.0f} bytes in {op.link_s} s is no link's rate; size dropped.")
            op = replace(op, size_bytes=0.0, link_s=0.0)
        ops.append(op)
    if not ops:
        raise SpecError(f"{file.path}: no communication operator in it.")
    return Observation(
        kind="profile", source=file.path, format="communication.json", communication=tuple(ops), notes=tuple(notes[:5])
    )


def read_hccl_raw(file: File) -> Observation:
    """Operators of one rank; the row without a step number is their average and left out."""
    found = re.search(r"hccl_raw_(\d+)", file.name)
    rank = int(found[1]) if found else file.rank
    table = Table(file)
    ops: list[CommunicationOp] = []
    for row in table:
        step = row.whole("step")
        if step is None:
            continue
        for name, cell in _embedded(row.text("communication_operator_cost"), file, row.line).items():
            ops.append(_raw_operator(name, cell, step, rank))
    if not ops:
        raise SpecError(f"{file.path}: no step with communication operators in it.")
    return Observation(
        kind="profile", source=file.path, format="hccl_raw.csv", communication=tuple(ops), notes=tuple(table.notes)
    )


def with_groups(ops: Iterable[CommunicationOp], layout: Layout | None) -> tuple[CommunicationOp, ...]:
    """The operators with kind and ranks of their groups, where the metadata knows them."""
    groups = dict(layout.groups) if layout else {}
    by_hash = {group_hash(name): group for name, group in groups.items()} | groups
    return tuple(
        replace(op, group_kind=by_hash[op.group][0], group_ranks=by_hash[op.group][1]) if op.group in by_hash else op
        for op in ops
    )


def with_pipeline_wait(steps: Iterable[StepTrace], ops: Sequence[CommunicationOp]) -> tuple[StepTrace, ...]:
    """Steps with the waiting that hides in point-to-point operators: elapse - size / bandwidth, summed."""
    waits: dict[tuple[int | None, int | None], float] = defaultdict(float)
    for op in ops:
        waits[op.rank, op.step] += op.waiting_s if op.op == "sendrecv" else 0.0
    return tuple(
        replace(step, pipeline_wait_s=waits[step.rank, step.step]) if (step.rank, step.step) in waits else step
        for step in steps
    )


def collective_points(ops: Sequence[CommunicationOp]) -> tuple[Point, ...]:
    """Transfers as points, one for every operation, size and group: the waiting for peers taken out.

    The time is that of the rank that arrived last, which waits least; with one rank of many, and between two ranks, it
    is the transfer alone, and a collective's point says so.
    """
    same: dict[tuple[str, str, int | None], list[CommunicationOp]] = defaultdict(list)
    for op in ops:
        if op.op in ("other", "barrier") or not math.isfinite(op.operation_bytes) or op.link_s <= 0:
            continue
        same[op.name, op.group, op.step].append(op)
    points = []
    for members in same.values():
        first = min(members, key=lambda op: op.elapse_s)
        whole = len({op.rank for op in members}) >= len(first.group_ranks) > 0
        whole = whole or first.op == "sendrecv"
        time_s = first.elapse_s if whole and first.op != "sendrecv" else first.link_s
        ranks = {"ranks": len(first.group_ranks)} if first.group_ranks else {}
        points.append(
            Point(
                kind="collective", op=first.op, dtype="unknown", mode="profile",
                sizes={"bytes": round(first.operation_bytes), **ranks},
                best_s=time_s, median_s=time_s, mark="" if whole else "transfer alone: not all ranks of the group",
                source=f"{first.name}, step {first.step}",
            )
        )  # fmt: skip
    return tuple(points)


def _leaves(data: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Operators and the keys that lead to them: step, kind and name; in the cluster's file also group and rank."""
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if isinstance(value, dict) and "Communication Time Info" in value:
            if not any("Total" in word for word in (*path, key)):
                yield (*path, key), value
        else:
            yield from _leaves(value, (*path, key))


def _operator(path: Sequence[str], info: Mapping[str, Any], rank: int | None) -> CommunicationOp:
    step = next((found[0] for word in path if word.startswith("step") and (found := re.search(r"\d+", word))), None)
    group_ranks = next((tuple(map(int, re.findall(r"\d+", word))) for word in path if word.startswith("(")), ())
    if len(path) > 1 and path[-1].isdigit():
        path, rank = path[:-1], int(path[-1])
    times = info["Communication Time Info"]
    operator, _, group = path[-1].partition("@")
    link, size, seconds, large = _link(info.get("Communication Bandwidth Info", {}))
    elapse, transit, wait = (
        number(times.get(key, 0.0)) * _MS for key in ("Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)")
    )
    start = number(times.get("Start Timestamp(us)"))
    return CommunicationOp(
        rank=rank, step=int(step) if step else None, op=operation(operator), name=operator, group=group,
        group_ranks=group_ranks, elapse_s=elapse, transit_s=transit, wait_s=wait,
        idle_s=max(0.0, elapse - transit - wait), size_bytes=size, link_s=seconds, link=link, large_packets_frac=large,
        start_s=start * 1e-6 if math.isfinite(start) else None,
    )  # fmt: skip


def _link(links: Mapping[str, Any]) -> tuple[str, float, float, float]:
    """Name, bytes, seconds and share of large packets of the link that carried most."""
    moved = {
        name: (number(link.get("Transit Size(MB)", 0)) * _MB, number(link.get("Transit Time(ms)", 0)) * _MS)
        for name, link in links.items()
        if isinstance(link, dict)
    }
    used = [name for name, (size, _) in moved.items() if size > 0]
    if not used:
        return "", 0.0, 0.0, math.nan
    name = max(used, key=lambda name: (name in FABRICS, moved[name][0]))
    return name, *moved[name], number(links[name].get("Large Packet Ratio"))


def _raw_operator(name: str, cell: Sequence[Any], step: int, rank: int | None) -> CommunicationOp:
    """One operator of hccl_raw: [step, communication ms, waiting ms, links]; a link is [ms, KB, KB/s]."""
    _, cost_ms, wait_ms, links = cell
    carried = [
        (sum(number(link[1]) for link in kinds.values()), sum(number(link[0]) for link in kinds.values()), kinds)
        for pair, kinds in links.items()
        if len(set(pair.split("-"))) == 2  # between two devices; 0-0 is a copy inside one
    ]
    kilobytes, ms, kinds = max(carried, default=(0.0, 0.0, {}), key=lambda item: item[0])
    return CommunicationOp(
        rank=rank, step=step, op=operation(name), name=name, elapse_s=(cost_ms + wait_ms) * _MS,
        transit_s=cost_ms * _MS, wait_s=wait_ms * _MS, size_bytes=kilobytes * 1e3, link_s=ms * _MS,
        link=next(iter(kinds), ""),
    )  # fmt: skip


def _embedded(cell: str, file: File, line: int) -> dict[str, Any]:
    try:
        found = json.loads(cell or "{}")
    except json.JSONDecodeError:
        raise SpecError(f"{file.path}, row {line}: communication_operator_cost is cut or damaged.") from None
    return found if isinstance(found, dict) else {}
