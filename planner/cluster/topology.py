"""The cluster as a graph, and groups of ranks enumerated one by one.

Slow and plain on purpose: commands draw it, and tests hold the closed forms of `planner.cluster.placement` and the link
counts of `planner.cluster.collectives` against it.  Imports networkx only when a graph is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol

from planner.cluster.placement import pod_devices
from planner.cluster.records import Cluster

if TYPE_CHECKING:
    import networkx as nx

Groups = list[tuple[int, ...]]


class Degrees(Protocol):
    """What placing needs of a strategy."""

    @property
    def tp(self) -> int: ...  # noqa: D102
    @property
    def cp(self) -> int: ...  # noqa: D102
    @property
    def dp(self) -> int: ...  # noqa: D102
    @property
    def pp(self) -> int: ...  # noqa: D102
    @property
    def ep(self) -> int: ...  # noqa: D102
    @property
    def etp(self) -> int: ...  # noqa: D102


def graph(cluster: Cluster) -> nx.Graph[Any]:
    """Devices, links, switches and ports of a cluster.

    Nodes carry ``kind``: ``device`` (named by its number), ``bridge`` or ``switch`` of a node, ``superpod`` switch,
    ``port`` of a device, ``network``.  Edges carry ``kind`` (``link``, ``bridge``, ``superpod``, ``port``, ``network``)
    and ``bytes_per_s``, one direction, data sheet.

    Raises
    ------
    SpecError
        From `Cluster`: devices that do not fill whole nodes.
    """
    import networkx

    built: nx.Graph[Any] = networkx.Graph()
    for first in range(0, cluster.devices, cluster.hardware.devices_per_node):
        members = range(first, min(first + cluster.hardware.devices_per_node, cluster.devices))
        _wire_node(built, cluster, members)
    if cluster.nodes > 1:
        _wire_superpods(built, cluster)
        _wire_network(built, cluster)
    return built


def place_groups(cluster: Cluster, strategy: Degrees) -> dict[str, Groups]:
    """Ranks of every group of every kind; rank r sits on device r.

    Kinds are ``tp``, ``cp``, ``dp``, ``dp_cp``, ``pp``, ``etp``, ``ep`` and ``edp``, as in
    `planner.cluster.placement.strides`.  ``strategy`` is anything with degrees tp, cp, dp, pp, ep, etp; the product of
    the first four is the number of devices.
    """
    coordinates = [_coordinate(rank, strategy) for rank in range(cluster.devices)]
    fixed = {
        "tp": ("pp", "dp", "cp"),
        "cp": ("pp", "dp", "tp"),
        "dp": ("pp", "cp", "tp"),
        "dp_cp": ("pp", "tp"),
        "pp": ("dp", "cp", "tp"),
        "etp": ("pp", "edp", "ep"),
        "ep": ("pp", "edp", "etp"),
        "edp": ("pp", "ep", "etp"),
    }
    return {kind: _gathered(coordinates, axes) for kind, axes in fixed.items()}


def members_per_node(group: Sequence[int], devices_per_node: int) -> tuple[int, ...]:
    """How many members of a group sit in each node it touches, in node order.

    >>> members_per_node((4, 5, 6, 7, 8, 9), 8)
    (4, 2)
    """
    counts = Counter(rank // devices_per_node for rank in group)
    return tuple(counts[node] for node in sorted(counts))


def links_of(built: nx.Graph[Any], group: Sequence[int], device: int) -> int:
    """Direct links of a device to other members of its group."""
    return sum(built.has_edge(device, other) for other in group if other != device)


def describe(cluster: Cluster) -> str:
    """One line: how the devices are wired.

    >>> from planner.cluster.load import hardware
    >>> describe(Cluster(hardware=hardware("910B3"), devices=64))
    '64 x 910B3: 8 nodes of 8, full mesh of 28.0 GB/s links in a node, a 25.0 GB/s port per device between nodes'
    """
    hardware = cluster.hardware
    node, per_node = hardware.node, min(hardware.devices_per_node, cluster.devices)
    speed = f"{node.link_bytes_per_s / 1e9:.1f} GB/s"
    inside = {
        "mesh": f"full mesh of {speed} links",
        "quads": f"meshes of {node.quad_size} with {speed} links",
        "switch": f"switch of {speed} per device",
    }[node.kind]
    nodes = f"{cluster.nodes} node{'s' * (cluster.nodes > 1)} of {per_node}"
    text = f"{cluster.devices} x {hardware.name}: {nodes}, {inside} in a node"
    if hardware.superpod is not None and cluster.nodes > 1:
        text += f", {hardware.superpod.link_bytes_per_s / 1e9:.1f} GB/s in superpods of {pod_devices(cluster)}"
    if cluster.nodes > 1 and pod_devices(cluster) < cluster.devices:
        between = "superpods" if hardware.superpod is not None else "nodes"
        text += f", a {hardware.nic_bytes_per_s / 1e9:.1f} GB/s port per device between {between}"
    return text


def _coordinate(rank: int, strategy: Degrees) -> dict[str, int]:
    """Coordinates of a rank: tp fastest, then cp, dp and pp; etp fastest, then ep, over the ranks of a stage."""
    stage, inside = divmod(rank, strategy.tp * strategy.cp * strategy.dp)
    replica, rest = divmod(inside, strategy.tp * strategy.cp)
    chunk, shard = divmod(rest, strategy.tp)
    experts, part = divmod(inside, strategy.etp)
    copy, expert = divmod(experts, strategy.ep)
    return {"pp": stage, "dp": replica, "cp": chunk, "tp": shard, "etp": part, "ep": expert, "edp": copy}


def _gathered(coordinates: Sequence[dict[str, int]], fixed: tuple[str, ...]) -> Groups:
    """Ranks that agree on the ``fixed`` coordinates, each group in rank order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(coordinates):
        groups.setdefault(tuple(place[axis] for axis in fixed), []).append(rank)
    return [tuple(ranks) for ranks in groups.values()]


