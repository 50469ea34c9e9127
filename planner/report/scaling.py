"""What `scaling` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.report.documents import estimate_fields, head, job, unread_fields
from planner.report.text import degrees, job_lines, number, percent, table, wrapped
from planner.search.explain import TIME_WORDS
from planner.search.request import Request
from planner.study.scaling import GOOD, Curve, Fit, Point

_INDENT = " " * 10
_WHAT = {"weak": "samples of a card stay", "strong": "samples of a step stay"}


def scaling_lines(
    request: Request, curves: Sequence[Curve], found: Fit | None, unread: Sequence[str] = ()
) -> list[str]:
    """A table for each curve, where it falls, the layouts, and measured points."""
    lines = job_lines(request)
    for curve in curves:
        lines += ["", f"{curve.mode.capitalize()} scaling: {_WHAT[curve.mode]}", *_table(curve)]
        lines += ["", *_verdict(curve)]
    if found is not None:
        lines += ["", *_fit_lines(found)]
    if unread:
        lines += ["", *wrapped(f"Not read: {'; '.join(unread)}", _INDENT)]
    return lines


def _table(curve: Curve) -> list[str]:
    budget = any(point.estimate and point.estimate.days for point in curve.points)
    heads = ["cards", "batch", "layout", "s/step", "tok/s/card", "kept", "speed-up"]
    heads += ["days", "card-h"] if budget else []
    return table(heads, [_row(point, budget) for point in curve.points], left=(2,))


def _row(point: Point, budget: bool) -> list[str]:
    answer = point.estimate
    cells = [str(point.devices), str(point.global_batch)]
    if answer is None:
        return [*cells, "none", *["-"] * (6 if budget else 4)]
    speed = answer.tokens_per_s_per_device or 0.0
    s = answer.strategy
    layout = " ".join(f"{n}{getattr(s, n)}" for n in ("dp", "tp", "pp", "cp", "ep") if getattr(s, n) > 1) or "dp1"
    cells += [layout, number(answer.step_s or 0.0), f"{speed:.0f}", f"{point.retention or 0:.2f}"]
    cells.append(f"{point.speedup or 0:.1f}x")
    return [*cells, *([number(answer.days or 0), f"{answer.card_hours or 0:.3g}"] if budget else [])]


def _verdict(curve: Curve) -> list[str]:
    lines = []
    for point in curve.points:
        if point.estimate is None:
            lines += wrapped(f"Without   {point.devices} cards: {point.why.splitlines()[0]}", _INDENT)
    falls, last = curve.falls, curve.fitting[-1]
    if falls is not None:
        words = f"at {falls.devices} cards a card keeps {percent(falls.retention)} of its speed, below {percent(GOOD)}"
        lines += wrapped(f"Falls     {words}; {_blame(falls)}", _INDENT)
    else:
        lines += wrapped(f"Falls     nowhere below {percent(GOOD)} of a card's speed", _INDENT)
    if last is not falls and last.blame is not None:
        lines += wrapped(f"Costs     at {last.devices} cards {_blame(last)}", _INDENT)
    assert last.estimate is not None
    return lines + wrapped(f"Largest   {degrees(last.estimate.strategy)}", _INDENT)


def _blame(point: Point) -> str:
    if point.blame is None:
        return "no term grew"
    return f"what grew most is {TIME_WORDS[point.blame]} ({percent(point.blame_share)} of what grew)"


def _fit_lines(found: Fit) -> list[str]:
    rows = [
        (str(run.devices), mode, f"{run.tokens_per_s_per_device:.0f}", f"{ratio:.2f}")
        for run, mode, ratio in found.ratios
    ]
    lines = table(("cards", "curve", "measured tok/s/card", "of predicted"), rows, left=(1,))
    trend = "" if found.growth is None else f", and x {found.growth:.3f} with each doubling of the cards"
    words = f"Measured  {found.level:.2f} of the prediction at the fewest cards{trend}; "
    return [*lines, "", *wrapped(f"{words}points are {100 * found.spread:.1f} % off that line", _INDENT)]


def scaling_document(
    request: Request, curves: Sequence[Curve], found: Fit | None, unread: Sequence[str] = ()
) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {
        **head("scaling"),
        **job(request),
        "good": GOOD,
        "curves": [
            {
                "mode": curve.mode,
                "falls_at": None if curve.falls is None else curve.falls.devices,
                "points": [_point(request, point) for point in curve.points],
            }
            for curve in curves
        ],
        "measured": None
        if found is None
        else {
            "level": found.level,
            "growth": found.growth,
            "spread": found.spread,
            "points": [asdict(run) | {"mode": mode, "ratio": ratio} for run, mode, ratio in found.ratios],
        },
        **unread_fields(unread),
    }


def _point(request: Request, point: Point) -> dict[str, Any]:
    body = {name: getattr(point, name) for name in ("global_batch", "why", "retention", "speedup", "blame_share")}
    speed = None
    if point.estimate is not None:
        speed = estimate_fields(point.estimate, request)
    return {"cards": point.devices, **body, "blame": point.blame, "plan": speed}
