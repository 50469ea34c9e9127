"""The check finds every fault of a broken file by name, and nothing in files that are whole."""

from __future__ import annotations

import pytest

from planner.dialects.check import check
from planner.dialects.records import Settings
from planner.dialects.write import emit
from planner.errors import SpecError
from planner.model.records import Workload
from tests.dialects import test_mindspeed, test_pynative
from tests.dialects.samples import golden, matrix, plan, small, wide_values

QWEN = plan(small("qwen3"), dp=2, tp=2, pp=2)
VPP = plan(small("qwen3"), dp=2, tp=2, pp=2, vpp=2, full=(3, 1))
ZBV = plan(small("qwen3"), pp=2, vpp=2, schedule="zero_bubble_v", full=(3, 1))
LLAMA = plan(small("llama"), dp=2, tp=2, pp=2)
LLAMA_VPP = plan(small("llama"), dp=2, tp=2, pp=2, vpp=2)
FLAT = plan(small("qwen3"), dp=2, tp=2)
LATENT = plan(small("deepseek_v3"), dp=4, tp=2, pp=2, ep=4)
RING = plan(small("qwen3"), dp=2, cp=2, tp=2)
CP = plan(wide_values(small("deepseek_v3")), dp=2, cp=2, tp=2, cp_algorithm="ulysses", ulysses_degree=2)

