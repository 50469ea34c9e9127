"""The same profiles as SQLite databases: analysis.db, communication_analyzer.db, cluster_analysis.db.

The documents give StepTraceTime in ms, yet torch_npu 2.7.1 writes us into it.  The unit is decided by the operators'
own times, which are ms in every release, and without them by size.

Sources: Ascend/pytorch and Ascend/msprof-analyze (tables); a profile of torch_npu 2.7.1 (unit).
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from planner.errors import SpecError
from planner.observe.communication import FABRICS, operation
from planner.observe.records import INVARIANT_FRAC, CommunicationOp, Observation, StepTrace
from planner.observe.step_tables import BROKEN
from planner.observe.text import File, number, whole

MAGIC: Final = b"SQLite format 3\0"
_MS, _US, _MB = 1e-3, 1e-6, 1e6
#: A step of more than this in ms would take 100 s.
_LONGEST_MS: Final = 1e5
_STEPS: Final = ("StepTraceTime", "ClusterStepTraceTime")
_TIMES: Final = ("CommAnalyzerTime", "ClusterCommunicationTime", "ClusterCommAnalyzerTime")
_LINKS: Final = ("CommAnalyzerBandwidth", "ClusterCommunicationBandwidth", "ClusterCommAnalyzerBandwidth")


def is_database(file: File) -> bool:
    """Whether it is an SQLite database."""
    return file.raw_head.startswith(MAGIC)


def read_database(file: File) -> Observation:
    """Steps and communication operators of one rank, or of a cluster."""
    try:
        connection = sqlite3.connect(f"{file.path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            connection.row_factory = sqlite3.Row
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            ops = list(_operators(connection, tables, file.rank))
            steps = list(_steps(connection, tables, file.rank))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise SpecError(f"{file.path} is a damaged database: {error}.") from None
    if not ops and not steps:
        raise SpecError(f"{file.path}: a database without {', '.join((*_STEPS, *_TIMES))}.")
    unit, note = _unit(steps, ops)
    return Observation(
        kind="cluster summary" if any(name.startswith("Cluster") for name in tables) else "profile",
        source=file.path, format="analysis.db", communication=tuple(ops), notes=(note,) if note else (),
        steps=tuple(_scaled(step, unit) for step in steps),
    )  # fmt: skip


def _rows(connection: sqlite3.Connection, tables: set[str], names: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Rows of the first table that exists, by column in lower case."""
    name = next((name for name in names if name in tables), None)
    if name is not None:
        for row in connection.execute(f'SELECT * FROM "{name}"'):
            yield {key.lower(): row[key] for key in row.keys()}  # noqa: SIM118 - a Row iterates over values


def _steps(connection: sqlite3.Connection, tables: set[str], rank: int | None) -> Iterator[StepTrace]:
    """Rows in the unit of the file."""
    for row in _rows(connection, tables, _STEPS):
        value = {key: number(row.get(key)) for key in ("free", "overlapped", "stage", "bubble", "preparing")}
        known = {f"{key}_s": None if math.isnan(one) else one for key, one in value.items()}
        members = tuple(int(word) for word in re.findall(r"\d+", str(row.get("index", ""))))
        of_stage = str(row.get("type", "")).lower() == "stage"
        yield StepTrace(
            rank=members[0] if members and not of_stage else rank, device=whole(row.get("deviceid")),
            step=_step(row.get("step")), stage=whole(row.get("pp_index")), compute_s=number(row.get("computing")),
            exposed_s=number(row.get("communication_not_overlapped")), ranks=members if of_stage else (),
            mark="maximum over ranks" if of_stage else "", source="StepTraceTime", **known,
        )  # fmt: skip


def _operators(connection: sqlite3.Connection, tables: set[str], rank: int | None) -> Iterator[CommunicationOp]:
    links: dict[tuple[Any, ...], tuple[bool, str, float, float, float]] = {}
    for row in _rows(connection, tables, _LINKS):
        name = str(row.get("transport_type") or row.get("band_type") or "")
        found = (
            name in FABRICS, name, number(row.get("transit_size")) * _MB, number(row.get("transit_time")) * _MS,
            number(row.get("large_packet_ratio")),
        )  # fmt: skip
        key = _key(row)
        if found[2] > 0 and (key not in links or (found[0], found[2]) > (links[key][0], links[key][2])):
            links[key] = found
    for row in _rows(connection, tables, _TIMES):
        name = str(row.get("hccl_op_name", ""))
        if "Total" in name:
            continue
        _, link, size, seconds, large = links.get(_key(row), (False, "", 0.0, 0.0, math.nan))
        elapse = number(row.get("elapse_time", row.get("elapsed_time"))) * _MS
        transit, wait = number(row.get("transit_time")) * _MS, number(row.get("wait_time")) * _MS
        start = number(row.get("start_timestamp")) * _US
        yield CommunicationOp(
            rank=rank if row.get("rank_id") is None else whole(row["rank_id"]), step=_step(row.get("step")),
            op=operation(name), name=name.partition("@")[0], group=str(row.get("group_name", "")), elapse_s=elapse,
            transit_s=transit, wait_s=wait, idle_s=max(0.0, elapse - transit - wait), size_bytes=size, link_s=seconds,
            link=link, large_packets_frac=large, start_s=None if math.isnan(start) else start,
        )  # fmt: skip


def _unit(steps: list[StepTrace], ops: list[CommunicationOp]) -> tuple[float, str]:
    """Seconds of one unit of the step table, and a word when it is not the documented one."""
    longest = max((step.step_s for step in steps), default=0.0)
    elapsed = sum(op.elapse_s for op in ops if op.step == steps[0].step and op.rank == steps[0].rank) if steps else 0.0
    told = (steps[0].exposed_s or 0.0) + (steps[0].overlapped_s or 0.0) if steps else 0.0
    is_us = abs(math.log(told * _US / elapsed)) < abs(math.log(told * _MS / elapsed)) if elapsed and told else (
        longest > _LONGEST_MS
    )  # fmt: skip
    return (_US, "StepTraceTime is in us, although documented in ms.") if is_us else (_MS, "")


def _scaled(step: StepTrace, unit: float) -> StepTrace:
    names = ("compute_s", "exposed_s", "overlapped_s", "free_s", "stage_s", "bubble_s", "preparing_s")
    found = {name: value * unit for name in names if (value := getattr(step, name)) is not None}
    scaled = replace(step, **found)
    share = scaled.invariant_frac
    return replace(scaled, mark=BROKEN) if share is not None and share > INVARIANT_FRAC else scaled


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("rank_id"), row.get("step"), row.get("hccl_op_name"), row.get("group_name")


def _step(cell: Any) -> int | None:
    found = re.search(r"\d+", str(cell if cell is not None else ""))
    return int(found[0]) if found else None
