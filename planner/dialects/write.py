"""Write a plan as files that run: all of them or none."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from planner import frameworks
from planner import plan as plans
from planner.dialects import families, traits
from planner.dialects.graph import write as mindformers_graph
from planner.dialects.launch import msrun as launch
from planner.dialects.mindspeed import write as mindspeed
from planner.dialects.native import write as native
from planner.dialects.pynative import write as pynative
from planner.dialects.records import EmitResult, File, Settings
from planner.dialects.text.shell_write import check_path
from planner.errors import EmitError
from planner.plan import Plan

_OWN_FILES: Final = re.compile(r"pretrain\.(yaml|sh|py)|train\.py|launch\.sh|dryrun\.sh|node_[0-9]+\.sh")
_MARK: Final = b"Written by planner"
_MARK_WITHIN_BYTES: Final = 2048
_PLAN_BYTES: Final = 2**20


def emit(
    plan: Plan,
    directory: str | Path,
    target: str = "mindformers",
    force: bool = False,
    settings: Settings | None = None,
) -> EmitResult:
    """Write `plan` for one framework into a directory.

    Parameters
    ----------
    plan : Plan
    directory : str or Path
        Created when missing.  Files of an earlier plan in it are kept unless `force` is set.
    target : str
        One of ``planner.frameworks.TARGETS``.
    force : bool
        Replace files of an earlier plan.
    settings : Settings, optional
        Data path, hosts and the like; what is missing becomes a placeholder.

    Returns
    -------
    EmitResult

    Raises
    ------
    EmitError
        The target cannot hold the plan, or the directory cannot be used.  Nothing is written then.
    """
    settings = settings or Settings()
    for name in ("data_path", "tokenizer_path", "output_dir"):
        check_path(getattr(settings, name), name.replace("_", " "))
    try:
        rendered = render(plan, target, settings)
    except EmitError as error:
        raise EmitError(f"{error}{_elsewhere(plan, target, settings, str(error))}") from None
    paths = write_files(rendered, Path(directory), force=force)
    return EmitResult(
        files=paths,
        placeholders=tuple(p for file in rendered for p in file.placeholders),
        notes=(
            *_framework_note(plan, target),
            *_scaling_note(plan, target),
            *(note for file in rendered for note in file.notes),
        ),
    )


def render(plan: Plan, target: str, settings: Settings) -> list[File]:
    """Every file of a target, in memory; the main one first, plan.json last."""
    families.check_family(plan.model, target)
    families.check_windows(plan.model, target, plan.workload.seq)
    if target == mindformers_graph.TARGET:
        main = [
            mindformers_graph.render(plan, settings),
            File(name="train.py", text=launch.template("graph", "train.py")),
        ]
        main += launch.files(plan, settings, program=("train.py", "pretrain.yaml"))
    elif target == pynative.TARGET:
        main = [pynative.render(plan, settings), File(name="train.py", text=launch.template("pynative", "train.py"))]
        main += launch.files(plan, settings, program=("train.py", "pretrain.yaml"), dryrun=False)
    elif target == mindspeed.TARGET:
        main = [mindspeed.render(plan, settings)]
        plan, _ = mindspeed.as_held(plan)
    else:
        main = [native.render(plan, settings), *launch.files(plan, settings, program=("pretrain.py",))]
    return [*main, File(name="plan.json", text=plans.dumps(plan))]


def _elsewhere(plan: Plan, target: str, settings: Settings, said: str) -> str:
    """Targets that hold what `target` does not, as a sentence; empty where there is none or one was named."""
    if "--target" in said or target not in frameworks.TARGETS:
        return ""
    able = []
    for other in families.targets_for(plan.model):
        try:
            render(plan, other, settings)
        except EmitError:
            continue
        able.append(f"--target {other}")
    return f" It can be written with {' or '.join(able)}." if able else ""


def _framework_note(plan: Plan, target: str) -> tuple[str, ...]:
    """Memory layout and speed differ between frameworks, so figures for one say little about another."""
    own, runs_as = plan.workload.runs_on, families.framework_of(plan.model, target)
    if own.dialect == runs_as.dialect:
        return ()
    return (f"The plan was estimated for {own.name}; run the estimate again with --framework {runs_as.name}.",)


def _scaling_note(plan: Plan, target: str) -> tuple[str, ...]:
    """Rotary scaling that a config.json asks for and the target's file does not hold."""
    own = traits.of(plan.model)
    kind = own.rotary_scaling.get("rope_type", own.rotary_scaling.get("type", "default"))
    held = target == mindformers_graph.TARGET and plan.model.family in families.LEGACY and bool(own.llama3_scaling)
    if kind == "default" or held:
        return ()
    return (f"rope_scaling ({kind}) of {own.source} is not written; add it before training on from its weights.",)


