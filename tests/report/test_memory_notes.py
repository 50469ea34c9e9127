"""What is said beside memory figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import api, inputs
from planner.cost.strategies import Strategy
from planner.report.documents import estimate_document
from planner.report.estimation import estimation_lines
from planner.report.memory_notes import memory_kind, memory_notes


def job(framework: str):
    return inputs.request_for("qwen3-8b", 16, framework=framework, seq=4096)


PLAN = Strategy(dp=16, tp=1, pp=1, layers=((36,),), recompute_full=(36,), recompute_selective=(0,), micro_batches=4,
                sequence_parallel=False, zero_level=3, optimizer_shard=16)  # fmt: skip


def test_pynative_memory_says_that_it_was_not_compared():
    request = job("mindformers-pynative")
    answer = api.estimate_of(request, PLAN)
    text = " ".join(estimation_lines(request, answer))
    assert "GiB (modelled, not compared)" in text
    assert "compared with no run" in text
    document = estimate_document(request, answer)
    assert document["kinds"]["memory"] == "modelled, not compared"
    assert len(document["memory_notes"]) == 1


@pytest.mark.parametrize("framework", ["mindformers", "mindformers-legacy", "mindspeed", "megatron"])
def test_other_memory_was_compared_and_needs_no_note(framework: str):
    request = job(framework)
    answer = api.estimate_of(request, replace(PLAN, zero_level=1))
    assert memory_kind(request.workload) == "modelled"
    assert memory_notes(request.workload, answer) == ()


def test_swapped_moments_of_a_compiled_graph_are_explained():
    request = job("mindformers")
    swapped = api.estimate_of(request, replace(PLAN, zero_level=1, swap_optimizer=True))
    (note,) = memory_notes(request.workload, swapped)
    states = 8 * 8_190_735_360 / 16 / 2**30
    assert f"up to {states:.1f} GiB less" in note
    elsewhere = job("mindspeed")
    assert memory_notes(elsewhere.workload, api.estimate_of(elsewhere, swapped.strategy)) == ()
