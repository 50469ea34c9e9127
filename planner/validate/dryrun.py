"""MindSpore DryRun of a MindFormers YAML, stage by stage, without a device.

Each stage is one child process (`planner.validate.runner`) that compiles the network for one rank and runs two
simulated steps; its memory plan is MindSpore's own. Limits, to be shown wherever a figure of it is: no operator
workspace, no HCCL buffers, no CANN context; without CANN, kernels are selected through a mocked operator library,
on x86_64 Linux.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from planner.errors import ValidationError
from planner.validate.files import write_atomically
from planner.validate.framework import Framework, find_framework
from planner.validate.prepare import (
    Layout,
    as_run,
    mindrecord_path,
    prepared,
    read_layout,
)
from planner.validate.process import Children, Ended
from planner.validate.standins import Cann, find_cann
from planner.validate.synthetic import write_megatron
from planner.validate.tracker import read_peak, terms

LIMITS = (
    "DryRun level {level}: tensors of the compiled graph only. Not counted: operator workspace, HCCL buffers "
    "(2 x HCCL_BUFFSIZE per communicator), the CANN context."
)
_RUNNER = Path(__file__).with_name("runner.py")
_MARK = "PLANNER_DRYRUN "
_KEYED_SOURCES = ("runner.py", "prepare.py", "standin_sources.py", "tracker.py")
_ERROR_LINE = re.compile(r"(Error\b|\[ERROR\]|\[CRITICAL\]|Exception\b|terminate called|Segmentation fault)")
_FRAGMENTS = re.compile(r"Actual peak memory usage \(with fragments\): (\d+)M")
_LOG_TAIL_BYTES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunSettings:
    """How to run, not what."""

    python: Path | None = None
    """Interpreter with MindSpore; None: what PLANNER_MINDSPORE_PYTHON names, else the running one."""
    cache: Path | None = None
    """Folder of results and stand-ins; None: the user's cache."""
    timeout_s: float = 1800.0
    """Limit of one stage [s]."""
    exact: bool = False
    """True: keep the plan's micro-batches instead of the number that fills the pipeline."""
    jobs: int = 1
    """Stages run at once."""
    level: int = 1
    """MS_SIMULATION_LEVEL: 1 everywhere, 2 and 3 need an NPU."""
    use_cache: bool = True
    keep: Path | None = None
    """Folder to keep logs and, when `graphs`, compiled graphs in."""
    graphs: bool = False
    """True: have the compiler write its intermediate representation (see `planner.validate.volumes`)."""
    extra_env: tuple[tuple[str, str], ...] = ()
    """Further environment variables of the child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What MindSpore planned for one stage."""

    stage: int
    rank: int
    micro_batches: int
    """Micro-batches run (for pp = 1: accumulation steps)."""
    steps: int
    """Simulated training steps that ended."""
    peak_bytes: int
    """Peak of live tensors."""
    static_bytes: int
    """Bytes that outlive a step: parameters, optimizer states, buffers."""
    peak_with_fragments_bytes: int
    """Highest address of the pool in use, to 1 MiB, as MindSpore prints it at exit; 0 when it did not."""
    seconds: float
    mindspore: str
    mindformers: str
    real_cann: bool
    terms: Mapping[str, int]
    """Bytes at the peak by what they are for (`planner.validate.tracker.TERMS`)."""
    peak_operator: str
    """Whose output reached the peak."""
    cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunReport:
    """Results of all stages asked for."""

    layout: Layout
    stages: tuple[StageResult, ...]
    notes: tuple[str, ...]
    """What was done differently from the plan, and what the figures leave out."""


Progress = Callable[[str], None]


def default_cache() -> Path:
    """The user's cache folder of this tool."""
    return Path(platformdirs.user_cache_dir("planner"))


def load_yaml(path: Path) -> dict[str, Any]:
    """A MindFormers YAML as plain dictionaries and lists."""
    try:
        content = YAML(typ="safe", pure=True).load(path)
    except OSError as error:
        raise ValidationError(f"Cannot read {path}: {error.strerror}.") from error
    except YAMLError as error:
        raise ValidationError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValidationError(f"{path} holds no YAML mapping; give a MindFormers configuration file.")
    return content


