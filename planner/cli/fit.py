"""`planner fit`: make calibrations from measurements."""

from __future__ import annotations

from typing import Annotated

from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import CalibrationError

PANEL = "Fit"

EPILOG = """Examples:

planner fit --data my-runs.csv --out my-calibration

planner fit --out calibration --force

Exit codes: 0 ok, 2 nothing to fit, files exist already, or the folder cannot be written."""


@spread(epilog=EPILOG)
def fit(
    output: OutputOptions,
    data: Annotated[str | None, own("--data", PANEL, "Measurements, CSV (default: the shipped ones).", "FILE")] = None,
    out: Annotated[str | None, own("--out", PANEL, "Folder for the files (default: ./calibration).", "DIR")] = None,
    date: Annotated[str | None, own("--date", PANEL, "Date written into them (default: today).", "YYYY-MM-DD")] = None,
    force: Annotated[bool, own("--force", PANEL, "Replace calibration files that exist.")] = False,
) -> None:
    """Fit the constants of the time model to measured runs and write calibration files."""
    import datetime

    from planner.calibrate.calibration_files import remake
    from planner.report.documents import head

    if out is None and data is None:
        raise CalibrationError("fit to what, and where to? Give --data FILE, --out DIR, or both.")
    day = datetime.datetime.now(tz=datetime.timezone.utc).date()
    if date is not None:
        try:
            day = datetime.date.fromisoformat(date)
        except ValueError:
            raise CalibrationError(f"--date '{date}' is not a date; write it like 2026-11-30.") from None
    written = remake(out or "calibration", day.isoformat(), () if data is None else (data,), force=force)
    if output.json:
        print_document({**head("fit"), "files": [str(path) for path in written]})
    else:
        print_lines(["Written:", *(f"  {path}" for path in written)])
