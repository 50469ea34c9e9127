"""The emitted MindSpore script read back: its dictionary is parsed, and nothing of it is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.dialects.check import check
from planner.dialects.improve import improve
from planner.dialects.native.read import read_native
from planner.dialects.native.write import render
from planner.dialects.read import read
from planner.dialects.write import emit
from planner.errors import EmitError, SpecError
from planner.inputs import framework_of_target
from planner.model.load import find
from planner.model.operators import parameter_count
from tests.dialects.samples import plan, small

UNEVEN = plan(small("qwen3"), dp=2, tp=2, pp=2, vpp=2, layers=((3, 1), (2, 2)), full=(2, 1), selective=(1, 0))
PLANS = {
    "llama": plan(find("Llama-3.1-70B"), dp=2, tp=8, pp=4, micro_batches=16, full=(10, 8, 6, 4)),
    "qwen2": plan(find("Qwen2.5-7B"), dp=4, tp=2, zero_level=3, micro_batches=1, full=28),
    "gpipe": plan(small("llama"), dp=2, pp=2, schedule="gpipe", micro_batch_size=2, zero_level=0),
    "group": plan(small("qwen3"), dp=8, pp=2, optimizer_shard=4, selective=(2, 0)),
    "one": plan(small("llama"), micro_batches=1, zero_level=0),
    "uneven": UNEVEN,
}


@pytest.mark.parametrize("name", PLANS)
def test_reads_back_equal(tmp_path, name):
    chosen = PLANS[name]
    emit(chosen, tmp_path / "out", target="mindspore")
    result = read(tmp_path / "out" / "pretrain.py")
    assert (result.strategy, result.unread, result.dialect) == (chosen.strategy, (), "mindspore")
    assert parameter_count(result.model) == parameter_count(chosen.model)
    for field in ("seq", "global_batch", "params_dtype", "compute_dtype", "flash_attention"):
        assert getattr(result.workload, field) == getattr(chosen.workload, field)
    assert result.workload.framework == framework_of_target("mindspore", chosen.model)
    assert result.memory_limit_bytes == chosen.memory_limit_bytes
    assert check(tmp_path / "out") == ()


TEXT = render(UNEVEN).text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"hidden": 1024', '"hidden": 0', r"PLAN\['hidden'\] is 0; legal: whole numbers of at least 1"),
        ('"hidden": 1024', '"hidden": True', "PLAN.'hidden'. is True"),
        ('"hidden": 1024', '"hidden": __import__("os").system("touch pwned")', "[0-9]: PLAN holds more than plain"),
        ('"hidden": 1024', '"hidden": [0] * 10**9', "more than plain values"),
        ('"hidden": 1024', '"hidden": [0] * 99999999', "more than plain values"),
        ('"hidden": 1024', '"hidden": 1 + 1', "more than plain values"),
        ('"hidden": 1024', '**{"hidden": 1024}', "more than plain values"),
        ('    "hidden": 1024,\n', "", "PLAN has no 'hidden'"),
        ("PLAN = {", "SCHEME = {", "has no dictionary PLAN; only scripts of planner emit"),
        ("PLAN = {", "PLAN = [{", "line [0-9]+: not valid Python"),
        ('"devices": 8', '"devices": 16', "legal: dp x tp x pp = 8"),
        ('"batch": 16', '"batch": 17', "multiples of dp x micro_batches = 16"),
        ('"rows": 4', '"rows": 3', "PLAN.'rows'. is 3; legal: dp = 2, or dp x tp = 4"),
        ('"scheduler": "1f1b"', '"scheduler": "dualpipe"', "legal: 1f1b, gpipe"),
        ('"qk_norm": True', '"qk_norm": 1', "legal: True, False"),
        ('"stage_of_layer": [0] * 3', '"stage_of_layer": [7] * 3', "legal: stages 0 to 1"),
        ('"stage_of_layer": [0] * 3', '"stage_of_layer": [0] * 2', "for each of 7 layers"),
        ('"memory": "58GB"', '"memory": "much"', "memory"),
    ],
)  # fmt: skip
def test_what_is_no_plan(old, new, message):
    assert old in TEXT
    with pytest.raises(SpecError, match=message):
        read_native(TEXT.replace(old, new, 1), source="pretrain.py")


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("layout", '"devices": 8', '"devices": 16'),
        ("micro-batches-below-stages", '"micro_batches": 8', '"micro_batches": 1'),
        ("plan-differs", '"batch": 16', '"batch": 32'),
        ("device-product", '"dp": 2', '"dp": 1'),
        ("empty-stage", "[0] * 3 + [1] + [0] * 2 + [1] * 2", "[0] * 6 + [1] * 2"),
    ],
)
def test_faults_are_found_by_name(tmp_path, rule, old, new):
    emit(UNEVEN, tmp_path / "out", target="mindspore")
    path = tmp_path / "out" / "pretrain.py"
    text = path.read_text()
    assert old in text
    if rule == "device-product":
        text = text.replace('"devices": 8', '"devices": 4').replace('"rows": 4', '"rows": 2')
    if rule == "empty-stage":
        text = text.replace('"pp": 2', '"pp": 3').replace('"devices": 8', '"devices": 12')
        old, new = "[0] * 3 + [1] + [0] * 2 + [1] * 2", "[0] * 6 + [2] * 2"
    path.write_text(text.replace(old, new, 1))
    assert rule in {finding.rule for finding in check(tmp_path / "out")}


def test_a_program_of_somebody_else(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import mindspore as ms\nPLAN = load()\n")
    assert check(path) == ()
    with pytest.raises(SpecError, match="PLAN holds more than plain values"):
        read(path)


def test_it_is_made_again_rather_than_improved(tmp_path):
    emit(UNEVEN, tmp_path / "out", target="mindspore")
    for name in ("pretrain.py", "plan.json"):
        with pytest.raises(EmitError, match="made by the planner itself; make a new one with planner suggest --emit"):
            improve(tmp_path / "out" / name, replace(UNEVEN.strategy, micro_batches=4))
