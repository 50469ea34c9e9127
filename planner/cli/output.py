"""Printing: text or one JSON document on stdout, progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

#: Work shorter than this shows no progress [s].
PATIENCE_S: Final = 1.0
#: Exit code of an answered question whose answer is that the job does not fit.
OUT_OF_MEMORY: Final = 3


def print_lines(lines: Sequence[str]) -> None:
    """Text answer."""
    print("\n".join(lines))


def print_document(document: Mapping[str, Any]) -> None:
    """JSON answer."""
    from planner.report.documents import dumps

    print(dumps(document))


@contextmanager
def searching(*, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Progress of a search on stderr once it takes over a second; nothing when stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    shown: list[Any] = []
    start = time.monotonic()

    def report(examined: int, fitting: int) -> None:
        if not shown and time.monotonic() - start > PATIENCE_S:
            shown.append(_progress())
        if shown:
            bar, task = shown[0]
            bar.update(task, description=f"{examined:,} strategies examined, {fitting:,} fit")

    try:
        yield report
    finally:
        if shown:
            shown[0][0].stop()


def _progress() -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar, bar.add_task("searching", total=None)
