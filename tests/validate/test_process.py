"""Children are killed with all they started: on timeout, on error, on Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from planner.children.process import Children, ending_by_exception

PARENT_OF_SLEEPER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids", "w").write(str(child.pid))
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether a process ends within some seconds."""
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def run(children: Children, folder: Path, script: str, timeout_s: float = 60.0):
    command = [sys.executable, "-c", script]
    return children.run(command, env=os.environ, folder=folder, log=folder / "log", timeout_s=timeout_s)


def grandchild(folder: Path) -> int:
    """Process id that the parent script wrote, once it is there."""
    path = folder / "pids"
    deadline = time.monotonic() + 20
    while (not path.exists() or not path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return int(path.read_text())


def test_output_and_status(tmp_path: Path) -> None:
    with Children() as children:
        ended = run(children, tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.status, ended.timed_out) == (3, False)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_death_by_signal_is_a_negative_status(tmp_path: Path) -> None:
    with Children() as children:
        assert run(children, tmp_path, "import os; os.kill(os.getpid(), 9)").status == -9


def test_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    with Children() as children:
        ended = run(children, tmp_path, PARENT_OF_SLEEPER, timeout_s=3.0)
    assert ended.timed_out
    assert ended.status == -15
    assert gone(grandchild(tmp_path))


@pytest.mark.parametrize("ending", ["time.sleep(600)", "sys.exit(1)"])
def test_workers_in_sessions_of_their_own_are_killed(tmp_path: Path, ending: str) -> None:
    """As msrun starts them; also when the launcher has died before, and they are nobody's children."""
    own_session = PARENT_OF_SLEEPER.replace('600)"])', '600)"], start_new_session=True)')
    assert own_session.count("start_new_session") == 1
    with Children() as children:
        run(children, tmp_path, own_session.replace("\ntime.sleep(600)", f"\n{ending}"), timeout_s=3.0)
    assert gone(grandchild(tmp_path), within_s=0.5)


def test_a_child_is_given_up_once_it_has_failed(tmp_path: Path) -> None:
    asked: list[float] = []

    def failed() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 1

    with Children() as children:
        ended = children.run(
            [sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ, folder=tmp_path,
            log=tmp_path / "log", timeout_s=60.0, failed=failed,
        )  # fmt: skip
    assert (ended.stopped, ended.timed_out, ended.status) == (True, False, -15)
    assert ended.seconds < 30.0


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with Children() as children:
        ended = run(children, tmp_path, script, timeout_s=1.0)
    assert ended.timed_out
    assert ended.status == -9


def test_leaving_the_context_kills_what_runs_in_other_threads(tmp_path: Path) -> None:
    with Children() as children:
        thread = threading.Thread(target=run, args=(children, tmp_path, PARENT_OF_SLEEPER))
        thread.start()
        pid = grandchild(tmp_path)
    thread.join(20)
    assert not thread.is_alive()
    assert gone(pid)


def test_nothing_starts_after_closing(tmp_path: Path) -> None:
    children = Children()
    children.close()
    with pytest.raises(KeyboardInterrupt):
        run(children, tmp_path, "print('never')")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_become_exceptions(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, ending_by_exception():
        signal.raise_signal(signal.Signals(number))
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) == before


def test_signals_that_the_caller_ignores_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_by_exception():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def inside() -> None:
        with ending_by_exception():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
