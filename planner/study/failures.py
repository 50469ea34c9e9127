"""Published failure rates and speeds of storage: defaults of a question about goodput, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Interruptions of a published system.

    Attributes
    ----------
    per_1000_device_days : float
        Unplanned interruptions of 1000 devices a day.
    """

    name: str
    per_1000_device_days: float
    source: str


RATES: Final = (
    FailureRate(
        name="llama3",
        per_1000_device_days=419 / (16.384 * 54),
        source="Llama 3 405B: 419 unplanned interruptions of 16,384 H100 in 54 days (arXiv 2407.21783, table 5)",
    ),
    FailureRate(
        name="rsc1",
        per_1000_device_days=6.50 / 8,
        source="Meta RSC-1: 6.50 failures per 1000 nodes of 8 and day (arXiv 2410.21680)",
    ),
    FailureRate(
        name="rsc2",
        per_1000_device_days=2.34 / 8,
        source="Meta RSC-2: 2.34 failures per 1000 nodes of 8 and day (arXiv 2410.21680)",
    ),
    FailureRate(
        name="ascend-press",
        per_1000_device_days=0.1,
        source="Huawei, 2025: more than 24 h between failures at 10,000 cards (press, not measured by others)",
    ),
)
#: No independent rate of Ascend clusters is published; this one is complete and of a training job.
DEFAULT_RATE: Final = "llama3"

#: Storage a device can count on where nothing is known [bytes/s].
STORAGE_BYTES_PER_S: Final = 2.3 * 2**40 / 40 / 384
STORAGE_SOURCE: Final = "BLOOM-176B: 2.3 TiB in 40 s from 384 processes"
#: Device memory to host memory of one device while training stands still [bytes/s].
SNAPSHOT_BYTES_PER_S: Final = 405.85e9 * 14 / 8960 / 0.59
SNAPSHOT_SOURCE: Final = "ByteCheckpoint: 0.59 s for 405B with states on 8,960 GPUs (arXiv 2407.20143, table 8)"
#: From an interruption until steps are made again [s].
RESTART_S: Final = 900.0
RESTART_SOURCE: Final = "MegaScale: detected within 10, caught up within 15 minutes (arXiv 2402.15627)"
#: Work at risk that engineers accept [s].
AT_RISK_S: Final = 1800.0
#: Spare nodes of published systems: 4 of 48 (BLOOM), 5 to 10 % for new accelerators.
SPARE_SHARES: Final = (0.05, 0.10)


def rate(text: str) -> FailureRate:
    """A published rate by its name, or a number of interruptions per 1000 devices and day.

    >>> round(rate("llama3").per_1000_device_days, 3), rate("0.2").per_1000_device_days
    (0.474, 0.2)
    """
    for known in RATES:
        if known.name == text:
            return known
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        names = ", ".join(known.name for known in RATES)
        raise SpecError(
            f"failure rate '{text}' is no rate; legal: {names}, or interruptions per 1000 devices and day like 0.5."
        )
    return FailureRate(name="given", per_1000_device_days=value, source="given")
