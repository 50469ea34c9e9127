"""Published models by name: entries of ``catalogue.json``, read on first use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from planner.errors import SpecError
from planner.model.huggingface import from_config
from planner.model.records import Model

_FILE: Final = Path(__file__).with_name("catalogue.json")

#: Parts of a checkpoint's name that say how it was trained, not what shape it has.
_DECORATION: Final = frozenset({"instruct", "chat", "base", "hf", "pretrain", "thinking", "bf16", "2507"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One published model.

    Attributes
    ----------
    name : str
        As the publisher writes it.
    aliases : tuple of str
        Other names `find` accepts; case, separators and words such as "instruct" never matter.
    published : str
        Parameter total as published, rounded ("70.6B").
    exact : int
        Parameter total to the unit where it is published or counted from a real network, else 0; without MTP modules.
    checkpoint : int
        Total stored in the published checkpoint when it differs (MTP module, its copies of embedding and head,
        router biases), else 0.
    reference : bool
        Member of the ladder of shapes that a bare parameter count is matched with.
    source, note : str
        Where the shape was published; remarks.
    config : mapping
        Fields of its Hugging Face config.json that fix tensor shapes.
    """

    name: str
    aliases: tuple[str, ...]
    published: str
    exact: int
    checkpoint: int
    reference: bool
    source: str
    note: str
    config: Mapping[str, Any]

    @property
    def model(self) -> Model:
        """The entry's shape."""
        return _model(self)


@cache
def _model(entry: Entry) -> Model:
    return from_config(entry.config, name=entry.name, source=f"catalogue: {entry.source}")


@lru_cache(maxsize=1)
def catalogue() -> tuple[Entry, ...]:
    """All entries, in the file's order: by family, older and smaller first."""
    return tuple(_entry(record) for record in json.loads(_FILE.read_text(encoding="utf-8")))


def _entry(record: Mapping[str, Any]) -> Entry:
    return Entry(
        name=record["name"],
        aliases=tuple(record["aliases"]),
        published=record["published"],
        exact=record.get("exact", 0),
        checkpoint=record.get("checkpoint", 0),
        reference=record.get("reference", False),
        source=record["source"],
        note=record.get("note", ""),
        config=MappingProxyType(record["config"]),
    )


def normalised(name: str) -> str:
    """A name without organisation, case, separators and words such as "instruct".

    Separators between two digits stay (as dots), so that "qwen2.5-7b" and "qwen2-57b" differ.

    >>> normalised("meta-llama/Llama-3.1-70B-Instruct"), normalised("llama3_1_70b")
    ('llama3.1.70b', 'llama3.1.70b')
    """
    words = re.findall(r"[a-z0-9]+", name.lower().rstrip("/").rsplit("/", 1)[-1])
    joined = ""
    for word in words:
        if word in _DECORATION:
            continue
        joined += "." + word if joined and joined[-1].isdigit() and word[0].isdigit() else word
    return joined


@lru_cache(maxsize=1)
def _by_key() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for entry in catalogue():
        for name in (entry.name, *entry.aliases):
            table.setdefault(normalised(name), entry)
    return table


def find(name: str) -> Model:
    """Published model of this name; case, separators, organisation and "-Instruct" do not matter.

    Raises
    ------
    SpecError
        Not in the catalogue; the message names the nearest entries.

    Examples
    --------
    >>> find("meta-llama/Llama-3.1-70B-Instruct").layers, find("deepseek_v3").hidden
    (80, 7168)
    """
    return find_entry(name).model


def find_entry(name: str) -> Entry:
    """Catalogue entry of this name; like `find`."""
    entry = _by_key().get(normalised(name))
    if entry is None:
        raise SpecError(_unknown(name))
    return entry


def _unknown(name: str) -> str:
    near = _nearest(name)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    size = name.strip().upper()
    ways = "a config.json goes with --config, a bare size with --params"
    if re.fullmatch(r"[0-9.]+[MBT]", size):
        ways = f"for the closest shape of that size give --params {size}"
    return f"model '{name}' is not in the catalogue; {meant}`planner models` lists all {len(catalogue())}; {ways}."


def _nearest(name: str) -> list[str]:
    import difflib

    key = normalised(name)
    keys = difflib.get_close_matches(key, list(_by_key()), n=6, cutoff=0.55)
    if len(key) >= 2:
        keys = [candidate for candidate in _by_key() if key in candidate] + keys
    return list(dict.fromkeys(_by_key()[candidate].name for candidate in keys))[:3]
