"""`planner timeline` and `planner trace`: from a plan to text and files, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runner import run


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    answer = run(f"suggest --params 8B --cards 16 --pp 4 --global-batch 128 --emit {folder / 'out'}")
    assert answer.code == 0, answer.err
    return folder / "out"


def test_timeline_in_the_terminal(plan: Path) -> None:
    answer = run(f"timeline {plan}")
    assert answer.code == 0
    assert answer.lines[0].startswith("Timeline  ")
    assert len([line for line in answer.lines if "|" in line]) == 4
    assert all(len(line) <= 80 for line in answer.lines)


def test_files_are_written_once_unless_forced(plan: Path, tmp_path: Path) -> None:
    for command, name in (("trace", "step.json"), ("timeline", "step.svg")):
        file = tmp_path / name
        assert run(f"{command} {plan / 'plan.json'} -o {file}").code == 0
        before = file.read_bytes()
        again = run(f"{command} {plan / 'plan.json'} -o {file}")
        assert again.code == 2
        assert "exists" in again.err
        assert run(f"{command} {plan / 'plan.json'} -o {file} --force").code == 0
        assert file.read_bytes() == before


def test_a_trace_of_all_micro_batches_ends_with_the_step(plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    assert run(f"trace {plan} -o {file} --all").code == 0
    document = json.loads(file.read_text())
    other = document["otherData"]
    assert other["micro_batches"] == other["micro_batches_drawn"]
    last = max(event["ts"] + event.get("dur", 0) for event in document["traceEvents"]) / 1e6
    assert last == pytest.approx(other["step_s"], rel=1e-6)
    assert other["step_s"] == pytest.approx(json.loads((plan / "plan.json").read_text())["estimate"]["step_s"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("timeline PLAN -o step.png", "must end with .svg"),
        ("timeline nowhere/plan.json", "nowhere/plan.json"),
        ("trace nowhere -o step.json", "nowhere"),
        ("trace PLAN -o missing/step.json", "the folder missing does not exist"),
        ("trace PLAN", "--out"),
    ],
)
def test_bad_input_is_one_clear_message(plan: Path, words: str, message: str) -> None:
    answer = run(words.replace("PLAN", str(plan)))
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err
