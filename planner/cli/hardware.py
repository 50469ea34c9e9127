"""`planner hardware`: shipped profiles, or one profile with its sources."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import OutputOptions, spread
from planner.cli.output import print_document, print_lines

EPILOG = """Examples:

planner hardware

planner hardware 910b2

planner hardware my-cluster.yaml --json"""


@spread(epilog=EPILOG)
def hardware(
    output: OutputOptions,
    name: Annotated[str | None, typer.Argument(help="Profile name or YAML file.", metavar="[NAME]")] = None,
) -> None:
    """List hardware profiles, or show one with the source of every number."""
    from planner.cluster import load
    from planner.report.catalogues import hardware_lines, profile_lines
    from planner.report.documents import hardware_document

    profiles = [load.hardware(each) for each in ([name] if name else load.hardware_names())]
    if output.json:
        print_document(hardware_document(profiles))
    elif name:
        print_lines(profile_lines(profiles[0]))
    else:
        print_lines(hardware_lines(profiles))
