"""Constants of the time model from measured step times.

A handful of constants is fitted to the logarithm of step times, the others stay at their priors.  Every fitted constant
has a prior interval (80 %) and is pulled towards its middle, so that few rows move it little:

    minimise  sum over rows of rho(log(predicted / measured) / 0.08)
            + sum over constants of ((log c - log prior) / sigma)^2,

rho the soft L1 loss, 0.08 the scatter of one layout published twice, sigma from the prior interval; constants are kept
inside that interval.  The minimum is that of ``scipy.optimize.least_squares`` (trust region reflective, with bounds).
Constants may differ along the rows of a table, so one call of the time model per measurement gives value and
derivatives.

Leaving rows out starts from the fit of all rows: the same minimum over its linearisation gives the constants of the
remaining rows, and the left-out rows are then predicted by the full model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Calibration, Cluster, Constant, Hardware
from planner.cluster.tables import NOTHING, Measured
from planner.cost.strategies import Strategies
from planner.cost.time.setting import Execution, default_execution, peak_flop_per_s
from planner.cost.time.step import StepTime, evaluate_constants
from planner.errors import CalibrationError, PlannerError
from planner.model.operators import flop_per_token
from planner.model.records import Model, Workload
from planner.observe.published import TruthRow

FloatArray = NDArray[np.float64]

#: Scatter of repeated publications of one layout, log; the scale of the soft L1 loss.
SCATTER: Final = 0.08
#: Standard deviations between the ends of an 80 % interval.
INTERVAL_SIGMAS: Final = 2.0 * 1.2815515655446004
#: Constants fitted to dense rows.
DENSE_KEYS: Final = (
    "matmul_efficiency", "attention_efficiency", "tp_exposed", "tp_exposed_overlapped", "launch_s",
)  # fmt: skip
#: Between generations of one framework only this one moves, by a few percent where rows ask for it.
GENERATION_KEYS: Final = ("matmul_efficiency",)
GENERATION_SPREAD: Final = 1.10
#: What a row must state itself; the reader completes it otherwise, which is good enough for memory only.
NEEDED: Final = frozenset({"mbs", "micro_batches", "dp", "seq", "shape"})
_STEP: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeCase:
    """One measured run, ready to be predicted.

    Attributes
    ----------
    release : str
        Framework and release as published; rows of one release share their software.
    generation : str
        Version string of the framework alone.
    tables : Measured
        Micro-benchmarks of the device that ran, which stay as they are while constants are fitted.
    """

    case_id: str
    model: Model
    workload: Workload
    cluster: Cluster
    table: Strategies
    run: Execution
    measured_s: float
    release: str
    generation: str
    tables: Measured = NOTHING

    @property
    def shape(self) -> tuple[int, int, int]:
        """Hidden size, layers and MLP width: what is left out together as one model shape."""
        return self.model.hidden, self.model.layers, self.model.ffn

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return int(self.table.dp[0] * self.table.micro_batch_size[0] * self.table.micro_batches[0])

    def utilisation(self, step_s: float, *, causal: bool = True) -> float:
        """Model FLOP over what the matmul peak of all devices could do in that time."""
        flop = flop_per_token(self.model, self.workload.seq, causal) * self.workload.seq * self.batch
        peak = peak_flop_per_s(self.cluster.hardware, self.workload.compute_dtype)
        return flop / (step_s * self.cluster.devices * peak)


def time_case(row: TruthRow) -> TimeCase:
    """A published row as a case.

    Raises
    ------
    CalibrationError
        The row lacks a strategy or a step time, is flagged impossible by its source, contradicts itself, is faster than
        the peak of its devices, or names unknown hardware.
    """
    if row.problem:
        raise CalibrationError(f"{row.case_id}: {row.problem}")
    if not row.usable:
        raise CalibrationError(f"{row.case_id}: the figure is flagged as impossible or doubtful by its source.")
    if row.model is None or row.workload is None or row.strategy is None:
        raise CalibrationError(f"{row.case_id}: incomplete layout, missing {', '.join(row.missing) or 'strategy'}.")
    if "unstated" in row.hardware:
        raise CalibrationError(f"{row.case_id}: which variant of the device ran is not published.")
    gaps = row.assumed & NEEDED
    if gaps:
        raise CalibrationError(f"{row.case_id}: incomplete layout, {', '.join(sorted(gaps))} not published.")
    if row.devices and row.devices != row.strategy.devices:
        raise CalibrationError(
            f"{row.case_id}: tp x pp x dp x cp is {row.strategy.devices}, but the row says {row.devices} devices."
        )
    measured_s = step_time_of(row)
    try:
        device = _profile(row.hardware)
        cluster = Cluster(hardware=device, devices=row.strategy.devices)
    except PlannerError as error:
        raise CalibrationError(f"{row.case_id}: {error}") from error
    case = TimeCase(
        case_id=row.case_id,
        model=row.model,
        workload=row.workload,
        cluster=cluster,
        table=Strategies.of([row.strategy]),
        run=execution(row),
        measured_s=measured_s,
        release=row.framework_text,
        generation=row.generation,
    )
    share = case.utilisation(measured_s)
    if share > 1.0:
        raise CalibrationError(f"{row.case_id}: impossible, {share:.0%} of the peak of its devices.")
    return case


def step_time_of(row: TruthRow) -> float:
    """Seconds of a step: published, or derived from the throughput of one device.

    Raises
    ------
    CalibrationError
        There is neither, or it is not positive.
    """
    assert row.workload is not None
    assert row.strategy is not None
    if "step_s" in row.measured:
        seconds = row.measured["step_s"]
    else:
        tokens = row.measured.get("tokens_per_s_per_device", 0.0) * row.strategy.devices
        samples = row.measured.get("samples_per_s", 0.0) or tokens / row.workload.seq
        if not samples:
            raise CalibrationError(f"{row.case_id}: no step time and nothing to derive it from.")
        seconds = row.workload.global_batch / samples
    if seconds <= 0.0:
        raise CalibrationError(f"{row.case_id}: a step of {seconds:g} s; legal: above 0.")
    return seconds


def _profile(text: str) -> Hardware:
    """Profile of a published name, remarks behind the product name allowed: ``A100-80GB-SXM (Selene: ...)``."""
    short = re.split(r"[,(]| \d+ GPU", text)[0].strip()
    if "/" in text:
        return hardware(short)
    try:
        return hardware(text)
    except PlannerError:
        return hardware(short)


def execution(row: TruthRow) -> Execution:
    """Switches of a run as its row states them.

    Interleaved micro-batches overlap tensor-parallel traffic like fine-grained interleaving.  Frameworks that launch
    operators one by one overlap gradient traffic only where the row says so; compiled graphs always do.  A ring
    skips no work under a general mask; MindSpeed's adaptive context parallelism schedules by the mask and does.
    """
    assert row.workload is not None
    base = default_execution(row.workload)
    flags, notes = row.flags, row.notes
    overlapped = {"mc2", "fine-grain-interleave", "tp-overlap", "micro-batch-interleave"}
    graph = row.workload.runs_on.graph
    fsdp = "torchtitan" in row.framework_text
    return Execution(
        tp_overlap=bool(flags & overlapped),
        dp_overlap=graph or fsdp or "overlap-grad-reduce" in flags,
        causal_skip="general-mask" not in flags or "adaptive-cp" in flags,
        fused_loss="fused-cross-entropy" in flags,
        balanced_experts=bool(flags & {"capacity-drop", "capacity-padded"}) or "forced router balance" in notes,
        eager=base.eager and "compile" not in flags,
        selective=("norm", "activation", "alternate_matmuls") if fsdp else (),
    )


def predict(case: TimeCase, constants: Mapping[str, float | FloatArray], copies: int = 1) -> StepTime:
    """Step time of a case; constants may be arrays over ``copies`` rows."""
    table = case.table if copies == 1 else case.table.take(np.zeros(copies, np.int64))
    return evaluate_constants(case.model, case.workload, case.cluster, constants, table, case.run, case.tables)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Constants fitted to cases, with everything needed to leave some of them out.

    Attributes
    ----------
    keys : tuple of str
        Fitted constants.
    constants : mapping of str to Constant
        All constants: fitted ones with their 80 % interval, the others as their priors.
    log_error : ndarray, shape (rows,)
        log(predicted / measured) of each case with these constants.
    """

    cases: tuple[TimeCase, ...]
    keys: tuple[str, ...]
    priors: Mapping[str, Constant]
    constants: Mapping[str, Constant]
    log_error: FloatArray
    slopes: FloatArray
    position: FloatArray

    @cached_property
    def values(self) -> dict[str, float]:
        """Values of all constants."""
        return {key: constant.value for key, constant in self.constants.items()}

    def without(self, rows: NDArray[np.bool_]) -> dict[str, float]:
        """Values of all constants when the marked rows are left out."""
        kept = ~rows
        prior = _Prior.of(self.priors, self.keys)
        position = _solve(self.log_error[kept], self.slopes[kept], self.position, prior)
        return self.values | {key: float(np.exp(x)) for key, x in zip(self.keys, position, strict=True)}

    def moved(self, values: Mapping[str, float], rows: NDArray[np.bool_]) -> dict[str, float]:
        """Constants in which `GENERATION_KEYS` follow the marked rows, starting from ``values``."""
        if not rows.any():
            return dict(values)
        priors = _near({key: values[key] for key in GENERATION_KEYS})
        now = np.log([values[key] for key in self.keys])
        error = self.log_error[rows] + self.slopes[rows] @ (now - self.position)
        column = [self.keys.index(key) for key in GENERATION_KEYS]
        prior = _Prior.of(priors, GENERATION_KEYS)
        found = _solve(error, self.slopes[rows][:, column], now[column], prior)
        return dict(values) | {key: float(np.exp(x)) for key, x in zip(GENERATION_KEYS, found, strict=True)}

    def left_out(self, group: Callable[[TimeCase], Hashable]) -> FloatArray:
        """log(predicted / measured) of each case, its whole group left out of the fit."""
        labels = [group(case) for case in self.cases]
        out = np.zeros(len(labels))
        for label in dict.fromkeys(labels):
            rows = np.array([other == label for other in labels])
            values = self.without(rows)
            for i in np.flatnonzero(rows):
                out[i] = log_error(self.cases[i], values)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prior:
    """Middle, width and ends of the fitted constants, in logarithms."""

    middle: FloatArray
    sigma: FloatArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, priors: Mapping[str, Constant], keys: Sequence[str]) -> _Prior:
        ends = np.log([[priors[key].value, priors[key].low, priors[key].high] for key in keys])
        sigma = (ends[:, 2] - ends[:, 1]) / INTERVAL_SIGMAS
        return cls(middle=ends[:, 0], sigma=sigma, low=ends[:, 1], high=ends[:, 2])


