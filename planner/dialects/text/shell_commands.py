"""Which words of a launch script reach the program that it starts.

A flag counts when the command that starts the program names it, or names the variable or the array that holds it; a
variable full of flags that no command uses changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from planner.dialects.text.shell_read import Word, assignment, pieces, tokens

#: What starts a training program, by the last part of its name.
_STARTERS: Final = frozenset("torchrun msrun deepspeed accelerate".split())
_WHOLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-[^{}]*)?\})")
_NAMES: Final = re.compile(r"\$\{?(\w+)")
_OPENING: Final = re.compile(r"([A-Za-z_]\w*)\+?=")
_MOST_WORDS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Words of the commands that start programs.

    Attributes
    ----------
    words : list of Word
        Variables and arrays put in; empty where no command starts a program.
    idle : list of Word
        Names of the variables that hold flags and that nothing in the script uses, with their lines.
    """

    words: list[Word]
    idle: list[Word]


@dataclass(slots=True)
class _Shell:
    """Variables of a script while it is walked through."""

    text: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[Word]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    def keep(self, name: str, words: list[Word], line: int, *, more: bool) -> None:
        """Words of a variable or an array."""
        self.held[name] = ((self.held.get(name, []) if more else []) + words)[:_MOST_WORDS]
        self.lines[name] = line

    def expanded(self, word: Word) -> list[Word]:
        """A word as the shell would pass it on."""
        found = _WHOLE.fullmatch(word.text)
        name = (found[1] or found[2]) if found else None
        if name in self.held:
            return self.held[name]
        return pieces(word, self.text)


def launched(text: str) -> Launched:
    r"""Words that reach the programs a script starts.

    >>> found = launched('A="--tp 8"\nB="--pp 2"\ntorchrun train.py $A --dp 4\n')
    >>> [word.text for word in found.words], [word.text for word in found.idle]
    (['torchrun', 'train.py', '--tp', '8', '--dp', '4'], ['B'])
    """
    shell, result = _Shell(), list[Word]()
    for name, command in _commands(text):
        shell.named |= {found for word in command for found in _NAMES.findall(word.text)}
        if name:
            words = [piece for word in command[1:] for piece in shell.expanded(word)]
            shell.keep(name, words, command[0].line, more=command[0].text.endswith("+="))
            continue
        words = []
        for word in command:
            _assign(word, shell)
            words += shell.expanded(word)
        if any(_starts(word.text) for word in words):
            result += words
    if not result:
        return Launched(words=[], idle=[])
    return Launched(words=result, idle=[Word(name, shell.lines[name]) for name in shell.held if _idle(name, shell)])


def _assign(word: Word, shell: _Shell) -> None:
    found = assignment(word.text, shell.text)
    if not found:
        return
    name, value = found
    before = word.text.index("=") + 1
    inner = pieces(Word(word.text[before:], word.line), shell.text)
    shell.text[name] = value
    shell.keep(name, [piece for piece in inner if piece.text.strip()], word.line, more=False)


def _idle(name: str, shell: _Shell) -> bool:
    """Whether a variable holds flags and is named nowhere."""
    return name not in shell.named and any(re.match(r"--[a-z]", word.text) for word in shell.held[name])


def _starts(text: str) -> bool:
    return text.endswith(".py") or text.rsplit("/", 1)[-1] in _STARTERS or text == "torch.distributed.launch"


def _commands(text: str) -> Iterator[tuple[str, list[Word]]]:
    """Simple commands; for ``name=(...)`` and ``name+=(...)`` the name, and its opening word before the others."""
    command: list[Word] = []
    array = ""
    for token in tokens(text):
        if isinstance(token, Word):
            command.append(token)
            continue
        opening = _OPENING.fullmatch(command[-1].text) if command and not array else None
        if token == "(" and opening:
            yield "", command[:-1]
            command, array = command[-1:], opening[1]
        elif array and token != ")":
            continue
        else:
            yield array, command
            command, array = [], ""
    yield array, command
