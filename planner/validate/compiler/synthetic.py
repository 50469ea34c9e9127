"""Synthetic tokens in the Megatron .bin / .idx format, written without NumPy or MindSpore."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

from planner.children.files import write_atomically

_MAGIC = b"MMIDIDX\x00\x00"
_INT32 = 4
_DOCUMENTS = 4
_DOCUMENT_TOKENS = 1 << 18


def write_megatron(prefix: Path, documents: int = _DOCUMENTS, tokens: int = _DOCUMENT_TOKENS) -> None:
    """Write `prefix`.bin and `prefix`.idx: equal documents of int32 token ids; nothing to do if they exist.

    The loader repeats the documents over epochs, so a few megabytes serve any number of samples.
    """
    if prefix.with_suffix(".idx").exists():
        return
    document = array("i", (position % 997 + 2 for position in range(tokens))).tobytes()
    write_atomically(prefix.with_suffix(".bin"), document * documents)
    write_atomically(prefix.with_suffix(".idx"), _index(documents, tokens))


def _index(documents: int, tokens: int) -> bytes:
    """Megatron index, version 1: lengths and byte offsets of the sequences, then document boundaries."""
    header = _MAGIC + struct.pack("<QBQQ", 1, _INT32, documents, documents + 1)
    lengths = struct.pack(f"<{documents}i", *[tokens] * documents)
    offsets = struct.pack(f"<{documents}q", *(index * tokens * 4 for index in range(documents)))
    boundaries = struct.pack(f"<{documents + 1}q", *range(documents + 1))
    return header + lengths + offsets + boundaries
