"""Runs that fail: the rank, its last error, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from planner.children.process import Children
from planner.errors import EmitError, SpecError, ValidationError
from planner.validate.run.launch import RunSettings, idlest_cores, launch
from planner.validate.run.run import Planned, Settings, validate
from tests.dialects.samples import plan, small
from tests.dialects.test_proof import framework_python
from tests.validate.run.samples import MACHINE, TINY

COMMON = {"seq": 32, "zero_level": 0, "sequence_parallel": False, "micro_batches": 1, "micro_batch_size": 4}
ONE, TWO = plan(TINY, **COMMON), plan(TINY, dp=2, **COMMON)

#: Plays interpreter, launcher and ranks: two ranks of which one dies or all wait.
LAUNCHER = """#!/bin/sh
sleep 300 &
echo "rank 0 of 2, process 11" > logs/worker_0.log
echo "RuntimeError: Peer Worker ip 127.0.0.1 end of file" >> logs/worker_0.log
echo "rank 1 of 2, process 12" > logs/worker_1.log
{more}
sleep 300
"""


def fake(folder: Path, more: str) -> Path:
    path = folder / "fake-python"
    path.write_text(LAUNCHER.format(more=more))
    path.chmod(0o755)
    return path


def run(chosen, python: Path, folder: Path, **settings: object):
    with Children() as children:
        return launch(chosen, "CPU", python, folder, RunSettings(**{"steps": 5, **settings}), children)


def in_folder(folder: Path) -> list[str]:
    """Processes that work in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder.resolve():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_a_single_process_that_fails(tmp_path):
    with pytest.raises(ValidationError, match=r"rank 0 of 1 ended with exit status 1: .*Error"):
        run(ONE, bad_python(tmp_path), tmp_path)


def bad_python(folder: Path) -> Path:
    path = folder / "bad-python"
    path.write_text("#!/bin/sh\necho 'Traceback (most recent call last):'\necho 'ValueError: no such thing'\nexit 1\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            'echo "MemoryError: 12 GB" >> logs/worker_1.log\n'
            'echo "Worker process 12 exit with exception. Error code: 1."',
            "rank 1 of 2 ended with exit status 1: MemoryError: 12 GB",
        ),
        (
            'echo "Worker process 12 exit with exception. Error code: -9."',
            "rank 1 of 2 was killed by signal 9: rank 1 of 2, process 12 This machine may have run out of memory",
        ),
        (
            'echo "Worker process 99 exit with exception. Error code: 1."\n'
            'echo "Traceback" >> logs/worker_1.log; echo "ImportError: x" >> logs/worker_1.log',
            "rank 1 of 2 ended with exit status 1: ImportError: x",
        ),
        (
            'echo "Failed to call bind, url: 127.0.0.1:8118 Address already in use" > logs/scheduler.log',
            "the port on which ranks meet was taken in the meantime",
        ),
    ],
)
def test_a_rank_that_dies_ends_the_run_at_once(tmp_path, more, message):
    with pytest.raises(ValidationError, match=message):
        run(TWO, fake(tmp_path, more), tmp_path, timeout_s=60.0)
    assert in_folder(tmp_path) == []


def test_a_run_that_takes_too_long(tmp_path):
    step = 'echo "step 1 loss 1.0 0.5 s 9 tokens/s/device" | tee -a logs/worker_0.log >> logs/worker_1.log'
    with pytest.raises(ValidationError, match="stopped after 2 s; 1 steps were done. Raise --timeout"):
        run(TWO, fake(tmp_path, step), tmp_path, timeout_s=2.0)
    assert in_folder(tmp_path) == []


def test_a_busy_port(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValidationError, match=f"port {port} is taken .*Name a free one with --port"):
            run(TWO, Path(sys.executable), tmp_path, port=port)


def planned(chosen=ONE) -> Planned:
    return Planned(
        name="out", model=chosen.model, workload=chosen.workload, strategy=chosen.strategy, hardware=MACHINE.hardware
    )


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(ValidationError, match="cannot be written"):
        run(ONE, Path(sys.executable), tmp_path / "absent")


def test_no_mindspore_is_one_line(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"home": null, "mindspore": null, "mindformers": null}\'\n')
    python.chmod(0o755)
    with pytest.raises(ValidationError) as caught:
        validate([planned()], Settings(device="CPU", python=python))
    assert "has no mindspore" in str(caught.value)
    assert "pip install mindspore==2.9.0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_few_steps():
    with pytest.raises(SpecError, match="--steps 3: the first 3 are dropped; legal: from 4"):
        Settings(run=RunSettings(steps=3))


def test_what_the_script_cannot_hold(tmp_path):
    with pytest.raises(EmitError, match="shared embedding and head"):
        run(plan(small("llama", tied_embeddings=True)), Path(sys.executable), tmp_path)


def test_every_rank_gets_a_core_and_the_idlest_is_first(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9\ncpu0 5 0 5 100 0 0 0 0\ncpu1 5 0 5 100 0 0 0 0\n")

    def work() -> None:
        time.sleep(0.2)
        stat.write_text("cpu  9 9 9 9\ncpu0 25 0 5 100 0 0 0 0\ncpu1 5 0 5 120 0 0 0 0\n")

    worker = threading.Thread(target=work)
    worker.start()
    found = idlest_cores(0.6, stat)
    worker.join()
    assert sorted(found) == sorted(os.sched_getaffinity(0))
    if {0, 1} <= set(found):
        assert found.index(1) < found.index(0)


@pytest.mark.slow
def test_a_killed_rank(tmp_path):
    """Rank 1 is killed in mid-run: told at once, long before MindSpore's own time-out, and no process stays."""
    killed: list[float] = []

    def kill() -> None:
        log = tmp_path / "logs" / "worker_1.log"
        for _ in range(2400):
            time.sleep(0.1)
            text = log.read_text(errors="replace") if log.exists() else ""
            if "step 2 " in text:
                number = int(text.split("rank 1 of 2, process ")[1].split()[0])
                os.kill(number, signal.SIGKILL)
                killed.append(time.monotonic())
                return

    watcher = threading.Thread(target=kill)
    watcher.start()
    with pytest.raises(ValidationError, match="rank 1 of 2 was killed by signal 9"):
        run(TWO, Path(framework_python()), tmp_path, steps=100_000, timeout_s=300.0)
    watcher.join()
    assert killed
    assert in_folder(tmp_path) == []
