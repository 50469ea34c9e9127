"""Checkpoints of plans: sizes, ways of saving, and what the answer leaves of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import api
from planner.completion import complete
from planner.errors import SpecError
from planner.inputs import request_for
from planner.search.request import Request
from planner.study.failures import rate
from planner.study.goodput import Conditions, checkpoint_sizes, study
from tests.cli.runner import run


def plan(framework: str = "mindformers", **degrees: int) -> tuple[Request, api.Estimate]:
    request = request_for("8B", 16, seq=4096, global_batch=64, tokens="100B", framework=framework)
    return request, api.judged(request, complete(request, **(degrees or {"tp": 4, "pp": 2})))


@pytest.mark.parametrize(("framework", "bytes_each"), [("mindformers", 12), ("mindspeed", 14), ("megatron", 14)])
def test_bytes_of_a_parameter_are_the_frameworks(framework: str, bytes_each: int) -> None:
    request = request_for("8B", 16, seq=4096, global_batch=64, framework=framework, hardware=_machine(framework))
    estimate = api.judged(request, complete(request, tp=4, pp=2))
    sizes = checkpoint_sizes(request, estimate, deduplicated=True)
    assert sizes.per_parameter == bytes_each
    assert sizes.states == sizes.written == bytes_each * 8_030_261_248  # Llama-3.1-8B


def _machine(framework: str) -> str:
    return "h100" if framework == "megatron" else "910b3"


def test_mindformers_ranks_write_what_they_hold() -> None:
    """Optimizer parallelism over all copies leaves almost none; without it each copy is written."""
    request, estimate = plan()
    shared = checkpoint_sizes(request, estimate, deduplicated=False)
    assert shared.states <= shared.written < 1.2 * shared.states
    single = replace(estimate, strategy=replace(estimate.strategy, zero_level=0, optimizer_shard=1))
    copies = checkpoint_sizes(request, single, deduplicated=False)
    assert copies.written == pytest.approx(2 * copies.states, rel=0.01)  # dp 2
    assert checkpoint_sizes(request, single, deduplicated=True).written == copies.states


def test_ways_of_saving() -> None:
    request, estimate = plan()
    answer = study(request, estimate, Conditions(storage_bytes_per_s=1e9, interval_s=1800.0))
    together, behind = answer.ways
    assert together.blocking_s == pytest.approx(answer.sizes.written / 1e9)
    assert behind.background_s == together.blocking_s
    assert behind.blocking_s < together.blocking_s
    assert [each.name for each in behind.spacings] == ["best", "30 min at risk", "asked for"]
    for way in answer.ways:
        assert way.best.goodput == max(each.goodput for each in way.spacings)
        assert way.spacings[1].at_risk_s == pytest.approx(1800, abs=estimate.step_s or 0)
        assert way.best.days == pytest.approx((estimate.days or 0) / way.best.goodput)


def test_a_save_must_end_before_the_next_starts() -> None:
    request, estimate = plan()
    answer = study(request, estimate, Conditions(storage_bytes_per_s=1e7, failures=rate("1000")))
    behind = answer.ways[1]
    assert behind.bounded
    assert behind.best.interval_s + behind.blocking_s >= behind.background_s


def test_more_failures_cost_more() -> None:
    request, estimate = plan()
    kept = [
        study(request, estimate, Conditions(failures=rate(text))).better.best.goodput
        for text in ("0.1", "rsc2", "llama3", "10")
    ]
    assert kept == sorted(kept, reverse=True)


def test_section_of_the_configuration_is_the_better_way() -> None:
    answer = run("goodput --params 8B --cards 64 --remove-redundancy --json").document
    best = next(way for way in answer["ways"] if way["way"] == answer["better"])["spacings"][0]
    assert f"    save_checkpoint_steps: {best['steps']}" in answer["callbacks"]
    assert "    remove_redundancy: True" in answer["callbacks"]
    assert run("goodput --params 8B --cards 64 --framework mindspeed --json").document["callbacks"] == []


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--failures often", "is no rate; legal: llama3, rsc1, rsc2, ascend-press"),
        ("--failures 0", "is no rate"),
        ("--storage 40GB", "is no rate from 1 MB/s"),
        ("--restart 5", "is no time from 1 s"),
        ("--interval 0s", "is no time from 1 s"),
    ],
)
def test_bad_options(option: str, message: str) -> None:
    answer = run(f"goodput --params 8B --cards 8 {option}")
    assert answer.code == 2
    assert message in answer.err


def test_what_does_not_fit_has_no_goodput() -> None:
    request = request_for("70B", 8, seq=4096, global_batch=64)
    estimate = api.judged(request, complete(request, tp=8))
    with pytest.raises(SpecError, match="does not fit"):
        study(request, estimate, Conditions())
