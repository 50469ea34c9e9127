"""What `suggest` prints: the job, the ranked table, the best plan in words, ties, what was looked at."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.estimate import Estimate
from planner.report.memory_notes import memory_kind
from planner.report.text import (
    constant_words,
    degrees,
    extras,
    gib,
    job_lines,
    joined,
    layers_line,
    narrow_table,
    number,
    percent,
    recompute_line,
    recompute_word,
    shares_line,
    table,
    wrapped,
)
from planner.search.suggest import Result
from planner.units import format_count

_INDENT = " " * 10


def suggestion_lines(result: Result, rows: Sequence[Estimate], *, explain: bool = False) -> list[str]:
    """All lines of the answer to `planner suggest`."""
    lines = [*job_lines(result.request), "", *ranked_lines(rows), "", *best_lines(result, rows[0]), ""]
    lines += tie_lines(result, len(rows))
    lines += kind_lines(result, rows[0])
    lines += examined_lines(result, explain=explain)
    return lines


def ranked_lines(rows: Sequence[Estimate]) -> list[str]:
    """The ranked table; dimensions that are 1 everywhere are left out."""
    shown = [n for n in ("dp", "tp", "pp", "vpp", "cp", "ep", "etp") if n in _ALWAYS or _varies(rows, n)]
    heads = ["#", *shown, "batch", "recomp", "GiB", "s/step", "80%", "tok/s", "MFU", "bub", "comm"]
    body = [_row(rank, row, shown) for rank, row in enumerate(rows, 1)]
    return narrow_table(heads, body)


_ALWAYS = ("dp", "tp", "pp")


def _varies(rows: Sequence[Estimate], name: str) -> bool:
    return any(getattr(row.strategy, name) > 1 for row in rows)


def _row(rank: int, row: Estimate, shown: Sequence[str]) -> list[str]:
    s = row.strategy
    cells = [str(rank), *(str(getattr(s, name)) for name in shown)]
    cells += [f"{s.micro_batch_size}x{s.micro_batches}", recompute_word(s), gib(row.peak_bytes)]
    if row.step_s is None or row.step_low_s is None or row.step_high_s is None:
        return [*cells, *("-",) * 6]
    return [
        *cells,
        number(row.step_s),
        f"±{percent((row.step_high_s - row.step_low_s) / 2 / row.step_s)}",
        f"{row.tokens_per_s_per_device or 0:.0f}",
        percent(row.mfu),
        percent(row.bubble_share),
        percent(row.exposed_share),
    ]


def best_lines(result: Result, best: Estimate) -> list[str]:
    """The first plan in words."""
    s = best.strategy
    lines = wrapped(f"Best: {degrees(s)}", "      ")
    lines += wrapped(f"          {extras(s)}", _INDENT)
    lines += wrapped(
        f"Layers    {layers_line(s)} (stage by stage)" if s.pp > 1 else f"Layers    {layers_line(s)}", _INDENT
    )
    lines += wrapped(f"Recompute {recompute_line(s)}", _INDENT)
    peaks = ", ".join(gib(peak) for peak in best.stage_peak_bytes)
    lines += wrapped(f"Memory    {peaks} GiB of {gib(best.limit_bytes)}", _INDENT)
    if best.step_s is not None and best.step_low_s is not None and best.step_high_s is not None:
        span = f"{number(best.step_s)} s, 80 % interval {number(best.step_low_s)} to {number(best.step_high_s)} s: "
        lines += wrapped(f"Step      {span}{shares_line(best)}", _INDENT)
    if best.days is not None and best.card_hours is not None:
        budget = format_count(result.request.workload.tokens)
        lines += wrapped(
            f"Budget    {budget} tokens: {number(best.days)} days, {best.card_hours:,.0f} card-hours", _INDENT
        )
    return lines


def tie_lines(result: Result, shown: int) -> list[str]:
    """Ranks that the calibration cannot tell apart."""
    groups = [[row + 1 for row in group if row < shown] for group in result.ties]
    ties = [joined(group) for group in groups if len(group) > 1]
    if not ties:
        return []
    return wrapped(f"Ties      {' and '.join(ties)}: closer than the calibration can tell apart", _INDENT)


def kind_lines(result: Result, best: Estimate) -> list[str]:
    """Where the figures come from."""
    calibration = result.request.calibration
    basis = (
        f"{calibration.name}, {calibration.rows} measured rows" if calibration.rows else f"{calibration.name}, no rows"
    )
    memory = memory_kind(result.request.workload)
    lines = wrapped(f"Figures   memory {memory}; seconds {best.kind} ({basis})", _INDENT)
    words = constant_words(calibration)
    return [*lines, *(wrapped(f"{_INDENT}{words}", _INDENT) if words else ())]


def examined_lines(result: Result, *, explain: bool) -> list[str]:
    """How many strategies were looked at, and with ``explain`` what removed them."""
    lines = wrapped(f"Examined  {result.examined:,} strategies; {result.fitting:,} are legal and fit", _INDENT)
    if explain:
        counts = sorted(((n, code) for code, n in result.removed.items() if n), reverse=True)
        lines += ["", *table(("removed", "by rule"), [(f"{n:,}", code) for n, code in counts], left=(1,))]
    return lines
