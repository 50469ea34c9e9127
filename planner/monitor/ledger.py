"""The ledger: one JSON line a step, as `planner.observe` reads it back.

Fields, each left out where it is not known: ``step``, ``step_s`` [s], ``data_s`` [s], ``tokens_per_s`` (one device),
``mfu``, ``memory_bytes``, ``loss``, ``loss_scale``, ``grad_norm``, ``learning_rate``, ``skipped``, ``rank``,
``stamp_s`` [s since 1970].  Only the standard library is used: a training job loads this.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a plan.json says that turns seconds into rates; None: not known.

    Attributes
    ----------
    tokens : float or None
        Tokens of a step on one device.
    mfu_seconds : float or None
        MFU times seconds of a step, a constant of the job [s].
    """

    tokens: float | None = None
    mfu_seconds: float | None = None

    @classmethod
    def read(cls, path: str | Path | None) -> Planned:
        """Of a plan.json; of None, nothing.

        Raises
        ------
        OSError, ValueError, KeyError, TypeError
            No such file, or no plan.
        """
        if path is None:
            return cls()
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        work, estimate = body["workload"], body.get("estimate") or {}
        mfu, step_s = estimate.get("mfu"), estimate.get("step_s")
        return cls(
            tokens=work["seq"] * work["global_batch"] / body["devices"],
            mfu_seconds=mfu * step_s if mfu and step_s else None,
        )


class Ledger:
    """A file to which steps are added; each line is whole when it is written."""

    def __init__(self, path: str | Path, planned: Planned, *, rank: int | None = None) -> None:
        self.path = Path(path)
        self._planned, self._rank = planned, rank
        self._file: TextIO | None = None

    def add(self, *, step: int, step_s: float, **known: float | bool | None) -> None:
        """Add one step; None and numbers that are not finite are left out."""
        record: dict[str, Any] = {"step": step, "step_s": step_s, **known}
        if self._planned.tokens and step_s > 0:
            record["tokens_per_s"] = self._planned.tokens / step_s
        if self._planned.mfu_seconds and step_s > 0:
            record["mfu"] = self._planned.mfu_seconds / step_s
        if self._rank is not None:
            record["rank"] = self._rank
        kept = {name: value for name, value in record.items() if value is not None and math.isfinite(value)}
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        self._file.write(json.dumps(kept) + "\n")

    def close(self) -> None:
        """Close the file; a later step opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
