"""Every rule of legality: what it refuses, what it says, and that counts add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.strategies import CP_ALGORITHMS, SCHEDULES, Strategies, Strategy
from planner.errors import SpecError
from planner.legality.apply import RULES, Context, apply_rules, require_legal, violations
from tests.search.shapes import DEEPSEEK_V3, LLAMA_70B, NODE_910A, context, dense, moe


def strategy(context: Context, **fields: object) -> Strategy:
    """A strategy that is legal unless a field makes it illegal: dp, micro-batches and layers are completed."""
    values: dict[str, object] = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1} | fields
    rest = values["tp"] * values["pp"] * values["cp"]  # type: ignore[operator]
    values.setdefault("dp", max(context.cluster.devices // rest, 1))
    unit = values["dp"] * values["micro_batch_size"]  # type: ignore[operator]
    values.setdefault("micro_batches", max(context.workload.global_batch // unit, 1))
    values.setdefault("sequence_parallel", values["tp"] > 1)  # type: ignore[operator]
    vpp, pp = int(values.get("vpp", 1)), int(values["pp"])  # type: ignore[call-overload]
    values.setdefault("schedule", "1f1b" if vpp == 1 else "interleaved")
    chunks = [context.model.layers // (pp * vpp) + (i < context.model.layers % (pp * vpp)) for i in range(pp * vpp)]
    values.setdefault("layers", tuple(tuple(chunks[v * pp : (v + 1) * pp]) for v in range(vpp)))
    values.setdefault("recompute_full", (0,) * pp)
    values.setdefault("recompute_selective", (0,) * pp)
    return Strategy(**values)  # type: ignore[arg-type]


def codes(context: Context, **fields: object) -> list[str]:
    return [violation.code for violation in violations(context, strategy(context, **fields))]


#: (rule that must refuse, part of its message, context, fields of the strategy): one illegal value each.
REFUSED = [
    ("devices", "the cluster has 64; dp=2 makes it 64", context(), {"tp": 8, "pp": 4, "dp": 4, "micro_batches": 16}),
    ("devices", "does not divide 64 cards", context(), {"tp": 3, "pp": 1, "dp": 21, "micro_batches": 3}),
    ("global-batch", "micro_batches=8 makes it 64", context(), {"tp": 8, "micro_batches": 7}),
    ("fill-pipeline", "use pp <= 4", context(), {"tp": 1, "pp": 8, "dp": 8, "micro_batch_size": 2}),
    ("heads", "legal here: 1, 2, 4, 7, 14, 28", context(dense(8, 3584, 28, 4), 64), {"tp": 8}),
    ("kv-heads", "legal tp: 1, 2", context(dense(8, 4096, 32, 2), 64), {"tp": 8}),
    ("hidden", "does not divide 1001", context(dense(8, 1001, 8, 8), 8), {"tp": 2}),
    ("ffn", "does not divide 4098", context(dense(ffn=4098), 8), {"tp": 4}),
    ("shared-ffn", "shared experts", context(replace(DEEPSEEK_V3, moe=replace(DEEPSEEK_V3.moe, shared_ffn=2052)), 64),
     {"tp": 8}),
    ("vocab", "pad the vocabulary to 151554", context(dense(8, 1536, 12, 12, vocab=151_552, ffn=6144), 48, batch=48),
     {"tp": 6}),
    ("sp-needs-tp", "tp=1; switch sequence_parallel off", context(), {"tp": 1, "sequence_parallel": True}),
    ("tp-needs-sp", "MoE layers need", context(moe(), 8), {"tp": 2, "sequence_parallel": False}),
    ("tp-needs-sp", "PyNative", context(dense(), 8, framework="mindformers-pynative"),
     {"tp": 2, "sequence_parallel": False, "zero_level": 3}),
    ("sp-sequence", "which does not divide them", context(seq=4090), {"tp": 8}),
    ("cp-needs-flash", "flash_attention on", context(seq=8192, flash_attention=False), {"tp": 8, "cp": 2}),
    ("ulysses-degree", "legal: 4", context(seq=32_768),
     {"tp": 2, "cp": 4, "cp_algorithm": "ulysses", "ulysses_degree": 2}),
    ("ulysses-degree", "legal: 2", context(seq=32_768), {"tp": 2, "cp": 4, "cp_algorithm": "hybrid"}),
    ("ulysses-degree", "legal: none", context(seq=32_768), {"tp": 2, "cp": 2, "cp_algorithm": "hybrid"}),
    ("ulysses-degree", "legal: ring and 1", context(), {"tp": 8, "cp_algorithm": "ulysses"}),
    ("heads", "tp=8 x ulysses_degree=16 = 128 does not divide 64", context(seq=65_536, cards=128),
     {"tp": 8, "cp": 16, "cp_algorithm": "ulysses", "ulysses_degree": 16}),
    ("head-exchange", "legal: ring", context(seq=32_768),
     {"tp": 2, "cp": 4, "cp_algorithm": "ulysses", "ulysses_degree": 4}),
    ("cp-sequence", "2 x cp", context(dense(vocab=32_000), 8, seq=4100), {"cp": 4, "dp": 2}),
    ("schedule", "legal: gpipe, 1f1b, interleaved, zero_bubble_v", context(), {"tp": 8, "pp": 2, "schedule": "seqpipe",
     "vpp": 2}),
    ("schedule", "mindspeed", context(framework="mindspeed"), {"tp": 8, "pp": 4, "schedule": "gpipe"}),
    ("vpp-schedule", "takes vpp=1", context(), {"tp": 8, "pp": 4, "vpp": 2, "schedule": "1f1b"}),
    ("vpp-schedule", "needs vpp >= 2", context(), {"tp": 8, "pp": 4, "schedule": "interleaved"}),
    ("chunks", "pp x vpp <= 80", context(), {"tp": 4, "pp": 16, "vpp": 6}),
    ("interleave-batches", "nearest legal: 8 or 12", context(batch=20, framework="mindspeed"),
     {"tp": 8, "pp": 4, "dp": 2, "vpp": 2}),
    ("zero-bubble-v", "at least 16", context(batch=16), {"tp": 4, "pp": 8, "vpp": 2, "schedule": "zero_bubble_v"}),
    ("ep-needs-moe", "has no experts", context(), {"tp": 8, "ep": 2}),
    ("experts", "legal ep: 1, 2, 4, 8, 16", context(moe(), 48, batch=48), {"tp": 1, "ep": 3}),
    ("ep-needs-moe", "etp=8 but", context(), {"tp": 8, "etp": 8}),
    ("ep-ranks", "legal ep: 1, 2, 4", context(moe(), 8), {"pp": 2, "ep": 8}),
    ("ep-ranks", "ep=4 x etp=4 = 16 does not divide the 8 ranks", context(moe(), 8, framework="megatron"),
     {"tp": 4, "ep": 4, "etp": 4}),
    ("ep-ranks", "legal ep: 1, 2, or etp: 1, 2", context(moe(), 8, framework="mindspeed"),
     {"tp": 4, "ep": 4, "etp": 4}),
    ("ep-ranks", "legal ep: 1, 2, 4, 6, 12, 24",
     context(moe(experts=24), 24, batch=48, framework="mindformers-pynative"),
     {"tp": 4, "cp": 3, "ep": 8, "zero_level": 3}),
    ("expert-tp", "legal: 1.", context(moe(), 8), {"tp": 4, "etp": 4}),
    ("expert-tp", "legal: 1.", context(moe(), 8, framework="mindformers-pynative"), {"tp": 4, "etp": 4}),
    ("expert-tp", "legal: 1, 4.", context(moe(), 8, framework="mindformers-legacy"), {"tp": 4, "etp": 2}),
    ("expert-tp", "does not split experts over etp=3 ranks; legal: 1, 2, 4", context(moe(), 8, framework="megatron"),
     {"tp": 4, "etp": 3}),
    ("fused-experts", "legal ep: 4, 8", context(moe(experts=512), 64, framework="mindspeed"), {"ep": 2}),
    ("zero-level", "legal: 0, 1", context(framework="mindspeed"), {"tp": 8, "zero_level": 3}),
    ("optimizer-shard", "legal: 1, 2, 4, 8", context(), {"tp": 8, "optimizer_shard": 3}),
    ("optimizer-shard", "shards nothing", context(), {"tp": 8, "zero_level": 0, "optimizer_shard": 8}),
    ("muon-experts", "legal optimizer_shard: 1, 2", context(moe(), 64, optimizer="Muon"),
     {"tp": 8, "ep": 8, "optimizer_shard": 4}),
    ("swap", "pp=2", context(dense(), 8, framework="mindformers-pynative"),
     {"pp": 2, "swap_optimizer": True, "zero_level": 3}),
    ("swap", "distributed optimizer", context(dense(), 8, framework="mindspeed"),
     {"zero_level": 0, "swap_optimizer": True}),
    ("tp-node", "legal: 1, 2, 4, 8", context(), {"tp": 16}),
    ("quads", "straddle", context(dense(), 8, hardware=NODE_910A, compute_dtype="float16"), {"tp": 2}),
    ("compute-type", "legal: float16", context(dense(), 8, hardware=NODE_910A), {"tp": 8}),
    ("mtp", "legal: 0, 1", context(replace(DEEPSEEK_V3, mtp_layers=2), 64), {"tp": 8}),
    ("layer-sum", "add up to 28, dense-30 has 30", context(dense(30), 8), {"pp": 4, "layers": ((7, 7, 7, 7),)}),
    ("empty-stage", "middle chunk", context(dense(8), 8), {"pp": 4, "layers": ((4, 0, 4, 0),)}),
    ("recompute", "the layers of each stage", context(dense(8), 8), {"pp": 2, "recompute_full": (3, 5)}),
    ("recompute", "the layers of each stage", context(dense(8), 8),
     {"pp": 2, "recompute_full": (3, 3), "recompute_selective": (1, 2)}),
    ("seqpipe", "runs without recompute", context(dense(8), 8, framework="mindformers-legacy"),
     {"pp": 2, "vpp": 2, "schedule": "seqpipe", "recompute_full": (1, 0)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "words", "where", "fields"), REFUSED, ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)]
)
def test_refused(code: str, words: str, where: Context, fields: dict[str, object]) -> None:
    found = {violation.code: violation.message for violation in violations(where, strategy(where, **fields))}
    assert code in found
    assert words in found[code]
    assert found[code].startswith(f"{code}: ")


def test_every_rule_has_a_refused_case() -> None:
    assert {rule.code for rule in RULES} == {case[0] for case in REFUSED}


LEGAL = [
    (context(), {"tp": 4, "pp": 8}),
    (context(), {"tp": 8, "pp": 4, "vpp": 2}),
    (context(batch=128), {"tp": 8, "pp": 8, "vpp": 2, "schedule": "zero_bubble_v"}),
    (
        context(seq=32_768, framework="mindformers-legacy"),
        {"tp": 2, "cp": 4, "cp_algorithm": "hybrid", "ulysses_degree": 2},
    ),
    (context(seq=32_768, framework="mindspeed"), {"tp": 8, "cp": 8, "cp_algorithm": "ulysses", "ulysses_degree": 8}),
    (context(tp_across_nodes=True, model=dense(8, 1024, 16, 16), cards=16), {"tp": 16}),
    (context(DEEPSEEK_V3, 1024, batch=8192), {"tp": 1, "pp": 16, "ep": 64}),
    (context(moe(), 8, framework="megatron"), {"tp": 2, "pp": 2, "ep": 4}),
    (context(framework="mindspeed", batch=4), {"tp": 8, "pp": 8, "dp": 1}),  # fewer micro-batches than stages
    (context(dense(), 8, hardware=NODE_910A, compute_dtype="float16"), {"tp": 8}),
    (context(dense(), 8, hardware=NODE_910A, compute_dtype="float16"), {}),
    # Published 16-card 910A run: tp 4, dp 4, two members in each server.
    (context(dense(), 16, hardware=NODE_910A, compute_dtype="float16"), {"tp": 4}),
]


@pytest.mark.parametrize(("where", "fields"), LEGAL)
def test_legal(where: Context, fields: dict[str, object]) -> None:
    assert codes(where, **fields) == []
    require_legal(where, strategy(where, **fields))


def test_require_legal_lists_every_broken_rule() -> None:
    where = context(dense(8, 3584, 28, 4))
    with pytest.raises(SpecError, match=r"heads: tp=8 (.|\n)*kv-heads: tp=8"):
        require_legal(where, strategy(where, tp=8))


# --- strong cases of the user survey (ids as there) -----------------------------------------------------------------


def message_of(where: Context, code: str, **fields: object) -> str:
    found = {violation.code: violation.message for violation in violations(where, strategy(where, **fields))}
    return found[code]


def test_v01_heads_28_tp_8() -> None:
    message = message_of(context(dense(8, 3584, 28, 4)), "heads", tp=8)
    assert "legal here: 1, 2, 4, 7, 14, 28" in message
    assert "legal tp: 1, 2, 4. Try tp=4." in message  # four key/value heads bind as well


def test_v01_multi_head_inside_a_node() -> None:
    message = message_of(context(dense(8, 3584, 28, 28)), "heads", tp=8)
    assert "legal tp: 1, 2, 4, 7, 14, 28 (inside a node of 8: 1, 2, 4)" in message


def test_v02_two_kv_groups_tp_8_refused() -> None:
    assert "kv-heads: tp=8 does not divide 2 key/value heads" in message_of(
        context(dense(8, 4096, 32, 2)), "kv-heads", tp=8
    )


def test_v04_thirty_layers_on_four_stages_never_lose_two() -> None:
    where = context(dense(30), 8)
    assert "30 layers over 4 chunks: 8/8/7/7" in message_of(where, "layer-sum", pp=4, layers=((7, 7, 7, 7),))


def test_v03_46_layers_on_four_stages() -> None:
    where = context(dense(46), 8)
    assert "46 layers over 4 chunks: 12/12/11/11" in message_of(where, "layer-sum", pp=4, layers=((11,) * 4,))
    assert codes(where, pp=4, layers=((12, 12, 11, 11),)) == []


def test_v05_expert_product_on_the_expert_side() -> None:
    message = message_of(context(moe(), 8, framework="megatron"), "ep-ranks", pp=2, ep=8)
    assert "pp=2 x ep=8 = 16 of 8 devices on the expert side" in message


def test_v06_nearest_batches() -> None:
    where = context(dense(), 7, batch=256)  # seven devices of one node
    message = message_of(where, "global-batch", dp=7, micro_batch_size=2)
    assert "nearest legal global batches: 252 or 266" in message


def test_v07_fewer_micro_batches_than_stages() -> None:
    for framework in ("mindformers", "mindformers-legacy", "mindformers-pynative"):
        where = context(batch=4, framework=framework)
        level = 3 if framework == "mindformers-pynative" else 1
        assert "fill-pipeline" in codes(where, tp=8, pp=8, dp=1, zero_level=level)


def test_v08_vocabulary_is_never_padded_silently() -> None:
    where = context(dense(8, 1536, 12, 12, vocab=151_552, ffn=6144), 48, batch=48)
    assert "pad the vocabulary to 151554" in message_of(where, "vocab", tp=6)


def test_v09_sequence_not_divisible_under_sequence_parallel() -> None:
    assert "sp-sequence" in codes(context(seq=4092), tp=8)
    assert "sp-sequence" not in codes(context(seq=4092), tp=4)


def test_v10_experts_on_a_rank_for_fused_operators() -> None:
    where = context(moe(experts=512), 64, framework="mindspeed")
    assert "fused-experts" in codes(where, ep=2)
    assert codes(where, ep=4) == []
    assert codes(context(moe(experts=512), 64), ep=2) == []  # MindFormers has no such limit


def test_v11_dp_2_ep_4() -> None:
    message = message_of(context(moe(), 4), "ep-ranks", pp=2, dp=2, ep=4)
    assert "legal ep: 1, 2." in message


def test_v12_cards_follow_from_the_product() -> None:
    message = message_of(context(cards=32), "devices", dp=1, tp=8, pp=8)
    assert "= 64 devices, the cluster has 32" in message


def test_u03_94_layers_with_embedding_and_loss() -> None:
    model = dense(94, 4096, 64, 4, ffn=12_288, vocab=151_936)
    for pp, vpp, each in ((8, 4, 3), (4, 12, 2), (8, 3, 4)):
        line = [each - 1] + [each] * (pp * vpp - 2) + [each - 1]
        layers = tuple(tuple(line[v * pp : (v + 1) * pp]) for v in range(vpp))
        assert codes(context(model, 256, batch=2048), tp=2, pp=pp, vpp=vpp, layers=layers) == []


def test_u03_one_layer_a_chunk_with_empty_ends() -> None:
    model = dense(94, 4096, 64, 4, ffn=12_288, vocab=151_936)
    line = [0] + [1] * 94 + [0]
    layers = tuple(tuple(line[v * 32 : (v + 1) * 32]) for v in range(3))
    assert codes(context(model, 256, batch=2048, framework="megatron"), tp=2, pp=32, vpp=3, layers=layers) == []
    # MindFormers wants a layer or MTP module for each chunk
    assert codes(context(model, 256, batch=2048), tp=2, pp=32, vpp=3, layers=layers) == ["chunks"]


# --- laws -----------------------------------------------------------------------------------------------------------

_DEGREES = st.sampled_from([1, 2, 3, 4, 6, 8, 16])


@st.composite
def tables(draw: st.DrawFn) -> Strategies:
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        pp, vpp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 3]))
        numbers = st.integers(0, 5)
        rows.append(
            Strategy(
                dp=draw(_DEGREES),
                tp=draw(_DEGREES),
                pp=pp,
                vpp=vpp,
                cp=draw(st.sampled_from([1, 2, 4])),
                ep=draw(_DEGREES),
                micro_batches=draw(st.integers(1, 32)),
                micro_batch_size=draw(st.sampled_from([1, 2])),
                ulysses_degree=draw(st.sampled_from([1, 2, 4])),
                cp_algorithm=draw(st.sampled_from(CP_ALGORITHMS)),
                schedule=draw(st.sampled_from(SCHEDULES)),
                sequence_parallel=draw(st.booleans()),
                swap_optimizer=draw(st.booleans()),
                zero_level=draw(st.integers(0, 3)),
                optimizer_shard=draw(_DEGREES),
                layers=tuple(tuple(draw(numbers) for _ in range(pp)) for _ in range(vpp)),
                recompute_full=tuple(draw(numbers) for _ in range(pp)),
                recompute_selective=tuple(draw(numbers) for _ in range(pp)),
            )
        )
    return Strategies.of(rows)


WHERE = [
    context(dense(), 16, batch=32, framework=name) for name in ("mindformers", "mindspeed", "mindformers-pynative")
]
WHERE += [context(moe(mtp_layers=1), 16, batch=32), context(dense(), 8, hardware=NODE_910A, compute_dtype="float16")]


@given(tables(), st.sampled_from(WHERE))
@settings(deadline=None, max_examples=40)
def test_counts_add_up_and_rows_do_not_depend_on_the_table(table: Strategies, where: Context) -> None:
    mask, removed = apply_rules(where, table)
    assert mask.sum() + sum(removed.values()) == len(table)
    alone = [apply_rules(where, Strategies.of([table.row(i)])) for i in range(len(table))]
    assert [bool(one[0][0]) for one in alone] == mask.tolist()
    for code in removed:
        assert removed[code] == sum(one[1][code] for one in alone)


@given(tables(), st.sampled_from(WHERE))
@settings(deadline=None, max_examples=40)
def test_a_row_is_kept_exactly_when_it_has_no_violation(table: Strategies, where: Context) -> None:
    mask, _ = apply_rules(where, table)
    for i in range(len(table)):
        broken = violations(where, table.row(i))
        assert (broken == []) == bool(mask[i])
        assert all(violation.message.startswith(f"{violation.code}: ") for violation in broken)


def test_weights_count_what_a_row_stands_for() -> None:
    where = context()
    table = Strategies.of(
        [strategy(where, tp=8, pp=4), strategy(where, tp=16), strategy(where, tp=8, optimizer_shard=3)]
    )
    mask, removed = apply_rules(where, table, weights=np.array([3, 5, 7]))
    assert mask.tolist() == [True, False, False]
    assert {code: count for code, count in removed.items() if count} == {"tp-node": 5, "optimizer-shard": 7}


def test_llama_70b_is_the_published_shape() -> None:
    assert (LLAMA_70B.layers, LLAMA_70B.hidden, LLAMA_70B.attention.kv_heads) == (80, 8192, 8)
