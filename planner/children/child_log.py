"""What a child of a DryRun left in its log: its report, MindSpore's closing figures, and why it died."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.children.process import Ended

_MARK = "PLANNER_DRYRUN "
_ERROR_LINE = re.compile(r"(Error\b|\[ERROR\]|\[CRITICAL\]|Exception\b|terminate called|Segmentation fault)")
#: What MindSpore logs of every run without an installed CANN; never why one died.
_HARMLESS = re.compile(r'_check_version\.py|whl package "te"')
_FRAGMENTS = re.compile(r"Actual peak memory usage \(with fragments\): (\d+)M")
_LOG_TAIL_BYTES = 200_000
_MOST_WORDS = 600


def read_report(log: Path) -> dict[str, Any]:
    """The child's own report; empty when it left none, or half of one."""
    for line in reversed(_tail(log)):
        if line.startswith(_MARK):
            with contextlib.suppress(ValueError):  # a child that was killed while it wrote
                report: dict[str, Any] = json.loads(line[len(_MARK) :])
                return report
    return {}


def peak_with_fragments(log: Path) -> int:
    """Peak of the memory pool with its fragments [bytes], from MindSpore's closing lines; 0 when they are absent."""
    found = _FRAGMENTS.findall("\n".join(_tail(log)))
    return max((int(number) for number in found), default=0) << 20


def failure_message(stage: int, rank: int, ended: Ended, report: Mapping[str, Any], log: Path) -> str:
    """One sentence on a stage that failed: which, how it ended, and the framework's own words."""
    where = f"DryRun of stage {stage} (rank {rank})"
    if ended.timed_out:
        return (
            f"{where} was stopped after {ended.seconds:.0f} s. Raise the time limit (--timeout), or run fewer layers."
        )
    words = " ".join(str(report.get("error") or last_error_line(log) or "it left no message").split())
    if len(words) > _MOST_WORDS:
        words = f"{words[:_MOST_WORDS]} ..."
    return f"{where} {_how(ended.status)}: {words}"


def _how(status: int) -> str:
    """Exit status, or the signal by number and name."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    hint = ", perhaps because this machine ran out of memory" if -status == signal.SIGKILL else ""
    return f"was killed by signal {-status} ({name}{hint})"


def last_error_line(log: Path, besides: re.Pattern[str] | None = None) -> str:
    """The last line of a log that names an error, else its last line that is not empty; lines of ``besides`` apart."""
    lines = [line.strip() for line in _tail(log) if line.strip() and not _HARMLESS.search(line)]
    lines = [line for line in lines if besides is None or not besides.search(line)]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return (errors or lines or [""])[-1]


def _tail(log: Path) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()