#: Fault -> (plan, file, text as emitted, text as broken).
BROKEN = {
    "unknown-key": [
        (QWEN, "pretrain.yaml", "  use_seq_parallel: True", "  use_sequence_parallel: True"),
        (QWEN, "pretrain.yaml", "recompute_config:", "recompute_cfg:"),
        (QWEN, "pretrain.yaml", "    head_dim: 64", "    head_size: 64"),
        (QWEN, "pretrain.yaml", "  gradients_mean: False", "  gradient_mean: False"),
        (LLAMA, "pretrain.yaml", "    n_kv_heads: 8", "    num_kv_heads: 8"),
        (LLAMA, "pretrain.yaml", "    parallel_optimizer_threshold: 64", "    parallel_threshold: 64"),
        (LLAMA, "pretrain.yaml", "  max_call_depth: 10000", "  max_call_dept: 10000"),
    ],
    "duplicate-key": [(QWEN, "pretrain.yaml", "  model_parallel: 2", "  model_parallel: 2\n  model_parallel: 2")],
    "missing-section": [
        (QWEN, "pretrain.yaml", "trainer:\n", "metric:\n"),
        (QWEN, "pretrain.yaml", "  model_config:\n", "  config:\n"),
    ],
    "unreal-name": [
        (QWEN, "pretrain.yaml", "  gradients_mean: False", "  communication_fusion: True"),
        (QWEN, "pretrain.yaml", "  gradients_mean: False", "  tensor_parallel_mode: 1D"),
        (QWEN, "pretrain.yaml", "  parallel_mode: 1 ", "  parallel_mode: pipeline_parallel "),
        (QWEN, "train.py", "Trainer(config).train()", "Trainer(config).network.set_grad_recompute()"),
        (QWEN, "train.py", "import argparse", "import argparse\nfrom mindspore import HeteroConfig"),
    ],
    "degree": [
        (QWEN, "pretrain.yaml", "  model_parallel: 2", '  model_parallel: "2"'),
        (QWEN, "pretrain.yaml", "  micro_batch_num: 8", "  micro_batch_num: 0"),
        (QWEN, "pretrain.yaml", "  use_seq_parallel: True", "  use_seq_parallel: 1"),
        (QWEN, "pretrain.yaml", "recompute_slice_activation: False", 'recompute_slice_activation: "no"'),
        (QWEN, "pretrain.yaml", "  gradients_mean: False", '  gradients_mean: "false"'),
        (QWEN, "pretrain.yaml", "  batch_size: 1 ", "  batch_size: 0 "),
        (QWEN, "pretrain.yaml", "  weight_decay: 0.1", '  weight_decay: 0.1\n  swap: "yes"'),
    ],
    "missing-type": [
        (QWEN, "pretrain.yaml", '  type: "AdamW"', '  kind: "AdamW"'),
        (QWEN, "pretrain.yaml", '  - type: "MFLossMonitor"', '  - kind: "MFLossMonitor"'),
    ],
    "model-value": [
        (QWEN, "pretrain.yaml", 'position_embedding_type: "rope"', 'position_embedding_type: "ropes"')
    ],
    "mlp-width": [(QWEN, "pretrain.yaml", "intermediate_size: 3072", "intermediate_size: 3071")],
    "vocabulary": [(QWEN, "pretrain.yaml", "vocab_size: 32000", "vocab_size: 32001")],
    "use-legacy": [
        (QWEN, "pretrain.yaml", "use_legacy: False", "# use_legacy"),
        (LLAMA, "pretrain.yaml", "use_legacy: True", "use_legacy: False"),
    ],
    "no-training-class": [(QWEN, "pretrain.yaml", '"qwen3"', '"qwen2"')],
    "number-as-text": [
        (QWEN, "pretrain.yaml", "eps: 1.0e-8", "eps: 1e-8"),
        (QWEN, "pretrain.yaml", "learning_rate: 0.0001", "learning_rate: 1e-4"),
        (QWEN, "pretrain.yaml", "hidden_size: 1024", 'hidden_size: "1024"'),
        (LLAMA, "pretrain.yaml", "theta: 10000.0", "theta: 5e5"),
    ],
    "dropout-type": [
        (QWEN, "pretrain.yaml", "hidden_dropout: 0.0", "hidden_dropout: 0"),
        (QWEN, "pretrain.yaml", "hidden_dropout: 0.0", "hidden_dropout: 1.0"),
    ],
    "data-type": [
        (QWEN, "pretrain.yaml", 'compute_dtype: "bfloat16"', 'compute_dtype: "bfloat"'),
        (QWEN, "pretrain.yaml", 'params_dtype: "float32"', 'params_dtype: "float16"'),
        (LLAMA, "pretrain.yaml", 'param_init_type: "float32"', 'param_init_type: "fp16"'),
        (LLAMA, "pretrain.yaml", 'compute_dtype: "bfloat16"', 'compute_dtype: "bf16"'),
        (LLAMA, "pretrain.yaml", 'rotary_dtype: "float32"', 'rotary_dtype: "fp32"'),
    ],
    "loss-scale": [(QWEN, "pretrain.yaml", 'compute_dtype: "bfloat16"', 'compute_dtype: "float16"')],
    "run-mode": [
        (QWEN, "pretrain.yaml", 'run_mode: "train"', 'run_mode: "training"'),
        (QWEN, "pretrain.yaml", "  mode: 0 ", "  mode: 1 "),
        (QWEN, "pretrain.yaml", '  device_target: "Ascend"', '  device_target: "GPU"'),
        (QWEN, "pretrain.yaml", '    jit_level: "O0"', '    jit_level: "O3"'),
        (LLAMA, "pretrain.yaml", "  parallel_mode: 1 ", "  parallel_mode: 0 "),
    ],
    "class-name": [
        (QWEN, "pretrain.yaml", '  type: "AdamW"', '  type: "Adamw"'),
        (QWEN, "pretrain.yaml", "CausalLanguageModelingTrainer", "CausalLanguageModelTrainer"),
        (QWEN, "pretrain.yaml", "CosineWithWarmUpLR", "CosineWithWarmupLR"),
        (QWEN, "pretrain.yaml", '  type: "AdamW"', '  type: "AdmaW"'),
        (QWEN, "pretrain.yaml", "MFLossMonitor", "MFLosMonitor"),
        (QWEN, "pretrain.yaml", "BlendedMegatronDatasetDataLoader", "BlendedMegatronDataSetDataLoader"),
        (LLAMA, "pretrain.yaml", "LlamaForCausalLM", "LlamaForCasualLM"),
        (LLAMA, "pretrain.yaml", "MindDataset", "MindDataSet"),
    ],
    "parallel-off": [(QWEN, "pretrain.yaml", "use_parallel: True", "use_parallel: False")],
    "learning-rate": [
        (QWEN, "pretrain.yaml", "warmup_ratio: 0.01", "warmup_ratio: 5"),
        (QWEN, "pretrain.yaml", "lr_end: 1.0e-5", "lr_end: 1.0e-3"),
    ],
    "micro-batches-below-stages": [(QWEN, "pretrain.yaml", "micro_batch_num: 8", "micro_batch_num: 1")],
    "batch-ignored": [
        (QWEN, "pretrain.yaml", "gradient_accumulation_steps: 1", "gradient_accumulation_steps: 4"),
        (FLAT, "pretrain.yaml", "micro_batch_num: 1", "micro_batch_num: 8"),
    ],
    "too-few-samples": [(QWEN, "pretrain.yaml", "sizes: [160000,", "sizes: [15,")],
    "legacy-only": [
        (QWEN, "pretrain.yaml", "micro_batch_interleave_num: 1", "micro_batch_interleave_num: 2"),
        (QWEN, "pretrain.yaml", "  vocab_emb_dp: False", "  seq_split_num: 2"),
        (LATENT, "pretrain.yaml", "recompute_config:", "moe_config:\n  expert_num: 16\nrecompute_config:"),
    ],
    "offset-sum": [
        (QWEN, "pretrain.yaml", "offset: 0", "offset: [1, 0]"),
        (QWEN, "pretrain.yaml", "offset: 0", "offset: [1, 0, -1]"),
        (QWEN, "pretrain.yaml", "num_hidden_layers: 8", "num_hidden_layers: 9"),
    ],
    "offset-nesting": [(VPP, "pretrain.yaml", "offset: 0", "offset: [1, -1]")],
    "layers-below-stages": [(VPP, "pretrain.yaml", "num_hidden_layers: 8", "num_hidden_layers: 3")],
    "interleave-one-place": [
        (VPP, "pretrain.yaml", "    pipeline_interleave: True", "    pipeline_interleave: False"),
        (VPP, "pretrain.yaml", "    pp_interleave_num: 2", "    # pp_interleave_num: 2"),
        (QWEN, "pretrain.yaml", "    offset: 0", "    pp_interleave_num: 2\n    offset: 0"),
    ],
    "pipeline-config": [(VPP, "pretrain.yaml", '    pipeline_scheduler: "1f1b"\n', "")],
    "pipeline-scheduler": [(VPP, "pretrain.yaml", '"1f1b"', '"dualpipe"')],
    "zero-bubble-v": [
        (ZBV, "pretrain.yaml", "micro_batch_num: 8", "micro_batch_num: 3"),
        (ZBV, "pretrain.yaml", "recompute: [[2, 1], [1, 0]]", "recompute: [3, 1]"),
        (ZBV, "pretrain.yaml", "pp_interleave_num: 2", "pp_interleave_num: 4"),
        (LLAMA_VPP, "pretrain.yaml", '"1f1b"', '"zero_bubble_v"'),
    ],
    "heads": [(QWEN, "pretrain.yaml", "  model_parallel: 2", "  model_parallel: 3")],
    "kv-heads": [(QWEN, "pretrain.yaml", "  model_parallel: 2", "  model_parallel: 16")],
    "sequence-parallel": [
        (FLAT, "pretrain.yaml", "  model_parallel: 2", "  model_parallel: 1"),
        (LATENT, "pretrain.yaml", "use_seq_parallel: True", "use_seq_parallel: False"),
    ],
    "sequence-length": [
        (QWEN, "pretrain.yaml", "    seq_length: 4096\n    max", "    seq_length: 4095\n    max"),
        (QWEN, "pretrain.yaml", "      seq_length: 4096", "      seq_length: 8192"),
    ],
    "context-parallel": [
        (CP, "pretrain.yaml", '"ulysses_cp"', '"ring"'),
        (CP, "pretrain.yaml", '"ulysses_cp"', '"hybrid_cp"'),
        (CP, "pretrain.yaml", "ulysses_degree_in_cp: 2", "ulysses_degree_in_cp: 3"),
        (CP, "pretrain.yaml", "use_flash_attention: True", "use_flash_attention: False"),
    ],
    "ulysses-degree": [(CP, "pretrain.yaml", "  ulysses_degree_in_cp: 2", "  ulysses_degree_in_cp: 1")],
    "ulysses-broken": [
        (RING, "pretrain.yaml", '"colossalai_cp"', '"ulysses_cp"'),
        (CP, "pretrain.yaml", "v_head_dim: 96", "v_head_dim: 64"),
        (RING, "pretrain.yaml", '"colossalai_cp"', '"colossalai_cp"\n  ulysses_degree_in_cp: 2'),
    ],
    "ulysses-heads": [(CP, "pretrain.yaml", "num_attention_heads: 16", "num_attention_heads: 6")],
    "expert-parallel": [
        (LATENT, "pretrain.yaml", "expert_parallel: 4", "expert_parallel: 3"),
        (LATENT, "pretrain.yaml", "expert_parallel: 4", "expert_parallel: 16"),
        (LATENT, "pretrain.yaml", '"alltoall"', '"alltoall_deredundency"'),
        (LATENT, "pretrain.yaml", "num_experts_per_tok: 4", "num_experts_per_tok: 17"),
        (QWEN, "pretrain.yaml", "  model_parallel: 2", "  model_parallel: 2\n  expert_parallel: 2"),
    ],
    "mtp-modules": [(LATENT, "pretrain.yaml", "num_nextn_predict_layers: 1", "num_nextn_predict_layers: 2")],
    "recompute-form": [
        (QWEN, "pretrain.yaml", "  recompute: False", '  recompute: "all"'),
        (QWEN, "pretrain.yaml", "  recompute: False", "  recompute: [1, 2, 3]"),
        (QWEN, "pretrain.yaml", "  select_recompute: False", "  select_recompute: [1, -1]"),
        (QWEN, "pretrain.yaml", "  select_recompute: False\n", "  select_comm_recompute: [1, 0, 0]\n"),
    ],
    "slice-activation": [
        (QWEN, "pretrain.yaml", "recompute_slice_activation: False", "recompute_slice_activation: True")
    ],
    "optimizer-shard": [
        (LATENT, "pretrain.yaml", "    parallel_opt", "    optimizer_weight_shard_size: 3\n    parallel_opt"),
        (QWEN, "pretrain.yaml", "    parallel_opt", '    optimizer_level: "level3"\n    parallel_opt'),
    ],
    "auto-pipeline": [(QWEN, "pretrain.yaml", "  gradients_mean: False", "  auto_pipeline: True")],
    "dataset-strategy": [
        (QWEN, "pretrain.yaml", "[[*dp, 1], [*dp, 1], [*dp, 1], [*dp, 1]]", "[[4, 1], [4, 1], [4, 1], [4, 1]]"),
        (QWEN, "pretrain.yaml", "[[*dp, 1], [*dp, 1], [*dp, 1], [*dp, 1]]", "[[*dp, 1]]"),
        (QWEN, "pretrain.yaml", "[[*dp, 1], [*dp, 1], [*dp, 1], [*dp, 1]]", "full_batch"),
    ],
    "memory-limit": [
        (QWEN, "pretrain.yaml", 'max_device_memory: "58GB"', 'max_device_memory: "62GB"'),
        (QWEN, "pretrain.yaml", 'mempool_block_size: "58GB"', 'mempool_block_size: "59GB"'),
        (QWEN, "pretrain.yaml", 'max_device_memory: "58GB"', 'max_device_memory: "58 parsec"'),
        (QWEN, "pretrain.yaml", 'max_device_memory: "58GB"', 'max_device_memory: "58G"'),
        (QWEN, "pretrain.yaml", 'max_device_memory: "58GB"', 'max_device_memory: "58GiB"'),
        (QWEN, "pretrain.yaml", 'max_device_memory: "58GB"', "max_device_memory: 58"),
    ],
    "device-product": [
        (QWEN, "pretrain.yaml", "  pipeline_stage: 2", "  pipeline_stage: 4"),
        (QWEN, "launch.sh", "--worker_num=8", "--worker_num=16"),
    ],
    "plan-differs": [(QWEN, "pretrain.yaml", "micro_batch_num: 8", "micro_batch_num: 4")],
    "hccl-buffer": [(QWEN, "launch.sh", "HCCL_BUFFSIZE:-", "HCCL_BUFFSIZE:-0x")],
    "hccl-timeout": [(QWEN, "launch.sh", "HCCL_EXEC_TIMEOUT:-7200", "HCCL_EXEC_TIMEOUT:-2h")],
    "allocator": [(QWEN, "launch.sh", "enable_vmm:true", "enable_vmn:true")],
    "simulation": [(QWEN, "launch.sh", "export GLOG_v=", "export MS_SIMULATION_LEVEL=1\nexport GLOG_v=")],
    "torch-variable": [(QWEN, "launch.sh", "export GLOG_v=", "export PYTORCH_NPU_ALLOC_CONF=x\nexport GLOG_v=")],
    "msrun-option": [
        (QWEN, "launch.sh", "--join=True", "--joined=True"),
        (QWEN, "launch.sh", "--join=True", "--join=true"),
        (QWEN, "launch.sh", "--bind_core=True", "--bind_core=yes"),
        (QWEN, "launch.sh", '"${MASTER_PORT:-8118}"', "80"),
    ],
    "msrun-launcher": [
        (QWEN, "launch.sh", "exec msrun", 'bash msrun_launcher.sh "run_mindformer.py --config a.yaml" 8 8\nexec msrun')
    ],
    "flag-ignored": [
        (QWEN, "launch.sh", "exec msrun",
         'bash msrun_launcher.sh "run_mindformer.py --config a.yaml --mode 1 --run_mode train" 8\nexec msrun')
    ],
    "msrun-workers": [(plan(small("qwen3"), dp=16), "launch.sh", "--worker_num=16", "--worker_num=20")],
    "python-syntax": [(QWEN, "train.py", "def main()", "def main(")],
}  # fmt: skip
CASES = [(rule, i, *case) for rule, cases in BROKEN.items() for i, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("rule", "chosen", "file", "old", "new"),
    [pytest.param(rule, *case, id=f"{rule}-{i}") for rule, i, *case in CASES],
)
def test_every_fault_is_found_by_name(tmp_path, rule, chosen, file, old, new):
    emit(chosen, tmp_path / "out")
    path = tmp_path / "out" / file
    text = path.read_text()
    assert old in text, "the fixture no longer breaks anything"
    assert check(tmp_path / "out") == ()
    path.write_text(text.replace(old, new, 1))
    found = [finding for finding in check(tmp_path / "out") if finding.rule == rule]
    assert found, check(tmp_path / "out")
    for finding in found:
        assert finding.file == str(path)
        assert finding.why
        assert finding.fix


