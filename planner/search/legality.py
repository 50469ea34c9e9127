"""Legality of strategies: the ordered rules, what they remove from a table, what they say about one strategy.

The rules themselves, predicate and message, are in ``planner.search.rules``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.errors import SpecError
from planner.search.rules import LAYER_RULES, RULES, SCALAR_RULES, Context, Rule

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
    context: Context, table: Strategies, rules: Sequence[Rule] | None = None
) -> tuple[BoolArray, dict[str, int]]:
    """Rows that keep every rule, and how many rows each rule was the first to remove.

    Returns
    -------
    mask : bool array, shape (C,)
    removed : dict of str to int
        Count by rule code, rules in order; ``mask.sum() + sum(removed.values()) == len(table)``.
    """
    alive = np.ones(len(table), bool)
    removed: dict[str, int] = {}
    for rule in RULES if rules is None else rules:
        kept = alive & rule.holds(context, table)
        removed[rule.code] = int(alive.sum() - kept.sum())
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
