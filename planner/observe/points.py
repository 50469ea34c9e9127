"""One measured operation, wherever it came from: our own micro-benchmarks, hccl_test, a profile, a plain CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.errors import CalibrationError

#: What is measured; ``op`` names the operation within it.
KINDS: Final = (
    "matmul", "grouped_matmul", "attention", "vector", "loss", "embedding", "optimizer", "copy", "launch",
    "host_copy", "collective",
)  # fmt: skip

#: How it was run: inside a compiled graph, operator by operator, by a vendor's test, or read from a profile.
MODES: Final = ("graph", "pynative", "hccl_test", "nccl_test", "profile", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Time of one operation of one size.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    op : str
        ``"matmul"``, ``"rms_norm"``, ``"allreduce"``, ...
    dtype : str
        ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"int32"``, ...
    mode : str
        One of `MODES`.
    sizes : mapping of str to int
        ``m``, ``k``, ``n`` of a matmul (``groups`` too when grouped); ``batch``, ``seq``, ``heads``, ``head_dim`` of
        attention; ``bytes`` moved by copies and element-wise work; ``bytes``, ``ranks`` and ``nodes`` of a collective
        (bytes as ``planner.cluster.collectives`` counts an operation's size).
    best_s, median_s, spread_s : float
        Fastest and median repeat, and half the distance of the 16th and 84th percentile [s].
    repeats : int
        Counted repeats, warm-up left out.
    load : float or None
        Load of the machine by others while it ran, as a fraction of its cores; None: not known.
    mark : str
        ``""``, or why the point is doubtful: ``"noisy"``, ``"throttled"``, ...
    source : str
        File, and line or row in it.
    """

    kind: str
    op: str
    dtype: str
    mode: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    best_s: float
    median_s: float
    spread_s: float = 0.0
    repeats: int = 1
    load: float | None = None
    mark: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CalibrationError(f"kind={self.kind!r} of {self.source or 'a point'}; legal: {', '.join(KINDS)}.")
        if self.mode not in MODES:
            raise CalibrationError(f"mode={self.mode!r} of {self.source or 'a point'}; legal: {', '.join(MODES)}.")
        if not 0.0 < self.best_s <= self.median_s * (1.0 + 1e-9) < float("inf"):
            raise CalibrationError(
                f"{self.source or self.op}: best {self.best_s} s and median {self.median_s} s; "
                "times are positive, finite, and the best is not above the median."
            )
