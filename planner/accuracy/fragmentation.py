"""Memory that a pool reserves on top of what is allocated: the one constant of memory verdicts that is fitted.

``reserved = allocated x (1 + f)``, with f the mean over runs that print both.  ``calibration/memory-fragmentation.csv``
holds these runs with their residuals, each against the f that is fitted without its own model family.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from planner.cluster.load import data_directory
from planner.errors import CalibrationError
from planner.observe.published import TruthRow

#: Model families of the fitted runs; each in turn is left out.
FAMILIES: Final = ("llama", "deepseek")
FILE: Final = "memory-fragmentation.csv"
#: Hardware whose rows print a steady state's allocated and reserved peak of one and the same allocator.
_HARDWARE: Final = "B200"
_HEAD: Final = ("case_id", "family", "allocated_gib", "reserved_gib", "left_out_share", "error_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Peak of one run, allocated and reserved [GiB, as printed]."""

    case_id: str
    family: str
    allocated_gib: float
    reserved_gib: float

    @property
    def share(self) -> float:
        """Reserved on top of allocated, as a share of allocated."""
        return self.reserved_gib / self.allocated_gib - 1.0


def family_of(name: str) -> str:
    """Fitted family that a model's name belongs to; empty for others.

    >>> family_of("Llama-3.1-70B"), family_of("deepseekv3 truncated to 4 layers"), family_of("Qwen3-32B")
    ('llama', 'deepseek', '')
    """
    return next((family for family in FAMILIES if family in name.lower()), "")


def pools_of(rows: Iterable[TruthRow]) -> tuple[Pool, ...]:
    """Runs that print both figures, one for each pair of them (micro-batch counts repeat them)."""
    found: dict[tuple[float, float], Pool] = {}
    for row in rows:
        if row.model is None or _HARDWARE not in row.hardware or "reserved_bytes" not in row.measured:
            continue
        pair = (row.measured["peak_bytes"] / 2**30, row.measured["reserved_bytes"] / 2**30)
        found.setdefault(
            pair,
            Pool(case_id=row.case_id, family=family_of(row.model.name), allocated_gib=pair[0], reserved_gib=pair[1]),
        )
    return tuple(found.values())


def share(pools: Sequence[Pool], without: str = "") -> float:
    """Mean share, without one family.

    Raises
    ------
    CalibrationError
        No run is left.
    """
    shares = [pool.share for pool in pools if not without or pool.family != without]
    if not shares:
        raise CalibrationError(f"no run is left to fit fragmentation to without family {without}.")
    return sum(shares) / len(shares)


def error_percent(pools: Sequence[Pool], pool: Pool) -> float:
    """Reserved memory predicted from allocated, by the share fitted without the run's family, against printed."""
    return 100.0 * (pool.allocated_gib * (1.0 + share(pools, pool.family)) / pool.reserved_gib - 1.0)


def table(pools: Sequence[Pool]) -> str:
    """Content of the fit file."""
    lines = [",".join(_HEAD)]
    for pool in pools:
        figures = f"{pool.allocated_gib:.2f},{pool.reserved_gib:.2f},{share(pools, pool.family):.4f}"
        lines.append(f"{pool.case_id},{pool.family},{figures},{error_percent(pools, pool):.2f}")
    return "\n".join([*lines, ""])


@lru_cache(maxsize=1)
def fitted_pools() -> tuple[Pool, ...]:
    """The runs of the shipped fit file."""
    return read(data_directory("calibration") / FILE)


def read(path: Path) -> tuple[Pool, ...]:
    """Runs of a fit file."""
    with path.open(newline="", encoding="utf-8") as stream:
        return tuple(
            Pool(
                case_id=row["case_id"], family=row["family"],
                allocated_gib=float(row["allocated_gib"]), reserved_gib=float(row["reserved_gib"]),
            )
            for row in csv.DictReader(stream)
        )  # fmt: skip


@lru_cache(maxsize=8)
def fragmentation(without: str = "") -> float:
    """Share of allocated memory that the pool reserves on top, fitted without one family (default: with all).

    >>> round(fragmentation(), 3), round(fragmentation("llama"), 3), round(fragmentation("deepseek"), 3)
    (0.052, 0.055, 0.051)
    """
    return share(fitted_pools(), without)
