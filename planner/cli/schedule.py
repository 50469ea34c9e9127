"""`planner schedule`: when a training is evaluated, saved and profiled."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import parse
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    OUTPUT_PANEL,
    ClusterOptions,
    ModelOptions,
    OutputOptions,
    PinOptions,
    WorkloadOptions,
    own,
    spread,
)
from planner.cli.output import print_document, print_lines
from planner.cli.subject import subject

EPILOG = """Examples:

planner schedule out/plan.json --tokens 1T

planner schedule --params 70B --cards 512 --tokens 2T --eval-tokens 1B

Exit codes: 0 ok, 2 bad input, 3 nothing fits."""


@spread(epilog=EPILOG)
def schedule(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    output: OutputOptions,
    plan: Annotated[
        str | None,
        typer.Argument(help="plan.json, its folder, YAML, script; or describe a job by options.", metavar="[PLAN]"),
    ] = None,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards.", "N")] = None,
    held_out: Annotated[
        str | None, own("--eval-tokens", OUTPUT_PANEL, "Tokens of one evaluation (default: 1 % of --tokens).", "1B")
    ] = None,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """When to evaluate, save and profile a training, and what share of it that costs."""
    from planner.report.schedule import schedule_document, schedule_lines
    from planner.study.schedule import schedule as scheduled

    tokens = None if held_out is None else parse.tokens(held_out, "--eval-tokens")
    request, estimate, unread = subject(
        plan, model, cluster, workload, pins, cards, accept_unread=accept_unread, quiet=output.json
    )
    found = scheduled(request, estimate, tokens)
    if output.json:
        print_document(schedule_document(request, estimate, found, unread))
    else:
        print_lines(schedule_lines(request, estimate, found, unread))
