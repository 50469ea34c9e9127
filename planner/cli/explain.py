"""`planner explain`: why a strategy is not the answer, and the smallest change that saves it."""

from __future__ import annotations

from typing import Annotated

from planner.cli import ask, parse
from planner.cli.estimate import single_degrees
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    MODEL_PANEL,
    STRATEGY_PANEL,
    ClusterOptions,
    ModelOptions,
    OutputOptions,
    PinOptions,
    WorkloadOptions,
    own,
    spread,
)
from planner.cli.output import print_document, print_lines, searching

EPILOG = """Examples:

planner explain --params 70B --cards 64 --tp 8 --pp 1

planner explain --model qwen3-32b --cards 64 --tp 3 --pp 2

planner explain --from out/plan.json

Exit code 0 whatever the verdict, 2 for bad input."""


@spread(epilog=EPILOG)
def explain(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    output: OutputOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards (default: product of the degrees).", "N")] = None,
    source: Annotated[
        str | None, own("--from", MODEL_PANEL, "plan.json, MindFormers YAML, launch script.", "FILE")
    ] = None,
    stage_layers: Annotated[
        str | None, own("--stage-layers", STRATEGY_PANEL, "Layers of each stage.", "9,10,9")
    ] = None,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> None:
    """Say why a strategy is illegal, too large or slower, and which smallest change helps."""
    from planner import completion
    from planner.report.documents import explain_document
    from planner.report.fewest import explanation_lines
    from planner.search.explain import explain as judge

    if source is not None:
        request, strategy, _ = ask.file_from(source, model, cluster, workload, pins, cards, accept_unread=accept_unread)
    else:
        degrees = single_degrees(pins)
        count = ask.cards_from(cards) if cards is not None else completion.cards_of(degrees)
        request = ask.request_from(model, cluster, workload, count)
        layers = None if stage_layers is None else parse.listed(stage_layers, "--stage-layers")
        strategy = completion.complete(
            request, recompute=parse.recompute(pins.recompute), stage_layers=layers, **degrees
        )
    with searching(quiet=output.json):
        verdict = judge(request, strategy)
    if output.json:
        print_document(explain_document(request, verdict))
    else:
        print_lines(explanation_lines(request, verdict))
