"""What a training log says beside its steps: checkpoints, memory, skipped data, errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from planner.observe.run import Event

#: Events kept of one log; the rest is counted in the last one.
MOST_EVENTS: Final = 1000
_TEXT: Final = 200
#: Word in the line, kind.
_WORDS: Final = (
    (b"Saving ckpt", "checkpoint"), (b"Finish saving", "checkpoint"), (b"saving checkpoint at iteration", "checkpoint"),
    (b"successfully saved checkpoint", "checkpoint"), (b"Saving the checkpoint", "checkpoint"),
    (b"consecutive times greater than threshold", "norm above threshold"), (b"TREError occurred", "error"),
    (b"Traceback (most recent call last)", "error"), (b"RuntimeError:", "error"), (b"ValueError:", "error"),
    (b"out of memory", "error"), (b"Out of memory", "error"), (b"[ERROR]", "error"),
    (b"| max allocated:", "memory"), (b"Device MOC memory size", "memory"), (b"Used peak memory usage", "memory"),
    (b"Actual peak memory usage", "memory"), (b"odel flops", "flops"),
)  # fmt: skip
#: Few parts that every word above has one of.
_STEMS: Final = (
    b"ckpt", b"aving", b"saved checkpoint", b"greater than threshold", b"Error", b"Traceback", b" memory", b"[ERROR]",
    b"max allocated", b"odel flops",
)  # fmt: skip
_SECONDS: Final = re.compile(rb"using ([\d.]+) seconds|in ([\d.]+) s(?:ec|\b)")
_STEP: Final = re.compile(rb"(?:step|iteration)\s+(\d+)")
#: Megatron's line: MB = 2^20 bytes.
_RANK_MEMORY: Final = re.compile(rb"\[Rank (\d+)\].*?max allocated:\s*([\d.]+)(?:.*?max reserved:\s*([\d.]+))?")
#: MindSpore's lines at the end of a run: M = 2^20 bytes.
_PEAK: Final = re.compile(rb"Actual peak memory usage \(with fragments\):\s*(\d+)M")
_MIB: Final = 2.0**20


@dataclass
class EventReader:
    """Events of a log while it is read.

    Attributes
    ----------
    kept : list of Event
    peak_bytes : dict of int to float
        Peak memory by rank [bytes]; -1 is the rank that wrote the log.
    """

    kept: list[Event] = field(default_factory=list)
    peak_bytes: dict[int, float] = field(default_factory=dict)
    more: int = 0

    def present(self, block: bytes) -> list[bytes]:
        """Parts of words that occur in a block."""
        return [word for word in _STEMS if word in block]

    def read(self, line: bytes) -> None:
        """One line that is no step."""
        kind = next((kind for word, kind in _WORDS if word in line), None)
        if kind is None:
            return
        if kind == "memory":
            self._memory(line)
        if len(self.kept) >= MOST_EVENTS:
            self.more += 1
            self.kept[-1] = Event(kind="more", text=f"{self.more + 1} further events")
            return
        seconds, step = _SECONDS.search(line), _STEP.search(line)
        self.kept.append(
            Event(
                kind=kind,
                step=int(step[1]) if step else None,
                seconds=float(seconds[1] or seconds[2]) if seconds else None,
                text=line.decode(errors="replace").strip()[:_TEXT],
            )
        )

    def _memory(self, line: bytes) -> None:
        if found := _RANK_MEMORY.search(line):
            self._peak(int(found[1]), float(found[3] or found[2]))
        elif found := _PEAK.search(line):
            self._peak(-1, float(found[1]))

    def _peak(self, rank: int, mib: float) -> None:
        self.peak_bytes[rank] = max(self.peak_bytes.get(rank, 0.0), mib * _MIB)
