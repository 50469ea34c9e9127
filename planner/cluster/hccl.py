"""Which algorithm HCCL runs for a collective, and what it then costs.

Selection follows HCCL's own rules (source of 2025: yzh1703456/cann-hccl, impl/operator/coll_alg_operator.cc and
alg_configurator.cc; hicann/hccl, docs/zh/user_guide):

* inside a server: a full mesh on 910B, a mesh in a quad or a ring of eight on 910A, rings on A3 and PCIe;
* 910B all-reduce in one server: one shot up to 256 KB (64 KB in graph mode), reduce-scatter and all-gather above;
* 910B over servers, single-operator mode, more than one card a server: pipeline for all-gather and reduce-scatter of
  32 KB a rank and more, for all-reduce of 1 MB a rank and more;
* else between servers the cheapest of ring, NHR and H-D_R by alpha and beta (ties in that order): ring and NHR move the
  same bytes and NHR never needs more steps, so this is ring up to 3 servers and NHR beyond, both at NHR's cost;
* 910A, and 910B in graph mode: H-D_R for 8 servers and more or a power of two, else ring;
* A3: NHR between the servers of a superpod, ring or H-D_R between superpods;
* all-to-all: inside the server, then pairwise between servers; pairwise alone with one card a server;
* servers that hold unequal numbers of a group's members lose the two levels: one flat NHR or pairwise over ports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cluster.algorithms import (
    FloatArray,
    Hop,
    Op,
    floor_log2,
    halving_doubling,
    is_power_of_two,
    mesh,
    mesh_one_shot,
    nhr,
    pairwise,
    pipeline,
    ring,
    star,
    two_level,
)
from planner.cluster.placement import Group, IntArray
from planner.cluster.rates import Level, Rates, Wiring
from planner.units import KIB, MIB

Mode = Literal["single", "graph"]

ONE_SHOT_BYTES: Final[dict[Mode, int]] = {"single": 256 * KIB, "graph": 64 * KIB}
PIPELINE_BYTES_PER_RANK: Final[dict[Op, int]] = {
    "allgather": 32 * KIB,
    "reducescatter": 32 * KIB,
    "allreduce": MIB,
}


Mask = NDArray[np.bool_] | np.bool_


class Option(NamedTuple):
    """An algorithm, the rows for which it is taken if no earlier option holds, and its time [s].

    Both are computed when asked for: most tables need one or two of the options.  ``spans`` is True for an algorithm
    of groups over several fast domains, False for one inside a domain.
    """

    name: str
    holds: Callable[[], Mask]
    seconds: Callable[[], FloatArray]
    spans: bool


_INSIDE: Final[dict[Wiring, str]] = {"a2": "mesh", "910a": "mesh/ring", "a3": "ring/NHR", "pcie": "ring"}
_BETWEEN: Final = "{between}"


def options(op: Op, size: FloatArray, group: Group, rates: Rates, mode: Mode) -> list[Option]:
    """Algorithms in the order in which HCCL considers them; the last one always holds."""
    if op == "sendrecv":
        return _transfers(size, group, rates)
    if op == "alltoall":
        return _exchanges(size, group, rates)
    start = rates["start_s_allreduce_large" if op == "allreduce" else f"start_s_{op}"]
    inside = _INSIDE[rates.wiring]

    def two_levels() -> FloatArray:
        between = _between(op, size / group.domain, group.pods, rates, mode)
        return start + two_level(_inside(op, size, group, rates), between)

    return [
        *_one_shot(op, size, group, rates, mode),
        Option(inside, lambda: group.pods == 1, lambda: start + _inside(op, size, group, rates), False),
        Option(
            f"flat {_BETWEEN}",
            lambda: group.straddles,
            lambda: start + _between(op, size, group.size, rates, mode),
            True,
        ),
        *_pipelined(op, size, group, rates, mode),
        Option(f"{inside} + {_BETWEEN}", always, two_levels, True),
    ]


def between_name(servers: IntArray, rates: Rates, mode: Mode) -> NDArray[np.str_]:
    """Name of the algorithm HCCL runs between servers (between superpods on A3)."""
    if _by_halves(rates, mode):
        return np.where(_halves(servers, rates), "H-D_R", "ring")
    return np.where(servers <= 3, "ring", "NHR")


def always() -> Mask:
    """The condition of a last option."""
    return np.True_


def _one_shot(op: Op, size: FloatArray, group: Group, rates: Rates, mode: Mode) -> list[Option]:
    """All-reduce of a small buffer on a 910B node; its start-up holds the only step."""
    if rates.wiring != "a2" or op != "allreduce":
        return []
    start = rates["start_s_allreduce"]
    link = Hop(0.0, 1 / rates.link_bytes_per_s("node", "allgather"))

    def small() -> Mask:
        mask: Mask = (group.outer == 1) & (size <= ONE_SHOT_BYTES[mode])
        return mask

    return [Option("mesh, one shot", small, lambda: start + mesh_one_shot(size, group.size, link), False)]


def _pipelined(op: Op, size: FloatArray, group: Group, rates: Rates, mode: Mode) -> list[Option]:
    """Links inside the servers and ports between them at work at the same time, on 910B."""
    if rates.wiring != "a2" or mode != "single" or op not in PIPELINE_BYTES_PER_RANK:
        return []
    start = rates["start_s_allreduce_large" if op == "allreduce" else f"start_s_{op}"]
    node, net = rates.hop("node", op), rates.hop("net", op)

    def large() -> Mask:
        mask: Mask = (group.inner > 1) & (size >= PIPELINE_BYTES_PER_RANK[op] * group.size)
        return mask

    return [Option("pipeline", large, lambda: start + pipeline(op, size, group.inner, group.outer, node, net), True)]


def _transfers(size: FloatArray, group: Group, rates: Rates) -> list[Option]:
    """One transfer over the slowest link between neighbours of the group."""

    def over(level: Level) -> Callable[[], FloatArray]:
        hop = rates.hop(level, "sendrecv")
        return lambda: rates["start_s_sendrecv"] + star(size, group.size, hop)

    found = []
    if rates.wiring == "910a":
        found.append(Option("bridge", lambda: (group.outer == 1) & (group.quad < group.inner), over("bridge"), False))
    found.append(Option("link", lambda: group.outer == 1, over("node"), False))
    if rates.wiring == "a3":
        found.append(Option("superpod link", lambda: group.pods == 1, over("pod"), False))
    found.append(Option("port", always, over("net"), True))
    return found


def _exchanges(size: FloatArray, group: Group, rates: Rates) -> list[Option]:
    """All-to-all: inside a domain, then pairwise between domains; pairwise alone where that cannot be."""
    start = rates["start_s_alltoall"]
    inside = _INSIDE[rates.wiring]
    net = rates.hop("net", "alltoall")

    def two_levels() -> FloatArray:
        return start + two_level(_exchange(size, group, rates), pairwise(size, group.pods, net))

    return [
        Option(inside, lambda: group.pods == 1, lambda: start + _exchange(size, group, rates), False),
        Option(
            "pairwise",
            lambda: group.straddles | (group.domain == 1),
            lambda: start + pairwise(size, group.size, net),
            True,
        ),
        Option(f"{inside} + pairwise", always, two_levels, True),
    ]


def _inside(op: Op, size: FloatArray, group: Group, rates: Rates) -> FloatArray:
    """The part of a collective inside one fast domain: a node, or a superpod on A3 [s]."""
    node = rates.hop("node", op)
    if rates.wiring == "a2":
        return mesh(op, size, group.inner, node)
    if rates.wiring == "910a":
        whole = _ring_all(op, size, group.inner, rates.hop("bridge", op))
        return np.where(group.quad == group.inner, mesh(op, size, group.inner, node), whole)
    if rates.wiring == "a3":
        nodes = group.outer // group.pods
        pod = rates.hop("pod", op)
        return _ring_all(op, size, group.inner, node) + nhr(op, size / group.inner, nodes, pod)
    return _ring_all(op, size, group.inner, node)


def _ring_all(op: Op, size: FloatArray, ranks: IntArray, hop: Hop) -> FloatArray:
    """A ring in which a broadcast is a scatter and an all-gather [s]."""
    return 2 * ring("allgather", size, ranks, hop) if op == "broadcast" else ring(op, size, ranks, hop)


def _between(op: Op, size: FloatArray, servers: IntArray, rates: Rates, mode: Mode) -> FloatArray:
    """The part between servers, or between superpods on A3; ``size`` is what one column of ranks holds [s]."""
    net = rates.hop("net", op)
    if op == "broadcast" or not _by_halves(rates, mode):
        return nhr(op, size, servers, net)
    return np.where(_halves(servers, rates), halving_doubling(op, size, servers, net), ring(op, size, servers, net))


def _by_halves(rates: Rates, mode: Mode) -> bool:
    return rates.wiring in ("910a", "a3") or mode == "graph"


def _halves(servers: IntArray, rates: Rates) -> NDArray[np.bool_]:
    return (servers >= 8) | is_power_of_two(servers)


def _exchange(size: FloatArray, group: Group, rates: Rates) -> FloatArray:
    """All-to-all inside one fast domain [s]."""
    node = rates.hop("node", "alltoall")
    if rates.wiring == "a2":
        return mesh("alltoall", size, group.inner, node)
    if rates.wiring == "910a":
        whole = pairwise(size, group.inner, rates.hop("bridge", "alltoall"))
        return np.where(group.quad == group.inner, mesh("alltoall", size, group.inner, node), whole)
    if rates.wiring == "a3":
        return _grouped_mesh(size, group.domain, rates)
    return pairwise(size, group.inner, node)


def _grouped_mesh(size: FloatArray, members: IntArray, rates: Rates) -> FloatArray:
    """A3: every die sends to every other through the switches, at a rate that falls as the group widens [s].

    a + (p-1) peer + (p-1)/p n b (1 + slope log2(p / 8)), the logarithm linear between powers of two and 0 up to 8.
    """
    hop = rates.hop("pod", "alltoall")
    p = np.asarray(members, np.float64)
    exponent = floor_log2(p)
    doublings = np.maximum(exponent + np.ldexp(p, -exponent) - 4, 0.0)
    widened = hop.beta * (1 + rates["alltoall_width_slope"] * doublings)
    time = hop.alpha + (p - 1) * rates["alltoall_peer_s"] + (p - 1) / p * size * widened
    return np.where(p > 1, time, 0.0)
