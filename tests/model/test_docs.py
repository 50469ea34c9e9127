"""The models page shows true numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.model.load import MODEL_TYPES, find
from planner.model.operators import parameter_count

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_python_block_runs_and_its_comments_hold(monkeypatch):
    monkeypatch.chdir(ROOT)
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    names: dict[str, object] = {}
    checked = 0
    for line in block.splitlines():
        code, _, comment = line.partition("  # ")
        if line.startswith("from "):
            exec(line, names)
        elif line:
            value = eval(code, names)
            if re.match(r"\s*['\d]", comment):
                assert repr(value) == comment.strip()
                checked += 1
    assert checked == 3


@pytest.mark.parametrize(
    "row", re.findall(r"^\| ([\w.-]+) \| ([\d ]{9,}) ", PAGE, re.MULTILINE), ids=lambda row: row[0]
)
def test_the_table_of_totals(row):
    name, count = row
    model = find(name)
    assert int(count.replace(" ", "")) in (parameter_count(model), parameter_count(model, trainable=False))


def test_every_family_is_listed():
    listed = re.search(r"Families: (.*?) \|", PAGE)[1]
    assert all(re.search(rf"\b{name}\b", listed) for name in MODEL_TYPES)
