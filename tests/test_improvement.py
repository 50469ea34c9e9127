"""A file with a better strategy: never slower, told as it reads, without what belonged to the old strategy."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner import api, inputs
from planner.dialects.graph.write import render as render_graph
from planner.dialects.mindspeed.write import render as render_script
from planner.dialects.pynative.write import render as render_pynative
from planner.errors import EmitError
from planner.improvement import Improvement, improve_file
from planner.legality.apply import violations
from planner.search.explain import tied
from tests.cli.runner import run

#: 32B on its own 16 cards; the plan ranked first has dp 1, with which --overlap-param-gather is refused.
DEAD_END = """#!/bin/bash
NPUS_PER_NODE=8
NNODES=2
MODEL="
    --use-mcore-models --use-distributed-optimizer --bf16 --use-flash-attn --disable-bias-linear \\
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \\
    --num-layers 64 --hidden-size 5120 --ffn-hidden-size 25600 --num-attention-heads 64 --kv-channels 128 \\
    --group-query-attention --num-query-groups 8 --qk-layernorm --swiglu --padded-vocab-size 151936 \\
    --seq-length 4096 --max-position-embeddings 4096 \\
"
LAYOUT="
    --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 2 \\
    --micro-batch-size 1 --global-batch-size 64 --overlap-grad-reduce --overlap-param-gather \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
"
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py $MODEL $LAYOUT
"""

#: model, cards, framework and degrees of an emitted file that is far from the best, and who writes it
FILES = {
    "legacy": ("llama-3.1-8b", 16, "mindformers-legacy", {"tp": 8, "pp": 2}, render_graph, "own.yaml"),
    "mcore": ("qwen3-8b", 16, "mindformers", {"tp": 4, "pp": 4}, render_graph, "own.yaml"),
    "experts": ("qwen3-30b-a3b", 16, "mindformers", {"tp": 4, "pp": 4}, render_graph, "own.yaml"),
    "pynative": ("qwen3-8b", 16, "mindformers-pynative", {"tp": 4}, render_pynative, "own.yaml"),
    "mindspeed": ("qwen2-7b", 16, "mindspeed", {"tp": 4, "pp": 2}, render_script, "own.sh"),
    "mindspeed-experts": ("qwen3-30b-a3b", 16, "mindspeed", {"tp": 4, "pp": 4, "ep": 1}, render_script, "own.sh"),
}


def written(folder: Path, name: str) -> Path:
    model, cards, framework, degrees, render, file = FILES[name]
    request = inputs.request_for(model, cards, global_batch=128, framework=framework)
    strategy = api.complete(request, recompute="full", **degrees)
    path = folder / file
    path.write_text(render(api.plan_of(request, api.judged(request, strategy))).text)
    return path


def reader(**settings: object) -> object:
    return lambda path, cards: inputs.read(path, cards=cards, **settings)  # type: ignore[arg-type]


def improved(path: Path, cards: int | None = None) -> Improvement:
    return improve_file(path, reader(), cards=cards)  # type: ignore[arg-type]


@pytest.mark.parametrize("cards", [None, 32])
@pytest.mark.parametrize("name", FILES)
def test_a_new_file_reads_as_told_and_is_never_slower(tmp_path, name, cards):
    """Read back it has the printed seconds and memory, breaks no rule, fits, and beats the old one beyond a tie."""
    path = written(tmp_path, name)
    devices = FILES[name][1]
    # a PyNative file does not say its cards
    found = improve_file(path, lambda p, n: inputs.read(p, cards=n or devices), cards=cards)
    assert found.improved is not None
    new = tmp_path / f"new{path.suffix}"
    new.write_text(found.improved.text)
    request, strategy, _ = inputs.read(new, cards=cards or devices)
    assert violations(request.context, strategy) == []
    answer = api.estimate_of(request, strategy)
    assert strategy == found.after.strategy
    assert answer.fits
    assert (answer.step_s, answer.peak_bytes) == (found.after.step_s, found.after.peak_bytes)
    assert strategy.devices == (cards or devices)
    if cards is None:
        assert found.before is not None
        assert answer.step_s < (found.before.step_s or float("inf"))  # the old one of experts does not fit
        assert not tied(answer, found.before)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_best_plan_stays(tmp_path, name):
    """Improving what was improved finds nothing that can be told apart, and makes no file."""
    path = written(tmp_path, name)

    def read(file, cards):
        return inputs.read(file, cards=cards or FILES[name][1])

    first = improve_file(path, read)
    assert first.improved is not None
    path.write_text(first.improved.text)
    second = improve_file(path, read)
    assert second.improved is None
    assert second.after == second.before
    assert second.after.step_s == first.after.step_s
    assert "as fast as any found" in second.stays or "closer than the calibration can tell apart" in second.stays


@pytest.mark.parametrize("name", FILES)
def test_its_own_comments_say_what_stands_there(tmp_path, name):
    """Comments of the new file are those that the planner writes for it; a user's own ones stay."""
    path = written(tmp_path, name)
    text = path.read_text()
    mine = text.replace("# Written by planner", "# our baseline\n# Written by planner", 1)
    path.write_text(mine)
    found = improve_file(path, lambda p, n: inputs.read(p, cards=n or FILES[name][1]))
    assert found.improved is not None
    new, s = found.improved.text, found.after.strategy
    assert "# our baseline\n" in new
    head = new[: new.index("# Written by planner")]
    assert f"# dp {s.dp} x tp {s.tp} x pp {s.pp} x cp {s.cp} = {s.devices} devices" in head
    predicted = re.search(r"# Predicted: ([\d.]+) s a step", new)
    assert predicted is not None
    assert float(predicted[1]) == pytest.approx(found.after.step_s, rel=0.01)
    for said in re.findall(r"(\d+) attention heads on a device", new):
        assert int(said) * s.tp == found.request.model.attention.heads
    for dp in re.findall(r"devices (?:leave|=) dp (\d+)", new):
        assert int(dp) == s.dp


