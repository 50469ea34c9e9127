"""A ledger of changes: what was thought, changed, predicted and measured, and what came of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from planner.errors import SpecError

Verdict = Literal["helped", "no effect", "hurt", "inside the noise", "not measured"]

#: Spread of steady steps (1.4826 x median deviation over the median) that 9 of 10 of 65 public Ascend runs stay below.
NOISE: Final = 0.015
SCHEMA: Final = "planner/ledger/1"
_LIMIT_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change.

    Attributes
    ----------
    hypothesis : str
        Why it should help, in the user's words.
    changes : tuple of str
        Differences; more than one is no experiment, because nothing says which of them worked.
    predicted : float or None
        Share of a step predicted to be saved.
    measured_before_s, measured_after_s : float or None
        Measured seconds for the tokens of a step of the first [s].
    noise : float
        Share of a step below which a difference is noise.
    """

    hypothesis: str
    changes: tuple[str, ...]
    predicted: float | None
    measured_before_s: float | None = None
    measured_after_s: float | None = None
    noise: float = NOISE

    @property
    def measured(self) -> float | None:
        """Share of a step that was saved."""
        if self.measured_before_s is None or self.measured_after_s is None:
            return None
        return 1 - self.measured_after_s / self.measured_before_s

    @property
    def verdict(self) -> Verdict:
        """What came of it.

        Within the noise, "no effect" is said where more than the noise was predicted: the change could have shown.

        >>> Entry(hypothesis="", changes=("a",), predicted=0.1, measured_before_s=10, measured_after_s=9.95).verdict
        'no effect'
        """
        gain = self.measured
        if gain is None:
            return "not measured"
        if abs(gain) >= self.noise:
            return "helped" if gain > 0 else "hurt"
        return "no effect" if abs(self.predicted or 0.0) >= self.noise else "inside the noise"

    @property
    def single(self) -> bool:
        """One variable was changed."""
        return len(self.changes) == 1


def read(path: str) -> tuple[Entry, ...]:
    """Entries of a file; none where it does not exist yet.

    Raises
    ------
    SpecError
        The file is no ledger.
    """
    file = Path(path)
    if not file.exists():
        return ()
    try:
        if file.stat().st_size > _LIMIT_BYTES:
            raise SpecError(f"{path} is larger than {_LIMIT_BYTES} bytes; no ledger is.")
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read as a ledger: {error}.") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA or not isinstance(body.get("entries"), list):
        raise SpecError(f"{path} is no ledger; it needs schema {SCHEMA} and a list of entries.")
    return tuple(_entry(each, f"{path}: entry {number}") for number, each in enumerate(body["entries"], 1))


def _entry(body: Any, place: str) -> Entry:
    import msgspec

    known = {f.name for f in fields(Entry)}
    if not isinstance(body, dict) or set(body) != known:
        raise SpecError(f"{place} must have exactly {', '.join(sorted(known))}.")
    try:
        entry = msgspec.convert(body, Entry)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {error}.") from None
    times = (entry.measured_before_s, entry.measured_after_s)
    if any(time is not None and not time > 0 for time in times) or not entry.noise >= 0:
        raise SpecError(f"{place}: seconds must be positive and noise not negative.")
    return entry


def dumps(entries: tuple[Entry, ...]) -> str:
    """The file's text."""
    body = {"schema": SCHEMA, "entries": [asdict(entry) for entry in entries]}
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
