"""One step of a strategy with all that a picture of it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.cluster.records import Calibration, Cluster
from planner.cost.estimate import Estimate
from planner.cost.strategies import Strategies, Strategy
from planner.model.records import Model, Workload
from planner.timeline.anatomy import Anatomy, anatomy
from planner.timeline.estimate import evaluate
from planner.timeline.events import Timeline, timeline

#: Columns of an estimate that lie behind the pipeline, in this order.  What hides beside computation is not drawn.
BEHIND: Final = ("dp_exposed_s", "optimizer_s", "straggler_s", "fixed_s")
#: Micro-batches drawn at least, and rounds of pp, where a picture need not show all.
LEAST_DRAWN: Final = 8
ROUNDS_DRAWN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawing:
    """A step, or a shorter one with the same beginning and end.

    Attributes
    ----------
    line : Timeline
        Its passes.
    parts : Anatomy
        What they consist of.
    behind : mapping of str to float
        What follows the pipeline, see `BEHIND` [s].
    estimate : Estimate
        Of the whole step; ``time_s`` is None where it does not fit.
    """

    strategy: Strategy
    line: Timeline
    parts: Anatomy
    behind: Mapping[str, float]
    estimate: Estimate

    @property
    def whole(self) -> bool:
        """All micro-batches of the step are drawn."""
        return self.line.micro_batches == self.strategy.micro_batches

    @property
    def step_s(self) -> float:
        """End of what is drawn [s]; of the whole step its predicted seconds."""
        return self.line.makespan_s + sum(self.behind.values())


def drawing(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    strategy: Strategy,
    *,
    limit_bytes: float | None = None,
    every: bool = False,
) -> Drawing:
    """A step of a strategy, all its micro-batches or a readable number."""
    job = (model, workload, cluster, calibration)
    parts = anatomy(*job, strategy)
    count = strategy.micro_batches if every else drawn(strategy)
    line = timeline(strategy.schedule, parts.forward_VS, parts.backward_VS, parts.weights_VS, count)
    estimates = evaluate(*job, Strategies.of([strategy]), limit_bytes=limit_bytes)
    behind = {name: float(getattr(estimates.time, name)[0]) for name in BEHIND}
    whole_s = float(estimates.time.step_s[0]) - sum(behind.values())
    behind["straggler_s"] *= line.makespan_s / whole_s  # a share of the pipeline
    return Drawing(strategy=strategy, line=line, parts=parts, behind=behind, estimate=estimates.row(0))


def drawn(strategy: Strategy) -> int:
    """Micro-batches that show the beginning, a steady state and the end of a step.

    >>> from dataclasses import replace
    >>> one = Strategy(dp=1, tp=1, pp=4, layers=((1, 1, 1, 1),), recompute_full=(0,) * 4,
    ...                recompute_selective=(0,) * 4, micro_batches=64)
    >>> drawn(one), drawn(replace(one, micro_batches=6))
    (8, 6)
    """
    pp, count = strategy.pp, strategy.micro_batches
    rounds = max(ROUNDS_DRAWN, -(-LEAST_DRAWN // pp))
    return min(count, rounds * pp + count % pp)