HEADER = """import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.parallel.auto_parallel import AutoParallel
"""
UNREAL_PROGRAMS = [
    *(f"ms.set_auto_parallel_context({key}=True)" for key in (
        "tensor_parallel_mode", "tensor_parallel_split_num", "high_dimension_tensor_parallel", "communication_fusion",
        "mixed_precision", "communication_subgraph_reuse", "pipeline_interleave",
    )),
    *(f"ms.set_context({key}=True)" for key in (
        "enable_heterogeneous_memory", "memory_offload", "communication_subgraph_reuse"
    )),
    "mode = ms.ParallelMode.PIPELINE_PARALLEL", "mode = ms.ParallelMode.PipelineParallel",
    "ms.set_auto_parallel_context(parallel_mode='pipeline_parallel')",
    "ms.HeteroConfig()", "ms.Trainer()", "ms.train.Trainer()", "from mindspore.train import Trainer",
    "nn.Cell().set_grad_recompute(True)", "net.flatten_weights()", "nn.ClipByValue(1)", "nn.ClipByGlobalNorm()",
    "from mindspore.amp import autocast", "ds.prefetch(2)", "ds.GeneratorDataset(x).prefetch(2)",
    "nn.transformer.TransformerOpParallelConfig()",
    "from mindspore.nn.transformer import TransformerOpParallelConfig",
]  # fmt: skip


