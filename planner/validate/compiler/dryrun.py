"""MindSpore DryRun of a MindFormers YAML, stage by stage, without a device.

Each stage is one child process (`planner.validate.compiler.runner`) that compiles the network for one rank and runs two
simulated steps; its memory plan is MindSpore's own. Limits, to be shown wherever a figure of it is: no operator
workspace, no HCCL buffers, no CANN context; without CANN, kernels are selected through a mocked operator library,
on x86_64 Linux.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from planner.children.child_log import failure_message, peak_with_fragments, read_report
from planner.children.files import write_atomically
from planner.children.process import Children, ending_by_exception
from planner.errors import ValidationError
from planner.validate.compiler.framework import Framework, find_framework
from planner.validate.compiler.prepare import (
    TOKENS,
    Layout,
    as_run,
    lacks_clipping,
    mindrecord_path,
    prepared,
    read_layout,
)
from planner.validate.compiler.standins import Cann, find_cann
from planner.validate.compiler.synthetic import write_megatron
from planner.validate.compiler.tracker import read_peak, terms

LIMITS = (
    "DryRun level {level}: tensors of the compiled graph only. Not counted: operator workspace, HCCL buffers "
    "(2 x HCCL_BUFFSIZE per communicator), the CANN context."
)
SEPARATE_DATA = (
    "First and last stage read their data apart: MindSpore makes no group of their ranks, which lie differently on "
    "nodes of eight. A device may end the job for it (HcomAllBroadCastKernel); a multiple of eight ranks "
    "a stage is sure."
)
_PRETRAINED = "pretrained"
_RUNNER = Path(__file__).with_name("runner.py")
_KEYED_SOURCES = ("runner.py", "prepare.py", "standin_sources.py", "tracker.py")


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
    """True: have the compiler write its intermediate representation (see `planner.validate.traffic.volumes`)."""
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
    """Bytes at the peak by what they are for (`planner.validate.compiler.tracker.TERMS`)."""
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


def default_stages(stages: int, heaviest: int | None = None) -> tuple[int, ...]:
    """First, one middle and last stage, and the one that is predicted to need most memory where that is known.

    >>> default_stages(8), default_stages(8, heaviest=1)
    ((0, 4, 7), (0, 1, 4, 7))
    """
    return tuple(sorted({0, stages // 2, stages - 1} | ({heaviest} if heaviest is not None else set())))


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
    settings, progress = settings or DryRunSettings(), _one_at_a_time(progress or _silent)
    content = load_yaml(config) if isinstance(config, Path) else dict(config)
    pretrained = read_pretrained(content, config.parent if isinstance(config, Path) else Path())
    layout = read_layout(content, json.loads(pretrained) if pretrained else None)
    chosen = _chosen(stages, layout)
    with ending_by_exception(), _writing(settings):
        session = _open_session(content, pretrained, layout, settings, progress)
        results = _run_stages(session, chosen, progress)
    return DryRunReport(layout=layout, stages=results, notes=_notes(session, content))


def _chosen(stages: Iterable[int] | None, layout: Layout) -> tuple[int, ...]:
    """Stages to run, each once and in the order asked for."""
    if stages is None:
        return default_stages(layout.pipeline_stages)
    chosen = tuple(dict.fromkeys(stages))
    if not chosen:
        raise ValidationError(
            "No stage is asked for: name at least one, or leave stages out for first, middle and last."
        )
    for stage in chosen:
        layout.rank_of_stage(stage)
    return chosen


def _one_at_a_time(progress: Progress) -> Progress:
    """Stages report from threads of their own; their lines must not mix."""
    lock = threading.Lock()

    def report(line: str) -> None:
        with lock:
            progress(line)

    return report


def _silent(_: str) -> None:
    return None


@contextmanager
def _writing(settings: DryRunSettings) -> Iterator[None]:
    """Tell which folders a DryRun writes to when one of them cannot be written."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ValidationError(
            f"{where}{error.strerror or error}. DryRun writes to {settings.cache or default_cache()} and "
            f"{tempfile.gettempdir()}: make them writable, free space, or name others with XDG_CACHE_HOME and TMPDIR."
        ) from error


def read_pretrained(content: Mapping[str, Any], beside: Path) -> str:
    """The config.json that ``pretrained_model_dir`` names, from the file's own folder; empty when none is named.

    Nothing else of that folder is used: weights in it would be loaded.
    """
    model = content.get("model")
    folder = content.get("pretrained_model_dir") or (
        model.get("pretrained_model_dir") if isinstance(model, Mapping) else None
    )
    path = beside / str(folder) / "config.json"
    if not folder or not path.is_file():
        return ""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise ValidationError(f"Cannot read {path}, which pretrained_model_dir names: {error}") from error
    if not isinstance(found, dict):
        raise ValidationError(f"{path}, which pretrained_model_dir names, holds no JSON object.")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """All that the stages of one DryRun share."""

    config: dict[str, Any]
    pretrained: str
    """Content of the Hugging Face config.json that the model lies in, or empty."""
    layout: Layout
    run: Layout
    """`layout` with the micro-batches and accumulation steps that are run."""
    framework: Framework
    cann: Cann
    cache: Path
    settings: DryRunSettings


