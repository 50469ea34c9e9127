"""Traffic of layers and steps against hand computation on round links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cluster.load import hardware
from planner.cluster.records import Cluster
from planner.cost import communication
from planner.cost.communication import split
from planner.cost.compute import Execution, shares
from planner.cost.strategies import Strategies, Strategy
from planner.model.records import Attention, Model, Moe, Workload

MODEL = Model(
    name="7b", family="llama", hidden=4096, ffn=11008, vocab=32000, layer_kinds=("dense",) * 32,
    attention=Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128),
)  # fmt: skip
MOE = replace(MODEL, layer_kinds=("moe",) * 32, moe=Moe(experts=16, topk=2, expert_ffn=1024))
WORK = Workload(seq=4096, global_batch=8)

#: Links of 910B2 (28 GB/s a link, 25 GB/s a port) that reach their peak without any start-up.
LINKS = (
    {f"link_frac_{op}": 1.0 for op in ("allgather", "reducescatter", "alltoall", "sendrecv")}
    | {
        f"start_s_{op}": 0.0
        for op in ("allgather", "reducescatter", "allreduce", "allreduce_large", "alltoall", "sendrecv")
    }
    | {
        "nic_frac": 1.0,
        "nic_frac_sendrecv": 1.0,
        "step_s_link": -0.5e-6,
        "step_s_net": -1.5e-6,
        "reduce_s_per_byte": 0.0,
    }
)
CONSTANTS = LINKS | {
    "tp_exposed": 0.75, "tp_exposed_overlapped": 0.5, "ep_exposed": 1.0, "pp_exposed": 1.0, "dp_exposed": 0.1,
    "dp_window": 0.5, "expert_imbalance": 1.2,
}  # fmt: skip
LINK, PORT = 28e9, 25e9


def strategy(**fields: object) -> Strategy:
    base = {
        "dp": 1, "tp": 1, "pp": 1, "layers": ((32,),), "recompute_full": (0,), "recompute_selective": (0,),
        "micro_batches": 8,
    }  # fmt: skip
    merged = base | fields
    pp = int(merged["pp"])  # type: ignore[call-overload]
    if "layers" not in fields:
        merged |= {"layers": ((32 // pp,) * pp,), "recompute_full": (0,) * pp, "recompute_selective": (0,) * pp}
    return Strategy(**merged)  # type: ignore[arg-type]


class Setting:
    """One strategy on 910B2 nodes with what the functions need."""

    def __init__(self, row: Strategy, workload: Workload = WORK) -> None:
        self.table = Strategies.of([row])
        self.cluster = Cluster(hardware=hardware("910B2"), devices=row.devices)
        self.share = shares(workload, self.table)
        self.groups = communication.place_groups(self.cluster, self.table, self.share)

    def tp(
        self, kind: str = "dense", model: Model = MODEL, matmul_s: float = 1.0, run: Execution | None = None
    ) -> tuple[communication.Hidden, communication.Hidden]:
        return communication.tp_traffic(
            model,
            kind,
            self.share,
            self.groups,
            self.cluster,
            CONSTANTS,
            np.array([matmul_s]),
            run or Execution(),  # type: ignore[arg-type]
        )


def total(part: communication.Hidden) -> float:
    return float(part.exposed_s[0] + part.hidden_s[0])


def test_split_hides_no_more_than_there_is_computation() -> None:
    part = split(np.array([4.0, 4.0]), 0.25, np.array([10.0, 2.0]))
    assert part.exposed_s.tolist() == [1.0, 2.0]
    assert part.hidden_s.tolist() == [3.0, 2.0]


def test_sequence_parallel_layer_gathers_and_scatters_by_hand() -> None:
    forward, backward = Setting(strategy(tp=8)).tp()
    one = 2 * 4096 * 4096 / 8 / LINK  # n/p over each of seven links
    assert total(forward) == pytest.approx(4 * one)
    assert total(backward) == pytest.approx(6 * one)
    assert float(forward.exposed_s[0]) == pytest.approx(0.75 * 4 * one)
    overlapped = Setting(strategy(tp=8)).tp(run=Execution(tp_overlap=True))[0]
    assert float(overlapped.exposed_s[0]) == pytest.approx(0.5 * 4 * one)


def test_all_reduce_without_sequence_parallelism() -> None:
    forward, backward = Setting(strategy(tp=8, sequence_parallel=False)).tp()
    one = 2 * 2 * 4096 * 4096 / 8 / LINK  # reduce-scatter and all-gather
    assert total(forward) == pytest.approx(2 * one)
    assert total(backward) == pytest.approx(2 * one)


def test_traffic_beyond_the_matmuls_cannot_hide() -> None:
    forward, _ = Setting(strategy(tp=8)).tp(matmul_s=0.0)
    assert float(forward.hidden_s[0]) == 0.0


def test_experts_without_tensor_parallelism_leave_only_the_attention_block() -> None:
    setting = Setting(strategy(tp=2, dp=4, ep=8))
    dense, moe = total(setting.tp()[0]), total(setting.tp("moe", MOE)[0])
    assert moe == pytest.approx(dense / 2)
    shared = replace(MOE, moe=replace(MOE.moe, shared_ffn=1024))  # type: ignore[type-var]
    assert total(setting.tp("moe", shared)[0]) == pytest.approx(dense)


@pytest.mark.parametrize("kind", ["tp", "cp", "ep", "pp", "dp"])
def test_groups_of_one_cost_nothing(kind: str) -> None:
    setting = Setting(strategy())
    zero = np.zeros(1)
    if kind == "tp":
        parts = setting.tp()
    elif kind == "cp":
        parts = communication.cp_traffic(
            MODEL, setting.share, setting.groups, setting.cluster, CONSTANTS, zero, zero, Execution()
        )
    elif kind == "ep":
        parts = communication.ep_traffic(
            MOE, "moe", setting.share, setting.groups, setting.cluster, CONSTANTS, Execution()
        )
    elif kind == "pp":
        time = communication.pp_transfer_s(
            MODEL, WORK, setting.share, setting.groups, setting.cluster, CONSTANTS, setting.table
        )
        assert time.tolist() == [0.0]
        return
    else:
        parts = (gradients(setting, 1e9).split,)
    assert [total(part) for part in parts] == [0.0] * len(parts)


def test_ring_hides_behind_attention_and_ulysses_does_not() -> None:
    ring = Setting(strategy(cp=4))
    attention = np.array([1.0])
    forward, backward = communication.cp_traffic(
        MODEL, ring.share, ring.groups, ring.cluster, CONSTANTS, attention, 2.5 * attention, Execution()
    )
    hop = 2 * 1024 * 8 * 256 / LINK + 0.5e-6  # keys and values of 1024 tokens, 8 heads of 128 + 128, and the latency
    assert total(forward) == pytest.approx(3 * hop)
    assert total(backward) == pytest.approx(6 * hop)
    assert float(forward.exposed_s[0]) == 0.0
    bare = communication.cp_traffic(
        MODEL, ring.share, ring.groups, ring.cluster, CONSTANTS, attention, attention, Execution(cp_overlap=False)
    )[0]
    assert float(bare.exposed_s[0]) == pytest.approx(3 * hop)
    ulysses = Setting(strategy(cp=4, cp_algorithm="ulysses", ulysses_degree=4))
    switched = communication.cp_traffic(
        MODEL, ulysses.share, ulysses.groups, ulysses.cluster, CONSTANTS, attention, attention, Execution()
    )[0]
    moved = 2 * 1024 * (32 + 8) * 256  # queries and output, keys and values
    assert float(switched.exposed_s[0]) == pytest.approx(moved / 4 / LINK)


def test_expert_exchange_by_hand_inside_and_across_nodes() -> None:
    inside = Setting(strategy(dp=8, ep=8))
    one = communication.ep_traffic(MOE, "moe", inside.share, inside.groups, inside.cluster, CONSTANTS, Execution())
    sent = 2 * 4096 * 2 * 4096 * 1.2
    assert total(one[0]) == total(one[1]) == pytest.approx(2 * sent / 8 / LINK)
    across = Setting(strategy(dp=16, ep=16))
    far = communication.ep_traffic(MOE, "moe", across.share, across.groups, across.cluster, CONSTANTS, Execution())
    once = communication.ep_traffic(
        MOE, "moe", across.share, across.groups, across.cluster, CONSTANTS, Execution(node_dispatch=True)
    )
    assert total(far[0]) > 2 * total(one[0])
    # two experts on two nodes: one copy elsewhere on average, on 1 - 1/4 different nodes
    assert total(once[0]) == pytest.approx(0.75 * total(far[0]))
    dense = communication.ep_traffic(
        MODEL, "dense", inside.share, inside.groups, inside.cluster, CONSTANTS, Execution()
    )
    assert total(dense[0]) == 0.0


def test_stage_boundary_by_hand() -> None:
    setting = Setting(strategy(dp=4, tp=2, pp=2))
    size = 2 * 4096 * 4096 / 2  # split over tp by sequence parallelism, to the next node
    time = communication.pp_transfer_s(
        MODEL, WORK, setting.share, setting.groups, setting.cluster, CONSTANTS, setting.table
    )
    assert float(time[0]) == pytest.approx(size / PORT + 1.5e-6)
    plain = Setting(strategy(dp=4, tp=2, pp=2, sequence_parallel=False))
    whole = communication.pp_transfer_s(MODEL, WORK, plain.share, plain.groups, plain.cluster, CONSTANTS, plain.table)
    assert float(whole[0]) == pytest.approx(2 * size / PORT + 1.5e-6)
    megatron = replace(WORK, framework="megatron")
    halved = communication.pp_transfer_s(
        MODEL, megatron, plain.share, plain.groups, plain.cluster, CONSTANTS, plain.table
    )
    assert float(halved[0]) == float(time[0])


def gradients(
    setting: Setting, parameters: float, backward_s: float = 0.0, run: Execution | None = None
) -> communication.DataParallel:
    one = np.ones(1)
    return communication.dp_traffic(
        WORK, setting.groups, setting.cluster, CONSTANTS, setting.table, one * parameters, np.zeros(1),
        one * backward_s, one * backward_s / 2, run or Execution(),
    )  # fmt: skip


def test_gradients_and_parameters_by_hand() -> None:
    setting = Setting(strategy(dp=8, optimizer_shard=8))
    result = gradients(setting, 1e9)
    assert float(result.reduce_s[0]) == pytest.approx(4e9 / 8 / LINK)  # float32 gradients
    assert float(result.gather_s[0]) == pytest.approx(2e9 / 8 / LINK)  # 16-bit parameters
    assert float(result.split.hidden_s[0]) == pytest.approx(0.0)
    # half of a backward of 1 s: all but the last tenth of the reduction fits beside it
    long = gradients(setting, 1e9, backward_s=1.0).split
    assert float(long.exposed_s[0]) == pytest.approx(0.1 * (4e9 + 2e9) / 8 / LINK)
    assert float(gradients(setting, 1e9, 1.0, Execution(dp_overlap=False)).split.hidden_s[0]) == 0.0


def test_without_sharding_gradients_are_all_reduced() -> None:
    result = gradients(Setting(strategy(dp=8, zero_level=0)), 1e9)
    assert float(result.reduce_s[0]) == pytest.approx(2 * 4e9 / 8 / LINK)
    assert float(result.gather_s[0]) == 0.0


def test_replicas_of_a_shard_reduce_only_their_part() -> None:
    whole = gradients(Setting(strategy(dp=8, optimizer_shard=8)), 1e9)
    parts = gradients(Setting(strategy(dp=8, optimizer_shard=4)), 1e9)
    # scatter over 4 (three links), then the quarter between two replicas over one link
    assert float(parts.reduce_s[0]) == pytest.approx(4e9 / 4 / LINK + 2 * 1e9 / 2 / LINK)
    assert float(parts.gather_s[0]) == pytest.approx(2 * float(whole.gather_s[0]))


def test_sharding_levels_decide_what_travels_every_micro_batch() -> None:
    once, gradient, every = (
        gradients(Setting(strategy(dp=8, optimizer_shard=8, zero_level=level)), 1e9) for level in (1, 2, 3)
    )
    assert float(gradient.reduce_s[0]) == float(every.reduce_s[0]) == pytest.approx(8 * float(once.reduce_s[0]))
    assert float(gradient.gather_s[0]) == float(once.gather_s[0])
    assert float(every.gather_s[0]) == pytest.approx(16 * float(once.gather_s[0]))


def test_expert_groups_follow_the_expert_layout() -> None:
    apart = Setting(strategy(tp=2, dp=8, ep=4))
    assert (int(apart.groups.ep.size[0]), int(apart.groups.expert_shard.size[0])) == (4, 4)
    split_too = Setting(strategy(tp=2, dp=8, ep=4), replace(WORK, framework="mindspeed"))
    assert (int(split_too.groups.ep.size[0]), int(split_too.groups.expert_shard.size[0])) == (4, 2)
