"""Where steps went: the step tables of MindSpore of every generation, torch_npu and msprof-analyze.

Every row of the newer tables obeys: computing + communication alone + free = stage + bubble, the step's length; of the
old pipeline-parallel tables: computation + communication alone = stage + receive alone.  A row that does not, within
1 %, is marked and not to be used.

Sources: MindSpore 2.9, profiler/analysis/viewer; Ascend/pytorch, torch_npu/profiler/analysis; Ascend/msprof-analyze,
cluster_analyse; mindspore-ai/mindinsight, profiler (units of the old files).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from planner.errors import SpecError
from planner.observe.records import INVARIANT_FRAC, Layout, Observation, StepTrace
from planner.observe.tables import Row, Table
from planner.observe.text import File

_US: Final = 1e-6
_MS: Final = 1e-3
#: Ticks of step_trace_raw: 10 ns.
_TICK: Final = 1e-8
#: Mark of a row that breaks the invariant.
BROKEN: Final = "parts do not add up"
#: Rows that are first are kept but marked when this many follow.
ROWS_TO_SPARE: Final = 2


def read_step_trace(file: File) -> Observation:
    """Steps of one rank."""
    table = Table(file)
    table.need(("computing", "communication(not_overlapped)", "free"), "a step table")
    rows = [_step(row, file, file.rank) for row in table]
    return _observation(file, "step_trace_time.csv", _first_marked(rows), table.notes)


def read_cluster_step_trace(file: File) -> Observation:
    """Steps of all ranks; rows of stages are the maximum over their ranks, each column on its own."""
    table = Table(file)
    table.need(("computing", "communication(not_overlapped)", "free"), "a cluster's step table")
    steps: list[StepTrace] = []
    degrees: dict[str, int] = {}
    for row in table:
        ranks = tuple(int(word) for word in re.findall(r"\d+", row.text("index")))
        if row.text("type").lower() == "stage":
            step = replace(_step(row, file, None), ranks=ranks, mark="maximum over ranks")
        else:
            step = replace(_step(row, file, ranks[0] if ranks else None), stage=row.whole("pp_index"))
        steps.append(step)
        for key in ("dp", "pp", "tp"):
            if (index := row.whole(f"{key}_index")) is not None:
                degrees[key] = max(degrees.get(key, 1), index + 1)
    steps = _with_stages(steps)
    ranks_seen = {step.rank for step in steps if step.rank is not None}
    layout = Layout(degrees=degrees, world_size=len(ranks_seen) or None) if degrees or ranks_seen else None
    notes = list(table.notes)
    if any(step.ranks for step in steps):
        notes.append("rows of stages are maxima over ranks, column by column: they do not add up and are kept apart.")
    return replace(
        _observation(file, "cluster_step_trace_time.csv", steps, notes), kind="cluster summary", layout=layout
    )


def read_old_cluster(file: File) -> Observation:
    """Steps of one rank in ms: data-parallel, model-parallel or pipeline-parallel columns."""
    name = re.search(r"cluster_analyse_([a-z_-]+?)_(\d+)_(\d+)_(\d+)", file.name)
    rank = int(name[4]) if name else file.rank
    layout = Layout(degrees={"pp": int(name[2])}, world_size=int(name[3])) if name else None
    stage = int(name[4]) * int(name[2]) // int(name[3]) if name and int(name[3]) else None
    table = Table(file)
    rows = []
    for number, row in enumerate(table, start=1):
        step = _old_step(row)
        rows.append(replace(step, rank=rank, step=number, stage=stage, source=f"{file.path.name}, row {row.line}"))
    found = _observation(file, "ascend_cluster_analyse.csv", _start_up_marked(_first_marked(rows)), table.notes)
    return replace(found, layout=layout)


def read_msprof_steps(file: File) -> Observation:
    """step_trace_*.csv of msprof: iterations of one device."""
    table = Table(file)
    rows = []
    for row in table:
        whole, compute = row.number("iteration_time(us)") * _US, row.number("fp_to_bp_time(us)") * _US
        if not whole > 0.0:
            continue
        data = row.number("data_aug_bound(us)") * _US
        known = math.isfinite(compute) and compute > 0.0
        rows.append(
            StepTrace(
                rank=file.rank, device=row.whole("device_id"), step=row.whole("iteration_id"), stage_s=whole,
                compute_s=compute if known else whole, free_s=whole - compute if known else None,
                preparing_s=data if math.isfinite(data) else None, source=f"{file.path.name}, row {row.line}",
            )
        )  # fmt: skip
    note = "msprof's step_trace knows forward to backward only: communication inside it counts as computation."
    return _observation(file, "step_trace.csv of msprof", _first_marked(rows), (*table.notes, note))


def read_step_trace_raw(file: File) -> Observation:
    """Steps of one rank in ticks of 10 ns; receive and collective operators from their columns.

    The table has no computation of its own: it is forward and backward less the communication inside them, which
    over-counts where streams overlap, so the row says so.
    """
    table = Table(file)
    rank = _id(file, r"step_trace_raw_(\d+)")
    rows = []
    for row in table:
        total, fp_bp = row.number("total") * _TICK, row.number("fp_and_bp") * _TICK
        if not total > 0:
            continue
        inside = (row.number("start_point") * _TICK, row.number("end_point") * _TICK)
        spans = list(_spans(row, table.columns, inside))
        receive = _union([span for name, *span in spans if "receive" in name])
        alone = _union([span for _, *span in spans])
        rows.append(
            StepTrace(
                rank=rank, step=row.whole("step"), compute_s=max(0.0, fp_bp + row.number("tail") * _TICK - alone),
                exposed_s=alone, receive_s=receive, collective_s=alone - receive,
                free_s=row.number("iteration_interval") * _TICK, stage_s=total,
                source=f"{file.path.name}, row {row.line}",
            )
        )  # fmt: skip
    if rows and _is_average(rows):
        rows = rows[:-1]
    note = "step_trace_raw has no computation: it is the step less communication and interval, a lower bound."
    if not any(step.exposed_s for step in rows):
        note = "step_trace_raw has no communication operators: computation includes communication."
    return _observation(file, "step_trace_raw.csv", _start_up_marked(_first_marked(rows)), (*table.notes, note))


def _step(row: Row, file: File, rank: int | None) -> StepTrace:
    def seconds(*names: str) -> float | None:
        value = row.number(*names)
        return value * _US if math.isfinite(value) else None

    compute = seconds("computing")
    if compute is None:
        raise SpecError(f"{file.path}, row {row.line}: Computing is not a number.")
    step = StepTrace(
        rank=rank, device=row.whole("device_id"), step=row.whole("step"), compute_s=compute,
        exposed_s=seconds("communication(not_overlapped)"), overlapped_s=seconds("overlapped"), free_s=seconds("free"),
        stage_s=seconds("stage"), bubble_s=seconds("bubble"), preparing_s=seconds("preparing"),
        source=f"{file.path.name}, row {row.line}",
    )  # fmt: skip
    share = step.invariant_frac
    return replace(step, mark=BROKEN) if share is not None and share > INVARIANT_FRAC else step


def _old_step(row: Row) -> StepTrace:
    def seconds(*names: str) -> float | None:
        value = row.number(*names)
        return value * _MS if math.isfinite(value) else None

    step = StepTrace(
        compute_s=seconds("computation_time", "computation", "fp_and_bp") or 0.0,
        exposed_s=seconds("communication_alone_time", "tail"),
        free_s=seconds("iteration_interval"),
        stage_s=seconds("stage_time"),
        bubble_s=seconds("receive_alone_time"),
        receive_s=seconds("receive_alone_time"),
        collective_s=seconds("collective_communication_alone_time"),
    )
    share = step.invariant_frac
    return replace(step, mark=BROKEN) if share is not None and share > INVARIANT_FRAC else step


def _first_marked(rows: Sequence[StepTrace]) -> list[StepTrace]:
    """The first and last profiled steps are inflated by the profiler: marked where enough others are there."""
    if len(rows) <= ROWS_TO_SPARE:
        return list(rows)
    marked = list(rows)
    for index, word in ((0, "first profiled step"), (-1, "last profiled step")):
        if not marked[index].mark:
            marked[index] = replace(marked[index], mark=word)
    return marked


def _start_up_marked(rows: Sequence[StepTrace]) -> list[StepTrace]:
    """Old files profile from step 1 on: only the first is a start-up, the last is whole."""
    return [replace(row, mark="") if row.mark == "last profiled step" else row for row in rows]


def _with_stages(steps: Sequence[StepTrace]) -> list[StepTrace]:
    """Stages of ranks from the rows that list a stage's ranks, where no column says."""
    groups = sorted({step.ranks for step in steps if step.ranks})
    stage_of = {rank: index for index, group in enumerate(groups) for rank in group}
    return [
        replace(step, stage=stage_of.get(step.rank)) if step.stage is None and step.rank is not None else step
        for step in steps
    ]


