"""Change single values in a YAML text and leave every other character as it is: comments, order, anchors, blanks."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from planner.dialects.text.yaml_write import scalar
from planner.errors import EmitError

_ANCHOR: Final = re.compile(r"&\S+\s+")


class YamlText:
    """A YAML text whose values can be set by path.

    Parameters
    ----------
    text : str
        Valid YAML with a mapping at the top.
    source : str
        Name for messages.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source

    def set(self, path: tuple[str, ...], value: Any) -> None:
        """Give the key at `path` a value; keys and sections that are missing are added.

        Raises
        ------
        EmitError
            A part of the path is no section.
        """
        root = yaml.compose(self.text, yaml.SafeLoader)
        node: yaml.Node | None = root
        for depth, key in enumerate(path):
            if not isinstance(node, yaml.MappingNode):
                raise EmitError(f"{self.source}: {'.'.join(path[:depth])} is no section; write it by hand.")
            found = _child(node, key)
            if found is None:
                self._insert(node, path[depth:], value)
                return
            node = found
        self._replace(_given(node), scalar(value))

    def remove(self, path: tuple[str, ...]) -> None:
        """Remove a key that stands on a line of its own, if it is there."""
        node = yaml.compose(self.text, yaml.SafeLoader)
        for key in path[:-1]:
            node = _child(node, key) if isinstance(node, yaml.MappingNode) else None
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            if key.value == path[-1]:
                if node.flow_style:
                    raise EmitError(f"{self.source}: remove {'.'.join(path)} by hand; it stands inside braces.")
                start = self.text.rfind("\n", 0, key.start_mark.index) + 1
                end = self.text.find("\n", _end(value))
                self.text = self.text[:start] + (self.text[end + 1 :] if end >= 0 else "")
                return

    def _replace(self, node: yaml.Node, new: str) -> None:
        start, end = node.start_mark.index, _end(node)
        anchor = _ANCHOR.match(self.text, start)
        if anchor:
            start = anchor.end()
        if not self.text[start:end].strip():  # an empty value: "key:"
            new = f" {new}"
        self.text = self.text[:start] + new + self.text[end:]

    def _insert(self, node: yaml.MappingNode, path: tuple[str, ...], value: Any) -> None:
        if node.flow_style:
            inner = scalar(value)
            for key in reversed(path[1:]):
                inner = f"{{{key}: {inner}}}"
            at = node.end_mark.index - 1
            comma = ", " if node.value else ""
            self.text = f"{self.text[:at].rstrip()}{comma}{path[0]}: {inner}{self.text[at:]}"
            return
        indent = " " * node.value[0][0].start_mark.column
        lines = [f"{indent}{'  ' * depth}{key}:" for depth, key in enumerate(path)]
        lines[-1] += f" {scalar(value)}"
        end = self.text.find("\n", _end(node))
        end = len(self.text) if end < 0 else end
        self.text = self.text[:end] + "\n" + "\n".join(lines) + self.text[end:]


def _child(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
    return next((value for name, value in pairs if name.value == key), None)


def _given(node: yaml.Node | None) -> yaml.Node:
    assert node is not None, "the path is never empty"
    return node


def _end(node: yaml.Node) -> int:
    """Where the text of a node ends; a block collection ends with its last value, not with the comments behind it."""
    if isinstance(node, yaml.ScalarNode) or getattr(node, "flow_style", False) or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)
