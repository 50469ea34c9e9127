"""Logs of hccl_test and nccl-tests: seconds of a collective over its size.

The time and size columns are read; the printed bandwidth only tells whether that build divided by 2^30 (older hccl_test
builds do, under a header that says GB/s).  The output of hccl_test names neither the operation nor the ranks: they come
from the command line when the log holds it, from a record beside the log (``<log>.json`` with ``op``, ``ranks``,
``nodes``, ``dtype``), or from the file's name, in this order.

Sources: hicann/oam-tools, src/hccl_test and docs/zh/hccl_test (grammar); NVIDIA/nccl-tests, src/util.cu and
src/common.cu.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from planner.errors import CalibrationError
from planner.observe.points import Point
from planner.observe.records import Observation
from planner.observe.sanity import constant_time
from planner.observe.text import File, number

#: Words of the operation as binaries and files spell it; longer ones first.
_OPS: Final = (
    ("reduce_scatter", "reducescatter"), ("reducescatter", "reducescatter"), ("all_gather", "allgather"),
    ("allgather", "allgather"), ("all_reduce", "allreduce"), ("allreduce", "allreduce"), ("alltoall", "alltoall"),
    ("all_to_all", "alltoall"), ("broadcast", "broadcast"), ("sendrecv", "sendrecv"), ("send_recv", "sendrecv"),
    ("scatter", "scatter"), ("gather", "gather"), ("reduce", "reduce"),
)  # fmt: skip
_TYPES: Final = {
    "fp32": "float32", "float": "float32", "float32": "float32", "fp16": "float16", "half": "float16",
    "float16": "float16", "bfp16": "bfloat16", "bf16": "bfloat16", "bfloat16": "bfloat16", "int8": "int8",
    "int32": "int32", "int64": "int64", "double": "float64", "float64": "float64", "fp64": "float64",
}  # fmt: skip
_ROW: Final = re.compile(r"^\s*(\d+)\s*\|\s*([\d.]+|nan|inf)\s*\|\s*([\d.]+|nan|inf)\s*\|\s*(\w+)", re.I)
_PREAMBLE: Final = re.compile(r"iters\s+is\s+(\d+)(?:,\s*warmup_iters\s+is\s+(\d+))?")
_COMMAND: Final = re.compile(r"\w_(?:test|perf)\b.*\s-\w")
#: Nodes of this many cards are taken where a log of no more ranks does not say (Atlas 800T A2, DGX).
DEVICES_PER_NODE: Final = 8
#: Both programs' own default (-d fp32, -d float).
DEFAULT_TYPE: Final = "float32"
_FAILURES: Final = (
    "hccl interface return err", "HcclGetRootInfo failed", "received invalid data from root",
    "Alloc memory size is larger", "gethostbyname failed", "orted", "Connection refused", "Permission denied",
    "check result failed", "Test NCCL failure", "NCCL WARN",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a test ran, as far as anything tells."""

    op: str = ""
    ranks: int | None = None
    nodes: int | None = None
    dtype: str = ""

    def completed(self, other: Setting) -> Setting:
        """Holes filled from another."""
        return Setting(
            op=self.op or other.op,
            ranks=self.ranks or other.ranks,
            nodes=self.nodes or other.nodes,
            dtype=self.dtype or other.dtype,
        )


def is_hccl_test(file: File) -> bool:
    """Whether the header of hccl_test is in the head."""
    return "data_size(Bytes)" in file.head or ("the minbytes is" in file.head and "warmup_iters" in file.head)


def is_nccl_tests(file: File) -> bool:
    """Whether the header of nccl-tests is in the head."""
    return "algbw" in file.head and "busbw" in file.head


