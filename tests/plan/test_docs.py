"""Every field of plan.json is described in docs/json.md, and nothing else is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from planner import plan as plans
from tests.dialects.samples import plan, small

DOCS = Path(__file__).parents[2] / "docs" / "json.md"


def leaves(value: object, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {p for key, item in value.items() for p in leaves(item, f"{prefix}.{key}" if prefix else key)}
    if isinstance(value, list):
        return {p for item in value for p in leaves(item, f"{prefix}[]")} or {f"{prefix}[]"}
    return {prefix}


def test_fields_are_described():
    section = DOCS.read_text(encoding="utf-8").split("## plan.json")[1].split("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    patterns = {name: re.compile(re.escape(name).replace(r"\*", r"[^.\[\]]+")) for name in names}
    body = json.loads(plans.dumps(plan(small("deepseek_v3"), dp=4, tp=2, pp=2, ep=4)))
    found = leaves(body) | {"estimate.step_s", "calibration.name"}
    assert sorted(p for p in found if not any(known.fullmatch(p) for known in patterns.values())) == []
    assert sorted(n for n, known in patterns.items() if not any(known.fullmatch(p) for p in found)) == []
