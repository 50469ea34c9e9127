"""`planner monitor`: what stands out in the log of a run, once or while it is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import OUTPUT_PANEL, OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.monitor.watch import Expected
    from planner.observe.records import Observation

EPILOG = """Examples:

planner monitor output/ledger --plan out/plan.json

planner monitor worker_7.log --follow

Exit code 0 whatever is found, 2 for bad input."""

#: Looks at a file that grows, and how much longer than reading it the pause is [s].
EVERY_S = 2.0
PAUSE = 5.0


@spread(epilog=EPILOG)
def monitor(
    paths: Annotated[list[str], typer.Argument(help="Training logs, ledgers, or their folder.", metavar="PATH...")],
    output: OutputOptions,
    plan: Annotated[str | None, own("--plan", OUTPUT_PANEL, "Compare with this plan.", "plan.json")] = None,
    follow: Annotated[bool, own("--follow -f", OUTPUT_PANEL, "Go on while the log is written.")] = False,
    patience: Annotated[float | None, own("--patience", OUTPUT_PANEL, "Stop following after so many seconds without a "
                                          "new step.", "SECONDS")] = None,
) -> None:  # fmt: skip
    """Watch a run: slow steps and their period, drift, stragglers, loss and norm spikes, memory that creeps."""
    from planner import plan as plans
    from planner.diagnose.logs import expected_of
    from planner.monitor.watch import watch
    from planner.report.watching import monitor_document, monitor_lines

    if follow and output.json:
        raise SpecError("--follow prints as it goes; --json is one document. Leave one of them out.")
    if patience is not None and not (follow and patience > 0):
        raise SpecError("--patience takes a positive number of seconds, with --follow.")
    kept = None if plan is None else plans.load(Path(plan) / "plan.json" if Path(plan).is_dir() else plan)
    expected = expected_of(kept)
    if follow:
        _follow(paths, expected, patience)
        return
    observation = _read(paths)
    alarms = watch(observation.runs, expected)
    if output.json:
        print_document(monitor_document(observation, alarms))
    else:
        print_lines(monitor_lines(observation, alarms))


def _read(paths: Sequence[str]) -> Observation:
    from planner.observe.read import read_all

    observation = read_all(paths)
    if not observation.runs:
        raise SpecError(
            f"{', '.join(paths)}: {observation.format or observation.kind} holds no steps of a run; monitor reads "
            "training logs and ledgers ('planner diagnose' reads profiles)."
        )
    return observation


def _follow(paths: Sequence[str], expected: Expected, patience: float | None) -> None:
    """Print a run once and then every new alarm, until no step is to come."""
    from planner.monitor.watch import watch
    from planner.report.watching import alarm_lines, run_lines

    said: set[tuple[str, int | None]] = set()
    size, steps, since = -1, -1, time.monotonic()
    while True:
        begin = time.monotonic()
        if (now := _bytes(paths)) != size:
            size = now
            observation = _read(paths)
            if steps < 0:
                print_lines([line for run in observation.runs for line in run_lines(run)])
            for alarm in watch(observation.runs, expected):
                if (alarm.kind, alarm.step) not in said:
                    said.add((alarm.kind, alarm.step))
                    print_lines(alarm_lines(alarm))
            if (found := sum(len(run) + run.left_out for run in observation.runs)) != steps:
                steps, since = found, time.monotonic()
            if all(run.total_steps and len(run) and run.step[-1] >= run.total_steps for run in observation.runs):
                return
        spent = time.monotonic() - begin
        if patience is not None and time.monotonic() - since > patience:
            return
        time.sleep(max(min(EVERY_S, patience or EVERY_S), PAUSE * spent))


def _bytes(paths: Sequence[str]) -> int:
    """Size of all files [bytes]."""
    found = [file for path in map(Path, paths) for file in (path.rglob("*") if path.is_dir() else (path,))]
    return sum(file.stat().st_size for file in found if file.is_file())