@dataclass
class _Reading:
    """Rows of a test while its log is read."""

    path: Path
    rows: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    setting: Setting = field(default_factory=Setting)
    iterations: int = 20

    def row(self, size: int, time_us: float) -> None:
        """Keep the slowest of several rows a size: one row a rank group."""
        if size > 0 and 0.0 < time_us < math.inf:
            self.rows[size] = max(self.rows.get(size, 0.0), time_us * 1e-6)

    def other(self, line: str) -> None:
        """A line that is no row: a command, or a failure."""
        if _COMMAND.search(line):
            self.setting = self.setting.completed(_command(line))
        elif (word := next((word for word in _FAILURES if word in line), None)) is not None:
            self.notes.append(f"the log reports a failure ({word}): {line.strip()[:160]}")

    def finished(self, what: str) -> None:
        """Refuse a log without a row."""
        if not self.rows:
            why = self.notes[0] if self.notes else "The test ended before its first size."
            raise CalibrationError(f"{self.path}: no finished row of {what}. {why}")


def read_hccl_test(file: File) -> Observation:
    """Points of one or several tables of hccl_test.

    Raises
    ------
    CalibrationError
        No row, or times that cannot be measurements.
    """
    log, ratios = _Reading(file.path), []
    for line in file.text_lines():
        if found := _ROW.match(line):
            size, time_us, rate = int(found[1]), float(found[2]), float(found[3])
            if found[4].lower() == "failed":
                log.notes.append(f"{size} bytes: the test's own check failed; the row was left out.")
                continue
            log.row(size, time_us)
            if time_us > 0 and size / time_us > 50.0:  # below, five printed decimals are too few
                ratios.append(rate * 1e9 / (size / (time_us * 1e-6)))
        elif found := _PREAMBLE.search(line):
            log.iterations = int(found[1])
        else:
            log.other(line)
    log.finished("hccl_test (size | time | bandwidth | success)")
    if ratios and abs(median(ratios) - 1e9 / 2**30) < 0.01:
        log.notes.append("the printed bandwidth is in GiB/s although its header says GB/s; size and time were used.")
    log.setting = log.setting.completed(_beside(file)).completed(_from_name(file.path.name))
    return _observation(log, "hccl_test", "hccl_test")


def read_nccl_tests(file: File) -> Observation:
    """Points of nccl-tests, out of place.

    Raises
    ------
    CalibrationError
        No row, or times that cannot be measurements.
    """
    log, hosts, ranks, at = _Reading(file.path), set(), [], 0
    ratio, dtype = 0.0, ""
    for line in file.text_lines():
        cells = line.split()
        if line.lstrip().startswith("#"):
            if found := re.search(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)", line):
                ranks.append(int(found[1]))
                hosts.add(found[2])
            elif found := re.search(r"(?<!warmup )(?<!agg )iters:?\s+(\d+)", line):
                log.iterations = int(found[1])
            elif "time" in cells and "algbw" in cells:
                at = cells.index("time") - 1  # the comment mark is a cell of its own
        elif at and len(cells) > at + 2 and cells[0].isdigit():
            log.row(int(cells[0]), number(cells[at]))
            ratio, dtype = number(cells[at + 2]) / max(number(cells[at + 1]), 1e-9), cells[2].lower()
        else:
            log.other(line)
    log.finished("nccl-tests")
    if (times := ranks.count(0)) > 1:
        raise CalibrationError(
            f"{file.path}: rank 0 is listed {times} times: {times} tests of {len(set(ranks))} rank(s), not one of all. "
            "Build nccl-tests with MPI=1."
        )
    seen = Setting(ranks=len(ranks) or None, nodes=len(hosts) or None, dtype=_TYPES.get(dtype, dtype))
    log.setting = seen.completed(_beside(file)).completed(log.setting).completed(_from_name(file.path.name))
    log.setting = log.setting.completed(_by_ratio(ratio, len(ranks)))
    return _observation(log, "nccl-tests", "nccl_test")


