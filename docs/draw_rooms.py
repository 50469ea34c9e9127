"""Draw which room imports which, as the code is: ``python docs/draw_rooms.py`` writes docs/rooms.svg.

Rows are the layers of the import contract in pyproject.toml, the highest on top; an arrow is at least one import of a
module of one room by a module of another.  Imports inside functions count.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
BOX, GAP, ROW, LEFT = (132, 30), 28, 74, 24


def layers() -> list[list[str]]:
    """Rooms of each layer, top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix("planner.") for name in row.replace(":", "|").split("|")] for row in rows]


def imports(rooms: set[str]) -> set[tuple[str, str]]:
    """Pairs of rooms, the first of which imports the second."""
    graph = grimp.build_graph("planner", exclude_type_checking_imports=True)
    direct = ((module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module))
    pairs = {(room_of(module), room_of(other)) for module, other in direct}
    return {pair for pair in pairs if pair[0] != pair[1] and set(pair) <= rooms}


def room_of(module: str) -> str:
    """Room of a module: the name behind ``planner``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def draw() -> str:
    """The picture as SVG text."""
    rows = layers()
    width = LEFT * 2 + max(len(row) for row in rows) * (BOX[0] + GAP) + 420
    place = {}
    for y, row in enumerate(rows):
        start = width / 2 - (len(row) * (BOX[0] + GAP) - GAP) / 2 + (90 if y % 2 else -90)
        for x, room in enumerate(row):
            place[room] = (start + x * (BOX[0] + GAP), LEFT + y * ROW)
    lines = [_arrow(place[a], place[b], f"{a} -> {b}") for a, b in sorted(imports(set(place)))]
    boxes = [_box(room, *at) for room, at in place.items()]
    height = LEFT * 2 + len(rows) * ROW
    size = f"{width:.0f} {height}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="13">'
    paper = f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, "<title>Which room imports which</title>", paper, *lines, *boxes, "</svg>"]) + "\n"


def _arrow(start: tuple[float, float], end: tuple[float, float], title: str) -> str:
    x1, y1 = start[0] + BOX[0] / 2, start[1] + BOX[1]
    x2, y2 = end[0] + BOX[0] / 2, end[1]
    if y2 < y1:  # same row
        y1, y2 = start[1] + BOX[1] / 2, end[1] + BOX[1] / 2
    colour = "#b03030" if end[1] < start[1] else "#5577aa"
    middle = (y1 + y2) / 2
    way = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
    look = f'fill="none" stroke="{colour}" stroke-opacity="0.35" stroke-width="1.5"'
    return f'<path d="{way}" {look}><title>{escape(title)}</title></path>'


def _box(room: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="5" fill="#eef3fa" stroke="#335"/>'
        f'<text x="{x + BOX[0] / 2:.0f}" y="{y + 20:.0f}" text-anchor="middle" fill="#112">{escape(room)}</text>'
    )


if __name__ == "__main__":
    (ROOT / "docs" / "rooms.svg").write_text(draw(), encoding="utf-8")
