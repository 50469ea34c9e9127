"""What `accuracy` prints."""

from __future__ import annotations

from typing import Any

from planner.calibrate import accuracy_memory as of_memory
from planner.calibrate.accuracy_time import Accuracy, GroupScore
from planner.report.documents import head
from planner.report.text import narrow_table, wrapped

_LEGEND = (
    "Errors of predicted against measured seconds a step, in per cent. in: rows of the fit itself; shape, release, "
    "case: predicted by constants fitted without that shape, release or row. rho: rank correlation within one shape; "
    "regret: how much slower the predicted best of a shape is; pairs: layouts more than 5 % apart put in the right "
    "order; const: error of the best constant utilisation; 80%: left-out rows inside their interval."
)


def time_lines(found: Accuracy) -> list[str]:
    """Table of groups, then rows left out on purpose."""
    rows, main = [], ""
    for group in found.groups:
        name = group.name
        if main and name.startswith(f"{main}, "):
            name = f"  {name.removeprefix(f'{main}, ')}"
        else:
            main = name
        rows.append([name, *_cells(group)])
    heads = ("group", "left out", "n", "MAPE", "p90", "bias", "rho", "regret", "pairs", "const", "80%")
    lines = [*narrow_table(heads, rows, left=(0, 1)), "", *wrapped(_LEGEND)]
    if found.excluded:
        lines += ["", 'Rows left out by name (scored as "with excluded rows"):']
        for name, reason in found.excluded.items():
            lines += wrapped(f"  {name}: {reason}", "    ")
    if found.skipped:
        lines += ["", f"{len(found.skipped)} rows cannot be predicted; --json says why for each."]
    return lines


def _cells(group: GroupScore) -> list[str]:
    return [
        group.left_out or ("in" if not group.cross_validated else ""),
        str(group.n),
        f"{group.mape_percent:.1f}",
        f"{group.p90_abs_percent:.1f}",
        f"{group.bias_percent:+.1f}",
        "" if group.spearman is None else f"{group.spearman:.2f}",
        "" if group.regret_percent is None else f"{group.regret_percent:.1f}",
        "" if group.pair_order_percent is None else f"{group.pair_order_percent:.0f}",
        "" if group.constant_mfu_mape_percent is None else f"{group.constant_mfu_mape_percent:.1f}",
        "" if group.coverage_percent is None else f"{group.coverage_percent:.0f}",
    ]


def time_document(found: Accuracy) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {**head("accuracy-time"), **found.to_dict()}


_MEMORY_LEGEND = (
    "Errors of predicted against reference bytes, in per cent; least: the lowest prediction. right: verdicts that "
    "agree with the report (fits, or out of memory)."
)


def memory_lines(found: of_memory.Accuracy) -> list[str]:
    """Table of groups, verdicts, and the cases that are wrong."""
    rows = [[group.name, *_memory_cells(group)] for group in found.groups]
    heads = ("group", "n", "mean", "p90", "max", "bias", "least", "right")
    lines = [*narrow_table(heads, rows, left=(0,)), "", *wrapped(_MEMORY_LEGEND)]
    for group in found.groups:
        if group.confusion:
            counts = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in group.confusion.items())
            lines += ["", *wrapped(f"{group.name}: {counts}", "  ")]
        notes = {row.case_id: row.note for row in group.rows}
        for case in group.wrong:
            lines += wrapped(f"  wrong: {case}{': ' + notes[case] if notes.get(case) else ''}", "    ")
    if found.skipped:
        lines += ["", f"{len(found.skipped)} rows cannot be predicted; --json says why for each."]
    return lines


def _memory_cells(group: of_memory.GroupScore) -> list[str]:
    numbers = [group.mean_abs_percent, group.p90_abs_percent, group.max_abs_percent]
    cells = [str(group.n), *("" if value is None else f"{value:.1f}" for value in numbers)]
    cells += ["" if value is None else f"{value:+.1f}" for value in (group.bias_percent, group.least_percent)]
    right = sum(group.confusion.get(name, 0) for name in ("fits_as_fits", "oom_as_oom"))
    return [*cells, f"{right}/{sum(group.confusion.values())}" if group.confusion else ""]


def memory_document(found: of_memory.Accuracy) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {**head("accuracy-memory"), **found.to_dict()}