def default_stages(stages: int) -> tuple[int, ...]:
    """First, one middle and last stage.

    >>> default_stages(8)
    (0, 4, 7)
    """
    return tuple(sorted({0, stages // 2, stages - 1}))


def dryrun(
    config: Path | Mapping[str, Any],
    stages: Iterable[int] | None = None,
    settings: DryRunSettings | None = None,
    progress: Progress | None = None,
) -> DryRunReport:
    """Run chosen stages of a MindFormers configuration through MindSpore DryRun.

    Parameters
    ----------
    config : path or mapping
        Graph-mode MindFormers YAML, either dialect.
    stages : iterable of int, optional
        Default: first, one middle, last.
    settings : DryRunSettings, optional
        Interpreter, cache, time limit, number of stages at once.
    progress : callable, optional
        Gets one line when a stage starts and when it ends.

    Raises
    ------
    ValidationError
        MindSpore or the tools are missing, MindFormers refuses the file (its own message), or a stage died or took
        too long.
    """
    settings = settings or DryRunSettings()
    content = load_yaml(config) if isinstance(config, Path) else dict(config)
    layout = read_layout(content)
    chosen = tuple(stages) if stages is not None else default_stages(layout.pipeline_stages)
    for stage in chosen:
        layout.rank_of_stage(stage)
    session = _open_session(content, layout, settings)
    results = _run_stages(session, chosen, progress or _silent)
    return DryRunReport(layout=layout, stages=results, notes=_notes(session))


def _silent(_: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """All that the stages of one DryRun share."""

    config: dict[str, Any]
    layout: Layout
    run: Layout
    """`layout` with the micro-batches and accumulation steps that are run."""
    framework: Framework
    cann: Cann
    cache: Path
    settings: DryRunSettings


def _open_session(content: Mapping[str, Any], layout: Layout, settings: DryRunSettings) -> _Session:
    cache = settings.cache or default_cache()
    framework = find_framework(settings.python)
    cann = find_cann(framework.home, framework.mindspore, cache, os.environ)
    run = as_run(layout, exact=settings.exact)
    return _Session(
        config=prepared(content, run, cache / "data"),
        layout=layout,
        run=run,
        framework=framework,
        cann=cann,
        cache=cache,
        settings=settings,
    )


def _notes(session: _Session) -> tuple[str, ...]:
    notes = []
    plan, run = session.layout, session.run
    if plan.pipeline_stages > 1 and run.micro_batches < plan.micro_batches:
        notes.append(
            f"Ran {run.micro_batches} of {plan.micro_batches} micro-batches: enough to fill the pipeline, so the "
            "peak is the same (--exact runs all)."
        )
    if plan.pipeline_stages == 1 and run.accumulation_steps != plan.accumulation_steps:
        notes.append(
            f"Ran {run.accumulation_steps} gradient accumulation steps, the plan has {plan.accumulation_steps}."
        )
    if not session.cann.real:
        notes.append("CANN is not installed: ran with stand-in libraries.")
    notes.append(LIMITS.format(level=session.settings.level))
    return tuple(notes)


def _run_stages(session: _Session, stages: Sequence[int], progress: Progress) -> tuple[StageResult, ...]:
    with Children() as children, ThreadPoolExecutor(max(1, session.settings.jobs)) as pool:
        futures = [pool.submit(_run_stage, session, stage, children, progress) for stage in stages]
        try:
            return tuple(future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()
            children.close()
            raise


def _run_stage(session: _Session, stage: int, children: Children, progress: Progress) -> StageResult:
    entry = session.cache / "dryrun" / f"{result_key(session, stage)}.json"
    known = _from_cache(entry) if session.settings.use_cache else None
    if known is not None:
        progress(f"stage {stage}: from the cache")
        return known
    progress(f"stage {stage}: compiling")
    result = _simulate(session, stage, children)
    write_atomically(entry, json.dumps(asdict(result)).encode())
    progress(f"stage {stage}: {result.peak_bytes / 2**30:.3f} GiB, {result.seconds:.0f} s")
    return result


def _from_cache(entry: Path) -> StageResult | None:
    """An earlier result; None when there is none, or one with other fields."""
    try:
        return StageResult(**{**json.loads(entry.read_text()), "cached": True})
    except (FileNotFoundError, TypeError):
        return None


def result_key(session: _Session, stage: int) -> str:
    """Hash of all that decides a result: configuration, rank, versions, libraries, and our own runner."""
    content = {
        "config": _without_paths(session.config),
        "stage": stage,
        "level": session.settings.level,
        "env": session.settings.extra_env,
        "versions": [session.framework.mindspore, session.framework.mindformers],
        "real_cann": session.cann.real,
        "sources": [(_RUNNER.parent / name).read_text() for name in _KEYED_SOURCES],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _without_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` less its data set sections, which only name synthetic data of the same shape."""
    return {
        key: value for key, value in config.items() if key not in ("train_dataset", "train_dataset_task", "output_dir")
    }


def _simulate(session: _Session, stage: int, children: Children) -> StageResult:
    """Run one stage in a folder of its own and read its report."""
    folder = Path(tempfile.mkdtemp(prefix="planner-dryrun-"))
    log = folder / "run.log"
    try:
        job = _write_job(session, folder)
        command = [str(session.framework.python), str(_RUNNER), str(job)]
        env = child_environment(session, stage, folder)
        ended = children.run(command, env=env, folder=folder, log=log, timeout_s=session.settings.timeout_s)
        report = read_report(log)
        if "peak_bytes" not in report:
            raise ValidationError(failure_message(stage, session.layout.rank_of_stage(stage), ended, report, log))
        return _result(session, stage, report, folder)
    finally:
        _keep(folder, session.settings.keep, stage)
        shutil.rmtree(folder, ignore_errors=True)


def _result(session: _Session, stage: int, report: Mapping[str, Any], folder: Path) -> StageResult:
    peak = read_peak(folder)
    return StageResult(
        stage=stage,
        rank=session.layout.rank_of_stage(stage),
        micro_batches=session.run.micro_batches_of_step,
        steps=report["steps"],
        peak_bytes=report["peak_bytes"],
        static_bytes=report["static_bytes"],
        peak_with_fragments_bytes=peak_with_fragments(folder / "run.log"),
        seconds=round(report["seconds"], 1),
        mindspore=report["mindspore"],
        mindformers=report["mindformers"],
        real_cann=session.cann.real,
        terms=terms(peak),
        peak_operator=peak.operator,
    )


def _write_job(session: _Session, folder: Path) -> Path:
    config, layout = session.config, session.run
    write_megatron(session.cache / "data" / "tokens")
    path = folder / "config.yaml"
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.representer.add_representer(float, _represent_float)
    writer.dump(config, path)
    dataset = None
    if layout.legacy:
        record = mindrecord_path(session.cache / "data", layout)
        dataset = {"path": str(record), "samples": int(record.stem.split("x")[1]), "tokens": layout.seq + 1}
    job = folder / "job.json"
    job.write_text(json.dumps({"yaml": str(path), "steps": 2, "dataset": dataset}))
    return job


def _represent_float(representer: Any, value: float) -> Any:
    """Floats as YAML 1.1 reads them, which MindFormers does: 1e-06 without a point is a string there."""
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return representer.represent_scalar("tag:yaml.org,2002:float", text)


def child_environment(session: _Session, stage: int, folder: Path) -> dict[str, str]:
    """Environment of the child: simulation of one rank, and where the CANN libraries are."""
    env = session.cann.environment(os.environ)
    for name in ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "DEVICE_ID", "PYTHONSTARTUP"):
        env.pop(name, None)
    env.update(
        MS_SIMULATION_LEVEL=str(session.settings.level),
        RANK_SIZE=str(session.layout.devices),
        RANK_ID=str(session.layout.rank_of_stage(stage)),
        GLOG_v="2",  # at level 3 the framework does not print its peak with fragments
        MS_ALLOC_CONF="memory_tracker:True",
        LOG_MF_PATH=str(folder / "mindformers-log"),
        PYTHONUNBUFFERED="1",
    )
    if session.settings.graphs:
        env.update(MS_DEV_SAVE_GRAPHS="1", MS_DEV_SAVE_GRAPHS_PATH=str(folder / "graphs"))
    env.update(session.settings.extra_env)
    return env


def _keep(folder: Path, keep: Path | None, stage: int) -> None:
    if keep is None or not folder.exists():
        return
    target = keep / f"stage-{stage}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)


def read_report(log: Path) -> dict[str, Any]:
    """The child's own report; empty when it left none."""
    for line in reversed(_tail(log)):
        if line.startswith(_MARK):
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
        return f"{where} was stopped after {ended.seconds:.0f} s. Raise the time limit, or run fewer layers."
    how = f"was killed by signal {-ended.status}" if ended.status < 0 else f"ended with exit status {ended.status}"
    words = report.get("error") or last_error_line(log) or "it left no message"
    return f"{where} {how}: {words}"


def last_error_line(log: Path) -> str:
    """The last line of a log that names an error, else its last line that is not empty."""
    lines = [line.strip() for line in _tail(log) if line.strip()]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return (errors or lines or [""])[-1]


def _tail(log: Path) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()
