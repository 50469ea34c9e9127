"""Child processes that never outlive us: each leads a process group, killed on timeout, signal or error.

Launchers (MindSpore's msrun) put their workers into sessions of their own, which a signal to the group does not reach,
and which are nobody's children once the launcher is dead.  So every child carries a mark in its environment, which all
that it starts inherit; whoever carries it is ended with it (Linux; elsewhere the group alone).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

_GRACE_S = 3.0
_POLL_S = 0.2
_ASK_S = 1.0
_MARK = "PLANNER_CHILD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended."""

    status: int
    """Exit status; negative: the signal that ended it."""
    timed_out: bool
    seconds: float
    stopped: bool = False
    """True: the caller's ``failed`` said so before the child ended by itself."""


@contextlib.contextmanager
def ending_by_exception() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `SystemExit` (128 + signal), so that children end and folders go as on Ctrl-C.

    Signals that the caller handles or ignores (``nohup``) stay as they are; so does everything outside the main thread.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                previous[number] = signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Children:
    """The running children of one DryRun; leaving the context kills those that still run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._marks: dict[int, str] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs and start nothing more."""
        with self._lock:
            self._closed = True
            running = [(child, self._marks[child.pid]) for child in self._running]
        for child, mark in running:
            kill_group(child, mark)

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        log: Path,
        timeout_s: float,
        failed: Callable[[], bool] | None = None,
    ) -> Ended:
        """Run `command` in `folder` with both its outputs in `log`; kill its whole group after `timeout_s`.

        ``failed`` is asked every second; once it holds, the group is killed without waiting for the child to notice.
        """
        started = time.monotonic()
        with log.open("wb") as output, self._child(command, env, folder, output.fileno()) as child:
            status, timed_out, stopped = _wait(child, started + timeout_s, failed)
            if status is None:
                kill_group(child, self._marks[child.pid])
                status = child.wait()
        return Ended(status=status, timed_out=timed_out, seconds=time.monotonic() - started, stopped=stopped)

    @contextlib.contextmanager
    def _child(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, output: int
    ) -> Iterator[subprocess.Popen[bytes]]:
        with self._lock:
            if self._closed:
                raise KeyboardInterrupt
            mark = uuid.uuid4().hex
            child = subprocess.Popen(
                command,
                env={**env, _MARK: mark},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(child)
            self._marks[child.pid] = mark
        try:
            yield child
        finally:
            kill_group(child, mark)
            with self._lock:
                self._running.discard(child)
                self._marks.pop(child.pid, None)


def _wait(
    child: subprocess.Popen[bytes], deadline: float, failed: Callable[[], bool] | None
) -> tuple[int | None, bool, bool]:
    """Exit status of a child, or None with the reason to end it: too late, or failed."""
    while True:
        left = deadline - time.monotonic()
        try:
            return child.wait(max(left if failed is None else min(left, _ASK_S), 0.0)), False, False
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return None, True, False
            if failed is not None and failed():
                return None, False, True


def kill_group(child: subprocess.Popen[bytes], mark: str = "") -> None:
    """End a child and all it started: SIGTERM, then SIGKILL for what is left after a moment.

    ``mark`` finds what has left the child's group, see `Children.run`.
    """
    _signal_all(child.pid, mark, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while (child.poll() is None or _marked(mark)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal_all(child.pid, mark, signal.SIGKILL)
    child.wait()


def _signal_all(group: int, mark: str, number: signal.Signals) -> None:
    _signal_group(group, number)
    for process in _marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _marked(mark: str) -> list[int]:
    """Processes that carry a mark in their environment; none without a mark, or without /proc."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for entry in Path("/proc").glob("[0-9]*") if mark else ():
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
