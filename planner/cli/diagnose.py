"""`planner diagnose`: where a step went, what limits it, what to change first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.files import check_target, write
from planner.cli.options import OUTPUT_PANEL, OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

EPILOG = """Examples:

planner diagnose profiler/ --plan out/plan.json

planner diagnose worker_0.log

planner diagnose host_123_ascend_ms --svg ranks.svg

Exit code 0 whatever is found, 2 for bad input."""


@spread(epilog=EPILOG)
def diagnose(
    paths: Annotated[list[str], typer.Argument(help="Profiles, their folder, or training logs.", metavar="PATH...")],
    output: OutputOptions,
    plan: Annotated[
        str | None, own("--plan", OUTPUT_PANEL, "Compare with this plan, term by term.", "plan.json")
    ] = None,
    svg: Annotated[str | None, own("--svg", OUTPUT_PANEL, "Write a picture: one bar a rank.", "FILE.svg")] = None,
    force: Annotated[bool, own("--force", OUTPUT_PANEL, "Replace an existing file.")] = False,
) -> None:
    """Say where the step of a profile or log goes, what limits it and what to change first."""
    from planner import plan as plans
    from planner.diagnose.diagnose import diagnose as answer
    from planner.observe.read import read_all
    from planner.report.diagnosis import diagnose_document, diagnosis_lines, diagnosis_svg

    if svg is not None and not svg.lower().endswith(".svg"):
        raise SpecError(f"--svg {svg} must end with .svg.")
    check_target(svg, force=force)
    kept = None if plan is None else plans.load(Path(plan) / "plan.json" if Path(plan).is_dir() else plan)
    found = answer(read_all(paths), kept)
    if svg is not None:
        if not found.ranks:
            raise SpecError("--svg draws the ranks of a profile; what was read holds no steps of ranks.")
        write(svg, diagnosis_svg(found))
    if output.json:
        print_document(diagnose_document(found))
    else:
        print_lines(diagnosis_lines(found) + ([] if svg is None else ["", f"Written   {svg}"]))
