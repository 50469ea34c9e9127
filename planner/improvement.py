"""A user's own file with a better strategy: searched, held against what such a file can say, written and read back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner import api
from planner.cost.estimate import Estimate
from planner.cost.strategies import Strategies, Strategy
from planner.dialects.improve import Improved, after_change, check_own, holdable, with_own_comments
from planner.dialects.improve import improve as rewrite
from planner.errors import EmitError, InfeasibleError, SpecError
from planner.legality.apply import violations
from planner.search.explain import SAME_STEP, tied
from planner.search.nearest import describe
from planner.search.objective import estimated
from planner.search.request import Request
from planner.search.suggest import Progress, search
from planner.units import format_seconds

#: Reads a file, with the cards where it does not say them: request, strategy, what was not read.
Reader = Callable[[Path, int | None], tuple[Request, Strategy, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A file, and what became of it.

    Attributes
    ----------
    request : Request
        The job of the new file, or of the old one where that stays.
    old : Strategy
        What the old file says.
    before : Estimate or None
        Of the old file; None where its strategy breaks a rule.
    after : Estimate
        Of the new file as it reads, or of the old one.
    improved : Improved or None
        The new file; None where the old one stays.
    broken : str
        The rule that the old strategy breaks.
    stays : str
        Why the old file stays; empty where there is a new one.
    passed : tuple of str
        Why better ranked plans are not written, one sentence each.
    unread : tuple of str
        What of the old file was not read.
    """

    request: Request
    old: Strategy
    before: Estimate | None
    after: Estimate
    improved: Improved | None
    broken: str = ""
    stays: str = ""
    passed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def improve_file(
    path: str | Path,
    read: Reader,
    asked: Callable[[Request], Request] = lambda request: request,
    cards: int | None = None,
    progress: Progress | None = None,
) -> Improvement:
    """The fastest plan that a file can hold, written into it; the file as it is where none is faster beyond a tie.

    Plans are ranked as the file can say them.  The new file is read back, and what is told of it is what it reads as;
    a plan that cannot be written, or that reads as something that does not fit, makes place for the next.

    Parameters
    ----------
    asked : callable, optional
        Puts pins and the like on a request.
    cards : int, optional
        Cards of the new file; default: the old one's.

    Raises
    ------
    EmitError
        The old file cannot stay, and no plan can be written into it.
    InfeasibleError, SpecError
        Nothing fits, or the file cannot be read.
    """
    path = Path(path)
    check_own(path)
    request, old, unread = _as_it_is(path, read, cards)
    broken = violations(request.context, old)
    before = None if broken else api.estimate_of(request, old)
    job = replace(request, workload=after_change(request.workload))
    job = job if cards is None else job.on(cards)
    standing = before if before is not None and before.fits and old.devices == job.cluster.devices else None
    passed: list[str] = []
    new = next(_written(path, read, request, old, _ranked(_as_used(asked(job), old), standing, progress), passed), None)
    stays = _stays(standing, new, passed)
    if standing is None and new is None:
        raise EmitError(passed[0] if passed else f"{path}: no plan that fits can be written into it.")
    answer = new if new is not None and not stays else _New(request=request, after=before)
    assert answer.after is not None
    return Improvement(
        request=answer.request,
        old=old,
        before=before,
        after=answer.after,
        improved=answer.improved,
        broken=broken[0].message if broken else "",
        stays=stays,
        passed=tuple(passed),
        unread=unread,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """A file that could stand in place of the old one, and what it reads as."""

    request: Request
    after: Estimate | None
    improved: Improved | None = None


def _as_it_is(path: Path, read: Reader, cards: int | None) -> tuple[Request, Strategy, tuple[str, ...]]:
    """The old file on its own cards; on those asked for where neither it nor a launch script beside it says them."""
    try:
        return read(path, None)
    except SpecError:
        if cards is None:
            raise
    return read(path, cards)


def _as_used(request: Request, old: Strategy) -> Request:
    """The search with what the file uses and a search leaves out by itself: optimizer states on the host."""
    if not old.swap_optimizer or "swap_optimizer" in request.pins:
        return request
    return replace(request, pins={**request.pins, "swap_optimizer": (False, True)})


def _ranked(request: Request, standing: Estimate | None, progress: Progress | None) -> list[Strategy]:
    """Strategies as the file can hold them, fastest first; of a file that may stay, only faster ones."""
    try:
        found = search(replace(request, top=0), progress).estimates.table
    except (InfeasibleError, SpecError):
        if standing is None:
            raise
        return []
    held = list(dict.fromkeys(holdable(request.workload, found.row(row)) for row in range(len(found))))
    estimates = estimated(request, Strategies.of(held))
    order = np.argsort(np.where(estimates.fits, estimates.step_s, np.inf), kind="stable").tolist()
    most = np.inf if standing is None or standing.step_s is None else standing.step_s * (1.0 - SAME_STEP)
    return [held[row] for row in order if estimates.fits[row] and estimates.step_s[row] < most]


def _written(
    path: Path, read: Reader, request: Request, old: Strategy, ranked: list[Strategy], passed: list[str]
) -> Iterator[_New]:
    """New files in the order of their strategies; what cannot be written is added to ``passed``."""
    for strategy in ranked:
        try:
            changed = rewrite(path, strategy, old.devices)
        except EmitError as error:
            passed.append(f"{describe(strategy)}: {error}")
            continue
        held, found = _read_back(path, read, changed, strategy.devices)
        held = replace(held, model=request.model)  # whose source is the file itself
        rules = violations(held.context, found)
        after = None if rules else api.estimate_of(held, found)
        if after is None or not after.fits:
            why = rules[0].message if rules else "as written it does not fit."
            passed.append(f"{describe(strategy)}: {why}")
            continue
        plan = api.plan_of(held, after)
        before = replace(plan, strategy=old, workload=request.workload, devices=old.devices, estimate={})
        yield _New(request=held, after=after, improved=with_own_comments(path, changed, before, plan))


def _read_back(path: Path, read: Reader, changed: Improved, devices: int) -> tuple[Request, Strategy]:
    """The new file through the door that every file takes."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_text(changed.text, encoding="utf-8", newline="")
        held, strategy, _ = read(copy, devices)
    return held, strategy


def _stays(standing: Estimate | None, new: _New | None, passed: list[str]) -> str:
    """Why a file that may stay does; empty where it makes place."""
    if standing is None or standing.step_s is None:
        return ""
    after = None if new is None else new.after
    if after is None and passed:
        return "no plan that is faster can be written into the file"
    if after is None or after.step_s is None or after.step_s >= standing.step_s * (1.0 - SAME_STEP):
        return "the file's own strategy is as fast as any found that the file can hold"
    if tied(after, standing):
        gain = standing.step_s / after.step_s - 1.0
        return (
            f"the best found ({describe(after.strategy)}; {format_seconds(after.step_s)} a step) is {gain:.1%} faster, "
            "closer than the calibration can tell apart"
        )
    return ""
