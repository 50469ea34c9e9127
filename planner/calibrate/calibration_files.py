"""Calibration files remade from measurements: one YAML a device family, framework and generation, with its residuals.

A file holds the constants that were fitted; what it leaves out comes from the priors of the vendor.  Beside each stands
``residuals/<name>.csv`` with every row: measured, predicted by the fit, and predicted by constants fitted without the
row's model shape.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from planner import frameworks
from planner.calibrate.cases import read_cases, truth_paths
from planner.calibrate.fit import FloatArray, TimeCase, generation_fit, log_error
from planner.calibrate.intervals import (
    Interval,
    generation_interval,
    interval,
    pooled_interval,
    source_interval,
    widened,
)
from planner.calibrate.left_out import LABELS, left_out_errors
from planner.calibrate.time_sets import FittedSet, family_of, fit_sets, generation_of
from planner.cluster.records import Constant
from planner.errors import CalibrationError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """Which sets make the files of a device family.

    ``extras`` are sets whose fitted constants are added; ``scatter`` are sets of the same device from other sources,
    each predicted by these constants: a new source is no closer.  Rows of one source alone cannot tell that: ``like``
    names the set of another device whose scatter is taken.  ``moe`` and ``cp`` name sets whose left-out errors
    become the wider intervals of such rows.
    """

    stem: str
    dense: str
    devices: tuple[str, ...]
    frameworks: Mapping[str, tuple[str, ...]]
    extras: tuple[str, ...] = ()
    scatter: tuple[str, ...] = ()
    like: str = ""
    moe: str = ""
    cp: str = ""


_ASCEND: Final[Mapping[str, tuple[str, ...]]] = frameworks.families(ascend=True)
_MEGATRON: Final[Mapping[str, tuple[str, ...]]] = frameworks.families(ascend=False)

#: Dense rows on A100, one set a source.
_A100: Final = (
    "A100 Megatron dense", "A100 torchtitan dense", "A100 sweeps dense", "A100 FSDP dense", "A100 InternEvo dense",
)  # fmt: skip

FILES: Final = (
    FileSpec(
        stem="ascend-a2", dense="Ascend A2 dense", devices=("910B1", "910B2", "910B3", "910B4", "910B4-64G"),
        frameworks=_ASCEND, extras=("Ascend A2 MoE", "Ascend A2 context parallel"), moe="Ascend A2 MoE",
        cp="Ascend A2 context parallel",
    ),
    FileSpec(stem="ascend-910a", dense="Ascend 910A dense", devices=("910A",), frameworks=_ASCEND),
    *(
        FileSpec(stem="gpu-a100", dense=name, devices=("A100-80G",), frameworks=_MEGATRON, scatter=_A100)
        for name in _A100
    ),
    FileSpec(
        stem="gpu-a100-pcie", dense="A100 PCIe dense", devices=("A100-PCIE",), frameworks=_MEGATRON,
        like=_A100[0],
    ),
    FileSpec(
        stem="gpu-b200", dense="B200 dense", devices=("B200",), frameworks=_MEGATRON, extras=("B200 MoE",),
        like=_A100[0], moe="B200 MoE", cp="B200 context parallel",
    ),
    FileSpec(stem="gpu-h100", dense="H100 MoE", devices=("H100",), frameworks=_MEGATRON,
        like=_A100[0],
    ),
)  # fmt: skip


def remake(
    directory: str | Path, date: str, data: Sequence[str | Path] = (), *, force: bool = True
) -> tuple[Path, ...]:
    """Fit all sets and write their calibration files.

    Parameters
    ----------
    directory : str or Path
        Folder to write to; made if its parent exists.
    date : str
        Written into the files, ``YYYY-MM-DD``.
    data : sequence of str or Path
        Measurement files; default: the shipped ones.
    force : bool
        Replace files that exist.

    Returns
    -------
    tuple of Path
        Files written.

    Raises
    ------
    CalibrationError
        Nothing to fit, a file exists and ``force`` is off, or the folder cannot be written.
    """
    cases, skipped = read_cases(tuple(data) or truth_paths())
    done = fit_sets(cases)
    if not done:
        raise CalibrationError(f"no row belongs to a set that can be fitted; {len(skipped)} incomplete rows skipped.")
    texts: dict[Path, str] = {}
    for spec in FILES:
        if spec.dense in done:
            texts.update(_family(spec, done, Path(directory), date))
    present = [path.name for path in texts if path.exists()]
    if present and not force:
        names = ", ".join(present[:2]) + (f" and {len(present) - 2} more" if len(present) > 2 else "")
        raise CalibrationError(f"{directory} has {names} already; replace them with --force, or choose another --out.")
    try:
        for folder in (Path(directory), Path(directory) / "residuals"):
            folder.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CalibrationError(f"calibrations cannot be written to {directory}: {error.strerror or error}.") from error
    return tuple(texts)


def _family(spec: FileSpec, done: Mapping[str, FittedSet], directory: Path, date: str) -> dict[Path, str]:
    fitted = done[spec.dense]
    left = left_out_errors(fitted, fitted.spec.left_out[-1])
    common = {key: fitted.fit.constants[key] for key in (*_base_keys(fitted, done), *fitted.fit.keys)}
    for name in spec.extras:
        if name in done:
            common.update({key: done[name].fit.constants[key] for key in done[name].fit.keys})
    for key, name in (("residual_moe", spec.moe), ("residual_cp", spec.cp)):
        if name in done:
            common[key] = _interval(done[name])
    kind = fitted.spec.left_out[-1]
    sources = [LABELS[kind](case) for case in fitted.fit.cases] if kind in ("release", "source") else None
    pooled = widened(pooled_interval(-left, sources), _between_sources(spec, fitted, done))
    out: dict[Path, str] = {}
    labels = [(family_of(case), generation_of(case)) for case in fitted.fit.cases]
    for family, generation in sorted(set(labels)):
        rows = np.array([label == (family, generation) for label in labels])
        members = [case for case, inside in zip(fitted.fit.cases, rows, strict=True) if inside]
        constants = dict(common)
        if len(set(labels)) > 1:
            own = generation_fit(members, fitted.fit.constants)
            constants.update({key: own.constants[key] for key in own.keys})
        name = f"{spec.stem}-{family}-{generation}".lower()
        residual = generation_interval(pooled, -left[rows])
        text = _yaml(name, spec, family, generation, date, constants, residual, members)
        values = fitted.fit.values | {key: constant.value for key, constant in constants.items()}
        out[directory / f"{name}.yaml"] = text
        out[directory / "residuals" / f"{name}.csv"] = _residuals(members, values, left[rows])
    return out


def _between_sources(spec: FileSpec, fitted: FittedSet, done: Mapping[str, FittedSet]) -> Interval:
    """Where a new source lies, from how far others lie from these constants; nothing where there are no others."""
    if spec.like in done:
        fitted = done[spec.like]
    names = _A100 if spec.like else spec.scatter
    others = [done[name] for name in names if name in done and done[name] is not fitted]
    errors = [np.array([-log_error(case, fitted.fit.values) for case in other.fit.cases]) for other in others]
    return source_interval(errors)


def _base_keys(fitted: FittedSet, done: Mapping[str, FittedSet]) -> tuple[str, ...]:
    base = fitted.spec.base
    return done[base].fit.keys if base else ()


def _interval(fitted: FittedSet) -> Constant:
    low, high = interval(-left_out_errors(fitted, fitted.spec.left_out[0]))
    rows = len(fitted.fit.cases)
    return Constant(value=0.0, low=low, high=high, kind="calibrated", source=f"left-out errors of {rows} rows")


def _yaml(
    name: str, spec: FileSpec, family: str, generation: str, date: str, constants: Mapping[str, Constant],
    residual: tuple[float, float], cases: Sequence[TimeCase],
) -> str:  # fmt: skip
    lines = [
        "# Fitted constants of the time model; remade by `planner fit`.  Not written by hand.",
        f"name: {name}",
        f"device: [{', '.join(spec.devices)}]",
        f"framework: [{', '.join(spec.frameworks[family])}]",
        f'generation: "{generation}"',
        f"date: {date}",
        f"rows: {len(cases)}",
        f"residual_log_p10: {residual[0]:.4f}",
        f"residual_log_p90: {residual[1]:.4f}",
        "constants:",
    ]
    for key in sorted(constants):
        c = constants[key]
        numbers = f"value: {_digits(c.value)}, low: {_digits(c.low)}, high: {_digits(c.high)}"
        lines.append(f'  {key}: {{{numbers}, kind: {c.kind}, source: "{c.source}"}}')
    lines.append(f'sources: ["published runs, row by row in residuals/{name}.csv"]')
    return "\n".join(lines) + "\n"


def _digits(value: float) -> str:
    """Four significant digits in a form that YAML reads as a float."""
    text = f"{value:.4g}"
    return text if "." in text or "e" not in text else text.replace("e", ".0e")


def _residuals(cases: Sequence[TimeCase], values: Mapping[str, float], left: FloatArray) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("case_id", "measured_s", "predicted_s", "left_out_s"))
    for case, error in zip(cases, left, strict=True):
        predicted = case.measured_s * math.exp(log_error(case, values))
        figures = (case.measured_s, predicted, case.measured_s * math.exp(error))
        writer.writerow((case.case_id, *(f"{figure:.4g}" for figure in figures)))
    return buffer.getvalue()