def _open_session(
    content: Mapping[str, Any], pretrained: str, layout: Layout, settings: DryRunSettings, progress: Progress
) -> _Session:
    cache = settings.cache or default_cache()
    if settings.keep is not None:
        settings.keep.mkdir(parents=True, exist_ok=True)
    framework = find_framework(settings.python)
    cann = find_cann(framework.home, framework.mindspore, cache, os.environ, progress)
    run = as_run(layout, exact=settings.exact)
    config = prepared(content, run, cache / "data")
    config["pretrained_model_dir"] = f"./{_PRETRAINED}" if pretrained else ""
    return _Session(
        config=config,
        pretrained=pretrained,
        layout=layout,
        run=run,
        framework=framework,
        cann=cann,
        cache=cache,
        settings=settings,
    )


def _notes(session: _Session, content: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if not content.get("use_parallel", False):
        notes.append("use_parallel is not on in the file: ran as with --use_parallel True.")
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
    if lacks_clipping(content, plan):
        notes.append("Ran with gradient clipping: a legacy network without it cannot be simulated.")
    if not plan.ends_exchange_data:
        notes.append(SEPARATE_DATA)
    if not session.cann.real:
        notes.append("CANN is not installed: ran with stand-in libraries.")
    notes.append(LIMITS.format(level=session.settings.level))
    return tuple(notes)


def _run_stages(session: _Session, stages: Sequence[int], progress: Progress) -> tuple[StageResult, ...]:
    with Children() as children, ThreadPoolExecutor(max(1, session.settings.jobs)) as pool:
        futures = [pool.submit(_run_stage, session, stage, children, progress) for stage in stages]
        try:
            _wait_for_failure(futures)
            return tuple(future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()
            children.close()
            raise


def _wait_for_failure(futures: Sequence[Future[StageResult]]) -> None:
    """Return when all are done; raise as soon as one fails, before the others are ended for it."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        if future in done:
            future.result()


def _run_stage(session: _Session, stage: int, children: Children, progress: Progress) -> StageResult:
    entry = session.cache / "dryrun" / f"{result_key(session, stage)}.json"
    known = _from_cache(entry) if session.settings.use_cache else None
    if known is not None:
        progress(f"stage {stage}: from the cache")
        return known
    progress(f"stage {stage}: compiling")
    result = _simulate(session, stage, children)
    try:
        write_atomically(entry, json.dumps(asdict(result)).encode())
    except OSError as error:
        progress(f"stage {stage}: not cached, {entry.parent}: {error.strerror}")
    progress(f"stage {stage}: {result.peak_bytes / 2**30:.3f} GiB, {result.seconds:.0f} s")
    return result


def _from_cache(entry: Path) -> StageResult | None:
    """An earlier result; None when there is none, or its file is damaged or of another version."""
    try:
        return StageResult(**{**json.loads(entry.read_text()), "cached": True})
    except (OSError, ValueError, TypeError):
        return None


def result_key(session: _Session, stage: int) -> str:
    """Hash of all that decides a result: configuration, rank, versions, libraries, and our own runner."""
    content = {
        "config": json.dumps(session.config, sort_keys=True, default=str).replace(str(session.cache), ""),
        "pretrained": session.pretrained,
        "stage": stage,
        "level": session.settings.level,
        "env": session.settings.extra_env,
        "versions": [session.framework.mindspore, session.framework.mindformers],
        "real_cann": session.cann.real,
        "sources": [(_RUNNER.parent / name).read_text() for name in _KEYED_SOURCES],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


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
    tokens = session.cache / "data" / TOKENS
    write_megatron(tokens)
    for suffix in (".bin", ".idx"):
        (folder / TOKENS).with_suffix(suffix).symlink_to(tokens.with_suffix(suffix).resolve())
    path = folder / "config.yaml"
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.representer.add_representer(float, _represent_float)
    writer.dump(config, path)
    dataset = None
    if layout.legacy:
        record = mindrecord_path(session.cache / "data", layout)
        rows = int(record.stem.split("x")[1])
        dataset = {"path": str(record), "samples": rows, "tokens": layout.row_tokens, "columns": layout.columns}
    if session.pretrained:
        (folder / _PRETRAINED).mkdir()
        (folder / _PRETRAINED / "config.json").write_text(session.pretrained, encoding="utf-8")
    job = folder / "job.json"
    job.write_text(
        json.dumps({"yaml": str(path), "steps": 2, "dataset": dataset, "share_data": layout.ends_exchange_data})
    )
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
        TMPDIR=str(folder),  # MindFormers leaves files there
    )
    if session.settings.graphs:
        env.update(MS_DEV_SAVE_GRAPHS="1", MS_DEV_SAVE_GRAPHS_PATH=str(folder / "graphs"))
    env.update(session.settings.extra_env)
    return env


def _keep(folder: Path, keep: Path | None, stage: int) -> None:
    """Copy what a run left to a folder of its own; one of an earlier run is replaced."""
    if keep is None or not folder.exists():
        return
    target = keep / f"stage-{stage}"
    if (target / "job.json").exists():
        shutil.rmtree(target)
    shutil.copytree(folder, target, dirs_exist_ok=True)
