"""Fewest devices on which a job fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np

from planner.cost.memory.peak import memory
from planner.cost.memory.rules import rules_for
from planner.cost.strategies import FloatArray, Strategies, Strategy
from planner.errors import InfeasibleError, SpecError
from planner.legality.context import SEQPIPE
from planner.model.operators import parameter_count
from planner.model.records import DTYPE_BYTES, Workload
from planner.search.nearest import describe, nearest_violations
from planner.search.objective import leanest
from planner.search.request import Request
from planner.search.space import batches
from planner.search.tables import concatenate, order
from planner.units import format_bytes

#: Largest cluster looked at.
MOST_DEVICES: Final = 65_536
#: So many doublings that leave more than this share of the memory show that more devices do not help.
DOUBLINGS: Final = 4
LOWERED: Final = 0.99
#: Broken rules that a refusal spells out; the others are named.
NAMED_RULES: Final = 2


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

    A bound is found first among numbers that double, then every number below it is tried; what decides is
    `lightest_rows`, as in a search.

    Raises
    ------
    SpecError
        No strategy is legal on any number tried; the message names the rules.
    InfeasibleError
        Nothing fits on up to ``most`` devices.
    """
    floor = state_floor(request)
    possible = possible_counts(request, most)
    tried: list[_Lightest] = []
    bound = _bound(request, possible, floor, tried)
    if bound is None:
        _refuse(request, tried, possible, floor)
    devices = next(n for n in possible if n == bound or (floor <= n < bound and _try(request, n, tried)))
    found = next(one for one in tried if one.devices == devices)
    return Fewest(devices=devices, floor=floor, strategy=found.strategy, peak_bytes=found.peak_bytes)


def next_cards(request: Request, above: int, most: int) -> int | None:
    """The next number of devices above one on which something fits."""
    possible = [n for n in possible_counts(request, most) if n > above]
    return next((n for n in possible if _try(request, n, [])), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lightest:
    """The strategy of least memory on a number of devices; its peak is that of its heaviest stage [bytes]."""

    devices: int
    strategy: Strategy
    peak_bytes: float


def _try(request: Request, devices: int, tried: list[_Lightest]) -> bool:
    """Whether something fits on so many devices; the lightest legal strategy, if there is one, joins ``tried``."""
    table, peaks = lightest_rows(request.on(devices))
    if not len(table):
        return False
    row = int(order(table, peaks)[0])
    tried.append(_Lightest(devices=devices, strategy=table.row(row), peak_bytes=float(peaks[row])))
    return float(peaks[row]) <= request.limit


def possible_counts(request: Request, most: int) -> list[int]:
    """Numbers of devices that a job can have and that its pinned degrees divide."""
    names = ("dp", "tp", "pp", "cp")
    choices = [[int(value) for value in request.pins.get(name, (1,))] for name in names]
    products = {math.prod(combination) for combination in itertools.product(*choices)}
    every = counts(request.cluster.hardware.devices_per_node, most)
    if all(name in request.pins for name in names):
        return [n for n in every if n in products]
    return [n for n in every if any(n % product == 0 for product in products)]


def _spread(possible: list[int], floor: int) -> Iterator[int]:
    """Some of the numbers from ``floor`` on, each twice the one before, and the last of all."""
    several = {n for n in possible if n >= floor}
    power = possible[0] if possible else 1
    while several and power < max(several):
        if power in several:
            yield power
        power *= 2
    yield from sorted(several)[-1:]


def _bound(request: Request, possible: list[int], floor: int, tried: list[_Lightest]) -> int | None:
    """A number on which something fits; None where doubling has long stopped to lower the memory."""
    for n in _spread(possible, floor):
        if _try(request, n, tried):
            return n
        if len(tried) > DOUBLINGS:
            before, since = tried[:-DOUBLINGS], tried[-DOUBLINGS:]
            if min(one.peak_bytes for one in since) > LOWERED * min(one.peak_bytes for one in before):
                return None
    return None


def _refuse(request: Request, tried: list[_Lightest], possible: list[int], floor: int) -> NoReturn:
    """Say which rule leaves nothing, or which memory more devices do not take away."""
    name, hardware = request.model.name, request.cluster.hardware.name
    if not tried:
        where = next(iter([n for n in possible if n >= floor] or possible), None)
        if where is None:
            raise SpecError(
                f"no number of {hardware} is whole nodes and a multiple of the pinned degrees; change a pin."
            )
        broken = nearest_violations(request.on(where))
        messages = " ".join(violation.message for violation in broken[:NAMED_RULES])
        more = ", ".join(violation.code for violation in broken[NAMED_RULES:])
        raise SpecError(
            f"no strategy of {name} is legal on any number of {hardware} tried. The nearest one breaks {messages}"
            + (f" It also breaks the rules {more}." if more else "")
        )
    lightest = min(tried, key=lambda one: one.peak_bytes)
    numbers = sorted({one.devices for one in tried})
    batch = request.on(lightest.devices).workload.global_batch
    raise InfeasibleError(
        f"{name} fits on none of {len(numbers)} numbers of {hardware} tried, from {numbers[0]} to {numbers[-1]}, with "
        f"these settings (sequence {request.workload.seq}, global batch {batch}, {format_bytes(request.limit)} a "
        f"device; parameters, gradients and optimizer states alone need {floor}). {_fixed(request, lightest)} "
        "Relax pins, raise the memory limit, or shorten the sequence."
    )


def _fixed(request: Request, lightest: _Lightest) -> str:
    """What fills the heaviest stage of the lightest strategy of all."""
    needed = memory(request.model, request.workload, Strategies.of([lightest.strategy]))
    stage = int(np.argmax(needed.peak_bytes_CS[0]))
    terms = sorted(needed.terms, key=lambda term: -needed.terms[term][0, stage])[:2]
    fill = ", ".join(f"{term.replace('_', ' ')} {format_bytes(needed.terms[term][0, stage])}" for term in terms)
    return (
        f"At the least, on {lightest.devices} ({describe(lightest.strategy)}), stage {stage} needs "
        f"{format_bytes(lightest.peak_bytes)}, which more devices do not split further: {fill}."
    )


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
    """Every legal combination at its lowest memory, and its peak [bytes]: what fits nowhere here, fits in no search.

    Samples of a micro-batch are one unless pinned; all that else may lower the memory is looked at, and each stage
    recomputes everything or nothing, whichever needs less.
    """
    tables, peaks = [], []
    for batch in batches(request.context, {"micro_batch_size": {1}} | dict(request.searched_pins)):
        if len(batch.table):
            table, peak = _lightest(request, batch.table)
            tables.append(table)
            peaks.append(peak)
    return (concatenate(tables), np.concatenate(peaks)) if tables else (Strategies.of([]), np.zeros(0))


def _lightest(request: Request, table: Strategies) -> tuple[Strategies, FloatArray]:
    """Rows with the recompute asked for; where it is free, as in `fitted`, the lighter extreme of each stage."""
    if request.recompute != "auto":
        filled = leanest(request, table)
        return filled, memory(request.model, request.workload, filled).peak_bytes
    none, full = (
        table.replace(recompute_full_CS=number) for number in (np.zeros_like(table.layers_CS), table.layers_CS)
    )
    kept, redone = (memory(request.model, request.workload, rows).peak_bytes_CS for rows in (none, full))
    more = redone < kept
    more &= (table.schedule != SEQPIPE)[:, None]
    filled = table.replace(recompute_full_CS=np.where(more, table.layers_CS, 0))
    return filled, np.where(more, redone, kept).max(axis=1)