@pytest.mark.parametrize("statement", UNREAL_PROGRAMS)
def test_every_name_that_does_not_exist_is_found(tmp_path, statement):
    (tmp_path / "train.py").write_text(HEADER + statement + "\n")
    found = check(tmp_path / "train.py")
    assert [(f.rule, f.line) for f in found] == [("unreal-name", 5)]
    assert "exists in neither MindSpore nor MindFormers" in found[0].why


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev", "zbv", "interleaved"])
def test_schedulers_that_do_not_exist(tmp_path, name):
    lines = [
        f"AutoParallel(net).pipeline(stages=2, scheduler={name!r})",
        f"ms.set_auto_parallel_context(pipeline_config={{'pipeline_scheduler': {name!r}}})",
    ]
    (tmp_path / "train.py").write_text(HEADER + "\n".join(lines) + "\n")
    assert [(f.rule, f.line) for f in check(tmp_path / "train.py")] == [("pipeline-scheduler", n) for n in (5, 6)]


def test_a_torch_variable_in_a_mindspore_program(tmp_path):
    (tmp_path / "train.py").write_text(HEADER + "import os\nos.environ['PYTORCH_NPU_ALLOC_CONF'] = 'x'\n")
    assert [f.rule for f in check(tmp_path / "train.py")] == ["torch-variable"]


