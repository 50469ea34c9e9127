"""Traffic of layers and steps against hand computation on round links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Cluster
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time import boundaries, communication
from planner.cost.time.communication import Traffic, split
from planner.cost.time.message import Held, place_groups
from planner.cost.time.setting import Execution, setting
from planner.model.records import Attention, LayerKind, Model, Moe, Workload

MODEL = Model(
    name="7b", family="llama", hidden=4096, ffn=11008, vocab=32000, layer_kinds=("dense",) * 32,
    attention=Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128),
)  # fmt: skip
MOE = replace(MODEL, layer_kinds=("moe",) * 32, moe=Moe(experts=16, topk=2, expert_ffn=1024))
WORK = Workload(seq=4096, global_batch=8)
#: A framework whose ring passes keys and values on.
PASSING = replace(WORK, framework="mindspeed")

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
EVERYTHING = {key: c.value for key, c in calibration(hardware("910B2"), "mindformers").constants.items()}


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


class Placed:
    """One strategy on 910B2 nodes, with the setting and groups the functions need."""

    def __init__(
        self, row: Strategy, workload: Workload = WORK, model: Model = MODEL, run: Execution | None = None
    ) -> None:
        cluster = Cluster(hardware=hardware("910B2"), devices=row.devices)
        base = setting(model, workload, cluster, EVERYTHING, Strategies.of([row]), run or Execution())
        self.setting = replace(base, constants=CONSTANTS)
        self.groups = place_groups(self.setting)

    def tp(self, kind: LayerKind = "dense", matmul_s: float = 1.0) -> tuple[Traffic, Traffic]:
        return communication.tp_traffic(self.setting, self.groups, kind, np.array([matmul_s]))[:2]

    def tp_again(self) -> Traffic:
        return communication.tp_traffic(self.setting, self.groups, "dense", np.array([1.0]))[2]

    def cp(self, attention_s: float = 1.0) -> tuple[Traffic, Traffic]:
        forward, backward = np.array([attention_s]), np.array([2.5 * attention_s])
        return communication.cp_traffic(self.setting, self.groups, forward, backward)

    def ep(self, kind: LayerKind = "moe") -> Traffic:
        forward, backward = communication.ep_traffic(self.setting, self.groups, kind, np.ones(1), 2.0 * np.ones(1))
        assert total(forward) == pytest.approx(total(backward), rel=0.01)
        return forward

    def pp(self) -> list[float]:
        return [float(part) for part in boundaries.hand_over(self.setting).forward_s[0]]

    def held(self, parameters: float) -> Held:
        return Held(dense=np.array([parameters]), expert=np.zeros(1), small=np.zeros(1), table=np.zeros(1))

    def reduce_s(self, parameters: float = 1e9) -> float:
        return float(communication.reduce_s(self.setting, self.groups, self.held(parameters))[0])

    def gather_s(self, parameters: float = 1e9) -> float:
        return float(communication.gather_s(self.setting, self.groups, self.held(parameters))[0])

    def dp(self, backward_s: float = 0.0) -> tuple[Traffic, Traffic]:
        backward, forward = np.array([backward_s]), np.array([backward_s / 2])
        return communication.dp_traffic(self.setting, self.groups, self.held(1e9), forward, backward)


def total(part: Traffic) -> float:
    return float(part.exposed_s[0] + part.hidden_s[0])


def test_split_hides_no_more_than_there_is_computation() -> None:
    part = split(np.array([4.0, 4.0]), 0.25, np.array([10.0, 2.0]))
    assert part.exposed_s.tolist() == [1.0, 2.0]
    assert part.hidden_s.tolist() == [3.0, 2.0]


def test_sequence_parallel_layer_gathers_and_scatters_by_hand() -> None:
    forward, backward = Placed(strategy(tp=8)).tp()
    one = 2 * 4096 * 4096 / 8 / LINK  # n/p over each of seven links
    assert total(forward) == pytest.approx(4 * one)
    assert total(backward) == pytest.approx(4 * one)  # compiled graphs keep the gathered inputs
    assert total(Placed(strategy(tp=8), PASSING).tp()[1]) == pytest.approx(6 * one)
    assert total(Placed(strategy(tp=8)).tp_again()) == pytest.approx(3 * one)  # all but the last reduction
    assert total(Placed(strategy(tp=8), PASSING).tp_again()) == pytest.approx(4 * one)
    assert float(forward.exposed_s[0]) == pytest.approx(0.75 * 4 * one)
    overlapped = Placed(strategy(tp=8), run=Execution(tp_overlap=True)).tp()[0]
    assert float(overlapped.exposed_s[0]) == pytest.approx(0.5 * 4 * one)


def test_all_reduce_without_sequence_parallelism() -> None:
    forward, backward = Placed(strategy(tp=8, sequence_parallel=False)).tp()
    one = 2 * 2 * 4096 * 4096 / 8 / LINK  # reduce-scatter and all-gather
    assert total(forward) == pytest.approx(2 * one)
    assert total(backward) == pytest.approx(2 * one)


def test_traffic_beyond_the_matmuls_cannot_hide() -> None:
    forward, _ = Placed(strategy(tp=8)).tp(matmul_s=0.0)
    assert float(forward.hidden_s[0]) == 0.0


def test_experts_without_tensor_parallelism_leave_only_the_attention_block() -> None:
    row = strategy(tp=2, dp=4, ep=8)
    dense, moe = total(Placed(row).tp()[0]), total(Placed(row, model=MOE).tp("moe")[0])
    assert moe == pytest.approx(dense / 2)
    shared = replace(MOE, moe=Moe(experts=16, topk=2, expert_ffn=1024, shared_ffn=1024))
    assert total(Placed(row, model=shared).tp("moe")[0]) == pytest.approx(dense / 2)  # whole on every tp rank
    megatron = replace(WORK, framework="megatron")
    assert total(Placed(row, megatron, shared).tp("moe")[0]) == pytest.approx(dense)


def test_latent_attention_gathers_its_latents() -> None:
    attention = Attention(
        kind="mla", heads=32, kv_heads=32, head_dim=192, v_head_dim=128, q_lora_rank=1536, kv_lora_rank=512,
        qk_nope_dim=128, qk_rope_dim=64,
    )  # fmt: skip
    forward, backward = Placed(strategy(tp=8), model=replace(MODEL, attention=attention)).tp()
    one = 2 * 4096 * 4096 / 8 / LINK
    latents = (1536 + 512 + 64) / 4096
    assert total(forward) == pytest.approx((3 + latents) * one)  # output of attention, both ends of the MLP
    assert total(backward) == pytest.approx((3 + latents) * one)
    whole = Placed(strategy(tp=8, sequence_parallel=False), model=replace(MODEL, attention=attention)).tp()
    assert total(whole[0]) == pytest.approx(2 * 2 * one)
    assert total(whole[1]) == pytest.approx(2 * (1 + latents) * one)


def test_groups_of_one_cost_nothing() -> None:
    alone = Placed(strategy(), model=MOE)
    parts = [*alone.tp(), *alone.cp(), alone.ep(), *alone.dp()]
    assert [total(part) for part in parts] == [0.0] * 7
    assert alone.pp() == [0.0]


def test_ring_hides_behind_attention_and_ulysses_does_not() -> None:
    ring = strategy(cp=4)
    forward, backward = Placed(ring, PASSING).cp()
    hop = 2 * 1024 * 8 * 256 / LINK + 0.5e-6  # keys and values of 1024 tokens, 8 heads of 128 + 128, and the latency
    assert total(forward) == pytest.approx(3 * hop)
    assert total(backward) == pytest.approx(6 * hop)
    assert float(forward.exposed_s[0]) == 0.0
    bare = Placed(ring, PASSING, run=Execution(cp_overlap=False)).cp()[0]
    assert float(bare.exposed_s[0]) == pytest.approx(3 * hop)
    switched = Placed(strategy(cp=4, cp_algorithm="ulysses", ulysses_degree=4)).cp()[0]
    moved = 2 * 1024 * (32 + 8) * 256  # queries and output, keys and values
    assert float(switched.exposed_s[0]) == pytest.approx(moved / 4 / LINK)


def test_a_long_ring_step_that_attention_cannot_cover_shows() -> None:
    hop = 2 * 1024 * 8 * 256 / LINK + 0.5e-6
    short = Placed(strategy(cp=4), PASSING).cp(attention_s=hop)[0]
    # three of four blocks of attention run while something is on the wire
    assert float(short.exposed_s[0]) == pytest.approx(3 * hop - 0.75 * hop)


def test_graph_mode_gathers_keys_and_values_before_attention() -> None:
    forward, backward = Placed(strategy(cp=4)).cp()
    gathered = 2 * 4096 * 8 * 256  # keys and values of the whole sequence; a quarter over each of three links
    assert float(forward.exposed_s[0]) == pytest.approx(gathered / 4 / LINK)
    assert float(backward.exposed_s[0]) == pytest.approx(gathered / 4 / LINK)
    assert float(forward.hidden_s[0]) == float(backward.hidden_s[0]) == 0.0


def test_expert_exchange_by_hand_inside_and_across_nodes() -> None:
    inside = Placed(strategy(dp=8, ep=8), model=MOE)
    sent, routing = 2 * 4096 * 2 * 4096 * 1.2, 4 * 4096 * 2 * 1.2
    assert total(inside.ep()) == pytest.approx((2 * sent + routing) / 8 / LINK)
    balanced = Placed(strategy(dp=8, ep=8), model=MOE, run=Execution(balanced_experts=True))
    assert total(balanced.ep()) == pytest.approx(total(inside.ep()) / 1.2)
    far = Placed(strategy(dp=16, ep=16), model=MOE)
    once = Placed(strategy(dp=16, ep=16), model=MOE, run=Execution(node_dispatch=True))
    assert total(far.ep()) > 2 * total(inside.ep())
    # two experts on two nodes: one copy elsewhere on average, on 1 - 1/4 different nodes
    assert total(once.ep()) == pytest.approx(0.75 * total(far.ep()), rel=1e-3)
    assert total(inside.ep("dense")) == 0.0


def test_experts_split_over_ranks_work_on_the_tokens_of_all_of_them() -> None:
    """tp 2 with etp 2: each rank's half of the tokens is exchanged, then gathered, and the outputs scattered."""
    whole = Placed(strategy(tp=2, dp=4, ep=4), PASSING, MOE)
    split_too = Placed(strategy(tp=2, dp=4, ep=4, etp=2), PASSING, MOE)
    sent = 2 * 4096 / 2 * 2 * 4096 * 1.2  # two bytes, half of the tokens, two copies, hidden, imbalance
    gathered = 2 * (2 * sent) / 2 / LINK  # all-gather and reduce-scatter over one link
    assert total(whole.ep()) == pytest.approx(2 * sent / 4 / LINK)
    assert total(split_too.ep()) == pytest.approx(2 * sent / 4 / LINK + gathered)
    # without sequence parallelism every rank sends all tokens, and the outputs are added up over two links' worth
    alone = Placed(strategy(tp=2, dp=4, ep=4, etp=2, sequence_parallel=False), PASSING, MOE)
    assert total(alone.ep()) == pytest.approx(2 * (2 * sent) / 4 / LINK + 2 * (2 * sent) / 2 / LINK)


