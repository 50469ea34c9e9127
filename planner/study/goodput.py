"""Checkpoints and failures of a plan: what a save costs, how often it pays, and what is left of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from planner.cost.estimate import Estimate
from planner.cost.goodput import (
    best_interval_s,
    daly_s,
    first_order_goodput,
    goodput,
    mean_between_s,
    spare_nodes,
    state_bytes_per_parameter,
    young_s,
)
from planner.cost.memory.peak import memory
from planner.cost.memory.rules import rules_for
from planner.cost.strategies import Strategies
from planner.errors import SpecError
from planner.model.operators import parameter_count
from planner.model.records import DTYPE_BYTES
from planner.search.request import Request
from planner.study.failures import (
    AT_RISK_S,
    DEFAULT_RATE,
    RESTART_S,
    SNAPSHOT_BYTES_PER_S,
    STORAGE_BYTES_PER_S,
    FailureRate,
    rate,
)

Way = Literal["synchronous", "asynchronous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where a training runs.

    Attributes
    ----------
    storage_bytes_per_s : float, optional
        Shared storage as the whole job sees it [bytes/s]; default: a published rate a device.
    snapshot_bytes_per_s : float
        Device to host memory of each device [bytes/s].
    restart_s : float
        From an interruption until steps are made again [s].
    repair_s : float, optional
        Time a failed node is away [s]; with it spare nodes are counted.
    deduplicated : bool
        Copies of a part are written once (``remove_redundancy``).
    interval_s : float, optional
        Interval to be judged beside the best one [s].
    """

    failures: FailureRate = rate(DEFAULT_RATE)
    storage_bytes_per_s: float | None = None
    snapshot_bytes_per_s: float = SNAPSHOT_BYTES_PER_S
    restart_s: float = RESTART_S
    repair_s: float | None = None
    deduplicated: bool = False
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one checkpoint.

    Attributes
    ----------
    weights, states : float
        Each distinct part once: weights alone, weights with master copies and optimizer moments [bytes].
    written : float
        What all ranks write together, states included [bytes].
    rank : float
        The same of the rank that writes most [bytes].
    per_parameter : float
        ``states`` over parameters [bytes].
    """

    weights: float
    states: float
    written: float
    rank: float
    per_parameter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spacing:
    """One interval between saves and what it gives.

    Attributes
    ----------
    interval_s : float
        Work between saves [s].
    steps : int
        The same in steps, rounded to the nearest.
    goodput : float
        Share of the time that is work that is kept, exact model.
    first_order : float
        The same to first order, for comparison.
    save_share : float
        Share of the time between failures in which saving blocks.
    at_risk_s : float
        Work lost by a failure at the worst moment [s].
    days : float or None
        Of the whole training, failures and saves included, for ``Workload.tokens``.
    """

    name: str
    interval_s: float
    steps: int
    goodput: float
    first_order: float
    save_share: float
    at_risk_s: float
    days: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """One way of saving.

    Attributes
    ----------
    blocking_s, background_s : float
        Seconds the training stands still, and seconds the save goes on beside it [s].
    young_s, daly_s, exact_s : float
        Best intervals by the three formulas [s].
    bounded : bool
        The best interval is the background time, because a save must end before the next starts.
    spacings : tuple of Spacing
        The best one first, then one that risks 30 minutes of work, then the one asked for.
    """

    way: Way
    blocking_s: float
    background_s: float
    young_s: float
    daly_s: float
    exact_s: float
    bounded: bool
    spacings: tuple[Spacing, ...]

    @property
    def best(self) -> Spacing:
        """The interval that keeps most."""
        return self.spacings[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Answer of `planner goodput`.

    Attributes
    ----------
    storage_bytes_per_s : float
        Storage counted with, whole job [bytes/s].
    mean_s : float
        Mean time between interruptions of the job [s].
    spares : int or None
        Spare nodes for the given time of repair.
    """

    sizes: Sizes
    conditions: Conditions
    storage_bytes_per_s: float
    mean_s: float
    spares: int | None
    ways: tuple[Saving, ...]

    @property
    def better(self) -> Saving:
        """The way of saving that keeps more of the time."""
        return max(self.ways, key=lambda way: way.best.goodput)