def test_the_second_plan_is_taken_when_the_first_cannot_be_written(tmp_path):
    path = tmp_path / "own.sh"
    path.write_text(DEAD_END)
    found = improved(path)
    assert found.improved is not None
    assert any("--overlap-param-gather: needs --use-distributed-optimizer" in reason for reason in found.passed)
    assert "--overlap-param-gather" in found.improved.text
    assert "--use-distributed-optimizer" in found.improved.text
    assert found.after.strategy.dp > 1
    assert found.after.step_s < found.before.step_s


#: Lists by stage of a MindFormers file, in every form that the framework takes.
LISTS = {
    "numbers": "[2, 1, 1, 0]",
    "chunks": "[[2, 1, 1, 0]]",
    "patterns": "{'feed_forward\\.mul': [2, 1, 1, 0]}",
}


@pytest.mark.parametrize("key", ["select_recompute", "select_comm_recompute", "select_recompute_exclude"])
@pytest.mark.parametrize("form", LISTS)
def test_no_list_by_stage_outlives_its_stages(tmp_path, key, form):
    """The framework walks over the numbers of a list and indexes a table of the new stages."""
    path = written(tmp_path, "legacy")
    text = path.read_text()
    request, old, _ = inputs.read(path)
    four = api.complete(request, tp=4, pp=4, recompute="none")
    text = render_graph(api.plan_of(request, api.judged(request, four))).text
    body = re.sub(r"(?m)^  select_recompute: .*$", "", text) if key == "select_recompute" else text
    path.write_text(re.sub(r"(?m)^recompute_config:$", f"recompute_config:\n  {key}: {LISTS[form]}", body))
    assert old.pp == 2
    found = improve_file(path, reader(), lambda job: _pinned(job, pp={2}), 8)  # type: ignore[arg-type]
    assert found.improved is not None
    assert found.after.strategy.pp == 2
    for value in yaml.safe_load(found.improved.text)["recompute_config"].values():
        assert not any(len(row) == 4 for row in _lists(value)), value
    assert run(f"check {_saved(tmp_path, found)}").code == 0


def _pinned(job, **pins):
    return replace(job, pins=pins)


def _saved(folder: Path, found: Improvement) -> Path:
    assert found.improved is not None
    new = folder / "new.yaml"
    new.write_text(found.improved.text)
    return new


def _lists(value: object) -> list[list[object]]:
    if isinstance(value, dict):
        return [row for item in value.values() for row in _lists(item)]
    if not isinstance(value, list):
        return []
    return [value, *(row for item in value for row in _lists(item))]


def test_pins_that_make_a_file_slower_are_not_written(tmp_path):
    path = written(tmp_path, "legacy")
    best = improved(path)
    assert best.improved is not None
    path.write_text(best.improved.text)
    out = tmp_path / "slow.yaml"
    answer = run(f"improve {path} --tp 8 --pp 2 --micro-batch 1 --recompute full --out {out}")
    assert answer.code == 0
    assert "The file stays as it is." in answer.out
    assert f"nothing; {out} was not made" in " ".join(answer.out.split())
    assert not out.exists()


def test_what_was_not_read_is_shown(tmp_path):
    path = written(tmp_path, "legacy")
    path.write_text(path.read_text().replace("recompute_config:\n", "recompute_config:\n  my_own_knob: 3\n"))
    assert "Not read: recompute_config.my_own_knob" in run(f"estimate --from {path}").out
    answer = run(f"improve {path}")
    assert answer.code == 0
    assert "Not read: recompute_config.my_own_knob" in answer.out


def test_a_file_that_cannot_stay_and_cannot_be_written_says_why(tmp_path):
    """It does not fit, and with dp 1 the flags that it has are refused."""
    path = tmp_path / "own.sh"
    text = DEAD_END.replace("--micro-batch-size 1 --global", "--micro-batch-size 16 --global")
    path.write_text(
        text.replace("    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\\n", "")
    )
    assert not api.estimate_of(*inputs.read(path)[:2]).fits
    with pytest.raises(EmitError, match="--overlap-param-gather: needs --use-distributed-optimizer"):
        improve_file(path, reader(), lambda job: _pinned(job, dp={1}))  # type: ignore[arg-type]


def test_files_of_the_planner_alone_are_made_anew(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(EmitError, match=r"is made by the planner itself; make a new one with planner suggest --emit\."):
        improve_file(path, reader())  # type: ignore[arg-type]
