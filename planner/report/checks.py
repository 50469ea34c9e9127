"""What `check` and `improve` print."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from planner.cost.estimate import Estimate
from planner.dialects.findings import Finding
from planner.dialects.improve import Improved
from planner.report.documents import estimate_fields, head, job, strategy_fields
from planner.report.text import degrees, extras, gib, job_lines, layers_line, number, recompute_line, wrapped
from planner.search.suggest import Request

_INDENT = " " * 10


def check_lines(path: str, found: Sequence[Finding], not_judged: Sequence[str] = ()) -> list[str]:
    """One paragraph a finding: place and name, why, fix; and what of the file could not be judged."""
    left = wrapped(f"Not judged: {'; '.join(not_judged)}", _INDENT) if not_judged else []
    if not found:
        return [f"{path}: nothing found{' in what is read' if left else ''}.", *left]
    lines: list[str] = []
    for finding in found:
        lines.append(f"{finding.file}:{finding.line}: {finding.rule}")
        lines += wrapped(f"    {finding.why} {finding.fix}", "    ")
    count = "1 fault" if len(found) == 1 else f"{len(found)} faults"
    return [*lines, f"{count} found.", *left]


def check_document(path: str, found: Sequence[Finding], not_judged: Sequence[str] = ()) -> dict[str, Any]:
    """The same as JSON holds it."""
    findings = [dataclasses.asdict(finding) for finding in found]
    return {**head("check"), "path": path, "findings": findings, "not_judged": list(not_judged)}


def improvement_lines(
    request: Request,
    before: Estimate | None,
    after: Estimate,
    improved: Improved,
    written: str | None,
    *,
    broken: str = "",
) -> list[str]:
    """Old and new strategy, the gain, and the difference of the file; `broken` is the rule the old one breaks."""
    s = after.strategy
    lines = [*job_lines(request), ""]
    if before is not None:
        lines += wrapped(f"Before    {degrees(before.strategy)}; {_figures(before)}", _INDENT)
    lines += wrapped(f"After     {degrees(s)}; {_figures(after)}", _INDENT)
    lines += wrapped(f"          {extras(s)}", _INDENT)
    lines += wrapped(f"Layers    {layers_line(s)}", _INDENT)
    lines += wrapped(f"Recompute {recompute_line(s)}", _INDENT)
    lines += wrapped(f"Gain      {gain_words(before, after, broken)}", _INDENT)
    lines += ["", *(improved.difference or ("The file stays as it is.",))]
    return [*lines, "", f"Written   {written}"] if written else lines


def gain_words(before: Estimate | None, after: Estimate, broken: str = "") -> str:
    """Predicted gain in tokens per second and card."""
    now = after.tokens_per_s_per_device or 0.0
    if before is None:
        return f"{now:.0f} tokens/s/card; the file's own strategy breaks a rule: {broken}"
    old = before.tokens_per_s_per_device
    if old is None:
        return f"{now:.0f} tokens/s/card; the file's own strategy does not fit ({gib(before.peak_bytes)} GiB)"
    cards = before.strategy.devices, after.strategy.devices
    of_a_card = f"{now:.0f} instead of {old:.0f} tokens/s/card, {100 * (now / old - 1):+.0f} % predicted"
    if cards[0] == cards[1]:
        return of_a_card
    whole = 100 * (now * cards[1] / (old * cards[0]) - 1)
    return f"{of_a_card}; the job {whole:+.0f} % ({cards[1]} cards instead of {cards[0]})"


def _figures(answer: Estimate) -> str:
    if answer.step_s is None:
        return f"{gib(answer.peak_bytes)} GiB, does not fit"
    return f"{gib(answer.peak_bytes)} GiB, {number(answer.step_s)} s a step"


def improve_document(
    request: Request, before: Estimate | None, after: Estimate, improved: Improved, written: str | None
) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {
        **head("improve"),
        **job(request),
        "before": None if before is None else estimate_fields(before, request),
        "before_strategy": strategy_fields(improved.before.strategy),
        "after": estimate_fields(after, request),
        "difference": list(improved.difference),
        "unread": list(improved.before.unread),
        "written": written,
    }
