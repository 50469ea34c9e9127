"""`planner validate`: a plan through a short real training run, beside the prediction."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import parse
from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.validate.run.run import Planned

RUN_PANEL = "Run"

EPILOG = """Examples:

planner validate out

planner validate out --device CPU --layers-per-stage 2 --cards 2

planner validate out --top 3 --update mine.yaml

Needs MindSpore: pip install planner[mindspore]. Exit codes: 0 ok (the verdict says how near), 2 bad input, 4 the run
could not be carried out or a rank failed."""


@spread(epilog=EPILOG)
def validate(
    plans: Annotated[
        list[str], typer.Argument(help="plan.json, its folder, or other files that are read.", metavar="PLAN...")
    ],
    output: OutputOptions,
    device: Annotated[str, own("--device", RUN_PANEL, "CPU, Ascend or auto (default: auto).", "KIND")] = "auto",
    cards: Annotated[str | None, own("--cards", RUN_PANEL, "Use so many cards (default: all there are).", "N")] = None,
    layers: Annotated[
        str | None, own("--layers-per-stage", RUN_PANEL, "Layers of a stage (default: as fit).", "N")
    ] = None,
    steps: Annotated[str, own("--steps", RUN_PANEL, "Steps; three are dropped (default: 13).", "N")] = "13",
    top: Annotated[str | None, own("--top", RUN_PANEL, "PLAN holds plans 1, 2, ...: the first N.", "N")] = None,
    calibration: Annotated[
        str | None, own("--calibration", RUN_PANEL, "Predict with it (default: shipped constants).", "FILE")
    ] = None,
    update: Annotated[
        str | None, own("--update", RUN_PANEL, "Fold what was measured into this calibration.", "FILE")
    ] = None,
    timeout: Annotated[str, own("--timeout", RUN_PANEL, "Seconds for one run (default: 1800).", "S")] = "1800",
    port: Annotated[str | None, own("--port", RUN_PANEL, "Port where ranks meet (default: a free one).", "N")] = None,
    python: Annotated[str | None, own("--python", RUN_PANEL, "Interpreter that has MindSpore.", "FILE")] = None,
    keep: Annotated[str | None, own("--keep", RUN_PANEL, "Folder that keeps scripts, logs, profiles.", "DIR")] = None,
) -> None:
    """Train a plan for a few steps on the cards there are, shrunk where it must be, and compare with the prediction."""
    from planner.report.validation import validation_document, validation_lines
    from planner.validate.run.launch import RunSettings
    from planner.validate.run.run import Settings
    from planner.validate.run.run import validate as run
    from planner.validate.run.update import fold

    settings = Settings(
        device=device,
        cards=None if cards is None else parse.whole(cards, "--cards", most=10**6),
        layers_per_stage=None if layers is None else parse.whole(layers, "--layers-per-stage", most=10_000),
        python=None if python is None else Path(python),
        calibration=_calibration(calibration, update),
        keep=None if keep is None else Path(keep),
        run=RunSettings(
            steps=parse.whole(steps, "--steps", most=100_000),
            timeout_s=parse.whole(timeout, "--timeout", most=10**6),
            port=None if port is None else parse.whole(port, "--port", most=65_535),
        ),
    )
    chosen = [planned(path) for path in paths_of(plans, top)]
    found = run(chosen, settings, lambda line: print(line, file=sys.stderr))
    changes = () if update is None else fold(found, Path(update))
    if output.json:
        print_document(validation_document(found, changes))
    else:
        print_lines(validation_lines(found, changes))


def _calibration(calibration: str | None, update: str | None) -> Path | None:
    """File to predict with: the named one, else the one that is to be updated where it exists."""
    if calibration is not None:
        return Path(calibration)
    if update is not None and Path(update).is_file():
        return Path(update)
    return None


def paths_of(plans: Sequence[str], top: str | None) -> list[str]:
    """Plans asked for; with ``--top`` the first ones of a folder that holds them as 1, 2, ..."""
    if top is None:
        return list(plans)
    number = parse.whole(top, "--top", most=100)
    if len(plans) > 1:
        return list(plans[:number])
    folder = Path(plans[0])
    there = [path for path in (folder / str(place) for place in range(1, number + 1)) if path.is_dir()]
    if not there:
        raise SpecError(
            f"--top {number}: {folder} holds no plans 1, 2, ...; write them with planner suggest --emit {folder} "
            f"--emit-top {number}."
        )
    return [str(path) for path in there]


def planned(path: str) -> Planned:
    """A plan of any file that is read, with what its own device is predicted to take."""
    from planner import api, inputs
    from planner.validate.run.run import Planned

    request, strategy, _ = inputs.read(path)
    return Planned(
        name=path,
        model=request.model,
        workload=request.workload,
        strategy=strategy,
        hardware=request.cluster.hardware,
        step_s=api.estimate_of(request, strategy).step_s,
    )
