"""One figure predicted and observed: the shape in which every validation answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A term beside what was observed of it.

    Attributes
    ----------
    term : str
        What is compared: ``"step time"``, ``"peak memory"``, ...
    unit : {"s", "bytes"}
    predicted, observed : float or None
        None: the model has no such figure, or nothing that was left behind tells it.
    low, high : float or None
        80 % interval of the prediction, where it has one.
    why : str
        Where the observed figure comes from, or why there is none.
    """

    term: str
    unit: str
    predicted: float | None
    observed: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Observed over predicted; None without both, or where nothing was predicted."""
        if self.predicted is None or self.observed is None or self.predicted <= 0.0:
            return None
        return self.observed / self.predicted

    @property
    def inside(self) -> bool | None:
        """Whether the observed figure lies within the interval; None without an interval or a figure.

        >>> Compared(term="step time", unit="s", predicted=1.0, observed=1.3, low=0.8, high=1.2).inside
        False
        """
        if self.observed is None or self.low is None or self.high is None:
            return None
        return self.low <= self.observed <= self.high
