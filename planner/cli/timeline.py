"""`planner timeline`: one step of a plan, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import ask
from planner.cli.files import check_target, write
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    OUTPUT_PANEL,
    ClusterOptions,
    ModelOptions,
    PinOptions,
    WorkloadOptions,
    own,
    spread,
)
from planner.cli.output import print_lines
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.timeline.drawing import Drawing

EPILOG = """Examples:

planner timeline out/plan.json

planner timeline out -o step.svg

planner timeline pretrain.yaml --cards 64 --all

Exit code 0 whether it fits or not, 2 for bad input."""


@spread(epilog=EPILOG)
def timeline(
    plan: Annotated[
        str, typer.Argument(help="plan.json, its folder, MindFormers YAML, launch script.", metavar="PLAN")
    ],
    cluster: ClusterOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards, where the file does not say.", "N")] = None,
    out: Annotated[str | None, own("--out -o", OUTPUT_PANEL, "Write an SVG picture.", "FILE.svg")] = None,
    every: Annotated[bool, own("--all", OUTPUT_PANEL, "All micro-batches, not a readable number.")] = False,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
    force: Annotated[bool, own("--force", OUTPUT_PANEL, "Replace an existing file.")] = False,
) -> None:
    """Draw one step of a plan: what every stage does when, where it waits, and what it holds."""
    from planner.report.svg import step_svg
    from planner.report.timeline import timeline_lines

    if out is not None and not out.lower().endswith(".svg"):
        raise SpecError(f"--out {out} must end with .svg; 'planner trace {plan} -o step.json' writes a trace.")
    check_target(out, force=force)
    step, title = drawn(plan, cluster, cards, every=every, accept_unread=accept_unread)
    if out is not None:
        write(out, step_svg(step, title))
        print_lines([f"Written   {out}"])
    else:
        print_lines(timeline_lines(step))


def drawn(
    plan: str, cluster: ClusterOptions, cards: str | None, *, every: bool, accept_unread: bool = False
) -> tuple[Drawing, str]:
    """The step of a file, and the name of its model."""
    from planner.legality.apply import require_legal
    from planner.timeline.drawing import drawing

    nothing = ModelOptions(), cluster, WorkloadOptions(), PinOptions()
    request, strategy, _ = ask.file_from(plan, *nothing, cards, accept_unread=accept_unread)
    require_legal(request.context, strategy)
    job = (request.model, request.workload, request.cluster, request.calibration)
    step = drawing(*job, strategy, limit_bytes=request.limit, every=every)
    return step, f"{request.model.name} on {request.cluster.devices} x {request.cluster.hardware.name}"
