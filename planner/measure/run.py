"""Running the benchmarks: child programs under the interpreter that has MindSpore, watched, ended, and resumed.

The parent hands over a job, reads result lines as they appear, appends them to the raw CSV, and starts the child again
behind a task that killed or hung it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from planner.children.process import Children, Ended
from planner.errors import CalibrationError, ValidationError
from planner.measure import raw
from planner.measure.raw import Facts, Row
from planner.measure.sweep import Task

BENCH: Final = Path(__file__).resolve().parent / "bench"
#: How often a marked task is measured before its best run is taken as it is.
ATTEMPTS: Final = 4
#: Start of a child until its first line, and longest silence after that [s].
START_S: Final = 180.0
SILENCE_S: Final = 120.0
#: Seconds a child measures however late it starts.
LEAST_S: Final = 10.0
#: Seconds in which a rank that ended is missed.
_POLL_S: Final = 0.2
#: Seconds a child may take beyond its own deadline.
_GRACE_S: Final = 60.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how benchmarks run.

    Attributes
    ----------
    python : Path
        Interpreter that has MindSpore.
    device : {"CPU", "Ascend"}
    budget_s : float
        Counted seconds of one task.
    csv : Path
        Raw CSV to append to.
    progress : callable
        Called with what is measured, tasks done, tasks in all.
    """

    python: Path
    device: str
    csv: Path
    budget_s: float = 0.4
    progress: Progress = lambda text, done, total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Processes of a run over several devices.

    Attributes
    ----------
    ranks : int
        In all.
    hosts : tuple of str
        Nodes, the first one holds the scheduler; empty: this machine alone.
    node_rank : int
        Which of them this is.
    port : int
        Port of the scheduler; 0: a free one (one node only).
    """

    ranks: int
    hosts: tuple[str, ...] = ()
    node_rank: int = 0
    port: int = 0

    @property
    def nodes(self) -> int:
        """Machines."""
        return max(1, len(self.hosts))


def measure(bench: Bench, tasks: Sequence[Task], seconds: float, ranks: Ranks | None = None) -> tuple[Row, ...]:
    """Measure what the raw CSV does not hold yet, marked points again while time is left.

    Returns
    -------
    tuple of Row
        All rows of the CSV.

    Raises
    ------
    CalibrationError
        The CSV belongs to another device, or cannot be written.
    ValidationError
        The child program does not start, or a rank died.
    """
    deadline = time.monotonic() + seconds
    rows = list(raw.read(bench.csv)) if bench.csv.exists() else []
    for attempt in range(1, (1 if ranks and ranks.hosts else ATTEMPTS) + 1):
        rest = raw.open_tasks(tasks, rows, attempts=attempt)
        while rest and (left := deadline - time.monotonic()) > 0.0:
            before = len(rows)
            done = len(tasks) - len(raw.open_tasks(tasks, rows))
            rows += _one_run(bench, tasks, rest, left, rows, ranks, (done, len(tasks)))
            rest = raw.open_tasks(tasks, rows, attempts=attempt)
            if len(rows) == before:
                break
    return tuple(rows)


def _one_run(
    bench: Bench, tasks: Sequence[Task], rest: Sequence[Task], seconds: float, known: Sequence[Row],
    ranks: Ranks | None, done: tuple[int, int],
) -> list[Row]:  # fmt: skip
    """One child, until it ends, is past its time, or has to be ended.

    Ranks on several machines must agree on what comes next: all read all tasks, and rank 0 says which are left.
    """
    with TemporaryDirectory(prefix="planner-calibrate-") as name, Children() as children, _pool() as pool:
        folder = Path(name)
        results = folder / "results.jsonl"
        results.touch()
        ends = time.monotonic() + seconds
        job = {
            "device": bench.device, "results": str(results), "folder": str(folder), "budget_s": bench.budget_s,
            "ends": ends, "nodes": ranks.nodes if ranks else 1, 
            "tasks": [task.to_dict() for task in (tasks if ranks else rest)],
            "wanted": [task.key for task in rest], "least": LEAST_S,
        }  # fmt: skip
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command, env = _command(bench, folder, ranks)
        future = pool.submit(
            children.run, command, env=env, folder=folder, log=folder / "log", timeout_s=seconds + START_S + _GRACE_S
        )
        watch = _Watch(bench=bench, tasks=tasks, known=known, results=results, folder=folder, done=done)
        try:
            found = watch.follow(future, ranks)
        finally:
            children.close()
            _end_ranks(folder)
        return found


def _end_ranks(folder: Path) -> None:
    """End ranks that outlived msrun, which starts them in sessions of their own.

    A number may be another process's by now: ours has the job of this folder among its arguments.
    """
    for file in folder.glob("rank_*.pid"):
        with contextlib.suppress(ValueError, OSError):
            process = int(file.read_text(encoding="ascii"))
            if str(folder).encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def _command(bench: Bench, folder: Path, ranks: Ranks | None) -> tuple[list[str], dict[str, str]]:
    """The child's command line and surroundings; msrun starts its workers as ``python``, whatever that is called."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "RANK_"))}
    env |= {"GLOG_v": "3", "PYTHONUNBUFFERED": "1"}
    if bench.device == "CPU":
        env["PLANNER_CORE_EACH"] = "1"
    job = str(folder / "job.json")
    if ranks is None:
        return [str(bench.python), str(BENCH / "operators.py"), job], env
    shim = folder / "bin" / "python"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{bench.python}" "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    env["PATH"] = f"{shim.parent}{os.pathsep}{env.get('PATH', '')}"
    local = ranks.ranks // ranks.nodes
    command = [
        str(bench.python), "-m", "mindspore.parallel.cluster.run", f"--worker_num={ranks.ranks}",
        f"--local_worker_num={local}", f"--master_port={ranks.port or free_port()}", f"--log_dir={folder / 'ranks'}",
        "--join=True", "--cluster_time_out=120",
    ]  # fmt: skip
    if ranks.hosts:
        command += [f"--master_addr={ranks.hosts[0]}", f"--node_rank={ranks.node_rank}"]
    return [*command, str(BENCH / "collectives.py"), job], env


