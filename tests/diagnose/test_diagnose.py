"""Findings of real profiles with their numbers, and the traps that must not be fallen for.

Expected numbers are read from the samples' own tables (tests/observe/data/README.md states where they come from).
"""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from planner.diagnose.diagnose import diagnose
from planner.diagnose.records import PARTS
from planner.errors import SpecError
from planner.observe.read import read
from planner.observe.records import CommunicationOp, KernelStat, Layout, Observation, StepTrace
from planner.observe.run import Event, empty_run
from planner.report.diagnosis import diagnosis_lines, diagnosis_svg

DATA = Path(__file__).parents[1] / "observe" / "data"
SAMPLES = (
    "a_torchnpu_pp2_dp2", "b_cluster_16ranks", "c_small_ddp_2ranks/level0", "c_small_ddp_2ranks/level1",
    "c_small_ddp_2ranks/level2", "e_mindspore_old_pp2_4ranks", "g_minddata_cpu29/data_bound",
)  # fmt: skip


def found(sample: str):
    return diagnose(read(DATA / sample))


def kinds(answer) -> list[str]:
    return [finding.kind for finding in answer.findings]


@pytest.mark.parametrize("sample", SAMPLES)
def test_parts_add_up_to_the_step(sample: str) -> None:
    observation = read(DATA / sample)
    for rank in diagnose(observation).ranks:
        assert sum(rank.share(part) for part in PARTS) == pytest.approx(1.0)
        assert all(getattr(rank, f"{part}_s") >= 0 for part in PARTS)
        steps = [step for step in observation.steps_of(rank.rank) if not step.mark] or observation.steps_of(rank.rank)
        assert rank.step_s == pytest.approx(np.mean([step.step_s for step in steps]), rel=1e-9)


def test_hidden_waiting_head_and_no_overlap_in_this_order() -> None:
    answer = found("a_torchnpu_pp2_dp2")
    assert kinds(answer) == [
        "too few micro-batches", "unequal stages", "exposed dp communication", "host-bound launch",
        "exposed embd communication",
    ]  # fmt: skip
    few, stages, exposed, host, embedding = answer.findings
    assert answer.limit is few
    stage0, stage1 = answer.ranks
    assert stage0.pipeline_wait_s == pytest.approx(0.313, abs=0.001)
    assert stage0.pipeline_wait_s / stage0.step_s == pytest.approx(0.386, abs=0.001)
    assert "m = 2 micro-batches" in few.text
    assert "33%" in few.text
    # of 9 (p - 1) micro-batches' bubble the second stage's waiting keeps 2/9
    assert few.gain_s == pytest.approx(stage1.bubble_s * 7 / 9)
    assert "1.73 times" in stages.text
    assert "vocabulary head" in stages.text
    assert stages.gain_s == pytest.approx((0.40044826 - 0.2312901) / 2, rel=1e-6)
    assert exposed.gain_s == pytest.approx(0.0596, abs=0.0005)  # 933 MB + 376 MB at 19 GB/s
    assert "none of it hidden" in exposed.text
    assert "16% to 20%" in host.text
    assert embedding.gain_s == pytest.approx(0.0346, abs=0.0001)  # the other 86 ms are waiting


def test_the_embedding_of_the_waiting_stage_counts_as_waiting() -> None:
    stage1 = found("a_torchnpu_pp2_dp2").ranks[1]
    assert stage1.bubble_s - stage1.pipeline_wait_s == pytest.approx(0.12099 - 0.03462, abs=1e-4)


def test_a_small_job_is_communication_bound_and_host_or_data_bound_at_every_level() -> None:
    for level in (0, 1, 2):
        answer = found(f"c_small_ddp_2ranks/level{level}")
        assert kinds(answer)[:2] == ["communication-bound", "data-bound input"]
        assert all(0.06 < rank.share("compute") < 0.09 for rank in answer.ranks)
        assert all(0.13 < rank.share("data") < 0.19 for rank in answer.ranks)
        assert 0.70 < answer.findings[0].number < 0.75
    assert any("level 1 or 2" in word for word in found("c_small_ddp_2ranks/level0").missing)


