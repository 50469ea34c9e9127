"""From an observation, and a plan where there is one, to findings in the order of what they would gain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from planner.diagnose.against import plan_findings, plan_terms
from planner.diagnose.case import Case
from planner.diagnose.feeding import feeding_findings
from planner.diagnose.links import link_findings
from planner.diagnose.logs import log_findings
from planner.diagnose.pipeline import pipeline_findings
from planner.diagnose.records import Diagnosis, Finding
from planner.diagnose.thresholds import WORTH
from planner.errors import SpecError
from planner.observe.records import INVARIANT_FRAC, Observation
from planner.plan import Plan


def diagnose(observation: Observation, plan: Plan | None = None) -> Diagnosis:
    """Where the step goes, what limits it, and what to change first.

    Raises
    ------
    SpecError
        Nothing in the observation tells of a training step, or it holds several profiles of one rank.
    """
    _require_one_profile(observation)
    case = Case.of(observation, plan)
    if not (case.ranks or observation.runs or observation.kernels or observation.pipelines):
        hint = "; rows of stages are maxima, not steps" if observation.steps else ""
        raise SpecError(
            f"{observation.source} ({observation.format or observation.kind}) tells nothing of a step{hint}: give a "
            "profile with step_trace_time.csv, a training log, or minddata files."
        )
    step_s = _step_s(case)
    terms = plan_terms(case, step_s)
    found = [
        *pipeline_findings(case), *link_findings(case), *feeding_findings(case), *log_findings(case),
        *plan_findings(case, terms),
    ]  # fmt: skip
    estimate = plan.estimate if plan is not None else {}
    low, high = estimate.get("step_low_s"), estimate.get("step_high_s")
    return Diagnosis(
        source=str(observation.source), format=observation.format, step_s=step_s, ranks=case.ranks,
        findings=_ranked(found, step_s), terms=terms, interval_s=(low, high) if terms and low and high else None,
        notes=(*observation.notes, *_doubts(case)), missing=(*observation.missing, *_untold(case)),
    )  # fmt: skip


def _require_one_profile(observation: Observation) -> None:
    """Refuse steps that are there twice: several profiles of one rank, or one named twice."""
    seen = Counter((step.rank, step.step) for step in observation.steps if step.step is not None and not step.ranks)
    if twice := [key for key, count in seen.items() if count > 1]:
        rank, number = min(twice, key=str)
        raise SpecError(
            f"step {number} of rank {rank} is there {seen[rank, number]} times: profiles of several runs, or one named "
            "twice. Diagnose one run at a time."
        )


def _step_s(case: Case) -> float | None:
    """Length of a step: of the longest rank, else the median of the logs [s]."""
    if case.ranks:
        return max(rank.step_s for rank in case.ranks)
    medians = [median for run in case.observation.runs if math.isfinite(median := run.median_step_s())]
    return float(np.median(medians)) if medians else None


def _ranked(found: Sequence[Finding], step_s: float | None) -> tuple[Finding, ...]:
    """Those worth it, the largest gain first; the ones without known gain last, in the order they were found."""
    least = WORTH.value * step_s if step_s else 0.0
    worth = [finding for finding in found if math.isnan(finding.gain_s) or finding.gain_s >= least]
    return tuple(sorted(worth, key=lambda f: math.inf if math.isnan(f.gain_s) else -f.gain_s))


def _doubts(case: Case) -> list[str]:
    """Ranks whose parts do not add up to their step."""
    return [
        f"rank {rank.rank}: computation, communication and free time differ from the step by {rank.off_frac:.1%}."
        for rank in case.ranks
        if rank.off_frac is not None and rank.off_frac > INVARIANT_FRAC
    ]


def _untold(case: Case) -> list[str]:
    """What could not be judged, and why."""
    out = []
    if len(case.ranks) == 1 and case.observation.layout is None:
        out.append("ranks: one alone; slow ranks, unequal stages and who waits for whom cannot be told.")
    elif len(case.ranks) > 1 and not case.stages_known:
        out.append("stages of the ranks: not written, so ranks are not compared with each other.")
    waits = any(rank.exposed_s > 0.3 * rank.step_s for rank in case.ranks)
    if waits and not case.operators:
        out.append("communication.json (profiler level 1 or 2): transfers and waiting cannot be told apart.")
    return out
