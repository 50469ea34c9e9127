"""What a setting that is not read does to the answer: it decides it, shifts the time, or nothing."""

from __future__ import annotations

import json

import pytest

from planner import inputs
from planner.dialects.findings import known_keys
from planner.dialects.graph.read import read_graph
from planner.dialects.graph.weights import WEIGHTS as KEYS
from planner.dialects.mindspeed.read import read_mindspeed
from planner.dialects.mindspeed.weights import WEIGHTS as FLAGS
from planner.dialects.text.yaml_read import loads
from planner.dialects.weights import Reason
from planner.errors import SpecError
from tests.cli.runner import run
from tests.dialects.test_megatron_rules import DENSE_FLAGS, MOE_FLAGS, SCRIPT
from tests.dialects.test_read import LLAMA_STYLE, QWEN3_STYLE


def script(flags: str, base: str = DENSE_FLAGS) -> str:
    return SCRIPT.format(flags=" \\\n  ".join([*base.strip().split("\n"), flags]))


#: Flags -> part of the reason.
DECIDE = {
    "--fp8-format hybrid": "8 bits",
    "--swap-attention": "host",
    "--optimizer-cpu-offload": "host",
    "--full-attention-interval 4 --linear-num-key-heads 16": "linear attention",
    "--hybrid-override-pattern M*M*": "linear attention",
    "--enable-dsa-indexer --index-topk 2048": "sparse attention",
    "--num-zero-experts 256": "pass tokens through",
    "--zero-expert-num 32 --zero-expert-type identity": "pass tokens through",
    "--spec mindspeed_llm.tasks.models.spec.longcat_spec layer_spec": "layers of a module of its own",
    "--o-lora-rank 1024": "low-rank output",
    "--enable-mhc --hc-mult 4": "residual streams",
    "--use-torch-fsdp2": "data parallelism",
    "--use-precision-aware-optimizer": "types of gradients",
    "--stage dpo": "another kind of training",
    "--tp-2d --tp-x 2 --tp-y 1": "two dimensions",
    "--twin-attention-layers 14": "speaks of attention",
    "--shared-expert-copies 2": "speaks of shared",
    "--moe-expert-capacity-factor 1.5": "places for tokens",
}
#: Flags -> part of the note.
SHIFT = {
    "--use-ascend-coc": "communication",
    "--tp-comm-overlap": "communication",
    "--moe-permute-fusion": "exchanges tokens",
    "--schedules-method dualpipev": "pipeline",
    "--neat-pack": "packed samples",
    "--reset-attention-mask": "packed samples",
    "--no-pad-to-seq-lengths": "samples shorter",
    "--sliding-window-size 128": "within a window",
    "--recompute-norm": "memory is at most this",
    "--npu-deterministic": "operators",
    "--wizardry 3": "not read",
}
HARMLESS = (
    "--log-throughput --initial-loss-scale 4096 --handler-name GeneralPretrainHandler --model-type-hf qwen3 "
    "--tokenizer-not-use-fast --enable-hf2mg-convert --ckpt-format torch --no-shared-storage --rope-scaling-factor 40 "
    "--beta-fast 32 --seq-aux --distributed-timeout-minutes 120 --manual-gc --exit-on-missing-checkpoint --finetune "
    "--stage sft --is-instruction-dataset --prompt-type qwen --transformer-impl local --norm-topk-prob "
    "--spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec --lr-wsd-decay-iters 10 --no-load-optim "
    "--moe-router-dtype fp32 --use-fused-moe-token-permute-and-unpermute --gemm-gradient-accumulation-fusion"
)


@pytest.mark.parametrize(("flags", "why"), DECIDE.items())
def test_flags_that_decide_the_answer(flags, why):
    found = read_mindspeed(script(flags, MOE_FLAGS))
    assert len(found.unreliable) == 1
    assert why in found.unreliable[0]
    given = [flag.split("=")[0] for flag in flags.split() if flag.startswith("--")]
    assert all(f"{flag}" in found.unreliable[0] for flag in given if not flag.startswith(("--tp-x", "--tp-y")))


@pytest.mark.parametrize(("flags", "why"), SHIFT.items())
def test_flags_that_shift_the_time(flags, why):
    found = read_mindspeed(script(flags, MOE_FLAGS))
    assert found.unreliable == ()
    assert len(found.unread) == 1
    assert flags.split()[0] in found.unread[0]
    assert why in found.unread[0]


def test_harmless_flags_are_not_mentioned():
    found = read_mindspeed(script(HARMLESS, MOE_FLAGS))
    assert (found.unread, found.unreliable) == ((), ())


def test_each_setting_is_named_once_with_its_line():
    found = read_mindspeed(script("--fp8-format hybrid --fp8-recipe delayed --fp8-format hybrid"))
    assert found.unreliable == ("--fp8-format hybrid (line 9), --fp8-recipe delayed (line 9): types of 8 bits or less",)