REAL_PROGRAMS = [
    "import torch\nwith torch.autocast('npu'):\n    pass\n",
    "from mindformers import Trainer\nTrainer('a').train()\n",
    HEADER + "class ClipByGlobalNorm(nn.Cell):\n    pass\nclip = ClipByGlobalNorm()\n",
    HEADER + "run(mixed_precision=True)\n",
    HEADER + "AutoParallel(net).pipeline(stages=2, scheduler='zero_bubble_v')\nnet.recompute()\n",
    HEADER + "from mindformers.modules.transformer import TransformerOpParallelConfig\n",
]


@pytest.mark.parametrize("text", REAL_PROGRAMS)
def test_real_names_are_left_alone(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert check(tmp_path / "train.py") == ()


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ("'run_mindformer.py --config a'", []),
        ("task 8", []),
        ("task 8 8", [2]),
        ("run_mindformer.py --config a.yaml 8", [2]),
        ('"a" 8 8 $IP 8118 0', []),
        ('"a" 8 8 1.2.3.4 8118 \\\n  0 log False 7200 # x', []),
        ('"a" 8 8 1.2.3.4 \\\n  8118 0 log # x', [2]),
        ('"a" "$@"', []),
        ('"a" 8 8 | tee log', [2]),
        ("'open", []),
    ],
)
def test_what_the_launcher_takes(tmp_path, arguments, lines):
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\nbash scripts/msrun_launcher.sh {arguments}\n")
    found = [f.line for f in check(tmp_path / "run.sh") if f.rule == "msrun-launcher"]
    assert found == lines


