"""`planner suggest`: ranked plans for a model on a cluster."""

from __future__ import annotations

import itertools
from dataclasses import replace
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
from planner.errors import EmitError, SpecError

if TYPE_CHECKING:
    from planner.dialects.records import EmitResult
    from planner.plan import Plan
    from planner.search.suggest import Request, Result

OBJECTIVES = ("time", "cards", "memory")
BALANCES = ("fast", "exact", "none")

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
    balance: Annotated[
        str, own("--balance", OUTPUT_PANEL, "Layers of stages: fast, exact (CP-SAT, some seconds) or none.", "HOW")
    ] = "fast",
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

    if files.target is not None and workload.framework is None:
        workload = replace(workload, framework=framework_for(model, files.target))
    check_files(emit, emit_top, files)
    request = request_of(model, cluster, workload, pins, cards, objective, balance)
    shown = parse.whole(top, "--top", most=1000)
    with searching(quiet=output.json) as progress:
        result = search(replace(request, fill=shown), progress)
    rows = [result.estimates.row(i) for i in range(min(shown, len(result.estimates)))]
    written = [] if emit is None else write_plans(result, emit, parse.whole(emit_top, "--emit-top", most=100), files)
    if output.json:
        print_document(suggest_document(result, rows, written))
        return
    print_lines(suggestion_lines(result, rows, explain=explain))
    if written:
        print_lines(["", *emission_lines(written)])


def check_files(emit: str | None, emit_top: str, files: EmitOptions) -> None:
    """Options about files say nothing where none are written."""
    if emit is not None:
        if not emit.strip():
            raise SpecError("--emit names no folder; write it like --emit out.")
        return
    given = {"--emit-top": emit_top != "1", "--data": files.data, "--tokenizer": files.tokenizer}
    given |= {"--hosts": files.hosts, "--rank-table": files.rank_table, "--force": files.force}
    idle = [option for option, value in given.items() if value]
    if idle:
        raise SpecError(f"{' and '.join(idle)} without --emit write no file; add --emit DIR.")


def framework_for(model: ModelOptions, target: str) -> str:
    """The framework that a target's files run under."""
    from planner import inputs
    from planner.dialects.families import check_family

    shape = ask.model_from(model)
    check_family(shape, target)
    return inputs.framework_of_target(target, shape)


def write_plans(result: Result, directory: str, count: int, files: EmitOptions) -> list[EmitResult]:
    """Write the best plan that the target can hold into the folder, or several into numbered folders below it."""
    from pathlib import Path

    from planner.cli.emit import write

    plans, refused = held_plans(result, count, files)
    if count == 1:
        written = [write(plans[0], directory, files)]
    else:
        written = [write(plan, Path(directory) / str(plan.rank), files) for plan in plans]
    if refused:
        chosen = ", ".join(str(plan.rank) for plan in plans)
        refused.append(f"Written is plan {chosen}." if len(plans) == 1 else f"Written are plans {chosen}.")
    return [replace(written[0], notes=(*refused, *written[0].notes)), *written[1:]]


def held_plans(result: Result, count: int, files: EmitOptions) -> tuple[list[Plan], list[str]]:
    """The best plans that the target can hold, and why better ones cannot be written."""
    from planner import api
    from planner.cli.emit import settings_from, target_for
    from planner.dialects.write import render

    plans: list[Plan] = []
    refused: list[tuple[int, str]] = []
    first: EmitError | None = None
    for row in range(len(result.estimates)):
        plan = api.plan_of(result.request, result.estimates.row(row), rank=row + 1)
        try:
            render(plan, target_for(plan, files), settings_from(files))
        except EmitError as error:
            first = first or error
            refused.append((row + 1, str(error)))
            continue
        plans.append(plan)
        if len(plans) == count:
            break
    if not plans and first is not None:
        raise first
    return plans, refusals(refused)


def refusals(refused: list[tuple[int, str]]) -> list[str]:
    """One sentence for all plans that are refused for the same reason.

    >>> refusals([(1, "No words."), (2, "No words."), (3, "Too long."), (5, "No words.")])
    ['Plans 1 to 2 and 5 are not written: No words.', 'Plan 3 is not written: Too long.']
    """
    said = []
    for reason in dict.fromkeys(reason for _, reason in refused):
        ranks = [rank for rank, why in refused if why == reason]
        runs = [list(run) for _, run in itertools.groupby(ranks, key=lambda rank: rank - ranks.index(rank))]
        named = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
        several = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
        which = f"Plan {several} is" if len(ranks) == 1 else f"Plans {several} are"
        said.append(f"{which} not written: {reason}")
    return said


def request_of(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    cards: str | None,
    objective: str,
    balance: str,
) -> Request:
    """Request with pins, objective and balance."""
    for option, value, legal in (("objective", objective, OBJECTIVES), ("balance", balance, BALANCES)):
        if value not in legal:
            raise SpecError(f"--{option} '{value}' is not known; legal: {', '.join(legal)}.")
    request = ask.request_from(model, cluster, workload, ask.cards_from(cards))
    return replace(parse.searched(request, pins), objective=objective, balance=balance)  # type: ignore[arg-type]
