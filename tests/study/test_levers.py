"""What could be switched on: predicted gains are differences of estimates, published ones have a source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.completion import complete
from planner.inputs import request_for
from planner.study.jobs import Job, judge
from planner.study.levers import levers
from tests.cli.runner import run
from tests.cli.test_answers import undocumented


def job(framework: str = "mindformers", model: str = "13B", **degrees: int) -> Job:
    request = request_for(model, 32, seq=4096, global_batch=128, framework=framework)
    strategy = complete(request, recompute="full", **(degrees or {"tp": 4, "pp": 2}))
    return Job(request=request, strategy=strategy)


def test_predicted_gains_are_differences_of_estimates() -> None:
    mine = job()
    base, found = levers(mine)
    assert base == judge(mine)
    none = next(each for each in found if each.what == "no recompute")
    zeros = (0,) * mine.strategy.pp
    other = judge(replace(mine, strategy=replace(mine.strategy, recompute_full=zeros)))
    assert base.estimate is not None
    assert other.estimate is not None
    assert base.estimate.step_s is not None
    if other.estimate.step_s is None:
        assert none.low is None
    else:
        assert none.low == pytest.approx(base.estimate.step_s / other.estimate.step_s - 1)
        assert none.low > 0
    assert none.memory_bytes == pytest.approx(other.estimate.peak_bytes - base.estimate.peak_bytes)
    gains = [each.low for each in found if each.kind == "predicted" and each.low is not None]
    assert gains == sorted(gains, reverse=True)


def test_what_is_on_already_is_no_lever() -> None:
    mine = job()
    names = {each.what for each in levers(mine)[1]}
    assert "flash attention" not in names
    unfused = replace(
        mine, request=replace(mine.request, workload=replace(mine.request.workload, flash_attention=False))
    )
    found = next(each for each in levers(unfused)[1] if each.what == "flash attention")
    assert found.low is not None
    assert found.low > 0.02
    hosted = replace(mine, strategy=replace(mine.strategy, swap_optimizer=True))
    assert "optimizer states on the host" not in {each.what for each in levers(hosted)[1]}


def test_what_breaks_a_rule_or_does_not_fit_says_so() -> None:
    mine = job()
    small = replace(mine, request=replace(mine.request, limit_bytes=judge(mine).estimate.peak_bytes))  # type: ignore[union-attr]
    none = next(each for each in levers(small)[1] if each.what == "no recompute")
    assert none.low is None
    assert "GiB" in none.note


def test_published_levers_are_of_the_framework_and_have_a_source() -> None:
    dense, experts, graph = job("mindspeed"), job("mindspeed", "qwen3-30b-a3b", tp=1, pp=2, ep=8), job()
    names = {
        name: {each.what for each in levers(each_job)[1] if each.kind == "published"}
        for name, each_job in (("dense", dense), ("experts", experts), ("graph", graph))
    }
    assert "fused RMSNorm" in names["dense"]
    assert "fused RMSNorm" not in names["graph"]
    assert "grouped matmul of experts" in names["experts"] - names["dense"]
    assert "graph kernel fusion" in names["graph"]
    assert all(each.source for each in levers(experts)[1] if each.kind == "published")


def test_command(tmp_path: Path) -> None:
    assert run(f"suggest --params 8B --cards 16 --global-batch 64 --emit {tmp_path / 'a'}").code == 0
    answer = run(f"levers {tmp_path / 'a'}")
    assert answer.code == 0
    assert max(map(len, answer.lines)) <= 80
    body = run(f"levers {tmp_path / 'a'} --json").document
    assert undocumented(body) == []
    assert {each["kind"] for each in body["levers"]} == {"predicted", "published"}
