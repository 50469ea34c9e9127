"""`planner emit`: files of a plan for one framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import EmitOptions, OutputOptions, spread
from planner.cli.output import print_document, print_lines
from planner.errors import EmitError

if TYPE_CHECKING:
    from planner.dialects.records import EmitResult, Settings
    from planner.plan import Plan

_MOST_BYTES = 2**20

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
    from planner.dialects.write import emit as emit_files

    return emit_files(plan, directory, target_for(plan, files), files.force, settings_from(files))


def target_for(plan: Plan, files: EmitOptions) -> str:
    """The target asked for, or the one whose framework the plan was estimated for."""
    from planner import inputs
    from planner.dialects.families import targets_for

    legal = targets_for(plan.model)
    wanted = inputs.target_of_framework(plan.workload.framework)
    return files.target or (wanted if wanted in legal or not legal else legal[0])


def settings_from(files: EmitOptions) -> Settings:
    """What the user's site adds to a plan."""
    from planner.dialects.records import Settings
    from planner.dialects.text.shell_write import read_devices, read_hosts

    hosts: tuple[str, ...] = ()
    addresses: tuple[tuple[str, ...], ...] = ()
    if files.hosts is not None:
        hosts = read_hosts(_lines_of("--hosts", files.hosts), files.hosts)
    if files.rank_table is not None:
        named, addresses = read_devices(_lines_of("--rank-table", files.rank_table), files.rank_table)
        if hosts and named[: len(hosts)] != hosts[: len(named)]:
            raise EmitError(f"--hosts {files.hosts} and --rank-table {files.rank_table} list different hosts.")
        hosts = hosts or named
    return Settings(
        data_path=files.data or "", tokenizer_path=files.tokenizer or "", hosts=hosts, device_addresses=addresses
    )


def _lines_of(option: str, path: str) -> str:
    """Text of a file that lists hosts."""
    try:
        with Path(path).open("rb") as handle:
            data = handle.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise EmitError(f"{option} {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(data) > _MOST_BYTES:
        raise EmitError(f"{option} {path} has more than {_MOST_BYTES // 2**20} MiB; list one host a line.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise EmitError(f"{option} {path} is not UTF-8 text; list one host a line.") from None
