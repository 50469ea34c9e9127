"""An observed step beside the plan's, term by term."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from planner.diagnose.case import Case
from planner.diagnose.records import Finding, Term
from planner.diagnose.thresholds import RECOMPUTE

#: Predicted columns that a profile sees as computation, and as neither computation nor communication.
_COMPUTE: Final = ("compute_s", "attention_s", "vector_s", "recompute_s", "head_loss_s", "mtp_s", "optimizer_s")
_FREE: Final = ("launch_s", "fixed_s")
_KINDS: Final = ("tp", "cp", "ep", "dp")


def plan_terms(case: Case, step_s: float | None) -> tuple[Term, ...]:
    """Predicted and observed parts of the step; empty without a plan that has seconds."""
    if case.plan is None or not case.plan.estimate.get("step_s"):
        return ()
    seconds, pace = case.plan.estimate.get("time_s") or {}, case.pace
    terms = [Term(name="step", predicted_s=float(case.plan.estimate["step_s"]), observed_s=step_s)]
    if pace is None or not seconds:
        return tuple(terms)
    total = {name: sum(float(seconds.get(column, 0.0)) for column in columns)
             for name, columns in (("compute", _COMPUTE), ("free", _FREE))}  # fmt: skip
    terms.append(Term(name="compute", predicted_s=total["compute"], observed_s=pace.compute_s))
    terms += _communication(case, seconds)
    waiting = float(seconds.get("bubble_s", 0.0)) + float(seconds.get("pp_exposed_s", 0.0))
    terms.append(Term(name="bubble", predicted_s=waiting, observed_s=pace.bubble_s))
    terms.append(Term(name="data and free", predicted_s=total["free"], observed_s=pace.free_s + pace.data_s))
    return tuple(terms)


def _communication(case: Case, seconds: dict[str, float]) -> Iterator[Term]:
    """Exposed communication by dimension where groups are known; together with waiting for slow nodes otherwise."""
    pace = case.pace
    assert pace is not None
    predicted = {kind: float(seconds.get(f"{kind}_exposed_s", 0.0)) for kind in _KINDS}
    slower = float(seconds.get("straggler_s", 0.0))
    yield Term(name="exposed communication", predicted_s=sum(predicted.values()) + slower, observed_s=pace.exposed_s)
    ops, steps = case.operators.get(pace.rank, ((), 1))
    moved = {kind: sum(one.moving_s for one in ops if one.kind == kind) / steps for kind in _KINDS}
    if any(moved.values()):
        whole = pace.exposed_s + pace.bubble_s + pace.overlapped_s
        bare = 1.0 - pace.overlapped_s / whole if whole > 0 else 1.0
        for kind in _KINDS:
            if moved[kind] or predicted[kind]:
                yield Term(name=f"  {kind}", predicted_s=predicted[kind], observed_s=bare * moved[kind])


def plan_findings(case: Case, terms: tuple[Term, ...]) -> Iterator[Finding]:
    """Recomputation that the memory left free could spare."""
    plan = case.plan
    if plan is None or not terms or not (seconds := plan.estimate.get("time_s")):
        return
    share = float(seconds.get("recompute_s", 0.0)) / terms[0].predicted_s
    peaks = [trace.peak_reserved_bytes for trace in case.observation.memory]
    peaks += [peak for run in case.observation.runs for peak in run.peak_bytes.values()]
    known = [peak for peak in peaks if peak == peak]
    free = plan.memory_limit_bytes - max(known) if known else None
    if share > RECOMPUTE.value and free is not None and free > 0.1 * plan.memory_limit_bytes:
        yield Finding(
            kind="recompute share", number=share, threshold=RECOMPUTE,
            text=f"{share:.0%} of the planned step is recomputation, and {free / 2**30:.1f} GiB were never used",
            gain_s=float(seconds["recompute_s"]),
            advice="recompute fewer layers ('planner improve' says how many fit)",
        )  # fmt: skip
