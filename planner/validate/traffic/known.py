"""What MindFormers' graph mode exchanges beside, or instead of, what the time model prices, and why.

Each rule was read in compiled graphs (mindspore 2.9.0, mindformers 1.9.0; docs/dryrun.md) and gives number and bytes
for one rank of one stage in one step.  Both are positive where the compiler has more than the planner.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.time.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One known difference, compiled minus planned.

    Attributes
    ----------
    group, primitive : str
        Row of `planner.validate.traffic.comparison`.
    count : float
        Collectives; 0 for gradients and parameters, whose number is not compared.
    size_bytes : float
        Bytes of all of them.
    why : str
    """

    group: str
    primitive: str
    count: float
    size_bytes: float
    why: str


def known_differences(given: Setting, stage: int, *, legacy: bool) -> tuple[Known, ...]:
    """Differences of one stage under one strategy; groups of one rank have none."""
    return ()
