"""Findings of training logs: what the monitor's rules say, in seconds of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from planner.diagnose.case import Case
from planner.diagnose.records import Finding, Threshold
from planner.monitor.watch import Expected, watch
from planner.plan import Plan

_ADVICE: Final = {
    "slow step": "look at what else ran then: checkpoint, evaluation, garbage collection, shared storage",
    "every N steps": "find what runs at that period (data pre-processing, evaluation, logging, checkpoints) and take "
    "it out of the step",
    "drift": "profile an early and a late step and compare their operators; with rising memory look for growing caches "
    "and layout conversion",
    "memory creep": "look for tensors kept over steps (lists of losses, caches, dynamic shapes)",
    "straggler": "profile this rank beside another one",
    "data": "profile the data pipeline; more workers, full_batch False",
    "checkpoints": "save asynchronously, or less often",
    "slower than planned": "profile two or three steps from step 3 on and diagnose them against the plan",
}


def log_findings(case: Case) -> Iterator[Finding]:
    """What stands out in the logs; slow single steps together."""
    alarms = watch(case.observation.runs, expected_of(case.plan))
    single = [alarm for alarm in alarms if alarm.kind == "slow step"]
    for alarm in alarms:
        if alarm.kind != "slow step":
            yield Finding(
                kind={"checkpoints": "checkpoint stalls", "data": "data-bound input"}.get(alarm.kind, alarm.kind),
                text=alarm.text, number=alarm.number, threshold=Threshold(value=alarm.threshold, source=alarm.source),
                gain_s=alarm.cost_s or math.nan, advice=_ADVICE.get(alarm.kind, "look at the data of these steps"),
            )  # fmt: skip
    if single:
        steps = ", ".join(str(alarm.step) for alarm in single[:5]) + (", ..." if len(single) > 5 else "")  # noqa: PLR2004
        worst = max(single, key=lambda alarm: alarm.number)
        yield Finding(
            kind="slow steps", text=f"{len(single)} slow step(s): {steps}; worst: {worst.text}", number=worst.number,
            threshold=Threshold(value=worst.threshold, source=worst.source),
            gain_s=sum(alarm.cost_s for alarm in single), advice=_ADVICE["slow step"],
        )  # fmt: skip


def expected_of(plan: Plan | None) -> Expected:
    """What a plan says of a run."""
    if plan is None:
        return Expected()
    return Expected(
        step_s=plan.estimate.get("step_s"), step_high_s=plan.estimate.get("step_high_s"),
        limit_bytes=float(plan.memory_limit_bytes),
    )  # fmt: skip
