"""Recompute in MindSpeed-LLM scripts: one number for all stages on a node, so per stage where a stage is whole nodes.

The number of layers to recompute is an argument, and every process parses its own: a node whose processes all belong
to one pipeline stage gets that stage's number (ranks of a stage are neighbours: pipeline stages are the outermost
dimension of Megatron's rank order).  A node that holds several stages gets the largest of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cost.strategies import Strategy
from planner.dialects.mindspeed.model import Line
from planner.plan import Plan

GRANULARITY = "--recompute-granularity"
METHOD = "--recompute-method"
LAYERS = "--recompute-num-layers"
PER_RANK = "--enable-recompute-layers-per-pp-rank"
ACTIVATION = "--recompute-activation-function"
ACTIVATION_LAYERS = "--recompute-activation-function-num-layers"


@dataclass(frozen=True, slots=True)
class Nodes:
    """How the stages of a job lie on its nodes."""

    nodes: int
    per_node: int
    stages: int

    @classmethod
    def of(cls, plan: Plan) -> Nodes:
        """Nodes of a plan."""
        return cls(plan.nodes, min(plan.devices, plan.devices_per_node), plan.strategy.pp)

    def stages_of(self, node: int) -> range:
        """Stages that have ranks on a node.

        >>> [list(Nodes(2, 8, 4).stages_of(node)) for node in range(2)], list(Nodes(4, 8, 2).stages_of(3))
        ([[0, 1], [2, 3]], [1])
        """
        share = self.nodes * self.per_node // self.stages
        first, last = node * self.per_node, (node + 1) * self.per_node - 1
        return range(first // share, last // share + 1)

    def numbers(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Number of each node: the most that a stage on it asks for, the same on all nodes of a stage.

        >>> Nodes(8, 8, 4).numbers((10, 8, 6, 4)), Nodes(2, 8, 4).numbers((3, 1, 2, 0)), Nodes(3, 8, 2).numbers((3, 1))
        ((10, 10, 8, 8, 6, 6, 4, 4), (3, 2), (3, 3, 3))
        """
        share = self.nodes * self.per_node // self.stages
        if share % self.per_node and self.per_node % share:
            return (max(counts),) * self.nodes  # a stage that shares one of its nodes would get two numbers
        return tuple(max(counts[stage] for stage in self.stages_of(node)) for node in range(self.nodes))

    def counts(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Number that each stage gets: that of its first node."""
        share = self.nodes * self.per_node // self.stages
        return tuple(numbers[stage * share // self.per_node] for stage in range(self.stages))


def held(strategy: Strategy, nodes: Nodes | None) -> Strategy:
    """The strategy as a script says it: never less recompute than asked for.

    Parameters
    ----------
    strategy : Strategy
    nodes : Nodes, optional
        Where stages lie, for a script with a number for each node; without it one number serves all stages.
    """
    full = _held(strategy.recompute_full, strategy.layers_per_stage, nodes)
    rest = tuple(n - f for n, f in zip(strategy.layers_per_stage, full, strict=True))
    return replace(strategy, recompute_full=full, recompute_selective=_held(strategy.recompute_selective, rest, nodes))


def _held(counts: Sequence[int], most: Sequence[int], nodes: Nodes | None) -> tuple[int, ...]:
    given = nodes.counts(nodes.numbers(counts)) if nodes else (max(counts),) * len(counts)
    return tuple(min(count, limit) for count, limit in zip(given, most, strict=True))


def lines(strategy: Strategy) -> list[Line]:
    """Flags of one number for all stages."""
    s = strategy
    full, selective = max(s.recompute_full), max(s.recompute_selective)
    result: list[Line] = []
    if everything(s):
        return [(GRANULARITY, "full", "every layer"), (METHOD, "uniform", ""),
                (LAYERS, 1, "kept inputs: every layer's")]  # fmt: skip
    if full:
        result += [(GRANULARITY, "full", ""), (METHOD, "block", "the first of a stage"),
                   (LAYERS, full, "layers of each stage")]  # fmt: skip
        if s.vpp > 1:
            result.append((PER_RANK, None, "counted over all chunks of a stage"))
    if selective:
        result.append((ACTIVATION, None, "only the activation of the MLP"))
        result.append((ACTIVATION_LAYERS, selective, "further layers of each stage"))
    return result


def everything(strategy: Strategy) -> bool:
    """Whether every layer is recomputed whole."""
    return all(f == n for f, n in zip(strategy.recompute_full, strategy.layers_per_stage, strict=True))


def by_node(plan: Plan) -> list[str]:
    """Lines of a script that give every node its own number; none when one number serves all."""
    nodes, s = Nodes.of(plan), plan.strategy
    full, selective = nodes.numbers(s.recompute_full), nodes.numbers(s.recompute_selective)
    if everything(s) or (len(set(full)) == 1 and len(set(selective)) == 1):
        return []
    result = ["# a node holds whole stages, so each node gets the number of its own stage", "recompute=()"]
    if any(full):
        flags = f'{GRANULARITY} full {METHOD} block {LAYERS} "${{full_of_node[node_rank]}}"'
        result += _conditional("full_of_node", full, flags + (f" {PER_RANK}" if s.vpp > 1 else ""))
    if any(selective):
        flags = f'{ACTIVATION} {ACTIVATION_LAYERS} "${{activation_of_node[node_rank]}}"'
        result += _conditional("activation_of_node", selective, flags)
    return [*result, ""]


def _conditional(name: str, numbers: Sequence[int], flags: str) -> list[str]:
    listed = f"{name}=({' '.join(map(str, numbers))})"
    if all(numbers):
        return [listed, f"recompute+=({flags})"]
    return [listed, f"if (( {name}[node_rank] > 0 )); then", f"  recompute+=({flags})", "fi"]
