"""Tensors kept for the backward pass: formulas of papers, and blocks that MindSpore's memory tracker named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from memory_samples import MIB, dense, moe, plan, work

from planner.cost.memory.kept import layer_bytes, layer_tensors
from planner.cost.memory.peak import memory
from planner.cost.memory.rules import NATIVE_CPU, NUMBERED, SWITCHES, rules_for
from planner.cost.memory.tensors import SPLITS, Split, Tensor, reduce_bytes, split_elements
from planner.cost.strategies import Strategies, Strategy
from planner.model.records import Attention, LayerKind, Model, Workload


def kept(model: Model, workload: Workload, strategy: Strategy, kind: LayerKind = "dense"):
    rules = rules_for(workload)
    elements = split_elements(model, workload, Strategies.of([strategy]))
    return layer_bytes(layer_tensors(model, workload, kind, rules), elements, elements)


def peaks(model: Model, workload: Workload, strategy: Strategy) -> list[float]:
    return memory(model, workload, Strategies.of([strategy])).peak_bytes_CS[0].tolist()


def gpt(hidden: int, heads: int) -> Model:
    """GPT: four-fold MLP without gate, biases, dropout."""
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        v_head_dim=hidden // heads,
        qkv_bias=True,
        output_bias=True,
    )
    return Model(
        name="gpt", family="gpt", hidden=hidden, ffn=4 * hidden, vocab=51200, attention=attention,
        layer_kinds=("dense",), gated_mlp=False, mlp_bias=True, norm_bias=True,
    )  # fmt: skip


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (8, False), (8, True)])
def test_unfused_gpt_layer_is_the_formula_of_the_paper(tp: int, sequence_parallel: bool):
    """arXiv 2205.05198: s b h (10 + 24 / t + 5 a s / (h t)), and s b h (34 + 5 a s / h) / t with split sequences."""
    s, b, h, a = 2048, 2, 12288, 96
    workload = work("megatron", seq=s, flash_attention=False)
    found = kept(gpt(h, a), workload, plan(((1,),), tp=tp, micro_batch_size=b, sequence_parallel=sequence_parallel))
    outside = 10 / tp if sequence_parallel else 10
    scores = 5 * a * s / (h * tp)
    assert found.none[0] == pytest.approx(s * b * h * (outside + 24 / tp + scores), rel=1e-3)
    assert found.selective[0] == pytest.approx(s * b * h * (outside + 24 / tp), rel=1e-3)
    assert found.full[0] == 2 * s * b * h / (tp if sequence_parallel else 1)


def test_qwen3_layer_as_the_compiler_keeps_it():
    """DryRun, h 1024, f 3072, 16 / 8 heads of 64, tp 2, 4096 tokens: the blocks of one layer in MiB."""
    found = kept(dense(), work(), plan(tp=2, dp=2))
    norm_inputs, gathered = 2 * 8, 2 * 8  # float32 [2048, 1024], bfloat16 [4096, 1024]
    query_key_casts, query_key_value, statistics = 8 + 4, 4 + 2 + 2, 1 + 1
    output_twice, gate_and_up, activation, product = 2 * 4, 2 * 12, 12, 12
    blocks = norm_inputs + gathered + query_key_casts + query_key_value + statistics + output_twice + gate_and_up
    small = (2 * 2048 + 4096 * (8 + 4)) * 4 / MIB  # reciprocal deviations of four norms
    assert found.none[0] / MIB == pytest.approx(blocks + activation + product + small)
    assert found.selective[0] / MIB == pytest.approx(blocks + product + small)
    assert found.full[0] / MIB == 4


def test_llama_layer_as_the_compiler_keeps_it():
    """Legacy network: norm inputs stay 16-bit, no query and key norms; selective recompute changes nothing."""
    model = dense(attention=Attention(heads=16, kv_heads=8, head_dim=64, v_head_dim=64))
    found = kept(model, work("mindformers-legacy"), plan(tp=2, dp=2))
    small = 2 * 2048 * 4 / MIB
    assert found.none[0] / MIB == pytest.approx(2 * 4 + 2 * 8 + 8 + 2 + 2 * 4 + 24 + 12 + 12 + small)
    assert found.selective[0] == found.none[0]


def test_moe_layer_as_the_compiler_keeps_it():
    """Sorted tokens, gate and up, expert output: 8192 routed tokens x 1024 are 16 MiB each; weights 4 and 8."""
    found = kept(moe(), work(), plan(((4,),), tp=2, dp=4, ep=4), "moe")
    attention = 8 + 8 + 12 + 8 + 2 + 2 * 4
    routing = (2048 * 16 * 4 + 2048 * 4 * 8 + 4 * 8192 * 8) / MIB
    small = (2 * 2048 + 4096 * (8 + 4)) * 4 / MIB
    assert found.dispatch[0] / MIB == 3 * 16
    assert found.none[0] / MIB == pytest.approx(attention + 8 + 8 + routing + 3 * 16 + 4 + 8 + small)


def test_context_parallel_gathers_keys_and_values():
    whole = kept(dense(), work(), plan())
    half = kept(dense(), work(), plan(cp=2, sequence_parallel=False))
    keys_and_values, second_output = 2 * 4096 * 8 * 64 * 2, 4096 * 16 * 64 * 2
    assert half.none[0] == pytest.approx((whole.none[0] - keys_and_values - second_output) / 2 + keys_and_values)


def test_splits_divide_as_they_say():
    table = Strategies.of(
        [
            plan(((4,),), tp=4, cp=2, dp=4, ep=2, etp=4, micro_batch_size=3, sequence_parallel=on, ulysses_degree=2)
            for on in (True, False)
        ]
    )
    workload = work(seq=1024)
    found = split_elements(moe(), workload, table)
    tokens = 3 * 1024 / 2
    expected: dict[Split, list[float]] = {
        "whole": [tokens, tokens],
        "sequence": [tokens / 4, tokens],
        "tensor": [tokens / 4] * 2,
        "exchanged": [tokens / 4] * 2,
        "alone": [0, 0],
        "routed": [4 * tokens / 4, 4 * tokens],
        "received": [4 * tokens, 4 * tokens],
        "columns": [4 * tokens / 4, 4 * tokens / 4],
        "context": [tokens / 2] * 2,
        "rows": [0, 0],
        "parted": [2 * tokens] * 2,
        "unparted": [2 * tokens] * 2,
        "regrouped": [2 * tokens / 4] * 2,
        "exchanging": [tokens / 4] * 2,
        "left": [2 * tokens / 4] * 2,
        "global": [2 * tokens] * 2,
        "unpiped": [tokens] * 2,
        "expert": [0.5 / 4] * 2,
        "weights": [0.25] * 2,
        "once": [1] * 2,
    }
    assert set(expected) == set(SPLITS)
    for split, values in expected.items():
        assert found[split].tolist() == values


def test_logits_of_a_whole_vocabulary_exist_without_a_pipeline_only():
    table = Strategies.of([plan(((4,),), tp=2), plan(((2, 2),), tp=2)])
    assert split_elements(dense(), work(), table)["unpiped"].tolist() == [4096, 0]


def test_experts_split_over_tp_see_all_tokens_of_their_group():
    workload = work("mindspeed")
    table = Strategies.of([plan(((4,),), tp=4, dp=4, ep=2, etp=etp) for etp in (1, 4)])
    found = split_elements(moe(), workload, table)
    assert (found["received"] / found["routed"]).tolist() == [1, 4]


def test_bytes_are_width_times_size_times_elements():
    workload = work(seq=1024)
    elements = split_elements(dense(), workload, Strategies.of([plan(tp=2), plan()]))
    tensors = (Tensor("a", 3.0, "whole", 2.0), Tensor("b", 5.0, "tensor", 4.0))
    assert reduce_bytes(tensors, elements).tolist() == [1024 * 6 + 512 * 20, 1024 * 26]
    assert reduce_bytes((), elements).tolist() == [0, 0]


def test_every_switch_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
    named = text.split("## Switches")[1].split("##")[0]
    assert [switch for switch in SWITCHES if f"`{switch}`" not in named] == []
    assert [switch for switch in NUMBERED if f"`{switch}=" not in named] == []


def test_every_switch_changes_the_rules():
    for framework in ("mindformers", "megatron", "mindspeed"):
        plain = rules_for(work(framework))
        for switch, changes in SWITCHES.items():
            switched = rules_for(work(framework, switches=(switch,)))
            assert switched == replace(plain, **changes)
    assert rules_for(work(switches=("unknown to memory",))) == rules_for(work())


def test_switches_with_a_number_set_it():
    found = rules_for(work(switches=("batch-parts=2", "sequence-pieces=8", "gathers=6,2")))
    assert (found.batch_parts, found.sequence_pieces, found.gathered_layers) == (2, 8, (6, 2))


def test_every_rule_changes_bytes():
    """No switch is read, documented and without effect: each changes the peak of some stage of some small job."""
    other = {NATIVE_CPU}  # a script of its own, judged in tests/cost/memory/test_native.py
    still = set(SWITCHES) - other | {"gathers=2,2" if name == "gathers" else f"{name}=2" for name in NUMBERED}
    for framework in ("mindformers", "mindformers-legacy", "mindspeed", "megatron"):
        for model in (dense(), moe()):
            for strategy in (
                plan(((2, 2),), tp=2, micro_batches=4, recompute_selective=(2, 2), swap_optimizer=True),
                plan(((4,),), tp=2, cp=2, dp=2, ep=2 if model.moe else 1, micro_batches=4),
                plan(((4,),), dp=4, zero_level=3 if framework == "megatron" else 1, optimizer_shard=4),
            ):
                for extra in ((), ("fused-cross-entropy",), ("fused-swiglu",)):
                    job = work(framework, seq=4096, switches=extra)
                    plain = peaks(model, job, strategy)
                    still -= {s for s in still if peaks(model, replace(job, switches=(*extra, s)), strategy) != plain}
    assert still == set()


def test_arrays_of_results_cannot_be_changed():
    from planner.cost.memory.peak import memory

    found = memory(dense(), work(), Strategies.of([plan()]))
    with pytest.raises(ValueError, match="read-only"):
        found.peak_bytes_CS[0, 0] = 0
    assert np.isfinite(found.peak_bytes_CS).all()


def test_norms_of_a_layer_keep_what_they_read() -> None:
    """Behind 4 norms two more inputs are kept, of one norm an input and an output fewer; statistics are 4 bytes."""

    def of(norms: int) -> float:
        model = replace(dense(), norms_per_layer=norms)
        workload = work("megatron")
        tensors = layer_tensors(model, workload, "dense", rules_for(workload)).kept
        return sum(tensor.width * tensor.size for tensor in tensors if tensor.split == "sequence")

    hidden = dense().hidden
    assert of(4) - of(2) == 2 * 2 * hidden + 2 * 4
    assert of(2) - of(1) == 2 * 2 * hidden + 4