def log_error(case: TimeCase, values: Mapping[str, float]) -> float:
    """log(predicted / measured) of one case."""
    return math.log(float(predict(case, values).step_s[0]) / case.measured_s)


def fit(cases: Sequence[TimeCase], priors: Mapping[str, Constant], keys: Sequence[str] = DENSE_KEYS) -> Fit:
    """Fit ``keys`` to the cases, all other constants at their priors.

    Raises
    ------
    CalibrationError
        No case, or a key without prior or with an interval that holds zero.
    """
    if not cases:
        raise CalibrationError("nothing to fit: no complete, unflagged row with a step time.")
    for key in keys:
        if key not in priors or priors[key].low <= 0.0:
            raise CalibrationError(f"constant '{key}' cannot be fitted: it needs a prior with a positive interval.")
    prior = _Prior.of(priors, keys)
    position = _minimum(lambda at: _linearised(cases, priors, keys, at), prior.middle, prior)
    error, slopes = _linearised(cases, priors, keys, position)
    return Fit(
        cases=tuple(cases),
        keys=tuple(keys),
        priors=priors,
        constants=_fitted(priors, keys, position, slopes, len(cases), prior),
        log_error=error,
        slopes=slopes,
        position=position,
    )


def _linearised(
    cases: Sequence[TimeCase], priors: Mapping[str, Constant], keys: Sequence[str], position: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """log(predicted / measured) of every case and its derivatives by the logarithms of the constants."""
    constants: dict[str, float | FloatArray] = {key: constant.value for key, constant in priors.items()}
    copies = len(keys) + 1
    for j, key in enumerate(keys):
        shifted = np.full(copies, position[j])
        shifted[j + 1] += _STEP
        constants[key] = np.exp(shifted)
    logs = np.array([np.log(predict(case, constants, copies).step_s / case.measured_s) for case in cases])
    return logs[:, 0], (logs[:, 1:] - logs[:, :1]) / _STEP


def _solve(error: FloatArray, slopes: FloatArray, position: FloatArray, prior: _Prior) -> FloatArray:
    """Minimum of the objective with the errors linearised at ``position``."""
    return _minimum(lambda at: (error + slopes @ (at - position), slopes), position, prior)


def _minimum(
    linearised: Callable[[FloatArray], tuple[FloatArray, FloatArray]], start: FloatArray, prior: _Prior
) -> FloatArray:
    """Logarithms of the constants that minimise the objective, from errors and slopes at any point."""
    from scipy.optimize import least_squares

    at = cache(lambda key: linearised(np.frombuffer(key)))

    def residuals(x: FloatArray) -> FloatArray:
        return np.concatenate((at(x.tobytes())[0] / SCATTER, (x - prior.middle) / prior.sigma))

    def jacobian(x: FloatArray) -> FloatArray:
        return np.concatenate((at(x.tobytes())[1] / SCATTER, np.diag(1.0 / prior.sigma)))

    found = least_squares(
        residuals,
        start,
        jacobian,
        bounds=(prior.low, prior.high),
        x_scale=prior.sigma,
        loss=lambda squares: _losses(squares, len(squares) - len(prior.middle)),
        xtol=1e-10,
        ftol=1e-12,
        gtol=1e-10,
    )
    return np.asarray(found.x, np.float64)


def _losses(squares: FloatArray, rows: int) -> FloatArray:
    """Loss of squared residuals with its first two derivatives: soft L1 for rows, plain squares for the prior."""
    root = np.sqrt(1.0 + squares)
    soft = np.stack((2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3))
    plain = np.stack((squares, np.ones_like(squares), np.zeros_like(squares)))
    return np.concatenate((soft[:, :rows], plain[:, rows:]), axis=1)


def _fitted(
    priors: Mapping[str, Constant], keys: Sequence[str], position: FloatArray, slopes: FloatArray, rows: int,
    prior: _Prior,
) -> dict[str, Constant]:  # fmt: skip
    normal = (slopes.T @ slopes) / SCATTER**2 + np.diag(prior.sigma**-2)
    sigma = np.sqrt(np.diag(np.linalg.inv(normal)))
    half = 0.5 * INTERVAL_SIGMAS * sigma
    out = dict(priors)
    for j, key in enumerate(keys):
        out[key] = Constant(
            value=float(np.exp(position[j])),
            low=float(np.exp(position[j] - half[j])),
            high=float(np.exp(position[j] + half[j])),
            kind="calibrated",
            source=f"fit to {rows} published rows, prior {priors[key].value:.3g}",
        )
    return out


def generation_fit(cases: Sequence[TimeCase], base: Mapping[str, Constant]) -> Fit:
    """Constants of one generation: those of all rows, of which only `GENERATION_KEYS` may move, and little.

    The prior of a moving constant is its value over all generations within a factor of `GENERATION_SPREAD` (80 %).
    """
    near = _near({key: base[key].value for key in GENERATION_KEYS})
    return fit(cases, {**base, **near}, GENERATION_KEYS)


def _near(values: Mapping[str, float]) -> dict[str, Constant]:
    return {
        key: Constant(
            value=value,
            low=value / GENERATION_SPREAD,
            high=value * GENERATION_SPREAD,
            kind="prior",
            source="fit over all generations",
        )
        for key, value in values.items()
    }


def default_priors(case: TimeCase) -> dict[str, Constant]:
    """Priors of a case's device and framework."""
    record: Calibration = calibration(case.cluster.hardware, case.workload.framework, "prior")
    return dict(record.constants)
