"""Train the emitted script on this machine: one process, or several through msrun, that never outlive us."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planner.children.child_log import last_error_line
from planner.children.process import Children, Ended
from planner.dialects.launch.environment import mindspore as ascend_variables
from planner.dialects.native import write as native
from planner.dialects.records import Settings
from planner.errors import CalibrationError, ValidationError
from planner.observe.native_log import read_native_log
from planner.plan import Plan
from planner.validate.run.machine import DeviceKind

#: Steps after those that are timed, run under the profiler by the script.
PROFILE: Final = "profile"
#: Cores of the ranks, in rank order: on the CPU a device is one core.
CORES: Final = "PLANNER_CORES"
_OUTPUT: Final = "output.log"
_LOGS: Final = "logs"
#: Seconds in which ranks must find each other; MindSpore's default of 600 s hides a rank that never came.
_MEETING_S: Final = 120
#: msrun names the process that died, not its rank.
_DIED: Final = re.compile(r"Worker process (\d+) exit with exception. Error code: (-?\d+)")
_BUSY: Final = re.compile(r"Failed to call bind, url: \S+|Address already in use")
_MOST_WORDS: Final = 400
#: What a rank logs only because another one is gone.
_ECHO: Final = re.compile(r"Peer Worker ip|timed out node|end of file|Distributed job exited|is timed out")
_NO_CARD_MEMORY: Final = ("out of memory", "Out of memory", "bad_alloc", "Allocate memory failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How to run, not what.

    Attributes
    ----------
    steps : int
        Timed steps, the dropped first ones included.
    timeout_s : float
        Limit of one run, compilation included [s].
    port : int or None
        Port on which ranks meet; None: a free one.
    profile : bool
        Two more steps under MindSpore Profiler.
    """

    steps: int = 10
    timeout_s: float = 1800.0
    port: int | None = None
    profile: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run left behind.

    Attributes
    ----------
    logs : tuple of Path
        Log of each rank, in rank order.
    profile : Path
        Folder of the profiler's records; may be missing.
    seconds : float
        Wall time of the whole run [s].
    """

    logs: tuple[Path, ...]
    profile: Path
    seconds: float


def launch(
    plan: Plan, device: DeviceKind, python: Path, folder: Path, settings: RunSettings, children: Children
) -> Ran:
    """Write the script of a plan into ``folder`` and train it.

    Raises
    ------
    ValidationError
        The port is taken, the folder cannot be written, or a rank failed: names it and its last error.
    EmitError
        The script cannot hold the plan.
    """
    ranks = plan.devices
    port = _port(settings.port) if ranks > 1 else 0
    script = native.render(plan, Settings())
    try:
        (folder / script.name).write_text(script.text, encoding="utf-8")
        (folder / _LOGS).mkdir(exist_ok=True)
    except OSError as error:
        raise ValidationError(
            f"{folder} cannot be written: {error.strerror or error}; name another with --keep, or set TMPDIR."
        ) from error
    command = _command(python, ranks, port, (script.name, *_arguments(device, settings)))
    output = folder / _OUTPUT
    ended = children.run(
        command,
        env=_environment(plan, device, python),
        folder=folder,
        log=output,
        timeout_s=settings.timeout_s,
        failed=(lambda: _failed(output, folder / _LOGS)) if ranks > 1 else None,
    )
    logs = tuple(folder / _LOGS / f"worker_{rank}.log" for rank in range(ranks)) if ranks > 1 else (output,)
    if ended.status != 0 or ended.timed_out or ended.stopped:
        raise ValidationError(_failure(ended, logs, output, folder / _LOGS / "scheduler.log", settings))
    return Ran(logs=logs, profile=folder / PROFILE, seconds=ended.seconds)


def _arguments(device: DeviceKind, settings: RunSettings) -> tuple[str, ...]:
    profile = ("--profile", PROFILE) if settings.profile else ()
    return ("--device", device, "--steps", str(settings.steps), "--save-every", "0", *profile)


def _command(python: Path, ranks: int, port: int, program: Sequence[str]) -> list[str]:
    if ranks == 1:
        return [str(python), *program]
    return [
        str(python), "-m", "mindspore.parallel.cluster.run", f"--worker_num={ranks}", f"--local_worker_num={ranks}",
        f"--master_port={port}", f"--log_dir={_LOGS}", "--join=True", f"--cluster_time_out={_MEETING_S}", *program,
    ]  # fmt: skip


def _environment(plan: Plan, device: DeviceKind, python: Path) -> dict[str, str]:
    """The caller's environment; msrun starts its ranks as ``python``, so ours must be found first."""
    mine = {"PATH": f"{python.absolute().parent}{os.pathsep}{os.environ.get('PATH', '')}", "GLOG_v": "3"}
    if device == "CPU" and (cores := idlest_cores()):
        mine[CORES] = ",".join(map(str, cores))
    added = {v.name: v.value for v in ascend_variables(plan)} if device == "Ascend" else {}
    return {**added, **_without_ranks(os.environ), **mine}


