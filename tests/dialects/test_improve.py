"""A user's file with another strategy: it says what it shall say, and nothing else has changed."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings

from planner.cost.strategies import Strategy
from planner.dialects.graph.write import render
from planner.dialects.improve import improve
from planner.dialects.mindspeed.read import Flags
from planner.dialects.mindspeed.rules import broken_rules
from planner.dialects.mindspeed.write import render as render_mindspeed
from planner.dialects.pynative.write import render as render_pynative
from planner.dialects.read import read
from planner.dialects.text.yaml_edit import YamlText
from planner.dialects.text.yaml_read import loads
from planner.errors import EmitError
from planner.model.records import Workload
from tests.dialects import test_mindspeed, test_pynative
from tests.dialects.samples import matrix, plan, small
from tests.dialects.test_mindspeed import SHIPPED_STYLE
from tests.dialects.test_read import DEEPSEEK_STYLE, LLAMA_STYLE, QWEN3_STYLE
from tests.dialects.test_roundtrip import strategies

COMMENTED = QWEN3_STYLE.replace(
    "  model_parallel: 4\n", "  # our cards are in one rack\n  model_parallel: 4    # was 8 until March\n\n"
)


def rewritten(tmp_path, text: str, strategy: Strategy, name: str = "user.yaml", devices: int | None = None) -> str:
    path = tmp_path / name
    path.write_text(text)
    return improve(path, strategy, devices).text


def with_(strategy: Strategy, **changes: object) -> Strategy:
    return replace(strategy, **changes)  # type: ignore[arg-type]


def test_only_the_strategy_changes_and_comments_stay(tmp_path):
    path = tmp_path / "user.yaml"
    path.write_text(COMMENTED)
    old = read(path).strategy
    new = with_(old, dp=2, tp=2, sequence_parallel=True, recompute_full=(4, 2, 0, 0), layers=((16, 16, 16, 16),))
    result = improve(path, new)
    assert result.before.strategy == old
    changed = [line for line in result.difference if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert changed == [
        "-  data_parallel: &dp 1",
        "+  data_parallel: &dp 2",
        "-  model_parallel: 4    # was 8 until March",
        "+  model_parallel: 2    # was 8 until March",
        "-  use_seq_parallel: False",
        "+  use_seq_parallel: True",
        "-recompute_config: {recompute: True, select_recompute: False}",
        "+recompute_config: {recompute: [4, 2, 0, 0], select_recompute: False}",
        "-    offset: [-1, -1, 1, 1]",
        "+    offset: 0",
    ]
    assert "# our cards are in one rack" in result.text
    path.write_text(result.text)
    assert read(path).strategy == new
    assert path.read_text().count("*dp") == 4  # the anchor moved the data set's split along


def test_the_same_strategy_changes_nothing(tmp_path):
    for text in (COMMENTED, LLAMA_STYLE, DEEPSEEK_STYLE):
        path = tmp_path / "user.yaml"
        path.write_text(text)
        result = improve(path, read(path).strategy)
        assert result.text == text
        assert result.difference == ()


def test_chunks_context_and_sharding_are_added(tmp_path):
    old = read_strategy(tmp_path, QWEN3_STYLE)
    new = with_(
        old, dp=2, tp=1, cp=2, vpp=2, schedule="interleaved", layers=((8, 8, 8, 8), (8, 8, 8, 8)), zero_level=2,
        optimizer_shard=2, cp_algorithm="ulysses", ulysses_degree=2, recompute_full=(3, 2, 1, 0),
        recompute_selective=(1, 0, 0, 0),
    )  # fmt: skip
    text = rewritten(tmp_path, QWEN3_STYLE, new)
    assert read_strategy(tmp_path, text) == new
    body = loads(text).root
    assert body["model"]["model_config"]["pp_interleave_num"] == 2
    assert body["parallel"]["pipeline_config"] == {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    assert body["recompute_config"]["recompute"] == [[2, 1, 1, 0], [1, 1, 0, 0]]


def test_chunks_are_taken_back(tmp_path):
    old = read_strategy(tmp_path, DEEPSEEK_STYLE)
    new = with_(old, vpp=1, schedule="1f1b", layers=((8, 8, 8, 8, 8, 8, 8, 5),), swap_optimizer=False)
    text = rewritten(tmp_path, DEEPSEEK_STYLE, new)
    assert read_strategy(tmp_path, text) == new
    assert loads(text).root["parallel"]["pipeline_config"]["pipeline_interleave"] is False


def test_fully_sharded(tmp_path):
    old = read_strategy(tmp_path, render(plan(small("qwen3"), dp=4)).text)
    text = rewritten(tmp_path, render(plan(small("qwen3"), dp=4)).text, with_(old, zero_level=3))
    assert 'optimizer_level: "level3"' in text
    assert "gradient_accumulation_shard" not in text  # MindSpore refuses both together


def read_strategy(tmp_path, text: str, name: str = "user.yaml", devices: int | None = None) -> Strategy:
    path = tmp_path / name
    path.write_text(text)
    return read(path, devices).strategy


@given(strategies(), strategies())
@settings(max_examples=60)
def test_any_strategy_into_any_file(tmp_path_factory, old, new):
    """A file of one layout becomes any other of the same number of layers."""
    layers = old.strategy.layers
    total = sum(map(sum, layers))
    if sum(new.strategy.layers_per_stage) != total:
        new = plan(old.model, dp=new.strategy.dp, tp=2, pp=1, full=(min(total, 2),), micro_batches=3)
    folder = tmp_path_factory.mktemp("improve")
    text = rewritten(folder, render(old).text, new.strategy)
    assert read_strategy(folder, text) == new.strategy


@pytest.mark.parametrize("name", [n for n in matrix() if n.startswith(("llama-", "moe-", "latent-"))])
def test_emitted_files_of_every_family(tmp_path, name):
    written = matrix()[name]
    s = written.strategy
    new = with_(
        s, dp=s.dp * 2, micro_batches=s.micro_batches * 3, micro_batch_size=2, optimizer_shard=s.optimizer_shard
    )
    text = rewritten(tmp_path, render(written).text, new)
    assert read_strategy(tmp_path, text) == new
    assert text.count("\n") - render(written).text.count("\n") <= 3


def test_pynative_files(tmp_path):
    written = test_pynative.MATRIX["uneven-vpp"]
    s = written.strategy
    new = with_(s, dp=2, vpp=1, schedule="1f1b", layers=((4, 4),), recompute_full=(0, 0), recompute_selective=(2, 2),
                tp=2, sequence_parallel=True, optimizer_shard=2)  # fmt: skip
    text = rewritten(tmp_path, render_pynative(written).text, new, devices=written.devices)
    assert read_strategy(tmp_path, text, devices=new.devices) == new
    assert "# Steps and batch" in text


def test_shipped_style_scripts_keep_their_variables(tmp_path):
    old = read_strategy(tmp_path, SHIPPED_STYLE, "user.sh")
    new = with_(old, tp=4, dp=1, recompute_full=(0,) * 4, recompute_selective=(3,) * 4, optimizer_shard=1,
                micro_batches=256, swap_optimizer=True)  # fmt: skip
    text = rewritten(tmp_path, SHIPPED_STYLE, new, "user.sh")
    assert read_strategy(tmp_path, text, "user.sh") == new
    assert "TP=4\n" in text
    assert "--tensor-model-parallel-size ${TP} \\" in text
    assert "--recompute-method" not in text
    assert "NNODES=2   # two servers" in text


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3-moe", "mixtral"])
def test_emitted_scripts(tmp_path, name):
    written = test_mindspeed.MATRIX[name]
    s = written.strategy
    new = with_(s, micro_batches=s.micro_batches * 2, micro_batch_size=2, recompute_full=tuple(s.layers_per_stage),
                recompute_selective=(0,) * s.pp)  # fmt: skip
    text = rewritten(tmp_path, render_mindspeed(written).text, new, "user.sh")
    assert read_strategy(tmp_path, text, "user.sh") == new


EXTENDED = "--moe-tp-extend-ep --moe-permutation-async-comm --moe-token-dispatcher-type alltoall_seq"
SPLIT = "--moe-token-dispatcher-type alltoall_seq"


@pytest.mark.parametrize(
    ("written", "degrees", "flags"),
    [
        # whole experts stay the script's own kind of whole
        (EXTENDED, {"ep": 4}, {"--moe-tp-extend-ep": None, "--expert-model-parallel-size": "2"}),
        (EXTENDED, {"ep": 2, "etp": 2}, {"--expert-model-parallel-size": "2", "--expert-tensor-parallel-size": "2"}),
        (EXTENDED, {"ep": 1}, {"--expert-tensor-parallel-size": "1", "--moe-token-dispatcher-type": "alltoall"}),
        (SPLIT, {"ep": 4}, {"--expert-tensor-parallel-size": "1", "--moe-token-dispatcher-type": "alltoall"}),
        (SPLIT, {"ep": 4, "etp": 2}, {"--moe-token-dispatcher-type": "alltoall_seq"}),
    ],
)
def test_experts_of_a_script_are_rewritten_with_what_belongs_to_them(tmp_path, written, degrees, flags):
    base = plan(small("qwen3_moe"), dp=4, tp=2, ep=2, workload=Workload(seq=4096, global_batch=32))
    text = render_mindspeed(base).text.replace("--moe-token-dispatcher-type alltoall", written)
    text = text.replace("  --expert-tensor-parallel-size 1  # experts stay whole\n", "")
    new = with_(base.strategy, micro_batches=8, **degrees)
    after = rewritten(tmp_path, text, new, "user.sh")
    assert read_strategy(tmp_path, after, "user.sh") == new
    found = Flags(after, "user.sh").values
    assert {name: found.get(name, "absent") for name in flags} == flags
    assert ("--moe-tp-extend-ep" in found) == ("--moe-tp-extend-ep" in flags)
    assert not list(broken_rules(found, 8))


@pytest.mark.parametrize(("moe", "etp", "line"), [
    ("{expert_num: 8, num_experts_chosen: 2}", 1, "expert_model_parallel: 1"),
    ("{expert_num: 8, num_experts_chosen: 2, expert_model_parallel: 1}", 2, "expert_model_parallel: 2"),
])  # fmt: skip
def test_experts_of_a_legacy_file_are_rewritten(tmp_path, moe, etp, line):
    text = render(plan(small("llama"), dp=4, tp=2)).text + f"moe_config: {moe}\n"
    old = read_strategy(tmp_path, text)
    new = with_(old, ep=2, etp=etp)
    after = rewritten(tmp_path, text, new)
    assert line in after
    assert read_strategy(tmp_path, after) == new


def test_more_devices_are_more_nodes(tmp_path):
    old = read_strategy(tmp_path, SHIPPED_STYLE, "user.sh")
    new = with_(old, dp=8, optimizer_shard=8, micro_batches=32)
    text = rewritten(tmp_path, SHIPPED_STYLE, new, "user.sh")
    assert read_strategy(tmp_path, text, "user.sh") == new
    assert "NNODES=8   # two servers" in text


def test_what_cannot_be_done_by_itself_is_said(tmp_path):
    old = read_strategy(tmp_path, SHIPPED_STYLE, "user.sh")
    with pytest.raises(EmitError, match="the strategy places 8 layers, but .* has 64"):
        rewritten(tmp_path, QWEN3_STYLE, plan(small("qwen3")).strategy)
    with pytest.raises(EmitError, match="no schedule 'gpipe'"):
        rewritten(tmp_path, SHIPPED_STYLE, with_(old, schedule="gpipe"), "user.sh")


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("a: 1 # one\nb: 2\n", ("a",), 3, "a: 3 # one\nb: 2\n"),
        ("a: &x 1\nb: *x\n", ("a",), 3, "a: &x 3\nb: *x\n"),
        ("a: {b: 1}  # c\n", ("a", "c"), [1, 2], "a: {b: 1, c: [1, 2]}  # c\n"),
        ("a: {}\n", ("a", "c"), True, "a: {c: True}\n"),
        ("a:\n  b: 1\n\n# end\nz: 1\n", ("a", "c", "d"), 2, "a:\n  b: 1\n  c:\n    d: 2\n\n# end\nz: 1\n"),
        ("a:\n  - 1\n  - 2  # two\nb: 1\n", ("a",), 0, "a:\n  0  # two\nb: 1\n"),
        ("a: [1,\n  2]\nb: 1\n", ("a",), [3], "a: [3]\nb: 1\n"),
        ("a:\nb: 1\n", ("a",), 3, "a: 3\nb: 1\n"),
        ("a: 'x'", ("b",), 1, "a: 'x'\nb: 1"),
    ],
)
def test_single_values(text, path, value, expected):
    edited = YamlText(text, "t")
    edited.set(path, value)
    assert edited.text == expected


def test_removing_a_key():
    edited = YamlText("a:\n  b: 1  # one\n  c: 2\nd: 3\n", "t")
    edited.remove(("a", "b"))
    edited.remove(("a", "x"))
    assert edited.text == "a:\n  c: 2\nd: 3\n"


#: As MindSpeed-LLM's users keep it: variables, a comment in another script, arithmetic with blanks, arrays.
VARIABLES = """#!/bin/bash
NPUS_PER_NODE=8
NNODES=2 #\u4e24\u53f0
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
TP=8
PP='1'
CP=1
CP_TYPE='ulysses_cp_algo'
NUM_LAYERS=32
MBS="1"
GBS=$(( $MBS * 64 ))
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES
"
PARALLEL=(--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --sequence-parallel
  --context-parallel-size ${CP} --context-parallel-algo ${CP_TYPE} --use-distributed-optimizer)
