"""A diagnosis as text, as JSON and as a picture: one bar a rank, cut into the parts of its step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from planner.diagnose.records import PARTS, Diagnosis, Finding, RankTime, Term
from planner.report.documents import head
from planner.report.text import narrow_table, number, percent, wrapped

_INDENT: Final = " " * 3
#: Ranks in the text; a picture and JSON hold all.
_MOST_RANKS: Final = 16
#: Size of the picture [px].
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BAR = 960.0, 90.0, 90.0, 58.0, 26.0, 18.0
#: A part narrower than this carries no share [px].
_LEGIBLE: Final = 34.0

_STYLE: Final = """\
text{font:11px system-ui,sans-serif;fill:#222}.title{font-size:14px;font-weight:600}.in{text-anchor:middle}
.end{text-anchor:end}.compute{fill:#5b9bd5}.exposed{fill:#d9705f}.data{fill:#c39bd3}.bubble{fill:#f0c36d}.free{fill:#ccc}
svg{background:#fff}@media(prefers-color-scheme:dark){svg{background:#1b1b1b}text{fill:#ddd}.in{fill:#111}}"""


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """The answer as text."""
    step = "step unknown" if found.step_s is None else f"a step takes {seconds(found.step_s)}"
    limit = "nothing stands out" if found.limit is None else f"limited by {found.limit.kind}"
    lines = [
        *wrapped(f"Diagnosis  {found.source} ({found.format})", " " * 11),
        *wrapped(f"Verdict    {step}; {limit}", " " * 11),
    ]
    if found.ranks:
        lines += ["", *narrow_table(_HEADS, [_rank_row(rank) for rank in found.ranks[:_MOST_RANKS]])]
        if len(found.ranks) > _MOST_RANKS:
            lines.append(f"... {len(found.ranks) - _MOST_RANKS} more ranks: --json or --svg")
    if found.terms:
        lines += ["", *_term_lines(found)]
    for place, finding in enumerate(found.findings, 1):
        lines += ["", *_finding_lines(place, finding, found.step_s)]
    for title, words in (("Note", found.notes), ("Not told", found.missing)):
        if words:
            lines.append("")
        for word in words:
            lines += wrapped(f"{title:<9}{word}", " " * 9)
    return lines


_HEADS: Final = ("rank", "stage", "steps", "step s", *PARTS, "hidden")


def _rank_row(rank: RankTime) -> tuple[str, ...]:
    hidden = rank.overlapped_s / rank.step_s if rank.step_s else 0.0
    return (
        "-" if rank.rank is None else str(rank.rank), "-" if rank.stage is None else str(rank.stage), str(rank.steps),
        number(rank.step_s), *(percent(rank.share(part)) for part in PARTS), percent(hidden),
    )  # fmt: skip


def _term_lines(found: Diagnosis) -> list[str]:
    rows = [
        (
            term.name, number(term.predicted_s), "-" if term.observed_s is None else number(term.observed_s),
            "-" if term.slower_s is None else f"{term.slower_s:+.3f}",
        )
        for term in found.terms
    ]  # fmt: skip
    low_high = "" if found.interval_s is None else f"; 80 % of such steps: {number(found.interval_s[0])} to "
    low_high += "" if found.interval_s is None else f"{number(found.interval_s[1])} s"
    return [
        *narrow_table(("term", "planned s", "seen s", "more"), rows, left=(0,)),
        f"Plan       {verdict(found)}{low_high}",
    ]


def verdict(found: Diagnosis) -> str:
    """Whether the step is as planned, and which term is off most."""
    if not found.terms or found.terms[0].observed_s is None:
        return "no step to compare"
    step = found.terms[0]
    high = found.interval_s[1] if found.interval_s else step.predicted_s
    low = found.interval_s[0] if found.interval_s else step.predicted_s
    observed = step.observed_s or 0.0
    word = (
        "as planned" if low <= observed <= high else "slower than planned" if observed > high else "faster than planned"
    )
    most = max(found.terms[1:], key=lambda term: term.slower_s or -math.inf, default=None)
    if most is not None and (most.slower_s or 0.0) > 0.0:
        word += f", most of all {most.name.strip()}"
    return word


def _finding_lines(place: int, finding: Finding, step_s: float | None) -> list[str]:
    gain = "gain unknown"
    if not math.isnan(finding.gain_s):
        share = f" ({percent(finding.gain_s / step_s)} of the step)" if step_s else ""
        gain = f"gain {seconds(finding.gain_s)}{share}"
    return [
        *wrapped(f"{place}. {finding.kind}: {gain}", _INDENT),
        *wrapped(f"   seen   {finding.text}", " " * 10),
        *wrapped(
            f"   limit  {finding.number:.3g} against {finding.threshold.value:g}: {finding.threshold.source}", " " * 10
        ),
        *wrapped(f"   first  {finding.advice}", " " * 10),
    ]


def seconds(value: float) -> str:
    """Seconds, or milliseconds below a tenth.

    >>> seconds(0.81), seconds(0.0123)
    ('0.810 s', '12.3 ms')
    """
    return f"{number(value)} s" if value >= 0.1 else f"{value * 1e3:.3g} ms"  # noqa: PLR2004


def diagnose_document(found: Diagnosis) -> dict[str, Any]:
    """Answer of `planner diagnose`."""
    return {
        **head("diagnose"),
        "source": found.source,
        "format": found.format,
        "step_s": found.step_s,
        "limit": None if found.limit is None else found.limit.kind,
        "ranks": [_rank_fields(rank) for rank in found.ranks],
        "findings": [_finding_fields(finding) for finding in found.findings],
        "terms": [_term_fields(term) for term in found.terms],
        "interval_s": list(found.interval_s or ()),
        "notes": list(found.notes),
        "missing": list(found.missing),
    }


def _rank_fields(rank: RankTime) -> dict[str, Any]:
    return {
        "rank": rank.rank, "stage": rank.stage, "steps": rank.steps, "step_s": rank.step_s,
        **{f"{part}_s": getattr(rank, f"{part}_s") for part in PARTS},
        "overlapped_s": rank.overlapped_s, "pipeline_wait_s": rank.pipeline_wait_s, "off_frac": rank.off_frac,
    }  # fmt: skip


def _finding_fields(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind, "text": finding.text, "number": finding.number, "threshold": finding.threshold.value,
        "source": finding.threshold.source, "gain_s": None if math.isnan(finding.gain_s) else finding.gain_s,
        "advice": finding.advice, "ranks": list(finding.ranks),
    }  # fmt: skip


def _term_fields(term: Term) -> dict[str, Any]:
    return {"name": term.name.strip(), "predicted_s": term.predicted_s, "observed_s": term.observed_s}


def diagnosis_svg(found: Diagnosis) -> str:
    """One bar a rank, on one scale of seconds."""
    longest = max((rank.step_s for rank in found.ranks), default=1.0)
    height = _TOP + _ROW * len(found.ranks) + 12.0
    title = escape(f"{found.source}: where a step of {seconds(longest)} goes")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'aria-labelledby="title"><title id="title">{title}</title><style>{_STYLE}</style>',
        f'<text class="title" x="{_LEFT:g}" y="18">{title}</text>',
        *_legend(),
    ]
    for row, rank in enumerate(found.ranks):
        parts += _bar(rank, _TOP + _ROW * row, (_WIDTH - _LEFT - _RIGHT) / longest)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> Iterator[str]:
    words = {"exposed": "exposed communication", "data": "data and host", "bubble": "waiting for other stages"}
    x = _LEFT
    for part in PARTS:
        text = words.get(part, part)
        yield f'<rect class="{part}" x="{x:g}" y="30" width="11" height="11"/><text x="{x + 15:g}" y="40">{text}</text>'
        x += 36 + 6.2 * len(text)


def _bar(rank: RankTime, y: float, scale: float) -> Iterator[str]:
    name = "one rank" if rank.rank is None else f"rank {rank.rank}"
    name += "" if rank.stage is None else f", stage {rank.stage}"
    yield f'<text class="end" x="{_LEFT - 8:g}" y="{y + 13:g}">{name}</text>'
    x = _LEFT
    for part in PARTS:
        value = float(getattr(rank, f"{part}_s"))
        width = value * scale
        if width <= 0:
            continue
        yield (
            f'<g><title>{name}: {part} {seconds(value)}</title><rect class="{part}" x="{x:.1f}" y="{y:g}" '
            f'width="{width:.1f}" height="{_BAR:g}"/>'
        )
        if width >= _LEGIBLE:
            yield f'<text class="in" x="{x + width / 2:.1f}" y="{y + 13:g}">{percent(rank.share(part))}</text>'
        yield "</g>"
        x += width
    yield f'<text x="{x + 6:.1f}" y="{y + 13:g}">{seconds(rank.step_s)}</text>'
