"""The peak and its terms, from files in the memory tracker's format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import ValidationError
from planner.validate.compiler.tracker import TERMS, Block, peak_of, read_peak, summary, terms

SCOPE = "Default/network-MFPipelineWithLossScaleCell/_backbone-PipelineCell/network-DataOrderWrapperCell/network-Net/"
Writer = Callable[[Path], None]


def test_peak_and_terms(tmp_path: Path, tracker_files: Writer) -> None:
    tracker_files(tmp_path)
    peak = read_peak(tmp_path)
    assert (peak.tick, peak.total_bytes) == (10, 2950)
    assert peak.operator.startswith("Gradients/")
    found = terms(peak)
    assert tuple(found) == TERMS
    assert sum(found.values()) == peak.total_bytes
    expected = {"parameters": 100, "moments": 100, "gradient_accumulation": 200, "gathered_parameters": 50}
    assert {name: found[name] for name in expected} == expected
    assert (found["activations"], found["backward"], found["head_and_loss"]) == (2000, 500, 0)


def test_shapes_come_from_the_graph(tmp_path: Path, tracker_files: Writer) -> None:
    tracker_files(tmp_path)
    shapes = {block.node: block.shape for block in read_peak(tmp_path).blocks}
    assert shapes[f"{SCOPE}mlp/Mul-op1"] == "BFloat16:[4, 125]"


def test_equal_blocks_are_summed(tmp_path: Path, tracker_files: Writer) -> None:
    tracker_files(tmp_path)
    (tmp_path / "rank_0/tracker_graph.ir").unlink()
    rows = summary(read_peak(tmp_path), smallest_bytes=200)
    assert rows[0] == (2000, 2, "Kernel", "1000", "Net/mlp/Mul")
    assert [row[0] for row in rows] == [2000, 500, 200]


def test_a_block_freed_at_the_tick_another_starts_is_not_counted() -> None:
    blocks = [
        Block(start=0, end=5, size_bytes=10, kind="Kernel", node="a", shape=""),
        Block(start=5, end=9, size_bytes=7, kind="Kernel", node="b", shape=""),
    ]
    assert peak_of(blocks).total_bytes == 10


def test_no_tracker_files(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no memory_block"):
        read_peak(tmp_path)
