"""What a training run left behind: times of its steps, its peak memory, its phases."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from planner.errors import CalibrationError, ValidationError
from planner.observe.native_log import NativeLog, read_native_log
from planner.validate.run.launch import Ran

#: Steps at the start that are not counted: compilation, allocation, caches.
DROPPED: Final = 3
#: Steps that the script runs under the profiler.
PROFILED: Final = 2
#: Median over best from which a run counts as disturbed; operators alone on a core stay below 1.2.
SCATTER: Final = 1.5
#: What a phase is called, in the order of tables.
PHASES: Final = ("matmul", "elementwise", "communication", "optimizer")
_MATMULS: Final = frozenset({"MatMul", "BatchMatMul"})
_COLLECTIVES: Final = frozenset({"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "Send", "Receive"})
_OPTIMIZERS: Final = frozenset({"AdamWeightDecay", "Adam", "ApplyAdam", "AdamW"})
_MS: Final = 1e-3
_US: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Figures of a run.

    Attributes
    ----------
    step_s : float
        Median of the steady steps of the slowest rank [s].
    best_s, spread_s : float
        Fastest steady step, and half the distance of the 16th and 84th percentile [s].
    steps : int
        Steady steps.
    loss : float
        Of the last step.
    static_bytes : int or None
        Parameters, optimizer states and accumulated gradients; None where only a peak is known [bytes].
    peak_bytes : int or None
        Of the fullest rank; None without a record [bytes].
    memory_from : str
        Where the peak comes from.
    phases_s : mapping of str to float
        Seconds of a step by phase, of the slowest rank; empty without a profile.  On the CPU the sum of operators,
        `PHASES`; on Ascend the columns of step_trace_time.csv.
    """

    step_s: float
    best_s: float
    spread_s: float
    steps: int
    loss: float
    static_bytes: int | None
    peak_bytes: int | None
    memory_from: str
    phases_s: Mapping[str, float]

    @property
    def scattered(self) -> bool:
        """Whether other work of the machine disturbed the run: the usual step took far longer than the best."""
        return self.step_s > SCATTER * self.best_s


def observe(ran: Ran) -> Observed:
    """Figures of a run.

    Raises
    ------
    ValidationError
        Too few steps, a log that cannot be read, or a loss that is not a number.
    """
    try:
        logs = [
            read_native_log(path.read_text(encoding="utf-8", errors="replace"), source=path.name) for path in ran.logs
        ]
    except (OSError, CalibrationError) as error:
        raise ValidationError(f"the log of the run cannot be read: {error}") from error
    steady = [_steady(log, rank) for rank, log in enumerate(logs)]
    slowest = max(steady, key=median)
    static, peak, source = _memory(logs, ran.profile)
    return Observed(
        step_s=median(slowest),
        best_s=min(slowest),
        spread_s=_spread(slowest),
        steps=len(slowest),
        loss=logs[-1].steps[-1].loss,
        static_bytes=static,
        peak_bytes=peak,
        memory_from=source,
        phases_s=read_phases(ran.profile),
    )


def _steady(log: NativeLog, rank: int) -> list[float]:
    """Times of the steps that count."""
    if len(log.steps) <= DROPPED:
        raise ValidationError(
            f"rank {rank} printed {len(log.steps)} steps; the first {DROPPED} are dropped, so at least {DROPPED + 1} "
            "are needed (--steps)."
        )
    wrong = next((step for step in log.steps if not math.isfinite(step.loss)), None)
    if wrong is not None:
        raise ValidationError(f"rank {rank}: the loss of step {wrong.number} is {wrong.loss}; the run says nothing.")
    return [step.seconds for step in log.steps[DROPPED:]]


def _spread(values: Sequence[float]) -> float:
    ordered = sorted(values)
    last = len(ordered) - 1
    return 0.5 * (ordered[round(0.84 * last)] - ordered[round(0.16 * last)])


def _memory(logs: Sequence[NativeLog], profile: Path) -> tuple[int | None, int | None, str]:
    """Static bytes, peak and where they come from; of the fullest rank."""
    counters = [log.peak_bytes for log in logs if log.peak_bytes]
    if counters:
        return None, max(counters), "counters of the device"
    held = [log.held_bytes for log in logs if log.held_bytes is not None]
    static = max(held) if held else None
    pools = [read_pool_peak(path) for path in sorted(profile.rglob("cpu_ms_memory_record_*.txt"))]
    if static is None or not pools or max(pools) == 0:
        return static, None, "no record of memory"
    return static, static + max(pools), "the profiler's record of the memory pool, and the parameters beside it"


def read_pool_peak(path: Path) -> int:
    """Highest number of allocated bytes in a ``cpu_ms_memory_record`` [bytes]; 0 for an empty one."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        return max(
            (int(float(row["Total Allocated(Byte)"])) for row in rows if row.get("Total Allocated(Byte)")), default=0
        )


def read_phases(profile: Path) -> dict[str, float]:
    """Seconds of one step by phase, of the rank that took longest; empty without a profile."""
    traces = sorted(profile.rglob("step_trace_time.csv"))
    types = sorted(profile.rglob("cpu_op_type_info_*.csv"))
    found = [read_step_trace(path) for path in traces] or [read_operator_types(path) for path in types]
    found = [phases for phases in found if phases]
    return max(found, key=lambda phases: sum(phases.values()), default={})


def read_operator_types(path: Path) -> dict[str, float]:
    """Seconds of one step by phase from ``cpu_op_type_info``: operators that run beside each other count in full."""
    total = dict.fromkeys(PHASES, 0.0)
    for row in _rows(path):
        seconds = _number(row.get("total_compute_time")) * _MS
        total[_phase(row.get("op_type") or "")] += seconds / PROFILED
    return total if any(total.values()) else {}


def _phase(operator: str) -> str:
    for phase, names in (("matmul", _MATMULS), ("communication", _COLLECTIVES), ("optimizer", _OPTIMIZERS)):
        if operator in names:
            return phase
    return "elementwise"


def read_step_trace(path: Path) -> dict[str, float]:
    """Seconds of the last whole step from ``step_trace_time.csv``."""
    rows = list(_rows(path))
    if not rows:
        return {}
    names = {
        "computing": "Computing", "communication": "Communication(Not Overlapped)", "overlapped": "Overlapped",
        "free": "Free",
    }  # fmt: skip
    return {name: _number(rows[-1].get(column)) * _US for name, column in names.items() if column in rows[-1]}


def _rows(path: Path) -> Iterable[Mapping[str, str]]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            yield {re.sub(r"\s+", " ", key).strip(): (value or "").strip() for key, value in row.items() if key}


def _number(text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
