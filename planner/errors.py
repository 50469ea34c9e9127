"""Every error a user can meet, in one place.

PlannerError
|-- SpecError          the request is wrong: an unknown model, an illegal degree, an unreadable file
|-- ProfileError       a hardware profile lacks a fact or holds a wrong one
|-- InfeasibleError    the request is fine, but nothing fits
|-- CalibrationError   measurements cannot be fitted or do not match the device
|-- EmitError          a plan cannot be written, or not for this framework
|-- ValidationError    a check against MindSpore could not be carried out, or failed
`-- PredictedOutOfMemory   raised by ``MemoryEstimator.check``

A message says what is wrong, the value, the legal values and the next step.  The command line prints it
without a traceback and exits with ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Mapping


class PlannerError(Exception):
    """Base of all errors that users can cause and mend."""

    exit_code = 2


class SpecError(PlannerError):
    """The request itself is wrong: an unknown name, an illegal number, an unreadable file."""


class ProfileError(PlannerError):
    """A hardware profile lacks a needed fact, has an unknown key or an impossible number."""


class InfeasibleError(PlannerError):
    """Nothing satisfies the request.

    Parameters
    ----------
    message : str
        What does not fit and the smallest change that would help.
    removed : mapping of str to int
        Candidates removed by each rule.
    minimum_devices : int or None
        Fewest devices of this kind on which something fits, when known.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        removed: Mapping[str, int] | None = None,
        minimum_devices: int | None = None,
    ) -> None:
        super().__init__(message)
        self.removed = dict(removed or {})
        self.minimum_devices = minimum_devices


class CalibrationError(PlannerError):
    """Measurements cannot be fitted, or do not belong to this device."""


class EmitError(PlannerError):
    """A plan cannot be written: the target cannot hold it, or the path is not usable."""


class ValidationError(PlannerError):
    """A check against the framework failed or could not be carried out."""

    exit_code = 4


class PredictedOutOfMemory(PlannerError):  # noqa: N818 - named after what users see on the device
    """The predicted peak is over the limit.

    Parameters
    ----------
    message : str
        Stage, peak, limit, breakdown and the nearest changes that fit.
    peak_bytes, limit_bytes : float
        Predicted peak of the heaviest stage and the limit it breaks [bytes].
    """

    exit_code = 3

    def __init__(self, message: str, *, peak_bytes: float, limit_bytes: float) -> None:
        super().__init__(message)
        self.peak_bytes = peak_bytes
        self.limit_bytes = limit_bytes
