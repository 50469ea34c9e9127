"""Rules that Megatron and MindSpeed put on their arguments: found in scripts, and kept by what is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.dialects.check import check
from planner.dialects.mindspeed.rules import broken_rules
from planner.dialects.mindspeed.write import render
from planner.errors import EmitError
from planner.model.load import find
from planner.model.records import DENSE, Workload
from tests.dialects.samples import plan, small

#: 16 devices: dp 2 x tp 2 x pp 4; nothing is wrong with it.
DENSE_FLAGS = """
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
--overlap-grad-reduce --overlap-param-gather --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008
--num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096
--micro-batch-size 1 --global-batch-size 256 --padded-vocab-size 32000 --swiglu --disable-bias-linear --bf16
--untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope --use-flash-attn
--use-mcore-models --recompute-granularity full --recompute-method block --recompute-num-layers 2
"""
MOE_FLAGS = (
    DENSE_FLAGS
    + """
--num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --expert-model-parallel-size 2 --moe-grouped-gemm
--moe-token-dispatcher-type alltoall
"""
)
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 --node_rank $NODE_RANK pretrain_gpt.py \\
  {flags}
"""
RECOMPUTE = "--recompute-granularity full --recompute-method block --recompute-num-layers 2"
CP = "--context-parallel-size 2 --context-parallel-algo"

