"""Kernels: kernel_details.csv, op_summary, op_statistic, task_time, and the old aicore and CPU tables.

Tables of single kernels are summed by type while they are read; products of two matrices whose shapes leave no doubt
become points (m, k, n).

Sources: MindSpore 2.9, profiler; Ascend/msprof, docs/en/user_guide/profile_data_file_references.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.errors import SpecError
from planner.observe.points import Point
from planner.observe.records import KernelStat, Observation
from planner.observe.sanity import FASTEST_FLOP_PER_S, impossible_rate
from planner.observe.tables import Row, Table
from planner.observe.text import File

_US: Final = 1e-6
_MS: Final = 1e-3
#: Spellings of "this row is communication" in the column Accelerator Core.
COMMUNICATION: Final = frozenset(("COMMUNICATION", "HCCL"))
_MATMULS: Final = frozenset(("matmul", "matmulv2", "matmulv3", "mm", "matmulcommon", "batchmatmul", "batchmatmulv2"))
_TYPES: Final = {
    "dt_bf16": "bfloat16", "bf16": "bfloat16", "bfloat16": "bfloat16", "float16": "float16", "dt_float16": "float16",
    "float": "float32", "dt_float": "float32", "float32": "float32",
}  # fmt: skip
#: Kernels shorter than this tell the launch, not the rate [s].
_SHORTEST_S: Final = 5e-6


@dataclass
class _Sums:
    """Counts and times by key, while a table is read."""

    count: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    total: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    least: dict[tuple[str, str], float] = field(default_factory=dict)
    most: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, key: tuple[str, str], time_s: float) -> None:
        self.count[key] += 1
        self.total[key] += time_s
        self.least[key] = min(self.least.get(key, math.inf), time_s)
        self.most[key] = max(self.most.get(key, 0.0), time_s)

    def stats(self, rank: int | None) -> tuple[KernelStat, ...]:
        return tuple(
            KernelStat(
                rank=rank, op=key[0], core=key[1], count=self.count[key], total_s=self.total[key],
                least_s=self.least[key], most_s=self.most[key],
            )
            for key in sorted(self.total, key=lambda key: -self.total[key])
        )  # fmt: skip


def read_kernel_table(file: File) -> Observation:
    """Kernels of one rank, summed by type and core; matrix products as points."""
    table, sums = Table(file), _Sums()
    products: dict[tuple[str, str, int, int, int], list[float]] = defaultdict(list)
    doubtful = 0
    for row in table:
        time_s = row.number("duration(us)") * _US
        if not 0.0 <= time_s < math.inf:
            doubtful += 1
            continue
        core = row.text("accelerator_core").upper()
        core = "COMMUNICATION" if core in COMMUNICATION else core
        op = row.text("type") or row.text("name").rsplit("/", 1)[-1]
        sums.add((op, core), time_s)
        if op.lower() in _MATMULS and (key := _product(row)) is not None:
            if impossible_rate(_flop(key), time_s, FASTEST_FLOP_PER_S):
                doubtful += 1
            elif time_s >= _SHORTEST_S:
                products[key].append(time_s)
    if not sums.total:
        raise SpecError(f"{file.path}: a kernel table without a row.")
    form = "op_summary.csv" if "op_summary" in file.name else "kernel_details.csv"
    notes = [f"{file.path.name}: {doubtful} rows with impossible times were left out."] if doubtful else []
    missing: tuple[str, ...] = ()
    if "input_shapes" not in table.columns:
        missing = (f"{file.path.name} has no shapes (profiler level 0): no rates of single operators.",)
    return Observation(
        kind="profile", source=file.path, format=form, kernels=sums.stats(file.rank),
        points=_points(products, file), notes=(*table.notes, *notes), missing=missing,
    )  # fmt: skip


def read_op_statistic(file: File) -> Observation:
    """Types of one rank."""
    table = Table(file)
    plain = "" if "accelerator_core" in table.columns else "COMMUNICATION"
    return _observation(file, "op_statistic.csv", table, (
        KernelStat(
            rank=file.rank, op=row.text("type"), core=row.text("accelerator_core") or plain,
            count=row.whole("count") or 0, total_s=row.number("total_time(us)") * _US,
            least_s=row.number("min_time(us)", "min(us)") * _US, most_s=row.number("max_time(us)", "max(us)") * _US,
        )
        for row in table
    ))  # fmt: skip


def read_task_time(file: File) -> Observation:
    """Tasks of one device, summed by name and kind."""
    table, sums = Table(file), _Sums()
    for row in table:
        sums.add(
            (row.text("kernel_name") or row.text("kernel_type"), row.text("kernel_type")),
            row.number("task_time(us)") * _US,
        )
    return _observation(file, "task_time.csv", table, sums.stats(file.rank))


def read_api_statistic(file: File) -> Observation:
    """Calls on the host, by level and name."""
    table = Table(file)
    calls = tuple(
        KernelStat(
            rank=file.rank, op=row.text("api_name"), core=row.text("level"), count=row.whole("count") or 0,
            total_s=row.number("time(us)") * _US, least_s=row.number("min(us)") * _US,
            most_s=row.number("max(us)") * _US,
        )
        for row in table
    )  # fmt: skip
    return Observation(
        kind="profile", source=file.path, format="api_statistic.csv", host=calls, notes=tuple(table.notes)
    )


def read_aicore_type(file: File) -> Observation:
    """Types of one rank, in ms."""
    table = Table(file)
    return _observation(file, "aicore_intermediate.csv", table, (
        KernelStat(
            rank=_id(file), op=row.text("kernel_type"), core="AI_CORE", count=row.whole("execution_frequency") or 0,
            total_s=row.number("total_time", "task_time") * _MS,
        )
        for row in table
    ))  # fmt: skip


def read_aicore_detail(file: File) -> Observation:
    """Operators of one rank, in ms, summed by type (the name's last part without its number)."""
    table, sums = Table(file), _Sums()
    for row in table:
        op = row.text(table.columns[0]).rsplit("/", 1)[-1].split("-op")[0]
        sums.add((op, "AI_CORE"), row.number("execution_time") * _MS)
    return _observation(file, "aicore_intermediate.csv", table, sums.stats(_id(file)))


def read_cpu_type(file: File) -> Observation:
    """Types on the CPU backend, in ms."""
    table = Table(file)
    return _observation(file, "cpu_op_type_info.csv", table, (
        KernelStat(
            rank=_id(file), op=row.text("type"), core="CPU", count=row.whole("type_occurrences") or 0,
            total_s=row.number("total_compute_time") * _MS,
        )
        for row in table
    ))  # fmt: skip


def _observation(file: File, form: str, table: Table, stats: Iterable[KernelStat]) -> Observation:
    found = tuple(stat for stat in stats if stat.op and stat.total_s >= 0.0)
    if not found:
        raise SpecError(f"{file.path}: a table of operators without a row.")
    return Observation(kind="profile", source=file.path, format=form, kernels=found, notes=tuple(table.notes))


def _product(row: Row) -> tuple[str, str, int, int, int] | None:
    """Type, operation and m, k, n of a matrix product; None where shapes do not settle them."""
    left, right = (_shape(text) for text in (row.text("input_shapes").split(";") + ["", ""])[:2])
    out = _shape(row.text("output_shapes").split(";")[0])
    dtype = _TYPES.get(row.text("input_data_types").split(";")[0].lower())
    if dtype is None or len(left) != 2 or len(right) != 2:
        return None
    sizes = _mkn(left, right, out)
    return (dtype, "matmul", *sizes) if sizes else None


def _mkn(left: Sequence[int], right: Sequence[int], out: Sequence[int]) -> tuple[int, int, int] | None:
    """m, k, n of a product of two matrices, either of which may be stored transposed.

    >>> _mkn((4096, 1024), (151936, 1024), ()), _mkn((8, 4), (4, 8), ()), _mkn((8, 4), (4, 8), (8, 8))
    ((4096, 1024, 151936), None, (8, 4, 8))
    """
    found = {
        (m, k, n)
        for m, k in (tuple(left), tuple(left)[::-1])
        for k2, n in (tuple(right), tuple(right)[::-1])
        if k == k2 and (len(out) != 2 or (m, n) == tuple(out))
    }
    return found.pop() if len(found) == 1 else None


def _shape(text: str) -> tuple[int, ...]:
    words = text.strip().strip('"').split(",")
    return tuple(int(word) for word in words) if all(word.strip().isdigit() for word in words) else ()


def _flop(key: tuple[str, str, int, int, int]) -> float:
    return 2.0 * key[2] * key[3] * key[4]


def _points(products: Mapping[tuple[str, str, int, int, int], Sequence[float]], file: File) -> tuple[Point, ...]:
    points = []
    for (dtype, op, m, k, n), times_s in products.items():
        low, middle, high = np.percentile(times_s, (16.0, 50.0, 84.0))
        points.append(
            Point(
                kind="matmul", op=op, dtype=dtype, mode="profile", sizes={"m": m, "k": k, "n": n},
                best_s=min(times_s), median_s=float(middle), spread_s=float(high - low) / 2.0, repeats=len(times_s),
                source=f"{file.path.name}, rank {file.rank}",
            )
        )  # fmt: skip
    return tuple(points)


def _id(file: File) -> int | None:
    digits = [word for word in file.path.stem.split("_") if word.isdigit()]
    return int(digits[-1]) if digits else file.rank
