"""`planner collective`: what one collective costs, by algorithm and size."""

from __future__ import annotations

from typing import Annotated

from planner import limits
from planner.cli import parse
from planner.cli.options import ClusterOptions, OutputOptions, own, spread
from planner.cli.output import print_document, print_lines

PANEL = "Collective"

EPILOG = """Examples:

planner collective --op allreduce --size 512MB --ranks 64

planner collective --op allgather --ranks 8 --html curve.html

planner collective --op alltoall --size 64MB --ranks 16 --stride 8 --hardware 910c --json"""


@spread(epilog=EPILOG)
def collective(
    cluster: ClusterOptions,
    output: OutputOptions,
    op: Annotated[str, own("--op", PANEL, "allreduce, allgather, reducescatter, alltoall ...", "NAME")] = "allreduce",
    size: Annotated[str, own("--size", PANEL, "Bytes of the operation (default: 512MB).", "512MB")] = "512MB",
    ranks: Annotated[str, own("--ranks", PANEL, "Ranks of the group (default: 8).", "N")] = "8",
    stride: Annotated[str, own("--stride", PANEL, "Distance of its ranks (default: 1).", "N")] = "1",
    html: Annotated[str | None, own("--html", PANEL, "Also draw the curves into a page (plot extra).", "FILE")] = None,
) -> None:
    """Seconds and bus bandwidth of a collective by algorithm, and a curve over sizes."""
    from planner.cluster import load
    from planner.report.collectives import CollectiveQuestion, collective_document, collective_lines, curve
    from planner.report.curves import write_page

    question = CollectiveQuestion(
        op=op,
        size_bytes=parse.message(size),
        ranks=parse.whole(ranks, "--ranks", most=limits.MOST_CARDS),
        stride=parse.whole(stride, "--stride", most=limits.MOST_CARDS),
        hardware=load.hardware(cluster.hardware or load.DEFAULT_HARDWARE),
    )
    points = curve(question)
    if html is not None:
        write_page(question, points, html)
    if output.json:
        print_document(collective_document(question, points))
    else:
        drawn = [] if html is None else ["", f"Curves: {html}"]
        print_lines([*collective_lines(question, points), *drawn])