#: Rule, flag it names, base, text replaced, text put in.
BROKEN = [
    # values
    ("flag-value", "--num-layers", DENSE_FLAGS, "--num-layers 32", "--num-layers 3e1"),
    ("flag-value", "--hidden-size", DENSE_FLAGS, "--hidden-size 4096", "--hidden-size 0"),
    ("flag-value", "--normalization", DENSE_FLAGS, "--normalization RMSNorm", "--normalization rmsnorm"),
    ("flag-value", "--lr", DENSE_FLAGS, "--bf16", "--bf16 --lr fast"),
    ("flag-value", "--sequence-parallel", DENSE_FLAGS, "--sequence-parallel", "--sequence-parallel True"),
    ("flag-value", "--recompute-method", DENSE_FLAGS, "--recompute-method block", "--recompute-method blocks"),
    ("unknown-flag", "--num_layers", DENSE_FLAGS, "--num-layers", "--num_layers"),
    ("unknown-flag", "--sequence-paralel", DENSE_FLAGS, "--sequence-parallel", "--sequence-paralel"),
    ("duplicate-flag", "--num-layers", DENSE_FLAGS, "--hidden-size", "--num-layers 16 --hidden-size"),
    # tensor parallelism
    ("sequence-parallel", "--sequence-parallel", DENSE_FLAGS, "-model-parallel-size 2", "-model-parallel-size 1"),
    ("device-product", "--tensor-model-parallel-size", DENSE_FLAGS, "pipeline-model-parallel-size 4",
     "pipeline-model-parallel-size 16 --num-virtual-stages-per-pipeline-rank 1"),
    ("heads", "--tensor-model-parallel-size", DENSE_FLAGS, "--num-attention-heads 32", "--num-attention-heads 31"),
    ("kv-heads", "--tensor-model-parallel-size", DENSE_FLAGS, "--num-query-groups 8", "--num-query-groups 1"),
    ("flag-conflict", "--use-ascend-mc2", DENSE_FLAGS, "--bf16", "--bf16 --use-ascend-mc2 --use-ascend-coc"),
    ("flag-conflict", "--tp-2d", MOE_FLAGS, "--bf16", "--bf16 --tp-2d --tp-x 2 --tp-y 1"),
    # batch
    ("batch-remainder", "--global-batch-size", DENSE_FLAGS, "--global-batch-size 256", "--global-batch-size 255"),
    # sizes
    ("sequence-length", "--max-position-embeddings", DENSE_FLAGS, "--bf16", "--bf16 --max-position-embeddings 2048"),
    ("learning-rate", "--min-lr", DENSE_FLAGS, "--bf16", "--bf16 --lr 1e-4 --min-lr 1e-3"),
    # pipeline
    ("layers-dropped", "--num-layers", DENSE_FLAGS, "--num-layers 32", "--num-layers 30"),
    ("layers-dropped", "--num-layers-per-virtual-pipeline-stage", DENSE_FLAGS, "--bf16",
     "--bf16 --num-layers-per-virtual-pipeline-stage 3"),
    ("layers-dropped", "--num-layer-list", DENSE_FLAGS, "--bf16", "--bf16 --num-layer-list 8,8,16"),
    ("layers-dropped", "--num-layer-list", DENSE_FLAGS, "--bf16", "--bf16 --num-layer-list 8,8,8,9"),
    ("layers-dropped", "--noop-layers", DENSE_FLAGS, "--bf16", "--bf16 --noop-layers 31,32"),
    ("flag-conflict", "--num-layer-list", DENSE_FLAGS, "--bf16",
     "--bf16 --num-layer-list 8,8,8,8 --num-layers-per-virtual-pipeline-stage 4"),
    ("flag-conflict", "--num-virtual-stages-per-pipeline-rank", DENSE_FLAGS, "--bf16",
     "--bf16 --num-layers-per-virtual-pipeline-stage 4 --num-virtual-stages-per-pipeline-rank 2"),
    ("flag-conflict", "--num-layers-per-virtual-pipeline-stage", DENSE_FLAGS, "pipeline-model-parallel-size 4",
     "pipeline-model-parallel-size 1 --num-layers-per-virtual-pipeline-stage 4"),
    ("flag-conflict", "--num-layers-per-virtual-pipeline-stage", DENSE_FLAGS, "pipeline-model-parallel-size 4",
     "pipeline-model-parallel-size 2 --no-overlap-p2p-communication --num-layers-per-virtual-pipeline-stage 4"),
    ("micro-batches-below-stages", "--global-batch-size", DENSE_FLAGS, "--global-batch-size 256",
     "--global-batch-size 252 --num-layers-per-virtual-pipeline-stage 4"),
    # context parallelism
    ("sequence-length", "--seq-length", DENSE_FLAGS, "--seq-length 4096", f"--seq-length 4098 {CP} megatron_cp_algo"),
    ("sequence-length", "--seq-length", DENSE_FLAGS, "--seq-length 4096", f"--seq-length 4095 {CP} ulysses_cp_algo"),
    ("sequence-length", "--seq-length", DENSE_FLAGS, "--seq-length 4096",
     f"--seq-length 4098 {CP} hybrid_cp_algo --ulysses-degree-in-cp 2"),
    ("ulysses-heads", "--context-parallel-algo", DENSE_FLAGS, "--num-attention-heads 32",
     f"--num-attention-heads 30 {CP} ulysses_cp_algo"),
    ("ulysses-heads", "--context-parallel-algo", DENSE_FLAGS, "--num-attention-heads 32",
     f"--num-attention-heads 30 {CP} hybrid_cp_algo --ulysses-degree-in-cp 2"),
    ("context-parallel", "--ulysses-degree-in-cp", DENSE_FLAGS, "--bf16",
     f"--bf16 {CP} hybrid_cp_algo --ulysses-degree-in-cp 3"),
    ("context-parallel", "--context-parallel-algo", DENSE_FLAGS, "--bf16", f"--bf16 {CP} hybrid_cp_algo"),
    ("flag-value", "--context-parallel-algo", DENSE_FLAGS, "--bf16", f"--bf16 {CP} ring"),
    # experts
    ("expert-parallel", "--expert-model-parallel-size", DENSE_FLAGS, "--bf16", "--bf16 --expert-model-parallel-size 2"),
    ("expert-parallel", "--expert-model-parallel-size", MOE_FLAGS, "--num-experts 16", "--num-experts 15"),
    ("expert-parallel", "--expert-model-parallel-size", MOE_FLAGS, "--num-experts 16",
     "--num-experts 18 --moe-tp-extend-ep"),
    ("expert-parallel", "--expert-model-parallel-size", MOE_FLAGS, "--expert-model-parallel-size 2",
     "--expert-model-parallel-size 4"),
    ("sequence-parallel", "--expert-model-parallel-size", MOE_FLAGS, "--sequence-parallel", ""),
    ("flag-conflict", "--moe-alltoall-overlap-comm", MOE_FLAGS, "--expert-model-parallel-size 2",
     "--moe-alltoall-overlap-comm"),
    ("flag-conflict", "--num-experts", MOE_FLAGS, "--disable-bias-linear", ""),
    ("flag-conflict", "--moe-token-dispatcher-type", MOE_FLAGS, "--moe-token-dispatcher-type alltoall",
     "--moe-token-dispatcher-type alltoall_seq --expert-tensor-parallel-size 1"),
    ("flag-conflict", "--moe-token-dispatcher-type", MOE_FLAGS, "--bf16", "--bf16 --moe-tp-extend-ep"),
    ("flag-conflict", "--moe-expert-capacity-factor", MOE_FLAGS, "dispatcher-type alltoall",
     "dispatcher-type allgather --moe-expert-capacity-factor 1.0"),
    ("flag-conflict", "--moe-expert-capacity-factor", MOE_FLAGS, "--moe-token-dispatcher-type alltoall",
     "--moe-expert-capacity-factor 1.0"),
    ("flag-conflict", "--moe-expert-capacity-factor", MOE_FLAGS, "--bf16",
     "--bf16 --moe-expert-capacity-factor 1.0 --moe-router-load-balancing-type sinkhorn"),
    ("flag-conflict", "--moe-pad-expert-input-to-capacity", MOE_FLAGS, "--bf16",
     "--bf16 --moe-pad-expert-input-to-capacity"),
    ("flag-conflict", "--moe-router-group-topk", MOE_FLAGS, "--bf16",
     "--bf16 --moe-router-num-groups 3 --moe-router-group-topk 2"),
    ("flag-conflict", "--moe-fb-overlap", MOE_FLAGS, "--bf16", "--bf16 --moe-fb-overlap"),
    ("flag-conflict", "--moe-fb-overlap", MOE_FLAGS, "--moe-token-dispatcher-type alltoall",
     "--moe-token-dispatcher-type alltoall_seq --moe-fb-overlap --num-layers-per-virtual-pipeline-stage 4"),
    # optimizer
    ("flag-conflict", "--overlap-param-gather", DENSE_FLAGS, "--use-distributed-optimizer", ""),
    ("flag-conflict", "--overlap-param-gather", DENSE_FLAGS, "--overlap-grad-reduce", ""),
    ("flag-conflict", "--reuse-fp32-param", DENSE_FLAGS, "--use-mcore-models", "--reuse-fp32-param"),
    ("flag-conflict", "--swap-optimizer", DENSE_FLAGS, "--use-distributed-optimizer", "--swap-optimizer"),
    ("flag-conflict", "--swap-optimizer-times", DENSE_FLAGS, "--bf16", "--bf16 --swap-optimizer-times 8"),
    ("flag-conflict", "--fp16", DENSE_FLAGS, "--bf16", "--bf16 --fp16"),
    # recompute
    ("flag-conflict", "--recompute-method", DENSE_FLAGS, RECOMPUTE,
     "--recompute-granularity selective --recompute-method block"),
    ("flag-conflict", "--recompute-num-layers", DENSE_FLAGS, RECOMPUTE,
     "--recompute-granularity selective --recompute-num-layers 2"),
    ("flag-conflict", "--recompute-granularity", DENSE_FLAGS, RECOMPUTE,
     "--recompute-granularity full --recompute-num-layers 2"),
    ("flag-conflict", "--recompute-granularity", DENSE_FLAGS, RECOMPUTE,
     "--recompute-granularity full --recompute-method block"),
    ("flag-conflict", "--recompute-method", DENSE_FLAGS, "--recompute-granularity full", ""),
    ("flag-value", "--recompute-modules", DENSE_FLAGS, RECOMPUTE,
     "--recompute-granularity selective --recompute-modules attention"),
    ("flag-conflict", "--recompute-in-bubble", DENSE_FLAGS, "--bf16", "--bf16 --recompute-in-bubble"),
    ("flag-conflict", "--recompute-in-advance", DENSE_FLAGS, "--bf16", "--bf16 --recompute-in-advance"),
    # swap
    ("flag-conflict", "--swap-attention", DENSE_FLAGS, "--bf16", "--bf16 --swap-attention --lora-r 16"),
    ("flag-conflict", "--swap-attention", DENSE_FLAGS, "--bf16",
     "--bf16 --swap-attention --adaptive-recompute-device-swap"),
    ("flag-conflict", "--swap-attention", DENSE_FLAGS, "--bf16",
     "--bf16 --swap-attention --recompute-in-bubble --num-layers-per-virtual-pipeline-stage 4"),
]  # fmt: skip

