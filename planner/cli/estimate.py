"""`planner estimate`: memory and time of one strategy, given by flags or by a file."""

from __future__ import annotations

from typing import Annotated, Any

from planner.cli import ask, parse
from planner.cli.options import (
    ACCEPT_UNREAD,
    CLUSTER_PANEL,
    MODEL_PANEL,
    OUTPUT_PANEL,
    STRATEGY_PANEL,
    ClusterOptions,
    ModelOptions,
    OutputOptions,
    PinOptions,
    WorkloadOptions,
    own,
    spread,
)
from planner.cli.output import OUT_OF_MEMORY, print_document, print_lines
from planner.errors import SpecError

EPILOG = """Examples:

planner estimate --params 70B --tp 8 --pp 4 --dp 2 --global-batch 128

planner estimate --model qwen3-32b --cards 32 --tp 4 --pp 4 --recompute 10,8,4,0

planner estimate --from out/plan.json --hardware 910b3

planner estimate --from pretrain.yaml --measured "337 tokens/s/card"

planner estimate --from pretrain.yaml --json

Exit codes: 0 fits, 2 bad input, 3 predicted out of memory."""


@spread(epilog=EPILOG)
def estimate(
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    output: OutputOptions,
    cards: Annotated[str | None, own("--cards", CLUSTER_PANEL, "Cards (default: product of the degrees).", "N")] = None,
    source: Annotated[
        str | None, own("--from", MODEL_PANEL, "plan.json, MindFormers YAML, launch script.", "FILE")
    ] = None,
    measured: Annotated[str | None, own("--measured", OUTPUT_PANEL, "Is it normal?", "'337 tokens/s/card'")] = None,
    stage_layers: Annotated[
        str | None, own("--stage-layers", STRATEGY_PANEL, "Layers of each stage.", "9,10,9")
    ] = None,
    accept_unread: Annotated[bool, ACCEPT_UNREAD] = False,
) -> int:
    """Memory of each stage and time of one strategy, and whether it fits."""
    from planner import api, completion
    from planner.measured import compare, measured_step_s
    from planner.report.documents import estimate_document
    from planner.report.estimation import estimation_lines

    unread: tuple[str, ...] = ()
    if source is not None:
        request, strategy, unread = ask.file_from(
            source, model, cluster, workload, pins, cards, accept_unread=accept_unread
        )
    else:
        degrees = single_degrees(pins)
        count = ask.cards_from(cards) if cards is not None else completion.cards_of(degrees)
        request = ask.request_from(model, cluster, workload, count)
        layers = None if stage_layers is None else parse.listed(stage_layers, "--stage-layers")
        strategy = completion.complete(
            request, recompute=parse.recompute(pins.recompute), stage_layers=layers, **degrees
        )
    answer = api.judged(request, strategy)
    found = None if measured is None else compare(measured_step_s(measured, request), request, answer)
    if output.json:
        print_document(estimate_document(request, answer, unread, found))
    else:
        print_lines(estimation_lines(request, answer, unread, found))
    return 0 if answer.fits else OUT_OF_MEMORY


def single_degrees(pins: PinOptions) -> dict[str, Any]:
    """Degrees with one value each."""
    degrees: dict[str, Any] = {}
    for name, values in parse.pins_of(pins).items():
        if len(values) != 1:
            raise SpecError(
                f"--{name.replace('_', '-')} has {len(values)} values, but estimate looks at one strategy; "
                "give one value, or ask planner suggest."
            )
        degrees[name] = values[0]
    return degrees
