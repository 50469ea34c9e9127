"""Reading sections of a file: typed values with a clear message, and a list of what nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.dialects.text.yaml_read import Document
from planner.errors import SpecError

_MISSING: Final = object()
_MOST: Final = 10**12


class Section:
    """One mapping of a document that remembers which keys were read.

    Parameters
    ----------
    document : Document
    path : str
        Keys from the top; a missing section reads as empty.
    """

    def __init__(self, document: Document, *path: str) -> None:
        self.document, self.path = document, path
        node: Any = document.root
        for depth, key in enumerate(path, 1):
            node = node.get(key)
            if node is None:
                break
            if not isinstance(node, Mapping):
                where = f"{document.source}, line {document.line(*path[:depth])}: {'.'.join(path[:depth])}"
                raise SpecError(f"{where}: expected a section with keys, found {node!r}.")
        self.values: dict[str, Any] = dict(node or {})
        self.read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def where(self, key: str = "") -> str:
        """File, line and dotted name of a key, for messages."""
        path = (*self.path, key) if key else self.path
        return f"{self.document.source}, line {self.document.line(*path)}: {'.'.join(path)}"

    def _raw(self, names: Sequence[str], default: Any) -> tuple[str, Any]:
        for name in names:
            if self.values.get(name) is not None:
                self.read.update(n for n in names if n in self.values)
                return name, self.values[name]
        self.read.update(n for n in names if n in self.values)
        if default is _MISSING:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise SpecError(f"{self.where()}: {names[0]}{also} is missing; add it.")
        return names[0], default

    def integer(self, *names: str, default: Any = _MISSING, least: int = 0) -> int:
        """Whole number under the first of `names` that is given."""
        name, value = self._raw(names, default)
        if isinstance(value, int) and value > _MOST:
            raise SpecError(f"{self.where(name)} is {value}; no size or degree is above {_MOST:,}.")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(f"{self.where(name)} is {value!r}; it must be a whole number of at least {least}.")
        return value

    def flag(self, *names: str, default: Any = _MISSING) -> bool:
        """True or False under the first of `names` that is given."""
        name, value = self._raw(names, default)
        if not isinstance(value, bool):
            raise SpecError(f"{self.where(name)} is {value!r}; it must be True or False.")
        return value

    def text(self, *names: str, default: Any = _MISSING) -> str:
        """Text under the first of `names` that is given."""
        name, value = self._raw(names, default)
        if not isinstance(value, str):
            raise SpecError(f"{self.where(name)} is {value!r}; it must be a text.")
        return value

    def number(self, *names: str, default: Any = _MISSING) -> float:
        """Number under the first of `names` that is given."""
        name, value = self._raw(names, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SpecError(f"{self.where(name)} is {value!r}; it must be a number.")
        return float(value)

    def any(self, *names: str, default: Any = None) -> Any:
        """Value of any kind under the first of `names` that is given."""
        return self._raw(names, default)[1]

    def unread(self, ignored: Sequence[str] | frozenset[str] = (), *, only_set: bool = False) -> list[str]:
        """Dotted names of keys that were given, not read and not among `ignored`; with `only_set` also not False."""
        left = [key for key in self.values if key not in self.read and key not in ignored]
        return [".".join((*self.path, key)) for key in left if self.values[key] or not only_set]
