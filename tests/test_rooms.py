"""The house as drawn and described is the house as it is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("grimp")


@pytest.fixture(scope="module")
def drawing():
    spec = importlib.util.spec_from_file_location("draw_rooms", ROOT / "docs" / "draw_rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_has_a_room_in_the_contract(drawing) -> None:
    named = {room for row in drawing.layers() for room in row}
    found = {path.stem if path.suffix else path.name for path in (ROOT / "planner").iterdir()
             if path.suffix == ".py" or (path / "__init__.py").is_file()}  # fmt: skip
    assert found - {"__init__", "__main__"} == named


def test_the_picture_shows_the_imports_there_are(drawing) -> None:
    """Remake it with ``python docs/draw_rooms.py``."""
    drawn = set(re.findall(r"<title>([\w]+) -&gt; ([\w]+)</title>", (ROOT / "docs" / "rooms.svg").read_text()))
    rooms = {room for row in drawing.layers() for room in row}
    assert drawn == drawing.imports(rooms)


def test_no_arrow_climbs(drawing) -> None:
    floor = {room: y for y, row in enumerate(drawing.layers()) for room in row}
    assert [pair for pair in drawing.imports(set(floor)) if floor[pair[1]] <= floor[pair[0]]] == []


def test_design_names_every_room(drawing) -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rooms = text.split("## Rooms")[1].split("\n## ")[0]
    assert [room for row in drawing.layers() for room in row if not re.search(rf"\b{room}\b", rooms)] == []
