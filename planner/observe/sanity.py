"""Numbers that cannot be measurements, whatever the format.

A table of times is refused when nothing in it depends on size (simulators print one time for all), and a row is dropped
when it would need a device that nobody has built: both are slips of the unit or of the tool, not of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from planner.errors import CalibrationError

#: Sizes must span this factor before equal times are suspicious.
CONSTANT_SPAN: Final = 64.0
#: Times this close are one time: a printed value repeated, not a flat latency.
CONSTANT_FRAC: Final = 1e-4
#: No shipped or announced device reaches these: about 4x the fastest dense data-sheet rate (950 and H100: below 2e15 at
#: 8 bits) and 2x the fastest memory (H200, 4.8e12 bytes/s).
FASTEST_FLOP_PER_S: Final = 8e15
FASTEST_BYTES_PER_S: Final = 1e13
#: No link of one device is faster: about 2x NVLink of a B200 (9e11 one way).
FASTEST_LINK_BYTES_PER_S: Final = 2e12


def constant_time(sizes: Sequence[float], times_s: Sequence[float], source: str) -> None:
    """Refuse a table in which the time does not depend on the size.

    Raises
    ------
    CalibrationError
    """
    if len(times_s) < 3 or min(sizes) <= 0 or max(sizes) / min(sizes) < CONSTANT_SPAN:
        return
    if max(times_s) - min(times_s) <= CONSTANT_FRAC * max(times_s):
        raise CalibrationError(
            f"{source}: {len(times_s)} sizes from {min(sizes):.0f} to {max(sizes):.0f} all take "
            f"{max(times_s) * 1e6:.2f} us; that is a simulator's constant, not a measurement."
        )


def impossible_rate(work: float, time_s: float, fastest: float) -> bool:
    """Whether work / time is beyond any device, or no rate at all."""
    return not (math.isfinite(time_s) and time_s > 0.0 and work / time_s <= fastest)


def rising(stamps_s: Sequence[float]) -> int:
    """How many stamps lie before the one in front of them.

    >>> rising([1.0, 2.0, 1.5, 3.0])
    1
    """
    return sum(1 for before, after in zip(stamps_s, stamps_s[1:], strict=False) if after < before)
