"""Which devices a group of ranks lands on, in closed form over arrays.

Ranks are numbered with tensor parallel fastest, then context, data and pipeline parallel slowest, as MindSpore,
MindFormers and Megatron do; rank r sits on device r.  A group of one kind is then an arithmetic progression: ``size``
ranks, ``stride`` apart.  Expert-parallel groups are consecutive ranks of a stage (MindFormers lays dp x cp x tp out as
(rest, ep)).  ``planner.cluster.topology`` enumerates the same groups one by one; tests hold the two together.

All arrays broadcast; a scalar gives arrays without axes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from planner.cluster.records import Cluster

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Where the groups of one kind lie; arrays of one shape.

    A kind has many groups (one per remaining rank coordinate); when they lie differently, the one that spans most
    nodes is described, since every step waits for it.

    Attributes
    ----------
    size : ndarray of int
        Ranks in a group.
    inner : ndarray of int
        Members that share a node (rounded down where nodes hold unequal numbers).
    outer : ndarray of int
        Nodes spanned.
    pods : ndarray of int
        Superpods spanned; equal to ``outer`` where there are no superpods.
    quad : ndarray of int
        Members that share one sub-mesh of a node (910A); equal to ``inner`` where nodes are not divided.
    even : ndarray of bool
        Every node, and every superpod, holds the same number of members of every group.
    per_node : ndarray of int
        Groups of this kind with members in one node at the same time.  They share its network ports: a group
        drives the ``inner`` ports of its own members, and ``per_node * inner`` ports are busy.
    """

    size: IntArray
    inner: IntArray
    outer: IntArray
    pods: IntArray
    quad: IntArray
    even: BoolArray
    per_node: IntArray

    @property
    def straddles(self) -> BoolArray:
        """True where nodes hold unequal numbers of members: HCCL then loses its two-level algorithms."""
        return ~self.even

    @property
    def domain(self) -> IntArray:
        """Members that share a fast domain: a superpod where there are any, else a node."""
        members: IntArray = self.size // self.pods
        return members

    def __len__(self) -> int:
        return len(self.size)

    def __getitem__(self, rows: Any) -> Group:
        return Group(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def place(
    size: ArrayLike,
    stride: ArrayLike,
    devices_per_node: ArrayLike,
    *,
    devices_per_pod: int = 0,
    quad_size: int = 0,
) -> Group:
    """Place groups of ``size`` ranks, ``stride`` apart, on nodes of ``devices_per_node``.

    Parameters
    ----------
    size, stride : array_like of int
        Ranks of a group and their distance; see `strides`.
    devices_per_node : array_like of int
        Ranks that share a node.  Pass no more than the job has: `place_on` does.
    devices_per_pod : int
        Ranks that share a superpod, 0 without superpods.
    quad_size : int
        Devices of one sub-mesh of a node, 0 when nodes are not divided.

    Returns
    -------
    Group

    Examples
    --------
    Data parallel 4 over tensor parallel 4 on nodes of 8: two members in each of two nodes.

    >>> group = place(4, 4, 8)
    >>> int(group.inner), int(group.outer), bool(group.straddles), int(group.per_node)
    (2, 2, False, 4)
    """
    size, stride = np.broadcast_arrays(np.asarray(size, np.int64), np.asarray(stride, np.int64))
    node = np.asarray(devices_per_node, np.int64)
    outer = _spanned(size, stride, node)
    inner = size // outer
    even = _even(size, stride, node)
    pods, quad = outer, inner
    if devices_per_pod:
        pod = np.asarray(devices_per_pod, np.int64)
        pods = _spanned(size, stride, pod)
        even = even & _even(size, stride, pod)
    if quad_size:
        quad = size // _spanned(size, stride, np.asarray(quad_size, np.int64))
    per_node = np.maximum(node // inner, 1)
    return Group(size=size, inner=inner, outer=outer, pods=pods, quad=quad, even=even, per_node=per_node)


def place_on(cluster: Cluster, size: ArrayLike, stride: ArrayLike) -> Group:
    """Place groups on a cluster: its nodes, its superpods if it has any, and no more devices than the job uses."""
    hardware = cluster.hardware
    return place(
        size,
        stride,
        min(hardware.devices_per_node, cluster.devices),
        devices_per_pod=pod_devices(cluster),
        quad_size=hardware.node.quad_size,
    )


def pod_devices(cluster: Cluster) -> int:
    """Devices the job uses in each superpod; 0 without superpods.

    Superpods should hold equal numbers of servers (HCCL user guide, constraints page): 1024 dies on superpods of 768
    use two of 512.  Where that is impossible superpods are filled one after another.
    """
    hardware, devices = cluster.hardware, cluster.devices
    if hardware.superpod is None:
        return 0
    pods = -(-devices // hardware.superpod.devices)
    equal = devices % pods == 0 and (devices // pods) % min(hardware.devices_per_node, devices) == 0
    return devices // pods if equal else hardware.superpod.devices


def strides(
    *,
    tp: ArrayLike,
    cp: ArrayLike,
    dp: ArrayLike,
    pp: ArrayLike,
    ep: ArrayLike = 1,
    ulysses: ArrayLike = 1,
    etp: ArrayLike = 1,
) -> dict[str, tuple[IntArray, IntArray]]:
    """(size, stride) of every kind of group.

    ``dp_cp`` holds the ranks among which gradients are reduced and optimizer states sharded, ``edp`` the same for
    experts, of which ``etp`` consecutive ranks hold the parts of each; ``ulysses`` and ``ring`` divide cp, head
    exchange between neighbours; ``embedding`` joins first and last stage.

    >>> kinds = strides(tp=4, cp=1, dp=2, pp=8)
    >>> [(name, int(size), int(step)) for name, (size, step) in kinds.items() if size > 1]
    [('tp', 4, 1), ('dp', 2, 4), ('dp_cp', 2, 4), ('pp', 8, 8), ('edp', 8, 1), ('embedding', 2, 56)]
    """
    tp, cp, dp, pp, ep, ulysses, etp = (np.asarray(value, np.int64) for value in (tp, cp, dp, pp, ep, ulysses, etp))
    stage = tp * cp * dp
    one = np.ones_like(stage)
    return {
        "tp": (tp, one),
        "cp": (cp, tp),
        "ulysses": (ulysses, tp),
        "ring": (cp // ulysses, tp * ulysses),
        "dp": (dp, tp * cp),
        "dp_cp": (dp * cp, tp),
        "pp": (pp, stage),
        "etp": (etp, one),
        "ep": (ep, etp * one),
        "edp": (stage // (ep * etp), ep * etp),
        "embedding": (np.minimum(pp, 2), stage * np.maximum(pp - 1, 1)),
    }


def ends_lie_alike(devices: int, stages: int) -> bool:
    """Whether MindSpore can make a group of ranks of the first and the last of equal pipeline stages.

    Its front end makes a group only of ranks that lie alike on every node of eight (``DeviceManager`` of MindSpore 2.9,
    seen in DryRuns: {0, 4}, {0, 8} and {0, 48} are made, {0, 6}, {0, 12} and {0, 1, 6, 7} are refused).

    >>> ends_lie_alike(8, 2), ends_lie_alike(24, 2), ends_lie_alike(8, 4), ends_lie_alike(32, 4)
    (True, False, False, True)
    """
    first_of_last = devices - devices // stages
    return first_of_last % 8 == 0 or (stages == 2 and first_of_last in {1, 2, 4})


def legal_on_quads(group: Group, quad_size: int = 4) -> BoolArray:
    """Groups that HCCL accepts on a 910A node of two quads.

    A group inside one server has 1, 2, 4 or 8 members, and 2 or 4 of them keep within one quad; a group over
    several servers has 1, 2, 4 or 8 members in each.  Source: HCCL user guide, constraints page (Atlas training
    series).  A published 16-card 910A run has tp 4, dp 4, hence two members in different quads of each server, so
    the quad rule is not applied to groups that span servers.

    >>> legal_on_quads(place([2, 2, 8], [1, 4, 1], 8, quad_size=4)).tolist()
    [True, False, True]
    """
    counts = np.isin(group.inner, (1, 2, 4, 8)) & group.even
    split = (group.outer == 1) & (group.inner <= quad_size) & (group.quad < group.inner)
    legal: BoolArray = counts & ~split
    return legal


def _spanned(size: IntArray, stride: IntArray, domain: IntArray) -> IntArray:
    """Domains touched by the group that touches most.

    Groups start at k * size * stride + j, 0 <= j < stride, so modulo the domain their starts take the values
    m * d + j with d = gcd(size * stride, domain); the latest start decides.  Strides of a domain or more put every
    member into a domain of its own; smaller ones skip none.
    """
    step = np.gcd(size * stride, domain)
    latest = domain - step + np.minimum(stride, step) - 1
    touched: IntArray = np.where(stride >= domain, size, (latest + (size - 1) * stride) // domain + 1)
    return touched


def _even(size: IntArray, stride: IntArray, domain: IntArray) -> BoolArray:
    """Whether every group puts the same number of members into every domain it touches."""
    room = np.maximum(domain // stride, 1)
    fits = (domain % stride == 0) & ((room % size == 0) | (size % room == 0))
    even: BoolArray = (size == 1) | (stride >= domain) | fits
    return even
