"""Timing in a child program: repeats until the budget is spent, by the slope of few and many copies; the machine's load.

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
    """Time of one operation from alternating calls with one copy and with `copies` of it.

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
    for _ in range(WARM_UP):
        one()
        many()
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
    """Why a point is doubtful: ``"throttled"`` when it slowed down steadily, ``"noisy"`` when it scatters, or ``""``."""
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


class LoadMeter:
    """Load of the machine by other programs since the meter was made, as a share of all cores; Linux only."""

    def __init__(self) -> None:
        self._start = _readings()

    def read(self, own_processes: int = 1) -> float | None:
        """Busy time of all cores less that of `own_processes` like this one, over all time; None: not known."""
        if self._start is None:
            return None
        end = _readings()
        if end is None:
            return None
        busy, total, own = (b - a for a, b in zip(self._start, end, strict=True))
        return None if total <= 0.0 else min(max(0.0, busy - own * own_processes) / total, 1.0)


def _readings() -> tuple[float, float, float] | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    hertz = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / hertz, sum(ticks) / hertz, time.process_time()
