"""`planner check`: faults that the frameworks accept silently."""

from __future__ import annotations

from typing import Annotated

import typer

from planner import limits
from planner.cli import parse
from planner.cli.options import CLUSTER_PANEL, OutputOptions, own, spread
from planner.cli.output import print_document, print_lines

FOUND = 4

EPILOG = """Examples:

planner check pretrain.yaml

planner check out

planner check pretrain.sh --cards 64 --json

Exit codes: 0 nothing found, 2 bad input, 4 faults found."""


@spread(epilog=EPILOG)
def check(
    path: Annotated[str, typer.Argument(help="YAML, script, plan.json, or a folder of these.", metavar="FILE")],
    output: OutputOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards, where no file says it.", "N")] = None,
) -> int:
    """Find what a framework accepts silently and then fails or wastes hours on: line, why, fix."""
    from planner.dialects.check import check as find
    from planner.dialects.check import not_judged
    from planner.report.checks import check_document, check_lines

    devices = None if cards is None else parse.whole(cards, "--cards", most=limits.MOST_CARDS)
    found = find(path, devices)
    left = not_judged(path, devices)
    if output.json:
        print_document(check_document(path, found, left))
    else:
        print_lines(check_lines(path, found, left))
    return FOUND if found else 0
