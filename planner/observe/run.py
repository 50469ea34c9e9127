"""A training log as a record: arrays with a row for every printed step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Steps of a run that start-up and compilation touch: the first is 1.7x to 444x the median of 65 public NPU runs, the
#: second up to 3.4x (facts of 793 steady steps, MindSpeed-LLM's own continuous integration).
WARM_UP_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a log says beside its steps.

    Attributes
    ----------
    kind : str
        ``"checkpoint"``, ``"skipped data"``, ``"norm above threshold"``, ``"memory"``, ``"flops"``, ``"error"``.
    step : int or None
        Step it names, or the last one printed before it.
    seconds : float or None
        How long it took [s].
    text : str
        The line, shortened.
    """

    kind: str
    step: int | None = None
    seconds: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training log: a row per printed step.

    Arrays have one entry a row, in the order of the log; NaN where a line lacks the field.

    Attributes
    ----------
    framework, generation : str
        ``"MindFormers"``, ``"MindSpore"``, ``"Megatron"``, ``"MindSpeed FSDP2"``, ``"torchtitan"``, ``"NeMo"``, ...;
        the dialect of the line as far as it tells the release (``"1.4-1.6"``), else ``""``.
    step : int array
        Number as printed.
    step_s : array
        Seconds of a step [s]; of the mean step where a line averages several.
    loss, grad_norm, loss_scale, learning_rate : array
    tokens_per_s, samples_per_s : array
        As printed: of one device where ``rates_per_device``, else of the whole job.
    flop_per_s : array
        Printed model FLOP/s of one device [FLOP/s].
    mfu : array
        Printed share of the peak.
    memory_bytes : array
        Peak reserved memory of the printing rank [bytes].
    data_s : array
        Seconds a step waited for data [s].
    tokens : array
        Tokens of the step (packed fine-tuning varies).
    time_s : array
        Clock stamp of the line [s since 1970, local time of the log].
    skipped : bool array
        The update was skipped: overflow, NaN, or skipped by a rule.
    total_steps, devices, global_batch, seq : int or None
        As printed.
    peak_bytes : mapping of int to float
        Peak memory by rank, where the log prints it apart from steps [bytes].
    events : tuple of Event
        Checkpoints, skipped data, errors.
    left_out : int
        Earlier steps that were read but not kept, so that memory stays bounded.
    """

    framework: str
    generation: str = ""
    source: str = ""
    rank: int | None = None
    step: NDArray[np.int64]
    step_s: FloatArray
    loss: FloatArray
    grad_norm: FloatArray
    loss_scale: FloatArray
    learning_rate: FloatArray
    tokens_per_s: FloatArray
    samples_per_s: FloatArray
    flop_per_s: FloatArray
    mfu: FloatArray
    memory_bytes: FloatArray
    data_s: FloatArray
    tokens: FloatArray
    time_s: FloatArray
    skipped: NDArray[np.bool_]
    rates_per_device: bool = True
    total_steps: int | None = None
    devices: int | None = None
    global_batch: int | None = None
    seq: int | None = None
    peak_bytes: Mapping[int, float] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.step)

    def steady(self, skip: int = WARM_UP_STEPS) -> NDArray[np.bool_]:
        """Rows after the first ``skip`` steps of every start, with a step time."""
        since = np.arange(len(self))
        starts = np.flatnonzero(np.diff(self.step, prepend=self.step[:1] + 1) <= 0)
        if len(starts):
            since = since - starts[np.searchsorted(starts, since, side="right") - 1]
        if self.left_out:
            since = since + self.left_out * (np.arange(len(self)) < (starts[1] if len(starts) > 1 else len(self)))
        return np.asarray((since >= skip) & np.isfinite(self.step_s))

    def median_step_s(self, skip: int = WARM_UP_STEPS) -> float:
        """Median of the steady steps [s]; NaN without any."""
        rows = self.steady(skip)
        return float(np.median(self.step_s[rows])) if rows.any() else float("nan")


def empty_run(rows: int, **known: Any) -> Run:
    """A run of so many rows; columns that are not given are NaN, and no step is skipped."""
    arrays = {f.name: np.full(rows, np.nan) for f in fields(Run) if f.type == "FloatArray"}
    return Run(**{"skipped": np.zeros(rows, bool), **arrays, **known})