GPT_ARGS="
    --use-mcore-models \\
    --num-layers ${NUM_LAYERS} \\
    --hidden-size 4096 \\
    --ffn-hidden-size 14336 \\
    --num-attention-heads 32 \\
    --group-query-attention \\
    --num-query-groups 8 \\
    --seq-length 4096 \\
    --max-position-embeddings 4096 \\
    --micro-batch-size ${MBS} \\
    --global-batch-size ${GBS} \\
    --padded-vocab-size 128256 \\
    --untie-embeddings-and-output-weights \\
    --disable-bias-linear \\
    --position-embedding-type rope \\
    --normalization RMSNorm \\
    --swiglu \\
    --use-flash-attn \\
    --overlap-grad-reduce \\
    --recompute-granularity full \\
    --recompute-method block \\
    --recompute-num-layers 32 \\
    --bf16
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS "${PARALLEL[@]}" | tee log
"""


def test_a_script_of_variables_changes_where_the_numbers_stand(tmp_path):
    path = tmp_path / "user.sh"
    path.write_text(VARIABLES)
    old = read(path).strategy
    new = with_(
        old, dp=16, tp=2, cp=1, sequence_parallel=True, micro_batches=8, optimizer_shard=16, recompute_full=(4,)
    )
    result = improve(path, new)
    changed = [line.strip() for line in result.difference if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert changed == [
        "-NNODES=2 #\u4e24\u53f0",
        "+NNODES=4 #\u4e24\u53f0",
        "-TP=8",
        "+TP=2",
        "-GBS=$(( $MBS * 64 ))",
        "+GBS=128",
        "-    --recompute-num-layers 32 \\",
        "+    --recompute-num-layers 4 \\",
    ]
    path.write_text(result.text)
    assert read(path).strategy == new == result.strategy


def test_flags_inside_an_array_keep_its_bracket(tmp_path):
    path = tmp_path / "user.sh"
    path.write_text(VARIABLES)
    old = read(path).strategy
    new = with_(old, dp=2, tp=1, pp=4, cp=2, layers=((8,) * 4,), recompute_full=(2,) * 4, recompute_selective=(0,) * 4,
                sequence_parallel=False, zero_level=0, optimizer_shard=1, micro_batches=32)  # fmt: skip
    result = improve(path, new)
    assert "--context-parallel-size ${CP} --context-parallel-algo ${CP_TYPE})" in result.text
    assert "CP_TYPE='megatron_cp_algo'" in result.text
    assert "PP='4'" in result.text
    path.write_text(result.text)
    assert read(path).strategy == new
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def test_one_number_of_recomputed_layers_serves_all_stages(tmp_path):
    path = tmp_path / "user.sh"
    path.write_text(VARIABLES)
    old = read(path).strategy
    new = with_(old, dp=1, tp=2, pp=8, layers=((4,) * 8,), recompute_full=(4, 3, 2, 1, 0, 0, 0, 0), optimizer_shard=1,
                recompute_selective=(0,) * 8, micro_batches=64)  # fmt: skip
    result = improve(path, new)
    assert result.strategy == with_(new, recompute_full=(4,) * 8)


def test_a_script_with_numbers_for_each_node_is_made_again(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(render_mindspeed(test_mindspeed.UNEQUAL).text)
    with pytest.raises(EmitError, match="gives every node numbers of its own; make a new one"):
        improve(path, test_mindspeed.UNEQUAL.strategy)


def test_a_rule_that_the_new_strategy_would_break_is_said(tmp_path):
    path = tmp_path / "user.sh"
    text = VARIABLES.replace("--overlap-grad-reduce", "--moe-alltoall-overlap-comm").replace("PP='1'", "PP='4'")
    path.write_text(text.replace("--bf16", "--bf16 \\\n    --schedules-method dualpipev"))
    old = read(path, 32).strategy
    new = with_(old, dp=2, tp=2, cp=2, pp=4, sequence_parallel=True, optimizer_shard=4, micro_batches=32)
    with pytest.raises(EmitError, match="dualpipev is refused with context parallelism"):
        improve(path, new, 32)


PYNATIVE = """# ours
training:
  local_batch_size: 1
  global_batch_size: 64   # fixed by science
