"""Flags of a MindSpeed-LLM or Megatron launch script, with their values and lines."""

from __future__ import annotations

import re
from typing import Final

from planner.dialects.mindspeed.flags import ALIASES, FLAGS, SWITCH, real_names
from planner.dialects.mindspeed.recompute import Nodes
from planner.dialects.mindspeed.weights import PLAIN_SPECS, WEIGHTS
from planner.dialects.text.shell_commands import launched
from planner.dialects.text.shell_read import Word, words
from planner.dialects.weights import Unread
from planner.errors import SpecError

_LAUNCHER: Final = ("--nproc_per_node", "--nproc-per-node", "--nnodes", "--node_rank", "--node-rank", "--master_addr",
                    "--master-addr", "--master_port", "--master-port")  # fmt: skip


#: Values with which a flag changes nothing.
_PLAIN: Final = frozenset(
    {("--stage", "sft"), ("--stage", "pt"), ("--loss-compute-mode", "default"), ("--swap-modules", "")}
)
#: Longer values are not repeated in messages.
_SHORT: Final = 60
#: Numbers of each node: ``name=(8 8 4 4)``, used as ``${name[node_rank]}``.
_ARRAY: Final = re.compile(r"(?m)^[ \t]*([A-Za-z_]\w*)=\(([0-9]{1,6}(?: [0-9]{1,6})*)\)")
_ARRAY_LIMIT: Final = 100_000
_OF_NODE: Final = re.compile(r"\$\{(\w+)\[\$?(?:node_rank|NODE_RANK)\]\}")
_LITERAL: Final = re.compile(r"[0-9.]+|true|false|True|False|yes|no|on|off")


class Flags:
    """Flags of a script with their values; remembers which were read.

    Attributes
    ----------
    values : dict
        Value of each flag that is known; None for a switch.
    strange : list of (flag, line)
        Flags that are not in the table.
    loose : dict
        What stands behind each of these, when it is no flag.
    stray : list of (flag, value, line)
        Values behind switches.
    again : list of (flag, line)
        Flags given again with another value.
    idle : list of Word
        Variables full of flags that no command uses.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.values: dict[str, str | None] = {}
        self.lines: dict[str, int] = {}
        self.read: set[str] = set()
        self.strange: list[tuple[str, int]] = []
        self.loose: dict[str, str] = {}
        self.stray: list[tuple[str, str, int]] = []
        self.again: list[tuple[str, int]] = []
        self.arrays = {
            name: tuple(map(int, numbers.split()))
            for name, numbers in _ARRAY.findall(text)
            if len(numbers) < _ARRAY_LIMIT
        }
        found = launched(text)
        self.idle = found.idle
        self._collect(found.words if is_script(" ".join(w.text for w in found.words)) else words(text))

    def _collect(self, found: list[Word]) -> None:
        for i, word in enumerate(found):
            if not word.text.startswith("--") or len(word.text) < 4:
                continue
            name, _, inline = word.text.partition("=")
            name = ALIASES.get(name, name)
            following = found[i + 1].text if i + 1 < len(found) else ""
            if name not in FLAGS and name not in _LAUNCHER:
                self.strange.append((name, word.line))
                self.loose.setdefault(
                    name, inline or ("" if following.startswith("--") or "$" in following else following)
                )
                continue
            switch = name in FLAGS and FLAGS[name].kind == SWITCH
            if switch and (inline or _LITERAL.fullmatch(following)):
                self.stray.append((name, inline or following, word.line))
            value = None if switch else (inline or following)
            if self.values.get(name, value) != value and name in FLAGS:
                self.again.append((name, word.line))
            self.values[name] = value
            self.lines[name] = word.line

    def where(self, name: str) -> str:
        """File, line and name of a flag, for messages."""
        return f"{self.source}, line {self.lines.get(name, 1)}: {name}"

    def has(self, name: str) -> bool:
        """Whether a switch or a flag is given."""
        self.read.add(name)
        return name in self.values

    def text(self, name: str, default: str | None = None) -> str:
        """Value of a flag; checked against its choices."""
        self.read.add(name)
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise SpecError(f"{self.source}: {name} is missing; add it.")
            return default
        choices = FLAGS[name].choices if name in FLAGS else ()
        if choices and value not in choices:
            raise SpecError(f"{self.where(name)} {value}: legal: {', '.join(choices)}.")
        return value

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Whole number of a flag."""
        value = self.text(name, None if default is None else str(default))
        try:
            number = int(value)
        except ValueError:
            raise SpecError(f"{self.where(name)} {value} is no whole number.") from None
        if number < least:
            raise SpecError(f"{self.where(name)} {number} must be at least {least}.")
        return number

    def per_stage(self, name: str, stages: int, default: int, least: int = 0) -> tuple[int, ...]:
        """Whole number of a flag for each pipeline stage; a number for each node is dealt to the stages on it."""
        found = _OF_NODE.fullmatch(self.values.get(name) or "")
        if not found:
            return (self.integer(name, default, least),) * stages
        self.read.add(name)
        numbers, local = self.arrays.get(found[1], ()), self.launched("--nproc_per_node", "--nproc-per-node")
        if not numbers or not local or len(numbers) != (self.launched("--nnodes") or 1):
            raise SpecError(
                f"{self.where(name)}: {found[0]} needs an array {found[1]}=(...) with a number for each node."
            )
        return Nodes(len(numbers), local, stages).counts(numbers)

    def launched(self, *names: str) -> int | None:
        """Number behind an option of torchrun, where the script says it."""
        found = [self.values.get(name) for name in names]
        return next((int(value) for value in found if value and value.isdigit() and int(value) > 0), None)

    def weigh(self, unread: Unread) -> None:
        """Sort the flags that were given and not read by what they do to the answer."""
        left = [(name, self.lines[name]) for name in self.values if name not in self.read and name not in _LAUNCHER]
        given = [(name, line) for name, line in (*left, *self.strange) if not self._plain(name)]
        unread.weigh(WEIGHTS, ((name[2:], self._shown(name, line)) for name, line in given))

    def _plain(self, name: str) -> bool:
        """Whether the value of a flag is the one that changes nothing."""
        value = self.loose.get(name, "") or self.values.get(name) or ""
        if name == "--spec":
            return value.rsplit(".", 1)[-1] in PLAIN_SPECS
        return (name, value) in _PLAIN

    def _shown(self, name: str, line: int) -> str:
        value = self.loose.get(name, "") or self.values.get(name) or ""
        known = "" if name in real_names() else ", no flag that is known here"
        return f"{name}{f' {value}' if value and len(value) < _SHORT else ''} (line {line}{known})"

    @property
    def unknown(self) -> list[str]:
        """Names of the flags that are not in the table."""
        return [name for name, _ in self.strange]

    def devices(self) -> int | None:
        """World size, where the script says it."""
        local = self.launched("--nproc_per_node", "--nproc-per-node")
        return None if local is None else local * (self.launched("--nnodes") or 1)


def is_script(text: str) -> bool:
    """Whether a text looks like a Megatron launch script."""
    plain = text.replace("_", "-")  # a flag spelled with underscores is for the check to find
    return "--num-layers" in plain and "--hidden-size" in plain
