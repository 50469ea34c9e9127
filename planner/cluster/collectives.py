"""Seconds of a collective on the links its group really has.

`collective_s` is what the cost model calls: it follows the library's own choice of algorithm (`planner.cluster.hccl`,
`planner.cluster.nccl`) and evaluates only algorithms that some row takes.  `by_algorithm` and `chosen` explain it.

Sizes are the total bytes n of the operation: output of an all-gather, input of a reduce-scatter, buffer of an
all-reduce or broadcast, bytes one rank sends in all of an all-to-all, the message of a send.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import hccl, nccl
from planner.cluster.algorithms import OPS, FloatArray, Op, halving_doubling, nb, nhr, ring
from planner.cluster.hccl import Mode, Option
from planner.cluster.placement import Group, IntArray
from planner.cluster.rates import Level, Rates
from planner.cluster.records import Hardware
from planner.errors import SpecError


def collective_s(
    op: str,
    size_bytes: ArrayLike,
    group: Group,
    hardware: Hardware,
    constants: Mapping[str, float] | Rates | None = None,
    mode: Mode = "single",
) -> FloatArray:
    """Time of one collective [s]; arrays broadcast; 0 for a group of one.

    Parameters
    ----------
    op : {"allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv"}
    size_bytes : array_like of float
        Bytes n of the operation, as in the module's description.
    group : Group
        Where the groups lie; ``planner.cluster.placement``.
    hardware : Hardware
    constants : mapping of str to float or Rates, optional
        Keys of `planner.cluster.rates` that replace its defaults (other keys are ignored), or rates made once for many
        calls with ``Rates.of``.
    mode : {"single", "graph"}
        HCCL called operator by operator (MindSpore's default, jit level O0 and O1), or as a whole graph (O2).

    Examples
    --------
    All-gather of 2 GiB on eight 910B cards of one node, without start-up, at 18.2 GB/s a link:

    >>> from planner.cluster.load import hardware
    >>> from planner.cluster.placement import place
    >>> still = {"start_s_allgather": 0.0, "step_s_link": 0.0}
    >>> round(float(collective_s("allgather", 2**31, place(8, 1, 8), hardware("910b3"), still)), 5)
    0.01475
    """
    size, _, choices = _options(op, size_bytes, group, hardware, constants, mode)
    total = np.zeros(np.broadcast(size, group.size).shape)
    still_open = np.broadcast_to(group.size > 1, total.shape)
    for choice in choices:
        if not still_open.any():
            break
        taken = still_open & choice.holds()
        if taken.any():  # an algorithm that no row takes would only add zeros
            total = np.where(taken, choice.seconds(), total)
            still_open = still_open & ~taken
    return total


def chosen(
    op: str,
    size_bytes: ArrayLike,
    group: Group,
    hardware: Hardware,
    constants: Mapping[str, float] | Rates | None = None,
    mode: Mode = "single",
) -> NDArray[np.str_]:
    """Name of the algorithm that `collective_s` costs, for each row ("" for a group of one)."""
    size, rates, choices = _options(op, size_bytes, group, hardware, constants, mode)
    names = np.full(np.broadcast(size, group.size).shape, "", dtype="<U40")
    still_open = np.broadcast_to(group.size > 1, names.shape)
    for choice in choices:
        taken = still_open & choice.holds()
        names = np.where(taken, _name(choice, group, rates, mode), names)
        still_open = still_open & ~taken
    return names


def by_algorithm(
    op: str,
    size_bytes: ArrayLike,
    group: Group,
    hardware: Hardware,
    constants: Mapping[str, float] | Rates | None = None,
    mode: Mode = "single",
) -> dict[str, FloatArray]:
    """Time under each algorithm that could carry the operation [s], chosen by the library or not.

    The library's own candidates come first; flat ring, NHR, NB and H-D_R over the slowest link of the group follow.
    """
    size, rates, choices = _options(op, size_bytes, group, hardware, constants, mode)
    spans = bool((group.pods > 1).any())
    times = {
        str(np.ravel(_name(choice, group, rates, mode))[0]): choice.seconds()
        for choice in choices
        if rates.wiring == "gpu" or choice.spans == spans
    }
    if rates.wiring == "gpu" or op not in ("allreduce", "allgather", "reducescatter", "broadcast"):
        return times
    level: Level = "net" if spans else "pod" if rates.wiring == "a3" else "node"
    hop = rates.hop(level, op)  # type: ignore[arg-type]
    start = rates["start_s_allreduce_large" if op == "allreduce" else f"start_s_{op}"]
    for name, cost in (("ring", ring), ("NHR", nhr), ("NB", nb), ("H-D_R", halving_doubling)):
        times[f"flat {name}"] = start + cost(op, size, group.size, hop)  # type: ignore[arg-type]
    return times


def bus_bytes_per_s(op: str, size_bytes: ArrayLike, ranks: ArrayLike, time_s: ArrayLike) -> FloatArray:
    """Bus bandwidth as collective benchmarks print it [bytes/s]; 0 for a group of one.

    n / t times 2 (p-1)/p for an all-reduce, (p-1)/p for all-gather, reduce-scatter and all-to-all, 1 for the others.
    """
    n, p, t = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (size_bytes, ranks, time_s)))
    factor = {"allreduce": 2 * (p - 1) / p, "broadcast": np.ones_like(p), "sendrecv": np.ones_like(p)}
    moved = n * factor.get(_legal(op), (p - 1) / p)
    bandwidth: FloatArray = np.divide(moved, t, out=np.zeros_like(moved), where=t > 0)
    return bandwidth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkRates:
    """Bandwidths a group has, one direction [bytes/s].

    Attributes
    ----------
    links : ndarray of int
        Links of a member to others of its group inside the fast domain: n - 1 on a mesh, 1 into a switch.
    inside_bytes_per_s : ndarray of float
        All of them together, as a collective uses them; 0 when no other member is near.
    port_bytes_per_s : ndarray of float
        A member's own network port; 0 when the group stays in one domain.
    group_port_bytes_per_s : ndarray of float
        Ports of all members in one node.
    """

    links: IntArray
    inside_bytes_per_s: FloatArray
    port_bytes_per_s: FloatArray
    group_port_bytes_per_s: FloatArray


def links(
    hardware: Hardware, group: Group, constants: Mapping[str, float] | Rates | None = None, op: str = "allgather"
) -> LinkRates:
    """Bandwidths that a group has for an operation.

    >>> from planner.cluster.load import hardware
    >>> from planner.cluster.placement import place
    >>> rates = links(hardware("910b3"), place([1, 2, 4, 8, 16], 1, 8))
    >>> rates.links.tolist(), (rates.inside_bytes_per_s / 1e9).round(1).tolist()
    ([0, 1, 3, 7, 7], [0.0, 18.2, 54.6, 127.4, 127.4])
    """
    rates, kind = _rates(hardware, constants), _legal(op)
    near = group.domain > 1
    meshed = hardware.node.kind == "mesh"
    in_quad = (hardware.node.kind == "quads") & (group.quad == group.inner)
    count = np.where(near, np.where(meshed | in_quad, group.inner - 1, 1), 0)
    link = rates.link_bytes_per_s("node", kind)
    bridge = rates.link_bytes_per_s("bridge", kind) if hardware.node.kind == "quads" else link
    each = np.where(group.quad == group.inner, link, bridge)
    port = np.where(group.pods > 1, rates.link_bytes_per_s("net", kind), 0.0)
    return LinkRates(
        links=count, inside_bytes_per_s=count * each, port_bytes_per_s=port, group_port_bytes_per_s=port * group.inner
    )


def _options(
    op: str,
    size_bytes: ArrayLike,
    group: Group,
    hardware: Hardware,
    constants: Mapping[str, float] | Rates | None,
    mode: Mode,
) -> tuple[FloatArray, Rates, list[Option]]:
    kind, rates, size = _legal(op), _rates(hardware, constants), np.asarray(size_bytes, np.float64)
    if rates.wiring == "gpu":
        return size, rates, nccl.options(kind, size, group, rates)
    return size, rates, hccl.options(kind, size, group, rates, mode)


def _rates(hardware: Hardware, constants: Mapping[str, float] | Rates | None) -> Rates:
    return constants if isinstance(constants, Rates) else Rates.of(hardware, constants)


def _name(choice: Option, group: Group, rates: Rates, mode: Mode) -> NDArray[np.str_]:
    if "{between}" not in choice.name:
        return np.array(choice.name)
    servers = group.size if choice.name.startswith("flat") else group.pods
    head = choice.name.removesuffix("{between}")
    return np.char.add(head, hccl.between_name(servers, rates, mode))


def _legal(op: str) -> Op:
    if op not in OPS:
        close = difflib.get_close_matches(op.lower().replace("_", "").replace("-", ""), OPS, 1, 0.5)
        hint = f", did you mean '{close[0]}'?" if close else ""
        raise SpecError(f"collective '{op}' is not known{hint}; legal: {', '.join(OPS)}.")
    return op  # type: ignore[return-value]
