"""What the emitted MindSpore script (``pretrain.py``) prints: its parameters, every step, its memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from planner.errors import CalibrationError
from planner.units import GIB

_NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
_PARAMETERS = re.compile(r"^(\d+) parameters$", re.MULTILINE)
_RANK = re.compile(r"^rank (\d+) of (\d+), process (\d+)$", re.MULTILINE)
_STEP = re.compile(rf"^step (\d+) loss (\S+) {_NUMBER} s \S+ tokens/s/device$", re.MULTILINE)
_PEAK = re.compile(rf"^peak {_NUMBER} GiB$", re.MULTILINE)
_HELD = re.compile(r"^parameters and states (\d+) bytes$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step as one rank printed it.

    Attributes
    ----------
    loss : float
        NaN where the script printed one.
    seconds : float
        Wall time of the step; the first includes compilation [s].
    """

    number: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLog:
    """Log of one rank.

    Attributes
    ----------
    rank, ranks, process : int or None
        Which rank of how many, and its process number; None in logs of older scripts.
    parameters : int or None
        Trainable parameters of the network.
    steps : tuple of Step
        In the order printed.
    peak_bytes : int or None
        Peak of the device's memory counters; None where it has none (CPU) [bytes].
    held_bytes : int or None
        Parameters, optimizer states and accumulated gradients, printed where there are no counters [bytes].
    """

    rank: int | None
    ranks: int | None
    process: int | None
    parameters: int | None
    steps: tuple[Step, ...]
    peak_bytes: int | None
    held_bytes: int | None


def read_native_log(text: str, *, source: str = "log") -> NativeLog:
    r"""Figures of one rank's log; other lines are passed over.

    Raises
    ------
    CalibrationError
        Steps do not follow each other, or a step took no time: the log of two runs, or of a clock that stepped back.

    >>> log = read_native_log("4 parameters\nstep 1 loss 2.5 0.25 s 512 tokens/s/device\n")
    >>> log.parameters, log.steps
    (4, (Step(number=1, loss=2.5, seconds=0.25),))
    """
    steps = tuple(
        Step(number=int(number), loss=_float(loss), seconds=float(seconds))
        for number, loss, seconds in _STEP.findall(text)
    )
    for expected, step in enumerate(steps, start=1):
        if step.number != expected:
            raise CalibrationError(
                f"{source}: step {step.number} follows step {expected - 1}; give the log of one run."
            )
        if not step.seconds > 0.0:
            raise CalibrationError(f"{source}: step {step.number} took {step.seconds:g} s; the clock stepped back.")
    who, peak = _RANK.search(text), _PEAK.search(text)
    return NativeLog(
        rank=int(who[1]) if who else None,
        ranks=int(who[2]) if who else None,
        process=int(who[3]) if who else None,
        parameters=_first(_PARAMETERS, text),
        steps=steps,
        peak_bytes=round(float(peak[1]) * GIB) if peak else None,
        held_bytes=_first(_HELD, text),
    )


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _float(text: str) -> float:
    """A printed loss; anything unreadable counts as not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
