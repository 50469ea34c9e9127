"""How well predicted step times agree with measured ones.

For every set of rows (`planner.calibrate.time_sets`) the errors of the fit itself and those of left-out rows stand side
by side, with what a constant utilisation would have reached, how often pairs of layouts are put in the right order, and
how many left-out rows their 80 % interval holds.  `accuracy` fits and leaves out; `accuracy_of_file` scores any file
with the shipped calibrations and fits nothing.

Errors are predicted / measured - 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import rankdata

from planner.calibrate.cases import read_cases, skip, truth_paths
from planner.calibrate.fit import FloatArray, TimeCase, log_error
from planner.calibrate.intervals import coverage
from planner.calibrate.left_out import LABELS, Label, left_out_errors
from planner.calibrate.time_sets import EXCLUDED, FittedSet, family_of, fit_sets, generation_of, work_of
from planner.cluster.load import calibration
from planner.cluster.records import Calibration
from planner.cost.estimate import interval
from planner.errors import CalibrationError, PlannerError
from planner.model.operators import parameter_count

#: Pairs of layouts closer than this are not counted as ordered.
PAIR_GAP: Final = 0.05
#: From so many left-out rows on, coverage of the interval is told.
COVERAGE_ROWS: Final = 8
#: Ways of leaving out that take whole sources.
WHOLE_SOURCES: Final = frozenset({"release", "source"})
#: Upper ends of size families [parameters].
FAMILIES: Final = (1e9, 4e9, 10e9, 20e9, 50e9, 90e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """Errors of one group of rows [percent].

    Attributes
    ----------
    cross_validated : bool
        The rows were predicted by constants fitted without them.
    left_out : str
        What was left out together: "shape", "release", "source", "case"; empty when nothing was.
    spearman, regret_percent : float or None
        Rank correlation of seconds per sample and device within one model shape, mean over shapes of three layouts and
        more; and how much slower the predicted best of a shape is than its measured best, over those of two and more.
    pair_order_percent, family_regret_percent : float or None
        Pairs of one release and size family, more than 5 % apart in utilisation, that are put in the right order; and
        the mean regret of taking the predicted best of such a family.
    constant_mfu_mape_percent : float or None
        Error of the better of two constant utilisations (causal, full attention count) fitted to the other rows.
    coverage_percent : float or None
        Rows inside their 80 % interval: the one that the errors of the rows that were not left out with them give
        (`planner.calibrate.intervals`), or for rows scored with a shipped calibration the one of its estimates.
    """

    name: str
    n: int
    mape_percent: float
    p90_abs_percent: float
    max_abs_percent: float
    bias_percent: float
    spearman: float | None
    regret_percent: float | None
    cross_validated: bool
    left_out: str = ""
    pair_order_percent: float | None = None
    family_regret_percent: float | None = None
    constant_mfu_mape_percent: float | None = None
    coverage_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScore:
    """One row of a scored file.

    Attributes
    ----------
    calibration : str
        File that it was predicted with.
    low_s, high_s : float
        80 % interval [s].
    """

    case_id: str
    group: str
    calibration: str
    measured_s: float
    predicted_s: float
    error_percent: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Scores of all groups, and rows that are in none.

    ``excluded`` names complete rows that were left out on purpose, ``skipped`` rows that cannot be predicted; ``rows``
    are the single rows of a scored file.
    """

    groups: tuple[GroupScore, ...]
    excluded: Mapping[str, str]
    skipped: Mapping[str, str]
    rows: tuple[RowScore, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        rows = {"rows": [asdict(row) for row in self.rows]} if self.rows else {}
        return {
            "groups": [asdict(group) for group in self.groups],
            "excluded": dict(self.excluded),
            "skipped": dict(self.skipped),
            **rows,
        }

    def group(self, name: str, left_out: str = "") -> GroupScore:
        """One group by name and by what was left out."""
        return next(g for g in self.groups if g.name == name and g.left_out == left_out)


# ------------------------------------------------------------------------------------------------------- scores


def accuracy() -> Accuracy:
    """Fit every set to the shipped measurements and score it, in sample and left out."""
    cases, skipped = read_cases(truth_paths())
    groups: list[GroupScore] = []
    present: set[str] = set()
    for name, fitted in fit_sets(cases).items():
        fit = fitted.fit
        present.update(case.case_id for case in fitted.excluded)
        groups.append(score(name, fit.cases, fit.log_error))
        for kind in fitted.spec.left_out:
            left = left_out_errors(fitted, kind)
            groups.append(score(name, fit.cases, left, kind))
            if kind == fitted.spec.left_out[0]:
                groups.extend(_by_generation(name, fit.cases, left, kind))
        if fitted.excluded:
            groups.append(_with_excluded(name, fitted))
    excluded = {key: reason for key, reason in EXCLUDED.items() if key in present}
    return Accuracy(groups=tuple(groups), excluded=excluded, skipped=skipped)


def score(
    name: str, cases: Sequence[TimeCase], log_errors: FloatArray, left_out: str = "", inside: float | None = None
) -> GroupScore:
    """Score of rows predicted with the given errors; ``inside`` is the share of them in their interval, if known."""
    if left_out and len(cases) >= COVERAGE_ROWS:
        labels = [LABELS[left_out](case) for case in cases]
        if len(set(labels)) > 1:
            generations = [(family_of(case), generation_of(case)) for case in cases]
            sources = labels if left_out in WHOLE_SOURCES else None
            inside = coverage(-log_errors, labels, generations, sources)
    error = np.expm1(log_errors)
    spearman, regret = _ranking(cases, log_errors)
    pairs, family_regret = _pairs(cases, log_errors)
    baseline = _constant_mfu(cases, LABELS[left_out]) if left_out and len(cases) > 2 else None
    return GroupScore(
        name=name,
        n=len(cases),
        mape_percent=_percent(np.abs(error).mean()),
        p90_abs_percent=_percent(np.percentile(np.abs(error), 90)),
        max_abs_percent=_percent(np.abs(error).max()),
        bias_percent=_percent(error.mean()),
        spearman=spearman,
        regret_percent=regret,
        cross_validated=bool(left_out),
        left_out=left_out,
        pair_order_percent=pairs,
        family_regret_percent=family_regret,
        constant_mfu_mape_percent=baseline,
        coverage_percent=None if inside is None else _percent(inside),
    )


def _percent(share: float) -> float:
    return round(100.0 * float(share), 2)


def _by_generation(name: str, cases: Sequence[TimeCase], left: FloatArray, kind: str) -> list[GroupScore]:
    labels = [(family_of(case), generation_of(case)) for case in cases]
    if len(set(labels)) == 1:
        return []
    out = []
    for family, generation in sorted(set(labels)):
        rows = [i for i, label in enumerate(labels) if label == (family, generation)]
        out.append(score(f"{name}, {family} {generation}", [cases[i] for i in rows], left[rows], kind))
    return out


def _with_excluded(name: str, fitted: FittedSet) -> GroupScore:
    """All complete rows of a set: fitted ones by their left-out errors, excluded ones by the fit."""
    kind = fitted.spec.left_out[0]
    extra = [log_error(case, fitted.fit.values) for case in fitted.excluded]
    cases = (*fitted.fit.cases, *fitted.excluded)
    return score(f"{name}, with excluded rows", cases, np.concatenate((left_out_errors(fitted, kind), extra)), kind)


def _per_sample(case: TimeCase, seconds: float) -> float:
    return seconds * case.cluster.devices / case.batch


def _constant_mfu(cases: Sequence[TimeCase], label: Label) -> float:
    """Error of one utilisation for all rows, the median of the rows that are not left out."""
    best = math.inf
    labels = [label(case) for case in cases]
    for causal in (True, False):
        logs = np.log([case.utilisation(case.measured_s, causal=causal) for case in cases])
        errors = []
        for i, one in enumerate(labels):
            others = [logs[j] for j, other in enumerate(labels) if other != one]
            errors.append(math.expm1(logs[i] - float(np.median(others or logs))))
        best = min(best, float(np.abs(errors).mean()))
    return _percent(best)


def _clusters(cases: Sequence[TimeCase], label: Label) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for i, case in enumerate(cases):
        found.setdefault(label(case), []).append(i)
    return list(found.values())


def _ranking(cases: Sequence[TimeCase], log_errors: FloatArray) -> tuple[float | None, float | None]:
    """Mean Spearman coefficient and mean regret within one shape, sequence, device and release."""
    coefficients, regrets = [], []
    for rows in _clusters(cases, lambda c: (c.shape, c.workload.seq, c.cluster.hardware.name, c.release)):
        if len(rows) < 2:
            continue
        measured = np.array([_per_sample(cases[i], cases[i].measured_s) for i in rows])
        predicted = measured * np.exp(log_errors[rows])
        if len(rows) > 2:
            coefficients.append(_spearman(measured, predicted))
        regrets.append(float(measured[int(np.argmin(predicted))] / measured.min() - 1.0))
    spearman = round(float(np.mean(coefficients)), 3) if coefficients else None
    return spearman, _percent(float(np.mean(regrets))) if regrets else None


def _spearman(first: FloatArray, second: FloatArray) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank; 0 where all values of one are equal."""
    a, b = (rankdata(values) - 0.5 * (len(values) + 1) for values in (first, second))
    norm = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float((a * b).sum()) / norm if norm else 0.0


def size_family(case: TimeCase) -> int:
    """Size family of a model: which of `FAMILIES` it is below."""
    return int(np.searchsorted(FAMILIES, parameter_count(case.model)))


def _pairs(cases: Sequence[TimeCase], log_errors: FloatArray) -> tuple[float | None, float | None]:
    """Pairs in the right order, and mean regret, by utilisation within one release and size family."""
    right = total = 0
    regrets = []
    for rows in _clusters(cases, lambda c: (c.release, c.cluster.hardware.name, size_family(c))):
        measured = {i: math.log(cases[i].utilisation(cases[i].measured_s)) for i in rows}
        predicted = {i: measured[i] - log_errors[i] for i in rows}
        for i, j in itertools.combinations(rows, 2):
            gap = measured[i] - measured[j]
            if abs(gap) > math.log1p(PAIR_GAP):
                total += 1
                right += bool((predicted[i] - predicted[j]) * gap > 0)
        if len(rows) > 2:
            chosen = max(rows, key=lambda i: predicted[i])
            regrets.append(math.expm1(max(measured.values()) - measured[chosen]))
    order = _percent(right / total) if total else None
    return order, _percent(float(np.mean(regrets))) if regrets else None


# -------------------------------------------------------------------------------------------------- any file


def accuracy_of_file(path: str | Path) -> Accuracy:
    """Score a file of measurements with the shipped calibrations; nothing is fitted.

    Groups are device, framework generation and kind of work.  A row is predicted by the calibration of its own
    generation where there is one, else by the newest.

    Raises
    ------
    CalibrationError
        The file cannot be read, is of another kind, or holds no complete row.
    """
    cases, skipped = read_cases([path])
    _refuse_nothing(path, cases, skipped)
    done: list[RowScore] = []
    kept: list[TimeCase] = []
    for case in cases:
        try:
            done.append(_row_score(case))
            kept.append(case)
        except PlannerError as error:
            skip(skipped, case.case_id, error)
    _refuse_nothing(path, kept, skipped)
    groups = []
    for rows in _clusters(kept, _shipped_group):
        found = [done[i] for i in rows]
        errors = np.log([row.predicted_s / row.measured_s for row in found])
        inside = sum(row.low_s <= row.measured_s <= row.high_s for row in found) / len(found)
        groups.append(score(found[0].group, [kept[i] for i in rows], errors, inside=inside))
    return Accuracy(groups=tuple(groups), excluded={}, skipped=skipped, rows=tuple(done))


def _refuse_nothing(path: str | Path, cases: Sequence[TimeCase], skipped: Mapping[str, str]) -> None:
    if not cases:
        first = next((f" {name}: {reason}" for name, reason in skipped.items()), "")
        raise CalibrationError(f"{path}: no complete, unflagged row with a step time; {len(skipped)} skipped.{first}")


def _row_score(case: TimeCase) -> RowScore:
    """Prediction of one row by the shipped calibration."""
    record = shipped_calibration(case)
    values = {key: constant.value for key, constant in record.constants.items()}
    predicted = case.measured_s * math.exp(log_error(case, values))
    low, high = interval(case.model, record, case.table)
    device, family, generation, work = _shipped_group(case)
    return RowScore(
        case_id=case.case_id,
        group=f"{device}, {family} {generation}, {work}",
        calibration=record.name,
        measured_s=case.measured_s,
        predicted_s=predicted,
        error_percent=_percent(predicted / case.measured_s - 1.0),
        low_s=predicted * math.exp(float(low[0])),
        high_s=predicted * math.exp(float(high[0])),
    )


def _shipped_group(case: TimeCase) -> tuple[str, str, str, str]:
    return case.cluster.hardware.name, family_of(case), generation_of(case), work_of(case)


def shipped_calibration(case: TimeCase) -> Calibration:
    """Shipped calibration of a case's generation, or the newest one of its device and framework."""
    device, framework = case.cluster.hardware, case.workload.framework
    try:
        return calibration(device, framework, generation_of(case))
    except CalibrationError:
        return calibration(device, framework)
