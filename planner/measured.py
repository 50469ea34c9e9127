"""A measured throughput beside the prediction: is it normal, and what could explain the difference."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from planner.cost.estimate import Estimate
from planner.cost.time.setting import peak_flop_per_s
from planner.errors import SpecError
from planner.model.operators import flop_per_token
from planner.search.explain import TIME_WORDS
from planner.search.suggest import Request
from planner.units import format_seconds

_MEASURED: Final = re.compile(r"\s*([0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")
#: Spellings of units, applied in this order to the lower-case text without blanks.
_SPELLINGS: Final = (
    (r"\bper\b", "/"), (r"\s+", ""), (r"(seconds?|secs?)\b", "s"), (r"(milliseconds?|msecs?)\b", "ms"),
    (r"(minutes?|mins?)\b", "min"), (r"(hours?|hrs?)\b", "h"), (r"\b(tokens?|toks?|tk)\b", "tokens"),
    (r"\b(samples?|sequences?|seqs?)\b", "samples"), (r"\b(steps?|iterations?|iters?|its?)\b", "step"),
    (r"\b(npu|gpu|device|chip|rank|p|die)s?$", "card"), (r"tokens/card/s", "tokens/s/card"),
    (r"samples/card/s", "samples/s/card"), (r"^tgs$", "tokens/s/card"), (r"^tokens/s/1card$", "tokens/s/card"),
    (r"t(era)?flops?(/s)?", "tflops"),
)  # fmt: skip
#: Seconds of one unit of time.
_TIME_S: Final = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
#: Slower steps than this are a slip of the unit [s].
_LONGEST_STEP_S: Final = 1e6
LEGAL: Final = (
    "'337 tokens/s/card', '10784 tokens/s', '97.2 s', '12300 ms', '2.6 samples/s', '160 TFLOPS/card' or '43% MFU'"
)

#: Terms named as possible explanations.
NAMED_TERMS: Final = 4
#: Work that the hardware must do: it does not become slower by a wrong setting alone.
_WORK: Final = ("compute_s", "attention_s", "head_loss_s", "mtp_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measurement and where it stands.

    Attributes
    ----------
    step_s : float
        Measured seconds of one step [s].
    ratio : float
        Measured over predicted seconds.
    verdict : {"as predicted", "slower", "faster"}
        Inside the 80 % interval, above or below it.
    explanations : tuple of str
        What each term would have to be to explain the difference alone, most plausible first.
    """

    step_s: float
    mfu: float
    ratio: float
    verdict: Literal["as predicted", "slower", "faster"]
    explanations: tuple[str, ...]


def measured_step_s(text: str, request: Request) -> float:
    """Seconds of one step from a throughput as people quote it.

    Raises
    ------
    SpecError
        Not a number with a known unit, or faster than the card's peak allows.
    """
    match = _MEASURED.fullmatch(text)
    unit = _plain_unit(match[2]) if match else ""
    number = float(match[1].replace(",", "")) if match else 0.0
    if not 0 < number < math.inf:
        raise SpecError(f"measured '{text}' is not a positive number with a unit; write {LEGAL}.")
    step_s = _step_s(number, unit, request)
    if step_s is None:
        raise SpecError(f"measured '{text}' has an unknown unit; write {LEGAL}.")
    share = utilisation(step_s, request)
    if share > 1:
        raise SpecError(
            f"measured '{text}' is {share:.0%} of the card's peak, which no run can reach; check the sequence length, "
            "the global batch and whether the figure is per card."
        )
    if step_s > _LONGEST_STEP_S:
        raise SpecError(f"measured '{text}' makes a step of {step_s:.3g} s; legal: up to {_LONGEST_STEP_S:.0f} s.")
    return step_s


def _plain_unit(text: str) -> str:
    """One spelling of a unit.

    >>> [_plain_unit(text) for text in ("tok/sec/NPU", "tokens per second per card", "Sec/step", "TFLOP/s/GPU", "%")]
    ['tokens/s/card', 'tokens/s/card', 's/step', 'tflops/card', '%']
    """
    unit = text.lower()
    for pattern, plain in _SPELLINGS:
        unit = re.sub(pattern, plain, unit)
    return unit


def _step_s(number: float, unit: str, request: Request) -> float | None:
    batch, cards = request.workload.global_batch, request.cluster.devices
    tokens = request.workload.seq * batch
    time = unit.removesuffix("/step")
    if time in _TIME_S:
        return number * _TIME_S[time]
    rates = {"tokens": tokens, "samples": batch, "step": 1}
    what, _, rest = unit.partition("/")
    if what in rates:
        per, _, card = rest.partition("/")
        if per in _TIME_S and card in ("", "card"):
            return rates[what] * _TIME_S[per] / number / (cards if card else 1)
    if unit in ("%", "%mfu", "mfu%", "mfu"):
        return utilisation(1.0, request) / (number if unit == "mfu" else number / 100)
    if unit in ("tflops", "tflops/card"):
        peak = peak_flop_per_s(request.cluster.hardware, request.workload.compute_dtype)
        return utilisation(1.0, request) * peak / (number * 1e12)
    return None


def utilisation(step_s: float, request: Request) -> float:
    """Model FLOP of a step over what the cards' matmul peak could do in that time."""
    workload, cluster = request.workload, request.cluster
    flop = flop_per_token(request.model, workload.seq) * workload.seq * workload.global_batch
    return flop / (step_s * cluster.devices * peak_flop_per_s(cluster.hardware, workload.compute_dtype))


def compare(step_s: float, request: Request, answer: Estimate) -> Measured:
    """Where a measured step stands against an estimate that fits."""
    if answer.step_s is None or answer.step_low_s is None or answer.step_high_s is None:
        raise SpecError(
            "the strategy is predicted not to fit, so there is no time to compare with; check what really ran."
        )
    verdict: Literal["as predicted", "slower", "faster"] = "as predicted"
    if step_s > answer.step_high_s:
        verdict = "slower"
    elif step_s < answer.step_low_s:
        verdict = "faster"
    return Measured(
        step_s=step_s,
        mfu=utilisation(step_s, request),
        ratio=step_s / answer.step_s,
        verdict=verdict,
        explanations=() if verdict == "as predicted" else _explanations(step_s, answer),
    )


def _explanations(step_s: float, answer: Estimate) -> tuple[str, ...]:
    """What single terms would have to be; those that can change most easily first."""
    gap, terms = step_s - (answer.step_s or 0.0), answer.time_s or {}
    found = []
    for name, word in TIME_WORDS.items():
        seconds = terms.get(name, 0.0)
        if seconds <= 0 or seconds + gap < 0:
            continue
        needed = seconds + gap
        found.append(
            (name in _WORK, -seconds, f"{word}: {format_seconds(needed)} instead of {format_seconds(seconds)}")
        )
    hidden = sum(seconds for name, seconds in terms.items() if name.endswith("_hidden_s"))
    if gap > 0 and hidden > 0:
        found.append((False, -hidden, f"traffic that was taken as hidden ({format_seconds(hidden)}) is not"))
    return tuple(words for _, _, words in sorted(found)[:NAMED_TERMS])
