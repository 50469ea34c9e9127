"""Steps out of single events: what there is when no step table was written.

The CPU backend of MindSpore writes no table, and a trace alone may be all that is left.  Steps are the windows of
ProfilerStep events; without them, an operator that runs once a step tells where steps begin.

Sources: MindSpore 2.9 on the CPU (files as written); torch_npu and MindSpore, trace_view.json ("Overlap Analysis").
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from planner.errors import SpecError
from planner.observe.records import Observation, StepTrace
from planner.observe.run import FloatArray
from planner.observe.text import File, number

#: A trace above this is not loaded for want of a step table [bytes].
TRACE_BYTES: Final = 400 * 2**20
_US, _MS, _NS = 1e-6, 1e-3, 1e-9
_OVERLAP: Final = {
    "Computing": "compute", "Communication(Not Overlapped)": "exposed", "Communication": "communication",
    "Free": "free",
}  # fmt: skip

#: Start and length [s] of the events of one name.
Spans = Mapping[str, Sequence[tuple[float, float]]]


def is_execute_timestamp(file: File) -> bool:
    """cpu_op_execute_timestamp_{id}.txt of MindSpore 2.3+."""
    first = next((line for line in file.head.splitlines() if line.strip()), "")
    return re.match(r"[^;]+;\w+;\d+,[\d.eE+-]+,\d+( |$)", first) is not None


def is_trace(file: File) -> bool:
    """trace_view.json and its kin."""
    head = file.head[:4096].lstrip()
    return head.startswith(("[", "{")) and '"ph"' in head and '"pid"' in head


def read_execute_timestamp(file: File) -> Observation:
    """Steps of a CPU run, from the starts of its operators."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for line in file.text_lines():
        name, _, rest = line.partition(";")
        events = [event.split(",") for event in rest.partition(";")[2].split()]
        times = [(number(event[0]) * _NS, number(event[1]) * _MS) for event in events if len(event) >= 2]
        if times:
            spans.setdefault(name, []).extend(times)
    found = re.search(r"_(\d+)\.\w+$", file.name)
    steps = steps_of_events(spans, int(found[1]) if found else file.rank, file.path.name)
    if not steps:
        raise SpecError(f"{file.path}: no operator's start in it.")
    note = "steps of the CPU profile are counted by operators that run once a step."
    return Observation(
        kind="profile", source=file.path, format="cpu_op_execute_timestamp.txt", steps=tuple(steps), notes=(note,)
    )


def read_trace(file: File) -> Observation:
    """Steps out of a trace: overlap analysis of a device, or operators of the CPU."""
    if file.path.stat().st_size > TRACE_BYTES:
        raise SpecError(
            f"{file.path} has over {TRACE_BYTES >> 20} MiB and is not loaded; step_trace_time.csv is wanted."
        )
    data = file.json()
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    events = [event for event in events if isinstance(event, dict)]
    names = {
        event.get("pid"): str((event.get("args") or {}).get("name", ""))
        for event in events
        if event.get("name") == "process_name"
    }
    device: dict[str, list[tuple[float, float]]] = defaultdict(list)
    host: dict[str, list[tuple[float, float]]] = defaultdict(list)
    windows: dict[int, tuple[float, float]] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        span = (number(event.get("ts")) * _US, number(event.get("dur")) * _US)
        name, process = str(event.get("name", "")), names.get(event.get("pid"), "")
        if found := re.match(r"ProfilerStep#?(\d+)", name):
            windows[int(found[1])] = span
        elif process == "Overlap Analysis" and name in _OVERLAP:
            device[_OVERLAP[name]].append(span)
        elif process == "CPU OP":
            host[name].append(span)
    steps = _device_steps(device, windows, file) if device else steps_of_events(host, file.rank, file.path.name)
    if not steps:
        raise SpecError(f"{file.path}: a trace without Overlap Analysis and without CPU operators.")
    return Observation(kind="profile", source=file.path, format="trace_view.json", steps=tuple(steps))


def steps_of_events(spans: Spans, rank: int | None, source: str) -> list[StepTrace]:
    """Steps of operators on one host: busy time and the rest, between starts of what runs once a step."""
    if not spans:
        return []
    counts = Counter(len(times) for times in spans.values())
    number_of_steps = max(counts, key=lambda count: (counts[count], -count))
    once = [sorted(times) for times in spans.values() if len(times) == number_of_steps]
    starts = np.array([min(times[index][0] for times in once) for index in range(number_of_steps)])
    every = np.array(sorted(time for times in spans.values() for time in times))
    begins, ends = every[:, 0], every[:, 0] + every[:, 1]
    edges = np.concatenate((starts, [ends.max()]))
    edges[0] = min(edges[0], begins.min())
    last = number_of_steps - 1
    steps = []
    for index in range(number_of_steps):
        inside = (begins >= edges[index]) & ((begins < edges[index + 1]) | (index == last))
        busy, length = _covered(begins[inside], ends[inside]), float(edges[index + 1] - edges[index])
        mark = "" if number_of_steps < 3 else {0: "first profiled step", last: "last profiled step"}.get(index, "")
        steps.append(
            StepTrace(
                rank=rank, step=index + 1, compute_s=busy, exposed_s=0.0, overlapped_s=0.0, mark=mark, source=source,
                free_s=max(0.0, length - busy),
            )
        )  # fmt: skip
    return steps


def _device_steps(parts: Spans, windows: Mapping[int, tuple[float, float]], file: File) -> list[StepTrace]:
    """Sums of the overlap analysis within each step's window; all of it is one step without windows."""
    if not windows:
        begin = min(start for spans in parts.values() for start, _ in spans)
        end = max(start + length for spans in parts.values() for start, length in spans)
        windows = {0: (begin, end - begin)}
    steps = []
    for step, (start, length) in sorted(windows.items()):
        sums = {name: _within(spans, start, start + length) for name, spans in parts.items()}
        compute, exposed = sums.get("compute", 0.0), sums.get("exposed", 0.0)
        steps.append(
            StepTrace(
                rank=file.rank, step=step, compute_s=compute, exposed_s=exposed,
                overlapped_s=max(0.0, sums.get("communication", 0.0) - exposed), free_s=sums.get("free"),
                source=file.path.name,
            )
        )  # fmt: skip
    return steps


def _within(spans: Sequence[tuple[float, float]], start: float, end: float) -> float:
    return math.fsum(max(0.0, min(end, s + d) - max(start, s)) for s, d in spans)


def _covered(begins: FloatArray, ends: FloatArray) -> float:
    """Length of the union of spans sorted by their begins [s]."""
    if not len(begins):
        return 0.0
    until = np.maximum.accumulate(np.concatenate(([-np.inf], ends[:-1])))
    return float(np.maximum(0.0, ends - np.maximum(begins, until)).sum())
