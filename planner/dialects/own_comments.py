"""Comments that the planner wrote into a file, brought up to the strategy that now stands there; a user's own stay.

What the planner wrote is known by writing the old plan once more: a comment that stands behind the same key there is
its own, and becomes what it writes for the new plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

#: Every file of the planner says so in its head.
MARK: Final = "# Written by planner "
#: Lines of the head that speak of the strategy: the job, its degrees, what is predicted.
_HEAD: Final = tuple(
    re.compile(pattern) for pattern in (r"# .+: pre-training on \d+ x ", r"# dp \d+ x tp \d+ x ", r"# Predicted: ")
)
_COMMENT: Final = re.compile(r"^(?P<code>\s*[^\s#].*?)(?P<gap>\s+)(?P<comment># .*)$")
_KEY: Final = re.compile(r"^(?P<indent>\s*)(?:- )?(?P<key>--[\w-]+|[\w.-]+(?=:))")

Place = tuple[str, ...]


def refreshed(text: str, old: str, new: str) -> str:
    r"""The text with its own comments renewed.

    Parameters
    ----------
    text : str
        A rewritten file.
    old, new : str
        Files that the planner writes for the plans before and after.

    >>> refreshed("tp: 4  # 8 heads\npp: 2  # mine", "tp: 2  # 8 heads\npp: 1  # flat", "tp: 4  # 4 heads\npp: 2")
    'tp: 4  # 4 heads\npp: 2  # mine'
    """
    before, after = dict(_comments(old)), dict(_comments(new))
    lines = []
    for line, place in zip(text.split("\n"), _places(text), strict=True):
        kind = next((pattern for pattern in _HEAD if pattern.match(line)), None)
        found = _COMMENT.match(line)
        if kind is not None:
            lines += [_named_as(line, other) for other in new.split("\n") if kind.match(other)][:1]
        elif found and place and before.get(place) == found["comment"]:
            lines.append(_renewed(found, after, place))
        else:
            lines.append(line)
    return "\n".join(lines)


def _named_as(line: str, other: str) -> str:
    """The first line of the head keeps its name of the model: a file read back does not know it."""
    name, job, _ = line.partition(": pre-training on ")
    return name + job + other.partition(job)[2] if job else other


def _renewed(found: re.Match[str], after: Mapping[Place, str], place: Place) -> str:
    return found["code"] + found["gap"] + after[place] if place in after else found["code"]


def _comments(text: str) -> Iterator[tuple[Place, str]]:
    for line, place in zip(text.split("\n"), _places(text), strict=True):
        found = _COMMENT.match(line)
        if found and place:
            yield place, found["comment"]


def _places(text: str) -> Iterator[Place]:
    """Path of the key on each line, by indentation; empty where none stands."""
    path: list[tuple[int, str]] = []
    for line in text.split("\n"):
        found = _KEY.match(line)
        if not found:
            yield ()
            continue
        depth = len(found["indent"])
        path = [part for part in path if part[0] < depth] + [(depth, found["key"])]
        yield (found["key"],) if found["key"].startswith("--") else tuple(key for _, key in path)
