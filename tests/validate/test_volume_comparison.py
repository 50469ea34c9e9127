"""Planned beside compiled collectives, from made-up graphs in the compiler's names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Cluster
from planner.cost.strategies import Strategy
from planner.cost.time.setting import Setting
from planner.cost.time.volumes import planned_volumes, setting_of
from planner.frameworks import FrameworkName
from planner.model.records import Attention, Model, Workload
from planner.validate.compiler.prepare import Layout
from planner.validate.traffic.comparison import VolumeRow, compare, compiled_key
from planner.validate.traffic.volumes import Collective

# 2 stages x 2 dp x 2 cp x 2 tp: rank = ((pp * 2 + dp) * 2 + cp) * 2 + tp
LAYOUT = Layout(
    legacy=False, data_parallel=2, model_parallel=2, context_parallel=2, pipeline_stages=2, interleave=1,
    micro_batches=2, accumulation_steps=1, batch_size=1, seq=1024,
)  # fmt: skip
MIRROR = "Gradients/Default/Grad__MirrorMicroStepOperator/AllReduce"
STEP = "Gradients/Default/Grad__MicroStepAllGather/ReduceScatter"
ROUTER, BATCH = "Default/network/mlp-MoELayer/router-TopKRouter", "Default/network/micro_inputs-CellList/0-_MicroBatch"
ATTENTION = "Default/network/layers-CellList/0-TransformerLayer/self_attention-SelfAttention"
ACTIVATION = 2 * 512 * 512  # bf16 [seq / cp, hidden]


def collective(primitive: str, ranks: tuple[int, ...], name: str = "Default/x-op0", size: int = 64) -> Collective:
    return Collective(name=name, primitive=primitive, ranks=ranks, input_bytes=size, output_bytes=size)


@pytest.mark.parametrize(
    ("item", "key"),
    [
        (collective("AllGather", (0, 1)), ("tp", "allgather")),
        (collective("AllReduce", (0, 1), f"{MIRROR}-op2"), ("dp", "reduce")),
        (collective("ReduceScatter", (0, 2, 4, 6), f"{STEP}-op0"), ("dp", "reduce")),
        (collective("AllGather", (0, 2), f"{ATTENTION}/AllGather-op1"), ("cp", "allgather")),
        (collective("AllGather", (0, 2), "Default/AllGather-op1"), ("dp", "allgather")),
        (collective("AllReduce", (0, 1, 2, 3), "Default/AllReduce-op1"), ("tp", "allreduce")),
        (collective("AlltoAllV", (0, 4)), ("ep", "alltoall")),
        (collective("AlltoAllV", (0,)), ("other", "alltoall")),
        (collective("Send", (0, 8)), ("pp", "send")),
        (collective("Receive", (0, 8), size=4), ("other", "receive")),
        (collective("AllReduce", (0, 8)), ("other", "allreduce")),
        (collective("Broadcast", (0, 1)), ("other", "broadcast")),
        (collective("AlltoAll", (0, 2)), ("cp", "alltoall")),
        (collective("AllGather", (0, 1), f"{ROUTER}/AllGather-op0"), ("other", "allgather")),
        (collective("AllGather", (0, 4), f"{BATCH}/AllGather-op0"), ("other", "allgather")),
    ],
)  # fmt: skip
def test_what_an_operator_exchanges(item: Collective, key: tuple[str, str]) -> None:
    assert compiled_key(item, LAYOUT) == key


def setting(*, tied: bool = False, framework: FrameworkName = "mindformers", **changes: int) -> Setting:
    """One dense layer a stage, cp 2, the last one recomputed; fields of the strategy may be changed."""
    model = Model(
        tied_embeddings=tied,
        name="small", family="qwen3", hidden=512, ffn=1536, vocab=8192, layer_kinds=("dense",) * 2,
        attention=Attention(heads=8, kv_heads=4, head_dim=64, v_head_dim=64, qk_norm=True),
    )  # fmt: skip
    strategy = Strategy(
        dp=2, tp=2, pp=2, cp=2, layers=((1, 1),), recompute_full=(0, 1), recompute_selective=(0, 0), micro_batches=2,
        optimizer_shard=4,
    )  # fmt: skip
    strategy = replace(strategy, **changes)  # type: ignore[arg-type]
    profile = hardware("910b3")
    return setting_of(
        model,
        Workload(seq=1024, global_batch=4, framework=framework),
        Cluster(hardware=profile, devices=strategy.devices),
        calibration(profile, framework),
        strategy,
    )


def graph() -> list[Collective]:
    """What the compiler makes of it: two micro-batches, each layer recomputed."""

    def of(number: int, primitive: str, ranks: tuple[int, ...], size: int, name: str = "Default/x") -> list[Collective]:
        return [replace(collective(primitive, ranks, f"{name}-op{i}", size)) for i in range(number)]

    tp, cp, all_dp = (8, 9), (8, 10), (8, 10, 12, 14)
    keys = 2 * 1024 * 2 * 64
    weights = [512 * 1024 // 2, 512 * 512 // 2, 2 * 512 * 1536 // 2, 512 * 1536 // 2, 8192 * 512 // 2]
    return [
        *of(2 * (4 + 2 + 1), "AllGather", tp, ACTIVATION),  # forward and backward, recompute, the head
        *of(2 * (4 + 1 + 1), "ReduceScatter", tp, ACTIVATION),
        *of(2 * 3, "AllReduce", tp, 512 * 4, "Default/network/loss-CrossEntropyLoss/AllReduce"),
        *of(2 * 2 * 2, "AllGather", cp, keys, f"{ATTENTION}/AllGather"),
        *of(2 * 2, "ReduceScatter", cp, keys, f"Gradients/{ATTENTION}/ReduceScatter"),
        *of(2, "Receive", (0, 8), ACTIVATION // 2),
        *of(2, "Send", (0, 8), ACTIVATION // 2),
        *[item for size in weights for item in of(1, "AllGather", all_dp, 2 * size)],
        *[item for size in weights for item in of(1, "ReduceScatter", all_dp, 4 * size)],
        *of(3, "AllReduce", (8, 9, 10, 11, 12, 13, 14, 15), 4 * 512, MIRROR),
        *of(2, "AllReduce", (8, 9, 10, 11, 12, 13, 14, 15), 4 * 64, MIRROR),
    ]


def by_key(rows: tuple[VolumeRow, ...]) -> dict[tuple[str, str], VolumeRow]:
    return {(row.group, row.primitive): row for row in rows}


def test_a_dense_stage_is_priced_as_it_is_compiled() -> None:
    rows = by_key(compare(setting(), 1, graph(), LAYOUT))
    gather = rows["tp", "allgather"]
    assert (gather.planned_count, gather.compiled_count) == (2 * 7, 2 * 7)
    assert [(key, row.unexplained_count, row.unexplained_bytes) for key, row in rows.items()] == [
        (key, 0.0, 0.0) for key in rows
    ]
    assert set(rows) == {
        ("tp", "allgather"), ("tp", "reducescatter"), ("tp", "allreduce"), ("cp", "allgather"), ("cp", "reducescatter"),
        ("pp", "send"), ("pp", "receive"), ("dp", "allgather"), ("dp", "reduce"),
    }  # fmt: skip


def test_a_collective_too_many_or_too_few_shows() -> None:
    more = [*graph(), collective("AllGather", (8, 9), "Default/more-op0", ACTIVATION)]
    row = by_key(compare(setting(), 1, more, LAYOUT))["tp", "allgather"]
    assert (row.unexplained_count, row.unexplained_bytes) == (1.0, ACTIVATION)
    without = [item for item in graph() if item.primitive != "Send"]
    row = by_key(compare(setting(), 1, without, LAYOUT))["pp", "send"]
    assert (row.unexplained_count, row.unexplained_bytes) == (-2.0, -2 * ACTIVATION / 2)


def volumes(given: Setting, stage: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Number and bytes by kind and operation."""
    return {(v.kind, v.op): (v.count, v.size_bytes) for v in planned_volumes(given, stage)}


