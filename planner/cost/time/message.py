"""Records of what travels between ranks: one collective, the groups it crosses, the parameters it carries.

What frameworks send is in `planner.cost.time.messages` and its two rival lists; groups come from
``planner.cluster.placement``.  All arrays are (C,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.cluster.placement import Group, place_on, strides
from planner.cost.memory.rules import rules_for
from planner.cost.parameters import table_split
from planner.cost.strategies import FloatArray, Strategies
from planner.cost.time.setting import Setting
from planner.errors import SpecError
from planner.model.records import DTYPE_BYTES

GroupName = Literal[
    "tp", "vocabulary", "ulysses", "ring", "ep", "etp", "ends", "replicas", "shard", "replica", "expert_shard"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Placed groups of each row of a table.

    ``vocabulary`` are the ranks over which the embedding is split, ``ep`` those that exchange tokens, ``etp`` those
    that hold parts of the same experts, ``ends`` the first and the last stage.  ``replicas`` hold the same parameters,
    ``shard`` those of them that share one copy of the optimizer states, ``replica`` the holders of equal shards;
    ``expert_shard`` the ranks with the same parts of the same experts.
    """

    tp: Group
    vocabulary: Group
    ulysses: Group
    ring: Group
    ep: Group
    etp: Group
    ends: Group
    replicas: Group
    shard: Group
    replica: Group
    expert_shard: Group

    def of(self, name: GroupName) -> Group:
        """Group by name."""
        group: Group = getattr(self, name)
        return group


def activation_bytes(setting: Setting) -> float:
    """Bytes of one element of an activation."""
    return float(DTYPE_BYTES[setting.workload.compute_dtype])


def place_groups(setting: Setting) -> Groups:
    """Where the groups of each row lie.

    Raises
    ------
    SpecError
        The experts of a row need more ranks than its stages have.
    """
    table, cluster = setting.table, setting.cluster
    _check_experts(table)
    kinds = strides(tp=table.tp, cp=table.cp, dp=table.dp, pp=table.pp, ep=table.ep, ulysses=table.ulysses_degree)
    replicas = table.dp * table.cp
    shard = np.where(table.zero_level > 0, np.minimum(table.optimizer_shard, replicas), 1)
    split = table_split(setting.model, table, rules_for(setting.workload))
    placed = {name: place_on(cluster, *kinds[name]) for name in ("tp", "ulysses", "ring")}
    return Groups(
        **placed,
        vocabulary=place_on(cluster, np.where(setting.model.vocab % split == 0, split, 1), 1),
        ep=place_on(cluster, table.ep, table.etp),
        etp=place_on(cluster, table.etp, 1),
        ends=place_on(cluster, *kinds["embedding"]),
        replicas=place_on(cluster, replicas, table.tp),
        shard=place_on(cluster, shard, table.tp),
        replica=place_on(cluster, replicas // shard, table.tp * shard),
        expert_shard=place_on(cluster, table.expert_copies, table.ep * table.etp),
    )


def _check_experts(table: Strategies) -> None:
    few = np.flatnonzero(table.expert_copies < 1.0)
    if len(few):
        s = table.row(int(few[0]))
        raise SpecError(
            f"ep={s.ep} x etp={s.etp} = {s.ep * s.etp} parts of the experts need more ranks than the dp={s.dp} x "
            f"cp={s.cp} x tp={s.tp} = {s.dp * s.cp * s.tp} of a stage; lower ep or etp."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """Equal collectives of one layer and micro-batch, or of one step.

    Attributes
    ----------
    group : str
        Field of `Groups`.
    op : {"allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"}
    size_bytes : ndarray, shape (C,)
        Bytes of one of them, as `planner.cluster.collectives` defines the size of an operation.
    forward, backward : ndarray, shape (C,)
        How many there are in the forward and in the backward pass; 0 where a row has none.
    again : ndarray, shape (C,), optional
        How many there are when the forward pass is repeated by full recompute; None: all of it.
    pieces : ndarray, shape (C,), or float
        Calls that one of them is made in, each with an equal part of the bytes: tensors, or buckets of them.
    """

    group: GroupName
    op: str
    size_bytes: FloatArray
    forward: FloatArray
    backward: FloatArray
    again: FloatArray | None = None
    pieces: FloatArray | float = 1.0

    @property
    def repeated(self) -> FloatArray:
        """How many there are in a repeated forward pass."""
        return self.forward if self.again is None else self.again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Parameters of one rank [count], shape (C,) or, by stage, (C, S).

    Attributes
    ----------
    dense, expert : ndarray
        Outside and inside routed experts.
    small, table : ndarray
        Those of ``dense`` in tensors below MindSpore's threshold of optimizer parallelism, and those in copies of the
        embedding.
    """

    dense: FloatArray
    expert: FloatArray
    small: FloatArray
    table: FloatArray