#: What stops DualPipeV: text added to a script that runs it, and words of the reason.
DUALPIPE = DENSE_FLAGS.replace("--overlap-grad-reduce --overlap-param-gather", "--schedules-method dualpipev")
DUALPIPE_BROKEN = [
    ("pipeline-model-parallel-size 4", "pipeline-model-parallel-size 1", "needs a pipeline"),
    ("--bf16", "--bf16 --num-layers-per-virtual-pipeline-stage 4", "refused with a virtual pipeline"),
    ("--bf16", "--bf16 --context-parallel-size 2", "refused with context parallelism"),
    ("--bf16", "--bf16 --overlap-grad-reduce", "refused with --overlap-grad-reduce"),
    ("--untie-embeddings-and-output-weights", "", "needs --untie-embeddings"),
    ("--bf16", "--bf16 --num-layer-list 8,8,8,8", "refused with --num-layer-list"),
    ("--num-layers 32", "--num-layers 4", "needs 8 layers"),
    ("--global-batch-size 256", "--global-batch-size 12", "needs 7 micro-batches at least; given 6"),
    ("--bf16", "--bf16 --swap-attention", "refused with dualpipev"),
]


def write(folder, flags: str):
    """A launch script with these flags."""
    path = folder / "pretrain.sh"
    path.write_text(SCRIPT.format(flags=" \\\n  ".join(flags.split("\n"))))
    return path


