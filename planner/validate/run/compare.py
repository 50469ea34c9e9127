"""A short run beside its prediction, term by term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from planner.cost.estimate import Estimate
from planner.validate.compared import Compared
from planner.validate.run.observe import Observed

#: Columns of the time model behind each observed phase, by what the device's profiler tells apart.
_COMPUTE: Final = ("compute_s", "attention_s", "vector_s", "recompute_s", "head_loss_s", "mtp_s")
_EXPOSED: Final = ("tp_exposed_s", "cp_exposed_s", "ep_exposed_s", "pp_exposed_s", "dp_exposed_s")
_REST: Final = ("launch_s", "fixed_s", "bubble_s", "straggler_s")
_OVERLAP: Final = "sum of operators, which may run beside each other"


def compare(estimate: Estimate, observed: Observed) -> tuple[Compared, ...]:
    """Step time, its phases, and memory: predicted beside observed."""
    return (_step(estimate, observed), *_phases(estimate, observed), *_memory(estimate, observed))


def verdict(rows: Iterable[Compared]) -> str:
    """One sentence on the step time and the peak, against the prediction's interval."""
    by_term = {row.term: row for row in rows}
    step, words = by_term["step time"], []
    if step.ratio is not None and step.inside is not None:
        off = step.ratio - 1.0
        how = "inside" if step.inside else "outside"
        words.append(
            f"The step took {abs(off):.0%} {'longer' if off >= 0 else 'less'} than predicted, {how} the 80 % interval"
        )
    peak = by_term.get("peak memory")
    if peak is not None and peak.ratio is not None:
        words.append(f"the peak of memory was {_against(peak.ratio)}")
    return "; ".join(words) + "."


def _against(ratio: float) -> str:
    """How far from the prediction, in words.

    >>> _against(1.001), _against(0.9), _against(1.25)
    ('as predicted', '10% below the prediction', '25% above the prediction')
    """
    off = ratio - 1.0
    return "as predicted" if abs(off) < 0.005 else f"{abs(off):.0%} {'above' if off > 0 else 'below'} the prediction"


def _step(estimate: Estimate, observed: Observed) -> Compared:
    return Compared(
        term="step time",
        unit="s",
        predicted=estimate.step_s,
        observed=observed.step_s,
        low=estimate.step_low_s,
        high=estimate.step_high_s,
        why=f"median of {observed.steps} steps, best {observed.best_s:.4g} s, spread {observed.spread_s:.2g} s",
    )


def _phases(estimate: Estimate, observed: Observed) -> tuple[Compared, ...]:
    seen, time = observed.phases_s, estimate.time_s or {}
    if not seen:
        return ()
    if "computing" in seen:
        return _ascend(time, seen)
    compute = seen["matmul"] + seen["elementwise"]
    rest = max(observed.step_s - compute - seen["communication"] - seen["optimizer"], 0.0)
    return (
        _phase("computation", time, _COMPUTE, compute, _OVERLAP),
        _phase(
            "communication", time, _EXPOSED, seen["communication"], "all of it, waiting for the other rank included"
        ),
        _phase("update", time, ("optimizer_s",), seen["optimizer"], "optimizer operators"),
        _phase("the rest", time, _REST, rest, "step less operators"),
    )


def _ascend(time: Mapping[str, float], seen: Mapping[str, float]) -> tuple[Compared, ...]:
    source = "step_trace_time.csv"
    return (
        _phase("computation and update", time, (*_COMPUTE, "optimizer_s"), seen["computing"], source),
        _phase("communication", time, _EXPOSED, seen.get("communication"), f"not overlapped, {source}"),
        _phase("the rest", time, _REST, seen.get("free"), f"free, {source}"),
    )


def _phase(term: str, time: Mapping[str, float], columns: Iterable[str], observed: float | None, why: str) -> Compared:
    predicted = sum(time.get(column, 0.0) for column in columns) if time else None
    return Compared(term=term, unit="s", predicted=predicted, observed=observed, why=why)


def _memory(estimate: Estimate, observed: Observed) -> tuple[Compared, ...]:
    fullest = max(range(len(estimate.stage_peak_bytes)), key=lambda stage: estimate.stage_peak_bytes[stage])
    static = estimate.stage_static_bytes[fullest]
    rows = [
        Compared(
            term="peak memory",
            unit="bytes",
            predicted=estimate.peak_bytes,
            observed=observed.peak_bytes,
            why=observed.memory_from,
        )
    ]
    if observed.static_bytes is not None:
        rows.append(
            Compared(
                term="parameters and states",
                unit="bytes",
                predicted=static,
                observed=observed.static_bytes,
                why="counted by the script",
            )
        )
        if observed.peak_bytes is not None:
            rows.append(
                Compared(
                    term="activations, gradients",
                    unit="bytes",
                    predicted=estimate.peak_bytes - static,
                    observed=observed.peak_bytes - observed.static_bytes,
                    why="peak of the memory pool",
                )
            )
    return tuple(rows)
