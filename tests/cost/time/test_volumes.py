"""Collectives of one step against counting by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Cluster
from planner.cost.strategies import Strategy
from planner.cost.time.volumes import planned_volumes, setting_of
from planner.model.records import Attention, Model, Moe, Workload

DENSE = Model(
    name="small", family="llama", hidden=512, ffn=1536, vocab=8192, layer_kinds=("dense",) * 4,
    attention=Attention(heads=8, kv_heads=4, head_dim=64, v_head_dim=64),
)  # fmt: skip
EXPERTS = replace(DENSE, family="qwen3_moe", layer_kinds=("moe",) * 4, moe=Moe(experts=8, topk=2, expert_ffn=256))
LATENT = replace(
    EXPERTS,
    moe=Moe(experts=8, topk=2, expert_ffn=256, shared_ffn=256),
    mtp_layers=1,
    attention=Attention(kind="mla", heads=8, kv_heads=8, head_dim=96, v_head_dim=64, q_lora_rank=384, kv_lora_rank=256,
                        qk_nope_dim=64, qk_rope_dim=32),
)  # fmt: skip
PLAIN = Strategy(
    dp=2, tp=2, pp=2, layers=((2, 2),), recompute_full=(0, 0), recompute_selective=(0, 0), micro_batches=3,
    optimizer_shard=2,
)  # fmt: skip

#: bf16 [1024, 512]
ACTIVATION = 2 * 1024 * 512
#: Parameters of a dense layer of one rank: q, k, v, output, MLP over tp 2, and two norms.
LAYER = (512 * (512 + 2 * 256) + 512 * 512 + 3 * 512 * 1536) / 2 + 2 * 512
TABLE = 8192 * 512 / 2


def volumes(
    strategy: Strategy, stage: int = 0, model: Model = DENSE, framework: str = "mindformers"
) -> dict[tuple[str, str], tuple[float, float]]:
    profile = hardware("910b3" if framework != "megatron" else "a100-80g")
    workload = Workload(seq=1024, global_batch=strategy.dp * strategy.micro_batches, framework=framework)  # type: ignore[arg-type]
    cluster = Cluster(hardware=profile, devices=strategy.devices)
    given = setting_of(model, workload, cluster, calibration(profile, framework), strategy)
    return {(v.kind, v.op): (v.count, v.size_bytes) for v in planned_volumes(given, stage)}


def test_dense_layers_with_sequence_parallelism() -> None:
    found = volumes(PLAIN, framework="mindspeed")
    passes = 3 * 2  # micro-batches x layers
    # the embedding scatters its sums and gathers their gradient
    assert found["tp", "allgather"] == (passes * (2 + 4) + 3, (passes * 6 + 3) * ACTIVATION)
    assert found["tp", "reducescatter"] == (passes * (2 + 2) + 3, (passes * 4 + 3) * ACTIVATION)
    assert found["pp", "sendrecv"] == (3, 3 * ACTIVATION / 2)
    assert found["dp", "reducescatter"] == (1, 4 * (2 * LAYER + TABLE))
    assert found["dp", "allgather"] == (1, 2 * (2 * LAYER + TABLE))
    assert set(found) == {
        ("tp", "allgather"), ("tp", "reducescatter"), ("pp", "sendrecv"), ("dp", "reducescatter"), ("dp", "allgather"),
    }  # fmt: skip


def test_compiled_graphs_keep_gathered_inputs_and_leave_norms_whole() -> None:
    found = volumes(PLAIN)
    passes = 3 * 2
    look_up = 2 * ACTIVATION  # float32
    assert found["tp", "allgather"] == (passes * (2 + 2) + 3, passes * 4 * ACTIVATION + 3 * look_up)
    assert found["tp", "reducescatter"] == (passes * (2 + 2) + 3, passes * 4 * ACTIVATION + 3 * look_up)
    assert found["dp", "reducescatter"] == (1, 4 * (2 * (LAYER - 2 * 512) + TABLE))
    assert found["dp", "allreduce"] == (1, 4 * 2 * 2 * 512)
    assert found["dp", "allgather"] == (1, 2 * 2 * (LAYER - 2 * 512) + 4 * TABLE)


def test_the_last_stage_holds_head_and_final_norm() -> None:
    found = volumes(PLAIN, stage=1, framework="mindspeed")
    assert found["dp", "reducescatter"] == (1, 4 * (2 * LAYER + TABLE + 512))
    assert found["tp", "allreduce"] == (3 * 3, 3 * 3 * 4 * 1024)  # three sums a token in the loss
    assert found["tp", "allgather"][0] == 3 * (2 * 6 + 2)  # input of the head, and once more for its gradient
    assert volumes(PLAIN, stage=1)["tp", "allgather"][0] == 3 * (2 * 4 + 1)


def test_without_sequence_parallelism() -> None:
    found = volumes(replace(PLAIN, sequence_parallel=False))
    look_up = 2 * 2 * ACTIVATION  # float32, and its gradient
    assert found["tp", "allreduce"] == (3 * (2 * 4 + 2), 3 * (2 * 4 * ACTIVATION + look_up))
    assert found["pp", "sendrecv"] == (3, 3 * ACTIVATION)
    assert ("tp", "allgather") not in found


def test_recomputed_layers_repeat_their_forward_pass() -> None:
    again = replace(PLAIN, recompute_full=(1, 0))
    found = volumes(again, framework="mindspeed")
    assert found["tp", "allgather"][0] == 3 * (2 * 6 + 1 * 2 + 1)
    assert found["tp", "reducescatter"][0] == 3 * (2 * 4 + 1 * 2 + 1)
    assert volumes(again)["tp", "reducescatter"][0] == 3 * (2 * 4 + 1 * 1 + 1)  # ends before the last one
    assert volumes(replace(PLAIN, recompute_full=(1, 0)), stage=1) == volumes(PLAIN, stage=1)


def test_chunks_cross_more_boundaries() -> None:
    chunks = replace(PLAIN, vpp=2, layers=((1, 1), (1, 1)), schedule="interleaved")
    # the first stage sends two chunks forward, and the gradient of the second one back
    assert volumes(chunks)["pp", "sendrecv"] == (3 * 3, 3 * 3 * ACTIVATION / 2)
    bent = replace(chunks, schedule="zero_bubble_v")
    assert volumes(bent)["pp", "sendrecv"][0] == 3 * 2  # the V turns on the last stage and ends on the first


def test_gradients_without_sharding_and_in_every_micro_batch() -> None:
    plain = volumes(replace(PLAIN, zero_level=0), framework="megatron")
    assert plain["dp", "allreduce"] == (1, 4 * (2 * LAYER + TABLE))
    assert ("dp", "allgather") not in plain
    level2, level3 = (volumes(replace(PLAIN, zero_level=level), framework="megatron") for level in (2, 3))
    assert level2["dp", "reducescatter"] == level3["dp", "reducescatter"] == (3, 3 * 4 * (2 * LAYER + TABLE))
    assert level2["dp", "allgather"][0] == 1
    assert level3["dp", "allgather"] == (6, 6 * 2 * (2 * LAYER + TABLE))
    half = volumes(replace(PLAIN, dp=4), framework="megatron")
    assert half["dp", "reducescatter"] == (1, 4 * (2 * LAYER + TABLE))
    assert half["dp", "allreduce"] == (1, 4 * (2 * LAYER + TABLE) / 2)


def test_experts_exchange_tokens_and_share_their_own_gradients() -> None:
    found = volumes(replace(PLAIN, ep=2), model=EXPERTS)
    # two all-to-alls each way of 512 tokens, two copies each, and a routing map of four bytes forward
    routing = 3 * 2 * 4 * 512 * 2
    assert found["ep", "alltoall"] == (3 * 2 * (4 + 1), 3 * 2 * 4 * 2 * 512 * 2 * 512 + routing)
    assert found["tp", "allgather"][0] == 3 * 2 * 2 + 3  # attention alone, and the look-up
    outside = (512 * (512 + 2 * 256) + 512 * 512) / 2 + 2 * 512 + 512 * 8
    inside = 8 * 3 * 512 * 256 / 2
    left_whole = 2 * 512 + 512 * 8  # norms, and a router below 64 KiB
    assert found["dp", "reducescatter"] == (2, 4 * (2 * (outside + inside - left_whole) + TABLE))


def test_latent_attention_and_a_module_of_multi_token_prediction() -> None:
    found = volumes(replace(PLAIN, ep=2), stage=1, model=LATENT)
    passes = 3 * 3  # micro-batches x (two layers and one module)
    latents = 2 * 1024 * (384 + 256 + 32)
    # forward three latents, backward the gradient of the output; shared experts are whole; two heads, one look-up
    ends = 3 * (2 * ACTIVATION + 2 * ACTIVATION)
    assert found["tp", "allgather"] == (passes * 4 + 9, passes * (latents + ACTIVATION) + ends)
    assert found["tp", "reducescatter"] == (passes * 4 + 9, passes * (ACTIVATION + latents) + ends)
    assert found["ep", "alltoall"][0] == passes * (4 + 1)
    # MindSpeed splits shared experts over tp
    assert volumes(replace(PLAIN, ep=2), 1, LATENT, "mindspeed")["tp", "reducescatter"] == (
        passes * 6 + 9, passes * (3 * ACTIVATION + latents) + 3 * 3 * ACTIVATION,
    )  # fmt: skip


def test_split_experts_gather_their_tokens_and_scatter_their_outputs() -> None:
    found = volumes(replace(PLAIN, ep=2, etp=2), model=EXPERTS, framework="mindspeed")
    gathered = 2 * 1024 * 2 * 512  # all tokens of the tensor-parallel ranks, two copies each
    once_each_way = (3 * 2 * 2, 3 * 2 * 2 * gathered)
    assert found["ep", "allgather"] == found["ep", "reducescatter"] == once_each_way
    assert found["ep", "alltoall"] == (3 * 2 * 4, 3 * 2 * 4 * gathered / 2)


def test_graph_mode_gathers_keys_and_values_and_others_pass_them_on() -> None:
    split = replace(PLAIN, cp=4, optimizer_shard=8)
    once = 2 * 1024 * 2 * 64  # keys of the whole sequence, two heads
    found = volumes(split)
    assert found["cp", "allgather"] == found["cp", "reducescatter"] == (3 * 2 * 2, 3 * 2 * 2 * once)
    ring = volumes(split, framework="mindspeed")
    assert ring["cp", "sendrecv"] == (3 * 2 * (3 + 6), 3 * 2 * 9 * 2 * once / 4)
    assert ("cp", "allgather") not in ring


def test_heads_are_exchanged() -> None:
    heads = volumes(replace(PLAIN, cp=2, cp_algorithm="ulysses", ulysses_degree=2, optimizer_shard=4))
    moved = 2 * 512 * (4 + 2) * 128  # queries and output, keys and values
    assert heads["cp", "alltoall"] == (3 * 2 * 2 * 4, 3 * 2 * 2 * moved)  # one by one


@pytest.mark.parametrize("axis", ["tp", "pp", "dp"])
def test_groups_of_one_are_left_out(axis: str) -> None:
    alone = {"pp": {"pp": 1, "layers": ((4,),), "recompute_full": (0,), "recompute_selective": (0,)},
             "tp": {"tp": 1}, "dp": {"dp": 1, "optimizer_shard": 1}}[axis]  # fmt: skip
    found = volumes(replace(PLAIN, **alone))  # type: ignore[arg-type]
    assert axis not in {kind for kind, _ in found}
    assert len({kind for kind, _ in found}) == 2
