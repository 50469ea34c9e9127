"""Memory over time: memory_record.csv, npu_module_mem.csv and the CPU backend's record.

"MB" is 2^20 bytes in torch_npu's files and KiB / 1000 (1,024,000 bytes) in MindSpore's; msprof writes KB = 2^10 bytes,
the CPU backend bytes.

Sources: MindSpore 2.9, profiler/analysis (memory viewer divides KB by 1000); torch_npu, profiler/analysis; profiles of
both (a torch_npu value x 2^20 is a multiple of 512 bytes).
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from typing import Final

import numpy as np

from planner.errors import SpecError
from planner.observe.records import MemoryTrace, Observation
from planner.observe.run import FloatArray
from planner.observe.sanity import rising
from planner.observe.tables import Table
from planner.observe.text import File

#: Points kept of one component; the highest of each stretch.
MEMORY_POINTS: Final = 4096
_TIME_S: Final = {"us": 1e-6, "ns": 1e-9, "ms": 1e-3}
_BYTES: Final = {"byte": 1.0, "kb": 2.0**10, "mb": 2.0**20}
#: "MB" of a file in which the component MindSpore occurs [bytes].
MINDSPORE_MB: Final = 1000.0 * 2**10


def read_memory_record(file: File) -> Observation:
    """Traces by component."""
    table = Table(file)
    stamp = next(name for name in table.columns if name.startswith("timestamp("))
    reserved = next(name for name in table.columns if name.startswith("total_reserved("))
    allocated = next((name for name in table.columns if name.startswith("total_allocated(")), "")
    values: dict[str, array[float]] = defaultdict(lambda: array("d"))
    for row in table:
        values[row.text("component")].extend(
            (row.number(stamp), row.number(allocated) if allocated else float("nan"), row.number(reserved))
        )
    if not values:
        raise SpecError(f"{file.path}: a memory record without a row.")
    unit = _BYTES[_unit(reserved)]
    if unit == _BYTES["mb"] and any("MindSpore" in component for component in values):
        unit = MINDSPORE_MB
    found = re.search(r"record_(\d+)\.txt$", file.name)
    rank = int(found[1]) if found else file.rank
    second = _TIME_S.get(_unit(stamp), 1e-6)
    notes = list(table.notes)
    traces = []
    for name, numbers in values.items():
        time, used, held = np.frombuffer(numbers).reshape(-1, 3).T
        if len(time) > 2 and time[0] == time[-1] and used[0] != used[-1]:
            notes.append(f"{file.path.name}: stamps were rounded by a spreadsheet; only the peaks can be used.")
        component = name or ("CPU pool" if "ns" in stamp else "device")
        component = f"module {component}" if not allocated else component
        traces.append(_trace(rank, component, time * second, used * unit, held * unit))
    if any(rising(list(trace.time_s)) for trace in traces):
        notes.append(f"{file.path.name}: the clock steps back.")
    return Observation(
        kind="profile", source=file.path, format="memory_record.csv", memory=tuple(traces), notes=tuple(notes)
    )


def _trace(rank: int | None, component: str, time_s: FloatArray, used: FloatArray, held: FloatArray) -> MemoryTrace:
    """One trace, thinned to the highest point of each stretch."""
    order = np.argsort(time_s, kind="stable")
    time_s, used, held = time_s[order], used[order], held[order]
    height = np.nan_to_num(np.where(np.isnan(used), held, used), nan=-1.0)
    kept = np.arange(len(time_s))
    if len(kept) > MEMORY_POINTS:
        kept = np.array([part[np.argmax(height[part])] for part in np.array_split(kept, MEMORY_POINTS)])
    return MemoryTrace(
        rank=rank, component=component, time_s=time_s[kept], allocated_bytes=used[kept], reserved_bytes=held[kept],
        peak_allocated_bytes=_peak(used), peak_reserved_bytes=_peak(held),
    )  # fmt: skip


def _peak(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")


def _unit(column: str) -> str:
    """Unit in a column's brackets.

    >>> _unit("total_reserved(mb)")
    'mb'
    """
    return column.rsplit("(", 1)[-1].rstrip(")")