def _observation(log: _Reading, form: str, mode: str) -> Observation:
    """The record of a test; checks that the times are measurements."""
    setting, name = log.setting, log.path.name
    constant_time(list(log.rows), list(log.rows.values()), str(log.path))
    missing = [word for word, value in (("operation", setting.op), ("number of ranks", setting.ranks)) if not value]
    if setting.ranks and not setting.nodes and setting.ranks <= DEVICES_PER_NODE:
        setting = replace(setting, nodes=1)
        log.notes.append(f"nodes are not stated; {setting.ranks} ranks were taken to be in one node.")
    known = {key: size for key, size in (("ranks", setting.ranks), ("nodes", setting.nodes)) if size}
    points = tuple(
        Point(
            kind="collective", op=setting.op or "unknown", dtype=setting.dtype or DEFAULT_TYPE, mode=mode,
            sizes={"bytes": size, **known}, best_s=time_s, median_s=time_s, repeats=log.iterations,
            mark=f"{' and '.join(missing)} unknown" if missing else "", source=f"{name}: {size} bytes",
        )
        for size, time_s in sorted(log.rows.items())
    )  # fmt: skip
    return Observation(
        kind="collective test", source=log.path, format=form, points=points, notes=tuple(log.notes),
        facts={"iterations": str(log.iterations)},
        missing=tuple(
            f"{word}: not in the log; put it into the file's name (all_reduce_8npu.log) or into "
            f'{name}.json as {{"op": "allreduce", "ranks": 8, "nodes": 1}}.'
            for word in missing
        ),
    )  # fmt: skip


def _command(line: str) -> Setting:
    """Setting from a command line that is in the log."""
    count = re.search(r"\s-(?:n|np)\s+(\d+)\s.*(?:_test|_perf)", line)
    here = re.search(r"(?:_test|_perf)\b.*\s-p\s+(\d+)", line)
    dtype = re.search(r"(?:_test|_perf)\b.*\s-d\s+(\w+)", line)
    binary = re.search(r"(\w+?)_(?:test|perf)\b", line)
    ranks = int(count[1]) if count else None
    return Setting(
        op=_op(binary[1]) if binary else "",
        ranks=ranks,
        nodes=-(-ranks // int(here[1])) if ranks and here else None,
        dtype=_TYPES.get(dtype[1].lower(), "") if dtype else "",
    )


def _from_name(name: str) -> Setting:
    """Setting from a file's name such as ``all_reduce_2node_16npu_fp16.log``."""
    ranks = re.search(r"(?<![\d.])(\d+)_?(?:npu|card|rank|gpu|device|p(?=[_.-]))", name.lower())
    nodes = re.search(r"(?<![\d.])(\d+)_?(?:node|server|host)", name.lower())
    dtype = re.search(r"(?<![a-z])(fp32|fp16|bf16|bfp16|int8|float16|float32|bfloat16)(?![a-z0-9])", name.lower())
    return Setting(
        op=_op(name.lower()),
        ranks=int(ranks[1]) if ranks else None,
        nodes=int(nodes[1]) if nodes else None,
        dtype=_TYPES[dtype[1]] if dtype else "",
    )


def _beside(file: File) -> Setting:
    """Setting from the record beside the log."""
    path = file.path.with_name(file.path.name + ".json")
    if not path.is_file():
        return Setting()
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Setting(
            op=_op(str(said.get("op", ""))),
            ranks=int(said.get("ranks", said.get("p", 0))) or None,
            nodes=int(said.get("nodes", 0)) or None,
            dtype=_TYPES.get(str(said.get("dtype", "")).lower(), ""),
        )
    except (ValueError, TypeError, AttributeError):
        raise CalibrationError(
            f'{path} is not a record of a test; write it like {{"op": "allreduce", "ranks": 8, "nodes": 1}}.'
        ) from None


def _by_ratio(ratio: float, ranks: int) -> Setting:
    """All-reduce shows as bus over algorithm bandwidth 2 (p - 1)/p; other operations share theirs."""
    return Setting(op="allreduce" if ranks > 1 and abs(ratio - 2.0 * (ranks - 1) / ranks) < 0.01 else "")


def _op(word: str) -> str:
    return next((op for part, op in _OPS if part in word.replace("-", "_").lower()), "")
