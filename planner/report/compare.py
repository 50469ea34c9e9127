"""What `compare` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.report.documents import gib as exact_gib
from planner.report.documents import head, strategy_fields
from planner.report.text import degrees, gib, job_lines, number, table, wrapped
from planner.search.explain import TIME_WORDS
from planner.study.jobs import Job, Outcome
from planner.study.ledger import Entry
from planner.study.whatif import Comparison, Variable

_INDENT = " " * 10
#: Terms named in words.
_NAMED = 3


def compare_lines(
    first: tuple[str, Job], found: Sequence[tuple[str, Comparison]], unread: Sequence[str] = ()
) -> list[str]:
    """The first job, and each other one beside it."""
    lines = [*job_lines(first[1].request), ""]
    for name, each in found:
        lines += wrapped(f"A         {first[0]}: {_job(each.before)}", _INDENT)
        lines += wrapped(f"B         {name}: {_job(each.after)}", _INDENT)
        lines += [*_difference(each), ""]
    if unread:
        lines += wrapped(f"Not read: {'; '.join(unread)}", _INDENT)
    return lines[:-1] if lines[-1] == "" else lines


def _job(outcome: Outcome) -> str:
    words = degrees(outcome.job.strategy)
    if outcome.estimate is None:
        return f"{words}; cannot run: {outcome.why}"
    answer = outcome.estimate
    if answer.step_s is None:
        return f"{words}; does not fit: {outcome.why}"
    return f"{words}; {number(answer.step_s)} s a step, {gib(answer.peak_bytes)} GiB"


def _difference(found: Comparison) -> list[str]:
    if not found.variables:
        return ["Differ    in nothing that is known here"]
    rows = [
        (str(place), each.name, _seconds(each.alone_s), _memory(found.before, each.alone), _seconds(each.step_s))
        for place, each in enumerate(found.variables, 1)
    ]
    lines = ["", *table(("#", "variable", "alone, s", "GiB", "in order, s"), rows, left=(1,)), ""]
    for place, each in enumerate(found.variables, 1):
        lines += wrapped(f"{place:>2}        {each.words}{_cannot(each)}", _INDENT)
    lines += wrapped(f"Together  {_together(found)}", _INDENT)
    lines += wrapped(f"Where     {_where(found)}", _INDENT) if _where(found) else []
    for note in found.learning:
        lines += wrapped(f"Learning  {note}; the seconds are no free gain", _INDENT)
    return lines


def _seconds(saved: float | None) -> str:
    return "-" if saved is None else f"{-saved:+.3g}"


def _memory(before: Outcome, after: Outcome) -> str:
    if before.estimate is None or after.estimate is None:
        return "-"
    return f"{(after.estimate.peak_bytes - before.estimate.peak_bytes) / 2**30:+.1f}"


def _cannot(each: Variable) -> str:
    return f" (alone: {each.alone.why})" if each.alone.why else ""


def _together(found: Comparison) -> str:
    if found.together_s is None:
        return "no seconds, because one of the two cannot run"
    before = found.before.estimate
    assert before is not None
    assert before.step_s is not None
    share = 100 * (1 / (1 - found.together_s / before.step_s) - 1)
    words = f"{_seconds(found.together_s)} s for the same tokens, speed of the job {share:+.1f} %"
    if found.before.job.strategy.devices != found.after.job.strategy.devices:
        words += f" ({found.after.job.strategy.devices} cards instead of {found.before.job.strategy.devices})"
    if len(found.variables) < 2:
        return words
    if found.interplay_s is None or found.sum_s is None:
        return f"{words}; not each can run alone, so their gains cannot be added"
    return (
        f"{words}; alone they add up to {_seconds(found.sum_s)} s, so together they are "
        f"{number(abs(found.interplay_s))} s {'worse' if found.interplay_s < 0 else 'better'} than that"
    )


def _where(found: Comparison) -> str:
    """Terms of the step that changed most, for the same tokens."""
    one, other = found.before.estimate, found.after.estimate
    if one is None or other is None or one.time_s is None or other.time_s is None:
        return ""
    scale = found.before.job.tokens / found.after.job.tokens
    change = {name: other.time_s.get(name, 0.0) * scale - one.time_s.get(name, 0.0) for name in TIME_WORDS}
    most = sorted(change, key=lambda name: -abs(change[name]))[:_NAMED]
    return ", ".join(f"{TIME_WORDS[name]} {change[name]:+.3g} s" for name in most if change[name])


def ledger_lines(entries: Sequence[Entry]) -> list[str]:
    """Every change with its verdict, and which were no experiment."""
    if not entries:
        return ["The ledger is empty."]
    rows = [
        (str(place), _share(each.predicted), _share(each.measured), each.verdict, "; ".join(each.changes)[:38])
        for place, each in enumerate(entries, 1)
    ]
    lines = table(("#", "predicted", "measured", "verdict", "change"), rows, left=(3, 4))
    for place, each in enumerate(entries, 1):
        if each.hypothesis:
            lines += wrapped(f"{place:>2}        {each.hypothesis}", _INDENT)
        if not each.single:
            lines += wrapped(
                f"{place:>2}        changes {len(each.changes)} variables at once ({'; '.join(each.changes)}): nothing "
                "says which of them worked",
                _INDENT,
            )
    helped = [str(place) for place, each in enumerate(entries, 1) if each.verdict == "helped" and each.single]
    return [*lines, *wrapped(f"Effective {', '.join(helped) or 'none so far'}", _INDENT)]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{-100 * share:+.1f}%"


def compare_document(
    first: Sequence[tuple[str, Job]],
    found: Sequence[tuple[str, Comparison]],
    entries: Sequence[Entry],
    unread: Sequence[str] = (),
) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {
        **head("compare"),
        "first": first[0][0] if first else None,
        "comparisons": [
            {
                "second": name,
                "before": _outcome(each.before),
                "after": _outcome(each.after),
                "variables": [
                    {
                        "name": v.name,
                        "words": v.words,
                        "alone_s": v.alone_s,
                        "in_order_s": v.step_s,
                        "alone": _outcome(v.alone),
                    }
                    for v in each.variables
                ],
                "together_s": each.together_s,
                "sum_s": each.sum_s,
                "interplay_s": each.interplay_s,
                "learning": list(each.learning),
            }
            for name, each in found
        ],
        "ledger": [
            asdict(each) | {"measured": each.measured, "verdict": each.verdict, "single": each.single}
            for each in entries
        ],
        "unread": list(unread),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    answer = outcome.estimate
    return {
        "strategy": strategy_fields(outcome.job.strategy),
        "step_s": None if answer is None else answer.step_s,
        "peak_gib": None if answer is None else exact_gib(answer.peak_bytes),
        "why": outcome.why,
    }
