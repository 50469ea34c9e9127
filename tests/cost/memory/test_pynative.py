"""MindFormers' PyNative mode: what its own source keeps, operator by operator."""

from __future__ import annotations

import pytest
from memory_samples import dense, moe, plan, work

from planner.cost.memory.kept import end_tensors, layer_bytes, layer_tensors
from planner.cost.memory.peak import memory
from planner.cost.memory.rules import rules_for
from planner.cost.memory.tensors import reduce_bytes, split_elements
from planner.cost.strategies import Strategies

PYNATIVE = "mindformers-pynative"
#: Tokens, hidden and MLP width, heads, key and value heads, head size of the sample.
T, H, F, A, K, D = 4096, 1024, 3072, 16, 8, 64


def test_a_dense_layer_keeps_the_inputs_of_its_operators():
    """``transformer_layer.py``, ``attention.py``, ``mlp.py``, ``layer_norm.py``, ``flash_attention.py`` of 1.9.0."""
    job = work(PYNATIVE)
    table = Strategies.of([plan(((1,),))])
    elements = split_elements(dense(), job, table)
    kept = layer_bytes(layer_tensors(dense(), job, "dense", rules_for(job)), elements, elements).none[0]
    norms = 2 * (4 * H + 4) + 4 * (A + K) * D + 4 * (A + K)  # inputs in float32, one statistic each
    attention = 2 * H + 2 * (A + 2 * K) * D + 2 * 2 * A * D + 2 * 8 * 4 * A  # input, q k v, output twice, max and sum
    mlp = 2 * H + 2 * 4 * F  # input, both halves, activation, product
    assert kept == T * (norms + attention + mlp)


def test_each_micro_batch_keeps_a_cast_of_the_weights():
    """``Linear`` casts its weight at every call; recomputed layers keep no cast, float32 computing makes none."""
    weights = H * (A + 2 * K) * D + A * D * H + 3 * H * F
    peak = {}
    for compute in ("bfloat16", "float32"):
        job = work(PYNATIVE, compute_dtype=compute)
        few, many = (
            memory(dense(4), job, Strategies.of([plan(((2, 2),), micro_batches=m)])).terms["activations"][0, 0]
            for m in (1, 2)
        )
        peak[compute] = many - few
    assert peak["bfloat16"] > 2 * 2 * weights > 0
    job = work(PYNATIVE)
    recomputed = memory(dense(4), job, Strategies.of([plan(((2, 2),), recompute_full=(2, 2), micro_batches=2)]))
    assert recomputed.terms["activations"][0, 0] < 2 * 2 * weights


def test_the_loss_of_pynative_mode_holds_five_float32_tensors():
    """``loss.py``: logits, log-softmax, softmax, labels taken off, gradient; the 16-bit logits are an output."""
    job = work(PYNATIVE)
    table = Strategies.of([plan()])
    ends = end_tensors(dense(), job, rules_for(job))
    found = reduce_bytes(ends.loss, split_elements(dense(), job, table))[0]
    assert found == T * 32000 * (5 * 4 + 2 * 2)


@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "experts"])
def test_parameters_are_gathered_as_they_are_stored(model):
    """Two layers and the tables in float32; nothing without sharding."""
    whole, sharded = (
        memory(model, work(PYNATIVE), Strategies.of([plan(((model.layers,),), dp=8, zero_level=z, optimizer_shard=n)]))
        for z, n in ((0, 1), (3, 8))
    )
    assert whole.terms["gathered_parameters"].max() == 0
    assert sharded.terms["gathered_parameters"].max() > 2 * 4 * 32000 * H
    assert sharded.static_bytes_CS[0, 0] == pytest.approx(whole.static_bytes_CS[0, 0] / 8)
