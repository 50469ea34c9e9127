"""Tables that users write: (m, k, n, time) of operators, (op, bytes, ranks, time) of collectives, steps of runs.

The unit of a time stands in its column's name (time_us, time(ms), step_s); a time without unit is refused rather than
guessed.  Rows with NaN or with a rate that no device reaches are left out and counted; when all are impossible, the
unit is wrong and the table is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from planner.errors import CalibrationError, SpecError
from planner.observe.points import KINDS, Point
from planner.observe.records import Observation
from planner.observe.run import Run, empty_run
from planner.observe.sanity import (
    FASTEST_BYTES_PER_S,
    FASTEST_FLOP_PER_S,
    FASTEST_LINK_BYTES_PER_S,
    constant_time,
    impossible_rate,
)
from planner.observe.tables import Row, Table, header
from planner.observe.text import File

_UNITS: Final = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "μs": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TIME: Final = re.compile(
    r"^(?P<what>(?:median|mean|avg|average|min|best|p50|step|iteration|iter)?_?(?:time|duration|latency|elapsed|耗时|时间)?)"
    r"[_(\[（ ]*(?P<unit>s|sec|seconds|ms|us|μs|µs|ns)[)\]）]?$"
)
_BEST: Final = re.compile(r"^(?:min|best)")
_STEP: Final = ("step", "iteration", "iter", "global_step")
#: Columns of a table of steps: ours, others' names and the scale.
_RUN: Final[Mapping[str, tuple[tuple[str, float], ...]]] = {
    "loss": (("loss", 1.0), ("lm_loss", 1.0)),
    "grad_norm": (("grad_norm", 1.0), ("global_norm", 1.0)),
    "loss_scale": (("loss_scale", 1.0),),
    "learning_rate": (("learning_rate", 1.0), ("lr", 1.0)),
    "tokens_per_s": (("tokens_per_s", 1.0), ("tokens_per_second", 1.0), ("tokens/s", 1.0)),
    "samples_per_s": (("samples_per_s", 1.0),),
    "flop_per_s": (("flop_per_s", 1.0), ("tflops_per_npu", 1e12), ("tflops_per_gpu", 1e12), ("tflops", 1e12)),
    "mfu": (("mfu", 1.0),),
    "memory_bytes": (("memory_bytes", 1.0), ("memory_gib", 2.0**30), ("memory_mib", 2.0**20)),
    "data_s": (("data_s", 1.0), ("data_ms", 1e-3)),
    "tokens": (("tokens", 1.0),),
    "time_s": (("stamp_s", 1.0), ("timestamp", 1.0)),
}


def is_operator_table(file: File) -> bool:
    """Columns m, k, n, or bytes and an operation."""
    columns = set(header(file))
    return {"m", "k", "n"} <= columns or ({"bytes"} <= columns and bool(columns & {"op", "ranks", "kind"}))


def is_step_table(file: File) -> bool:
    """A column of step numbers and one of times, and nothing that names an operator."""
    columns = header(file)
    operators = {"name", "type", "op", "computing", "m"} & set(columns)
    return not operators and any(name in columns for name in _STEP) and any(_TIME.match(name) for name in columns)


def is_json_lines(file: File) -> bool:
    """A ledger: one JSON record a line, with a step."""
    first = next((line for line in file.head.splitlines() if line.strip()), "")
    return (
        first.startswith("{") and first.rstrip().endswith("}") and re.search(r'"(global_)?step"\s*:', first) is not None
    )


def read_operator_table(file: File) -> Observation:
    """Points, one for every combination of sizes; repeated rows are repeats.

    Raises
    ------
    CalibrationError
        No unit, no usable row, or times that no device reaches.
    """
    table = Table(file)
    column, scale = _time_column(file, table.columns)
    rows: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    bad, fast = 0, 0
    for row in table:
        time_s = row.number(column) * scale
        sizes = _sizes(row)
        if not sizes or not 0.0 < time_s < math.inf:
            bad += 1
        elif impossible_rate(*_work(row, sizes, time_s)):
            fast += 1
        else:
            rows[row.text("kind"), row.text("op"), row.text("dtype"), tuple(sizes.items())].append(time_s)
    if not rows:
        why = (
            f"all {fast} rows are faster than any device; is the unit of '{column}' right?"
            if fast
            else "no usable row."
        )
        raise CalibrationError(f"{file.path}: {why}")
    work = [math.prod(size for _, size in key[3]) for key in rows]
    constant_time(work, [float(np.median(times_s)) for times_s in rows.values()], str(file.path))
    notes = [f"{bad} row(s) without a number were left out."] if bad else []
    if fast:
        notes.append(f"{fast} row(s) faster than any device were left out.")
    return Observation(
        kind="table of times", source=file.path, format="table of operators", notes=(*table.notes, *notes),
        points=tuple(_point(file, key, times_s) for key, times_s in rows.items()),
    )  # fmt: skip


def read_tuner_table(file: File) -> Observation:
    """Points of the HCCL tuner (cann hccl prof): of the algorithms of an operation and size the fastest counts."""
    table = Table(file)
    best: dict[tuple[str, str, int, int, int], float] = {}
    for row in table:
        size, ranks, nodes = (row.whole(name) for name in ("size_bytes", "ranks.ranks", "ranks.servers"))
        time_s = row.number("alg_latency(us)") * 1e-6
        if size and ranks and 0.0 < time_s < math.inf and row.text("check_result").lower() not in ("failed", "false"):
            key = (row.text("type").lower().replace("_", ""), row.text("data_type").lower(), size, ranks, nodes or 1)
            best[key] = min(best.get(key, math.inf), time_s)
    if not best:
        raise CalibrationError(f"{file.path}: no usable row of the HCCL tuner.")
    points = tuple(
        Point(
            kind="collective", op=op, dtype=dtype or "unknown", mode="hccl_test",
            sizes={"bytes": size, "ranks": ranks, "nodes": nodes}, best_s=time_s, median_s=time_s,
            source=file.path.name,
        )
        for (op, dtype, size, ranks, nodes), time_s in best.items()
    )  # fmt: skip
    return Observation(
        kind="collective test", source=file.path, format="HCCL tuner", points=points, notes=tuple(table.notes)
    )


def read_step_table(file: File) -> Observation:
    """Runs, one for every combination of the text columns beside the numbers."""
    table = Table(file)
    time, scale = _time_column(file, table.columns)
    step = next(name for name in _STEP if name in table.columns)
    numbers = {time, step} | {name for names in _RUN.values() for name, _ in names}
    names = [name for name in table.columns if name not in numbers]
    runs: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in table:
        runs[tuple(row.text(name) for name in names)].append(row)
    if not runs:
        raise SpecError(f"{file.path}: a table of steps without a row.")
    found = []
    for key, rows in runs.items():
        steps = [row.number(step) for row in rows]
        times = [row.number(time) * scale for row in rows]
        columns = {
            ours: [row.number(name) * by for row in rows]
            for ours, theirs in _RUN.items()
            for name, by in theirs
            if name in table.columns
        }
        source = f"{file.path.name}: {', '.join(word for word in key if word)}" if any(key) else str(file.path)
        found.append(_run("table", source, steps, times, columns))
    return Observation(
        kind="training log", source=file.path, format="table of steps", runs=tuple(found), notes=tuple(table.notes)
    )


def read_json_lines(file: File) -> Observation:
    """A ledger such as the monitor writes: one run."""
    steps: list[float] = []
    times: list[float] = []
    columns: dict[str, list[float]] = defaultdict(list)
    bad, rank = 0, None
    for line in file.text_lines():
        try:
            record = json.loads(line) if line.strip() else None
        except ValueError:
            bad += 1
            continue
        if not isinstance(record, dict) or not any(name in record for name in _STEP):
            continue
        rank = record.get("rank", rank)
        steps.append(_value(record, [(name, 1.0) for name in _STEP]))
        times.append(_value(record, [("step_s", 1.0), ("step_time_s", 1.0), ("step_ms", 1e-3), ("time_ms", 1e-3)]))
        for ours, theirs in _RUN.items():
            columns[ours].append(_value(record, theirs))
    if not steps:
        raise SpecError(f"{file.path}: no line of the ledger is whole.")
    notes = (
        (f"{bad} line(s) that are no JSON were left out: a line in the middle of being written, or damage.",)
        if bad
        else ()
    )
    run = _run("planner", str(file.path), steps, times, columns, rank if isinstance(rank, int) else file.rank)
    return Observation(kind="ledger", source=file.path, format="JSON lines", runs=(run,), notes=notes)


def _run(
    framework: str, source: str, steps: Sequence[float], times: Sequence[float],
    columns: Mapping[str, Sequence[float]], rank: int | None = None,
) -> Run:  # fmt: skip
    """A run of columns; those not given are NaN."""
    known = {name: np.array(values, float) for name, values in columns.items()}
    return empty_run(
        len(steps), framework=framework, source=source, rank=rank,
        step=np.nan_to_num(np.array(steps)).astype(np.int64), step_s=np.array(times, float), **known,
    )  # fmt: skip


def _value(record: Mapping[str, Any], names: Iterable[tuple[str, float]]) -> float:
    for name, scale in names:
        if isinstance(value := record.get(name), (int, float)):
            return float(value) * scale
    return math.nan


def _time_column(file: File, columns: Sequence[str]) -> tuple[str, float]:
    """Column of the time and its unit in seconds."""
    found = [(name, match["unit"]) for name in columns if (match := _TIME.match(name))]
    found = [(name, unit) for name, unit in found if name not in ("s",) or len(found) == 1]
    plain = [name for name in columns if re.match(r"(time|duration|latency|step_time|elapsed|耗时|时间)$", name)]
    if not found:
        asked = f"column '{plain[0]}' has no unit" if plain else "no column of times"
        raise CalibrationError(f"{file.path}: {asked}; name it time_s, time_ms or time_us.")
    name, unit = found[0]
    return name, _UNITS[unit]


def _sizes(row: Row) -> dict[str, int]:
    names = ("groups", "batch", "m", "k", "n", "bytes", "ranks", "nodes")
    sizes = {name: size for name in names if (size := row.whole(name)) is not None and size > 0}
    return sizes if {"m", "k", "n"} <= set(sizes) or "bytes" in sizes else {}


def _work(row: Row, sizes: Mapping[str, int], time_s: float) -> tuple[float, float, float]:
    """Work, its time and the fastest rate that a device could have."""
    if "bytes" in sizes:
        return float(sizes["bytes"]), time_s, FASTEST_LINK_BYTES_PER_S if "ranks" in sizes else FASTEST_BYTES_PER_S
    products = 2.0 * sizes["m"] * sizes["k"] * sizes["n"] * sizes.get("groups", 1) * sizes.get("batch", 1)
    return products, time_s, FASTEST_FLOP_PER_S


def _point(file: File, key: tuple[Any, ...], times_s: Sequence[float]) -> Point:
    kind, op, dtype, items = key
    sizes = dict(items)
    if kind not in KINDS:
        kind = "collective" if "ranks" in sizes else "copy" if "bytes" in sizes else "matmul"
        kind = "grouped_matmul" if "groups" in sizes else kind
    low, middle, high = np.percentile(times_s, (16.0, 50.0, 84.0))
    return Point(
        kind=kind, op=op.lower() or kind, dtype=dtype.lower() or "unknown", mode="csv", sizes=sizes,
        best_s=min(times_s), median_s=float(middle), spread_s=float(high - low) / 2.0, repeats=len(times_s),
        mark="" if dtype else "type unknown", source=file.path.name,
    )  # fmt: skip
