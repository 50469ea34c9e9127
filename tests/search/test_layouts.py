"""Splits of a model over stages: published ones, and what every split must keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search.layouts import layouts


def stages(layers: int, mtp: int, pp: int, vpp: int = 1, every: bool = False) -> list[list[int]]:
    return [split.sum(axis=0).tolist() for split in layouts(layers, mtp, pp, vpp, False, every)]


@pytest.mark.parametrize(
    ("layers", "mtp", "pp", "vpp", "expected"),
    [
        (6, 0, 4, 1, [1, 2, 2, 1]),  # U05: balancer of a Megatron fork
        (48, 0, 5, 1, [9, 10, 10, 10, 9]),  # U06: MindFormers' offset [0, 1, 1, 1, 0]
        (62, 0, 8, 1, [7, 8, 8, 8, 8, 8, 8, 7]),  # embedding and head count as layers: 64 / 8
        (80, 0, 8, 1, [10] * 8),
        (80, 0, 8, 1, [9, 10, 10, 11, 11, 10, 10, 9]),
    ],
)
def test_default_splits_hold(layers: int, mtp: int, pp: int, vpp: int, expected: list[int]) -> None:
    assert expected in stages(layers, mtp, pp, vpp)


@pytest.mark.parametrize(
    ("layers", "mtp", "pp", "expected"),
    [
        (46, 0, 4, [12, 12, 11, 11]),  # V03: offered instead of a refusal
        (61, 0, 4, [16, 16, 16, 13]),  # U01: 16/16/16/13
        (61, 1, 4, [16, 16, 16, 13]),
        (61, 1, 16, [4] * 15 + [1]),  # DeepSeek-V3: 64 slots, head and MTP count as three
        (30, 0, 4, [8, 8, 7, 7]),
    ],
)
def test_wider_set_holds(layers: int, mtp: int, pp: int, expected: list[int]) -> None:
    assert expected in stages(layers, mtp, pp, every=True)


@pytest.mark.parametrize(("pp", "vpp", "each"), [(8, 4, 3), (4, 12, 2), (8, 3, 4), (32, 3, 1)])
def test_u03_94_layers_divide_with_embedding_and_head(pp: int, vpp: int, each: int) -> None:
    line = [each - 1] + [each] * (pp * vpp - 2) + [each - 1]
    found = [split.ravel().tolist() for split in layouts(94, 0, pp, vpp, False)]
    assert line in found


def test_v_shape_runs_back_through_the_stages() -> None:
    plain = layouts(11, 0, 4, 2, False)[-1]
    bent = layouts(11, 0, 4, 2, True)[-1]
    assert bent[0].tolist() == plain[0].tolist()
    assert bent[1].tolist() == plain[1].tolist()[::-1]


def test_too_many_chunks_have_no_split() -> None:
    assert len(layouts(4, 0, 8, 1, False)) == 0
    assert layouts(6, 0, 8, 1, False).tolist() == [[[0, 1, 1, 1, 1, 1, 1, 0]]]


@given(
    layers=st.integers(1, 130),
    mtp=st.integers(0, 2),
    pp=st.integers(1, 24),
    vpp=st.integers(1, 6),
    every=st.booleans(),
    bent=st.booleans(),
)
def test_every_split_keeps_all_layers_and_fills_the_middle(
    layers: int, mtp: int, pp: int, vpp: int, every: bool, bent: bool
) -> None:
    found = layouts(layers, mtp, pp, vpp, bent, every)
    lines = set()
    for split in found:
        line = [split[v][::-1].tolist() if bent and v % 2 else split[v].tolist() for v in range(vpp)]
        chunks = [count for row in line for count in row]
        assert sum(chunks) == layers
        assert min(chunks) >= 0
        assert min(chunks[1:-1], default=1) >= 1
        lines.add(tuple(chunks))
    assert len(lines) == len(found)
    assert bool(len(found)) or pp * vpp > layers


@given(layers=st.integers(1, 130), pp=st.integers(1, 24), vpp=st.integers(1, 4))
def test_the_wider_set_holds_the_default_one(layers: int, pp: int, vpp: int) -> None:
    narrow, wide = ({split.tobytes() for split in layouts(layers, 0, pp, vpp, False, every)} for every in (False, True))
    assert narrow <= wide
