"""`planner fit`: make calibrations from measurements."""

from __future__ import annotations

from typing import Annotated

from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import CalibrationError

PANEL = "Fit"

EPILOG = """Examples:

planner fit --out calibration

planner fit --data my-runs.csv --out my-calibration

Exit codes: 0 ok, 2 nothing to fit or the folder cannot be written."""


@spread(epilog=EPILOG)
def fit(
    output: OutputOptions,
    data: Annotated[str | None, own("--data", PANEL, "Measurements, CSV (default: the shipped ones).", "FILE")] = None,
    out: Annotated[str | None, own("--out", PANEL, "Folder for the calibration files.", "DIR")] = None,
    date: Annotated[str | None, own("--date", PANEL, "Date written into them (default: today).", "YYYY-MM-DD")] = None,
) -> None:
    """Fit the constants of the time model to measured runs and write calibration files."""
    import datetime
    from pathlib import Path

    from planner.calibrate.calibration_files import remake
    from planner.report.documents import head

    if out is None:
        raise CalibrationError("where to? Give --out DIR, a folder that exists.")
    if not Path(out).is_dir():
        raise CalibrationError(f"--out {out} is not a folder; make it first.")
    day = date or datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    written = remake(out, day, () if data is None else (data,))
    if output.json:
        print_document({**head("fit"), "files": [str(path) for path in written]})
    else:
        print_lines(["Written:", *(f"  {path}" for path in written)])
