"""What emission hands around: the wishes of the caller and rendered files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Things of the user's site that no plan knows.

    Attributes
    ----------
    data_path : str
        Training data: prefix of a Megatron .bin/.idx pair, or a folder of MindRecord files (legacy dialect).
    tokenizer_path : str
        Hugging Face tokenizer folder, for targets that open one.
    hosts : tuple of str
        Addresses of the nodes in rank order; the first is the master.
    output_dir : str
        Where checkpoints and logs go.
    device_addresses : tuple of tuple of str
        Network address of each device of each node, for a rank table; empty: no rank table is written.
    """

    data_path: str = ""
    tokenizer_path: str = ""
    hosts: tuple[str, ...] = ()
    output_dir: str = "./output"
    device_addresses: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """One thing to fill in before the run."""

    file: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file to be written."""

    name: str
    text: str
    executable: bool = False
    placeholders: Sequence[Placeholder] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitResult:
    """What was written.

    Attributes
    ----------
    files : tuple of Path
        Files written, the main one first.
    placeholders : tuple of Placeholder
        What has to be filled in before the run; empty when everything was given.
    notes : tuple of str
        What the target cannot hold or does differently.
    """

    files: tuple[Path, ...]
    placeholders: tuple[Placeholder, ...] = ()
    notes: tuple[str, ...] = ()
