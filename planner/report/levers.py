"""What `levers` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.report.documents import gib, head, job, strategy_fields, unread_fields
from planner.report.text import degrees, job_lines, number, wrapped
from planner.study.jobs import Outcome
from planner.study.levers import Lever

_INDENT = " " * 28


def lever_lines(base: Outcome, found: Sequence[Lever], unread: Sequence[str] = ()) -> list[str]:
    """The plan, levers with a predicted gain, levers with a published one."""
    answer = base.estimate
    step = base.why if answer is None or answer.step_s is None else f"{number(answer.step_s)} s a step"
    lines = [*job_lines(base.job.request), ""]
    lines += wrapped(f"Plan      {degrees(base.job.strategy)}; {step}", " " * 10)
    lines += ["", "Predicted for this plan (speed, GiB of the heaviest stage)"]
    lines += [line for each in found if each.kind == "predicted" for line in _lever(each)]
    published = [each for each in found if each.kind == "published"]
    if published:
        lines += ["", "Published for other jobs (speed)"]
        lines += [line for each in published for line in _lever(each)]
    lines += ["", *wrapped("Levers do not add up: planner compare PLAN --set NAME=VALUE says by how much.")]
    if unread:
        lines += wrapped(f"Not read: {'; '.join(unread)}", " " * 10)
    return lines


def _lever(each: Lever) -> list[str]:
    memory = "" if each.memory_bytes is None else f"{each.memory_bytes / 2**30:+.1f}"
    notes = "; ".join(part for part in (each.source, each.note) if part)
    return wrapped(f"  {_gain(each):<16} {memory:>7}  {each.what}{f' ({notes})' if notes else ''}", _INDENT)


def _gain(each: Lever) -> str:
    if each.low is None:
        return "-"
    if each.high is None:
        return f"from {100 * each.low:+.1f} %"
    if each.low == each.high:
        return f"{100 * each.low:+.1f} %"
    return f"{100 * each.low:+.1f} to {100 * each.high:+.1f} %"


def levers_document(base: Outcome, found: Sequence[Lever], unread: Sequence[str] = ()) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {
        **head("levers"),
        **job(base.job.request),
        "strategy": strategy_fields(base.job.strategy),
        "step_s": None if base.estimate is None else base.estimate.step_s,
        "levers": [
            {
                "what": each.what,
                "kind": each.kind,
                "gain_low": each.low,
                "gain_high": each.high,
                "memory_gib": None if each.memory_bytes is None else gib(each.memory_bytes),
                "source": each.source,
                "note": each.note,
            }
            for each in found
        ],
        **unread_fields(unread),
    }
