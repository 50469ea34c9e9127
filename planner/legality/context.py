"""What a strategy is judged against, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cluster.records import Cluster
from planner.cost.strategies import CP_ALGORITHMS, SCHEDULES, BoolArray, Strategies, Strategy
from planner.frameworks import Framework
from planner.model.records import Model, Workload

RING, ULYSSES, HYBRID = (CP_ALGORITHMS.index(name) for name in ("ring", "ulysses", "hybrid"))
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE_V, SEQPIPE = (
    SCHEDULES.index(name) for name in ("gpipe", "1f1b", "interleaved", "zero_bubble_v", "seqpipe")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a strategy is judged against.

    Attributes
    ----------
    tp_across_nodes : bool
        Tensor-parallel groups may span nodes; only when the user asks for it.
    """

    model: Model
    workload: Workload
    cluster: Cluster
    tp_across_nodes: bool = False

    @property
    def framework(self) -> str:
        """Framework whose checks apply."""
        return self.workload.framework

    @property
    def runs_on(self) -> Framework:
        """Its facts."""
        return self.workload.runs_on

    @property
    def node(self) -> int:
        """Devices of one node, or all of them when fewer."""
        return min(self.cluster.hardware.devices_per_node, self.cluster.devices)


@dataclass(frozen=True, slots=True)
class Rule:
    """One legality rule.

    Attributes
    ----------
    code : str
        Short name, used in counts and messages.
    demand : str
        What the rule asks for, one line.
    holds : callable
        (Context, Strategies) -> bool array (C,), True where the rule is kept.
    explain : callable
        (Context, Strategy that breaks it) -> message with value, legal values and next step.
    reads_layers : bool
        The predicate looks at layers or recompute per stage; the others may be applied before layouts are laid out.
    """

    code: str
    demand: str
    holds: Callable[[Context, Strategies], BoolArray]
    explain: Callable[[Context, Strategy], str]
    reads_layers: bool = False


def divisors(number: int) -> tuple[int, ...]:
    """Divisors in rising order.

    >>> divisors(28)
    (1, 2, 4, 7, 14, 28)
    """
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(low + [number // d for d in reversed(low) if d * d != number])


def listed(values: Sequence[int], most: int = 12) -> str:
    """Legal values as a message lists them."""
    shown = ", ".join(str(v) for v in values[:most])
    return shown + (", ..." if len(values) > most else "")


def rows(table: Strategies, holds: ArrayLike) -> BoolArray:
    """Answer of a predicate as one boolean a row."""
    return np.broadcast_to(np.asarray(holds, bool), len(table))