def free_port() -> int:
    """A port that nobody listens on, for the scheduler of ranks on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Refuse a port that somebody listens on: msrun would wait on it for ever."""
    try:
        with socket.socket() as probe:
            probe.bind(("", port))
    except OSError as error:
        raise CalibrationError(f"port {port} cannot be used: {error.strerror}; choose another with --port.") from None


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Reads the result lines of a running child."""

    bench: Bench
    tasks: Sequence[Task]
    known: Sequence[Row]
    results: Path
    folder: Path
    done: tuple[int, int]
    begun: str = ""
    facts: Facts | None = None
    finished: bool = False
    offset: int = 0

    def follow(self, future: Future[Ended], ranks: Ranks | None) -> list[Row]:
        """Rows of the run; a task that ended or hung the child becomes an unsupported one."""
        by_key = {task.key: task for task in self.tasks}
        found: list[Row] = []
        heard = time.monotonic()
        while True:
            ended = future.done()
            lines = list(self._lines())
            for line in lines:
                found += self._take(line, by_key)
            if lines:
                heard = time.monotonic()
            if ended:
                break
            if time.monotonic() - heard > (SILENCE_S if self.facts else START_S):
                return found + self._lost(by_key, f"no answer in {SILENCE_S:.0f} s")
            if ranks and ranks.node_rank == 0 and (dead := self._dead_rank()) is not None and not self.finished:
                raise ValidationError(
                    f"rank {dead} died while '{self.begun or 'starting'}' was measured: {self._words(dead)}. What was "
                    f"measured before is in {self.bench.csv}; the same command goes on from there."
                )
            time.sleep(_POLL_S)
        status = future.result().status
        if self.facts is None and (ranks is None or ranks.node_rank == 0):
            raise ValidationError(f"the benchmark program ended with status {status}: {self._words(0)}.")
        if status and self.begun:
            return found + self._lost(by_key, f"the program ended with status {status}")
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self.results.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                yield json.loads(line)

    def _take(self, line: Mapping[str, Any], tasks: Mapping[str, Task]) -> list[Row]:
        if "facts" in line:
            self.facts = Facts.of(line["facts"])
            other = next((row.facts for row in self.known if self.facts.differs(row.facts)), None)
            if other is not None:
                raise CalibrationError(
                    f"{self.bench.csv} was measured with {self.facts.differs(other)}; choose another --out, or "
                    "delete it."
                )
            return []
        if "done" in line:
            self.finished = True
            return []
        if "begun" in line:
            self.begun = line["id"]
            self.bench.progress(self.begun, *self.done)
            return []
        self.begun = ""
        row = self._row(tasks[line["id"]], line)
        self.done = (min(self.done[0] + 1, self.done[1]), self.done[1])
        return [row]

    def _row(self, task: Task, found: Mapping[str, Any]) -> Row:
        assert self.facts is not None
        when = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
        row = raw.row_of(when, self.facts, task.to_dict(), found)
        raw.append(self.bench.csv, [row])
        return row

    def _lost(self, tasks: Mapping[str, Task], why: str) -> list[Row]:
        if not self.begun or self.facts is None:
            return []
        task, self.begun = tasks[self.begun], ""
        return [self._row(task, {"unsupported": why})]

    def _dead_rank(self) -> int | None:
        """A rank of this machine that was here and is gone."""
        for file in sorted(self.folder.glob("rank_*.pid")):
            with contextlib.suppress(ValueError, PermissionError):
                process = int(file.read_text(encoding="ascii"))
                if not is_alive(process):
                    return int(file.stem.removeprefix("rank_"))
        return None

    def _words(self, rank: int) -> str:
        """The last error in the log of a rank, or of the program itself."""
        for log in (
            self.folder / "ranks" / f"worker_{rank}.log",
            self.folder / "ranks" / "scheduler.log",
            self.folder / "log",
        ):
            with contextlib.suppress(OSError):
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                errors = [line.strip() for line in lines if "Error" in line or "terminate called" in line]
                if errors:
                    return errors[-1][:300]
        return "it left no message"


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def find_device(wanted: str) -> str:
    """The device to measure: the named one, or Ascend where a driver has put a card, else the CPU."""
    if wanted != "auto":
        return wanted
    cards = list(Path("/dev").glob("davinci[0-9]*"))
    return "Ascend" if cards and shutil.which("npu-smi") else "CPU"


def find_python(python: Path | None) -> Path:
    """Interpreter that has MindSpore, by name or the running one.

    Raises
    ------
    ValidationError
        It has none; says which command installs it.
    """
    import subprocess

    chosen = python or Path(os.environ.get("PLANNER_MINDSPORE_PYTHON") or sys.executable)
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mindspore') is None)"
    try:
        status = subprocess.run([str(chosen), "-c", probe], capture_output=True, timeout=60, check=False).returncode
    except OSError as error:
        raise ValidationError(
            f"the interpreter {chosen} does not run: {error.strerror}; name another with --python."
        ) from None
    except subprocess.TimeoutExpired:
        raise ValidationError(f"the interpreter {chosen} gave no answer in 60 s; name another with --python.") from None
    if status:
        raise ValidationError(
            f"{chosen} has no MindSpore, which calibrate runs; install it: {chosen} -m pip install mindspore==2.9.0 "
            "(or name an interpreter that has it with --python)."
        )
    return chosen
