"""`planner compare`: jobs side by side, one variable at a time, and a ledger of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import ask
from planner.cli.files import write
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    STRATEGY_PANEL,
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
    from planner.study.jobs import Job
    from planner.study.ledger import Entry
    from planner.study.whatif import Comparison

LEDGER = "Ledger"
EPILOG = """Examples:

planner compare a/plan.json b/plan.json

planner compare pretrain.yaml better.yaml third.sh

planner compare out --set recompute=none --set micro_batch=2

planner compare a b --ledger ledger.json --hypothesis 'fewer bubbles' --measured 9.1s,8.7s

planner compare --ledger ledger.json

Exit codes: 0 compared, 2 bad input."""


@spread(epilog=EPILOG)
def compare(
    cluster: ClusterOptions,
    output: OutputOptions,
    paths: Annotated[
        list[str] | None, typer.Argument(help="Plans, their folders, YAML, scripts.", metavar="A [B ...]")
    ] = None,
    changes: Annotated[
        list[str] | None, own("--set", STRATEGY_PANEL, "A with this changed; again for more.", "NAME=VALUE")
    ] = None,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards, where the files do not say.", "N")] = None,
    ledger: Annotated[str | None, own("--ledger", LEDGER, "File to add the change to, or to show.", "FILE")] = None,
    hypothesis: Annotated[str | None, own("--hypothesis", LEDGER, "Why it should help.", "TEXT")] = None,
    measured: Annotated[str | None, own("--measured", LEDGER, "Seconds a step before and after.", "9.1s,8.7s")] = None,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """What differs between jobs, what each difference gives alone and in combination, and what came of it."""
    from planner.report.compare import compare_document, compare_lines, ledger_lines
    from planner.study import ledger as ledgers
    from planner.study import whatif

    if (hypothesis or measured) and ledger is None:
        raise SpecError("--hypothesis and --measured belong to a ledger; give --ledger FILE.")
    entries = ledgers.read(ledger) if ledger is not None else ()
    named = list(paths or [])
    jobs: list[tuple[str, Job]] = []
    unread: list[str] = []
    for path in named:
        job, rest = _read(path, cluster, cards, accept_unread=accept_unread)
        jobs.append((path, job))
        unread += [f"{path}: {line}" for line in rest]
    if changes and jobs:
        jobs.append((" ".join(changes), _changed(jobs[0][1], changes)))
    if len(jobs) < 2 and not (ledger is not None and not jobs):
        raise SpecError("compare what? Give two files, or one and --set NAME=VALUE, or --ledger FILE alone.")
    found = [(name, whatif.compare(jobs[0][1], job)) for name, job in jobs[1:]]
    if ledger is not None and found:
        if len(found) > 1:
            raise SpecError("--ledger takes one change at a time: give two files, or one and --set.")
        entries = (*entries, _entry(found[0][1], hypothesis, measured))
        write(ledger, ledgers.dumps(entries))
    if output.json:
        print_document(compare_document(jobs[:1], found, entries, unread))
        return
    lines = compare_lines(jobs[0], found, unread) if found else []
    print_lines([*lines, *([""] if lines and ledger else []), *(ledger_lines(entries) if ledger else [])])


def _read(path: str, cluster: ClusterOptions, cards: str | None, *, accept_unread: bool) -> tuple[Job, tuple[str, ...]]:
    from planner.study.jobs import Job

    nothing = ModelOptions(), cluster, WorkloadOptions(), PinOptions()
    request, strategy, unread = ask.file_from(path, *nothing, cards, accept_unread=accept_unread)
    return Job(request=request, strategy=strategy), unread


def _changed(job: Job, changes: list[str]) -> Job:
    from planner.cli.changes import apply

    return apply(job, changes)


def _entry(found: Comparison, hypothesis: str | None, measured: str | None) -> Entry:
    from planner.cli.parse import duration
    from planner.study.ledger import Entry

    before = found.before.estimate
    step_s = None if before is None else before.step_s
    predicted = None if found.together_s is None or not step_s else found.together_s / step_s
    times: list[float | None] = [None, None]
    if measured is not None:
        parts = measured.split(",")
        if len(parts) != 2:
            raise SpecError(f"--measured '{measured}' needs two times, before and after, like 9.1s,8.7s.")
        one, other = (duration(part, "--measured", least=1e-4) for part in parts)
        times = [one, other * found.before.job.tokens / found.after.job.tokens]
    return Entry(
        hypothesis=hypothesis or "",
        changes=tuple(each.words for each in found.variables),
        predicted=predicted,
        measured_before_s=times[0],
        measured_after_s=times[1],
    )
