"""What every rule looks at: an observation with its ranks' times, and the plan it is held against."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from planner.diagnose.parts import Traffic, per_step, rank_times, traffic
from planner.diagnose.records import RankTime
from planner.observe.records import Observation
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An observation, taken apart once.

    Attributes
    ----------
    ranks : tuple of RankTime
    operators : mapping
        Rank to its communication operators, and the steps they are of.
    """

    observation: Observation
    plan: Plan | None
    ranks: tuple[RankTime, ...]
    operators: Mapping[int | None, tuple[tuple[Traffic, ...], int]]

    @classmethod
    def of(cls, observation: Observation, plan: Plan | None = None) -> Case:
        """Take an observation apart."""
        moved = traffic(observation)
        return cls(
            observation=observation, plan=plan, ranks=rank_times(observation, moved),
            operators=per_step(observation, moved),
        )  # fmt: skip

    @property
    def pace(self) -> RankTime | None:
        """The rank that sets the pace: it computes longest, so the others wait for it, whoever communicates longest."""
        return max(self.ranks, key=lambda rank: rank.compute_s, default=None)

    @property
    def step_s(self) -> float:
        """Length of the step: of the rank that sets the pace [s]; NaN without steps."""
        return math.nan if self.pace is None else self.pace.step_s

    @property
    def stages(self) -> int:
        """Pipeline stages of the job, as its metadata, its plan or its ranks say; 1 when nobody does."""
        seen = len({rank.stage for rank in self.ranks if rank.stage is not None})
        layout = self.observation.layout
        planned = self.plan.strategy.pp if self.plan is not None else 1
        return max(seen, layout.degrees.get("pp", 1) if layout is not None else 1, planned)

    @property
    def stages_known(self) -> bool:
        """Whether ranks may be compared: each one's stage is known, or nobody sends to a neighbour."""
        passing = any(one.op.op == "sendrecv" for ops, _ in self.operators.values() for one in ops)
        known = all(rank.stage is not None for rank in self.ranks)
        return known or (self.stages == 1 and not passing and not any(rank.bubble_s > 0 for rank in self.ranks))

    def by_stage(self) -> Mapping[int | None, list[RankTime]]:
        """Ranks of each stage."""
        found: dict[int | None, list[RankTime]] = defaultdict(list)
        for rank in self.ranks:
            found[rank.stage].append(rank)
        return dict(sorted(found.items(), key=lambda item: -1 if item[0] is None else item[0]))

    def known_ranks(self) -> tuple[int, ...]:
        """Numbers of all ranks that have one."""
        return tuple(rank.rank for rank in self.ranks if rank.rank is not None)
