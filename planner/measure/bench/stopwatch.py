"""Timing in a child program: repeats until a budget is spent, the slope of few and many copies, the load of the cores.

Child programs run under the interpreter that has MindSpore, which need not have the planner: this module and its
neighbours import nothing of it, and find each other beside the running script.

A call costs its start besides its work, in a graph as in a function, so an operation is timed as the slope between a
call with one copy and a call with several: ``(t_many - t_one) / (copies - 1)``.  Calls of the two alternate, so that a
machine that slows down slows both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

#: Calls thrown away before any is counted: the first compiles, the second still allocates.
WARM_UP = 2
#: The last third of the repeats over the first third from which a point counts as throttled.
THROTTLED = 1.15
#: Median over best from which a point counts as noisy.
NOISY = 1.5

Call = Callable[[], Any]


def slope(one: Call, many: Call, copies: int, *, budget_s: float, least: int = 5, most: int = 200) -> dict[str, Any]:
    """Time of one operation from alternating calls, both warm, with one copy and with `copies` of it.

    Parameters
    ----------
    one, many : callable
        Calls that return when their work is done.
    budget_s : float
        Seconds to spend on counted repeats.
    least, most : int
        Bounds of their number.

    Returns
    -------
    dict
        ``best_s``, ``median_s``, ``spread_s``, ``repeats``, ``load``, ``mark``.
    """
    meter = LoadMeter()
    singles: list[float] = []
    several: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(several) < least or (len(several) < most and time.perf_counter() < deadline):
        singles.append(_seconds(one))
        several.append(_seconds(many))
    found = slope_of(singles, several, copies)
    found["load"] = meter.read()
    return found


def slope_of(singles: Sequence[float], several: Sequence[float], copies: int) -> dict[str, Any]:
    """Statistics of the slope between paired calls; readings of a clock that stepped back are dropped.

    >>> slope_of([1.0, 1.0, 1.0], [5.0, 5.0, 5.0], 5)["best_s"]
    1.0
    """
    pairs = [(a, b) for a, b in zip(singles, several, strict=True) if a > 0.0 and b > 0.0]
    if not pairs:
        return {"error": "the clock stood still or stepped back in every repeat"}
    steps = copies - 1
    best = (min(b for _, b in pairs) - min(a for a, _ in pairs)) / steps
    middle = (median([b for _, b in pairs]) - median([a for a, _ in pairs])) / steps
    each = sorted((b - a) / steps for a, b in pairs)
    if best <= 0.0:
        return {"error": "the time of one copy could not be told from the call's own"}
    middle = max(best, middle)
    mark = mark_of([b for _, b in pairs], best, middle)
    if len(pairs) < len(singles):
        mark = mark or "clock"
    spread = 0.5 * (quantile(each, 0.84) - quantile(each, 0.16))
    return {"best_s": best, "median_s": middle, "spread_s": spread, "repeats": len(pairs), "mark": mark}


def mark_of(times: Sequence[float], best: float, middle: float) -> str:
    """Why a point is doubtful: "throttled" when it slowed down steadily, "noisy" when it scatters, else ""."""
    third = len(times) // 3
    if third >= 3 and median(times[-third:]) > THROTTLED * median(times[third:-third]) > THROTTLED**2 * median(
        times[:third]
    ):
        return "throttled"
    return "noisy" if middle > NOISY * best else ""


def _seconds(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median(values: Sequence[float]) -> float:
    """Middle value."""
    return quantile(sorted(values), 0.5)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation in sorted values."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def take_core(rank: int | None = None) -> None:
    """Bind this process, before it has threads, to one core: the idlest one, or that of its rank.

    On the CPU a device of the planner is a core.  Left alone, MindSpore's and the matmul library's threads fight for
    the cores, and an operation takes once or twice its time from one second to the next (two cores, MindSpore 2.9).
    """
    cores = sorted(os.sched_getaffinity(0))
    if rank is not None:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        return
    before = [_ticks(core)[3] for core in cores]
    time.sleep(0.2)
    idle = [_ticks(core)[3] - was for core, was in zip(cores, before, strict=True)]
    os.sched_setaffinity(0, {cores[idle.index(max(idle))]})


class LoadMeter:
    """Load of this process's cores by other programs since the meter was made, as a share; Linux only."""

    def __init__(self) -> None:
        self._start = _readings()

    def read(self) -> float | None:
        """Busy time of the cores less that of this process, over all time; None: not known."""
        if self._start is None:
            return None
        end = _readings()
        if end is None:
            return None
        busy, total, own = (b - a for a, b in zip(self._start, end, strict=True))
        return None if total <= 0.0 else min(max(0.0, busy - own) / total, 1.0)


def _readings() -> tuple[float, float, float] | None:
    try:
        each = [_ticks(core) for core in os.sched_getaffinity(0)]
    except (OSError, ValueError, AttributeError):
        return None
    total = sum(map(sum, each))
    idle = sum(ticks[3] + ticks[4] for ticks in each)
    hertz = os.sysconf("SC_CLK_TCK")
    return (total - idle) / hertz, total / hertz, time.process_time()


def _ticks(core: int) -> list[int]:
    """Ticks of a core by what it did: user, nice, system, idle, waiting, interrupts, stolen."""
    with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123
        line = next(line for line in file if line.startswith(f"cpu{core} "))
    return [int(word) for word in line.split()[1:9]]
