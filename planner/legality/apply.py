"""Legality of strategies: the ordered rules, what they remove from a table, what they say about one strategy.

The rules themselves, predicate and message, stand by subject in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.strategies import BoolArray, IntArray, Strategies, Strategy
from planner.errors import SpecError
from planner.legality.context import Context, Rule
from planner.legality.rules import LAYER_RULES, RULES, SCALAR_RULES

__all__ = [
    "LAYER_RULES",
    "RULES",
    "SCALAR_RULES",
    "Context",
    "Rule",
    "Violation",
    "apply_rules",
    "require_legal",
    "violations",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a strategy breaks, and the message for its user."""

    code: str
    message: str


def apply_rules(
    context: Context,
    table: Strategies,
    rules: Sequence[Rule] = RULES,
    weights: IntArray | None = None,
) -> tuple[BoolArray, dict[str, int]]:
    """Rows that keep every rule, and how many rows each rule was the first to remove.

    Parameters
    ----------
    rules : sequence of Rule
        All of them, or a part.
    weights : int array, shape (C,), optional
        Candidates that each row stands for; 1 each.

    Returns
    -------
    mask : bool array, shape (C,)
    removed : dict of str to int
        Count by rule code, rules in order; ``mask.sum() + sum(removed.values()) == len(table)``.
    """
    alive = np.ones(len(table), bool)
    counted = np.ones(len(table), np.int64) if weights is None else weights
    removed: dict[str, int] = {}
    for rule in rules:
        kept = alive & rule.holds(context, table)
        removed[rule.code] = int(counted[alive & ~kept].sum())
        alive = kept
    return alive, removed


def violations(context: Context, strategy: Strategy) -> list[Violation]:
    """Every rule that the strategy breaks, in the order of ``RULES``; empty for a legal strategy."""
    table = Strategies.of([strategy])
    return [
        Violation(rule.code, rule.explain(context, strategy)) for rule in RULES if not rule.holds(context, table)[0]
    ]


def require_legal(context: Context, strategy: Strategy) -> None:
    """Raise `SpecError` with every broken rule's message unless the strategy is legal."""
    found = violations(context, strategy)
    if found:
        raise SpecError("\n".join(violation.message for violation in found))
