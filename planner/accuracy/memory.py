"""How well predicted memory agrees with recorded references.

References: the DryRun grid (MindSpore's own memory plan), measured GPU peaks, static bytes and first-iteration peaks of
Ascend runs, and reports of runs that fit or ran out of memory.  Peaks and static bytes: nothing is fitted, the model
lists tensors.  What a pool reserves on top of its peak is fitted (`planner.accuracy.fragmentation`); wherever that
enters, each row is judged by the share that was fitted without its own model family, and its group says so.

Errors are ``predicted / reference - 1``.  A prediction fits a device when its peak, with the pool's fragmentation and
the framework's context added, is within what the framework sees of the device; where a row states the limit its own
file sets for the pool, the peak alone is held against that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.accuracy.fragmentation import error_percent, family_of, fitted_pools, fragmentation
from planner.accuracy.memory_misses import reason_of
from planner.cluster.load import data_directory
from planner.cost.memory.peak import Memory, least_recompute, memory
from planner.cost.strategies import Strategies
from planner.errors import CalibrationError
from planner.model.records import Workload
from planner.observe.dryrun_grid import MARKS, GridPoint, read_grid
from planner.observe.published import (
    MEMORY_CASES,
    SIMULATOR_ROWS,
    TruthRow,
    columns_of,
    kind_of,
    read_memory_cases,
    read_simulator_rows,
)

#: Runtime, kernels and collective buffers outside the pool [bytes]; assumed, see docs/memory.md.
CONTEXT_BYTES: Final = 1.0 * 2**30

#: Words of a row's framework and the memory layout they stand for.
_FRAMEWORKS: Final = (
    (("torchtitan", "Automodel", "PithTrain"), "fsdp"),
    (("DeepSpeed", "NeoX"), "deepspeed"),
)
_SWITCHES: Final[tuple[str, ...]] = ("reuse-fp32-param", "fused-cross-entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScore:
    """One reference and its prediction [bytes], or one verdict.

    Attributes
    ----------
    reference_bytes : float
        What was measured or compiled; for a verdict the limit.
    note : str
        Of a verdict: what was reported, "fits" or "oom".
    reason : str
        Of a wrong verdict: what is known of why.
    """

    case_id: str
    reference_bytes: float
    predicted_bytes: float
    note: str = ""
    reason: str = ""

    @property
    def error_percent(self) -> float:
        """Predicted against reference [percent]."""
        return 100.0 * (self.predicted_bytes / self.reference_bytes - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """Errors of one group of references [percent].

    Attributes
    ----------
    least_percent : float
        The most negative error: how far a prediction falls below its reference.
    confusion : mapping of str to int
        ``fits_as_fits``, ``fits_as_oom``, ``oom_as_oom``, ``oom_as_fits``; empty for groups without verdicts.
    wrong : tuple of str
        Cases with a wrong verdict.
    fitted : bool
        Whether a fitted constant enters the group's predictions; False: the model lists tensors.
    left_out : str
        What was left out of the fit for each row's prediction: "family", its own model family; empty when nothing is
        fitted.
    about : str
        How to read the group where its name does not say it.
    """

    name: str
    n: int
    mean_abs_percent: float | None = None
    p90_abs_percent: float | None = None
    max_abs_percent: float | None = None
    bias_percent: float | None = None
    least_percent: float | None = None
    confusion: Mapping[str, int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    fitted: bool = False
    left_out: str = ""
    about: str = ""
    rows: tuple[RowScore, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Scores by group, and rows that could not be predicted with the reason."""

    groups: tuple[GroupScore, ...]
    skipped: Mapping[str, str]

    def group(self, name: str) -> GroupScore:
        """One group by its name."""
        return next(group for group in self.groups if group.name == name)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return {"groups": [group.to_dict() for group in self.groups], "skipped": dict(self.skipped)}


def score(path: str | Path | None = None) -> Accuracy:
    """Score all recorded references, or one file that has the columns of one of them.

    Raises
    ------
    CalibrationError
        The file cannot be read, has the columns of no known table, or holds no row that can be predicted.
    """
    found = [_score_file(file) for file in (reference_paths() if path is None else (Path(path),))]
    if path is None:
        found.append(Accuracy(groups=(_reserved_of_allocated(),), skipped={}))
    groups = tuple(group for accuracy in found for group in accuracy.groups)
    skipped = {name: reason for accuracy in found for name, reason in accuracy.skipped.items()}
    if not groups:
        first = next((f" {name}: {reason}." for name, reason in skipped.items()), "")
        raise CalibrationError(f"{path}: no row states a model, a layout and a measured or reported memory.{first}")
    return Accuracy(groups=groups, skipped=skipped)


