"""A folder of files of one job: which rank each belongs to, which of two sources counts, and what is missing.

A profile's folder is one rank (``*_ascend_ms``, ``*_ascend_pt``, a rank's folder of any name); its rank is in
profiler_info_{rank}.json, in the metadata, or in the folder's name.  Where two files tell the same (kernel_details and
op_statistic, a rank's own table and the cluster's), the more detailed one counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from planner.errors import PlannerError, SpecError
from planner.observe.communication import collective_points, with_groups, with_pipeline_wait
from planner.observe.data_pipeline import joined
from planner.observe.formats import recognised
from planner.observe.records import Observation, merge
from planner.observe.text import File

#: What profiles and logs are made of.
_SUFFIXES: Final = (".csv", ".json", ".txt", ".log", ".out", ".err", ".gz", ".jsonl")
#: Raw data below a profile, and files that repeat others.
_SKIPPED: Final = re.compile(
    r"(^|/)(host|device_\d+|data|analyze|mindstudio_profiler_log|logs|kernel_meta|rank_\d+/kernel_meta)/"
)
#: Records in which the earlier format counts.
_PREFERRED: Final = {
    "steps": ("step_trace_time.csv", "cluster_step_trace_time.csv", "ascend_cluster_analyse.csv", "step_trace_raw.csv"),
    "kernels": ("kernel_details.csv", "op_summary.csv", "op_statistic.csv", "aicore_intermediate.csv", "task_time.csv"),
    "communication": ("communication.json", "hccl_raw.csv"),
}
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
    for path in _files(folder):
        root = _root(path, folder)
        try:
            file = File(path, _rank_of_name(root, folder))
            if (form := recognised(file)) is not None:
                parts[root].append(form.read(file))
        except PlannerError as error:
            broken.append(f"left out: {error}")
    if not parts:
        raise SpecError(f"{folder}: no profile, log or test in it that is known." + (f" {broken[0]}" if broken else ""))
    groups = {root: _ranked(found) for root, found in parts.items()}
    _one_job(groups, folder)
    whole = merge(_preferred([part for found in groups.values() for part in found]), folder)
    return _checked(whole).with_notes(*broken)


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
        changed.append(replace(part, **fields))
    return changed


def _one_job(groups: dict[Path, list[Observation]], folder: Path) -> None:
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
    steps = with_pipeline_wait(whole.steps, operators)
    return replace(
        whole,
        communication=operators,
        steps=steps,
        pipelines=joined(whole.pipelines),
        points=(*whole.points, *collective_points(operators)),
        missing=tuple(dict.fromkeys((*whole.missing, *_missing(whole)))),
        notes=tuple(dict.fromkeys((*whole.notes, *_bubble_notes(replace(whole, steps=steps))))),
    )


def _missing(whole: Observation) -> Iterator[str]:
    """What a profile lacks, and what that hides."""
    if whole.kind not in ("profile", "mixed", "cluster summary"):
        return
    if not whole.steps:
        yield "step_trace_time.csv: where steps went is not known."
    if whole.steps and not whole.communication:
        yield "communication.json (profiler level 1 or 2): waiting cannot be told from transfer."
    if not whole.kernels and whole.kind != "cluster summary":
        yield "kernel_details.csv: which operators take the time is not known."
    world = whole.layout.world_size if whole.layout else None
    seen = {step.rank for step in whole.steps if step.rank is not None}
    if world and seen and len(seen) < world:
        yield f"ranks: {len(seen)} of {world} ({', '.join(map(str, sorted(seen)))}); the others may be slower or wait."


def _bubble_notes(whole: Observation) -> Iterator[str]:
    """Bubble 0 in a table whose pipeline waits."""
    hidden = [s for s in whole.steps if not s.bubble_s and s.pipeline_wait_s and s.pipeline_wait_s > 0.01 * s.step_s]
    if hidden:
        worst = max(hidden, key=lambda step: step.pipeline_wait_s or 0.0)
        yield (
            f"Bubble is 0 in the table, yet rank {worst.rank} waits {(worst.pipeline_wait_s or 0.0) * 1e3:.0f} of "
            f"{worst.step_s * 1e3:.0f} ms in point-to-point operators: recomputed from communication.json."
        )
