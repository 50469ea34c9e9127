"""Finding MindSpore and MindFormers, and refusing pairs that do not belong together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planner.errors import ValidationError
from planner.validate.compiler import framework
from planner.validate.compiler.framework import check_pair, find_framework


def fake_interpreter(tmp_path: Path, answer: str) -> Path:
    """A program that answers the probe with a fixed line."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("mindspore", "mindformers"), [("2.9.0", "1.9.0"), ("2.10.0", "2.0.0"), ("9.9", "9.9")])
def test_pairs_that_may_run(mindspore: str, mindformers: str) -> None:
    check_pair(mindspore, mindformers)


@pytest.mark.parametrize(
    ("mindspore", "mindformers", "wanted"), [("2.10.0", "1.9.0", "2.9.0"), ("2.9.0", "2.0.0", "2.10.0")]
)
def test_a_wrong_pair_is_named(mindspore: str, mindformers: str, wanted: str) -> None:
    with pytest.raises(
        ValidationError, match=f"mindformers {mindformers} was released for mindspore {wanted}.*pip install"
    ):
        check_pair(mindspore, mindformers)


def test_both_right_pairs_are_named() -> None:
    with pytest.raises(ValidationError) as caught:
        check_pair("2.10.0", "1.9.0")
    assert str(caught.value) == (
        "mindformers 1.9.0 was released for mindspore 2.9.0, but 2.10.0 is installed. mindspore 2.10.0 goes with "
        "mindformers 2.0.0. Install the proven pair: pip install mindspore==2.9.0 mindformers==1.9.0"
    )
    with pytest.raises(ValidationError, match=r"but 2\.6\.0 is installed\. Install the proven pair"):
        check_pair("2.6.0", "1.9.0")


def test_versions_come_from_the_interpreter(tmp_path: Path) -> None:
    python = fake_interpreter(tmp_path, '{"home": "/x/mindspore", "mindspore": "2.9.0", "mindformers": "1.9.0"}')
    found = find_framework(python)
    assert (found.mindspore, found.mindformers, found.home) == ("2.9.0", "1.9.0", Path("/x/mindspore"))


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        ('{"home": null, "mindspore": null, "mindformers": null}', "mindspore"),
        ('{"home": "/x", "mindspore": "2.9.0", "mindformers": null}', "mindformers"),
    ],
)
def test_what_is_missing_is_named_with_the_cure(tmp_path: Path, answer: str, missing: str) -> None:
    with pytest.raises(ValidationError, match=f"has no {missing},.*pip install mindspore==2.9.0 mindformers==1.9.0"):
        find_framework(fake_interpreter(tmp_path, answer))


def test_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"Cannot ask the interpreter .*absent .*: No such file or directory\."):
        find_framework(tmp_path / "absent")
    with pytest.raises(ValidationError, match=r"Permission denied\. Name a Python interpreter"):
        find_framework(tmp_path)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "exit status 0 without an answer"),
        ("exit 3", "exit status 3 without an answer"),
        ("echo hello", "exit status 0 without an answer"),
        ("echo 'syntax error near -c' >&2; exit 2", "syntax error near -c"),
    ],
)
def test_a_program_that_is_no_python(tmp_path: Path, script: str, words: str) -> None:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    with pytest.raises(ValidationError, match=f"for its packages: {words}. Name a Python interpreter"):
        find_framework(path)


def test_probe_runs_in_this_interpreter_without_importing_mindspore() -> None:
    found = framework._probe(Path(sys.executable))
    assert set(found) == {"home", "mindspore", "mindformers"}
    assert "import mindspore" not in framework._PROBE