def test_a_finding_names_its_line(tmp_path):
    emit(QWEN, tmp_path / "out")
    path = tmp_path / "out" / "pretrain.yaml"
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  micro_batch_num"))
    lines[at] = "  micro_batch_num: 1"
    path.write_text("\n".join(lines))
    (finding,) = [f for f in check(path) if f.rule == "micro-batches-below-stages"]
    assert finding.line == at + 1
    assert str(finding).startswith(f"{path}:{at + 1}: micro-batches-below-stages: 1 micro-batches do not fill 2 stages")
    assert finding.fix == "Use at least 2."


def test_there_are_enough_broken_fixtures():
    assert len(CASES) >= 60
    assert len(BROKEN) >= 25


@pytest.mark.parametrize("name", matrix())
def test_whole_mindformers_sets_have_no_fault(tmp_path, name):
    emit(matrix()[name], tmp_path / "out")
    assert check(tmp_path / "out") == ()


@pytest.mark.parametrize("name", golden())
def test_nothing_is_found_with_hosts_and_data_given(tmp_path, name):
    chosen = golden()[name]
    settings = Settings(data_path="/data/set", hosts=tuple(f"n{i}" for i in range(chosen.nodes)))
    emit(chosen, tmp_path / "out", settings=settings)
    assert check(tmp_path / "out") == ()