#: Experts whole on the tensor-parallel ranks, in the two ways of MindSpeed-LLM's own scripts.
WHOLE = MOE_FLAGS.replace("dispatcher-type alltoall", "dispatcher-type alltoall --expert-tensor-parallel-size 1")
EXTENDED = MOE_FLAGS.replace(
    "dispatcher-type alltoall", "dispatcher-type alltoall_seq --moe-tp-extend-ep --moe-permutation-async-comm"
)


@pytest.mark.parametrize("flags", [DENSE_FLAGS, MOE_FLAGS, DUALPIPE, WHOLE, EXTENDED])
def test_nothing_is_wrong_before(tmp_path, flags):
    assert check(write(tmp_path, flags)) == ()


#: What some release of the framework takes: text replaced, text put in.
RIGHT = [
    (MOE_FLAGS, "--bf16", "--bf16 --first-k-dense-replace -1 --moe-layer-freq -1"),
    (MOE_FLAGS, "--bf16", "--bf16 --moe-router-enable-expert-bias --moe-router-score-function sqrtsoftplus"),
    (MOE_FLAGS, "--bf16", "--bf16 --moe-router-enable-expert-bias"),
    (MOE_FLAGS, "--bf16", "--bf16 --moe-expert-capacity-factor -1"),
    (MOE_FLAGS, "--bf16", "--bf16 --moe-expert-capacity-factor 1.5 --moe-router-load-balancing-type aux_loss"),
    *((MOE_FLAGS, "--bf16", f"--bf16 --moe-router-load-balancing-type {name}") for name in (
        "softmax_topk", "pai_megatron_aux_loss", "sparsemixer_topk", "group_limited_greedy", "noaux_tc",
    )),
    (DENSE_FLAGS, "--bf16", "--bf16 --o-lora-rank 1024 --index-topk 512 --enable-mhc"),
    (DENSE_FLAGS, "position-embedding-type rope", "position-embedding-type deepseek4"),
    (DENSE_FLAGS, "--num-layers 32", "--num-layers 30 --pipeline-model-parallel-layout 'Et*7|(t*8|)*2,t*7L'"),
    (DENSE_FLAGS, "--num-layers 32",
     "--num-layers 30 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"),
    (DENSE_FLAGS, "--padded-vocab-size 32000", ""),  # the tokenizer's
]  # fmt: skip


