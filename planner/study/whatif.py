"""Two jobs side by side: what differs, what each difference gives alone, and how far gains do not add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.study.jobs import Job, Outcome, differing, judge, mixed

#: What a change of a variable does to learning, which no number of seconds says.
LEARNING: Final = {
    "global batch": (
        "another global batch is another training: Adam's learning rate goes with its square root (arXiv 2205.10287), "
        "SGD's linearly with a warm-up (arXiv 1706.02677), and beyond the critical batch more samples are needed "
        "(arXiv 1812.06162)"
    ),
    "optimizer": "another optimizer needs its own learning rate and warm-up; compare time to equal loss",
    "number types": "other number types change rounding: watch loss, gradient norm and loss scale; compare equal loss",
    "sequence": "another sequence length changes what a sample teaches and the tokens of a step; compare equal loss",
    "framework": "another framework has other defaults of initialisation and rounding; compare equal loss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One difference.

    Attributes
    ----------
    alone : Outcome
        The first job with this variable of the second.
    alone_s : float or None
        Seconds a step of the first job saves by it alone [s]; None where one of the two has no seconds.
    step : Outcome
        After this and all variables before it in order.
    step_s : float or None
        Seconds saved by it where those before it are applied [s].
    """

    name: str
    words: str
    alone: Outcome
    alone_s: float | None
    step: Outcome
    step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Answer of `planner compare` for two jobs; seconds are of the tokens of a step of the first.

    Attributes
    ----------
    variables : tuple of Variable
        In the order in which they are best applied: each time the one that saves most.
    together_s : float or None
        Saved by all [s].
    sum_s : float or None
        Sum of what each saves alone [s]; None where one of them alone has no seconds.
    """

    before: Outcome
    after: Outcome
    variables: tuple[Variable, ...]
    together_s: float | None
    sum_s: float | None

    @property
    def interplay_s(self) -> float | None:
        """How much more all save together than the sum of each alone [s]."""
        return None if self.together_s is None or self.sum_s is None else self.together_s - self.sum_s

    @property
    def learning(self) -> tuple[str, ...]:
        """What the differences do to learning."""
        return tuple(LEARNING[each.name] for each in self.variables if each.name in LEARNING)


def compare(before: Job, after: Job) -> Comparison:
    """Differences of two jobs of one model, one variable at a time.

    Raises
    ------
    SpecError
        Different models.
    """
    names = differing(before, after)
    first, last = judge(before), judge(after)
    alone = {name: judge(mixed(before, after, {name})) for name in names}
    done: list[str] = []
    at, variables = first, []
    while len(done) < len(names):
        tried = {name: judge(mixed(before, after, {*done, name})) for name in names if name not in done}
        name = min(tried, key=lambda each: (tried[each].why != "", tried[each].seconds_a_token or 0.0))
        if len(tried) == 1:
            tried[name] = last
        variables.append(
            Variable(
                name=name,
                words=names[name],
                alone=alone[name],
                alone_s=saved_s(first, alone[name], before.tokens),
                step=tried[name],
                step_s=saved_s(at, tried[name], before.tokens),
            )
        )
        at = tried[name]
        done.append(name)
    singles = [each.alone_s for each in variables if each.alone_s is not None]
    return Comparison(
        before=first,
        after=last,
        variables=tuple(variables),
        together_s=saved_s(first, last, before.tokens),
        sum_s=sum(singles) if len(singles) == len(variables) else None,
    )


def saved_s(one: Outcome, other: Outcome, tokens: int) -> float | None:
    """Seconds saved for so many tokens [s]; None where one of the two cannot run."""
    if one.seconds_a_token is None or other.seconds_a_token is None:
        return None
    return (one.seconds_a_token - other.seconds_a_token) * tokens
