"""What the monitor says of a run, as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from planner.monitor.watch import Alarm
from planner.observe.records import Observation
from planner.observe.run import Run
from planner.report.documents import head
from planner.report.text import number, wrapped


def monitor_lines(observation: Observation, alarms: Sequence[Alarm]) -> list[str]:
    """One line a run, then the alarms."""
    lines = [line for run in observation.runs for line in run_lines(run)]
    for alarm in alarms:
        lines += ["", *alarm_lines(alarm)]
    if not alarms:
        lines += ["", "Nothing stands out."]
    for note in observation.notes:
        lines += wrapped(f"Note  {note}", " " * 6)
    return lines


def run_lines(run: Run) -> list[str]:
    """Steps, seconds and rates of a run."""
    median = run.median_step_s()
    words = f"Run   {run.source}: {run.framework}, {len(run)} steps"
    if math.isfinite(median):
        words += f", the median one takes {number(median)} s"
    if len(run) and math.isfinite(float(run.loss[-1])):
        words += f", loss {float(run.loss[-1]):.4g}"
    return wrapped(words, " " * 6)


def alarm_lines(alarm: Alarm) -> list[str]:
    """An alarm with its number, its threshold and who says so."""
    cost = f" (costs {number(alarm.cost_s)} s a step)" if alarm.cost_s > 0 else ""
    return [
        *wrapped(f"{alarm.kind}: {alarm.text}{cost}", "   "),
        *wrapped(f"   {alarm.number:.4g} against {alarm.threshold:.4g}: {alarm.source}", "   "),
    ]


def monitor_document(observation: Observation, alarms: Sequence[Alarm]) -> dict[str, Any]:
    """Answer of `planner monitor`."""
    return {
        **head("monitor"),
        "runs": [_run_fields(run) for run in observation.runs],
        "alarms": [
            {
                "kind": alarm.kind, "step": alarm.step, "text": alarm.text, "number": alarm.number,
                "threshold": alarm.threshold, "source": alarm.source, "cost_s": alarm.cost_s,
            }
            for alarm in alarms
        ],
        "notes": list(observation.notes),
        "missing": list(observation.missing),
    }  # fmt: skip


def _run_fields(run: Run) -> dict[str, Any]:
    median = run.median_step_s()
    return {
        "source": run.source, "framework": run.framework, "rank": run.rank, "steps": len(run),
        "median_step_s": median if math.isfinite(median) else None,
    }  # fmt: skip
