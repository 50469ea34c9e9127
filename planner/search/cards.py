"""Fewest devices on which a job fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.memory.peak import memory
from planner.cost.memory.rules import rules_for
from planner.cost.strategies import FloatArray, Strategies, Strategy
from planner.errors import InfeasibleError
from planner.model.operators import parameter_count
from planner.model.records import DTYPE_BYTES, Workload
from planner.search.objective import leanest
from planner.search.request import Request
from planner.search.space import batches
from planner.search.tables import concatenate, order
from planner.units import format_bytes

#: Largest cluster looked at.
MOST_DEVICES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """Fewest devices that fit.

    Attributes
    ----------
    devices : int
        Fewest devices: whole nodes, or 1, 2, 4, ... of one node.
    floor : int
        Devices below which parameters, gradients and optimizer states alone do not fit.
    strategy : Strategy
        The one of least memory there, everything recomputed.
    peak_bytes : float
        Its heaviest stage [bytes].
    """

    devices: int
    floor: int
    strategy: Strategy
    peak_bytes: float


def counts(per_node: int, most: int) -> Iterator[int]:
    """Numbers of devices a job can have: 1, 2, 4, ... inside a node, then whole nodes.

    >>> list(counts(8, 32))
    [1, 2, 4, 8, 16, 24, 32]
    """
    inside = 1
    while inside < per_node and inside <= most:
        yield inside
        inside *= 2
    yield from range(per_node, most + 1, per_node)


def fewest_cards(request: Request, most: int = MOST_DEVICES) -> Fewest:
    """Fewest devices on which some legal strategy fits; ``request.cluster.devices`` is not looked at.

    Powers of two are tried first to bound the search, then every number of whole nodes below the first that fits.

    Raises
    ------
    InfeasibleError
        Nothing fits on up to ``most`` devices.
    """
    floor = state_floor(request)
    per_node = request.cluster.hardware.devices_per_node
    possible = [count for count in counts(per_node, most) if count >= floor]
    bound = next((n for n in _doubling(possible) if _leanest_on(request, n) is not None), None)
    for devices in possible if bound is not None else ():
        found = _leanest_on(request, devices)
        if found is not None:
            return Fewest(devices=devices, floor=floor, strategy=found[0], peak_bytes=found[1])
    raise InfeasibleError(
        f"{request.model.name} fits on no number of {request.cluster.hardware.name} up to {most} with these settings "
        f"(sequence {request.workload.seq}, global batch {request.workload.global_batch}, "
        f"{format_bytes(request.limit)} a device; parameters, gradients and optimizer states alone need {floor}). "
        "Relax pins, raise the memory limit, or shorten the sequence."
    )


def _doubling(possible: list[int]) -> Iterator[int]:
    """Some of the counts, each at least twice the one before, and the last."""
    least = 0
    for count in possible:
        if count >= least and (count & (count - 1) == 0 or count == possible[-1]):
            yield count
            least = 2 * count


def _leanest_on(request: Request, devices: int) -> tuple[Strategy, float] | None:
    """The strategy of least peak memory on so many devices, if it fits."""
    table, peaks = lightest_rows(request.on(devices))
    if not len(table) or peaks.min() > request.limit:
        return None
    row = int(order(table, peaks)[0])
    return table.row(row), float(peaks[row])


def state_floor(request: Request) -> int:
    """Devices that parameters, gradients and optimizer states need when split without remainder."""
    size = parameter_count(request.model) * bytes_per_parameter(
        request.workload, True in request.pins.get("swap_optimizer", ())
    )
    return max(int(np.ceil(size / request.limit)), 1)


def bytes_per_parameter(workload: Workload, swapped: bool = False) -> float:
    """Bytes a parameter costs in parameters, gradients and states, over all devices that share it [bytes].

    ``swapped``: optimizer states live on the host.

    >>> bytes_per_parameter(Workload(seq=1, global_batch=1))  # 4 + 4 + 2 x 4
    16.0
    """
    size = DTYPE_BYTES[workload.params_dtype] + DTYPE_BYTES[workload.grads_dtype]
    if not swapped:
        size += workload.moments * DTYPE_BYTES[workload.states_dtype]
        size += (2 if rules_for(workload).reuse_master else 4) if workload.master_weights else 0
    return float(size)


def lightest_rows(request: Request) -> tuple[Strategies, FloatArray]:
    """Every combination of degrees at its lowest memory, and its peak [bytes]."""
    tables, peaks = [], []
    for batch in batches(request.context, _leanest_pins(request)):
        whole = leanest(request, batch.table)
        if len(whole):
            peaks.append(memory(request.model, request.workload, whole).peak_bytes)
            tables.append(whole)
    return (concatenate(tables), np.concatenate(peaks)) if tables else (Strategies.of([]), np.zeros(0))


def _leanest_pins(request: Request) -> dict[str, Collection[int | str | bool]]:
    """The user's pins; where they leave freedom, what needs least memory."""
    lean: dict[str, Collection[int | str | bool]] = {
        "micro_batch_size": {1},
        "selective": {0},
        "zero_level": {max(request.workload.runs_on.zero_levels)},
    }
    if not {"vpp", "schedule"} & set(request.pins):
        lean |= {"schedule": {"1f1b"}, "vpp": {1}}
    return lean | dict(request.pins)