@pytest.mark.parametrize("name", test_pynative.MATRIX)
def test_whole_pynative_sets_have_no_fault(tmp_path, name):
    emit(test_pynative.MATRIX[name], tmp_path / "out", target="mindformers-pynative")
    assert check(tmp_path / "out") == ()


@pytest.mark.parametrize("name", test_mindspeed.MATRIX)
def test_whole_mindspeed_sets_have_no_fault(tmp_path, name):
    emit(test_mindspeed.MATRIX[name], tmp_path / "out", target="mindspeed")
    assert check(tmp_path / "out") == ()


PYNATIVE = plan(
    small("deepseek_v3"), dp=4, tp=2, pp=2, ep=8, layers=((5, 3),), zero_level=3, full=(2, 1),
    workload=Workload(seq=4096, global_batch=1, params_dtype="bfloat16", framework="mindformers-pynative"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("unknown-key", "parallelism:\n", "parallel:\n  data_parallel: 4\nparallelism:\n"),
        ("unknown-key", "  tensor_parallel: 2", "  tensor_paralel: 2"),
        ("layers-dropped", '["0-4", "5-7"]', '["0-4", "6-7"]'),
        ("layers-dropped", '["0-4", "5-7"]', '["0-4", "5-6"]'),
        ("layout", '["0-4", "5-7"]', "null"),
        ("batch-remainder", "global_batch_size: 32", "global_batch_size: 31"),
        ("device-product", "  tensor_parallel: 2", "  tensor_parallel: 6"),
        ("sequence-parallel", "sequence_parallel: True", "sequence_parallel: False"),
        ("expert-parallel", "expert_parallel: 8", "expert_parallel: 16"),
        ("expert-parallel", '"alltoall"', '"alltoall_deredundancy"\n  npu_nums_per_device: 16'),
        ("degree", "  tensor_parallel: 2", '  tensor_parallel: "2"'),
        ("heads", "  tensor_parallel: 2", "  tensor_parallel: 3"),
        ("optimizer-shard", "  tensor_parallel: 2", "  dense_fsdp_shard_size: 3\n  tensor_parallel: 2"),
        ("context-parallel", "  context_parallel: 1", "  context_parallel: 2\n  context_parallel_method: ring"),
        (
            "ulysses-degree",
            "  context_parallel: 1",
            "  context_parallel: 4\n  context_parallel_method: ulysses\n  ulysses_degree_in_cp: 2",
        ),
        ("ulysses-degree", "  context_parallel: 1", "  context_parallel: 4\n  context_parallel_method: hybrid"),
        ("sequence-length", "  context_parallel: 1", "  context_parallel: 3"),
        ("swap-pipeline", "context:\n", "swap:\n  enable: True\ncontext:\n"),
        ("hidden-act", 'hidden_act: "silu"', 'hidden_act: "swiglu"'),
        ("pipeline-scheduler", 'pipeline_parallel_schedule: "1f1b"', 'pipeline_parallel_schedule: "dualpipe"'),
        ("recompute-form", 'mode: "full"', "mode: null"),
        ("run-mode", "  mode: 1 ", "  mode: 0 "),
        ("recompute-form", 'mode: "full"', 'mode: "some"'),
        ("version-dependent", 'mode: "full"', 'mode: "full"\n  exclude_op: ["matmul"]'),
        ("duplicate-key", "  deterministic: False", "  deterministic: False\n  seed: 42"),
    ],
)
def test_faults_of_pynative_files(tmp_path, rule, old, new):
    emit(PYNATIVE, tmp_path / "out", target="mindformers-pynative")
    path = tmp_path / "out" / "pretrain.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert rule in {finding.rule for finding in check(tmp_path / "out")}


