"""`planner accuracy`: how well predictions agree with measurements."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

Answer = tuple[list[str], dict[str, Any]]
KINDS = ("time", "memory")

EPILOG = """Examples:

planner accuracy time

planner accuracy memory --json

planner accuracy time --data my-runs.csv"""


@spread(epilog=EPILOG)
def accuracy(
    kind: Annotated[str, typer.Argument(help="time or memory.", metavar="KIND")],
    output: OutputOptions,
    data: Annotated[str | None, own("--data", "Data", "Score this CSV with the shipped constants.", "FILE")] = None,
) -> None:
    """Score predictions against published measurements, in sample and left out."""
    if kind not in KINDS:
        raise SpecError(f"accuracy '{kind}' is not known; legal: {', '.join(KINDS)}.")
    lines, document = memory_answer(data) if kind == "memory" else time_answer(data)
    if output.json:
        print_document(document)
    else:
        print_lines(lines)


def time_answer(data: str | None) -> Answer:
    """Step times."""
    from planner.accuracy import time as accuracy_time
    from planner.report.accuracies import time_document, time_lines

    found = accuracy_time.accuracy() if data is None else accuracy_time.accuracy_of_file(data)
    return time_lines(found), time_document(found)


def memory_answer(data: str | None) -> Answer:
    """Peaks, static bytes and verdicts."""
    from planner.accuracy import memory as accuracy_memory
    from planner.report.accuracies import memory_document, memory_lines

    found = accuracy_memory.score(data)
    return memory_lines(found, by_name=data is not None), memory_document(found)