def test_badly_split_layers_of_the_old_writer() -> None:
    answer = found("e_mindspore_old_pp2_4ranks")
    assert kinds(answer) == ["unequal stages"]
    assert answer.findings[0].ranks == (2,)
    ratio = answer.ranks[1].compute_s / answer.ranks[0].compute_s
    assert ratio == pytest.approx(8.35, abs=0.1)
    assert all(rank.step_s < 0.2 for rank in answer.ranks)  # the start-up step of 2.16 s is left out


def test_waiting_for_data_names_the_operator_and_its_workers() -> None:
    answer = found("g_minddata_cpu29/data_bound")
    (data,) = answer.findings
    assert data.kind == "data-bound input"
    assert data.number == pytest.approx(0.84, abs=0.005)
    assert "MapOp limits" in data.text
    assert "num_parallel_workers 1 -> 7" in data.advice  # 2005 ms of it in the 319 ms the trainer takes


def test_ranks_of_unknown_stages_are_not_compared() -> None:
    answer = found("b_cluster_16ranks")
    assert "slow rank" not in kinds(answer)
    assert any("not compared" in word for word in answer.missing)


@pytest.mark.parametrize("path", sorted((DATA / "h_training_logs").glob("*")), ids=lambda path: path.name)
def test_nothing_is_found_in_quiet_logs(path: Path) -> None:
    assert diagnose(read(path)).findings == ()


def step(rank: int, compute: float, exposed: float = 0.0, free: float = 0.0, **known) -> StepTrace:
    return StepTrace(rank=rank, step=known.pop("number", 5), compute_s=compute, exposed_s=exposed, free_s=free, **known)


def profile(*steps: StepTrace, **known) -> Observation:
    return Observation(kind="profile", source=Path("profile"), format="test", steps=steps, **known)


def test_the_rank_that_computes_longest_is_slow_not_the_one_that_waits() -> None:
    rows = [step(rank, 0.5, 0.3, stage=0) for rank in range(7)] + [step(7, 0.7, 0.1, stage=0)]
    (slow,) = [f for f in diagnose(profile(*rows)).findings if f.kind == "slow rank"]
    assert slow.ranks == (7,)
    assert slow.gain_s == pytest.approx(0.2)


