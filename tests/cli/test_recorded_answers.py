"""Every figure of twelve jobs is the recorded one: moves of code change none of them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.golden.answers.remake import FOLDER, JOBS, answer_of


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Paths at which two documents differ by more than rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, pair in enumerate(zip(old, new, strict=True)) for line in differences(*pair, f"{where}[{i}]")
        ]
    number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (old, new))
    same = math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12) if number else old == new
    return [] if same else [f"{where}: {old!r} -> {new!r}"]


@pytest.mark.parametrize("job", list(JOBS))
def test_figures_are_the_recorded_ones(job: str) -> None:
    """After a wanted change: ``python tests/golden/answers/remake.py``, and say in CHANGELOG what moved."""
    recorded = json.loads((FOLDER / f"{job}.json").read_text(encoding="utf-8"))
    assert differences(recorded, answer_of(job)) == []


def test_differences_are_seen() -> None:
    old = {"a": [1.0, {"b": "x"}], "c": True}
    assert differences(old, {"a": [1.0 + 1e-12, {"b": "x"}], "c": True}) == []
    assert differences(old, {"a": [1.1, {"b": "y"}], "d": 1}) == [
        ".a[0]: 1.0 -> 1.1", ".a[1].b: 'x' -> 'y'", ".c: True -> None", ".d: None -> 1",
    ]  # fmt: skip
