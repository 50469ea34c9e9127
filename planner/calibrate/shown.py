"""A calibration file beside the data it was fitted to."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from planner.calibrate.device import Residual, fit_device
from planner.cluster import load
from planner.cluster.records import Calibration, Hardware
from planner.errors import CalibrationError
from planner.measure import raw

#: Constants of a file and of a fit to its data that differ by more than its digits were changed by hand [share].
CHANGED: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One calibration and how near it is to its data.

    Attributes
    ----------
    path : Path
    record : Calibration
        With the constants of the file alone.
    residuals : tuple of Residual
        Its data beside the fit; empty where the data do not stand beside the file.
    data : Path or None
        Where they are.
    changed : tuple of str
        Constants that a fit to the data does not give.
    """

    path: Path
    record: Calibration
    residuals: tuple[Residual, ...]
    data: Path | None
    changed: tuple[str, ...]


def shown(path: Path) -> Shown:
    """Read a calibration and its data: the raw CSV beside it, or ``residuals/NAME.csv`` of a fit to runs.

    Raises
    ------
    CalibrationError
        The file is no calibration, or its data are damaged.
    """
    record, hardware = _record(path)
    measured = path.with_suffix(".csv")
    published = path.parent / "residuals" / f"{path.stem}.csv"
    if measured.is_file() and raw.is_raw(measured):
        points = raw.points(raw.read(measured), measured.name)
        fit = fit_device(points, hardware, load.calibration(hardware, record.framework))
        changed = tuple(
            key
            for key, constant in record.constants.items()
            if key not in fit.constants or not math.isclose(constant.value, fit.constants[key].value, rel_tol=CHANGED)
        )
        return Shown(path=path, record=record, residuals=fit.residuals, data=measured, changed=changed)
    rows = _published(published) if published.is_file() else ()
    return Shown(path=path, record=record, residuals=rows, data=published if rows else None, changed=())


def _record(path: Path) -> tuple[Calibration, Hardware]:
    """The file's own constants, and a device it is for."""
    try:
        head = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
        device, framework = (_first(head[key]) for key in ("device", "framework"))
    except OSError as error:
        raise CalibrationError(f"calibration {path} cannot be read: {error.strerror or error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, IndexError):
        raise CalibrationError(f"{path} is no calibration: device and framework must stand in it.") from None
    hardware = load.hardware(device)
    whole = load.calibration_file(path, hardware, framework)
    own = {key: whole.constants[key] for key in head["constants"]}
    from dataclasses import replace

    return replace(whole, constants=own), hardware


def _first(value: object) -> str:
    return str(value[0] if isinstance(value, list) else value)


def _published(path: Path) -> tuple[Residual, ...]:
    """Rows of a fit to whole steps."""
    with path.open(encoding="utf-8", newline="") as file:
        rows: Sequence[dict[str, str]] = list(csv.DictReader(file))
    try:
        return tuple(
            Residual(
                group="steps of published runs", label=row["case_id"], size=float(row["measured_s"]),
                measured_s=float(row["measured_s"]), fitted_s=float(row["predicted_s"]),
                held_out_s=float(row["left_out_s"]),
            )
            for row in rows
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise CalibrationError(f"{path}: {error} is missing or no number.") from None
