"""docs/loop.md: its commands run in their order and print what the page shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.runner import run

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "observe" / "data"
PAGE = (ROOT / "docs" / "loop.md").read_text(encoding="utf-8")


def test_every_command_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "a_torchnpu_pp2_dp2", "profile")
    shutil.copy(DATA / "h_training_logs" / "mindformers_llama2_13b_8npu.log", "worker_0.log")
    blocks = re.findall(r"```console\n\$ planner (.*)\n((?:.*\n)*?)```", PAGE)
    assert [command.split()[0] for command, _ in blocks] == ["suggest", "monitor", "diagnose"]
    for command, shown in blocks:
        answer = run(command)
        assert (answer.code, answer.err) == (0, "")
        assert shown in ("", answer.out), command
    assert (tmp_path / "out" / "plan.json").is_file()


def test_the_callback_of_the_page_takes_the_arguments_shown() -> None:
    """The same arguments that tests/monitor/test_callback.py trains with."""
    source = (ROOT / "planner" / "monitor" / "callback.py").read_text(encoding="utf-8")
    signature = re.search(r"def __init__\(self, (.*)\) -> None", source)
    assert signature is not None
    names = set(re.findall(r"(\w+): ", signature[1]))
    (section,) = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])["callbacks"]
    assert set(section) - {"type", "auto_register"} <= names
    assert "plan=" in PAGE.split("```python\n")[1].split("```")[0]
