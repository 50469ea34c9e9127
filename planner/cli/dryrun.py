"""`planner dryrun`: a plan through MindSpore's own compiler, beside the prediction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import parse
from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import OUT_OF_MEMORY, print_document, print_lines
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cost.strategies import Strategy
    from planner.search.suggest import Request
    from planner.validate.compiler.dryrun import DryRunReport, DryRunSettings
    from planner.validate.traffic.comparison import VolumeRow

RUN_PANEL = "Run"

EPILOG = """Examples:

planner dryrun out

planner dryrun out/plan.json --stages 0,7 --jobs 2

planner dryrun out --stages 0 --volumes

planner dryrun pretrain.yaml --python /path/to/venv/bin/python --json

Needs MindSpore and MindFormers, no device: pip install planner[mindspore]. Exit codes: 0 ok, 2 bad input, 3 a
stage needs more memory than the limit, 4 DryRun could not be carried out or a stage died."""


@spread(epilog=EPILOG)
def dryrun(
    plan: Annotated[str, typer.Argument(help="plan.json, its folder, or a MindFormers YAML.", metavar="PLAN")],
    output: OutputOptions,
    stages: Annotated[
        str | None, own("--stages", RUN_PANEL, "Stages (default: first, middle, last, heaviest).", "0,4,7")
    ] = None,
    jobs: Annotated[str, own("--jobs", RUN_PANEL, "Stages run at once (default: 1).", "N")] = "1",
    timeout: Annotated[str, own("--timeout", RUN_PANEL, "Seconds for one stage (default: 1800).", "S")] = "1800",
    exact: Annotated[bool, own("--exact", RUN_PANEL, "All micro-batches, not just enough to fill.")] = False,
    python: Annotated[str | None, own("--python", RUN_PANEL, "Interpreter that has MindSpore.", "FILE")] = None,
    keep: Annotated[str | None, own("--keep", RUN_PANEL, "Folder that keeps the logs.", "DIR")] = None,
    no_cache: Annotated[bool, own("--no-cache", RUN_PANEL, "Run again what has been run before.")] = False,
    volumes: Annotated[bool, own("--volumes", RUN_PANEL, "Compare collectives, too (runs again).")] = False,
) -> int:
    """Run stages of a plan through MindSpore DryRun and compare memory, and collectives, with the prediction."""
    from planner import api, inputs
    from planner.report.comparison import comparison_lines, dryrun_document, over
    from planner.validate.compiler.dryrun import DryRunSettings, default_stages
    from planner.validate.compiler.dryrun import dryrun as run

    settings = DryRunSettings(
        python=None if python is None else Path(python),
        timeout_s=parse.whole(timeout, "--timeout", most=10**6),
        exact=exact,
        jobs=parse.whole(jobs, "--jobs", most=64),
        use_cache=not (no_cache or volumes),
        keep=None if keep is None else Path(keep),
        graphs=volumes,
    )
    request, strategy, _ = inputs.read(plan, accept_unread=True)
    answer = api.estimate_of(request, strategy)
    heaviest = answer.heaviest_stage
    chosen = default_stages(strategy.pp, heaviest) if stages is None else stages_of(stages, strategy.pp)
    with kept(settings) as kept_settings:
        report = run(api.configuration(plan), chosen, kept_settings, lambda line: print(line, file=sys.stderr))
        rows = volumes_of(request, strategy, report, kept_settings.keep) if volumes else {}
    if output.json:
        print_document(dryrun_document(request, answer, report, rows))
    else:
        print_lines(comparison_lines(request, answer, report, rows))
    return OUT_OF_MEMORY if over(request, report) else 0


@contextmanager
def kept(settings: DryRunSettings) -> Iterator[DryRunSettings]:
    """Settings with a folder for compiled graphs, one for the time being where none was asked for."""
    if settings.keep is not None or not settings.graphs:
        yield settings
        return
    with TemporaryDirectory(prefix="planner-dryrun-") as folder:
        yield replace(settings, keep=Path(folder))


def volumes_of(
    request: Request, strategy: Strategy, report: DryRunReport, folder: Path | None
) -> dict[int, tuple[VolumeRow, ...]]:
    """Planned and compiled collectives of each stage, with the micro-batches that were run."""
    from planner.cost.time.volumes import setting_of
    from planner.validate.traffic.comparison import compare
    from planner.validate.traffic.volumes import read_collectives

    assert folder is not None
    rows = {}
    for stage in report.stages:
        as_run = replace(strategy, micro_batches=stage.micro_batches)
        given = setting_of(request.model, request.workload, request.cluster, request.calibration, as_run)
        found = read_collectives(folder / f"stage-{stage.stage}")
        rows[stage.stage] = compare(given, stage.stage, found, report.layout)
    return rows


def stages_of(text: str, stages: int) -> tuple[int, ...]:
    """Stages asked for."""
    chosen = parse.several(text, "--stages", least=0)
    if max(chosen) >= stages:
        raise SpecError(f"--stages '{text}': the plan has stages 0 to {stages - 1}.")
    return chosen
