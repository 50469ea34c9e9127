"""MemoryEstimator: the figures of the memory model, asked one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner import api
from planner.cost.memory.peak import memory
from planner.cost.strategies import Strategies
from planner.dialects.records import Settings
from planner.dialects.write import render
from planner.errors import PredictedOutOfMemory, SpecError
from planner.estimator import MemoryEstimator
from planner.units import GIB


@pytest.fixture(scope="module")
def estimator() -> MemoryEstimator:
    return MemoryEstimator.from_strategy("70B", tp=8, pp=4, dp=2, seq=4096, global_batch=128)


@pytest.fixture(scope="module")
def heavy() -> MemoryEstimator:
    return MemoryEstimator.from_strategy(
        "70B", tp=8, pp=2, dp=4, micro_batch_size=2, seq=8192, global_batch=64, recompute="none"
    )


def test_peaks_are_those_of_the_memory_model(estimator: MemoryEstimator) -> None:
    request = estimator.request
    found = memory(request.model, request.workload, Strategies.of([estimator.strategy]))
    assert [stage.peak_bytes for stage in estimator.stages()] == found.peak_bytes_CS[0].tolist()
    assert estimator.peak() == found.peak_bytes[0]
    for stage in range(4):
        assert estimator.peak(stage=stage) == found.peak_bytes_CS[0, stage]


def test_terms_add_up_to_the_peak(estimator: MemoryEstimator) -> None:
    for stage in estimator.stages():
        assert sum(stage.terms.values()) == pytest.approx(stage.peak_bytes, rel=1e-12)
        assert stage.layers == estimator.strategy.layers_per_stage[stage.stage]


def test_other_micro_batch_and_sequence_are_those_of_a_job_with_them(estimator: MemoryEstimator) -> None:
    other = replace(estimator.strategy, micro_batch_size=2)
    wider = MemoryEstimator(request=estimator.request, strategy=other)
    assert estimator.peak(micro_batch_size=2) == wider.peak()
    workload = replace(estimator.request.workload, seq=8192)
    longer = MemoryEstimator(request=replace(estimator.request, workload=workload), strategy=estimator.strategy)
    assert estimator.peak(seq=8192) == longer.peak()


def test_largest_micro_batch_fits_and_the_next_does_not(estimator: MemoryEstimator) -> None:
    most = estimator.max_micro_batch_size()
    assert most >= 1
    assert estimator.peak(micro_batch_size=most) <= estimator.limit_bytes < estimator.peak(micro_batch_size=most + 1)
    shorter = estimator.max_micro_batch_size(seq=2048)
    assert shorter >= most


def test_nothing_fits_gives_zero() -> None:
    """70.6B parameters x 16 B on 8 cards are 131 GiB a card, whatever the micro-batch."""
    hopeless = MemoryEstimator.from_strategy("70B", tp=8, seq=4096, global_batch=64)
    assert hopeless.max_micro_batch_size() == 0


def test_headroom_is_limit_minus_peak(estimator: MemoryEstimator, heavy: MemoryEstimator) -> None:
    assert estimator.headroom() == 58 * GIB - estimator.peak()
    assert estimator.headroom(stage=3) == 58 * GIB - estimator.peak(stage=3)
    assert heavy.headroom() < 0


def test_sweep_covers_the_grid_in_order(estimator: MemoryEstimator) -> None:
    points = estimator.sweep(micro_batch_sizes=(1, 2), seqs=(2048, 4096))
    assert [(p.seq, p.micro_batch_size) for p in points] == [(2048, 1), (2048, 2), (4096, 1), (4096, 2)]
    for point in points:
        assert point.peak_bytes == estimator.peak(micro_batch_size=point.micro_batch_size, seq=point.seq)
        assert point.fits == (point.peak_bytes <= 58 * GIB)


def test_check_of_a_job_that_fits_returns_it(estimator: MemoryEstimator) -> None:
    assert estimator.check() is estimator


def test_check_raises_with_breakdown_and_changes_that_really_fit(heavy: MemoryEstimator) -> None:
    with pytest.raises(PredictedOutOfMemory) as caught:
        heavy.check()
    error = caught.value
    assert error.peak_bytes == heavy.peak()
    assert error.limit_bytes == 58 * GIB
    message = str(error)
    assert message.startswith("stage 0 is predicted to need ")
    assert "over the limit of 58.0 GiB: " in message
    assert "activations" in message
    assert "Fits with one of: " in message
    changes = heavy.changes_that_fit()
    assert 1 <= len(changes) <= 3
    assert all(change in message for change in changes)


@pytest.mark.parametrize("stage", [4, -1, "0", 1.5, True, [0], 10**30])
def test_a_stage_that_does_not_exist(estimator: MemoryEstimator, stage: Any) -> None:
    with pytest.raises(SpecError, match=r"stage=.* must be a whole number from 0 to 3\."):
        estimator.peak(stage=stage)
    with pytest.raises(SpecError, match=r"stage=.* must be a whole number from 0 to 3\."):
        estimator.headroom(stage=stage)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2", 4097, 10**30, float("nan")])
def test_a_micro_batch_size_that_is_none(estimator: MemoryEstimator, size: Any) -> None:
    rule = r" must be a whole number from 1 to 4096\."
    with pytest.raises(SpecError, match=f"micro_batch_size=.*{rule}"):
        estimator.peak(micro_batch_size=size)
    with pytest.raises(SpecError, match=f"micro_batch_sizes=.*{rule}"):
        estimator.sweep(micro_batch_sizes=[1, size])


@pytest.mark.parametrize("seq", [0, -4096, 1.5, True, "4k", 2**27 + 1, 10**30])
def test_a_sequence_length_that_is_none(estimator: MemoryEstimator, seq: Any) -> None:
    rule = r" must be a whole number from 1 to 134217728\."
    for ask in (estimator.peak, estimator.stages, estimator.max_micro_batch_size):
        with pytest.raises(SpecError, match=f"seq=.*{rule}"):
            ask(seq=seq)
    with pytest.raises(SpecError, match=f"seqs=.*{rule}"):
        estimator.sweep(seqs=[seq])


def test_a_sequence_that_the_strategy_cannot_split(estimator: MemoryEstimator) -> None:
    """Sequence parallelism gives each of 8 ranks the same number of tokens."""
    for ask in (lambda: estimator.peak(seq=4097), lambda: estimator.sweep(seqs=[4096, 4097])):
        with pytest.raises(SpecError, match=r"seq=4097: .*4097 tokens are split over cp=1 x tp=8"):
            ask()


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"micro_batch_sizes": []}, r"micro_batch_sizes=\[\] names no size"),
        ({"micro_batch_sizes": 2}, "micro_batch_sizes=2 must be a sequence"),
        ({"micro_batch_sizes": "12"}, "micro_batch_sizes='12' must be a sequence"),
        ({"seqs": 4096}, "seqs=4096 must be a sequence"),
    ],
)
def test_a_sweep_over_nothing(estimator: MemoryEstimator, sweep: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        estimator.sweep(**sweep)


def test_numpy_numbers_are_numbers(estimator: MemoryEstimator) -> None:
    assert estimator.peak(stage=np.int64(2), micro_batch_size=np.int32(2)) == estimator.peak(
        stage=2, micro_batch_size=2
    )
    points = estimator.sweep(micro_batch_sizes=np.array([1, 2]), seqs=range(2048, 4097, 2048))
    assert points == estimator.sweep(micro_batch_sizes=(1, 2), seqs=(2048, 4096))
    assert all(type(point.seq) is type(point.micro_batch_size) is int for point in points)


def test_a_sweep_is_one_call_for_each_sequence(estimator: MemoryEstimator, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(len(arguments[2]))
        return memory(*arguments)

    monkeypatch.setattr("planner.estimator.memory", counted)
    assert len(estimator.sweep(micro_batch_sizes=range(1, 65), seqs=(2048, 4096))) == 128
    assert calls == [64, 64]


def test_from_plan_and_from_mindformers_see_the_same_job(tmp_path: Path) -> None:
    from planner.dialects.write import emit

    result = planner.suggest("8B", 16, seq=4096, global_batch=128, top=1)
    plan = api.plan_of(result.request, result.estimates.row(0))
    emit(plan, tmp_path / "out")
    peak = result.estimates.row(0).peak_bytes
    for source in (plan, tmp_path / "out", tmp_path / "out" / "plan.json"):
        assert MemoryEstimator.from_plan(source).peak() == peak
    from_yaml = MemoryEstimator.from_mindformers(tmp_path / "out" / "pretrain.yaml", hardware="910b2")
    assert from_yaml.peak() == peak
    assert from_yaml.strategy == plan.strategy
    assert from_yaml.limit_bytes == plan.memory_limit_bytes


def test_a_file_cannot_give_a_card_more_memory_than_it_has(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.yaml"
    result = planner.suggest("8B", 16, seq=4096, global_batch=128, top=1)
    plan = api.plan_of(result.request, result.estimates.row(0))
    path.write_text(render(plan, "mindformers", Settings())[0].text, encoding="utf-8")
    roomy, small = (MemoryEstimator.from_mindformers(path, hardware=name) for name in ("910b3", "910b4"))
    assert roomy.limit_bytes == 58 * GIB
    assert small.limit_bytes == small.request.cluster.hardware.device.usable_bytes < 32 * GIB
    roomy.check()
    assert small.peak() > 32 * GIB
    with pytest.raises(PredictedOutOfMemory):
        small.check()


def test_a_plan_on_other_hardware_gets_its_memory(tmp_path: Path) -> None:
    result = planner.suggest("8B", 16, seq=4096, global_batch=128, top=1)
    plan = api.plan_of(result.request, result.estimates.row(0))
    moved = MemoryEstimator.from_plan(plan, hardware="910b4")
    assert moved.limit_bytes == 29 * GIB  # usable memory of a 32 GB card
    assert moved.peak() == MemoryEstimator.from_plan(plan).peak()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a YAML file"):
        MemoryEstimator.from_mindformers(tmp_path / "model.json")


def test_the_whole_card_by_hand(estimator: MemoryEstimator) -> None:
    """Legacy network, 6 communicators x 2 buffers; one micro-batch is 4096 x 8192 x 2 B = 64 MiB."""
    card = estimator.card()
    assert card.groups == ("world", "pp", "pp, send and receive", "stage", "tp", "dp x cp")
    assert card.communicators == 6
    assert card.hccl_buffsize_mb == 64
    assert card.buffers_bytes == 6 * 2 * 64 * 2**20
    assert card.visible_bytes == 62432 * 2**20  # what the framework reports of a 64 GiB card
    assert card.max_device_memory_bytes == 58 * GIB
    assert card.free_bytes == 62432 * 2**20 - GIB - card.buffers_bytes - estimator.peak()


def test_many_communicators_lower_the_pool() -> None:
    """hardware facts: 58 GB, 1 GB of context and 200 MB buffers leave room for five communicators; here are 14."""
    moe = MemoryEstimator.from_strategy(
        "deepseek-v3", tp=4, pp=8, dp=8, cp=2, ep=32, seq=32768, global_batch=64, micro_batch_size=4
    )
    card = moe.card()
    assert (card.communicators, card.hccl_buffsize_mb) == (14, 200)
    left = 62432 - 1024 - 14 * 400  # MB
    assert card.max_device_memory_bytes == left * 2**20 // GIB * GIB == 54 * GIB


def test_a_card_without_room_gets_no_pool() -> None:
    crowded = MemoryEstimator.from_strategy("8B", tp=2, dp=2, seq=4096, global_batch=64)
    hardware = crowded.request.cluster.hardware
    device = replace(hardware.device, visible_bytes=GIB // 2, usable_bytes=GIB // 4)
    cluster = replace(crowded.request.cluster, hardware=replace(hardware, device=device))
    card = replace(crowded, request=replace(crowded.request, cluster=cluster)).card()
    assert card.max_device_memory_bytes == 0
    assert card.free_bytes < -crowded.peak()


def test_a_thousand_cards_get_the_lower_recommendation() -> None:
    big = MemoryEstimator.from_strategy("70B", tp=8, pp=4, dp=32, seq=4096, global_batch=1024)
    assert big.card().max_device_memory_bytes == 54 * GIB


def test_dryrun_of_a_job_is_that_of_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    monkeypatch.setattr("planner.validate.compiler.dryrun.dryrun", lambda *arguments: seen.append(arguments))
    result = planner.suggest("qwen3-8b", 16, seq=4096, global_batch=128, top=1)
    plan = api.plan_of(result.request, result.estimates.row(0))
    MemoryEstimator.from_plan(plan).dryrun(stages=[0])
    content, stages, settings = seen[0]
    assert content["parallel_config"]["model_parallel"] == plan.strategy.tp
    assert (stages, settings) == ([0], None)
