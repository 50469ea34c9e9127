"""`planner improve`: a user's own file with only the strategy changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from planner.cost.strategies import Strategy
    from planner.search.request import Request

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
    from planner import inputs
    from planner.improvement import improve_file
    from planner.report.checks import improve_document, improvement_lines

    devices = None if cards is None else ask.cards_from(cards)
    check_target(out, force=force)

    def read(file: Path, count: int | None) -> tuple[Request, Strategy, tuple[str, ...]]:
        return inputs.read(file, cluster.hardware, ask.memory_from(cluster), count, accept_unread=accept_unread)

    with searching(quiet=output.json) as progress:
        found = improve_file(path, read, lambda request: parse.searched(request, pins), devices, progress)
    written = None if found.improved is None else out
    if found.improved is not None and out is not None:
        write(out, found.improved.text)
    if output.json:
        print_document(improve_document(found, written))
    else:
        print_lines(improvement_lines(found, written, asked=out))