def reference_paths() -> tuple[Path, ...]:
    """Recorded references: beside the calibrations of an installed package, or in a source tree."""
    calibration = data_directory("calibration")
    folders = (calibration, calibration / "dryrun", calibration / "measurements")
    names = ("grid.csv", "simulator-rows.csv", "memory-cases.csv", "sweep-memory.csv")
    paths = tuple(next((f / name for f in folders if (f / name).is_file()), None) for name in names)
    present = tuple(path for path in paths if path is not None)
    if not present:
        raise CalibrationError(f"none of {', '.join(names)} is installed; name a file with --data.")
    return present


def _score_file(path: Path) -> Accuracy:
    if columns_of(path) >= MARKS:
        return _score_grid(read_grid(path))
    kind = kind_of(path)
    if kind == MEMORY_CASES:
        return _score_cases(read_memory_cases(path))
    if kind == SIMULATOR_ROWS:
        return _score_simulator(read_simulator_rows(path))
    raise CalibrationError(
        f"{path}: a {kind} table; memory is scored against {MEMORY_CASES} or {SIMULATOR_ROWS} tables."
    )


# ------------------------------------------------------------------------------------------------------ the grid


def _score_grid(points: Sequence[GridPoint]) -> Accuracy:
    scores = [_point_score(point) for point in points]
    families: dict[str, list[RowScore]] = {}
    for point, row in zip(points, scores, strict=True):
        families.setdefault(f"DryRun {point.family}", []).append(row)
    groups = [_errors("DryRun grid", scores)] + [_errors(name, rows) for name, rows in sorted(families.items())]
    return Accuracy(groups=tuple(groups), skipped={})


def _point_score(point: GridPoint) -> RowScore:
    predicted = memory(point.model, point.workload, Strategies.of([point.strategy])).peak_bytes_CS[0, point.stage]
    return RowScore(case_id=point.point_id, reference_bytes=point.peak_bytes, predicted_bytes=float(predicted))


# --------------------------------------------------------------------------------------------------- measurements


def _score_simulator(rows: Sequence[TruthRow]) -> Accuracy:
    skipped: dict[str, str] = {}
    groups: dict[str, list[RowScore]] = {}
    for row in rows:
        reason = _unpredictable(row) or ("" if row.usable else "a paper's formula, not a measurement")
        if reason or row.measured.get("peak_bytes", 0.0) <= 0 or _impossible(row):
            skipped[row.case_id] = reason or "no measured memory"
            continue
        device = row.hardware.split(" ")[0].split("-")[0]
        groups.setdefault(f"measured peaks {device}", []).extend(_rank_scores(row))
    return Accuracy(groups=tuple(_errors(name, found) for name, found in groups.items()), skipped=skipped)


def _rank_scores(row: TruthRow) -> list[RowScore]:
    peaks = predict(row).peak_bytes_CS[0]
    ends = {"first_stage_bytes": float(peaks[0]), "last_stage_bytes": float(peaks[row_pp(row) - 1])}
    found = [
        RowScore(
            case_id=f"{row.case_id} {name.split('_')[0]} rank",
            reference_bytes=row.measured[name],
            predicted_bytes=value,
        )
        for name, value in ends.items()
        if name in row.measured
    ]
    whole = RowScore(
        case_id=row.case_id, reference_bytes=row.measured["peak_bytes"], predicted_bytes=float(peaks.max())
    )
    return found or [whole]


