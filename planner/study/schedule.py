"""When a training is looked at: health, stage and deep evaluations, checkpoints, profiles, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from planner.cost.estimate import Estimate
from planner.errors import SpecError
from planner.search.request import Request
from planner.study.goodput import Conditions, Goodput, study

#: Share of the training that evaluations may cost.
MOST_SHARE: Final = 0.05
#: Forward pass over forward and backward: 2 of 6 FLOP a parameter and token; recompute only makes it less.
FORWARD: Final = 1 / 3
#: Steps between looks at loss, norm and speed; within them, one look in the time in which a fault should be found.
HEALTH_STEPS: Final = (10, 100)
HEALTH_S: Final = 600.0
#: Stage evaluations, one each tenth of the training; deep ones at its half and its end.
STAGES: Final = 10
DEEP: Final = (0.5, 1.0)
#: Held-out tokens over training tokens.
HELD_OUT: Final = 0.01
#: Steps of one profile, the first of all (first steps are 1.7 to 444 times as long), and where else in the training.
PROFILE_STEPS: Final = 3
FIRST_PROFILE: Final = 10
PROFILES: Final = (0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One kind of look.

    Attributes
    ----------
    steps : tuple of int
        Steps after which it is done; empty where it is done every ``every`` steps.
    tokens : float
        Held-out tokens of one evaluation.
    share : float
        Of the seconds of training.
    """

    name: str
    what: str
    every: int = 0
    steps: tuple[int, ...] = ()
    tokens: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Answer of `planner schedule`.

    Attributes
    ----------
    steps : int
        Of the whole training.
    evaluation_share : float
        Of the seconds of training, all tiers.
    """

    steps: int
    tiers: tuple[Tier, ...]
    goodput: Goodput

    @property
    def evaluation_share(self) -> float:
        """Share of all evaluations."""
        return sum(tier.share for tier in self.tiers if tier.tokens)

    @property
    def affordable(self) -> bool:
        """Evaluations stay within `MOST_SHARE`."""
        return self.evaluation_share <= MOST_SHARE


def schedule(request: Request, estimate: Estimate, held_out: float | None = None) -> Schedule:
    """When to look at a training of ``Workload.tokens``.

    Parameters
    ----------
    held_out : float, optional
        Tokens of one evaluation; default: a hundredth of the training's.

    Raises
    ------
    SpecError
        No budget of tokens, one shorter than the profile needs, or the plan does not fit.
    """
    workload = request.workload
    if not workload.tokens:
        raise SpecError("how long is the training? Give --tokens, e.g. --tokens 1T.")
    found = study(request, estimate, Conditions())
    assert estimate.step_s is not None
    steps = math.ceil(workload.tokens / (workload.global_batch * workload.seq))
    if steps < 10 * STAGES:
        raise SpecError(f"{workload.tokens} tokens are {steps} steps; a schedule needs at least {10 * STAGES}.")
    tokens = HELD_OUT * workload.tokens if held_out is None else held_out
    save = min(found.better.best.steps, steps)
    stages = tuple(round(steps * part / STAGES) for part in range(1, STAGES + 1))
    deep = tuple(round(steps * part) for part in DEEP)
    one = FORWARD * tokens / workload.tokens
    low, high = HEALTH_STEPS
    health = max(low, min(high, int(HEALTH_S / estimate.step_s)))
    tiers = (
        Tier(name="health", what="loss, gradient norm, step time", every=health),
        Tier(name="stage", what="held-out loss", steps=stages, tokens=tokens, share=len(stages) * one),
        Tier(name="deep", what="held-out loss and tasks", steps=deep, tokens=tokens, share=len(deep) * one),
        Tier(name="checkpoint", what=found.better.way, every=save, share=found.better.best.save_share),
        Tier(name="profile", what=f"{PROFILE_STEPS} steps from", steps=_profiles(steps, save, {*stages, *deep})),
    )
    return Schedule(steps=steps, tiers=tiers, goodput=found)


def _profiles(steps: int, save: int, evaluated: set[int]) -> tuple[int, ...]:
    """First steps of profiles: behind the slow first ones, and away from saves and evaluations where that can be."""
    wanted = (FIRST_PROFILE, *(round(steps * part) for part in PROFILES))
    return tuple(dict.fromkeys(_clear(step, save, evaluated) for step in wanted))


def _clear(step: int, save: int, evaluated: set[int]) -> int:
    """First step from here whose profile, and the step before it, hold no save and no evaluation."""
    if save < PROFILE_STEPS + 2:
        return step
    while any(each % save == 0 or each in evaluated for each in range(step - 1, step + PROFILE_STEPS)):
        step += 1
    return step
