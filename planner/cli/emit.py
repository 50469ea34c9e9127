"""`planner emit`: files of a plan for one framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import EmitOptions, OutputOptions, spread
from planner.cli.output import print_document, print_lines
from planner.errors import EmitError

if TYPE_CHECKING:
    from planner.emit.record import EmitResult, Settings
    from planner.plan import Plan

EPILOG = """Examples:

planner emit out/plan.json out-new

planner emit out/plan.json out --hosts hosts.txt --data /data/corpus --force

Exit codes: 0 ok, 2 bad input; nothing is left half-written."""


@spread(epilog=EPILOG)
def emit(
    plan: Annotated[str, typer.Argument(help="A plan.json, or the folder that holds it.", metavar="PLAN")],
    directory: Annotated[str, typer.Argument(help="Folder for the files.", metavar="DIR")],
    files: EmitOptions,
    output: OutputOptions,
) -> None:
    """Write a plan as configuration and launch scripts."""
    from planner import plan as plans
    from planner.report.documents import emit_document
    from planner.report.emission import emission_lines

    path = Path(plan)
    written = write(plans.load(path / "plan.json" if path.is_dir() else path), directory, files)
    if output.json:
        print_document(emit_document([written]))
    else:
        print_lines(emission_lines([written]))


def write(plan: Plan, directory: str | Path, files: EmitOptions) -> EmitResult:
    """Write one plan."""
    from planner.emit.write import emit as emit_files

    return emit_files(plan, directory, target_for(plan, files), files.force, settings_from(files))


def target_for(plan: Plan, files: EmitOptions) -> str:
    """The target asked for, or the one whose framework the plan was estimated for."""
    from planner import inputs
    from planner.emit.families import targets_for

    legal = targets_for(plan.model)
    wanted = inputs.target_of_framework(plan.workload.framework)
    return files.target or (wanted if wanted in legal or not legal else legal[0])


def settings_from(files: EmitOptions) -> Settings:
    """What the user's site adds to a plan."""
    from planner.emit.record import Settings
    from planner.emit.shell import read_hosts

    hosts: tuple[str, ...] = ()
    if files.hosts is not None:
        try:
            hosts = read_hosts(Path(files.hosts).read_text(encoding="utf-8-sig"), files.hosts)
        except UnicodeDecodeError:
            raise EmitError(f"--hosts {files.hosts} is not UTF-8 text; list one host a line.") from None
        except OSError as error:
            raise EmitError(f"--hosts {files.hosts} cannot be read: {error.strerror}.") from None
    return Settings(data_path=files.data or "", tokenizer_path=files.tokenizer or "", hosts=hosts)
