"""Computation of one layer against hand-computed numbers and laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.load import hardware
from planner.cluster.records import Cluster
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time import compute
from planner.cost.time.setting import Execution, Rates, Setting, Shares, peak_flop_per_s
from planner.errors import ProfileError
from planner.model.operators import layer_flop_per_token
from planner.model.records import Attention, Model, Moe, Workload

LLAMA_7B = Model(
    name="7b", family="llama", hidden=4096, ffn=11008, vocab=32000, layer_kinds=("dense",) * 32,
    attention=Attention(heads=32, kv_heads=32, head_dim=128, v_head_dim=128),
)  # fmt: skip
MIXTRAL = replace(
    LLAMA_7B, name="moe", layer_kinds=("moe",) * 32, moe=Moe(experts=8, topk=2, expert_ffn=14336),
    attention=Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128),
)  # fmt: skip
WORK = Workload(seq=4096, global_batch=8)

#: Round rates and neutral constants, so that seconds can be computed by hand.
RATE = Rates(
    matmul_flop_per_s=100e12, attention_flop_per_s=50e12, vector_bytes_per_s=0.5e12, hbm_bytes_per_s=1e12, k0=0.0
)
NEUTRAL = {
    "ring_slowdown": 1.5, "attention_head0": 0.0, "expert_efficiency": 0.5, "expert_width0": 0.0,
    "expert_imbalance": 1.25, "loss_bytes": 30.0, "fused_loss_bytes": 12.0, "host_launch_s": 1e-5, "launch_s": 1e-6,
}  # fmt: skip


CLUSTER = Cluster(hardware=hardware("910B2"), devices=8)


def given_setting(
    model: Model = LLAMA_7B, workload: Workload = WORK, run: Execution | None = None, *,
    constants: Mapping[str, float] = NEUTRAL, tokens: float = 4096.0, **sizes: float,
) -> Setting:  # fmt: skip
    """One candidate with hand-made sizes, round rates and neutral constants."""
    row = Strategy(
        dp=1, tp=1, pp=1, layers=((32,),), recompute_full=(0,), recompute_selective=(0,), micro_batches=1
    )  # fmt: skip
    all_sizes = {"tp": 1.0, "sp": 1.0, "cp": 1.0, "ep": 1.0, "etp": 1.0, "ulysses": 1.0} | sizes
    ring = all_sizes["cp"] / all_sizes["ulysses"]
    arrays = {name: np.array([value]) for name, value in {**all_sizes, "tokens": tokens, "ring": ring}.items()}
    return Setting(
        model=model, workload=workload, cluster=CLUSTER, constants=constants, table=Strategies.of([row]),
        run=run or Execution(), share=Shares(**arrays), rate=RATE,
    )  # fmt: skip


def work(
    model: Model = LLAMA_7B, workload: Workload = WORK, run: Execution | None = None, **sizes: float
) -> compute.LayerWork:
    return compute.layer_work(given_setting(model, workload, run, **sizes), model.layer_kinds[-1])


def test_matmul_takes_the_longer_of_work_and_traffic() -> None:
    # 2 x 1000^3 FLOP at 1 TFLOP/s = 2 ms; 6 MB at 1 GB/s = 6 ms
    assert float(compute.matmul_s(1000, 1000, 1000, 1e12, 0.0, 1e12)) == pytest.approx(2e-3)
    assert float(compute.matmul_s(1000, 1000, 1000, 1e12, 0.0, 1e9)) == pytest.approx(6e-3)


@given(m=st.integers(1, 1 << 14), k=st.integers(1, 1 << 14), n=st.integers(1, 1 << 14))
def test_backward_matmuls_cost_the_same_in_any_order(m: int, k: int, n: int) -> None:
    forward = float(compute.matmul_s(m, k, n, 1e14, 60.0, 1e12))
    assert float(compute.matmul_s(m, n, k, 1e14, 60.0, 1e12)) == pytest.approx(forward, rel=1e-12)
    assert float(compute.matmul_s(k, m, n, 1e14, 60.0, 1e12)) == pytest.approx(forward, rel=1e-12)


def test_dense_layer_by_hand() -> None:
    result = work()
    # weights: 4 x 4096^2 + 3 x 4096 x 11008 = 202,375,168; 2 FLOP each for 4096 tokens
    assert float(result.matmul_s[0]) == pytest.approx(2 * 4096 * 202_375_168 / 100e12)
    # causal scores and values: 4 x 4096 tokens x 2048 keys x 4096
    assert float(result.attention_s[0]) == pytest.approx(4 * 4096 * 2048 * 4096 / 50e12)
    assert float(result.attention_backward_s[0]) == pytest.approx(2.5 * 4 * 4096 * 2048 * 4096 / 50e12)
    # 28 h + 8 (32 + 32) 128 + 6 x 11008 bytes a token
    assert float(result.vector_s[0]) == pytest.approx(4096 * (28 * 4096 + 8 * 64 * 128 + 6 * 11008) / 0.5e12)
    assert float(result.selective_s[0]) == pytest.approx(4096 * 6 * 11008 / 0.5e12)
    assert float(result.flop[0]) == pytest.approx(4096 * layer_flop_per_token(LLAMA_7B, "dense", 4096))
    assert result.kernels == 20 + 4 * 4


def test_tensor_parallelism_divides_what_it_shards() -> None:
    whole, part = work(), work(tp=8, sp=8)
    assert float(part.matmul_s[0]) == pytest.approx(float(whole.matmul_s[0]) / 8)
    assert float(part.attention_s[0]) == pytest.approx(float(whole.attention_s[0]) / 8)
    assert float(part.vector_s[0]) == pytest.approx(float(whole.vector_s[0]) / 8)
    # without sequence parallelism norms and residuals stay whole
    plain = work(tp=8, sp=1)
    assert float(plain.vector_s[0]) - float(part.vector_s[0]) == pytest.approx(4096 * 28 * 4096 * 7 / 8 / 0.5e12)


def test_context_parallel_attention_by_hand() -> None:
    causal = 4 * 1024 * 2048 * 4096 / 50e12  # a quarter of the tokens, half of the keys
    assert float(work(tokens=1024, cp=4, ulysses=4).attention_s[0]) == pytest.approx(causal)
    assert float(work(tokens=1024, cp=4).attention_s[0]) == pytest.approx(1.5 * causal)
    general = Execution(causal_skip=False)
    assert float(work(tokens=1024, cp=4, run=general).attention_s[0]) == pytest.approx(3.0 * causal)
    assert float(work(tokens=1024, cp=4, ulysses=4, run=general).attention_s[0]) == pytest.approx(causal)


def test_narrow_heads_are_slower() -> None:
    slow = NEUTRAL | {"attention_head0": 64.0}
    usual = compute.attention_core(given_setting(constants=slow))[0]
    narrow = replace(LLAMA_7B, attention=Attention(heads=64, kv_heads=64, head_dim=64, v_head_dim=64))
    same_flop = compute.attention_core(given_setting(narrow, constants=slow))[0]
    assert float(usual[0]) == pytest.approx(4 * 4096 * 2048 * 4096 / 50e12)
    assert float(same_flop[0] / usual[0]) == pytest.approx((1 + 64 / 64) / (1 + 64 / 128))


def test_unfused_attention_pays_for_scores() -> None:
    unfused = replace(WORK, flash_attention=False)
    fused, slow = work(), work(workload=unfused)
    scores = 13.0 * 4096 * 4096 * 32 / 0.5e12
    assert float(slow.vector_s[0] - fused.vector_s[0]) == pytest.approx(scores)
    full = 4 * 4096 * 4096 * 4096 / 100e12  # no block is skipped, at the matmul rate
    assert float(slow.attention_s[0]) == pytest.approx(full)
    assert float(slow.selective_s[0]) == pytest.approx(full + scores)  # the attention core is what is repeated


def test_selective_recompute_follows_its_list() -> None:
    whole = work(run=Execution(selective=("projections", "mlp")))
    assert float(whole.selective_s[0]) == pytest.approx(float(whole.matmul_s[0]))
    half = work(run=Execution(selective=("alternate_matmuls",)))
    assert float(half.selective_s[0]) == pytest.approx(0.5 * float(half.matmul_s[0]))
    two = work(run=Execution(selective=("norm", "activation")))
    assert float(two.selective_s[0]) == pytest.approx(4096 * (28 * 4096 + 6 * 11008) / 0.5e12)


def test_experts_by_hand() -> None:
    # two of eight experts of 3 x 4096 x 14336, at half the dense rate, 1.25 times the mean on the fullest rank
    routed = 2 * 4096 * 2 * 3 * 4096 * 14336 / 100e12
    router = 2 * 4096 * 4096 * 8 / 100e12
    router = max(router, 2 * (4096 * 4096 + 4096 * 8 + 4096 * 8) / 1e12)  # narrow: its traffic takes longer
    attention = 2 * 4096 * (4096 * 6144 + 4096 * 4096) / 100e12
    assert float(work(MIXTRAL).matmul_s[0]) == pytest.approx(routed * 1.25 / 0.5 + router + attention)
    balanced = work(MIXTRAL, run=Execution(balanced_experts=True))
    assert float(balanced.matmul_s[0]) == pytest.approx(routed / 0.5 + router + attention)


def test_expert_work_of_a_rank_does_not_depend_on_ep() -> None:
    # ep moves experts and tokens alike; only narrow shards (etp) change the rate
    whole = work(MIXTRAL)
    for ep in (2.0, 4.0, 8.0):
        assert float(work(MIXTRAL, ep=ep).matmul_s[0]) == pytest.approx(float(whole.matmul_s[0]))


def test_head_and_loss_by_hand() -> None:
    forward, backward = compute.head_work(given_setting(tp=2))
    matmul, loss = 2 * 4096 * 4096 * 16000 / 100e12, 4096 * 16000 * 30 / 0.5e12
    assert float(forward[0]) == pytest.approx(matmul + loss / 3)
    assert float(backward[0]) == pytest.approx(2 * matmul + loss * 2 / 3)
    fused = compute.head_work(given_setting(run=Execution(fused_loss=True), tp=2))[0]
    assert float(forward[0] - fused[0]) == pytest.approx(4096 * 16000 * 6 / 0.5e12)


def test_host_is_a_floor_in_eager_mode_only() -> None:
    device = np.array([1e-4, 1e-3])
    assert compute.host_gap_s(given_setting(run=Execution(eager=True)), 36, device).tolist() == pytest.approx(
        [2.6e-4, 0.0]
    )
    assert compute.host_gap_s(given_setting(), 36, device).tolist() == [0.0, 0.0]


def test_bytes_of_an_update() -> None:
    count = np.array([1.0])
    assert float(compute.optimizer_bytes(count, WORK)[0]) == 28.0  # AdamW on float32 parameters
    mixed = replace(WORK, params_dtype="bfloat16", master_weights=True)
    assert float(compute.optimizer_bytes(count, mixed)[0]) == 4 + 16 + 8 + 2
    assert float(compute.optimizer_bytes(count, replace(WORK, moments=0))[0]) == 12.0


def test_half_precision_types_share_the_lower_peak() -> None:
    card = hardware("910B2")
    assert peak_flop_per_s(card, "float16") == peak_flop_per_s(card, "bfloat16") == 353.8944e12
    assert peak_flop_per_s(hardware("910A"), "float16") == 256e12
    with pytest.raises(ProfileError, match="910A has no matmul peak for bfloat16; it has: float16"):
        peak_flop_per_s(hardware("910A"), "bfloat16")
