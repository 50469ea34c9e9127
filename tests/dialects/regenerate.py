"""Remake the golden files: ``python -m tests.dialects.regenerate``.  Review the difference as text."""

from __future__ import annotations

from pathlib import Path

from planner.dialects.records import File, Settings
from planner.dialects.write import render
from tests.dialects.samples import golden, golden_mindspeed, golden_native, golden_pynative

FOLDER = Path(__file__).parents[1] / "golden" / "emit"
#: Files that say nothing new from one plan to the next.
_SAME = ("train.py", "plan.json")


def files() -> dict[str, str]:
    """Path below the golden folder -> text, for every golden plan and target."""
    result: dict[str, str] = {}
    targets = {
        "mindformers": golden(),
        "mindformers-pynative": golden_pynative(),
        "mindspeed": golden_mindspeed(),
        "mindspore": golden_native(),
    }
    for target, plans in targets.items():
        for name, plan in plans.items():
            rendered = render(plan, target, Settings())
            for file in _kept(rendered):
                result[f"{target}/{name}/{file.name}"] = file.text
    first = next(iter(golden()))
    for file in render(golden()[first], "mindformers", Settings()):
        if file.name in _SAME:
            result[f"mindformers/{first}/{file.name}"] = file.text
    return result


def _kept(rendered: list[File]) -> list[File]:
    return [file for file in rendered if file.name not in _SAME and not file.name.startswith("node_")]


def main() -> None:
    """Write all golden files and remove those that are gone."""
    wanted = files()
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.relative_to(FOLDER).as_posix() not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
