"""`planner suggest`: ranked plans for a model on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from planner.cli import ask, parse
from planner.cli.options import (
    CLUSTER_PANEL,
    EMIT_PANEL,
    OUTPUT_PANEL,
    ClusterOptions,
    EmitOptions,
    ModelOptions,
    OutputOptions,
    PinOptions,
    WorkloadOptions,
    own,
    spread,
)
from planner.cli.output import print_document, print_lines, searching
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.emit.record import EmitResult
    from planner.search.suggest import Request, Result

OBJECTIVES = ("time", "cards", "memory")

EPILOG = """Examples:

planner suggest --params 70B --cards 64

planner suggest --model qwen3-235b-a22b --cards 256 --seq 8k --tokens 1.5T

planner suggest --config config.json --cards 32 --tp 8 --pp 1,2,4 --max-memory 54GB

planner suggest --model qwen3-32b --cards 64 --emit out --hosts hosts.txt --data /data/corpus

planner suggest --params 13B --cards 16 --json

Exit codes: 0 ok, 2 bad input, 3 nothing fits (the message says how many cards would do)."""


@spread(epilog=EPILOG)
def suggest(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    files: EmitOptions,
    output: OutputOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards of the job.", "N")] = None,
    objective: Annotated[str, own("--objective", OUTPUT_PANEL, "time, cards (fewest) or memory.", "WHAT")] = "time",
    top: Annotated[str, own("--top", OUTPUT_PANEL, "Plans shown (default: 10).", "N")] = "10",
    explain: Annotated[bool, own("--explain", OUTPUT_PANEL, "Also count what removed the others.")] = False,
    emit: Annotated[str | None, own("--emit", EMIT_PANEL, "Write the best plan into this folder.", "DIR")] = None,
    emit_top: Annotated[str, own("--emit-top", EMIT_PANEL, "Write so many plans, as DIR/1, DIR/2 ...", "N")] = "1",
) -> None:
    """Rank parallel plans for a model on a cluster: seconds a step, memory, and why."""
    from planner.report.documents import suggest_document
    from planner.report.emission import emission_lines
    from planner.report.suggestion import suggestion_lines
    from planner.search.suggest import search

    request = request_of(model, cluster, workload, pins, cards, objective)
    shown = parse.whole(top, "--top", most=1000)
    with searching(quiet=output.json) as progress:
        result = search(request, progress)
    rows = [result.estimates.row(i) for i in range(min(shown, len(result.estimates)))]
    written = [] if emit is None else write_plans(result, emit, parse.whole(emit_top, "--emit-top", most=100), files)
    if output.json:
        print_document(suggest_document(result, rows, written))
        return
    print_lines(suggestion_lines(result, rows, explain=explain))
    if written:
        print_lines(["", *emission_lines(written)])


def write_plans(result: Result, directory: str, count: int, files: EmitOptions) -> list[EmitResult]:
    """Write the best plan into the folder, or several into numbered folders below it."""
    from pathlib import Path

    from planner import api
    from planner.cli.emit import write

    number = min(count, len(result.estimates))
    plans = [api.plan_of(result.request, result.estimates.row(i), rank=i + 1) for i in range(number)]
    if count == 1:
        return [write(plans[0], directory, files)]
    return [write(plan, Path(directory) / str(plan.rank), files) for plan in plans]


def request_of(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    cards: str | None,
    objective: str,
) -> Request:
    """Request with pins and objective."""
    import dataclasses

    if objective not in OBJECTIVES:
        raise SpecError(f"--objective '{objective}' is not known; legal: {', '.join(OBJECTIVES)}.")
    request = ask.request_from(model, cluster, workload, ask.cards_from(cards))
    return dataclasses.replace(parse.searched(request, pins), objective=objective)  # type: ignore[arg-type]
