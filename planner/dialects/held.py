"""What is predicted for the strategy that a file holds, where it is not quite the plan's."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.cluster import load as clusters
from planner.cluster.records import Cluster
from planner.cost.estimate import Estimate
from planner.cost.strategies import Strategies, Strategy
from planner.errors import PlannerError
from planner.plan import Plan
from planner.timeline.estimate import evaluate
from planner.units import GIB, format_seconds


def as_written(plan: Plan, strategy: Strategy) -> tuple[Plan, str]:
    """The plan with the strategy that its files hold, and how the prediction changes.

    Parameters
    ----------
    plan : Plan
    strategy : Strategy
        What is written in place of the plan's.

    Returns
    -------
    written : Plan
        Its estimate is that of `strategy`; empty where the plan's own figures cannot be made again here.
    change : str
        One sentence, empty when nothing is known of the hardware.
    """
    if strategy == plan.strategy:
        return plan, ""
    try:
        before, after = (_estimate(plan, chosen) for chosen in (plan.strategy, strategy))
    except PlannerError:
        return replace(plan, strategy=strategy, estimate={}), ""
    known = plan.estimate.get("step_s")
    same = isinstance(known, (int, float)) and before.step_s and math.isclose(known, before.step_s, rel_tol=1e-9)
    return replace(plan, strategy=strategy, estimate=after.to_dict() if same else {}), _change(before, after)


def _estimate(plan: Plan, strategy: Strategy) -> Estimate:
    profile = clusters.hardware(plan.hardware)
    return evaluate(
        plan.model,
        plan.workload,
        Cluster(hardware=profile, devices=plan.devices),
        clusters.calibration(profile, plan.workload.framework),
        Strategies.of([strategy]),
        limit_bytes=plan.memory_limit_bytes,
    ).row(0)


def _change(before: Estimate, after: Estimate) -> str:
    stages = ", ".join(f"{peak / GIB:.1f}" for peak in after.stage_peak_bytes)
    planned = ", ".join(f"{peak / GIB:.1f}" for peak in before.stage_peak_bytes)
    memory = f"Memory of the stages as written: {stages} GiB (plan: {planned})"
    if before.step_s is None or after.step_s is None:
        return f"{memory}."
    slower = 100 * (after.step_s / before.step_s - 1)
    return f"{memory}; a step {format_seconds(after.step_s)} (plan: {format_seconds(before.step_s)}, {slower:+.1f} %)."
