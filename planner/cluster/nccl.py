"""NCCL's ring and tree on GPU nodes, for checking the time model against published GPU runs.

NCCL picks the cheapest of algorithm x protocol by its own model (NVIDIA/nccl, src/graph/tuning.cc): a base latency,
latencies per hop inside a node and between nodes, and a bus bandwidth.  The LL protocol has short hops and half the
bandwidth, Simple the opposite; LL128 is left out.  Rings and trees of a group over several nodes use the ports of all
its members in a node, so their bus bandwidth is the smaller of one device's NVLink and ``inner`` ports.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cluster.algorithms import FloatArray, Op, ceil_log2
from planner.cluster.hccl import Option, always
from planner.cluster.placement import Group
from planner.cluster.rates import Rates


class Protocol(NamedTuple):
    """Latencies [s] and bandwidth share of one NCCL protocol."""

    base_s: float
    hop_s: float
    net_hop_s: float
    share: float


def protocols(rates: Rates) -> tuple[Protocol, Protocol]:
    """LL and Simple."""
    hardware = rates.hardware
    return (
        Protocol(
            rates["nccl_base_ll_s"], hardware.node.latency_s, hardware.nic_latency_s, rates["nccl_ll_frac"]
        ),
        Protocol(rates["nccl_base_simple_s"], rates["nccl_hop_simple_s"], rates["nccl_net_hop_simple_s"], 1.0),
    )  # fmt: skip


def bus_bytes_per_s(op: Op, group: Group, rates: Rates) -> FloatArray:
    """Bandwidth at which a ring moves bytes past each member [bytes/s]."""
    link, port = rates.link_bytes_per_s("node", op), rates.link_bytes_per_s("net", op)
    bus: FloatArray = np.where(group.outer > 1, np.minimum(link, group.inner * port), link)
    return bus


def ring(op: Op, size: FloatArray, group: Group, rates: Rates, protocol: Protocol) -> FloatArray:
    """Ring: p - 1 steps, twice for an all-reduce; n (p-1)/p bytes past each member [s]."""
    p = group.size.astype(np.float64)
    rounds = 2 if op == "allreduce" else 1
    between = np.where(group.outer > 1, group.outer - 1, 0)
    hops = between * protocol.net_hop_s + (p - 1 - between) * protocol.hop_s
    moved = (p - 1) / p * size / (bus_bytes_per_s(op, group, rates) * protocol.share)
    time: FloatArray = protocol.base_s + rounds * (hops + moved)
    return time


def tree(size: FloatArray, group: Group, rates: Rates, protocol: Protocol) -> FloatArray:
    """All-reduce over a double binary tree of nodes, chains inside them: 2 n bytes past each member [s]."""
    chain = np.maximum(group.size // group.outer - 1, 0)
    hops = chain * protocol.hop_s + ceil_log2(group.outer) * protocol.net_hop_s
    bus = bus_bytes_per_s("allreduce", group, rates) * (protocol.share * rates["nccl_tree_frac"])
    time: FloatArray = protocol.base_s + 2 * (hops + size / bus)
    return time


def alltoall(size: FloatArray, group: Group, rates: Rates) -> FloatArray:
    """All-to-all: members of the node over NVLink, all others over the device's own port, at the same time [s]."""
    p = group.size.astype(np.float64)
    protocol = protocols(rates)[1]
    inside = (group.inner - 1) / p * size / rates.link_bytes_per_s("node", "alltoall")
    between = (p - group.inner) / p * size / rates.link_bytes_per_s("net", "alltoall")
    hop = np.where(group.outer > 1, protocol.net_hop_s, protocol.hop_s)
    time: FloatArray = protocol.base_s + hop + np.maximum(inside, between)
    return time


def options(op: Op, size: FloatArray, group: Group, rates: Rates) -> list[Option]:
    """NCCL's algorithms; where several could run, the cheapest is the one that holds."""
    if op == "alltoall":
        return [Option("pairwise", always, lambda: alltoall(size, group, rates), True)]
    low, simple = protocols(rates)
    if op == "sendrecv":
        link, port = rates.link_bytes_per_s("node", op), rates.link_bytes_per_s("net", op)
        near = simple.base_s + simple.hop_s + size / link + np.zeros(group.size.shape)
        far = simple.base_s + simple.net_hop_s + size / port + np.zeros(group.size.shape)
        return [
            Option("link", lambda: group.outer == 1, lambda: near, False),
            Option("port", always, lambda: far, True),
        ]
    rings = np.minimum(ring(op, size, group, rates, low), ring(op, size, group, rates, simple))
    if op != "allreduce":
        return [Option("ring", always, lambda: rings, True)]
    trees = np.minimum(tree(size, group, rates, low), tree(size, group, rates, simple))
    return [Option("ring", lambda: rings <= trees, lambda: rings, True), Option("tree", always, lambda: trees, True)]
