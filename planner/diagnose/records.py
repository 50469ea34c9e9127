"""What a diagnosis says, as records; seconds are those of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Parts of a step, in the order in which they are shown; they add up to its length.
PARTS: Final = ("compute", "exposed", "data", "bubble", "free")


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number from which on something is worth a finding, and who says so.

    Attributes
    ----------
    value : float
        Share, ratio or count; the finding's text says of what.
    source : str
    """

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """Where the mean steady step of one rank goes.

    Attributes
    ----------
    rank, stage : int or None
    steps : int
        Steps that were averaged.
    compute_s, exposed_s, data_s, bubble_s, free_s : float
        Computation; communication alone without waiting for other stages; host and data before the first operator;
        waiting for other stages; neither [s].
    overlapped_s : float
        Communication under computation, which adds nothing [s].
    pipeline_wait_s : float
        The bubble's part in point-to-point operators [s].
    off_frac : float or None
        Distance of the parts' sum from the length that the file writes; None where it writes none.
    """

    rank: int | None
    stage: int | None
    steps: int
    compute_s: float
    exposed_s: float
    data_s: float
    bubble_s: float
    free_s: float
    overlapped_s: float = 0.0
    pipeline_wait_s: float = 0.0
    off_frac: float | None = None

    @property
    def step_s(self) -> float:
        """Length of the step [s]."""
        return self.compute_s + self.exposed_s + self.data_s + self.bubble_s + self.free_s

    def share(self, part: str) -> float:
        """One of `PARTS` over the step."""
        return float(getattr(self, f"{part}_s")) / self.step_s if self.step_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that costs time.

    Attributes
    ----------
    kind : str
        ``"too few micro-batches"``, ``"unequal stages"``, ``"slow rank"``, ...
    text : str
        What was seen, with its number.
    number : float
        That number, in the unit of the threshold.
    threshold : Threshold
    gain_s : float
        Seconds of a step that the change could save, alone [s]; NaN when they cannot be told.
    advice : str
        What to change first.
    ranks : tuple of int
        Ranks it was seen on.
    """

    kind: str
    text: str
    number: float
    threshold: Threshold
    gain_s: float
    advice: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of the step as predicted and as observed [s]; None where the file does not tell."""

    name: str
    predicted_s: float
    observed_s: float | None

    @property
    def slower_s(self) -> float | None:
        """Seconds beyond the prediction [s]."""
        return None if self.observed_s is None else self.observed_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Answer of `planner diagnose`.

    Attributes
    ----------
    source, format : str
    step_s : float or None
        Median step of a log, or the longest mean step of a profile's ranks; None where no step is written.
    ranks : tuple of RankTime
    findings : tuple of Finding
        The largest gain first; those without known gain last.
    terms : tuple of Term
        Against a plan; empty without.
    interval_s : tuple of float or None
        80 % interval of the plan's step [s].
    notes, missing : tuple of str
        As in `planner.observe.records.Observation`, and what could not be told.
    """

    source: str
    format: str
    step_s: float | None
    ranks: tuple[RankTime, ...]
    findings: tuple[Finding, ...]
    terms: tuple[Term, ...] = ()
    interval_s: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def limit(self) -> Finding | None:
        """The one thing that limits the step: the finding with most to gain."""
        return self.findings[0] if self.findings else None
