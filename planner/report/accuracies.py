"""What `accuracy` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from planner.accuracy import memory as of_memory
from planner.accuracy.time import Accuracy, GroupScore
from planner.report.documents import head
from planner.report.text import narrow_table, number, wrapped
from planner.units import format_bytes

_LEGEND = (
    "Errors of predicted against measured seconds a step, in per cent. in: rows of the fit itself; shape, release, "
    "case: predicted by constants fitted without that shape, release or row. Within one release and size family: "
    "pairs, layouts more than 5 % apart in utilisation put in the right order; regret, how much slower the predicted "
    "best is than the measured best. Within one shape, sequence, device and release: rho, rank correlation (three "
    "layouts and more); regr1, regret (two and more). const: error of the best constant utilisation; 80%: rows inside "
    "their 80 % interval."
)
_FILE_LEGEND = (
    "Errors of predicted against measured seconds a step, in per cent, by the shipped calibrations; nothing was "
    "fitted. Columns as in planner accuracy time."
)
#: Rows of a scored file shown by name.
_WORST = 5


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
    heads = ("group", "left out", "n", "MAPE", "p90", "bias", "pairs", "regret", "rho", "regr1", "const", "80%")
    legend = _FILE_LEGEND if found.rows else _LEGEND
    lines = [*narrow_table(heads, rows, left=(0, 1)), "", *wrapped(legend)]
    worst = sorted(found.rows, key=lambda row: -abs(row.error_percent))[:_WORST]
    if worst:
        lines += ["", "Largest errors (measured, predicted with 80 % interval):"]
    for row in worst:
        seconds = [number(value) for value in (row.measured_s, row.predicted_s, row.low_s, row.high_s)]
        figures = "{} s, {} ({} to {}) s".format(*seconds)
        lines += wrapped(f"  {row.case_id}: {figures}, {row.error_percent:+.0f} %, {row.calibration}", "    ")
    if found.excluded:
        lines += ["", 'Rows left out by name (scored as "with excluded rows"):']
        for name, reason in found.excluded.items():
            lines += wrapped(f"  {name}: {reason}", "    ")
    if found.skipped:
        lines += ["", *skipped_lines(found.skipped, by_name=bool(found.rows))]
    return lines


def skipped_lines(skipped: Mapping[str, str], *, by_name: bool) -> list[str]:
    """Why rows cannot be predicted: each by name, or a count for each reason."""
    if by_name:
        lines = ["Rows that cannot be predicted:"]
        for name, reason in skipped.items():
            lines += wrapped(f"  {name}: {reason}", "    ")
        return lines
    lines = [f"{len(skipped)} rows cannot be predicted; --json names each:"]
    for reason, count in Counter(skipped.values()).most_common():
        lines += wrapped(f"  {count}: {reason}", "    ")
    return lines


def _cells(group: GroupScore) -> list[str]:
    return [
        group.left_out or ("in" if not group.cross_validated else ""),
        str(group.n),
        f"{group.mape_percent:.1f}",
        f"{group.p90_abs_percent:.1f}",
        f"{group.bias_percent:+.1f}",
        "" if group.pair_order_percent is None else f"{group.pair_order_percent:.0f}",
        "" if group.family_regret_percent is None else f"{group.family_regret_percent:.1f}",
        "" if group.spearman is None else f"{group.spearman:.2f}",
        "" if group.regret_percent is None else f"{group.regret_percent:.1f}",
        "" if group.constant_mfu_mape_percent is None else f"{group.constant_mfu_mape_percent:.1f}",
        "" if group.coverage_percent is None else f"{group.coverage_percent:.0f}",
    ]


def time_document(found: Accuracy) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {**head("accuracy-time"), **found.to_dict()}


_MEMORY_LEGEND = (
    "Errors of predicted against reference bytes, in per cent; least: the lowest prediction. right: verdicts that "
    "agree with the report (fits, or out of memory). left out: none where nothing is fitted, the model lists tensors; "
    "family: the pool's fragmentation is fitted, and each row judged by a fit without its own model family."
)
#: Wrong verdicts up to which a group names each.
_NAMED_WRONG: Final = 12
_VERDICTS = {"fits": "reported to fit", "oom": "reported out of memory"}


def memory_lines(found: of_memory.Accuracy, *, by_name: bool = False) -> list[str]:
    """Table of groups, verdicts, the cases that are wrong, and rows left aside (each by name for a scored file)."""
    rows = [[group.name, *_memory_cells(group)] for group in found.groups]
    heads = ("group", "left out", "n", "mean", "p90", "max", "bias", "least", "right")
    lines = [*narrow_table(heads, rows, left=(0, 1)), "", *wrapped(_MEMORY_LEGEND)]
    for group in found.groups:
        if group.about:
            lines += wrapped(f"{group.name}: {group.about}.", "  ")
    for group in found.groups:
        lines += _verdict_lines(group)
    if found.skipped:
        lines += ["", *skipped_lines(found.skipped, by_name=by_name)]
    return lines


def _verdict_lines(group: of_memory.GroupScore) -> list[str]:
    """Confusion counts, and each wrong case with its figures and what is known of it."""
    if not group.confusion:
        return []
    counts = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in group.confusion.items())
    lines = ["", *wrapped(f"{group.name}: {counts}", "  ")]
    for row in group.rows if len(group.wrong) <= _NAMED_WRONG else ():
        if row.case_id in group.wrong:
            figures = f"predicted {format_bytes(row.predicted_bytes)} of {format_bytes(row.reference_bytes)}"
            because = f"; {row.reason}" if row.reason else ""
            lines += wrapped(f"  wrong: {row.case_id}, {_VERDICTS[row.note]}, {figures}{because}", "    ")
    if len(group.wrong) > _NAMED_WRONG:
        lines += wrapped(f"  wrong: {len(group.wrong)} rows, named by --json", "    ")
    return lines


def _memory_cells(group: of_memory.GroupScore) -> list[str]:
    numbers = [group.mean_abs_percent, group.p90_abs_percent, group.max_abs_percent]
    cells = [group.left_out or "none", str(group.n), *("" if value is None else f"{value:.1f}" for value in numbers)]
    cells += ["" if value is None else f"{value:+.1f}" for value in (group.bias_percent, group.least_percent)]
    right = sum(group.confusion.get(name, 0) for name in ("fits_as_fits", "oom_as_oom"))
    return [*cells, f"{right}/{sum(group.confusion.values())}" if group.confusion else ""]


def memory_document(found: of_memory.Accuracy) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {**head("accuracy-memory"), **found.to_dict()}
