"""Every illegal value at the Python door: one clear error that names parameter, value and what is legal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import planner
from planner.checked import TYPES, checked
from planner.errors import SpecError

BAD_SUGGEST: list[tuple[dict[str, Any], str]] = [
    ({"top": -1}, "top=-1 must be a whole number from 0"),
    ({"tokens": -5}, "tokens=-5 must be a whole number from 0"),
    ({"seq": "4k"}, "seq='4k' must be a whole number from 1"),
    ({"seq": 4096.5}, "seq=4096.5 must be"),
    ({"seq": math.nan}, "seq=nan must be"),
    ({"seq": math.inf}, "seq=inf must be"),
    ({"seq": True}, "seq=True must be"),
    ({"seq": 0}, "seq=0 must be"),
    ({"global_batch": -1}, "global_batch=-1 must be"),
    ({"global_batch": [1]}, r"global_batch=\[1\] must be"),
    ({"cards": "64"}, "cards='64' must be"),
    ({"cards": 0}, "cards=0 must be"),
    ({"cards": 10**9}, "cards=1000000000 must be"),
    ({"objective": "speed"}, "objective='speed' must be one of time, cards, memory"),
    ({"objective": 3}, "objective=3 must be one of"),
    ({"recompute": "some"}, "recompute='some' must be one of auto, none, selective, full"),
    ({"framework": 5}, "framework=5 must be a text"),
    ({"framework": "mindformer"}, "framework 'mindformer' is not known"),
    ({"max_memory": math.nan}, "max_memory=nan must be"),
    ({"max_memory": -1}, "max_memory=-1 must be"),
    ({"max_memory": "lots"}, "memory limit"),
    ({"model": math.nan}, "model=nan must be a name"),
    ({"model": -7e9}, "model=-7000000000.0 must be a name"),
    ({"model": True}, "model=True must be a name"),
    ({"model": None}, "model=None must be a name"),
    ({"pins": {"tp": {"8"}}}, "pin tp='8'"),
    ({"pins": {"tp": {8.5}}}, "pin tp=8.5"),
    ({"pins": {"tp": {True}}}, "pin tp=True"),
    ({"pins": 8}, "pins=8"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SUGGEST)
def test_suggest_refuses(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": "8B", "cards": 8, **changes}
    with pytest.raises(SpecError, match=message):
        planner.suggest(**arguments)


BAD_ESTIMATE: list[tuple[dict[str, Any], str]] = [
    ({"tp": "2"}, "tp='2' must be a whole number from 1"),
    ({"tp": 2.0}, "tp=2.0 must be"),
    ({"tp": 0}, "tp=0 must be"),
    ({"tp": True}, "tp=True must be"),
    ({"zero_level": 4}, "zero_level=4 must be a whole number from 0 to 3"),
    ({"sequence_parallel": "yes"}, "sequence_parallel='yes' must be True or False"),
    ({"schedule": "1F1B"}, "schedule='1F1B' must be one of"),
    ({"cp_algorithm": "rings"}, "cp_algorithm='rings' must be one of"),
    ({"recompute": [1.5]}, r"recompute=\[1.5\] must be"),
    ({"recompute": [-1]}, r"recompute=\[-1\] must be"),
    ({"pp": 2, "stage_layers": [10, 10]}, "20 layers.*32|10.*32"),
    ({"pp": 2, "stage_layers": [16]}, "layers per stage need 2 numbers"),
    ({"pp": 2, "stage_layers": "16,16"}, "stage_layers='16,16' must be a list"),
    ({"warp": 3}, "a strategy has no warp"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_ESTIMATE)
def test_estimate_refuses(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": "8B", "dp": 2, "global_batch": 8, **changes}
    with pytest.raises(SpecError, match=message):
        planner.estimate(**arguments)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert checked(seq=np.int64(4096), recompute=np.array([1, 2]), tp=np.int32(2)) == {
        "seq": 4096, "recompute": [1, 2], "tp": 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", list(TYPES))
def test_nothing_else_than_its_type_is_let_through(name: str) -> None:
    """Of every parameter: NaN, an object and None (which means: not given)."""
    assert checked(**{name: None}) == {name: None}
    for value in (math.nan, object(), {"a": 1}):
        with pytest.raises(SpecError, match=f"{name}="):
            checked(**{name: value})
