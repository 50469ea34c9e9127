"""Hugging Face config.json files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from planner.errors import SpecError
from planner.model.huggingface import from_config
from planner.model.records import Model

#: A config.json is a few kilobytes; anything far bigger is not one.
MAX_CONFIG_BYTES: Final = 16 * 2**20


def from_file(path: str | Path, *, as_family: str | None = None) -> Model:
    """Model of a Hugging Face ``config.json``, or of a folder that holds one; ``as_family`` as in `from_config`.

    Raises
    ------
    SpecError
        No such file, not readable, not JSON, not a config of a known family, a needed field missing or illegal.
    """
    path = Path(path)
    try:
        path = path / "config.json" if path.is_dir() else path
        text = _read_text(path)
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise SpecError(f"{path} is not a text file ({where}); give a Hugging Face config.json.") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from None
    mapping = _parse(text, path)
    return from_config(mapping, name=_name(mapping, path), source=str(path), as_family=as_family)


def _name(mapping: Mapping[str, Any], path: Path) -> str:
    """The config's own name, else its folder's (config.json) or the file's."""
    own = mapping.get("_name_or_path")
    if isinstance(own, str) and (last := own.rstrip("/").rsplit("/", 1)[-1].strip(".")):
        return last
    return path.absolute().parent.name if path.stem == "config" else path.stem


def _read_text(path: Path) -> str:
    if not path.exists():
        raise SpecError(f"{path}: no such file; give a Hugging Face config.json or a folder that holds one.")
    if not path.is_file():
        raise SpecError(f"{path} is not a file; give a Hugging Face config.json.")
    size_bytes = path.stat().st_size
    if size_bytes > MAX_CONFIG_BYTES:
        raise SpecError(f"{path} is {size_bytes} bytes; a config.json has a few thousand.")
    return path.read_text(encoding="utf-8-sig")


def _once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """An object whose keys are given once, or again with the same value."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise SpecError(f"{path} gives '{key}' twice, as {found[key]!r} and {value!r}; keep one.")
        found[key] = value
    return found


def _parse(text: str, path: Path) -> Mapping[str, Any]:
    if not text.strip():
        raise SpecError(f"{path} is empty; give a Hugging Face config.json.")
    try:
        mapping = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise SpecError(f"{path} is not valid JSON: {error.msg} at {place}; is the file whole?") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets without end
        raise SpecError(f"{path} is not a config.json: {error}.") from None
    if not isinstance(mapping, dict):
        raise SpecError(f"{path} holds a {type(mapping).__name__}, not an object; give a Hugging Face config.json.")
    return mapping
