"""`planner dryrun`: a plan through MindSpore's own compiler, beside the prediction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import parse
from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

RUN_PANEL = "Run"

EPILOG = """Examples:

planner dryrun out

planner dryrun out/plan.json --stages 0,7 --jobs 2

planner dryrun pretrain.yaml --python /path/to/venv/bin/python --json

Needs MindSpore and MindFormers, no device: pip install planner[mindspore]. Exit codes: 0 ok, 2 bad input, 4 DryRun
could not be carried out or a stage died."""


@spread(epilog=EPILOG)
def dryrun(
    plan: Annotated[str, typer.Argument(help="plan.json, its folder, or a MindFormers YAML.", metavar="PLAN")],
    output: OutputOptions,
    stages: Annotated[str | None, own("--stages", RUN_PANEL, "Stages (default: first, middle, last).", "0,4,7")] = None,
    jobs: Annotated[str, own("--jobs", RUN_PANEL, "Stages run at once (default: 1).", "N")] = "1",
    timeout: Annotated[str, own("--timeout", RUN_PANEL, "Seconds for one stage (default: 1800).", "S")] = "1800",
    exact: Annotated[bool, own("--exact", RUN_PANEL, "All micro-batches, not just enough to fill.")] = False,
    python: Annotated[str | None, own("--python", RUN_PANEL, "Interpreter that has MindSpore.", "FILE")] = None,
    keep: Annotated[str | None, own("--keep", RUN_PANEL, "Folder that keeps the logs.", "DIR")] = None,
    no_cache: Annotated[bool, own("--no-cache", RUN_PANEL, "Run again what has been run before.")] = False,
) -> None:
    """Run stages of a plan through MindSpore DryRun and compare memory with the prediction."""
    from planner import api, inputs
    from planner.report.comparison import comparison_lines, dryrun_document
    from planner.validate.dryrun import DryRunSettings
    from planner.validate.dryrun import dryrun as run

    settings = DryRunSettings(
        python=None if python is None else Path(python),
        timeout_s=parse.whole(timeout, "--timeout", most=10**6),
        exact=exact,
        jobs=parse.whole(jobs, "--jobs", most=64),
        use_cache=not no_cache,
        keep=None if keep is None else Path(keep),
    )
    request, strategy, _ = inputs.read(plan)
    chosen = None if stages is None else stages_of(stages, strategy.pp)
    report = run(api.configuration(plan), chosen, settings, lambda line: print(line, file=sys.stderr))
    answer = api.estimate_of(request, strategy)
    if output.json:
        print_document(dryrun_document(request, answer, report))
    else:
        print_lines(comparison_lines(request, answer, report))


def stages_of(text: str, stages: int) -> tuple[int, ...]:
    """Stages asked for."""
    chosen = parse.several(text, "--stages", least=0)
    if max(chosen) >= stages:
        raise SpecError(f"--stages '{text}': the plan has stages 0 to {stages - 1}.")
    return chosen
