"""Emitted files equal the reviewed ones; remake them with ``python -m tests.dialects.regenerate``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from planner.dialects.graph.write import render
from planner.dialects.write import emit
from tests.dialects.regenerate import FOLDER, files
from tests.dialects.samples import plan, small

FILES = files()


@pytest.mark.parametrize("name", FILES)
def test_file_is_as_reviewed(name):
    path = FOLDER / name
    assert path.exists(), f"{name} is new: run python -m tests.dialects.regenerate and review it"
    assert FILES[name] == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    kept = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert kept == set(FILES)


def test_head_exchange_is_written_as_all_to_all():
    """Without it the compiled graph gathers whole tensors in place of the exchange."""
    model = small("llama", layer_kinds=("dense",) * 4)
    for algorithm, degree, expected in (("ulysses", 2, True), ("ring", 1, False)):
        written = plan(model, dp=2, cp=2, tp=2, cp_algorithm=algorithm, ulysses_degree=degree)
        assert yaml.safe_load(render(written).text)["parallel"]["enable_alltoall"] is expected


def test_stages_that_lie_differently_on_nodes_are_said():
    model = small("qwen3", layer_kinds=("dense",) * 8)
    notes = [render(plan(model, **degrees)).notes for degrees in ({"pp": 4, "dp": 2}, {"pp": 4, "dp": 8}, {"pp": 2})]
    assert "ranks 0 and 6" in notes[0][0]
    assert notes[1:] == [(), ()]


def test_rotary_scaling_of_a_config_is_written_or_said(tmp_path):
    """Llama 3.1's numbers go into legacy files; what a target's file does not hold is said at the end of the run."""
    shape = small("llama", layer_kinds=("dense",) * 4)
    scaling = {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
    }  # fmt: skip
    config = tmp_path / "config.json"
    for kind, written in (("llama3", True), ("yarn", False)):
        body = {"hidden_size": shape.hidden, "vocab_size": shape.vocab, "rope_scaling": {**scaling, "rope_type": kind}}
        config.write_text(json.dumps(body), encoding="utf-8")
        model = replace(shape, source=str(config))
        section = yaml.safe_load(render(plan(model, tp=2)).text)["model"]["model_config"]
        assert section["scaling_factor"] == (scaling if written else 1.0)
        assert section["extend_method"] == ("LLAMA3" if written else "None")
        notes = emit(plan(model, tp=2), tmp_path / kind).notes
        assert any("rope_scaling" in note for note in notes) != written
