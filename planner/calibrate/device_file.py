"""The calibration file of a measured device: YAML that ``--calibration`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner import frameworks
from planner.calibrate.device import DeviceFit
from planner.cluster.records import Calibration, Constant, Hardware
from planner.cluster.schema_tables import tables_to_dict


def run_on(hardware: Hardware) -> tuple[str, ...]:
    """Frameworks whose operators a device runs: the device is measured, not the framework."""
    return tuple(each.name for each in frameworks.ALL if each.ascend != (hardware.device.vendor == "nvidia"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the measurements of a file come from.

    Attributes
    ----------
    name : str
        Name of the calibration.
    date : str
        ``YYYY-MM-DD``.
    device, software : str
        As the machine names them.
    sources : tuple of str
        Files that were read.
    unsupported : mapping of str to str
        Operations the device does not have.
    notes : tuple of str
        Anything else a reader should know.
    """

    name: str
    date: str
    device: str
    software: str
    sources: tuple[str, ...]
    unsupported: Mapping[str, str]
    notes: tuple[str, ...] = ()


def calibration_text(fit: DeviceFit, hardware: Hardware, base: Calibration, origin: Origin) -> str:
    """The file.

    The interval of an estimate is the base's: how far a whole step lies from the sum of its parts shows in steps, which
    micro-benchmarks do not measure.
    """
    lines = [
        f"# {origin.device}, {origin.software}, measured by planner calibrate on {origin.date}.",
        *_residual_lines(fit),
        *_origin_lines(fit, base, origin),
        f"name: {origin.name}",
        f"device: [{hardware.name}]",
        f"framework: [{', '.join(run_on(hardware))}]",
        "generation: measured",
        f"date: {origin.date}",
        f"rows: {fit.points}",
        f"residual_log_p10: {base.residual_log_p10:.4f}",
        f"residual_log_p90: {base.residual_log_p90:.4f}",
        "constants:",
        *(_constant_line(key, fit.constants[key]) for key in sorted(fit.constants)),
        "measured:",
        *_table_lines(tables_to_dict(fit.measured)),
        f"sources: [{', '.join(_quoted(source) for source in _sources(base, origin))}]",
    ]
    return "\n".join(lines) + "\n"


def _sources(base: Calibration, origin: Origin) -> tuple[str, ...]:
    return (
        *origin.sources,
        f"{origin.device}, {origin.software}",
        f"interval of a step: that of {base.name}",
    )


def fallen_back(fit: DeviceFit, base: Calibration) -> dict[str, str]:
    """Constants that no point determines, and whose value holds instead: a kind and a file."""
    return {
        key: constant.kind if constant.kind == "prior" else f"{constant.kind} of {base.name}"
        for key, constant in sorted(base.constants.items())
        if key not in fit.constants
    }


def _residual_lines(fit: DeviceFit) -> list[str]:
    import numpy as np

    out = []
    for group in dict.fromkeys(row.group for row in fit.residuals):
        errors = fit.held_out(group) if "," in group else _exactly(fit, group)
        out.append(
            f"# {group}: {len(errors)} points, held out: median {100 * np.median(errors):.1f} %, "
            f"worst {100 * errors.max():.1f} %"
        )
    return out


def _exactly(fit: DeviceFit, group: str) -> Any:
    import numpy as np

    return np.array([row.held_out_error for row in fit.residuals if row.group == group])


def _origin_lines(fit: DeviceFit, base: Calibration, origin: Origin) -> list[str]:
    marked = ", ".join(f"{count} {mark}" for mark, count in sorted(fit.marks.items()))
    lines = [f"# Doubtful points: {marked or 'none'} of {fit.points}."]
    lines += [f"# Not on this device: {name}." for name in sorted(origin.unsupported)]
    lines += [f"# Not measured, {where}: {key}." for key, where in fallen_back(fit, base).items()]
    return lines + [f"# {note}" for note in origin.notes]


def _constant_line(key: str, constant: Constant) -> str:
    numbers = f"value: {digits(constant.value)}, low: {digits(constant.low)}, high: {digits(constant.high)}"
    return f"  {key}: {{{numbers}, kind: {constant.kind}, source: {_quoted(constant.source)}}}"


def _table_lines(section: Mapping[str, Any]) -> list[str]:
    lines = [f"  dtype: {_quoted(section['dtype'])}"]
    for key in ("width", "noise"):
        if key in section:
            lines.append(f"  {key}: {digits(section[key])}")
    for key in ("matmul", "matmul_backward"):
        if key in section:
            lines += [f"  {key}:", *(f"    - {_list(row)}" for row in section[key])]
    if not section["collectives"]:
        return [*lines, "  collectives: []"]
    lines.append("  collectives:")
    for table in section["collectives"]:
        head = f"op: {table['op']}, ranks: {table['ranks']}, nodes: {table['nodes']}"
        lines.append(f"    - {{{head}, bytes: {_list(table['bytes'])}, seconds: {_list(table['seconds'])}}}")
    return lines


def _list(values: Sequence[float]) -> str:
    return f"[{', '.join(digits(value) for value in values)}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def digits(value: float) -> str:
    """Five significant digits in a form that YAML reads as a number.

    >>> digits(1e-05), digits(4096.0), digits(0.5)
    ('1.0e-05', '4096', '0.5')
    """
    whole = int(value)
    if value == whole and abs(value) < 1e15:
        return str(whole)
    text = f"{value:.5g}"
    return text if "." in text or "e" not in text else text.replace("e", ".0e")
