"""`planner cards`: fewest cards on which a model trains."""

from __future__ import annotations

from dataclasses import replace

from planner.cli import ask, parse
from planner.cli.options import ClusterOptions, ModelOptions, OutputOptions, PinOptions, WorkloadOptions, spread
from planner.cli.output import print_document, print_lines

EPILOG = """Examples:

planner cards --model deepseek-v3

planner cards --params 70B --seq 8k --hardware 910b2

planner cards --model qwen3-235b-a22b --max-memory 54GB --json

Exit codes: 0 ok, 2 bad input, 3 fits on no number of cards."""


@spread(epilog=EPILOG)
def cards(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    output: OutputOptions,
) -> None:
    """Fewest cards on which a model can be trained, and the strategy that does it."""
    from planner.report.documents import cards_document
    from planner.report.fewest import fewest_lines
    from planner.search.cards import fewest_cards
    from planner.search.suggest import search

    request = parse.searched(ask.request_from(model, cluster, workload, None), pins)
    fewest = fewest_cards(request)
    result = search(replace(request.on(fewest.devices), top=1))
    best = result.estimates.row(0)
    if output.json:
        print_document(cards_document(result, fewest, best))
    else:
        print_lines(fewest_lines(result, fewest, best))