def _score_cases(rows: Sequence[TruthRow]) -> Accuracy:
    skipped = {row.case_id: reason for row in rows if (reason := _unpredictable(row) or _impossible(row))}
    usable = [row for row in rows if row.case_id not in skipped]
    static = [row for row in usable if row.stage_static_bytes]
    skipped |= {row.case_id: f"static bytes: {reason}" for row in static if (reason := _unknown_static(row))}
    peaks = [row for row in usable if _steady_peak(row)]
    groups = [
        _errors("Ascend static bytes", [_static_score(row) for row in static if not _unknown_static(row)]),
        replace(
            _errors("Ascend first-iteration peaks", [_peak_score(row) for row in usable if _first_iteration(row)]),
            about="printed before the optimizer's moments exist: lower bounds of a steady-state prediction",
        ),
        _errors("measured peaks of memory cases", [_peak_score(row) for row in peaks if not _is_reserved(row)]),
        _family_out(_errors("reserved peaks of memory cases", [_reserved(row) for row in peaks if _is_reserved(row)])),
        *_verdict_groups([row for row in usable if row.observed in {"fits", "oom"}]),
    ]
    return Accuracy(groups=tuple(group for group in groups if group.n), skipped=skipped)


def _unknown_static(row: TruthRow) -> str:
    """Why a row's static bytes cannot follow from what it states."""
    if "noop-layers" in row.flags:
        return "some of its layers are empty; the row does not say how many"
    if {"o2-optimizer", "reuse-fp32-param"} <= row.flags:
        return "layout of the O2 optimizer with shared master weights is not published"
    if "alibi" in row.flags:
        return "tables of ALiBi position biases are not modelled"
    return ""


def _static_score(row: TruthRow) -> RowScore:
    """Largest static bytes of the printed ranks against those of the heaviest stage."""
    predicted = float(predict(row).static_bytes_CS[0].max())
    return RowScore(case_id=row.case_id, reference_bytes=max(row.stage_static_bytes), predicted_bytes=predicted)


def _first_iteration(row: TruthRow) -> bool:
    """Peaks printed after the first iteration: a steady-state prediction may exceed but not miss them."""
    return "peak_bytes" in row.measured and "first-iteration-peak" in row.flags and "lora" not in row.flags


def _steady_peak(row: TruthRow) -> bool:
    complete = not row.assumed & {"recompute", "seq", "dp", "mbs"}
    return (
        row.observed == "fits" and "peak_bytes" in row.measured and complete and "first-iteration-peak" not in row.flags
    )


def _peak_score(row: TruthRow) -> RowScore:
    predicted = float(predict(row).peak_bytes[0])
    return RowScore(case_id=row.case_id, reference_bytes=row.measured["peak_bytes"], predicted_bytes=predicted)


def _is_reserved(row: TruthRow) -> bool:
    """Whether the printed peak is what the pool reserved, not what was allocated."""
    return "reserved memory" in row.source


def _reserved(row: TruthRow) -> RowScore:
    score = _peak_score(row)
    return replace(score, predicted_bytes=score.predicted_bytes * (1.0 + _fragmentation_for(row)))


# ---------------------------------------------------------------------------------------------- fragmentation, fitted


def _fragmentation_for(row: TruthRow) -> float:
    """Share that a pool reserves on top of its peak, fitted without the row's model family."""
    assert row.model is not None
    return fragmentation(family_of(row.model.name))


def _reserved_of_allocated() -> GroupScore:
    """The fitted share itself: reserved peaks from measured allocated ones, each family by the other's."""
    pools = fitted_pools()
    rows = []
    for pool in pools:
        reserved = pool.reserved_gib * 2**30
        predicted = reserved * (1.0 + error_percent(pools, pool) / 100.0)
        rows.append(RowScore(case_id=pool.case_id, reference_bytes=reserved, predicted_bytes=predicted))
    return _family_out(
        replace(_errors("reserved of allocated B200", rows), about="the fit of the pool's fragmentation by itself")
    )


def _family_out(group: GroupScore) -> GroupScore:
    return replace(group, fitted=True, left_out="family")


# -------------------------------------------------------------------------------------------------------- verdicts


#: Words of the source of cells that belong to a sweep of layouts.
_SWEEPS: Final = "published sheets"


def _verdict_groups(rows: Sequence[TruthRow]) -> list[GroupScore]:
    """Verdicts of single reports, and of sweeps, whose rules were read from their own cells."""
    sweeps = [row for row in rows if _SWEEPS in row.source]
    return [
        _verdicts("fits and out of memory", [row for row in rows if _SWEEPS not in row.source]),
        replace(
            _verdicts("sweeps, fits and out of memory", sweeps),
            about="16-bit gradients and whole logits of the trainer are concluded from these cells",
        ),
    ]


