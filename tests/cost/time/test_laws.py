"""Laws of the time model: what may never happen, whatever the job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.collectives import collective_s
from planner.cluster.load import calibration, hardware
from planner.cluster.placement import place
from planner.cluster.records import Cluster
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.setting import Execution, default_execution
from planner.cost.time.step import StepTime, step_time
from planner.frameworks import NO_TP_OVERLAP
from planner.model.load import find
from planner.model.records import Model, Workload

LLAMA, MOE = find("llama-2-7b"), find("qwen3-30b-a3b")


def layout(model: Model, pp: int, **changes: object) -> Strategy:
    base = {
        "dp": 1, "tp": 1, "pp": pp, "layers": ((model.layers // pp,) * pp,), "recompute_full": (0,) * pp,
        "recompute_selective": (0,) * pp, "micro_batches": 16,
    }  # fmt: skip
    made = Strategy(**{**base, **changes})  # type: ignore[arg-type]
    return replace(made, optimizer_shard=made.dp * made.cp)


def timed(
    model: Model, row: Strategy, *, framework: str = "mindspeed", port: float = 1.0, run: Execution | None = None
) -> StepTime:
    card = hardware("910b2")
    card = replace(card, nic_bytes_per_s=port * card.nic_bytes_per_s)
    work = Workload(seq=4096, global_batch=row.dp * row.micro_batches, framework=framework)  # type: ignore[arg-type]
    cluster = Cluster(hardware=card, devices=row.devices)
    return step_time(model, work, cluster, calibration(card, framework), Strategies.of([row]), run)


def seconds(*args: object, **changes: object) -> float:
    return float(timed(*args, **changes).step_s[0])  # type: ignore[arg-type]


JOBS = [
    (LLAMA, layout(LLAMA, 16)),
    (LLAMA, layout(LLAMA, 4, tp=8)),
    (LLAMA, layout(LLAMA, 2, dp=16)),
    (LLAMA, layout(LLAMA, 1, dp=16, cp=2)),
    (MOE, layout(MOE, 1, dp=16, ep=16)),
]


@pytest.mark.parametrize(("model", "row"), JOBS)
@pytest.mark.parametrize("framework", ["mindformers", "mindspeed"])
def test_a_slower_network_is_never_faster(model: Model, row: Strategy, framework: str) -> None:
    steps = [seconds(model, row, framework=framework, port=port) for port in (1.0, 0.5, 1 / 80)]
    assert steps == sorted(steps)
    assert steps[2] > steps[0]


def test_a_pipeline_over_two_nodes_feels_its_network() -> None:
    """Sixteen stages of one rank: one boundary of fifteen lies between the nodes, and an 80 times slower port shows."""
    slow, fast = (timed(LLAMA, layout(LLAMA, 16), port=port) for port in (1 / 80, 1.0))
    behind = slow.stage_s_CS[0] - fast.stage_s_CS[0]
    assert np.flatnonzero(behind > 1e-6).tolist() == [7, 8]
    assert float(slow.step_s[0]) > 1.5 * float(fast.step_s[0])
    inside = [float(timed(LLAMA, layout(LLAMA, 8), port=port).step_s[0]) for port in (1 / 80, 1.0)]
    assert inside[0] == inside[1]


@settings(max_examples=60, deadline=None)
@given(
    op=st.sampled_from(["allreduce", "allgather", "reducescatter"]),
    size=st.floats(1e3, 1e10),
    nodes=st.integers(1, 128),
    card=st.sampled_from(["910b2", "a100-80g"]),
)
def test_more_nodes_are_never_cheaper_for_the_same_bytes(op: str, size: float, nodes: int, card: str) -> None:
    few, many = (float(collective_s(op, size, place(8 * n, 1, 8), hardware(card))) for n in (nodes, 2 * nodes))
    assert many >= 0.999 * few


@pytest.mark.parametrize(("model", "row"), JOBS)
def test_overlap_is_never_slower_than_none(model: Model, row: Strategy) -> None:
    plain = Execution(eager=True, dp_overlap=False, cp_overlap=False)
    base = seconds(model, row, run=plain)
    for name in ("tp_overlap", "dp_overlap", "cp_overlap", "ep_overlap", "node_dispatch"):
        assert seconds(model, row, run=replace(plain, **{name: True})) <= base + 1e-9


def test_pieces_cost_their_latency() -> None:
    """A step of the same bytes in more calls is slower, and more so on more ranks."""
    run = Execution(eager=True, dp_overlap=False)
    extra = []
    for nodes in (2, 16):
        row = layout(LLAMA, 1, dp=8 * nodes)
        bucketed, tensors = (seconds(LLAMA, row, run=replace(run, tensorwise=pieces)) for pieces in (False, True))
        extra.append(tensors - bucketed)
    assert 0.0 < extra[0] < extra[1]


def test_mindspeed_overlaps_tensor_parallel_traffic_unless_told_otherwise() -> None:
    work = Workload(seq=4096, global_batch=8, framework="mindspeed")
    assert default_execution(work).tp_overlap
    assert not default_execution(replace(work, switches=(NO_TP_OVERLAP,))).tp_overlap
    assert not default_execution(replace(work, framework="mindformers")).tp_overlap
    row = layout(LLAMA, 1, dp=2, tp=8)
    plain = replace(default_execution(work), tp_overlap=False)
    assert seconds(LLAMA, row) < 0.97 * seconds(LLAMA, row, run=plain)
    apart = replace(row, sequence_parallel=False)  # nothing to pipeline without sequence parallelism
    assert seconds(LLAMA, apart) == seconds(LLAMA, apart, run=plain)
    experts = layout(MOE, 1, dp=2, tp=4, ep=8)  # MC2 takes no experts
    assert seconds(MOE, experts) == seconds(MOE, experts, run=plain)
