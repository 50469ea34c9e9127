"""`planner levers`: what else could be switched on for a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import ask
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    ClusterOptions,
    ModelOptions,
    OutputOptions,
    PinOptions,
    WorkloadOptions,
    own,
    spread,
)
from planner.cli.output import print_document, print_lines

EPILOG = """Examples:

planner levers out/plan.json

planner levers pretrain.yaml --cards 64 --json

Exit codes: 0 answered, 2 bad input."""


@spread(epilog=EPILOG)
def levers(
    plan: Annotated[
        str, typer.Argument(help="plan.json, its folder, MindFormers YAML, launch script.", metavar="PLAN")
    ],
    cluster: ClusterOptions,
    output: OutputOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards, where the file does not say.", "N")] = None,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """What else could be switched on: predicted gain and memory, or a published range with its source."""
    from planner.report.levers import lever_lines, levers_document
    from planner.study.jobs import Job
    from planner.study.levers import levers as find

    nothing = ModelOptions(), cluster, WorkloadOptions(), PinOptions()
    request, strategy, unread = ask.file_from(plan, *nothing, cards, accept_unread=accept_unread)
    base, found = find(Job(request=request, strategy=strategy))
    if output.json:
        print_document(levers_document(base, found, unread))
    else:
        print_lines(lever_lines(base, found, unread))
