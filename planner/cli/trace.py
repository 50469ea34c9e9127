"""`planner trace`: one step of a plan as a file for Perfetto."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.files import check_target, write
from planner.cli.options import ACCEPT_UNREAD, CLUSTER_PANEL, OUTPUT_PANEL, ClusterOptions, own, spread
from planner.cli.output import print_lines
from planner.cli.timeline import drawn

EPILOG = """Examples:

planner trace out/plan.json -o step.json

planner trace out -o step.json --all

planner trace pretrain.yaml --cards 64 -o step.json --force

Open the file at ui.perfetto.dev or chrome://tracing; both read it in the browser. Exit code 0 whether the plan
fits or not, 2 for bad input."""


@spread(epilog=EPILOG)
def trace(
    plan: Annotated[
        str, typer.Argument(help="plan.json, its folder, MindFormers YAML, launch script.", metavar="PLAN")
    ],
    cluster: ClusterOptions,
    out: Annotated[str, own("--out -o", OUTPUT_PANEL, "File to write.", "FILE.json")],
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards, where the file does not say.", "N")] = None,
    every: Annotated[bool, own("--all", OUTPUT_PANEL, "All micro-batches, not a readable number.")] = False,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
    force: Annotated[bool, own("--force", OUTPUT_PANEL, "Replace an existing file.")] = False,
) -> None:
    """Write one step of a plan as a trace: passes, recompute, communication, bubbles and memory of each stage."""
    from planner.report.trace import trace_text

    check_target(out, force=force)
    step, title = drawn(plan, cluster, cards, every=every, accept_unread=accept_unread)
    write(out, trace_text(step, title))
    count = step.line.micro_batches
    of = "" if step.whole else f" of {step.strategy.micro_batches}"
    print_lines(
        [f"Written   {out}: {count}{of} micro-batches on {step.line.stages} stages; open it at ui.perfetto.dev"]
    )
