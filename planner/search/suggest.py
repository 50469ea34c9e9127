"""Search: from a request to ranked estimates.

enumerate -> legality -> least recompute that fits -> step time -> the best of every combination of degrees ->
balance of layers and recompute -> event simulation of the finalists -> ranking.

Every stage counts what it removes; the counts add up to the candidates examined.  The ranking is total: equal
objectives are ordered by the strategy's own columns, so it depends neither on the order of enumeration nor on batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NoReturn

import numpy as np

from planner.cost.estimate import Estimates
from planner.cost.rows import distinct
from planner.cost.strategies import BoolArray, FloatArray, IntArray, Strategies
from planner.cost.time.step import StepTime
from planner.errors import InfeasibleError, SpecError
from planner.search.balance import polished, rebalance
from planner.search.cards import fewest_cards, lightest_rows
from planner.search.nearest import describe, nearest_violations
from planner.search.objective import estimated, fitted_both, flattened, objective_of, simulated
from planner.search.request import OBJECTIVES, RECOMPUTE, Balance, Objective, Recompute, Request
from planner.search.space import Batch, batches
from planner.search.tables import concatenate, degree_keys, order, variant_keys
from planner.units import format_bytes

__all__ = [
    "OBJECTIVES",
    "RECOMPUTE",
    "Balance",
    "Objective",
    "Recompute",
    "Request",
    "Result",
    "estimated",
    "search",
    "tie_groups",
]

#: Told after every batch: candidates examined so far, and of those the ones that fit.
Progress = Callable[[int, int], None]
#: Numbers by which rows belong together.
Keys = Callable[[Strategies], IntArray]

#: Rows kept of each combination of degrees while scanning; combinations that are balanced, and rows of each.
KEPT_PER_SHAPE: Final = 6
BALANCED_SHAPES: Final = 16
BALANCED_PER_SHAPE: Final = 2
#: How far apart closed forms and simulation may put two rows of one combination of degrees; see docs/time.md.
CLOSED_FORM_ERROR: Final = 0.10
#: Rows with chunks that are polished by default, and how far behind the first they may be: single moves gain up to 3 %.
POLISHED: Final = 3
POLISHED_GAP: Final = 0.03
#: Rows that CP-SAT balances.
PERFECTED: Final = 4
#: Rows times stages up to which batches of the space are evaluated together.
JOINED_CELLS: Final = 2**15
#: Broken rules that a refusal spells out; the others are named.
NAMED_RULES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """What a search found.

    Attributes
    ----------
    estimates : Estimates
        Ranked, best first; one row for each combination of dp, tp, pp, cp, ep and etp, and where these are fewer than
        ``request.fill``, their runners-up with other vpp and micro-batches.
    ties : tuple of tuple of int
        Rows in groups that the calibration cannot tell apart, in order; every row is in one group.
    examined, fitting : int
        Candidates looked at, and those that are legal and fit.
    removed : dict of str to int
        Candidates removed by each rule, by memory (``memory``); with ``fitting`` they add up to ``examined``.
    """

    request: Request
    estimates: Estimates
    ties: tuple[tuple[int, ...], ...]
    examined: int
    fitting: int
    removed: dict[str, int]

    @property
    def devices(self) -> int:
        """Devices of the plans."""
        return self.request.cluster.devices


def search(request: Request, progress: Progress | None = None) -> Result:
    """Ranked strategies for a request.

    Raises
    ------
    SpecError
        No legal strategy: the message names the rules of the candidate that breaks fewest.
    InfeasibleError
        Legal strategies, but none fits; carries the counts and the fewest devices on which something fits.
    """
    if request.objective == "cards":
        found = fewest_cards(request, request.cluster.devices)
        return search(replace(request.on(found.devices), objective="time"), progress)
    scan = _scan(request, progress)
    if scan.fitting == 0:
        _refuse(request, scan)
    field = _judged(request, _promising(request, refine(request, scan.table, scan.objective)))
    ranked = _filled(request, field, field.leaders(request.top))
    told = None if progress is None else partial(progress, scan.examined, scan.fitting)
    ranked = _perfected(request, ranked, told)
    estimates = estimated(request, ranked.table, ranked.time)
    return Result(
        request=request,
        estimates=estimates,
        ties=tie_groups(estimates),
        examined=scan.examined,
        fitting=scan.fitting,
        removed=scan.removed,
    )


# --- scan -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Scan:
    """Best rows so far, and counts."""

    table: Strategies
    objective: FloatArray
    examined: int = 0
    fitting: int = 0
    removed: dict[str, int] = field(default_factory=dict)


def _scan(request: Request, progress: Progress | None, keys_of: Keys = degree_keys) -> _Scan:
    scan = _Scan(table=Strategies.of([]), objective=np.zeros(0))
    for batch in _joined(request):
        table, unfit = fitted_both(request, batch.table)
        scan.examined += batch.examined - len(batch.table) + len(table) + unfit
        scan.fitting += len(table)
        for code, count in batch.removed.items():
            scan.removed[code] = scan.removed.get(code, 0) + count
        scan.removed["memory"] = scan.removed.get("memory", 0) + unfit
        if len(table):
            value = objective_of(request, table)
            rows = best_per_shape(table, value, KEPT_PER_SHAPE, keys_of)
            scan.table = concatenate([scan.table, table.take(rows)])
            scan.objective = np.concatenate([scan.objective, value[rows]])
        if progress is not None:
            progress(scan.examined, scan.fitting)
    return scan


def _joined(request: Request) -> Iterator[Batch]:
    """Batches of the space, small ones put together: a table costs some milliseconds however short it is."""
    held: list[Batch] = []
    for batch in batches(request.context, request.searched_pins):
        wider = [part.table for part in (*held, batch)]
        cells = sum(map(len, wider)) * max(table.stages for table in wider)
        if held and cells > JOINED_CELLS:
            yield _join(held)
            held = []
        held.append(batch)
    if held:
        yield _join(held)


def _join(parts: list[Batch]) -> Batch:
    removed: dict[str, int] = {}
    for part in parts:
        for code, count in part.removed.items():
            removed[code] = removed.get(code, 0) + count
    table = concatenate([part.table for part in parts])
    return Batch(table=table, examined=sum(part.examined for part in parts), removed=removed)


def best_per_shape(table: Strategies, value: FloatArray, most: int, keys_of: Keys = degree_keys) -> IntArray:
    """Rows among the ``most`` best of their combination of degrees, best first."""
    keys = keys_of(table)
    close = np.flatnonzero(_place_in_group(keys, np.lexsort([value, keys]), value) < most)  # drop the far ones cheaply
    ranked = close[order(table.take(close), value[close])]
    place = _place_in_group(keys[ranked], np.argsort(keys[ranked], kind="stable"))
    return ranked[place < most]


def _place_in_group(keys: IntArray, by_key: IntArray, value: FloatArray | None = None) -> IntArray:
    """Place of each row in its group, given an order that sorts by group; equal values share the better place."""
    grouped = keys[by_key]
    index = np.arange(len(grouped))
    start = np.ones(len(grouped), bool)
    start[1:] = grouped[1:] != grouped[:-1]
    place = index - np.maximum.accumulate(np.where(start, index, 0))
    if value is not None:
        ranked = value[by_key]
        fresh = start.copy()
        fresh[1:] |= ranked[1:] != ranked[:-1]
        place = place[np.maximum.accumulate(np.where(fresh, index, 0))]
    out = np.empty_like(place)
    out[by_key] = place
    return out


# --- finalists ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Finalists:
    """Rows with their simulated time and what they are ranked by."""

    table: Strategies
    time: StepTime
    value: FloatArray

    def take(self, rows: IntArray) -> _Finalists:
        return _Finalists(table=self.table.take(rows), time=self.time.take(rows), value=self.value[rows])

    def leaders(self, most: int = 0) -> _Finalists:
        """The best row of each combination of degrees, ranked; at most so many unless 0."""
        rows = best_per_shape(self.table, self.value, 1)
        return self.take(rows[:most] if most else rows)


def _judged(request: Request, table: Strategies) -> _Finalists:
    """Rows simulated."""
    time = simulated(request, table)
    value = objective_of(request, table) if request.objective == "memory" else time.step_s
    return _Finalists(table=table, time=time, value=value)


def _promising(request: Request, table: Strategies) -> Strategies:
    """Distinct rows that the closed forms do not put too far behind the best of their combination of degrees."""
    value = objective_of(request, table)
    ranked = order(table, value)
    twin = np.zeros(len(table), bool)
    twin[ranked[1:]] = _same_rows(table, ranked[1:], ranked[:-1])
    _, place = distinct(degree_keys(table))
    best = np.full(len(table), np.inf)
    np.minimum.at(best, place, value)
    return table.take(np.flatnonzero(~twin & (value <= best[place] * (1.0 + CLOSED_FORM_ERROR))))


def _same_rows(table: Strategies, one: IntArray, other: IntArray) -> BoolArray:
    """Whether rows are the same strategy; they are neighbours once ordered."""
    same = np.ones(len(one), bool)
    for name in Strategies.__dataclass_fields__:
        column = getattr(table, name).reshape(len(table), -1)
        same &= (column[one] == column[other]).all(axis=1)
    return same


def refine(request: Request, table: Strategies, value: FloatArray) -> Strategies:
    """Finalists, and the leading ones also with layers and recompute moved between stages."""
    if request.objective == "memory":
        return flattened(request, table)
    if request.balance == "none":
        return table
    rows = best_per_shape(table, value, BALANCED_PER_SHAPE)
    first, place = distinct(degree_keys(table)[rows])
    leading = np.argsort(np.argsort(first))[place] < BALANCED_SHAPES
    return concatenate([table, rebalance(request, table.take(rows[leading]))])


def _perfected(request: Request, ranked: _Finalists, told: Callable[[], None] | None = None) -> _Finalists:
    """The leading rows also with their chunks moved as simulation wants it, ranked again; ``told`` after each."""
    if request.objective == "memory" or request.balance == "none":
        return ranked
    if request.balance == "exact":
        from planner.search.exact import balanced as better

        rows = np.arange(min(len(ranked.table), PERFECTED))
    else:
        better = polished
        near = (ranked.value <= ranked.value[0] * (1.0 + POLISHED_GAP)) & (ranked.table.vpp > 1)
        rows = np.flatnonzero(near)[:POLISHED]
    if not len(rows):
        return ranked
    moved = []
    for row in rows.tolist():
        moved.append(better(request, ranked.table.row(row)))
        if told is not None:
            told()
    both = _judged(request, concatenate([ranked.table, Strategies.of(moved)]))
    return both.take(best_per_shape(both.table, both.value, 1, variant_keys))


def _filled(request: Request, field: _Finalists, ranked: _Finalists) -> _Finalists:
    """The ranked rows, and where they are fewer than asked for, the best other variants of their combinations."""
    missing = request.fill - len(ranked.table)
    if missing <= 0:
        return ranked
    scan = _scan(request, None, variant_keys)
    rows = best_per_shape(scan.table, scan.objective, 1, variant_keys)
    variants = scan.table.take(rows[: request.fill])  # one of them may be the best of its combination
    if request.objective == "memory":
        variants = flattened(request, variants)
    elif request.balance != "none":
        variants = concatenate([variants, rebalance(request, variants)])
    every = _judged(request, concatenate([field.table, variants]))
    order_of = best_per_shape(every.table, every.value, 1, variant_keys)
    best = np.isin(order_of, best_per_shape(every.table, every.value, 1))
    return every.take(order_of[best | (np.cumsum(~best) <= missing)])


#: Layouts of one release and model size are ordered rightly in 89 % of pairs when their predictions lie 5 % apart,
#: with a half-width of the 80 % interval of 15 % (published A2 rows): errors of two plans of one search are mostly
#: shared, and a third of the half-width tells them apart.
RESOLVED_SHARE: Final = 1.0 / 3.0


def tie_groups(estimates: Estimates) -> tuple[tuple[int, ...], ...]:
    """Ranked rows in groups whose step times the calibration cannot tell apart.

    A group opens with its best row and takes the following ones within a third of the half-width of the interval that
    is shown for that row.
    """
    width = np.log(estimates.step_high_s / estimates.step_low_s) / 2.0 * RESOLVED_SHARE
    groups: list[list[int]] = []
    for row, step_s in enumerate(estimates.step_s.tolist()):
        if groups and abs(np.log(step_s / estimates.step_s[groups[-1][0]])) <= width[groups[-1][0]]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return tuple(tuple(group) for group in groups)


# --- refusals -------------------------------------------------------------------------------------------------------


def _refuse(request: Request, scan: _Scan) -> NoReturn:
    """Say why nothing is left."""
    if not scan.removed.get("memory", 0):
        broken = nearest_violations(request)
        messages = " ".join(violation.message for violation in broken[:NAMED_RULES])
        more = ", ".join(violation.code for violation in broken[NAMED_RULES:])
        raise SpecError(
            f"no legal strategy on {request.cluster.devices} devices. The nearest one breaks {messages}"
            + (f" It also breaks the rules {more}." if more else "")
        )
    hardware = request.cluster.hardware.name
    table, peaks = lightest_rows(request)
    best = int(order(table, peaks)[0])
    try:
        fewest = fewest_cards(request).devices
        advice = f"It needs at least {fewest} cards of this kind."
    except InfeasibleError as none:
        fewest, advice = None, str(none)
    raise InfeasibleError(
        f"{request.model.name} at sequence {request.workload.seq}, global batch {request.workload.global_batch}, does "
        f"not fit on {request.cluster.devices} x {hardware} in any of {scan.removed['memory']} legal layouts: the "
        f"lightest ({describe(table.row(best))}, everything recomputed) needs {format_bytes(float(peaks[best]))} of "
        f"{format_bytes(request.limit)}. {advice}",
        removed=scan.removed,
        minimum_devices=fewest,
    )
