"""What is kept of a plan and what is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.load import hardware
from planner.dialects.native.write import render
from planner.errors import SpecError, ValidationError
from planner.model.load import find
from planner.model.records import Workload
from planner.plan import Plan
from planner.units import GIB
from planner.validate.run.machine import Machine, ascend_cards, find_machine, free_bytes
from planner.validate.run.shrink import shrink
from tests.dialects.samples import plan, small

BIG = plan(small("llama"), dp=4, tp=2, pp=2, vpp=2, layers=((2, 2), (2, 2)), full=(2, 1), micro_batches=16)


def cpu(cards: int = 2, limit: float = 64 * GIB) -> Machine:
    return Machine(device="CPU", cards=cards, hardware=hardware("cpu"), limit_bytes=limit)


def npu(cards: int, limit: float = 58 * GIB) -> Machine:
    return Machine(device="Ascend", cards=cards, hardware=hardware("910b2"), limit_bytes=limit)


def shrunk(machine, chosen=BIG, **options):
    return shrink(chosen.model, chosen.workload, chosen.strategy, machine, **options)


def test_tensor_parallelism_outlives_replicas_and_stages():
    found = shrunk(cpu(2))
    s = found.strategy
    assert (s.dp, s.tp, s.pp, s.vpp, s.zero_level, s.sequence_parallel) == (1, 2, 1, 1, 0, False)
    assert s.layers == ((4,),)  # those of one stage, of which two in four were recomputed
    assert s.recompute_full == (2,)
    assert (s.micro_batches, s.micro_batch_size, found.workload.global_batch) == (4, 1, 4)
    assert found.workload.compute_dtype == "float32"
    assert not found.workload.flash_attention
    assert found.model.layers == 4
    assert "dp 4 -> 1" in found.notes[0]
    assert "layers 8 -> 4" in found.notes[0]
    assert "float32" in found.notes[1]


def test_on_cards_the_types_and_the_pipeline_stay():
    found = shrunk(npu(4))
    s = found.strategy
    assert (s.dp, s.tp, s.pp, s.micro_batches, s.sequence_parallel) == (1, 2, 2, 4, True)
    assert s.layers == ((4, 4),)
    assert found.workload == replace(BIG.workload, global_batch=4)
    assert found.model == BIG.model


def test_a_plan_that_fits_is_run_as_it_is():
    found = shrunk(npu(16), replace_micro(BIG, 4))
    assert found.strategy == replace_micro(BIG, 4).strategy
    assert found.notes == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"tp": 2, "micro_batch_size": 2},
        {"dp": 2, "zero_level": 3},
        {"pp": 2, "vpp": 2, "schedule": "zero_bubble_v", "layers": ((2, 2), (2, 2))},
        {"cp": 2},
        {"dp": 2, "swap_optimizer": True},
    ],
)
def test_what_is_run_is_what_the_script_can_hold(changes):
    chosen = plan(small("llama"), **changes)
    for machine in (npu(2), npu(1), cpu(2)):
        found = shrunk(machine, chosen)
        s = found.strategy
        render(plan_of(found))
        assert found.notes or s == chosen.strategy


def plan_of(found):
    return Plan(
        model=found.model, workload=found.workload, hardware="910B2", devices=found.strategy.devices,
        strategy=found.strategy,
    )  # fmt: skip


def replace_micro(chosen, number):
    return plan(
        chosen.model, dp=4, tp=2, pp=2, vpp=2, layers=((2, 2), (2, 2)), full=(2, 1), micro_batches=number
    )  # fmt: skip


@pytest.mark.parametrize("cards", [1, 2, 3, 5, 8])
def test_never_more_ranks_than_cards(cards):
    for machine in (cpu(cards), npu(cards)):
        s = shrunk(machine).strategy
        assert s.devices <= cards
        assert BIG.strategy.tp % s.tp == 0
        assert BIG.strategy.dp % s.dp == 0


def test_layers_are_cut_until_they_fit():
    chosen = plan(find("Llama-3.1-8B"), dp=2, micro_batches=1, seq=512)
    found = shrunk(cpu(1, limit=24 * GIB), chosen)
    assert 1 <= found.model.layers < 32
    assert f"layers 32 -> {found.model.layers}" in found.notes[0]
    more = shrunk(cpu(1, limit=40 * GIB), chosen)
    assert more.model.layers > found.model.layers


def test_recomputed_layers_keep_their_share():
    chosen = plan(small("llama"), micro_batches=1, full=3)
    assert shrunk(cpu(1), chosen, layers_per_stage=3).strategy.recompute_full == (2,)  # 3 of 8, rounded up
    assert shrunk(cpu(1), chosen, layers_per_stage=1).strategy.recompute_full == (1,)


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        (cpu(1), {"layers_per_stage": 9}, "--layers-per-stage 9: the plan's stages have at most 4"),
        (cpu(1, limit=2**20), {}, "1 layer a stage of small-llama needs .* GiB a card; 0.0 GiB are free"),
        (cpu(1, limit=2**20), {"layers_per_stage": 2}, "2 layers a stage of small-llama needs"),
    ],
)
def test_what_cannot_be_run(machine, options, message):
    with pytest.raises((SpecError, ValidationError), match=message):
        shrunk(machine, **options)


def test_experts_are_refused():
    chosen = plan(small("qwen3_moe"))
    with pytest.raises(ValidationError, match="layers of kind moe; validate runs dense models only so far"):
        shrunk(cpu(1), chosen)


def test_the_machine(tmp_path):
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / name).touch()
    assert ascend_cards(tmp_path) == 2
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:      64 kB\n")
    assert free_bytes(tmp_path / "meminfo") == 64 * 1024
    assert free_bytes(tmp_path / "absent") > 2**20


def test_cards_of_the_machine(monkeypatch):
    monkeypatch.setattr("planner.validate.run.machine.ascend_cards", lambda: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    planned = hardware("910b2")
    assert find_machine(planned, most=64).cards == 4
    assert find_machine(planned, most=2).cards == 2
    assert find_machine(planned, "CPU", 3, most=64).hardware.name == "cpu"
    for arguments, message in (
        (("GPU",), "--device 'GPU' is not known; legal: auto, CPU, Ascend"),
        (("Ascend",), "the driver shows no card"),
        (("CPU", 5), "--cards 5: this machine has 4 cores"),
    ):
        with pytest.raises((SpecError, ValidationError), match=message):
            find_machine(planned, *arguments)
    monkeypatch.setattr("planner.validate.run.machine.ascend_cards", lambda: 8)
    found = find_machine(planned, most=64)
    assert (found.device, found.cards, found.hardware) == ("Ascend", 8, planned)


def test_workload_switches_are_those_of_the_script():
    assert shrunk(cpu(1)).workload.switches == ("native-cpu",)
    assert isinstance(shrunk(cpu(1)).workload, Workload)