def test_stage_boundary_by_hand() -> None:
    size = 2 * 4096 * 4096 / 2  # split over tp by sequence parallelism, to the next node
    split_over_tp = Placed(strategy(dp=4, tp=2, pp=2)).pp()
    assert split_over_tp == [pytest.approx(size / PORT + 1.5e-6), 0.0]  # the last stage sends nothing forward
    whole = strategy(dp=4, tp=2, pp=2, sequence_parallel=False)
    assert Placed(whole).pp() == [pytest.approx(2 * size / PORT + 1.5e-6), 0.0]
    assert Placed(whole, replace(WORK, framework="megatron")).pp() == split_over_tp


def test_only_boundaries_between_nodes_use_the_network() -> None:
    """Sixteen stages of one rank on two nodes: the eighth hands over to the next node."""
    size = 2 * 4096 * 4096
    near, far = size / LINK + 0.5e-6, size / PORT + 1.5e-6
    assert Placed(strategy(pp=16)).pp() == [
        *[pytest.approx(near)] * 7,
        pytest.approx(far),
        *[pytest.approx(near)] * 7,
        0.0,
    ]
    back = boundaries.hand_over(Placed(strategy(pp=16)).setting).backward_s[0]
    assert [float(part) for part in back[[0, 7, 8, 15]]] == [0.0, *map(pytest.approx, (near, far, near))]


