"""The synthetic Megatron data set, read back by its format."""

from __future__ import annotations

import struct
from pathlib import Path

from planner.validate.compiler.synthetic import write_megatron


def test_index_describes_the_tokens(tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", documents=3, tokens=10)
    index = (tmp_path / "tokens.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, kind, sequences, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert (version, kind, sequences, boundaries) == (1, 4, 3, 4)
    assert struct.unpack_from("<3i", index, 34) == (10, 10, 10)
    assert struct.unpack_from("<3q", index, 46) == (0, 40, 80)
    assert struct.unpack_from("<4q", index, 70) == (0, 1, 2, 3)
    assert len(index) == 102
    assert (tmp_path / "tokens.bin").stat().st_size == 3 * 10 * 4


def test_written_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_megatron(tmp_path / "tokens", documents=1, tokens=4)
    first = (tmp_path / "tokens.bin").stat().st_mtime_ns
    write_megatron(tmp_path / "tokens", documents=2, tokens=8)
    assert (tmp_path / "tokens.bin").stat().st_mtime_ns == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.bin", "tokens.idx"]
