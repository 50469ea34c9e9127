"""plan.json: strict reading with a remedy in every message."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from planner import plan as plans
from planner.errors import SpecError
from planner.model.records import Workload
from tests.dialects.samples import plan, small

PLAN = plan(small("deepseek_v3"), dp=4, tp=2, pp=2, ep=4)


def text(**changes: object) -> str:
    body = json.loads(plans.dumps(PLAN))
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = body
        for key in parents:
            node = node[key]
        if value is None:
            del node[last]
        else:
            node[last] = value
    return json.dumps(body)


def test_file_holds_the_whole_plan(tmp_path):
    plans.save(PLAN, tmp_path / "plan.json")
    assert plans.load(tmp_path / "plan.json") == PLAN
    body = json.loads((tmp_path / "plan.json").read_text())
    assert body["schema"] == 1
    assert body["model"]["layer_kinds"] == [["dense", 1], ["moe", 7]]
    assert body["strategy"]["layers"] == [[4, 4]]
    assert body["devices"] == 16


def test_equal_plans_give_equal_text():
    assert plans.dumps(PLAN) == plans.dumps(plans.loads(plans.dumps(PLAN)))


def test_estimate_is_kept_as_json_holds_it():
    odd = {"step_s": np.float64(1.5), "interval_s": (1.0, 2.0), "bubble": math.inf, "stages": np.array([1, 2])}
    made = plans.Plan(
        model=PLAN.model, workload=PLAN.workload, hardware="910B2", devices=16, strategy=PLAN.strategy, estimate=odd
    )
    assert made.estimate == {"step_s": 1.5, "interval_s": [1.0, 2.0], "bubble": None, "stages": [1, 2]}
    assert plans.loads(plans.dumps(made)) == made


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (text(schema=2), "schema version 2 is not known"),
        (text(schema=True), "schema version True is not known"),
        (text(schema=None), "no field 'schema'"),
        (text(strategy=None), "field 'strategy' is missing"),
        (text(strategy__dp=None), "field 'dp' is missing"),
        (text(strategy__tp=2.5), "strategy: tp needs a whole number, found 2.5"),
        (text(strategy__tp=True), "needs a whole number, found True"),
        (text(strategy__sequence_parallel=1), "needs true or false, found 1"),
        (text(strategy__schedul="1f1b"), "unknown field 'schedul'; did you mean 'schedule'?"),
        (text(strategy__layers=[[4, 5]]), "the stages hold 9 layers but small-deepseek_v3 has 8"),
        (text(strategy__layers=4), "layers needs a list, found 4"),
        (text(strategy__dp=8), "= 32 devices, but the plan says 16"),
        (text(workload__global_batch=7), "= 32 samples a step, but the global batch is 7"),
        (text(workload__framework="torch"), "framework is 'torch'; legal: mindformers"),
        (text(model__hidden="1024"), "model.hidden is '1024'"),
        (text(model__hidden=None), "model lacks hidden"),
        (text(model__layer_kinds=[["dense", 10**9]]), "layer_kinds"),
        (text(rank=0), "rank=0 must be a positive whole number"),
        (text(estimate=[1]), "estimate needs an object"),
        (plans.dumps(PLAN)[:400], "the file ends too early"),
        ("", "the file ends too early"),
        ("[]", "holds one object, this holds list"),
        ('{"schema": 1, "schema": 1}', "field 'schema' is given twice"),
        ('{"schema": NaN}', "NaN is not a number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_damaged_text_is_refused(damaged, message):
    with pytest.raises(SpecError, match="plan") as caught:
        plans.loads(damaged)
    assert message in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(SpecError, match=r"missing\.json cannot be read: No such file"):
        plans.load(tmp_path / "missing.json")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        plans.load(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'{"schema": "\xff"}')
    with pytest.raises(SpecError, match="is not UTF-8 text"):
        plans.load(binary)
    large = tmp_path / "large.json"
    large.write_text(" " * (9 << 20))
    with pytest.raises(SpecError, match="at most 8388608"):
        plans.load(large)


def test_byte_order_mark_is_harmless(tmp_path):
    path = tmp_path / "bom.json"
    path.write_text(plans.dumps(PLAN), encoding="utf-8-sig")
    assert plans.load(path) == PLAN


@pytest.mark.parametrize(("framework", "ep", "etp"), [("mindspeed", 2, 4), ("mindspeed", 4, 1), ("mindformers", 2, 1)])
def test_experts_of_plans_of_0_1_are_split_as_they_were_priced_and_written(framework, ep, etp):
    """Over tp where dp x cp holds ep of them; else the script said that they stay whole."""
    workload = Workload(seq=4096, global_batch=8, framework=framework)
    written = plan(small("qwen3_moe"), dp=2, tp=4, ep=ep, workload=workload)
    body = json.loads(plans.dumps(written))
    del body["strategy"]["etp"]
    assert plans.loads(json.dumps(body)).strategy.etp == etp


def test_optional_fields_of_older_files_take_their_defaults():
    assert plans.loads(text(rank=None, memory_limit_bytes=None)).memory_limit_bytes == 58 * 2**30