def test_chunks_go_round_and_a_v_turns_where_it_is() -> None:
    chunks = strategy(pp=4, dp=2, vpp=2, schedule="interleaved", layers=((4,) * 4,) * 2, recompute_full=(0,) * 4,
                      recompute_selective=(0,) * 4)  # fmt: skip
    turning = boundaries.hand_over(Placed(chunks).setting)
    assert turning.forward[0].tolist() == [2.0, 2.0, 2.0, 1.0]
    assert turning.backward[0].tolist() == [1.0, 2.0, 2.0, 2.0]
    bent = boundaries.hand_over(Placed(replace(chunks, schedule="zero_bubble_v")).setting)
    assert bent.forward[0].tolist() == bent.backward[0].tolist() == [1.0, 2.0, 2.0, 1.0]


def test_gradients_and_parameters_by_hand() -> None:
    eight = Placed(strategy(dp=8, optimizer_shard=8))
    assert eight.reduce_s() == pytest.approx(4e9 / 8 / LINK)  # float32 gradients
    assert eight.gather_s() == pytest.approx(2e9 / 8 / LINK)  # 16-bit parameters
    reduced, gathered = eight.dp()
    assert float(reduced.hidden_s[0]) == float(gathered.hidden_s[0]) == 0.0  # nothing to hide behind
    # half of a backward of 1 s: all but the last tenth of the traffic fits beside it
    reduced, gathered = eight.dp(backward_s=1.0)
    assert float(reduced.exposed_s[0]) == pytest.approx(0.1 * 4e9 / 8 / LINK)
    assert float(gathered.exposed_s[0]) == pytest.approx(0.1 * 2e9 / 8 / LINK)
    bare = Placed(strategy(dp=8, optimizer_shard=8), run=Execution(dp_overlap=False)).dp(backward_s=1.0)
    assert float(bare[0].hidden_s[0]) == float(bare[1].hidden_s[0]) == 0.0


