"""What `schedule` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.cost.estimate import Estimate
from planner.report.documents import head, job, strategy_fields, unread_fields
from planner.report.text import degrees, job_lines, number, table, wrapped
from planner.search.request import Request
from planner.study.schedule import MOST_SHARE, Schedule, Tier
from planner.units import format_count

_INDENT = " " * 10


def schedule_lines(request: Request, estimate: Estimate, plan: Schedule, unread: Sequence[str] = ()) -> list[str]:
    """The training, when it is looked at, and what that costs."""
    lines = [*job_lines(request), ""]
    days = f", {number(estimate.days)} days without a failure" if estimate.days else ""
    lines += wrapped(
        f"Training  {format_count(request.workload.tokens)} tokens in {plan.steps:,} steps of "
        f"{number(estimate.step_s or 0)} s{days}; {degrees(estimate.strategy)}",
        _INDENT,
    )
    rows = [
        (tier.name, _when(tier), f"{100 * tier.share:.2f}%" if tier.share else "-", tier.what) for tier in plan.tiers
    ]
    lines += ["", *table(("what", "after steps", "cost", "of"), rows, left=(0, 1, 3)), ""]
    tokens = next(tier.tokens for tier in plan.tiers if tier.tokens)
    verdict = "within" if plan.affordable else "above"
    lines += wrapped(
        f"Evaluate  {100 * plan.evaluation_share:.2f} % of the training, {verdict} {100 * MOST_SHARE:.0f} %: "
        f"{format_count(tokens)} held-out tokens each time, a forward pass costs a third of a step",
        _INDENT,
    )
    if not plan.affordable:
        most = tokens * MOST_SHARE / plan.evaluation_share
        lines += wrapped(f"Less      --eval-tokens {format_count(most)} would be within it", _INDENT)
    lines += wrapped(
        "Profiles  behind the slow first steps, away from saves and evaluations, whose steps say nothing of the others",
        _INDENT,
    )
    return lines + (wrapped(f"Not read: {'; '.join(unread)}", _INDENT) if unread else [])


def _when(tier: Tier) -> str:
    if tier.every:
        return f"every {tier.every}"
    shown = [f"{step}" for step in tier.steps]
    return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]}, {shown[1]}, ... {shown[-1]}"


def schedule_document(
    request: Request, estimate: Estimate, plan: Schedule, unread: Sequence[str] = ()
) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {
        **head("schedule"),
        **job(request),
        "strategy": strategy_fields(estimate.strategy),
        "step_s": estimate.step_s,
        "steps": plan.steps,
        "days": estimate.days,
        "days_with_failures": plan.goodput.better.best.days,
        "evaluation_share": plan.evaluation_share,
        "affordable": plan.affordable,
        "tiers": [asdict(tier) | {"steps": list(tier.steps)} for tier in plan.tiers],
        **unread_fields(unread),
    }
