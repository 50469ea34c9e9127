"""What `estimate` prints: fits or not, memory of each stage by term, the step by term."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.estimate import Estimate
from planner.dialects.weights import Reason
from planner.measured import Measured
from planner.report.memory_notes import memory_kind, memory_notes
from planner.report.text import (
    MEMORY_WORDS,
    constant_words,
    degrees,
    extras,
    gib,
    job_lines,
    layers_line,
    narrow_table,
    number,
    percent,
    recompute_count,
    recompute_line,
    table,
    wrapped,
)
from planner.search.explain import TIME_WORDS
from planner.search.suggest import Request
from planner.units import GIB, format_count

#: More stages than this are shown as the first, the last and the heaviest ones.
MOST_STAGES = 16

_INDENT = " " * 10
_HIDDEN = {"tp_exposed_s": "tp_hidden_s", "cp_exposed_s": "cp_hidden_s", "ep_exposed_s": "ep_hidden_s",
           "dp_exposed_s": "dp_hidden_s"}  # fmt: skip


def estimation_lines(
    request: Request, answer: Estimate, unread: Sequence[str] = (), measured: Measured | None = None
) -> list[str]:
    """All lines of the answer to `planner estimate`."""
    s = answer.strategy
    lines = [*job_lines(request)]
    lines += wrapped(f"Strategy  {degrees(s)}", _INDENT)
    lines += wrapped(f"          {extras(s)}", _INDENT)
    lines += wrapped(f"Layers    {layers_line(s)}", _INDENT)
    lines += wrapped(f"Recompute {recompute_line(s)}", _INDENT)
    lines += ["", *verdict_lines(answer), "", *memory_lines(answer, memory_kind(request.workload))]
    for note in memory_notes(request.workload, answer):
        lines += wrapped(note)
    if answer.fits:
        lines += ["", *time_lines(request, answer)]
    if measured is not None:
        lines += ["", *measured_lines(answer, measured)]
    return lines + unread_lines(unread)


def unread_lines(unread: Sequence[str]) -> list[str]:
    """What of a file was not read: first what decides the answer."""
    reasons = [line for line in unread if isinstance(line, Reason)]
    notes = [line for line in unread if not isinstance(line, Reason)]
    lines = ["", *wrapped(f"Not reliable because of {'; '.join(reasons)}", _INDENT)] if reasons else []
    return lines + (["", *wrapped(f"Not read: {', '.join(notes)}", _INDENT)] if notes else [])


def verdict_lines(answer: Estimate) -> list[str]:
    """Fits or not, and by how much, at the heaviest stage."""
    heaviest = answer.stage_peak_bytes.index(max(answer.stage_peak_bytes))
    gap = abs(answer.limit_bytes - answer.peak_bytes)
    where = f"stage {heaviest} of {len(answer.stage_peak_bytes)}"
    if answer.fits:
        text = f"Fits: {where} peaks at {gib(answer.peak_bytes)} GiB of {gib(answer.limit_bytes)}, {gib(gap)} GiB free."
    else:
        text = (
            f"Does not fit: {where} needs {gib(answer.peak_bytes)} GiB, {gib(gap)} GiB over the limit of "
            f"{gib(answer.limit_bytes)}."
        )
    return wrapped(text)


def memory_lines(answer: Estimate, kind: str = "modelled") -> list[str]:
    """GiB by stage and term; terms that are nowhere above 0.05 GiB are left out and summed as other."""
    s = answer.strategy
    shown = [name for name in MEMORY_WORDS if max(answer.memory_bytes.get(name, (0.0,))) >= 0.05 * GIB]
    heads = ["stage", "layers", "recomp", *(MEMORY_WORDS[name] for name in shown), "peak"]
    rows = []
    for stage in shown_stages(answer.stage_peak_bytes):
        again = recompute_count(s.recompute_full[stage], s.recompute_selective[stage])
        terms = [gib(answer.memory_bytes[name][stage]) for name in shown]
        rows.append([str(stage), str(s.layers_per_stage[stage]), again, *terms, gib(answer.stage_peak_bytes[stage])])
    lines = [f"Memory of each stage at its heaviest moment, GiB ({kind})", *narrow_table(heads, rows)]
    if len(rows) < s.pp:
        lines.append(f"({s.pp - len(rows)} lighter stages not shown; --json has all)")
    return lines


def shown_stages(peaks: Sequence[float]) -> list[int]:
    """Stages in a table: all, or the first, the last and the heaviest.

    >>> shown_stages([3.0, 2.0])
    [0, 1]
    """
    if len(peaks) <= MOST_STAGES:
        return list(range(len(peaks)))
    heavy = sorted(range(len(peaks)), key=lambda stage: (-peaks[stage], stage))
    chosen = list(dict.fromkeys([0, len(peaks) - 1, *heavy]))
    return sorted(chosen[:MOST_STAGES])


def time_lines(request: Request, answer: Estimate) -> list[str]:
    """Seconds of one step by term, and what follows from them."""
    step, time = answer.step_s or 0.0, answer.time_s or {}
    low, high = answer.step_low_s or 0.0, answer.step_high_s or 0.0
    lines = wrapped(
        f"Step: {number(step)} s, 80 % interval {number(low)} to {number(high)} s "
        f"({answer.kind}: {request.calibration.name}, {request.calibration.rows} measured rows)"
    )
    if words := constant_words(request.calibration):
        lines += wrapped(f"Constants: {words}")
    rows = []
    for name, word in TIME_WORDS.items():
        seconds, hidden = time.get(name, 0.0), time.get(_HIDDEN.get(name, ""), 0.0)
        if seconds >= 0.0005 * step or hidden >= 0.0005 * step:
            rows.append([word, number(seconds), percent(seconds / step), number(hidden) if hidden else ""])
    lines += table(("where", "s", "share", "hidden s"), rows, left=(0,))
    return [*lines, *figure_lines(request, answer)]


def measured_lines(answer: Estimate, measured: Measured) -> list[str]:
    """Where a measurement stands, and what could explain the difference."""
    gap = 100 * (measured.ratio - 1)
    place = {
        "as predicted": "inside the 80 % interval: normal for this configuration",
        "slower": "slower than the 80 % interval",
        "faster": "faster than the 80 % interval",
    }[measured.verdict]
    lines = wrapped(
        f"Measured: {number(measured.step_s)} s a step, MFU {percent(measured.mfu)}, {gap:+.0f} % against "
        f"{number(answer.step_s or 0.0)} s predicted; {place}."
    )
    if measured.explanations:
        lines += wrapped("One of these alone would explain it:")
        for explanation in measured.explanations:
            lines += wrapped(f"- {explanation}", "  ")
    return lines


def figure_lines(request: Request, answer: Estimate) -> list[str]:
    """Throughput, utilisation, and the budget when one was given."""
    used = f"MFU {percent(answer.mfu)}, HFU {percent(answer.hfu)}, bubble {percent(answer.bubble_share)}"
    wire = f"communication exposed {percent(answer.exposed_share)} and hidden {percent(answer.hidden_share)}"
    lines = wrapped(f"{answer.tokens_per_s_per_device or 0:.0f} tokens/s/card, {used}, {wire}")
    if answer.days is not None and answer.card_hours is not None:
        budget = format_count(request.workload.tokens)
        lines += wrapped(f"{budget} tokens take {number(answer.days)} days, {answer.card_hours:,.0f} card-hours")
    return lines
