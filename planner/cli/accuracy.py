"""`planner accuracy`: how well predictions agree with measurements."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

KINDS = ("time",)

EPILOG = """Examples:

planner accuracy time

planner accuracy time --json

planner accuracy time --data my-runs.csv"""


@spread(epilog=EPILOG)
def accuracy(
    kind: Annotated[str, typer.Argument(help="time.", metavar="KIND")],
    output: OutputOptions,
    data: Annotated[str | None, own("--data", "Data", "Score this CSV with the shipped constants.", "FILE")] = None,
) -> None:
    """Score predictions against published measurements, in sample and left out."""
    if kind not in KINDS:
        raise SpecError(f"accuracy '{kind}' is not known; legal: {', '.join(KINDS)}.")
    from planner.calibrate.accuracy_time import accuracy as scored
    from planner.calibrate.accuracy_time import accuracy_of_file
    from planner.report.accuracies import time_document, time_lines

    found = scored() if data is None else accuracy_of_file(data)
    if output.json:
        print_document(time_document(found))
    else:
        print_lines(time_lines(found))
