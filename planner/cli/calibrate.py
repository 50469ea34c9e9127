"""`planner calibrate`: this machine's own constants, from micro-benchmarks or from what was measured before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import parse
from planner.cli.options import OutputOptions, own, spread
from planner.cli.output import print_document, print_lines
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.calibrate.session import Settings
    from planner.measure.sweep import Shapes

PANEL = "Calibrate"

EPILOG = """Examples:

planner calibrate

planner calibrate --device CPU --minutes 3 --out mine.yaml

planner calibrate --model qwen3-32b --tp 8 --minutes 15

planner calibrate --from earlier.csv --from matmuls.csv --hardware 910b3 --out mine.yaml

planner calibrate show mine.yaml --html fit.html

Measuring needs MindSpore: pip install planner[mindspore]. An interrupted run goes on where it stopped. Exit codes: 0
ok, 2 bad input or a file that exists, 4 a benchmark could not be carried out."""


@spread(epilog=EPILOG)
def calibrate(
    output: OutputOptions,
    what: Annotated[list[str] | None, typer.Argument(help="'show FILE': the fit of a calibration.")] = None,
    device: Annotated[str, own("--device", PANEL, "auto, CPU or Ascend (default: auto).", "NAME")] = "auto",
    ranks: Annotated[str | None, own("--ranks", PANEL, "Processes of collectives (default: all cards).", "N")] = None,
    hosts: Annotated[
        str | None, own("--hosts", PANEL, "File with one host a line, this command on each.", "FILE")
    ] = None,
    node_rank: Annotated[str, own("--node-rank", PANEL, "Line of this host in it (default: 0).", "N")] = "0",
    port: Annotated[str | None, own("--port", PANEL, "Port of the scheduler (default: a free one).", "N")] = None,
    minutes: Annotated[str, own("--minutes", PANEL, "Time for everything (default: 10).", "N")] = "10",
    out: Annotated[str, own("--out", PANEL, "The calibration (default: mine.yaml).", "FILE")] = "mine.yaml",
    source: Annotated[list[str] | None, own("--from", PANEL, "Import instead of measuring.", "PATH")] = None,
    hardware: Annotated[str | None, own("--hardware", PANEL, "Profile (default: the device's own).", "NAME")] = None,
    model: Annotated[str | None, own("--model", PANEL, "Measure this model's layers first.", "NAME")] = None,
    tp: Annotated[str, own("--tp", PANEL, "Under these tensor-parallel degrees (default: 1).", "1,8")] = "1",
    seq: Annotated[str, own("--seq", PANEL, "Tokens of one micro-batch (default: 4096).", "N")] = "4096",
    python: Annotated[str | None, own("--python", PANEL, "Interpreter that has MindSpore.", "FILE")] = None,
    html: Annotated[str | None, own("--html", PANEL, "Page of 'show' (default: FILE.html).", "FILE")] = None,
    force: Annotated[bool, own("--force", PANEL, "Replace a calibration and start anew.")] = False,
) -> None:
    """Measure this machine, or import measurements, and write a calibration for --calibration."""
    import datetime

    from planner.calibrate.session import Settings
    from planner.calibrate.session import calibrate as carry_out
    from planner.report.calibration import calibration_document, calibration_lines

    if what:
        show(what, html, output)
        return
    if device not in ("auto", "CPU", "Ascend"):
        raise SpecError(f"--device '{device}' is not known; legal: auto, CPU, Ascend.")
    settings = Settings(
        device=device, hardware=hardware, ranks=None if ranks is None else parse.whole(ranks, "--ranks", most=4096),
        hosts=hosts_of(hosts), node_rank=parse.whole(node_rank, "--node-rank", least=0, most=4096),
        port=0 if port is None else parse.whole(port, "--port", most=65535), minutes=minutes_of(minutes),
        out=Path(out), sources=tuple(map(Path, source or ())), shapes=shapes_from(model, tp, seq, device),
        python=None if python is None else Path(python), force=force,
    )  # fmt: skip
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    with measuring(settings, quiet=output.json) as progress:
        found = carry_out(settings, today, progress)
    if found is None:
        print_lines([f"Done on node {settings.node_rank}; the first host has the results."])
    elif output.json:
        print_document(calibration_document(found))
    else:
        print_lines(calibration_lines(found))


def show(words: list[str], html: str | None, output: OutputOptions) -> None:
    """`planner calibrate show FILE`."""
    from planner.calibrate.shown import shown
    from planner.report.calibration_page import shown_document, shown_lines, write_page

    if words[0] != "show" or len(words) != 2:
        raise SpecError(f"'{' '.join(words)}' is no task of calibrate; legal: nothing, or show FILE.")
    path = Path(words[1])
    found = shown(path)
    page = Path(html) if html is not None else path.with_suffix(".html")
    write_page(found, page)
    if output.json:
        print_document(shown_document(found, page))
    else:
        print_lines([*shown_lines(found), "", f"Page      {page}"])


def hosts_of(path: str | None) -> tuple[str, ...]:
    """Names of a file, one a line."""
    if path is None:
        return ()
    try:
        lines = [line.partition("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--hosts {path} cannot be read: {error}.") from None
    hosts = tuple(line for line in lines if line)
    if not hosts:
        raise SpecError(f"--hosts {path} names no host; write one a line.")
    return hosts


def minutes_of(text: str) -> float:
    """Minutes, fractions allowed."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 1440.0:
        raise SpecError(f"--minutes '{text}'; legal: 0.1 to 1440.")
    return value


def shapes_from(model: str | None, tp: str, seq: str, device: str) -> Shapes | None:
    """Layers of a named model before the usual ones."""
    if model is None:
        return None
    from planner.inputs import model_for
    from planner.measure import run, sweep

    degrees = parse.several(tp, "--tp", least=1)
    tokens = parse.whole(seq, "--seq", most=2**22)
    return sweep.shapes_of(model_for(model), tokens, degrees, sweep.shapes_for(run.find_device(device)))


@contextmanager
def measuring(settings: Settings, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Progress bar on stderr: what is measured, tasks done, time left of what was granted."""
    if quiet or settings.sources or not sys.stderr.isatty():
        yield None
        return
    import time

    bar, task = _bar()
    start, total_s = time.monotonic(), 60.0 * settings.minutes

    def report(text: str, done: int, total: int) -> None:
        left = max(0.0, total_s - (time.monotonic() - start))
        spent = min(total_s, time.monotonic() - start)
        words = f"{done} of {total}, {text}"
        bar.update(task, total=total_s, completed=spent, description=words, left=f"at most {left / 60:.0f} min left")

    with bar:
        yield report


def _bar() -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    return bar, bar.add_task("starting", total=None, left="")