def _wire_node(built: nx.Graph[Any], cluster: Cluster, members: range) -> None:
    node = cluster.hardware.node
    built.add_nodes_from(members, kind="device")
    if node.kind == "switch":
        switch = ("switch", members.start // cluster.hardware.devices_per_node)
        built.add_node(switch, kind="switch")
        built.add_edges_from(((m, switch) for m in members), kind="link", bytes_per_s=node.link_bytes_per_s)
        return
    meshes = list(_quads(members, node.quad_size or len(members)))
    for mesh in meshes:
        built.add_edges_from(combinations(mesh, 2), kind="link", bytes_per_s=node.link_bytes_per_s)
    if len(meshes) > 1:
        bridge = ("bridge", members.start // cluster.hardware.devices_per_node)
        built.add_node(bridge, kind="bridge")
        built.add_edges_from(((m, bridge) for m in members), kind="bridge", bytes_per_s=node.bridge_bytes_per_s)


def _quads(members: range, size: int) -> Iterator[range]:
    for first in range(members.start, members.stop, size):
        yield range(first, min(first + size, members.stop))


def _wire_superpods(built: nx.Graph[Any], cluster: Cluster) -> None:
    superpod, per_pod = cluster.hardware.superpod, pod_devices(cluster)
    if superpod is None:
        return
    for device in range(cluster.devices):
        switch = ("superpod", device // per_pod)
        built.add_node(switch, kind="superpod")
        built.add_edge(device, switch, kind="superpod", bytes_per_s=superpod.link_bytes_per_s)


def _wire_network(built: nx.Graph[Any], cluster: Cluster) -> None:
    speed = cluster.hardware.nic_bytes_per_s
    built.add_node("network", kind="network")
    for device in range(cluster.devices):
        built.add_node(("port", device), kind="port")
        built.add_edge(device, ("port", device), kind="port", bytes_per_s=speed)
        built.add_edge(("port", device), "network", kind="network", bytes_per_s=speed)
