"""Configs of families that are not known: what the command line says and offers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.runner import run

#: A shape as small as the search takes.
CONFIG = {
    "model_type": "someone_new", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip


def test_a_family_that_is_not_known_is_read_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    refused = run(f"suggest --config {path} --cards 8")
    assert refused.code == 2
    assert "--as FAMILY" in refused.err
    answer = run(f"suggest --config {path} --as llama --cards 8 --top 1")
    assert answer.code == 0
    assert "Note      Read as llama, as asked" in answer.out
    document = run(f"suggest --config {path} --as llama --cards 8 --top 1 --json").document
    assert "Read as llama" in json.dumps(document)


def test_as_needs_a_config() -> None:
    answer = run("suggest --params 8B --as llama --cards 8")
    assert answer.code == 2
    assert "--as says how to read a config.json; give it with --config" in answer.err


def test_files_of_a_family_without_a_training_class_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemma.json"
    path.write_text(json.dumps(CONFIG | {"model_type": "gemma2"}), encoding="utf-8")
    answer = run(f"suggest --config {path} --cards 8 --emit {tmp_path / 'out'}")
    assert answer.code != 0
    assert "no training class for family 'gemma2'" in answer.err
    assert not (tmp_path / "out").exists()
