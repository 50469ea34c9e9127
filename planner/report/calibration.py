"""A measured calibration as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner.cluster.collectives import bus_bytes_per_s
from planner.report.text import table, wrapped

if TYPE_CHECKING:
    from planner.calibrate.collective_fit import CollectiveFit, Line
    from planner.calibrate.device import DeviceFit
    from planner.calibrate.session import Calibrated


#: Said where most points are doubtful.
BUSY = "most points ran beside other programs or scattered; measure again on a calm machine (--force starts anew)"


def calibration_lines(found: Calibrated) -> list[str]:
    """What was measured, how well the fit holds, what falls back."""
    fit = found.fit
    marked = ", ".join(f"{count} {mark}" for mark, count in sorted(fit.marks.items()))
    lines = wrapped(
        f"Device    {found.origin.device}, {found.origin.software}; profile {found.hardware.name}", " " * 10
    )
    lines += wrapped(f"Points    {fit.points}" + (f", of which doubtful: {marked}" if marked else ""), " " * 10)
    if sum(fit.marks.values()) > 0.5 * fit.points:
        lines += wrapped(f"Remark    {BUSY}", " " * 10)
    lines += ["", *table(("constant", "value", "80 %", "from"), _constant_rows(fit), left=(0, 3)), ""]
    if fit.residuals:
        heads = ("fit", "points", "held out: median", "worst")
        lines += [*table(heads, error_rows(fit), left=(0,)), ""]
    for one in fit.collectives:
        lines += wrapped(
            f"{one.op}, {one.ranks} ranks: {'; '.join(_line_words(one, line) for line in one.lines)}", " " * 10
        )
    if found.origin.unsupported:
        lines += wrapped(f"Not on this device: {', '.join(sorted(found.origin.unsupported))}", " " * 10)
    if found.fallbacks:
        lines += wrapped(f"Not measured, as before: {_grouped(found.fallbacks)}", " " * 10)
    lines += [f"Remark    {remark}" for remark in found.remarks]
    lines += ["", f"Written   {', '.join(map(str, found.files))}"]
    return [*lines, f"Use it    planner suggest --hardware {found.hardware.name} --calibration {found.files[0]} ..."]


def _grouped(fallbacks: dict[str, str]) -> str:
    """Constants by where they come from."""
    by: dict[str, list[str]] = {}
    for key, where in fallbacks.items():
        by.setdefault(where, []).append(key)
    return "; ".join(f"{', '.join(keys)} ({where})" for where, keys in by.items())


def _constant_rows(fit: DeviceFit) -> list[tuple[str, str, str, str]]:
    return [
        (key, f"{c.value:.4g}", f"{c.low:.3g} to {c.high:.3g}", c.source) for key, c in sorted(fit.constants.items())
    ]


def error_rows(fit: DeviceFit) -> list[tuple[str, str, str, str]]:
    """Held-out errors of each fitted group."""
    rows = []
    for group in dict.fromkeys(row.group for row in fit.residuals):
        errors = np.array([row.held_out_error for row in fit.residuals if row.group == group])
        rows.append((group, str(len(errors)), f"{100 * np.median(errors):.1f} %", f"{100 * errors.max():.1f} %"))
    return rows


def _line_words(fit: CollectiveFit, line: Line) -> str:
    bus = float(bus_bytes_per_s(fit.op, line.bytes_per_s, fit.ranks, 1.0))
    rates = f"{line.bytes_per_s / 1e9:.3g} GB/s (bus {bus / 1e9:.3g})"
    return f"{1e6 * line.alpha_s:.0f} us + size / {rates} to {line.to_bytes:.3g} bytes"


def calibration_document(found: Calibrated) -> dict[str, Any]:
    """The answer as JSON."""
    from planner.report.documents import head

    fit = found.fit
    return {
        **head("calibrate"),
        "hardware": found.hardware.name,
        "device": found.origin.device,
        "software": found.origin.software,
        "points": fit.points,
        "marks": dict(fit.marks),
        "constants": {
            key: {"value": c.value, "low": c.low, "high": c.high, "source": c.source}
            for key, c in sorted(fit.constants.items())
        },
        "held_out": {
            group: {"points": int(count), "median": median, "worst": worst}
            for group, count, median, worst in error_rows(fit)
        },
        "unsupported": dict(found.origin.unsupported),
        "fallbacks": found.fallbacks,
        "remarks": list(found.remarks),
        "files": [str(path) for path in found.files],
    }
