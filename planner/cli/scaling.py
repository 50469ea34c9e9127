"""`planner scaling`: a job on more and more cards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from planner import limits
from planner.cli import ask, parse
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
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.search.request import Request

#: Sizes of a plan where none are asked for, over its own.
USUAL = (1, 2, 4, 8, 16)
EPILOG = """Examples:

planner scaling --params 70B --cards 64,128,256,512,1024

planner scaling out/plan.json --tokens 2T --mode strong

planner scaling --params 8B --cards 8,64,512 --measured runs.csv

runs.csv: cards,global_batch,step_s (or tokens_per_s_per_card, tokens_per_s), a line a run.

Exit codes: 0 ok, 2 bad input, 3 fits at no size."""


@spread(epilog=EPILOG)
def scaling(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    output: OutputOptions,
    plan: Annotated[
        str | None,
        typer.Argument(help="plan.json, its folder, YAML, script; or describe a job by options.", metavar="[PLAN]"),
    ] = None,
    cards: Annotated[
        str | None, own("--cards", CLUSTER_PANEL, "Sizes (of a plan: 1 to 16 times its own).", "8,64,512")
    ] = None,
    mode: Annotated[
        str, own("--mode", OUTPUT_PANEL, "weak (batch grows with the cards), strong (it stays), both.", "HOW")
    ] = "both",
    measured: Annotated[str | None, own("--measured", OUTPUT_PANEL, "Own runs beside it.", "runs.csv")] = None,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """Speed over cards: the best layout at every size, how much of a card's speed is kept, and what takes the rest."""
    from planner.report.scaling import scaling_document, scaling_lines
    from planner.study.runs import read_runs
    from planner.study.scaling import MODES, fit, scale

    if mode not in (*MODES, "both"):
        raise SpecError(f"--mode '{mode}' is not known; legal: weak, strong, both.")
    sizes = None if cards is None else parse.several(cards, "--cards")
    request, unread = _request(plan, model, cluster, workload, pins, sizes, accept_unread=accept_unread)
    sizes = sizes or _usual(request)
    runs = () if measured is None else read_runs(measured, request.workload.seq)
    wanted = [each for each in MODES if mode in (each, "both")]
    curves = [scale(request, [*sizes, *(run.devices for run in runs)], each) for each in wanted]
    found = fit(curves, runs) if runs else None
    if output.json:
        print_document(scaling_document(request, curves, found, unread))
    else:
        print_lines(scaling_lines(request, curves, found, unread))


def _usual(request: Request) -> tuple[int, ...]:
    return tuple(n for factor in USUAL if (n := factor * request.cluster.devices) <= limits.MOST_CARDS)


def _request(
    plan: str | None,
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    sizes: tuple[int, ...] | None,
    *,
    accept_unread: bool,
) -> tuple[Request, tuple[str, ...]]:
    """The job on its own cards, or on the fewest of the sizes; pins hold at every size."""
    if plan is None:
        if sizes is None:
            raise SpecError("how many cards? Give sizes, e.g. --cards 8,64,512.")
        return parse.searched(ask.request_from(model, cluster, workload, min(sizes)), pins), ()
    beside = replace(workload, tokens=None)
    request, _, unread = ask.file_from(plan, model, cluster, beside, PinOptions(), accept_unread=accept_unread)
    if workload.tokens is not None:
        request = replace(request, workload=replace(request.workload, tokens=parse.tokens(workload.tokens)))
    return parse.searched(request, pins), unread
