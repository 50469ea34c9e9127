"""YAML of unknown origin: read with limits, with the line of every key, and one clear message when it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from planner.errors import SpecError

LIMIT_BYTES: Final = 2 * 2**20
_LIMIT_NODES: Final = 200_000
_LIMIT_DEPTH: Final = 40

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed mapping.

    Attributes
    ----------
    source : str
        File name, for messages.
    text : str
    root : dict
        Plain Python values.
    lines : dict of tuple of str to int
        Line (from 1) of every key, by its path of keys; list positions are keys "0", "1" and so on.
    duplicates : tuple of (path, line)
        Keys given more than once in one mapping; the last one counts.
    """

    source: str
    text: str
    root: dict[str, Any]
    lines: dict[Key, int]
    duplicates: tuple[tuple[Key, int], ...]

    def line(self, *path: str) -> int:
        """Line of a key, or of the nearest key above it; 1 when there is none."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1


def read_text(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> str:
    """UTF-8 text of a file.

    Raises
    ------
    SpecError
        Missing, unreadable, too large, another encoding, binary.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise SpecError(f"{path} is not a file." if path.exists() else f"{path} does not exist.")
        size = path.stat().st_size
        if size > limit_bytes:
            raise SpecError(f"{path} has {size} bytes; a training configuration has at most {limit_bytes}.")
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SpecError(f"{path} is UTF-16 text; the frameworks read UTF-8: save it as UTF-8.")
    if b"\0" in data:
        raise SpecError(f"{path} is a binary file, not a text file.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8.") from None


def load(path: str | Path) -> Document:
    """Mapping of a YAML file.

    Raises
    ------
    SpecError
    """
    return loads(read_text(path), source=str(path))


def loads(text: str, *, source: str = "YAML") -> Document:
    """Mapping of YAML text.

    Raises
    ------
    SpecError
        Damaged YAML, tags that would build objects, aliases that expand without bound, no mapping at the top.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise SpecError(f"{source} is empty.")
        if not isinstance(node, yaml.MappingNode):
            raise SpecError(f"{source} holds no mapping of sections; it is not a training configuration.")
        _check_size(node, source)
        lines: dict[Key, int] = {}
        duplicates: list[tuple[Key, int]] = []
        _index(node, (), lines, duplicates)
        root = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise SpecError(_message(error, source)) from None
    except RecursionError:
        raise SpecError(f"{source} is nested too deeply; at most {_LIMIT_DEPTH} levels.") from None
    except ValueError as error:
        raise SpecError(f"{source}: a value cannot be read: {error}.") from None
    finally:
        loader.dispose()
    plain = {str(key): value for key, value in root.items()}
    return Document(source=source, text=text, root=plain, lines=lines, duplicates=tuple(duplicates))


def _message(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
    if "\\t" in str(problem):
        problem = "a tab stands where spaces must (YAML is not indented with tabs)"
    elif "could not determine a constructor" in str(problem):
        problem = f"{problem}; tags that build objects are not read"
    return f"{where}: not valid YAML: {problem}."


def _check_size(root: yaml.Node, source: str) -> None:
    """Refuse what would be endless or enormous once aliases are followed, without following them."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, depth: int) -> int:
        if depth > _LIMIT_DEPTH:
            raise SpecError(f"{source} is nested more than {_LIMIT_DEPTH} levels deep.")
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_nodes:
            raise SpecError(f"{source}, line {node.start_mark.line + 1}: an alias contains itself.")
        open_nodes.add(id(node))
        total = 1
        for child in _children(node):
            total += size(child, depth + 1)
            if total > _LIMIT_NODES:
                raise SpecError(
                    f"{source}, line {node.start_mark.line + 1}: aliases expand to more than {_LIMIT_NODES} values; "
                    "this is no training configuration."
                )
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        return total

    size(root, 0)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _index(node: yaml.Node, path: Key, lines: dict[Key, int], duplicates: list[tuple[Key, int]]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for position, child in enumerate(node.value):
            lines.setdefault((*path, str(position)), child.start_mark.line + 1)
            _index(child, (*path, str(position)), lines, duplicates)
        return
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
        here = (*path, name)
        if name in seen and name != "<<":
            duplicates.append((here, key.start_mark.line + 1))
        seen.add(name)
        lines[here] = key.start_mark.line + 1
        _index(value, path if name == "<<" else here, lines, duplicates)
