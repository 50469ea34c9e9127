"""Words of a launch script: quotes, comments, continuations and plain variables understood, nothing executed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT: Final = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_REFERENCE: Final = re.compile(
    rf"\$\(\((?P<sum>[^()]*)\)\)|\$\{{(?P<braced>{_NAME})(?::?-(?P<default>[^{{}}]*))?\}}|\$(?P<plain>{_NAME})"
)
_OPERATORS: Final[dict[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: a // b if b else 0, ast.Mod: lambda a, b: a % b if b else 0,
}  # fmt: skip
_LONGEST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Word:
    """One word and the line it starts on."""

    text: str
    line: int


def words(text: str) -> list[Word]:
    r"""Words of a script in order, with assigned variables put in; array parentheses and separators are dropped.

    >>> [w.text for w in words("TP=8\nargs=(--tp $TP  # eight\n --pp '2' )")]
    ['TP=8', 'args=', '--tp', '8', '--pp', '2']
    """
    variables: dict[str, str] = {}
    result: list[Word] = []
    for raw in tokens(text):
        if isinstance(raw, Word):
            found = assignment(raw.text, variables)
            if found:
                variables[found[0]] = found[1]
            result += pieces(raw, variables)
    return result


def assignment(text: str, variables: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and value of an assignment whose value is known; what a command prints is not."""
    expanded = expand(text, variables)
    found = _ASSIGNMENT.fullmatch(expanded)
    if not found or "$(" in expanded or expanded.startswith("-"):
        return None
    return found[1], found[2].replace("\n", " ")


def pieces(word: Word, variables: Mapping[str, str]) -> list[Word]:
    """A raw word with variables put in, split at spaces; each piece with its own line."""
    expanded = expand(word.text, variables)
    if "$(" in expanded or not expanded.strip():
        return [Word(expanded, word.line)]
    return [
        Word(piece[0], word.line + expanded.count("\n", 0, piece.start())) for piece in re.finditer(r"\S+", expanded)
    ]


def tokens(text: str) -> list[Word | str]:
    """Split like a shell, keeping ``$`` expressions as they stand; what ends a command or opens a bracket is a str."""
    result: list[Word | str] = []
    current: list[str] = []
    line, start, position, open_word = 1, 1, 0, False

    def flush() -> None:
        nonlocal open_word
        if open_word:
            result.append(Word("".join(current), start))
            current.clear()
            open_word = False

    while position < len(text):
        char = text[position]
        if char == "\\" and text[position + 1 : position + 2] == "\n":
            flush()
            position, line = position + 2, line + 1
            continue
        end = _quoted_end(text, position)
        if end is None and char == "#" and not open_word:
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
            continue
        if end is None and (char.isspace() or char in ";()|&"):
            flush()
            if not char.isspace() or char == "\n":
                result.append(char)
            line += char == "\n"
            position += 1
            continue
        if not open_word:
            start, open_word = line, True
        piece = text[position : end or position + 1]
        current.append(_inside(piece))
        line += piece.count("\n")
        position += len(piece)
    flush()
    return result


def _quoted_end(text: str, position: int) -> int | None:
    """Where a quoted piece or a ``$`` expression that starts here ends."""
    if text[position] == "'":
        end = text.find("'", position + 1)
        return len(text) if end < 0 else end + 1
    if text[position] == '"':
        return _double_quote_end(text, position + 1)
    if text.startswith("${", position):
        end = text.find("}", position)
        return len(text) if end < 0 else end + 1
    return _bracket_end(text, position + 2) if text.startswith("$(", position) else None


def _double_quote_end(text: str, position: int) -> int:
    while position < len(text) and text[position] != '"':
        if text.startswith("$(", position):
            position = _bracket_end(text, position + 2)
        else:
            position += 2 if text[position] == "\\" else 1
    return min(position + 1, len(text))


def _bracket_end(text: str, position: int) -> int:
    """Behind the bracket that closes the one before `position`; quotes inside are skipped."""
    depth = 1
    while position < len(text) and depth:
        char = text[position]
        if char in "'\"":
            closing = text.find(char, position + 1)
            position = len(text) if closing < 0 else closing
        depth += (char == "(") - (char == ")")
        position += 1
    return min(position, len(text))


def _inside(piece: str) -> str:
    if piece[0] in "'\"" and len(piece) >= 2:
        return piece[1:-1].replace("\\\n", "\n")
    return piece


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Text with the values of plain variables and sums of whole numbers put in."""

    def value(match: re.Match[str]) -> str:
        if match["sum"] is not None:
            return _arithmetic(match["sum"], variables) or match[0]
        name = match["braced"] or match["plain"]
        if variables.get(name):
            return variables[name]
        return match["default"] if match["default"] is not None else match[0]

    for _ in range(3):
        new = _REFERENCE.sub(value, text)[:_LONGEST]
        if new == text:
            break
        text = new
    return text


def _arithmetic(expression: str, variables: Mapping[str, str]) -> str:
    filled = re.sub(rf"\$?\{{?({_NAME})\}}?", lambda m: variables.get(m[1], m[1]), expression)
    try:
        return str(_evaluated(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def _evaluated(node: Any) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**12:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    raise ValueError("only whole numbers and + - * / %")