def _verdicts(name: str, rows: Sequence[TruthRow]) -> GroupScore:
    confusion = dict.fromkeys(("fits_as_fits", "fits_as_oom", "oom_as_oom", "oom_as_fits"), 0)
    wrong, scores = [], []
    for row in rows:
        needed, limit = needed_bytes(row), limit_bytes(row)
        verdict = "fits" if needed <= limit else "oom"
        confusion[f"{row.observed}_as_{verdict}"] += 1
        if verdict != row.observed:
            wrong.append(row.case_id)
        scores.append(
            RowScore(
                case_id=row.case_id,
                reference_bytes=limit,
                predicted_bytes=needed,
                note=row.observed,
                reason="" if verdict == row.observed else reason_of(row),
            )
        )
    group = GroupScore(name=name, n=len(rows), confusion=confusion, wrong=tuple(wrong), rows=tuple(scores))
    return _family_out(group)


def needed_bytes(row: TruthRow) -> float:
    """What a row needs of its limit [bytes]: the peak, and on a device without a stated limit the pool around it.

    A row that does not state recompute is a published recipe or table of card counts when it names no failure; such a
    layout fits when it does with some recompute.  Where a failing run does not state it, the framework's default (none)
    is taken.
    """
    model, workload = row.model, workload_of(row)
    assert model is not None
    assert row.strategy is not None
    table = Strategies.of([row.strategy])
    peak = float(memory(model, workload, table).peak_bytes[0])
    if "recompute" in row.assumed and _is_recipe(row):
        most, _ = least_recompute(model, workload, table, 0.0)
        peak = min(peak, float(memory(model, workload, most).peak_bytes[0]))
    if "limit_bytes" in row.measured:
        return peak
    return peak * (1.0 + _fragmentation_for(row)) + CONTEXT_BYTES


def _is_recipe(row: TruthRow) -> bool:
    return any(word in row.source for word in ("recommended", "recipe", "works"))


def limit_bytes(row: TruthRow) -> float:
    """Limit of a row [bytes]: of the pool where its file sets one, else what the framework sees of the device."""
    return row.measured.get("limit_bytes", row.device_bytes)


# ------------------------------------------------------------------------------------------------------ prediction


def predict(row: TruthRow) -> Memory:
    """Predicted memory of a published run."""
    assert row.model is not None
    assert row.strategy is not None
    return memory(row.model, workload_of(row), Strategies.of([row.strategy]))


def workload_of(row: TruthRow) -> Workload:
    """The row's workload with the switches it names."""
    assert row.workload is not None
    switches = [*row.switches, *(flag for flag in _SWITCHES if flag in row.flags)]
    if row.kind == SIMULATOR_ROWS and "fused-cross-entropy" not in row.flags:
        switches.append("unfused-cross-entropy")
    switches.extend(switch for words, switch in _FRAMEWORKS if any(word in row.framework_text for word in words))
    if "lora" in row.flags:
        switches.append("frozen-weights")
    return replace(row.workload, switches=tuple(switches))


def row_pp(row: TruthRow) -> int:
    """Pipeline stages of a row."""
    assert row.strategy is not None
    return row.strategy.pp


def _impossible(row: TruthRow) -> str:
    """Why the memory that a case states cannot be one."""
    if any(size <= 0 for size in row.measured.values()) or any(size <= 0 for size in row.stage_static_bytes):
        return "a memory it states is not above 0"
    if row.observed in {"fits", "oom"} and limit_bytes(row) <= 0:
        return "device_gib states no memory to fit into"
    return ""


def _unpredictable(row: TruthRow) -> str:
    if row.problem:
        return row.problem
    if row.strategy is None or row.model is None or row.workload is None:
        return f"the row does not state {', '.join(row.missing)}"
    return ""


# ---------------------------------------------------------------------------------------------------------- groups


def _errors(name: str, rows: Sequence[RowScore]) -> GroupScore:
    if not rows:
        return GroupScore(name=name, n=0)
    errors = np.array([row.error_percent for row in rows])
    size = np.abs(errors)
    return GroupScore(
        name=name, n=len(rows), mean_abs_percent=float(size.mean()), p90_abs_percent=float(np.quantile(size, 0.9)),
        max_abs_percent=float(size.max()), bias_percent=float(errors.mean()), least_percent=float(errors.min()),
        rows=tuple(rows),
    )  # fmt: skip
