"""`planner improve`: a user's own file with only the strategy changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from planner.cli import ask, parse
from planner.cli.files import check_target, write
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    EMIT_PANEL,
    ClusterOptions,
    OutputOptions,
    PinOptions,
    own,
    spread,
)
from planner.cli.output import print_document, print_lines, searching

EPILOG = """Examples:

planner improve pretrain.yaml

planner improve pretrain.yaml --cards 128 --out better.yaml

planner improve pretrain.sh --cards 64 --tp 8 --json"""


@spread(epilog=EPILOG)
def improve(
    path: Annotated[str, typer.Argument(help="MindFormers YAML or MindSpeed-LLM script.", metavar="FILE")],
    cluster: ClusterOptions,
    pins: PinOptions,
    output: OutputOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards (default: the file's own).", "N")] = None,
    out: Annotated[str | None, own("--out", EMIT_PANEL, "Write the new file here.", "FILE")] = None,
    force: Annotated[bool, own("--force", EMIT_PANEL, "Replace an existing file.")] = False,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """Search a better strategy for a file and show, or write, the file with only that changed."""
    from planner import api, inputs
    from planner.dialects.improve import after_change
    from planner.dialects.improve import improve as rewrite
    from planner.legality.apply import violations
    from planner.report.checks import improve_document, improvement_lines
    from planner.search.suggest import search

    devices = None if cards is None else ask.cards_from(cards)
    check_target(out, force=force)
    request, old, _ = inputs.read(
        path, cluster.hardware, ask.memory_from(cluster), devices, accept_unread=accept_unread
    )
    broken = violations(request.context, old)
    before = None if broken else api.estimate_of(request, old)
    request = replace(request, workload=after_change(request.workload))
    request = request if devices is None else request.on(devices)
    with searching(quiet=output.json) as progress:
        after = search(parse.searched(request, pins), progress).estimates.row(0)
    improved = rewrite(path, after.strategy, old.devices)
    if improved.strategy != after.strategy:
        after = api.estimate_of(request, improved.strategy)
    if out is not None:
        write(out, improved.text)
    if output.json:
        print_document(improve_document(request, before, after, improved, out))
    else:
        why = broken[0].message if broken else ""
        print_lines(improvement_lines(request, before, after, improved, out, broken=why))
