"""Communicators of a rank: which groups a framework makes for a strategy, whether it sends anything over them or not.

Every communicator owns two buffers of HCCL_BUFFSIZE, so their number is memory.  MindFormers' groups are those that
MindSpore logs while it compiles (``Create collective communication group``; mindspore 2.9.0, mindformers 1.9.0):
MindFormers makes some by name, the graph compiler one for each further list of ranks that some tensor needs.  Groups of
one rank hold nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner import frameworks
from planner.cost.strategies import Strategy
from planner.frameworks import FrameworkName

Ranks = tuple[int, ...]
#: Rank order of a stage, closest first: what each axis steps over.
_INSIDE: Final = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One communicator: what it is for, and its ranks."""

    name: str
    ranks: Ranks


def groups(strategy: Strategy, framework: FrameworkName, *, experts: bool, stage: int = 0) -> tuple[Group, ...]:
    """Communicators of the first rank of a stage; none on a single device.

    Parameters
    ----------
    experts : bool
        Whether the network has routed experts.

    >>> tiny = Strategy(dp=2, tp=2, pp=2, layers=((2, 2),), recompute_full=(0, 0), recompute_selective=(0, 0),
    ...                 micro_batches=2)
    >>> [(group.name, group.ranks) for group in groups(tiny, "mindformers-legacy", experts=False)][1:4]
    [('pp', (0, 4)), ('pp, send and receive', (0, 4)), ('stage', (0, 1, 2, 3))]
    """
    runs_on = frameworks.of(framework)
    if runs_on.dialect == "mcore":
        own, compiled = _named(strategy, experts, stage), _compiled(strategy, experts, stage)
    elif runs_on.dialect == "legacy":
        own = [Group(name="pp", ranks=_along(strategy, stage, "pp"))]
        compiled = [group for group in _compiled(strategy, experts, stage) if group.name != "batch"]
    else:
        own, compiled = _torch(strategy, experts, stage), []
    found = [Group(name="world", ranks=tuple(range(strategy.devices))), *own]
    if runs_on.graph:
        found.append(Group(name="pp, send and receive", ranks=_along(strategy, stage, "pp")))
    for group in compiled:
        if group.ranks not in {known.ranks for known in found}:
            found.append(group)
    return tuple(group for group in found if len(group.ranks) > 1)


def _named(s: Strategy, experts: bool, stage: int) -> list[Group]:
    """What mcore networks make themselves.

    ``initialize_model_parallel`` orders ranks tp, pp, dp, so its data-parallel group is not the one that gradients use;
    the embedding makes its tensor-parallel group again, which an expert group of the same ranks shares.
    """
    first, column = stage * s.tp * s.cp * s.dp, s.tp * s.pp
    start = first % column + first // (column * s.dp) * column * s.dp
    tensor = _along(s, stage, "tp")
    found = [
        Group(name="dp of initialize_model_parallel", ranks=tuple(start + column * step for step in range(s.dp))),
        Group(name="tp", ranks=tensor),
        Group(name="tp of the embedding", ranks=tensor),
        Group(name="pp", ranks=_along(s, stage, "pp")),
    ]
    exchange = tuple(range(first, first + s.ep))
    if experts and exchange != tensor:
        found.append(Group(name="ep", ranks=exchange))
    return found


def _compiled(s: Strategy, experts: bool, stage: int) -> list[Group]:
    """Lists of ranks that the compiler needs: batches and their broadcast, whole stages, weights, context, experts."""
    wanted: list[tuple[str, Sequence[str]]] = [
        ("batch", ("tp", "cp", "pp")),
        ("stage", ("tp", "cp", "dp")),
        ("tp", ("tp",)),
        ("dp x cp", ("dp", "cp")),
    ]
    if s.cp > 1:
        wanted += [("cp", ("cp",)), ("dp x tp", ("dp", "tp")), ("tp x cp", ("tp", "cp"))]
    found = [Group(name=name, ranks=_along(s, stage, *axes)) for name, axes in wanted]
    if experts and s.ep > 1:
        first, size = stage * s.tp * s.cp * s.dp, s.tp * s.cp * s.dp
        found.append(Group(name="copies of experts", ranks=tuple(range(first, first + size, s.ep * s.etp))))
    return found


def _torch(s: Strategy, experts: bool, stage: int) -> list[Group]:
    """Megatron's dimensions: tp, dp, pp, cp; those of experts; the ends of the pipeline for embeddings."""
    axes = [(name, _along(s, stage, name)) for name in ("tp", "dp", "pp", "cp")]
    if experts:
        first, size = stage * s.tp * s.cp * s.dp, s.tp * s.cp * s.dp
        parts = s.ep * s.etp
        axes += [("ep", tuple(range(first, first + parts, s.etp))), ("etp", tuple(range(first, first + s.etp)))]
        axes += [("copies of experts", tuple(range(first, first + size, parts)))] if parts > 1 else []
    if s.pp > 1:
        column = _along(s, stage, "pp")
        axes.append(("embedding", (column[0], column[-1])))
    return [Group(name=name, ranks=ranks) for name, ranks in axes]


def _along(s: Strategy, stage: int, *axes: str) -> Ranks:
    """Ranks that differ from the stage's first one along these axes only."""
    ranks, stride = [0 if "pp" in axes else stage * s.tp * s.cp * s.dp], 1
    for axis in _INSIDE:
        size = getattr(s, axis)
        if axis in axes:
            ranks = [rank + stride * step for step in range(size) for rank in ranks]
        stride *= size
    return tuple(ranks)