def checkpoint_sizes(request: Request, estimate: Estimate, *, deduplicated: bool) -> Sizes:
    """Bytes of one checkpoint of a plan."""
    workload = request.workload
    parameters = parameter_count(request.model)
    master = 0.0
    if workload.master_weights:
        master = 2.0 if rules_for(workload).reuse_master else 4.0
    weight, state = state_bytes_per_parameter(
        DTYPE_BYTES[workload.params_dtype], master, workload.moments, DTYPE_BYTES[workload.states_dtype]
    )
    states, devices = parameters * state, estimate.strategy.devices
    written, rank = states, states / devices
    if workload.runs_on.checkpoint_monitor and not deduplicated:
        table = Strategies.of([replace(estimate.strategy, swap_optimizer=False)])
        terms = memory(request.model, workload, table).terms
        stages = (terms["parameters"] + terms["optimizer_states"])[0, : estimate.strategy.pp]
        written = float(stages.sum()) * devices / estimate.strategy.pp
        rank = float(stages.max())
    return Sizes(weights=parameters * weight, states=states, written=written, rank=rank, per_parameter=state)


def study(request: Request, estimate: Estimate, conditions: Conditions) -> Goodput:
    """What saves and failures leave of the time of a plan.

    Raises
    ------
    SpecError
        The plan does not fit, so it has no seconds.
    """
    if estimate.step_s is None:
        raise SpecError("the plan does not fit into memory, so it has no seconds a step; planner explain says why.")
    devices = estimate.strategy.devices
    sizes = checkpoint_sizes(request, estimate, deduplicated=conditions.deduplicated)
    storage = conditions.storage_bytes_per_s or STORAGE_BYTES_PER_S * devices
    mean_s = mean_between_s(devices, conditions.failures.per_1000_device_days)
    write_s = sizes.written / storage
    copy_s = min(sizes.rank / conditions.snapshot_bytes_per_s, write_s)
    spares = None
    if conditions.repair_s is not None:
        spares = spare_nodes(request.cluster.nodes, mean_s, conditions.repair_s)
    ways = (
        _saving("synchronous", write_s, 0.0, mean_s, conditions, estimate),
        _saving("asynchronous", copy_s, write_s, mean_s, conditions, estimate),
    )
    return Goodput(
        sizes=sizes, conditions=conditions, storage_bytes_per_s=storage, mean_s=mean_s, spares=spares, ways=ways
    )


def _saving(
    way: Way, blocking_s: float, background_s: float, mean_s: float, conditions: Conditions, estimate: Estimate
) -> Saving:
    """Best interval and others of one way of saving; a save that is not finished at a failure does not count.

    With a background write, a failure costs the work since the snapshot before the last finished one began, so the
    background time is lost with each failure, as restart time is.
    """
    exact = best_interval_s(blocking_s, mean_s)
    least = max(background_s - blocking_s, 0.0)
    intervals = [("best", max(exact, least)), ("30 min at risk", max(AT_RISK_S - background_s, least))]
    if conditions.interval_s is not None:
        intervals.append(("asked for", conditions.interval_s))
    return Saving(
        way=way,
        blocking_s=blocking_s,
        background_s=background_s,
        young_s=young_s(blocking_s, mean_s),
        daly_s=daly_s(blocking_s, mean_s),
        exact_s=exact,
        bounded=least > exact,
        spacings=tuple(
            _spacing(name, tau, blocking_s, background_s, mean_s, conditions.restart_s, estimate)
            for name, tau in intervals
        ),
    )


def _spacing(
    name: str, tau: float, save_s: float, background_s: float, mean_s: float, restart_s: float, estimate: Estimate
) -> Spacing:
    assert estimate.step_s is not None
    steps = max(round(tau / estimate.step_s), math.ceil(max(background_s - save_s, 0.0) / estimate.step_s), 1)
    tau = steps * estimate.step_s
    lost_s = restart_s + background_s
    kept = goodput(tau, save_s, lost_s, mean_s)
    return Spacing(
        name=name,
        interval_s=tau,
        steps=steps,
        goodput=kept,
        first_order=first_order_goodput(tau, save_s, lost_s, mean_s),
        save_share=save_s / (tau + save_s),
        at_risk_s=tau + background_s,
        days=None if estimate.days is None or kept == 0 else estimate.days / kept,
    )