def idlest_cores(seconds: float = 0.2, stat: Path = Path("/proc/stat")) -> list[int]:
    """Cores this process may use, the idlest first; none where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    before = _idle(stat)
    time.sleep(seconds)
    after = _idle(stat)
    return sorted(cores, key=lambda core: before.get(core, 0) - after.get(core, 0))


def _idle(stat: Path) -> dict[int, int]:
    """Ticks that each core has been idle."""
    return {int(core): int(idle) for core, idle in re.findall(r"^cpu(\d+)(?: \d+){3} (\d+)", _text(stat), re.MULTILINE)}


def _without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables of a job that started us: the script would take itself for one of its ranks."""
    foreign = ("RANK_ID", "RANK_SIZE", "DEVICE_ID", "MS_WORKER_NUM", "MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT")
    return {name: value for name, value in environ.items() if name not in foreign and name != "MS_SIMULATION_LEVEL"}


def _port(wanted: int | None) -> int:
    """A free port, or the wanted one if it is free: msrun waits for ever on a busy one."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError as error:
            raise ValidationError(
                f"port {wanted} is taken ({error.strerror}); ranks meet there. Name a free one with --port, or none."
            ) from error
        return int(probe.getsockname()[1])


def _failed(output: Path, logs: Path) -> bool:
    """Whether msrun has seen a rank die, or its scheduler cannot listen; it would wait for a minute, or for ever."""
    scheduler = logs / "scheduler.log"
    return bool(_DIED.search(_text(output)) or _BUSY.search(_text(scheduler)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _failure(ended: Ended, logs: Sequence[Path], output: Path, scheduler: Path, settings: RunSettings) -> str:
    """One sentence: which rank failed, how, and the last error in its log."""
    if _BUSY.search(_text(scheduler)):
        return "the port on which ranks meet was taken in the meantime; run again, or name one with --port."
    if ended.timed_out:
        return (
            f"training was stopped after {settings.timeout_s:.0f} s; {_progress(logs)}. Raise --timeout, or run fewer "
            "layers (--layers-per-stage) or steps."
        )
    rank, status = _who(ended, logs, output)
    words = _last_words(logs[rank]) if rank is not None else _last_words(output)
    who = f"rank {rank} of {len(logs)}" if rank is not None else "the launcher"
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    hint = (
        " This machine may have run out of memory: fewer layers (--layers-per-stage)."
        if _starved(status, words)
        else ""
    )
    return f"{who} {how}: {words}{hint}"


def _starved(status: int, words: str) -> bool:
    return status == -9 or any(said in words for said in _NO_CARD_MEMORY)


def _who(ended: Ended, logs: Sequence[Path], output: Path) -> tuple[int | None, int]:
    """Rank that died first, and its status."""
    if len(logs) == 1:
        return 0, ended.status
    died = _DIED.findall(_text(output))
    for process, status in died:
        for rank, log in enumerate(logs):
            if _process(log) == int(process):
                return rank, int(status)
    for rank, log in enumerate(logs):  # a rank that died before it said who it is left its own traceback
        if "Traceback" in _text(log):
            return rank, int(died[0][1]) if died else ended.status
    return None, int(died[0][1]) if died else ended.status


def _process(log: Path) -> int | None:
    try:
        return read_native_log(_text(log)).process
    except CalibrationError:
        return None


def _last_words(log: Path) -> str:
    """The last line of a log that names an error of its own, shortened."""
    words = " ".join(last_error_line(log, _ECHO).split()) or "it left no message"
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]} ..."


def _progress(logs: Sequence[Path]) -> str:
    done = []
    for log in logs:
        try:
            done.append(len(read_native_log(_text(log)).steps))
        except CalibrationError:
            done.append(0)
    return f"{min(done)} steps were done"
