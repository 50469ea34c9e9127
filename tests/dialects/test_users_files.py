"""Files that users have, and what is right for each: published parameter counts, machines, what is refused."""

from __future__ import annotations

import pytest

from tests.cli.runner import Answer, run

HEAD = """#!/bin/bash
NPUS_PER_NODE={node}
NNODES={nodes}
MODEL="
    --use-mcore-models --use-distributed-optimizer --bf16 --use-flash-attn --disable-bias-linear \\
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --swiglu \\
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --recompute-granularity full \\
    --recompute-method uniform --recompute-num-layers 1 {flags}
"
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py $MODEL
"""
LATENT = (
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 128 --num-attention-heads 64 --hidden-size 6144 --ffn-hidden-size 12288 --num-layers 14 "
    "--padded-vocab-size 131072 --num-experts 64 --moe-router-topk 12 --moe-ffn-hidden-size 2048 --moe-grouped-gemm "
    "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --global-batch-size 64 "
)
#: Qwen3-30B-A3B: 48 layers, all of them with experts.
THIRTY = (
    "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 "
    "--group-query-attention --num-query-groups 4 --qk-layernorm --padded-vocab-size 151936 --num-experts 128 "
    "--moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--moe-router-load-balancing-type aux_loss --first-k-dense-replace -1 --moe-layer-freq -1 "
    "--pipeline-model-parallel-size 2 --expert-model-parallel-size 8 --global-batch-size 128"
)
SEVEN = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --padded-vocab-size 32000 "
    "--sequence-parallel --global-batch-size 32 --tensor-model-parallel-size 16"
)
LEGACY = """run_mode: train
use_parallel: True
runner_config: {{epochs: 1, batch_size: 1, sink_mode: True, sink_size: 1}}
optimizer: {{type: AdamW, betas: [0.9, 0.95], eps: 1.e-8}}
trainer: {{type: CausalLanguageModelingTrainer}}
parallel: {{parallel_mode: {mode}, full_batch: True, enable_parallel_optimizer: True}}
parallel_config: {{data_parallel: 1, model_parallel: 8, pipeline_stage: 1, micro_batch_num: 1, use_seq_parallel: True,
                  vocab_emb_dp: False}}
recompute_config: {{recompute: True}}
context: {{mode: 0, device_target: Ascend, max_device_memory: "58GB"}}
model:
  arch: {{type: {arch}}}
  model_config: {{type: {kind}, batch_size: 1, seq_length: 4096, hidden_size: 4096, num_layers: 32, num_heads: 32,
                 vocab_size: 32000, multiple_of: 256, rms_norm_eps: 1.0e-5, compute_dtype: bfloat16,
                 param_init_type: float32, use_flash_attention: True}}
"""


def answers(tmp_path, name: str, text: str) -> tuple[Answer, Answer]:
    """Of estimate and of check."""
    path = tmp_path / name
    path.write_text(text)
    return run(f"estimate --from {path}"), run(f"check {path}")


def script(flags: str, node: int = 8, nodes: int = 2) -> str:
    return HEAD.format(flags=flags, node=node, nodes=nodes)


def test_no_dense_layer_is_said_with_minus_one(tmp_path):
    """Published: 30.5 B parameters."""
    estimate, check = answers(tmp_path, "a.sh", script(THIRTY))
    assert "30,532,122,624 parameters" in estimate.out
    assert (estimate.code, check.code) == (0, 0)
    assert "nothing found.\n" in check.out


def test_a_machine_of_sixteen_devices(tmp_path):
    estimate, check = answers(tmp_path, "a.sh", script(SEVEN, node=16, nodes=1))
    assert (estimate.code, check.code) == (0, 0)
    assert "16 x 910C on 1 node" in estimate.out
    assert "16 processes are started a node" in " ".join(estimate.out.split())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--zero-expert-num 32 --zero-expert-type identity", "--zero-expert-num 32"),
        ("--spec mindspeed_llm.tasks.models.spec.longcat_spec layer_spec", "--spec"),
        (
            "--o-lora-rank 1024 --moe-router-score-function sqrtsoftplus --moe-router-enable-expert-bias "
            "--moe-router-load-balancing-type softmax_topk",
            "--o-lora-rank 1024",
        ),
    ],
)
def test_networks_that_are_not_known(tmp_path, flags, reason):
    estimate, check = answers(tmp_path, "a.sh", script(LATENT + flags))
    assert (estimate.code, estimate.out) == (2, "")
    assert f"not reliable because of {reason}" in estimate.err
    assert check.code == 0
    assert f"Not judged: {reason}" in check.out
    assert "nothing found in what is read" in check.out


def test_a_launcher_of_another_tool(tmp_path):
    text = "#!/bin/bash\nexport CARDS=8\nsometool train --model my-model --tensor 4 --pipeline 2 --batch 1\n"
    estimate, check = answers(tmp_path, "a.sh", text)
    assert (estimate.code, check.code, check.out) == (2, 2, "")
    assert "is not understood" in check.err


def test_a_list_of_variables_is_understood(tmp_path):
    assert answers(tmp_path, "a.sh", "export HCCL_BUFFSIZE=200\nexport MS_ALLOC_CONF=enable_vmm:true\n")[1].code == 0
    assert answers(tmp_path, "a.sh", "export HCCL_EXEC_TIMEOUT=0\n")[1].code == 4


def test_a_layout_that_mindspore_searches(tmp_path):
    text = LEGACY.format(mode=2, arch="LlamaForCausalLM", kind="LlamaConfig")
    estimate, check = answers(tmp_path, "a.yaml", text)
    assert estimate.code == 2
    assert "the degrees are only hints" in estimate.err
    assert "the degrees are only hints" in " ".join(check.out.split())
    assert run(f"improve {tmp_path}/a.yaml").code == 2


@pytest.mark.parametrize(("kind", "code"), [("LlamaConfig", 0), ("TelechatConfig", 0), ("GPT2Config", 2)])
def test_configuration_classes(tmp_path, kind, code):
    text = LEGACY.format(mode=1, arch="LlamaForCausalLM", kind=kind)
    estimate, check = answers(tmp_path, "a.yaml", text)
    assert (estimate.code, check.code) == (code, code)
    assert ("is read as the network it is built from" in " ".join(estimate.out.split())) is (kind == "TelechatConfig")
    if code:
        assert "the legacy dialect is read for LlamaConfig" in check.err