def test_ranks_of_a_slower_stage_are_not_slow_ranks() -> None:
    rows = [step(rank, 0.3 + 0.3 * (rank // 2), 0.4, stage=rank // 2) for rank in range(4)]
    answer = diagnose(profile(*rows))
    assert "slow rank" not in kinds(answer)
    assert "unequal stages" in kinds(answer)


def test_one_rank_alone_accuses_nobody() -> None:
    answer = diagnose(profile(step(0, 0.5, 0.1)))
    assert kinds(answer) == []
    assert any("one alone" in word for word in answer.missing)


def test_first_profiled_steps_do_not_count() -> None:
    rows = (step(0, 9.0, number=1, mark="first profiled step"), step(0, 0.5, number=2), step(0, 0.7, number=3))
    (rank,) = diagnose(profile(*rows)).ranks
    assert (rank.steps, rank.compute_s) == (2, pytest.approx(0.6))


def test_rows_of_stages_are_no_steps() -> None:
    row = dataclasses.replace(step(0, 1.0), rank=None, ranks=(0, 1), mark="maximum over ranks")
    with pytest.raises(SpecError, match="rows of stages are maxima"):
        diagnose(profile(row))


def test_parts_that_do_not_add_up_are_named() -> None:
    answer = diagnose(profile(step(0, 0.5, 0.1, 0.1, stage_s=0.9, bubble_s=0.0)))
    assert answer.ranks[0].off_frac == pytest.approx(0.2 / 0.9)
    assert any("differ from the step by 22.2%" in note for note in answer.notes)


def collective(rank: int, rate: float, size: float = 1e9, **known) -> CommunicationOp:
    values = {"op": "allreduce", "name": "ar", "group": "g", "group_kind": "dp", "link": "HCCS", **known}
    return CommunicationOp(rank=rank, step=5, elapse_s=size / rate, link_s=size / rate, size_bytes=size, **values)


def test_a_slow_link_among_equals() -> None:
    rows = [step(rank, 0.5, 0.1, stage=0) for rank in range(4)]
    ops = tuple(collective(rank, 2e10 if rank != 2 else 1e10, group=f"g{rank}") for rank in range(4))
    (slow,) = [f for f in diagnose(profile(*rows, communication=ops)).findings if f.kind == "slow link"]
    assert slow.ranks == (2,)
    assert slow.number == pytest.approx(0.5)
    assert slow.gain_s == pytest.approx(0.05)


def test_small_packets() -> None:
    ops = (
        collective(0, 2e10, large_packets_frac=1.0),
        *(collective(0, 1e9, 1e8, name=f"s{i}", large_packets_frac=0.0) for i in range(3)),
    )
    answer = diagnose(profile(step(0, 0.5, 0.35), communication=ops))
    (small,) = [f for f in answer.findings if f.kind == "small packets"]
    assert small.number == pytest.approx(0.3 / 0.35)
    assert small.gain_s == pytest.approx(0.3 - 0.3e9 / 2e10)


@pytest.mark.parametrize("kind", ["tp", "ep", "cp", "dp"])
def test_each_kind_of_group_is_told_apart_and_hidden_parts_do_not_count(kind: str) -> None:
    ops = (collective(0, 1e10, 2e9, group_kind=kind),)
    row = step(0, 0.5, 0.1, overlapped_s=0.1)
    (exposed,) = [f for f in diagnose(profile(row, communication=ops)).findings if f.kind.startswith("exposed")]
    assert exposed.kind == f"exposed {kind} communication"
    assert exposed.gain_s == pytest.approx(0.1)


def test_routing_layouts_and_checkpoints() -> None:
    rows = (step(0, 0.5, stage=0), step(1, 0.51, stage=0))
    kernels = tuple(
        KernelStat(rank=rank, op=op, core="AI_CORE", count=1, total_s=seconds)
        for rank, op, seconds in (
            (0, "GroupedMatmul", 0.1), (1, "GroupedMatmul", 0.2), (0, "TransData", 0.1), (1, "TransData", 0.1),
        )
    )  # fmt: skip
    answer = diagnose(profile(*rows, kernels=kernels))
    by_kind = {finding.kind: finding for finding in answer.findings}
    assert by_kind["routing imbalance"].ranks == (1,)
    assert by_kind["routing imbalance"].gain_s == pytest.approx(0.05)
    assert by_kind["layout conversion"].gain_s == pytest.approx(0.51 / 3)

    saves = tuple(Event(kind="checkpoint", step=10 * i, seconds=10.0) for i in (1, 2))
    run = empty_run(33, framework="x", step=np.arange(33), step_s=np.full(33, 4.0), events=saves)
    (stall,) = diagnose(Observation(kind="training log", source=Path("log"), runs=(run,))).findings
    assert stall.kind == "checkpoint stalls"
    assert stall.number == pytest.approx(20 / (120 + 20))


def test_more_micro_batches_known_from_single_sends() -> None:
    layout = Layout(degrees={"pp": 2}, world_size=2)
    ops = tuple(
        CommunicationOp(rank=rank, step=5, op="sendrecv", name=f"hcom_{word}__1_{i}", group="p", group_kind="pp",
                        elapse_s=0.1, size_bytes=1e6, link_s=0.0)
        for rank in (0, 1) for i in range(3) for word in ("send", "receive")
    )  # fmt: skip
    rows = [step(rank, 0.5, 0.6, stage=rank, pipeline_wait_s=0.6) for rank in (0, 1)]
    few = diagnose(profile(*rows, communication=ops, layout=layout)).findings[0]
    assert few.kind == "too few micro-batches"
    assert "m = 3 micro-batches" in few.text


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_and_picture(sample: str) -> None:
    answer = found(sample)
    assert max(map(len, diagnosis_lines(answer))) <= 80
    if answer.ranks:
        tree = ET.fromstring(diagnosis_svg(answer))  # noqa: S314
        bars = [e for e in tree.iter() if e.tag.endswith("rect") and e.get("height") == "18"]
        assert len(bars) == sum(getattr(r, f"{p}_s") > 0 for r in answer.ranks for p in PARTS)