def write_files(files: Sequence[File], directory: Path, *, force: bool) -> tuple[Path, ...]:
    """Write `files` into `directory`, all or none.

    Raises
    ------
    EmitError
        The directory is a file, a symbolic link or not writable; files are there already and `force` is not set.
    """
    _check_directory(directory)
    if not directory.exists():
        _write_new(files, directory)
    else:
        _check_existing(files, directory, force=force)
        _replace(files, directory)
    return tuple(directory / file.name for file in files)


def _check_directory(directory: Path) -> None:
    try:
        linked = directory.is_symlink()
        taken = directory.exists() and not directory.is_dir()
    except OSError as error:  # a name that is too long, for one
        raise _unusable(directory, error) from None
    if linked:
        raise EmitError(
            f"{directory} is a symbolic link; name the directory itself, so that nothing else is overwritten."
        )
    if taken:
        raise EmitError(f"{directory} is a file; name a directory for the emitted files.")


def _check_existing(files: Sequence[File], directory: Path, *, force: bool) -> None:
    for file in files:
        path = directory / file.name
        if path.is_symlink():
            raise EmitError(
                f"{path} is a symbolic link and is never written through; remove it or name another directory."
            )
        if path.is_dir():
            raise EmitError(f"{path} is a directory; remove it or name another directory.")
    there = [file.name for file in files if (directory / file.name).exists()]
    if there and not force:
        raise EmitError(
            f"{directory} already holds {', '.join(there[:4])}{' and more' if len(there) > 4 else ''}; "
            "name another directory, or replace them with --force."
        )
    foreign = [name for name in there if not _is_own(directory / name)]
    if foreign:
        raise EmitError(
            f"{directory / foreign[0]} was not written by planner, so --force leaves it alone; remove it or name "
            "another directory."
        )


def _is_own(path: Path) -> bool:
    """Whether the planner wrote a file: its mark near the top, or the entries of a plan.json."""
    if path.name == "rank_table.json":  # its form has no room for a mark
        path = path.with_name("plan.json")
        if not path.is_file():
            return False
    with path.open("rb") as handle:
        text = handle.read(_PLAN_BYTES if path.name == "plan.json" else _MARK_WITHIN_BYTES)
    return b'"planner":' in text if path.name == "plan.json" else _MARK in text


def _write_new(files: Sequence[File], directory: Path) -> None:
    """Fill a hidden directory beside the final one, then rename it."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise _unusable(directory, error) from None
    try:
        _fill(files, staging)
        staging.chmod(0o755)
        staging.rename(directory)
    except OSError as error:
        raise _unusable(directory, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(files: Sequence[File], directory: Path) -> None:
    """Write beside the old files, then swap one by one; put the old ones back when a swap fails."""
    try:
        staging = Path(tempfile.mkdtemp(prefix=".new.", dir=directory))
    except OSError as error:
        raise _unusable(directory, error) from None
    try:
        _fill(files, staging)
        _swap([file.name for file in files], staging, directory)
    except OSError as error:
        raise _unusable(directory, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _swap(names: Sequence[str], staging: Path, directory: Path) -> None:
    kept = staging / "old"
    kept.mkdir()
    moved: list[str] = []
    placed: list[str] = []
    replaced = [name for name in names if (directory / name).exists()]
    try:
        for name in [*replaced, *_stale(names, directory)]:
            (directory / name).replace(kept / name)
            moved.append(name)
        for name in names:
            (staging / name).replace(directory / name)
            placed.append(name)
    except OSError:
        for name in placed:
            (directory / name).unlink()
        for name in moved:
            (kept / name).replace(directory / name)
        raise


def _stale(names: Sequence[str], directory: Path) -> list[str]:
    """Files of an earlier plan that the new one has no file for (a node script too many)."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.name in names or not _OWN_FILES.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        if _is_own(path):
            found.append(path.name)
    return found


def _fill(files: Sequence[File], directory: Path) -> None:
    for file in files:
        path = directory / file.name
        path.write_text(file.text, encoding="utf-8", newline="\n")
        path.chmod(0o755 if file.executable else 0o644)


def _unusable(directory: Path, error: OSError) -> EmitError:
    return EmitError(f"{directory} cannot be written: {error.strerror or error}; name a directory you may write to.")