def test_flags_of_a_variable_that_no_command_uses_do_not_count():
    unused = 'SWAP="--swap-attention --num-layers-per-virtual-pipeline-stage 2"\n'
    text = script("").replace("torchrun", unused + "torchrun")
    assert read_mindspeed(text).strategy.vpp == 1
    assert read_mindspeed(text).unreliable == ()
    assert read_mindspeed(text.replace("pretrain_gpt.py", "pretrain_gpt.py $SWAP")).strategy.vpp == 4
    assert "host" in read_mindspeed(text.replace("pretrain_gpt.py", "pretrain_gpt.py ${SWAP}")).unreliable[0]


@pytest.mark.parametrize(
    ("text", "old", "new", "why"),
    [
        (LLAMA_STYLE, "parallel_mode: 1", "parallel_mode: 2", "MindSpore searches the layout itself"),
        (LLAMA_STYLE, "parallel_mode: 1", "parallel_mode: auto_parallel", "MindSpore searches the layout itself"),
        (QWEN3_STYLE, "parallel_mode: 1", "parallel_mode: 1\n  auto_pipeline: True", "places the layers itself"),
        (QWEN3_STYLE, "use_parallel: True", "use_parallel: True\nbase_config: other.yaml", "another file"),
        (QWEN3_STYLE, "use_parallel: True", "use_parallel: True\nswap_config: {swap: True}", "on the host"),
        (LLAMA_STYLE, "offset: 0", "offset: 0, quantization_config: {bits: 8}", "8 bits"),
        (QWEN3_STYLE, "    head_dim", "    dsa_indexer_n_heads: 32\n    head_dim", "sparse attention"),
        (QWEN3_STYLE, "    head_dim", "    layer_types: [linear_attention]\n    head_dim", "other attention"),
        (QWEN3_STYLE, "    head_dim", "    gated_linear_unit: False\n    head_dim", "without gate"),
        (QWEN3_STYLE, "    head_dim", "    twin_attention: True\n    head_dim", "speaks of attention"),
    ],
)  # fmt: skip
def test_keys_that_decide_the_answer(text, old, new, why):
    assert old in text
    before, found = (read_graph(loads(one, source="user.yaml")) for one in (text, text.replace(old, new, 1)))
    assert before.unreliable == ()
    assert len(found.unreliable) == 1
    assert why in found.unreliable[0]


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (LLAMA_STYLE, "offset: 0", "offset: 0, rotary_pct: 1.0, emb_dropout_prob: 0.0, kv_channels: 128"),  # ignored
        (LLAMA_STYLE, "parallel_mode: 1", "parallel_mode: semi_auto_parallel"),
        (QWEN3_STYLE, "use_parallel: True", "use_parallel: True\nswap_config: {swap: False}"),
        (QWEN3_STYLE, "    head_dim", "    gated_linear_unit: True\n    use_sliding_window: False\n    head_dim"),
        (QWEN3_STYLE, "    head_dim", "    layer_types: [full_attention]\n    decoder_sparse_step: 1\n    head_dim"),
    ],
)
def test_keys_that_change_nothing(text, old, new):
    assert old in text
    found = read_graph(loads(text.replace(old, new, 1), source="user.yaml"))
    assert (found.unread, found.unreliable) == ((), ())


def test_every_key_of_the_mcore_networks_has_a_weight_or_is_read():
    """None of the keys that the framework knows may be weighed by the words of its name."""
    guessed = {key for key in known_keys()["legacy"] if KEYS.of(key)[1].startswith("its name")}
    assert not guessed & {"quantization_config", "pet_config", "quant_config"}
    assert all(not FLAGS.of(name)[1].startswith("its name") for name in ("fp8-format", "lora-r", "swap-attention"))


def test_an_answer_is_refused_unless_the_settings_are_accepted(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(script("--swap-attention --use-ascend-coc"))
    with pytest.raises(SpecError, match=r"not reliable because of --swap-attention \(line 9\).*--accept-unread"):
        inputs.read(path)
    unread = inputs.read(path, accept_unread=True)[2]
    assert [isinstance(line, Reason) for line in unread] == [True, False]


@pytest.mark.parametrize("command", ["estimate --from", "explain --from", "improve"])
def test_commands_that_read_a_file(tmp_path, command):
    path = tmp_path / "pretrain.sh"
    path.write_text(script("--swap-attention"))
    answer = run(f"{command} {path}")
    assert (answer.code, answer.out) == (2, "")
    assert "not reliable because of --swap-attention" in answer.err
    assert run(f"{command} {path} --accept-unread").code == 0


def test_accepted_settings_stand_in_the_answer(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(script("--swap-attention --use-ascend-coc"))
    assert "Not reliable because of --swap-attention" in run(f"estimate --from {path} --accept-unread").out
    document = json.loads(run(f"estimate --from {path} --accept-unread --json").out)
    assert [line.split()[0] for line in document["unreliable"]] == ["--swap-attention"]
    assert [line.split()[0] for line in document["unread"]] == ["--use-ascend-coc"]
