"""The fit of a calibration as text, and as a page of plots that needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from planner.errors import SpecError
from planner.report.text import table, wrapped

if TYPE_CHECKING:
    from planner.calibrate.device import Residual
    from planner.calibrate.shown import Shown

_WIDTH: Final = 460
_HEIGHT: Final = 300
_MARGIN: Final = 52
_BLUE: Final = "#2a6fb0"
_ORANGE: Final = "#c8641e"
_STYLE: Final = """
body { font-family: sans-serif; max-width: 62rem; margin: 2rem auto; color: #222; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; }
svg { background: #fbfbfb; border: 1px solid #ddd; margin: .3rem; } text { font-size: 11px; fill: #444; }
"""


def shown_lines(found: Shown) -> list[str]:
    """Constants and errors as text."""
    record = found.record
    lines = [f"{record.name}: {record.device}, {record.framework} {record.generation}, {record.date}", ""]
    lines += table(("constant", "value", "80 %", "kind", "from"), _constants(found), left=(0, 3, 4))
    if found.residuals:
        lines += ["", *table(("fit", "rows", "median", "held out: median", "worst"), _errors(found), left=(0,))]
    else:
        lines += ["", "Its data do not stand beside it: no residuals."]
    if found.changed:
        lines += wrapped(f"Differs from a fit to its data: {', '.join(found.changed)}", " " * 10)
    return lines


def _constants(found: Shown) -> list[tuple[str, ...]]:
    return [
        (key, f"{c.value:.4g}", f"{c.low:.3g} to {c.high:.3g}", c.kind, c.source)
        for key, c in sorted(found.record.constants.items())
    ]


def groups_of(found: Shown) -> dict[str, list[Residual]]:
    """Residuals by what was fitted."""
    groups: dict[str, list[Residual]] = {}
    for row in found.residuals:
        groups.setdefault(row.group, []).append(row)
    return groups


def _errors(found: Shown) -> list[tuple[str, ...]]:
    rows = []
    for name, group in groups_of(found).items():
        fitted = np.array([abs(row.fitted_s / row.measured_s - 1.0) for row in group])
        held = np.array([row.held_out_error for row in group])
        figures = (np.median(fitted), np.median(held), held.max())
        rows.append((name, str(len(group)), *(f"{100 * figure:.1f} %" for figure in figures)))
    return rows


def shown_document(found: Shown, page: Path) -> dict[str, Any]:
    """The answer as JSON."""
    from planner.report.documents import head

    return {
        **head("calibrate-show"),
        "calibration": found.record.name,
        "constants": {
            key: {"value": c.value, "low": c.low, "high": c.high, "kind": c.kind, "source": c.source}
            for key, c in sorted(found.record.constants.items())
        },
        "residuals": [
            {
                "group": row.group,
                "label": row.label,
                "measured_s": row.measured_s,
                "fitted_s": row.fitted_s,
                "held_out_s": row.held_out_s,
            }
            for row in found.residuals
        ],
        "changed": list(found.changed),
        "page": str(page),
    }


def write_page(found: Shown, path: Path) -> None:
    """One page: two plots for each fit, and the constants.

    Raises
    ------
    SpecError
        The page cannot be written.
    """
    record = found.record
    title = html.escape(f"{record.name}: {record.device}, {record.framework} {record.generation}, {record.date}")
    parts = [f"<!doctype html><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"]
    for name, group in groups_of(found).items():
        parts.append(f"<h2>{html.escape(name)}</h2>{_against(group)}{_residuals(group)}")
    if not found.residuals:
        parts.append("<p>Its data do not stand beside it: no plots.</p>")
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in _constants(found))
    heads = "".join(f"<th>{name}</th>" for name in ("constant", "value", "80 %", "kind", "from"))
    parts.append(f"<h2>Constants</h2><table><tr>{heads}</tr>{cells}</table>")
    try:
        path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--html {path} cannot be written: {error.strerror or error}.") from error


def _against(rows: Sequence[Residual]) -> str:
    """Fitted against measured seconds, both logarithmic, with the line on which they agree."""
    times = [t for row in rows for t in (row.measured_s, row.fitted_s, row.held_out_s)]
    low, high = _decades(times)
    ends = [(_x(value, low, high), _y(value, low, high)) for value in (low, high)]
    line = f"<path d='M {' L '.join(f'{x:.1f} {y:.1f}' for x, y in ends)}' stroke='#bbb'/>"
    dots = [
        _dot(_x(math.log10(r.measured_s), low, high), _y(math.log10(r.fitted_s), low, high), r, _BLUE) for r in rows
    ]
    ticks = [_ticks(low, high, "s"), _side_ticks(low, high, "s")]
    return _svg([line, *dots, *ticks], "measured, s", "fitted, s")


def _residuals(rows: Sequence[Residual]) -> str:
    """Held-out error over size."""
    low, high = _decades([row.size for row in rows])
    errors = [100.0 * (row.held_out_s / row.measured_s - 1.0) for row in rows]
    top = max(10.0, 1.1 * max(map(abs, errors)))
    zero = (
        f"<line x1='{_MARGIN}' y1='{_y(0.0, -top, top)}' x2='{_WIDTH - 10}' y2='{_y(0.0, -top, top)}' stroke='#bbb'/>"
    )
    dots = [
        _dot(_x(math.log10(row.size), low, high), _y(error, -top, top), row, _ORANGE)
        for row, error in zip(rows, errors, strict=True)
    ]
    marks = "".join(
        f"<text x='4' y='{_y(value, -top, top) + 4:.1f}'>{value:+.0f} %</text>"
        for value in (-top / 1.1, 0.0, top / 1.1)
    )
    return _svg([zero, *dots, _ticks(low, high, ""), marks], "size: FLOP, bytes or s", "held-out error")


def _dot(x: float, y: float, row: Residual, colour: str) -> str:
    words = f"{row.label}: measured {row.measured_s:.4g} s, fitted {row.fitted_s:.4g}, held out {row.held_out_s:.4g}"
    note = f" ({row.mark})" if row.mark else ""
    return (
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'><title>{html.escape(words + note)}</title></circle>"
    )


def _decades(values: Sequence[float]) -> tuple[float, float]:
    logs = [math.log10(value) for value in values]
    return math.floor(min(logs) * 2) / 2, math.ceil(max(logs) * 2 + 1e-9) / 2 + (min(logs) == max(logs))


def _x(value: float, low: float, high: float) -> float:
    return _MARGIN + (value - low) / (high - low) * (_WIDTH - _MARGIN - 10)


def _y(value: float, low: float, high: float) -> float:
    return _HEIGHT - 34 - (value - low) / (high - low) * (_HEIGHT - 48)


def _ticks(low: float, high: float, unit: str) -> str:
    places = range(math.ceil(low), math.floor(high) + 1)
    return "".join(f"<text x='{_x(p, low, high) - 12:.1f}' y='{_HEIGHT - 18}'>1e{p}{unit}</text>" for p in places)


def _side_ticks(low: float, high: float, unit: str) -> str:
    places = range(math.ceil(low), math.floor(high) + 1)
    return "".join(f"<text x='4' y='{_y(p, low, high) + 4:.1f}'>1e{p}{unit}</text>" for p in places)


def _svg(parts: Sequence[str], below: str, beside: str) -> str:
    words = f"<text x='{_WIDTH / 2}' y='{_HEIGHT - 4}'>{below}</text><text x='{_MARGIN}' y='12'>{beside}</text>"
    return f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img'>{''.join(parts)}{words}</svg>"
