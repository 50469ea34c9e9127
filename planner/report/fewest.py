"""What `cards` and `explain` print."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.estimate import Estimate
from planner.report.estimation import unread_lines
from planner.report.suggestion import best_lines, kind_lines
from planner.report.text import degrees, gib, job_lines, number, recompute_line, wrapped
from planner.search.cards import Fewest
from planner.search.explain import Explanation
from planner.search.suggest import Request, Result


def fewest_lines(result: Result, fewest: Fewest, best: Estimate) -> list[str]:
    """Fewest cards, and the fastest plan on them."""
    model, hardware = result.request.model.name, result.request.cluster.hardware.name
    cards = "1 card" if fewest.devices == 1 else f"{fewest.devices} cards"
    lines = [*job_lines(result.request), ""]
    lines += wrapped(
        f"{cards}: {model} needs at least {fewest.devices} x {hardware}; parameters, gradients and optimizer states "
        f"alone fill {fewest.floor}."
    )
    speed = "" if best.tokens_per_s_per_device is None else f", {best.tokens_per_s_per_device:.0f} tokens/s/card"
    lines += ["", *best_lines(result, best)]
    return [
        *lines,
        *wrapped(f"Speed     {number(best.step_s or 0.0)} s a step{speed}", " " * 10),
        *kind_lines(result, best),
    ]


def explanation_lines(request: Request, verdict: Explanation, unread: Sequence[str] = ()) -> list[str]:
    """Verdict, reasons, the change that helps, and what of a file was not read."""
    lines = [*job_lines(request)]
    lines += wrapped(f"Strategy  {degrees(verdict.strategy)}", " " * 10)
    lines += wrapped(f"Recompute {recompute_line(verdict.strategy)}", " " * 10)
    lines += ["", f"Verdict: {verdict.verdict}"]
    for reason in verdict.reasons:
        lines += wrapped(f"- {reason}", "  ")
    return lines + _change_lines(verdict) + unread_lines(unread)


def _change_lines(verdict: Explanation) -> list[str]:
    """The change, all of it, and the options that ask for it."""
    change = verdict.change
    if change is None:
        return [] if verdict.verdict == "best" else ["", "No single change helps."]
    head = "Single change that gains most" if verdict.verdict == "slower" else "Smallest change that helps"
    speed = "" if change.estimate.step_s is None else f", {number(change.estimate.step_s)} s a step"
    tie = " (closer than the calibration can tell apart)" if change.tied else ""
    lines = ["", *wrapped(f"{head}: {change.what}: {gib(change.estimate.peak_bytes)} GiB{speed}{tie}.")]
    return lines + (wrapped(f"Options   {change.options}", " " * 10) if change.options else [])
