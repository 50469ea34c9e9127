"""A folder of files of one job: which rank each belongs to, which of two sources counts, and what is missing.

A profile's folder is one rank (``*_ascend_ms``, ``*_ascend_pt``, a rank's folder of any name); its rank is in
profiler_info_{rank}.json, in the metadata, or in the folder's name.  Where two files tell the same (kernel_details and
op_statistic, a rank's own table and the cluster's), the more detailed one counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.errors import PlannerError, SpecError
from planner.observe.communication import collective_points, with_groups, with_pipeline_wait
from planner.observe.data_pipeline import joined
from planner.observe.formats import TRACE, recognised
from planner.observe.records import Observation, StepTrace, merge
from planner.observe.run import Run
from planner.observe.text import File

#: What profiles and logs are made of.
_SUFFIXES: Final = (".csv", ".json", ".txt", ".log", ".out", ".err", ".gz", ".jsonl", ".db")
#: Raw data below a profile, and files that repeat others.
_SKIPPED: Final = re.compile(
    r"(^|/)(host|device_\d+|data|analyze|mindstudio_profiler_log|logs|kernel_meta|rank_\d+/kernel_meta)/"
)
#: Records in which the earlier format counts.
_PREFERRED: Final = {
    "steps": (
        "step_trace_time.csv", "analysis.db", "cluster_step_trace_time.csv", "ascend_cluster_analyse.csv",
        "cpu_op_execute_timestamp.txt", "step_trace_raw.csv", "step_trace.csv of msprof", "trace_view.json",
    ),
    "kernels": ("kernel_details.csv", "op_summary.csv", "op_statistic.csv", "aicore_intermediate.csv", "task_time.csv"),
    "communication": ("communication.json", "analysis.db", "hccl_raw.csv"),
}  # fmt: skip
METADATA: Final = "profiler_metadata.json"
MOST_FILES: Final = 20_000


def read_folder(folder: Path) -> Observation:
    """Everything known in a folder.

    Raises
    ------
    SpecError
        Nothing known in it, or two profiles of one rank.
    """
    parts: dict[Path, list[Observation]] = defaultdict(list)
    broken: list[str] = []
    traces: list[Path] = []
    for path in _files(folder):
        _read_into(parts[_root(path, folder)], path, folder, broken, traces)
    for path in traces:
        known = parts[_root(path, folder)]
        if not any(part.steps for part in known):
            _read_into(known, path, folder, broken, None)
    parts = {root: found for root, found in parts.items() if found}
    if not parts:
        raise SpecError(f"{folder}: no profile, log or test in it that is known." + (f" {broken[0]}" if broken else ""))
    groups = {root: _ranked(found) for root, found in parts.items()}
    _one_job(groups, folder)
    whole = merge(_preferred([part for found in groups.values() for part in found]), folder)
    return _checked(whole).with_notes(*broken)


def _read_into(
    parts: list[Observation], path: Path, folder: Path, broken: list[str], traces: list[Path] | None
) -> None:
    """Read one file if it is known; traces are put aside while there is a list for them."""
    try:
        file = File(path, _rank_of_name(_root(path, folder), folder))
        form = recognised(file)
        if form is TRACE and traces is not None:
            traces.append(path)
        elif form is not None:
            found = form.read(file)
            notes = tuple(note if path.name in note else f"{path.name}: {note}" for note in found.notes)
            parts.append(replace(found, notes=notes))
    except PlannerError as error:
        broken.append(f"left out: {error}")


def _files(folder: Path) -> Iterator[Path]:
    """Files that may be known, in the order of their names."""
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES and not _SKIPPED.search(path.relative_to(folder).as_posix())
    )
    for number, path in enumerate(sorted(path for path in found if path.is_file())):
        if number >= MOST_FILES:
            raise SpecError(f"{folder} holds over {MOST_FILES} files; name one profile's folder.")
        yield path


def _root(path: Path, folder: Path) -> Path:
    """Folder of the rank a file belongs to."""
    for parent in path.parents:
        if re.search(r"_ascend_(ms|pt)$", parent.name) or parent == folder:
            return parent
    return folder


def _rank_of_name(root: Path, folder: Path) -> int | None:
    """Rank that a folder's name states, such as rank_3_ascend_pt."""
    found = re.search(r"rank[_-]?(\d+)", root.name.lower()) if root != folder or "ascend" in root.name else None
    return int(found[1]) if found else None


def _ranked(parts: Sequence[Observation]) -> list[Observation]:
    """The parts of one folder with its rank on every record, from the profile's own word."""
    stated = next((int(part.facts["rank"]) for part in parts if "rank" in part.facts), None)
    if stated is None:
        return list(parts)
    changed = []
    for part in parts:
        fields: dict[str, Any] = {
            name: tuple(replace(record, rank=stated) for record in getattr(part, name))
            for name in ("steps", "communication", "kernels", "host", "memory", "pipelines")
            if getattr(part, name) and part.kind != "cluster summary"
        }
        facts = {key: value for key, value in part.facts.items() if key != "rank"}
        changed.append(replace(part, facts=facts, **fields))
    return changed