@pytest.mark.parametrize(("base", "old", "new"), RIGHT, ids=[f"{i}-{case[2]}" for i, case in enumerate(RIGHT)])
def test_what_some_release_takes_is_no_fault(tmp_path, base, old, new):
    assert old in base
    flags = base.replace(old, new, 1)
    assert check(write(tmp_path, flags)) == ()


@pytest.mark.parametrize(
    ("rule", "flag", "base", "old", "new"),
    BROKEN,
    ids=[f"{i}-{case[0]}-{case[1][2:]}" for i, case in enumerate(BROKEN)],
)
def test_every_broken_rule_is_found_by_name(tmp_path, rule, flag, base, old, new):
    assert old in base
    found = check(write(tmp_path, base.replace(old, new, 1)))
    matching = [
        finding for finding in found if finding.rule == rule and finding.why.startswith((flag, f"there is no {flag}"))
    ]
    assert matching, [str(finding) for finding in found]
    assert all(finding.line > 1 and finding.fix for finding in matching)


@pytest.mark.parametrize(("old", "new", "why"), DUALPIPE_BROKEN)
def test_what_dualpipe_needs(tmp_path, old, new, why):
    assert old in DUALPIPE
    found = check(write(tmp_path, DUALPIPE.replace(old, new, 1)))
    assert any(why in finding.why for finding in found), [str(finding) for finding in found]


def test_variables_that_only_the_shell_knows_are_left_alone(tmp_path):
    assert check(write(tmp_path, DENSE_FLAGS.replace("--num-attention-heads 32", "--num-attention-heads $HEADS"))) == ()


def test_branches_are_no_duplicates(tmp_path):
    path = write(tmp_path, DENSE_FLAGS)
    path.write_text(path.read_text() + "if true; then A='--num-layers 32'; else A='--num-layers 16'; fi\n")
    assert "duplicate-flag" not in {finding.rule for finding in check(path)}


def test_flags_of_others_are_no_typing_errors(tmp_path):
    assert check(write(tmp_path, DENSE_FLAGS + "--my-own-flag 3 --no-save-rng --wandb-project x --rdzv_id 7")) == ()


BF16 = Workload(seq=4096, global_batch=1, params_dtype="bfloat16", master_weights=True, framework="mindspeed")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (plan(small("llama"), tp=16, workload=BF16), "16 does not divide 8 key/value heads"),
        (plan(small("llama"), tp=3, workload=BF16), "3 does not divide 16 heads"),
        (plan(small("llama"), cp=4, seq=4100, workload=replace(BF16, seq=4100)), "4100 tokens do not divide by 8"),
        (plan(small("llama"), tp=8, cp=4, cp_algorithm="ulysses", ulysses_degree=4, workload=BF16), "tp 8 x Ulysses"),
        (plan(small("qwen3_moe"), dp=3, ep=3, workload=BF16), "ep = 3 does not divide 16 experts"),
        (plan(small("qwen3_moe"), dp=2, tp=2, ep=2, sequence_parallel=False, workload=BF16), "--sequence-parallel"),
        (plan(small("llama"), pp=4, vpp=2, micro_batches=6, workload=BF16), "6 micro-batches are no multiple of 4"),
        (plan(small("llama", layer_kinds=(DENSE,) * 6), dp=2, vpp=3, workload=BF16), "needs a pipeline"),
    ],
)  # fmt: skip
def test_no_script_that_breaks_a_rule_is_written(chosen, message):
    with pytest.raises(EmitError, match=f"mindspeed refuses this plan: .*{message}"):
        render(chosen)


def test_a_whole_plan_breaks_nothing():
    values = {"--tensor-model-parallel-size": "8", "--num-attention-heads": "64", "--global-batch-size": "64"}
    assert list(broken_rules(values, 64)) == []
    assert render(plan(find("Qwen3-8B"), dp=8, workload=BF16)).notes == []