def test_a_tied_embedding_is_borrowed() -> None:
    apart, tied = (volumes(setting(tied=is_tied), 1) for is_tied in (False, True))
    table = 8192 * 512 // 2
    assert tied["pp", "sendrecv"][0] - apart["pp", "sendrecv"][0] == 1.0
    assert tied["pp", "sendrecv"][1] - apart["pp", "sendrecv"][1] == 4 * table / 4  # float32, sharded over four
    assert tied["dp", "allgather"][1] - apart["dp", "allgather"][1] == (4 - 2) * table  # as stored, in the head's place


def test_legacy_networks_look_up_whole_sequences_over_tp_and_cp() -> None:
    legacy, mcore = (volumes(setting(framework=name), 0) for name in ("mindformers-legacy", "mindformers"))
    assert legacy["tp", "allreduce"] == (2 * 2.0, 2 * 2 * 4 * 1024 * 512)  # forward and backward, float32
    table = 8192 * 512
    assert mcore["dp", "allgather"][1] - legacy["dp", "allgather"][1] == 4 * table / 2  # not sharded there
    reduced = [sum(v[key][1] for key in v if key[0] == "dp" and key[1] != "allgather") for v in (legacy, mcore)]
    assert reduced[0] - reduced[1] == 4 * (table / 4 - table / 2)


def test_unsharded_gradients_are_reduced_once_at_every_level() -> None:
    one, two = (volumes(setting(zero_level=level), 0) for level in (1, 2))
    assert one["dp", "allreduce"] == two["dp", "allreduce"]  # norms
    assert two["dp", "reducescatter"][1] == 2 * one["dp", "reducescatter"][1]


def test_heads_are_exchanged_four_times() -> None:
    found = volumes(setting(ulysses_degree=2), 1)
    assert found["cp", "alltoall"][0] == 4 * 2 * (1 + 1 + 1)  # forward, recompute and backward of two micro-batches