def _one_job(groups: Mapping[Path, Sequence[Observation]], folder: Path) -> None:
    """Refuse two profiles of one rank."""
    owners: dict[int | None, list[Path]] = defaultdict(list)
    for root, parts in groups.items():
        profiles = [part for part in parts if part.kind == "profile"]
        ranks = {s.rank for part in profiles for s in part.steps} | {k.rank for part in profiles for k in part.kernels}
        for rank in ranks:
            owners[rank].append(root)
    for rank, roots in owners.items():
        if len(roots) > 1:
            names = ", ".join(str(root.relative_to(folder)) for root in roots[:4])
            raise SpecError(
                f"{folder} holds {len(roots)} profiles of rank {'?' if rank is None else rank} ({names}); two jobs, or "
                "two profiles of one, cannot be read as one. Name one of them."
            )
    stated = [(root, part.layout) for root, parts in groups.items() for part in parts if part.format == METADATA]
    sizes = {layout.world_size: root for root, layout in stated if layout and layout.world_size is not None}
    if len(sizes) > 1:
        told = ", ".join(f"{root.relative_to(folder)}: {size} ranks" for size, root in sizes.items())
        raise SpecError(f"{folder} holds profiles of two jobs ({told}). Name one job's folders.")


def _preferred(parts: Iterable[Observation]) -> list[Observation]:
    """Parts without the records that a better source of the same rank holds."""
    parts = list(parts)
    for name, order in _PREFERRED.items():
        covered: dict[int | None, str] = {}
        for form in order:
            for index, part in enumerate(parts):
                if part.format == form and (records := getattr(part, name)):
                    kept = tuple(
                        r for r in records if getattr(r, "ranks", ()) or covered.setdefault(r.rank, form) == form
                    )
                    fields: dict[str, Any] = {name: kept}
                    parts[index] = replace(part, **fields)
    return parts


def _checked(whole: Observation) -> Observation:
    """Joined over files: groups of operators, pipeline waiting, points of collectives, what is missing."""
    operators = with_groups(whole.communication, whole.layout)
    steps = with_pipeline_wait(_staged(whole), operators)
    return replace(
        whole,
        communication=operators,
        steps=steps,
        pipelines=joined(whole.pipelines),
        runs=_different(whole.runs),
        points=(*whole.points, *collective_points(operators)),
        missing=tuple(dict.fromkeys((*whole.missing, *_missing(whole)))),
        notes=tuple(dict.fromkeys((*whole.notes, *_bubble_notes(steps), *_mixed_notes(whole)))),
    )


def _staged(whole: Observation) -> tuple[StepTrace, ...]:
    """Steps with the stage of their rank: its place in its pipeline group, or stages as blocks of ranks."""
    if whole.layout is None:
        return whole.steps
    stage_of = {
        rank: index for kind, ranks in whole.layout.groups.values() if kind == "pp" for index, rank in enumerate(ranks)
    }
    pp, world = whole.layout.degrees.get("pp", 1), whole.layout.world_size
    return tuple(
        replace(step, stage=stage_of.get(step.rank, step.rank * pp // world if world and pp > 1 else None))
        if step.stage is None and step.rank is not None
        else step
        for step in whole.steps
    )


def _different(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Runs without those that were logged twice (msrun's worker log and MindFormers' own)."""
    kept: list[Run] = []
    for run in runs:
        same = (known for known in kept if known.rank == run.rank and len(known) == len(run))
        if not any(
            np.array_equal(known.step, run.step) and np.array_equal(known.step_s, run.step_s, equal_nan=True)
            for known in same
        ):
            kept.append(run)
    return tuple(kept)


def _mixed_notes(whole: Observation) -> Iterator[str]:
    """Logs or steps that do not belong together."""
    runs = _different(whole.runs)
    kinds = {(run.framework, run.total_steps, run.global_batch) for run in runs}
    ranks = [run.rank for run in runs if run.rank is not None]
    if len(kinds) > 1 or len(set(ranks)) < len(ranks):
        yield f"{len(runs)} logs of different jobs are in {whole.source.name}: each is a run of its own."
    by_rank: dict[int, set[int]] = defaultdict(set)
    for step in whole.steps:
        if step.rank is not None and step.step is not None and not step.ranks:
            by_rank[step.rank].add(step.step)
    if len(by_rank) > 1 and not set.intersection(*by_rank.values()):
        shown = "; ".join(f"rank {rank}: {min(steps)}" for rank, steps in sorted(by_rank.items())[:4])
        yield f"no step was profiled on all ranks (first steps: {shown}): ranks cannot be compared step by step."


def _missing(whole: Observation) -> Iterator[str]:
    """What a profile lacks, and what that hides."""
    if not (whole.steps or whole.kernels or whole.communication):
        return
    if not whole.steps:
        yield "step_trace_time.csv: where steps went is not known."
    if whole.steps and not whole.communication:
        yield "communication.json (profiler level 1 or 2): waiting cannot be told from transfer."
    if not whole.kernels and whole.kind != "cluster summary":
        yield "kernel_details.csv: which operators take the time is not known."
    if whole.communication and whole.layout is None:
        yield "profiler_metadata.json: the job's size and the groups of its operators are not known."
    world = whole.layout.world_size if whole.layout else None
    seen = {step.rank for step in whole.steps if step.rank is not None}
    if world and seen and len(seen) < world:
        yield f"ranks: {len(seen)} of {world} ({', '.join(map(str, sorted(seen)))}); the others may be slower or wait."


def _bubble_notes(steps: Sequence[StepTrace]) -> Iterator[str]:
    """Bubble 0 in a table whose pipeline waits."""
    hidden = [s for s in steps if not s.bubble_s and s.pipeline_wait_s and s.pipeline_wait_s > 0.01 * s.step_s]
    if hidden:
        worst = max(hidden, key=lambda step: step.pipeline_wait_s or 0.0)
        yield (
            f"Bubble is 0 in the table, yet rank {worst.rank} waits {(worst.pipeline_wait_s or 0.0) * 1e3:.0f} of "
            f"{worst.step_s * 1e3:.0f} ms in point-to-point operators: recomputed from communication.json."
        )