def test_without_sharding_gradients_are_all_reduced() -> None:
    plain = Placed(strategy(dp=8, zero_level=0))
    assert plain.reduce_s() == pytest.approx(2 * 4e9 / 8 / LINK)
    assert plain.gather_s() == 0.0


def test_replicas_of_a_shard_reduce_only_their_part() -> None:
    parts = Placed(strategy(dp=8, optimizer_shard=4))
    # scatter over 4 (three links), then the quarter between two replicas over one link
    assert parts.reduce_s() == pytest.approx(4e9 / 4 / LINK + 2 * 1e9 / 2 / LINK)
    assert parts.gather_s() == pytest.approx(2e9 / 4 / LINK)


def test_sharding_levels_decide_what_travels_every_micro_batch() -> None:
    once, gradient, every = (Placed(strategy(dp=8, optimizer_shard=8, zero_level=level)).dp() for level in (1, 2, 3))
    assert total(gradient[0]) == total(every[0]) == pytest.approx(8 * total(once[0]))
    assert total(gradient[1]) == total(once[1])
    assert total(every[1]) == pytest.approx(16 * total(once[1]))


def test_expert_groups_follow_the_expert_layout() -> None:
    apart = Placed(strategy(tp=2, dp=8, ep=4)).groups
    assert (int(apart.ep.size[0]), int(apart.expert_shard.size[0]), int(apart.etp.size[0])) == (4, 4, 1)
    split_too = Placed(strategy(tp=2, dp=8, ep=4, etp=2)).groups
    assert (int(split_too.ep.size[0]), int(split_too.expert_shard.size[0]), int(split_too.etp.size[0])) == (4, 2, 2)
