"""Seconds of handing a micro-batch from stage to stage, on the links that lie between the two.

Rank r sits on device r and a stage is a row of consecutive ranks, so the boundary before stage i lies between two nodes
when any of its pairs of ranks does.  A pass ends with what it sends: forward to the stage behind, backward to the one
before.  Suffixes: ``C`` candidates, ``S`` stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cluster.placement import Group, pod_devices
from planner.cluster.records import Cluster
from planner.cost.strategies import SCHEDULES, BoolArray, FloatArray, IntArray
from planner.cost.time.communication import collective_s
from planner.cost.time.messages import boundary_bytes
from planner.cost.time.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HandOver:
    """Seconds and number of what each stage sends in one micro-batch, shape (C, S); all its chunks."""

    forward_s: FloatArray
    backward_s: FloatArray
    forward: FloatArray
    backward: FloatArray


def _pair(inner: int, outer: int, pods: int, quad: int) -> Group:
    """Two ranks that share so much."""
    numbers = {"size": 2, "inner": inner, "outer": outer, "pods": pods, "quad": quad, "per_node": 1}
    return Group(**{name: np.asarray(n, np.int64) for name, n in numbers.items()}, even=np.asarray(True))


_NEAR: Final = _pair(2, 1, 1, 2)
_BRIDGED: Final = _pair(2, 1, 1, 1)
_IN_POD: Final = _pair(1, 2, 1, 1)
_FAR: Final = _pair(1, 2, 2, 1)


def hand_over(setting: Setting, turn_C: IntArray | None = None) -> HandOver:
    """What every stage sends in one micro-batch.

    Interleaved chunks cross every boundary once a chunk, and go from the last stage back to the first between chunks; a
    V passes every boundary in both directions and turns where it is.

    Parameters
    ----------
    turn_C : ndarray of int, optional
        Place that receives nothing from the one before, where chunks stand in a row as stages.
    """
    table = setting.table
    before_CS, around_C = boundary_s(setting)
    stage = np.arange(table.stages)[None, :]
    last = stage == table.pp[:, None] - 1
    in_CS = (stage > 0) & table.stage_mask_CS
    if turn_C is not None:
        in_CS = in_CS & (stage != turn_C[:, None])
    left_CS = np.where(in_CS, before_CS, 0.0)
    left = in_CS.astype(np.float64)
    right_CS, right = _behind(left_CS), _behind(left)
    chunks = table.vpp[:, None].astype(np.float64)
    wraps = (chunks - 1.0) * (table.pp[:, None] > 1)
    bent = (table.schedule == SCHEDULES.index("zero_bubble_v"))[:, None]

    def both(one: FloatArray, other: FloatArray, around: FloatArray, end: BoolArray) -> FloatArray:
        turning = chunks * one + np.where(end, wraps * around, 0.0)
        return np.where(bent, one + other, turning)

    once = np.ones((len(table), 1))
    return HandOver(
        forward_s=both(right_CS, left_CS, around_C[:, None], last),
        backward_s=both(left_CS, right_CS, around_C[:, None], stage == 0),
        forward=both(right, left, once, last),
        backward=both(left, right, once, stage == 0),
    )


def _behind(values_CS: FloatArray) -> FloatArray:
    """Values of the next stage, 0 behind the last column."""
    out = np.zeros_like(values_CS)
    out[:, :-1] = values_CS[:, 1:]
    return out


def boundary_s(setting: Setting) -> tuple[FloatArray, FloatArray]:
    """Seconds of one transfer over the boundary before each stage (C, S), and from the last to the first stage (C,)."""
    cluster, table = setting.cluster, setting.table
    size = boundary_bytes(setting)
    near = np.where(table.pp > 1, collective_s(setting, "sendrecv", size, _NEAR), 0.0)
    before_CS, around_C = np.repeat(near[:, None], table.stages, axis=1), near
    for devices, pair in _domains(cluster):
        before, around = crossed(setting, devices)
        if before.any() or around.any():
            slower = collective_s(setting, "sendrecv", size, pair)
            before_CS = np.where(before, slower[:, None], before_CS)
            around_C = np.where(around, slower, around_C)
    return before_CS, around_C


def _domains(cluster: Cluster) -> list[tuple[int, Group]]:
    """Devices of each domain inside which links are faster, smallest first, and a pair on two of them."""
    hardware = cluster.hardware
    found = []
    if hardware.node.quad_size:
        found.append((hardware.node.quad_size, _BRIDGED))
    if cluster.nodes > 1:
        found.append((hardware.devices_per_node, _IN_POD if hardware.superpod else _FAR))
        pod = pod_devices(cluster)
        if pod and pod < cluster.devices:
            found.append((pod, _FAR))
    return found


def crossed(setting: Setting, devices: int) -> tuple[BoolArray, BoolArray]:
    """Whether the boundary before each stage lies between domains (C, S), and the way from the last to the first."""
    table = setting.table
    ranks = (table.tp * table.cp * table.dp)[:, None]
    stage = np.arange(table.stages)[None, :]
    before = ((stage + 1) * ranks - 1) // devices != np.maximum(stage - 1, 0) * ranks // devices
    around = setting.cluster.devices > devices
    return before & (stage > 0), np.full(len(table), around)