parallelism:
  data_parallel_shard: -1   # all of it
  tensor_parallel: 4
  sequence_parallel: True
recompute:
  mode: 'full'
  full_recompute_layer: ["0-35"]
model:
  model_type: qwen3
  vocab_size: 151936
  hidden_size: 4096
  intermediate_size: 12288
  num_hidden_layers: 36
  num_attention_heads: 32
  num_key_value_heads: 8
  head_dim: 128
  seq_length: 4096
  hidden_act: silu
"""


def test_defaults_are_not_spelled_out_and_lists_of_the_other_mode_go(tmp_path):
    path = tmp_path / "user.yaml"
    path.write_text(PYNATIVE)
    old = read(path, 16).strategy
    new = with_(old, dp=16, tp=1, sequence_parallel=False, optimizer_shard=16, micro_batches=4, recompute_full=(0,),
                recompute_selective=(13,))  # fmt: skip
    result = improve(path, new, 16)
    changed = [line for line in result.difference if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert changed == [
        "-  tensor_parallel: 4",
        "-  sequence_parallel: True",
        "+  tensor_parallel: 1",
        "+  sequence_parallel: False",
        "-  mode: 'full'",
        '-  full_recompute_layer: ["0-35"]',
        '+  mode: "select"',
        "+  select_module:",
        '+    mlp.activation_func: ["0-12"]',
    ]


def test_windows_line_ends_stay(tmp_path):
    path = tmp_path / "user.yaml"
    path.write_bytes(COMMENTED.replace("\n", "\r\n").encode())
    old = read(path).strategy
    new = with_(old, vpp=2, layers=((8,) * 4,) * 2, schedule="interleaved", recompute_full=(1,) * 4)
    text = improve(path, new).text
    assert text.count("\r\n") == text.count("\n") > COMMENTED.count("\n")
    assert text.count("\r") == text.count("\n")