SPEED = test_mindspeed.MATRIX["qwen3"]


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("layers-dropped", "--num-layers 64", "--num-layers 62"),
        ("heads", "--tensor-model-parallel-size 4", "--tensor-model-parallel-size 3"),
        ("sequence-length", "--seq-length 4096", "--seq-length 4098"),
        ("flag-value", "--context-parallel-algo megatron_cp_algo", "--context-parallel-algo ring"),
        ("flag-conflict", "--use-distributed-optimizer", "--use-ascend-mc2 --use-ascend-coc"),
        ("flag-conflict", "--recompute-granularity full", "--recompute-granularity selective"),
        ("flag-conflict", "--overlap-grad-reduce", "--overlap-grad-reduce --schedules-method dualpipev"),
        ("flag-value", "--global-batch-size 8", "--global-batch-size 0"),
        ("layout", "--seq-length 4096", ""),
        ("unused-flags", "exec torchrun", 'MORE="--fp8-format e4m3 --seed 3"\nexec torchrun'),
        ("hccl-timeout", "HCCL_EXEC_TIMEOUT:-7200", "HCCL_EXEC_TIMEOUT:-0"),
        ("hccl-timeout", "HCCL_CONNECT_TIMEOUT:-7200", "HCCL_CONNECT_TIMEOUT:-60"),
        ("variable-name", "export HCCL_EXEC_TIMEOUT", "export HCCL_EXCE_TIMEOUT=7200\nexport HCCL_EXEC_TIMEOUT"),
        ("variable-name", "export HCCL_BUFFSIZE", "export HCCL_BUFSIZE=200\nexport HCCL_BUFFSIZE"),
        ("variable-name", "export HCCL_BUFFSIZE", "export CUDA_DEVICE_MAX_CONECTIONS=1\nexport HCCL_BUFFSIZE"),
        ("vocab", "--padded-vocab-size 151936", "--padded-vocab-size 151935"),
    ],
)
def test_faults_of_mindspeed_scripts(tmp_path, rule, old, new):
    emit(SPEED, tmp_path / "out", target="mindspeed")
    path = tmp_path / "out" / "pretrain.sh"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert rule in {finding.rule for finding in check(path)}


def test_a_torch_variable_belongs_in_a_torch_job(tmp_path):
    emit(SPEED, tmp_path / "out", target="mindspeed")
    assert "PYTORCH_NPU_ALLOC_CONF" in (tmp_path / "out" / "pretrain.sh").read_text()
    assert check(tmp_path / "out" / "pretrain.sh") == ()


@pytest.mark.parametrize("name", ["notes.txt", "missing"])
def test_what_cannot_be_checked(tmp_path, name):
    (tmp_path / "notes.txt").write_text("steps: 3\n")
    with pytest.raises(SpecError):
        check(tmp_path / name)
    with pytest.raises(SpecError, match="holds no file to check"):
        check(tmp_path)


def test_a_file_for_prediction_has_no_batch(tmp_path):
    emit(FLAT, tmp_path / "out")
    path = tmp_path / "out" / "pretrain.yaml"
    text = path.read_text().replace("micro_batch_num: 1", "micro_batch_num: 8")
    path.write_text(text)
    assert "batch-ignored" in {finding.rule for finding in check(path)}
    assert 'run_mode: "train"' in text
    path.write_text(text.replace('run_mode: "train"', 'run_mode: "predict"'))
    assert "batch-ignored" not in {finding.rule for finding in check(path)}


@pytest.mark.parametrize(
    ("mode", "line", "found"),
    [
        ("train", '  enable_compile_cache: True\n  compile_cache_path: "./cache"\n', []),
        ("predict", '  jit_level: "O0"\n  infer_boost: "on"\n', []),
        ("train", '  jit_level: "O0"\n', ["unknown-key"]),  # jit_config there
    ],
)
def test_context_keys_that_the_frameworks_take(tmp_path, mode, line, found):
    emit(QWEN, tmp_path / "out")
    path = tmp_path / "out" / "pretrain.yaml"
    text = path.read_text().replace('run_mode: "train"', f'run_mode: "{mode}"')
    path.write_text(text.replace("\ncontext:\n", f"\ncontext:\n{line}", 1))
    assert [finding.rule for finding in check(path)] == found
