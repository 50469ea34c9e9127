"""`planner goodput`: checkpoints, failures, and what they leave of the time."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import parse
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
from planner.cli.subject import subject

PANEL = "Checkpoints and failures"
EPILOG = """Examples:

planner goodput out/plan.json --tokens 1T

planner goodput --params 70B --cards 1024 --storage 40GB/s --failures rsc2

planner goodput out --failures 0.3 --restart 300s --interval 30min --repair 24h

Exit codes: 0 ok, 2 bad input, 3 nothing fits."""


@spread(epilog=EPILOG)
def goodput(
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
    storage: Annotated[
        str | None, own("--storage", PANEL, "Storage as the whole job sees it (default: 165 MB/s a card).", "40GB/s")
    ] = None,
    snapshot: Annotated[
        str | None, own("--snapshot", PANEL, "Device to host memory, each card (default: 1.07 GB/s).", "2GB/s")
    ] = None,
    failures: Annotated[
        str | None,
        own("--failures", PANEL, "llama3, rsc1, rsc2, ascend-press, or a number per 1000 cards and day.", "RATE"),
    ] = None,
    restart: Annotated[str | None, own("--restart", PANEL, "Until steps go on (default: 15min).", "10min")] = None,
    interval: Annotated[str | None, own("--interval", PANEL, "Also judge this one.", "30min")] = None,
    repair: Annotated[str | None, own("--repair", PANEL, "A failed node is away: counts spares.", "24h")] = None,
    deduplicated: Annotated[bool, own("--remove-redundancy", PANEL, "Copies of a part are written once.")] = False,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """Checkpoint size and time, the best interval between saves, and the share of the time that is training."""
    from planner.report.goodput import goodput_document, goodput_lines
    from planner.study.failures import DEFAULT_RATE, RESTART_S, SNAPSHOT_BYTES_PER_S, rate
    from planner.study.goodput import Conditions, study

    conditions = Conditions(
        failures=rate(failures or DEFAULT_RATE),
        storage_bytes_per_s=None if storage is None else parse.speed(storage, "--storage"),
        snapshot_bytes_per_s=SNAPSHOT_BYTES_PER_S if snapshot is None else parse.speed(snapshot, "--snapshot"),
        restart_s=RESTART_S if restart is None else parse.duration(restart, "--restart"),
        interval_s=None if interval is None else parse.duration(interval, "--interval"),
        repair_s=None if repair is None else parse.duration(repair, "--repair"),
        deduplicated=deduplicated,
    )
    request, estimate, unread = subject(
        plan, model, cluster, workload, pins, cards, accept_unread=accept_unread, quiet=output.json
    )
    answer = study(request, estimate, conditions)
    if output.json:
        print_document(goodput_document(request, estimate, answer, unread))
    else:
        print_lines(goodput_lines(request, estimate, answer, unread))