def _spans(row: Row, columns: Sequence[str], inside: tuple[float, float]) -> Iterator[tuple[str, float, float]]:
    """Name, start and end [s] of each stream operator, cut at the step's ends; columns of both orders."""
    for name in columns:
        if name.endswith("_start_point"):
            start, end = row.number(name) * _TICK, row.number(name.removesuffix("_start_point") + "_end_point") * _TICK
            start, end = max(start, inside[0]), min(end, inside[1])
            if end > start > 0:
                yield name.lower(), start, end


def _union(spans: Sequence[Sequence[float]]) -> float:
    """Length covered by spans that may overlap [s]."""
    covered, until = 0.0, -math.inf
    for start, end in sorted((start, end) for start, end in spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _is_average(rows: Sequence[StepTrace]) -> bool:
    """Some versions end with the average of all rows: it has no step number, or falls back."""
    last = rows[-1]
    return len(rows) > 1 and (last.step is None or last.step <= (rows[-2].step or 0))


def _observation(file: File, form: str, steps: Sequence[StepTrace], notes: Sequence[str]) -> Observation:
    if not steps:
        raise SpecError(f"{file.path}: a step table without a row; the profiler stopped before its first step ended.")
    bad = [step for step in steps if step.mark == BROKEN]
    words = [
        f"{step.source}: computing + communication alone + free is {step.step_s * 1e3:.1f} ms, stage + bubble "
        f"{((step.stage_s or 0) + (step.bubble_s or 0)) * 1e3:.1f} ms; the row is not used."
        for step in bad[:3]
    ]
    return Observation(kind="profile", source=file.path, format=form, steps=tuple(steps), notes=(*notes, *words))


def _id(file: File, pattern: str) -> int | None:
    found = re.search(pattern, file.name)
    return int(found[1]) if found else file.rank
