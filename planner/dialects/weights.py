"""What a setting that was not read does to the answer: it decides it, shifts the time, or nothing.

One table for each kind of file.  A name that no table knows is weighed by the words it is made of: a setting that
speaks of experts, attention or adapters says what the network is, and leaving it out would price another one.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Weight = Literal["answer", "time", "none", "unknown"]

#: Parts of names that speak of the network, of what is trained, or of where memory lies.
_SPEAKING: Final = re.compile(
    r"(?:^|[-_])(moe|experts?|attn|attention|mamba|ssm|mla|dsa|gdn|deltanet|linear|sparse|indexer|window|fp8|fp4|quant"
    r"|quantization|qat|lora|adapters?|pet|freeze|frozen|swap|offload|offloading|pack|packing|shared|sharing|mlps?|ffn"
    r"|vision|layers|blocks|mtp|nextn|hidden|heads|vocab|stage|fsdp|zero3|kd|distill|teacher|retro)(?:$|[-_])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Settings of one kind of file by what they do when they are not read.

    Attributes
    ----------
    answer : mapping of str to str
        Pattern of names -> what such a setting changes in memory or in the network.
    time : mapping of str to str
        Pattern of names -> what it changes in the time of a step.
    harmless : tuple of str
        Patterns of names that change neither.
    """

    answer: Mapping[str, str]
    time: Mapping[str, str]
    harmless: tuple[str, ...]
    _exact: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_exact", frozenset(name for name in self.harmless if "*" not in name))

    def of(self, name: str) -> tuple[Weight, str]:
        """Weight of a setting that was not read, and what it changes.

        >>> table = Weights(answer={"fp8*": "8-bit products"}, time={}, harmless=("log-*",))
        >>> table.of("fp8-format"), table.of("log-interval"), table.of("twin-attention"), table.of("wizardry")
        (('answer', '8-bit products'), ('none', ''), ('answer', 'its name speaks of attention'), ('unknown', ''))
        """
        if name in self._exact:
            return "none", ""
        kinds: tuple[tuple[Weight, Mapping[str, str]], ...] = (("answer", self.answer), ("time", self.time))
        for weight, table in kinds:
            if name in table:
                return weight, table[name]
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.harmless):
            return "none", ""
        for weight, table in kinds:
            why = next((table[pattern] for pattern in table if fnmatch.fnmatchcase(name, pattern)), None)
            if why is not None:
                return weight, why
        found = _SPEAKING.search(name)
        return ("answer", f"its name speaks of {found[1]}") if found else ("unknown", "")


class Reason(str):
    """A line about a setting that decides the answer and that the caller accepted to leave out."""

    __slots__ = ()


@dataclass(slots=True)
class Unread:
    """What of a file was not read, each setting once, those with one reason on one line."""

    _notes: dict[str, list[str]] = field(default_factory=dict)
    _reasons: dict[str, list[str]] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not read, or read in a way worth a word, and does not decide the answer."""
        return tuple(f"{', '.join(given)}: {why}" if given else why for why, given in self._notes.items())

    @property
    def reasons(self) -> tuple[str, ...]:
        """What was not read and decides the answer."""
        return tuple(f"{', '.join(given)}: {why}" if given else why for why, given in self._reasons.items())

    def note(self, why: str, *given: str) -> None:
        """Something that does not decide the answer, and the settings that say it."""
        _add(self._notes, why, given)

    def reason(self, why: str, *given: str) -> None:
        """Something that makes the answer unreliable, and the settings that say it."""
        _add(self._reasons, why, given)

    def weigh(self, weights: Weights, names: Iterable[tuple[str, str]]) -> None:
        """Sort settings, given as name and as what is shown of them, by their weight.

        >>> found = Unread()
        >>> found.weigh(Weights(answer={"fp8*": "8-bit products"}, time={}, harmless=("log",)),
        ...             [("fp8-a", "--fp8-a (line 2)"), ("log", "--log (line 3)"), ("fp8-b", "--fp8-b (line 4)")])
        >>> found.reasons, found.notes
        (('--fp8-a (line 2), --fp8-b (line 4): 8-bit products',), ())
        """
        for name, shown in names:
            weight, why = weights.of(name)
            if weight == "answer":
                self.reason(why, shown)
            elif weight == "time":
                self.note(why, shown)
            elif weight == "unknown":
                self.note("not read", shown)


def _add(lines: dict[str, list[str]], why: str, given: tuple[str, ...]) -> None:
    known = lines.setdefault(why, [])
    known += [setting for setting in given if setting not in known]
