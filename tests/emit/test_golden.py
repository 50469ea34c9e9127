"""Emitted files equal the reviewed ones; remake them with ``python -m tests.emit.regenerate``."""

from __future__ import annotations

import pytest

from tests.emit.regenerate import FOLDER, files

FILES = files()


@pytest.mark.parametrize("name", FILES)
def test_file_is_as_reviewed(name):
    path = FOLDER / name
    assert path.exists(), f"{name} is new: run python -m tests.emit.regenerate and review it"
    assert FILES[name] == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    kept = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert kept == set(FILES)
