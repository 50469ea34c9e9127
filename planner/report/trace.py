"""A step as trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process a stage; threads for computation, communication and hand-over between stages; a counter of memory; arrows
from a pass to the one on another stage that waits for it.  Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from planner.timeline.anatomy import DIMENSIONS, memory_curve
from planner.timeline.drawing import Drawing
from planner.timeline.events import KINDS
from planner.timeline.orders import BACKWARD, FORWARD, WEIGHTS
from planner.units import GIB
from planner.version import __version__

MICRO: Final = 1e6
THREADS: Final = ("computation", "communication", "hand-over")
COMPUTATION, COMMUNICATION, HAND_OVER = range(3)
#: Shorter than this nothing is drawn [s].
SHORTEST_S: Final = 1e-9

Event = dict[str, Any]


def trace_text(step: Drawing, title: str) -> str:
    """The file: one event a line."""
    head = json.dumps(_other(step, title))
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(step))
    return f'{{"displayTimeUnit":"ms","otherData":{head},"traceEvents":[\n{lines}\n]}}\n'


def trace_events(step: Drawing) -> list[Event]:
    """Events in the order of their start, the longer first; names of processes and threads before them."""
    shown = [*_slices(step), *_bubbles(step), *_behind(step), *_flows(step), *_counters(step)]
    shown.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return [*_names(step), *shown]


def _other(step: Drawing, title: str) -> dict[str, Any]:
    return {
        "title": title,
        "planner": __version__,
        "schedule": step.strategy.schedule,
        "micro_batches": step.strategy.micro_batches,
        "micro_batches_drawn": step.line.micro_batches,
        "step_s": step.estimate.step_s,
        "kind": f"{step.estimate.kind}, simulated; communication of a pass is drawn in one piece behind it",
    }


def _names(step: Drawing) -> Iterator[Event]:
    for stage in range(step.line.stages):
        layers = step.strategy.layers_per_stage[stage]
        yield _meta("process_name", stage, 0, {"name": f"stage {stage} ({layers} layers)"})
        yield _meta("process_sort_index", stage, 0, {"sort_index": stage})
        for thread, name in enumerate(THREADS):
            yield _meta("thread_name", stage, thread, {"name": name})
            yield _meta("thread_sort_index", stage, thread, {"sort_index": thread})


def _meta(name: str, stage: int, thread: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": stage, "tid": thread, "ts": 0, "args": args}


def _slice(name: str, kind: str, stage: int, thread: int, start_s: float, end_s: float, **args: Any) -> Event:
    return {
        "ph": "X", "name": name, "cat": kind, "pid": stage, "tid": thread,
        "ts": start_s * MICRO, "dur": (end_s - start_s) * MICRO, "args": args,
    }  # fmt: skip


def _slices(step: Drawing) -> Iterator[Event]:
    """Every pass: computation first, with recompute inside it, then its exposed communication, then the hand-over."""
    line, parts = step.line, step.parts
    for i in range(len(line)):
        kind, stage, chunk = int(line.kind[i]), int(line.stage[i]), int(line.chunk[i])
        micro, start, end = int(line.micro_batch[i]), float(line.start_s[i]), float(line.end_s[i])
        where = f"{micro}" if line.chunks == 1 else f"{micro}.{chunk}"
        name = f"{KINDS[kind]} {where}"
        if kind == WEIGHTS:
            yield _slice(name, "weights", stage, COMPUTATION, start, end, micro_batch=micro, chunk=chunk)
            continue
        way = KINDS[kind]
        passed = float(parts.passing_VS[way][chunk, stage])
        sent = {dim: float(parts.exposed_VS[dim, way][chunk, stage]) for dim in DIMENSIONS}
        until = end - passed - sum(sent.values())
        yield _slice(name, way, stage, COMPUTATION, start, until, micro_batch=micro, chunk=chunk)
        again = float(parts.recompute_VS[chunk, stage]) if kind == BACKWARD else 0.0
        if again > SHORTEST_S:
            yield _slice(f"recompute {where}", "recompute", stage, COMPUTATION, start, min(start + again, until))
        for dim, seconds in sent.items():
            if seconds > SHORTEST_S:
                yield _slice(f"{dim} {name}", dim, stage, COMMUNICATION, until, until + seconds)
                until += seconds
        if passed > SHORTEST_S:
            yield _slice(f"hand over {name}", "pp", stage, HAND_OVER, end - passed, end)


def _bubbles(step: Drawing) -> Iterator[Event]:
    line = step.line
    for stage in range(line.stages):
        on = np.flatnonzero(line.stage == stage)
        starts = np.append(line.start_s[on], line.makespan_s)
        ends = np.concatenate([[0.0], line.end_s[on]])
        for gap in np.flatnonzero(starts - ends > SHORTEST_S).tolist():
            yield _slice("bubble", "bubble", stage, COMPUTATION, float(ends[gap]), float(starts[gap]))


_BEHIND_WORDS: Final = {
    "dp_exposed_s": ("gradients and parameters (exposed)", COMMUNICATION),
    "optimizer_s": ("optimizer", COMPUTATION),
    "straggler_s": ("waiting for the slowest rank", COMPUTATION),
    "fixed_s": ("fixed cost of a step", COMPUTATION),
}


def _behind(step: Drawing) -> Iterator[Event]:
    for stage in range(step.line.stages):
        at = step.line.makespan_s
        for name, seconds in step.behind.items():
            words, thread = _BEHIND_WORDS[name]
            if seconds > SHORTEST_S:
                yield _slice(words, name.removesuffix("_s"), stage, thread, at, at + seconds)
            at += seconds


def _flows(step: Drawing) -> Iterator[Event]:
    """Arrows between stages, from the middle of the sender's last slice to the receiver's first."""
    line = step.line
    takes = np.flatnonzero(line.needs >= 0)
    takes = takes[line.stage[takes] != line.stage[line.needs[takes]]]
    for number, (to, origin) in enumerate(zip(takes.tolist(), line.needs[takes].tolist(), strict=True)):
        way = "activations" if line.kind[to] == FORWARD else "gradients"
        common = {"cat": "pp", "name": way, "id": number}
        computed = _computed_until(step, origin)
        sender, receiver = int(line.stage[origin]), int(line.stage[to])
        middle = (float(line.start_s[origin]) + computed) / 2.0
        yield {"ph": "s", **common, "pid": sender, "tid": COMPUTATION, "ts": middle * MICRO}
        start = float(line.start_s[to]) * MICRO
        yield {"ph": "f", "bp": "e", **common, "pid": receiver, "tid": COMPUTATION, "ts": start}


def _computed_until(step: Drawing, index: int) -> float:
    line, parts = step.line, step.parts
    chunk, stage, way = int(line.chunk[index]), int(line.stage[index]), KINDS[int(line.kind[index])]
    sent = sum(float(parts.exposed_VS[dim, way][chunk, stage]) for dim in DIMENSIONS)
    return float(line.end_s[index]) - float(parts.passing_VS[way][chunk, stage]) - sent


def _counters(step: Drawing) -> Iterator[Event]:
    for stage in range(step.line.stages):
        times, level = memory_curve(step.parts, step.line, stage)
        last = np.flatnonzero(np.append(np.diff(times) > 0, True))  # one value for one time
        for at, size in zip(times[last].tolist(), level[last].tolist(), strict=True):
            args = {"GiB": round(size / GIB, 4)}
            yield {"ph": "C", "name": "memory", "pid": stage, "tid": 0, "ts": at * MICRO, "args": args}
