"""Communicators: the lists of ranks that MindSpore logged while it compiled small networks (DryRun, GLOG_v=2)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from planner.cost.strategies import Strategy
from planner.cost.time.groups import groups


def strategy(**degrees: int) -> Strategy:
    pp, vpp = degrees.get("pp", 1), degrees.get("vpp", 1)
    none = (0,) * pp
    return Strategy(
        **{"dp": 1, "tp": 1, "pp": pp} | degrees, layers=((1,) * pp,) * vpp, recompute_full=none,
        recompute_selective=none, micro_batches=4, schedule="interleaved" if vpp > 1 else "1f1b",
    )  # fmt: skip


#: Layout, stage, and the logged groups of more than one rank beside the world.
LOGGED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "qwen3, second of four stages": (
        {"dp": 2, "tp": 2, "pp": 4, "stage": 1},
        ["4 12", "4 5", "4 5", "0 4 8 12", "0 1 4 5 8 9 12 13", "0 4 8 12", "4 5 6 7", "4 6"],
    ),
    "qwen3_moe, experts over the tensor-parallel ranks": (
        {"dp": 4, "tp": 2, "pp": 2, "ep": 2, "experts": True},
        ["0 4 8 12", "0 1", "0 1", "0 8", "0 1 8 9", "0 8", "0 1 2 3 4 5 6 7", "0 2 4 6"],
    ),
    "deepseek3, experts over four": (
        {"dp": 4, "tp": 2, "pp": 2, "ep": 4, "experts": True},
        ["0 4 8 12", "0 1", "0 1", "0 1 2 3", "0 8", "0 1 8 9", "0 8", "0 1 2 3 4 5 6 7", "0 2 4 6", "0 4"],
    ),
    "qwen3, context parallel": (
        {"dp": 2, "tp": 2, "pp": 2, "cp": 2},
        ["0 4", "0 1", "0 1", "0 8", "0 1 2 3 8 9 10 11", "0 8", "0 1 2 3 4 5 6 7", "0 2 4 6", "0 1 4 5", "0 2",
         "0 1 2 3"],
    ),
    "qwen3, no pipeline": ({"dp": 4, "tp": 2}, ["0 2 4 6", "0 1", "0 1"]),
    "qwen3, two chunks": (
        {"dp": 2, "tp": 2, "pp": 2, "vpp": 2},
        ["0 4", "0 1", "0 1", "0 4", "0 1 4 5", "0 4", "0 1 2 3", "0 2"],
    ),
    "llama, last stage": (
        {"dp": 4, "tp": 2, "pp": 2, "stage": 1, "framework": "mindformers-legacy"},
        ["0 8", "0 8", "8 9 10 11 12 13 14 15", "8 9", "8 10 12 14"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOGGED)
def test_groups_are_those_that_mindspore_makes(case: str) -> None:
    layout, logged = LOGGED[case]
    layout = dict(layout)
    stage, experts = layout.pop("stage", 0), layout.pop("experts", False)
    framework = layout.pop("framework", "mindformers")
    found = groups(strategy(**layout), framework, experts=experts, stage=stage)
    assert found[0].name == "world"
    assert Counter(" ".join(map(str, group.ranks)) for group in found[1:]) == Counter(logged)


def test_one_device_has_none() -> None:
    for framework in ("mindformers", "mindformers-legacy", "mindspeed"):
        assert groups(strategy(), framework, experts=True) == ()


def test_megatron_has_one_for_each_dimension_and_the_ends_of_the_pipeline() -> None:
    found = groups(strategy(dp=4, tp=2, pp=4, ep=2), "mindspeed", experts=True, stage=1)
    assert [group.name for group in found] == ["world", "tp", "dp", "pp", "ep", "copies of experts", "embedding"]
    assert found[-1].ranks == (0, 24)
    assert found[3].ranks == (0, 8, 16, 24)
    assert found[2].ranks == (8, 10, 12, 14)
    split = groups(strategy(dp=4, tp=2, pp=4, ep=2, etp=2), "megatron", experts=True, stage=1)
    assert {g.name: g.ranks for g in split if "e" in g.name[:1] or "cop" in g.name} == {
        "ep": (8, 10), "etp": (8, 9), "copies of experts": (8, 12), "embedding": (0, 24),
    }  # fmt: skip
