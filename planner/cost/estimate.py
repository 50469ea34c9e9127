"""Estimates: what every candidate would do, and one of them as a record.

`evaluate` joins memory and time of a table; `Estimates.row` picks one candidate.  Candidates that do not fit keep their
memory figures and lose every speed figure, so that none can be quoted for a plan that cannot run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

import numpy as np

from planner.cluster.records import Calibration, Cluster
from planner.cost.memory.peak import Memory, memory
from planner.cost.strategies import BoolArray, FloatArray, Strategies, Strategy
from planner.cost.time.setting import Execution, peak_flop_per_s
from planner.cost.time.step import COLUMNS, HIDDEN_COLUMNS, StepTime, step_time
from planner.errors import SpecError
from planner.model.operators import flop_per_token
from planner.model.records import Model, Workload

Kind = Literal["measured", "calibrated", "modelled"]

#: Exposed and hidden communication columns.
EXPOSED: Final = tuple(name for name in COLUMNS if name.endswith("_exposed_s"))
SECONDS_PER_HOUR: Final = 3600.0
HOURS_PER_DAY: Final = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one strategy would do.

    Attributes
    ----------
    kind : {"measured", "calibrated", "modelled"}
        Where the speed figures come from: constants fitted on this device and framework, or priors only.
    fits : bool
        The heaviest stage is within ``limit_bytes``.  If not, all speed figures are None.
    peak_bytes, limit_bytes : float
        Peak of the heaviest stage, and what it was compared with [bytes].
    stage_peak_bytes, stage_static_bytes : tuple of float
        Per stage [bytes].
    memory_bytes : mapping of str to tuple of float
        Each memory term per stage [bytes].
    step_s, step_low_s, step_high_s : float or None
        Seconds of one step and its 80 % interval.
    time_s : mapping of str to float
        Columns that add up to ``step_s``, and the hidden traffic beside them [s].
    stage_s : tuple of float
        One micro-batch on each stage [s].
    mfu, hfu : float or None
        Model FLOP (causal, no recompute) and executed FLOP over the matmul peak.
    exposed_share, hidden_share, bubble_share : float or None
        Communication that adds to the step, communication beside computation, pipeline waiting; over ``step_s``.
    card_hours, days : float or None
        For ``Workload.tokens``; None when no budget was given.
    """

    strategy: Strategy
    kind: Kind
    fits: bool
    peak_bytes: float
    limit_bytes: float
    stage_peak_bytes: tuple[float, ...]
    stage_static_bytes: tuple[float, ...]
    memory_bytes: Mapping[str, tuple[float, ...]]
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    exposed_share: float | None = None
    hidden_share: float | None = None
    bubble_share: float | None = None
    card_hours: float | None = None
    days: float | None = None
    time_s: Mapping[str, float] | None = None
    stage_s: tuple[float, ...] | None = None

    @property
    def heaviest_stage(self) -> int:
        """Stage with the highest peak, the first of equal ones."""
        return max(range(len(self.stage_peak_bytes)), key=lambda stage: self.stage_peak_bytes[stage])

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON holds it: lists for tuples, mappings for the strategy."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Estimate:
        """The record back from `to_dict`'s mapping.

        Raises
        ------
        SpecError
            When a field is missing or unknown.
        """
        known = {f.name for f in fields(cls)}
        unknown, missing = sorted(set(data) - known), sorted(known - set(data))
        if unknown or missing:
            raise SpecError(
                f"estimate: unknown field(s) {', '.join(unknown) or 'none'}, missing {', '.join(missing) or 'none'}; "
                f"legal: {', '.join(sorted(known))}."
            )
        values = {key: _record(value) for key, value in data.items()}
        strategy = Strategy(**{key: _record(value) for key, value in data["strategy"].items()})
        return cls(**{**values, "strategy": strategy})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _record(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _record(item) for key, item in value.items()}
    return tuple(_record(item) for item in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """Memory and time of a table of strategies; columns of shape (C,), meanings as in `Estimate`.

    Speed columns are NaN where ``fits`` is False.
    """

    table: Strategies
    memory: Memory
    time: StepTime
    kind: Kind
    limit_bytes: float
    fits: BoolArray
    peak_bytes: FloatArray
    step_s: FloatArray
    step_low_s: FloatArray
    step_high_s: FloatArray
    tokens_per_s_per_device: FloatArray
    mfu: FloatArray
    hfu: FloatArray
    exposed_share: FloatArray
    hidden_share: FloatArray
    bubble_share: FloatArray
    card_hours: FloatArray
    days: FloatArray

    def __len__(self) -> int:
        return len(self.table)

    def row(self, index: int) -> Estimate:
        """One candidate as a record, without padding."""
        strategy = self.table.row(index)
        stages = slice(0, strategy.pp)
        speed: dict[str, Any] = {}
        if self.fits[index]:
            speed = {name: _number(getattr(self, name)[index]) for name in _SPEED}
            names = (*COLUMNS, *HIDDEN_COLUMNS)
            speed["time_s"] = {name: float(getattr(self.time, name)[index]) for name in names}
            speed["stage_s"] = _floats(self.time.stage_s_CS[index, stages])
        return Estimate(
            strategy=strategy,
            kind=self.kind,
            fits=bool(self.fits[index]),
            peak_bytes=float(self.peak_bytes[index]),
            limit_bytes=float(self.limit_bytes),
            stage_peak_bytes=_floats(self.memory.peak_bytes_CS[index, stages]),
            stage_static_bytes=_floats(self.memory.static_bytes_CS[index, stages]),
            memory_bytes={name: _floats(term[index, stages]) for name, term in self.memory.terms.items()},
            **speed,
        )


_SPEED: Final = (
    "step_s", "step_low_s", "step_high_s", "tokens_per_s_per_device", "mfu", "hfu", "exposed_share", "hidden_share",
    "bubble_share", "card_hours", "days",
)  # fmt: skip


def _floats(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def evaluate(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    *,
    limit_bytes: float | None = None,
    run: Execution | None = None,
) -> Estimates:
    """Memory, time and derived figures of every candidate.

    Parameters
    ----------
    limit_bytes : float, optional
        Memory a stage may use [bytes]; default: the device's usable memory.
    run : Execution, optional
        See `planner.cost.time.step.step_time`.

    Returns
    -------
    Estimates
        A row does not depend on the other rows, bit for bit.
    """
    time = step_time(model, workload, cluster, calibration, table, run)
    return joined(model, workload, cluster, calibration, table, time, limit_bytes)


def joined(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    time: StepTime,
    limit_bytes: float | None = None,
) -> Estimates:
    """Memory and derived figures beside given times of a step; see `evaluate`."""
    limit = float(cluster.hardware.device.usable_bytes if limit_bytes is None else limit_bytes)
    needed = memory(model, workload, table)
    fits = np.asarray(needed.peak_bytes <= limit)
    step_s = np.where(fits, time.step_s, np.nan)
    batch = (table.dp * table.micro_batch_size * table.micro_batches).astype(np.float64)
    tokens = batch * workload.seq
    per_device = tokens / (table.devices * step_s)
    peak = peak_flop_per_s(cluster.hardware, workload.compute_dtype)
    mfu = per_device * flop_per_token(model, workload.seq) / peak
    exposed = sum((getattr(time, name) for name in EXPOSED), start=np.zeros(len(table)))
    hidden = sum((getattr(time, name) for name in HIDDEN_COLUMNS), start=np.zeros(len(table)))
    low, high = interval(model, calibration, table)
    steps = workload.tokens / tokens if workload.tokens else np.full(len(table), np.nan)
    hours = steps * step_s / SECONDS_PER_HOUR
    return Estimates(
        table=table,
        memory=needed,
        time=time,
        kind=kind_of(model, calibration),
        limit_bytes=limit,
        fits=fits,
        peak_bytes=needed.peak_bytes,
        step_s=step_s,
        step_low_s=step_s * np.exp(low),
        step_high_s=step_s * np.exp(high),
        tokens_per_s_per_device=per_device,
        mfu=mfu,
        hfu=mfu + time.recompute_flop / (table.devices * step_s * peak),
        exposed_share=exposed / step_s,
        hidden_share=hidden / step_s,
        bubble_share=time.bubble_s / step_s,
        card_hours=hours * table.devices,
        days=hours / HOURS_PER_DAY,
    )


#: The constant whose fit says that rows of such models were seen: with experts, and without.
_TELLING: Final = {True: "expert_width0", False: "matmul_efficiency"}


def kind_of(model: Model, calibration: Calibration) -> Kind:
    """Whether the calibration's rows say anything about such models.

    Dense rows do not tell how fast experts are, nor rows with experts how fast a dense model is.
    """
    constant = calibration.constants.get(_TELLING[model.moe is not None])
    seen = constant is not None and constant.kind in ("calibrated", "measured")
    return "calibrated" if calibration.rows and seen else "modelled"


def interval(model: Model, calibration: Calibration, table: Strategies) -> tuple[FloatArray, FloatArray]:
    """10th and 90th percentile of log(measured / predicted) for each row.

    Those of the calibration's dense rows; mixtures of experts and context-parallel rows use the wider intervals of the
    constants ``residual_moe`` and ``residual_cp`` (their ``low`` and ``high``) where the calibration has them.
    """
    low = np.full(len(table), calibration.residual_log_p10)
    high = np.full(len(table), calibration.residual_log_p90)
    moe = np.full(len(table), model.moe is not None)
    for name, applies in (("residual_cp", table.cp > 1), ("residual_moe", moe)):
        wider = calibration.constants.get(name)
        if wider is not None:
            low = np.where(applies, np.minimum(low, wider.low), low)
            high = np.where(applies, np.maximum(high, wider.high), high)
    return low, high
