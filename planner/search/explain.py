"""Why a strategy lost, and the smallest change that would save it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.estimate import Estimate
from planner.cost.memory.peak import TERMS
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.step import COLUMNS, average_columns
from planner.errors import InfeasibleError, SpecError
from planner.legality.apply import Violation, violations
from planner.search.nearest import describe
from planner.search.neighbours import as_options, differences, neighbours
from planner.search.objective import estimated
from planner.search.request import Request
from planner.search.suggest import RESOLVED_SHARE, Result, search
from planner.units import format_bytes, format_seconds

#: Columns whose difference explains a slower step, with the words for them.
TIME_WORDS: Final = {
    "compute_s": "matmuls", "attention_s": "attention", "vector_s": "element-wise work", "recompute_s": "recompute",
    "head_loss_s": "head and loss", "mtp_s": "multi-token prediction", "launch_s": "operator launches",
    "tp_exposed_s": "tensor-parallel traffic", "cp_exposed_s": "context-parallel traffic",
    "ep_exposed_s": "expert traffic", "pp_exposed_s": "pipeline traffic", "bubble_s": "pipeline bubble",
    "dp_exposed_s": "gradient traffic", "optimizer_s": "optimizer", "fixed_s": "fixed cost",
    "straggler_s": "waiting for the slowest rank",
}  # fmt: skip


#: Two steps nearer to each other than this are printed as the same [share].
SAME_STEP: Final = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a strategy, and what it gives.

    Attributes
    ----------
    what : str
        All that differs, in words, e.g. ``dp 8 -> 4, tp 4 -> 8, optimizer shard 8 -> 4``.
    changed : int
        Fields that differ; fewer is a smaller change.
    options : str
        Options with which ``planner estimate`` looks at exactly the changed strategy; empty where options cannot say
        it (layers that recompute selectively beside ones that do not).
    tied : bool
        The calibration cannot tell its seconds from those before.
    """

    what: str
    changed: int
    strategy: Strategy
    estimate: Estimate
    options: str = ""
    tied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Verdict on one strategy.

    Attributes
    ----------
    verdict : {"illegal", "out of memory", "slower", "best"}
    reasons : tuple of str
        Sentences, most important first.
    violations : tuple of Violation
        Broken rules; empty unless illegal.
    estimate : Estimate or None
        None when illegal.
    over_bytes : float
        Excess of the heaviest stage over the limit [bytes]; 0 when it fits.
    stage : int or None
        The heaviest stage when out of memory.
    change : Change or None
        The smallest single change that makes it legal or fit; the one that gains most where it is slower.
    """

    strategy: Strategy
    verdict: str
    reasons: tuple[str, ...]
    violations: tuple[Violation, ...] = ()
    estimate: Estimate | None = None
    over_bytes: float = 0.0
    stage: int | None = None
    change: Change | None = None


def explain(request: Request, strategy: Strategy, result: Result | None = None) -> Explanation:
    """Why a strategy is not the answer to a request.

    Parameters
    ----------
    strategy : Strategy
        Judged as it stands, with its own layers and recompute.
    result : Result, optional
        Of the same request; searched when not given.
    """
    broken = violations(request.context, strategy)
    if broken:
        return Explanation(
            strategy=strategy,
            verdict="illegal",
            reasons=tuple(violation.message for violation in broken),
            violations=tuple(broken),
            change=smallest_change(request, strategy),
        )
    estimate = estimated(request, Strategies.of([strategy])).row(0)
    if not estimate.fits:
        return _out_of_memory(request, strategy, estimate)
    return _slower(request, strategy, estimate, result)


def _out_of_memory(request: Request, strategy: Strategy, estimate: Estimate) -> Explanation:
    stage = int(np.argmax(estimate.stage_peak_bytes))
    over = estimate.peak_bytes - estimate.limit_bytes
    terms = sorted(TERMS, key=lambda name: -estimate.memory_bytes[name][stage])[:3]
    fill = ", ".join(f"{name.replace('_', ' ')} {format_bytes(estimate.memory_bytes[name][stage])}" for name in terms)
    return Explanation(
        strategy=strategy,
        verdict="out of memory",
        reasons=(
            f"stage {stage} needs {format_bytes(estimate.peak_bytes)} of {format_bytes(estimate.limit_bytes)}, "
            f"{format_bytes(over)} too much; most of it: {fill}.",
        ),
        estimate=estimate,
        over_bytes=over,
        stage=stage,
        change=smallest_change(request, strategy),
    )


def _slower(request: Request, strategy: Strategy, estimate: Estimate, result: Result | None) -> Explanation:
    best = _best(request, result)
    assert estimate.step_s is not None
    change = smallest_change(request, strategy, than=estimate)
    if best is None or best.step_s is None or best.step_s > estimate.step_s * (1.0 - SAME_STEP):
        reason = f"nothing faster was found by the search: {format_seconds(estimate.step_s)} a step."
        verdict = "best" if change is None else "slower"
        return Explanation(strategy=strategy, verdict=verdict, reasons=(reason,), estimate=estimate, change=change)
    slower = estimate.step_s / best.step_s - 1.0
    tie = " That is closer than the calibration can tell apart." if tied(best, estimate) else ""
    reasons = (
        f"{format_seconds(estimate.step_s)} a step, {slower:.1%} slower than {format_seconds(best.step_s)} of the best "
        f"({_named(strategy, best.strategy)}).{tie}",
        *_lost(request, estimate, best),
    )
    return Explanation(strategy=strategy, verdict="slower", reasons=reasons, estimate=estimate, change=change)


def _best(request: Request, result: Result | None) -> Estimate | None:
    """The first row of the search; None where it finds nothing that fits, though the strategy itself does."""
    try:
        return (result or search(request)).estimates.row(0)
    except (InfeasibleError, SpecError):
        return None


def _named(strategy: Strategy, best: Strategy) -> str:
    """The best in one line, and where its degrees are the same ones, in what it differs."""
    same = describe(strategy) == describe(best)
    return f"the same degrees; {', '.join(differences(strategy, best))}" if same else describe(best)


def tied(one: Estimate, other: Estimate) -> bool:
    """Whether the calibration cannot tell two steps apart: a third of the half-width of the interval that is shown."""
    if None in (one.step_s, one.step_low_s, one.step_high_s, other.step_s):
        return False
    width = np.log(one.step_high_s / one.step_low_s) / 2.0 * RESOLVED_SHARE  # type: ignore[operator]
    return bool(abs(np.log(other.step_s / one.step_s)) <= width)  # type: ignore[operator]


def _lost(request: Request, estimate: Estimate, best: Estimate) -> tuple[str, ...]:
    """The three terms in which the estimate loses most, on the average card."""
    now, then = (average_seconds(request, answer) for answer in (estimate, best))
    lost = {name: now[name] - then[name] for name in TIME_WORDS}
    worst = sorted((name for name in lost if lost[name] > 0), key=lambda name: -lost[name])[:3]
    return tuple(
        f"{TIME_WORDS[name]}, average of the cards: {format_seconds(now[name])} instead of "
        f"{format_seconds(then[name])}, {format_seconds(lost[name])} lost."
        for name in worst
    )


def average_seconds(request: Request, estimate: Estimate) -> dict[str, float]:
    """Columns of a step on the average of its stages; what it waits for the others is its bubble [s]."""
    assert estimate.time_s is not None
    assert estimate.step_s is not None
    job = (request.model, request.workload, request.cluster, request.calibration)
    work = average_columns(*job, Strategies.of([estimate.strategy]))
    seconds = {name: float(work[name][0]) if name in work else estimate.time_s[name] for name in COLUMNS}
    busy = sum(value for name, value in seconds.items() if name != "bubble_s")
    return seconds | {"bubble_s": max(estimate.step_s - busy, 0.0)}


def smallest_change(request: Request, strategy: Strategy, *, than: Estimate | None = None) -> Change | None:
    """The legal neighbour that fits and has the fewest changed fields, of equal ones the fastest.

    Parameters
    ----------
    than : Estimate, optional
        Of the strategy itself: then the fastest neighbour that is visibly faster than it.
    """
    near = neighbours(request, strategy)
    if not near:
        return None
    estimates = estimated(request, Strategies.of(near))
    sayable = bool(as_options(request, strategy))  # else it stands in a file, and is changed there
    found: list[tuple[int, float, int]] = []
    for row, step_s in enumerate(estimates.step_s.tolist()):
        if not estimates.fits[row] or (sayable and not as_options(request, near[row])):
            continue
        if than is None:
            found.append((len(differences(strategy, near[row])), step_s, row))
        elif than.step_s is not None and step_s < than.step_s * (1.0 - SAME_STEP):
            found.append((0, step_s, row))
    return _change(request, strategy, estimates.row(min(found)[2]), than) if found else None


def _change(request: Request, strategy: Strategy, after: Estimate, than: Estimate | None) -> Change:
    said = differences(strategy, after.strategy)
    return Change(
        what=", ".join(said),
        changed=len(said),
        strategy=after.strategy,
        estimate=after,
        options=as_options(request, after.strategy),
        tied=than is not None and tied(after, than),
    )
