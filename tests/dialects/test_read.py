"""Reading what others wrote: the frameworks' own style, absent keys, and files that mean harm."""

from __future__ import annotations

import pytest

from planner.cluster.load import hardware
from planner.cluster.records import Cluster
from planner.dialects.graph.read import read_graph
from planner.dialects.read import read
from planner.dialects.text.yaml_read import loads
from planner.errors import SpecError
from planner.legality.apply import violations
from planner.legality.context import Context
from planner.model.load import find
from planner.model.operators import parameter_count

#: In the style of the files that MindFormers ships: anchors, defaults left out, HF names.
QWEN3_STYLE = """
use_parallel: True
use_legacy: False
trainer: {type: CausalLanguageModelingTrainer, model_name: 'Qwen3'}
runner_config: {epochs: 2, batch_size: 1, gradient_accumulation_steps: 1}
optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1.e-8}
context:
  mode: 0
  max_device_memory: "58GB"
parallel_config:
  data_parallel: &dp 1
  model_parallel: 4
  pipeline_stage: 4
  micro_batch_num: 4
  use_seq_parallel: False
parallel:
  parallel_mode: 1
  dataset_strategy: [[*dp, 1], [*dp, 1], [*dp, 1], [*dp, 1]]
  enable_parallel_optimizer: False
recompute_config: {recompute: True, select_recompute: False}
model:
  model_config:
    vocab_size: 151936
    hidden_size: 5120
    intermediate_size: 25600
    num_hidden_layers: 64
    num_attention_heads: 64
    num_key_value_heads: 8
    head_dim: 128
    seq_length: 4096
    tie_word_embeddings: False
    offset: [-1, -1, 1, 1]
    model_type: "qwen3"
    architectures: ["Qwen3ForCausalLM"]
"""
DEEPSEEK_STYLE = """
use_parallel: True
use_legacy: False
optimizer: {type: AdamW, swap: True}
context: {max_device_memory: "56GB"}
parallel_config: {data_parallel: 4, model_parallel: 8, pipeline_stage: 8, expert_parallel: 32, micro_batch_num: 32,
                  use_seq_parallel: True}
parallel:
  enable_parallel_optimizer: True
  pipeline_config: {pipeline_interleave: True, pipeline_scheduler: seqpipe}
  parallel_optimizer_config: {gradient_accumulation_shard: False, optimizer_weight_shard_size: 256}
recompute_config: {recompute: True}
model:
  model_config:
    model_type: deepseek_v3
    offset: [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, -2]]
    pp_interleave_num: 2
    seq_length: 4096
    num_nextn_predict_layers: 1
"""
LLAMA_STYLE = """
use_parallel: True
runner_config: {batch_size: 1}
parallel_config: {data_parallel: 2, model_parallel: 8, pipeline_stage: 4, micro_batch_num: 16, use_seq_parallel: True}
parallel: {parallel_mode: 1, full_batch: True, enable_parallel_optimizer: True}
recompute_config: {recompute: [10, 8, 6, 4], select_recompute: False}
model:
  arch: {type: LlamaForCausalLM}
  model_config: {type: LlamaConfig, seq_length: 4096, hidden_size: 8192, num_layers: 80, num_heads: 64, n_kv_heads: 8,
                 vocab_size: 128256, multiple_of: 256, ffn_dim_multiplier: 1.3, offset: 0, param_init_type: float32}
"""


def changed(text: str, *pairs: tuple[str, str]):
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return read_graph(loads(text, source="user.yaml"))


def test_sequence_parallel_of_a_legacy_file_without_tensor_parallelism_is_off():
    """As in MindFormers' finetune_glm4_9b.yaml, which trains."""
    assert changed(LLAMA_STYLE).strategy.sequence_parallel
    assert not changed(LLAMA_STYLE, ("model_parallel: 8", "model_parallel: 1")).strategy.sequence_parallel


def test_qwen3_as_shipped():
    result = read_graph(loads(QWEN3_STYLE))
    assert parameter_count(result.model) == 32_762_123_264
    assert result.strategy.layers == ((15, 15, 17, 17),)
    assert result.strategy.recompute_full == (15, 15, 17, 17)
    assert (result.strategy.zero_level, result.strategy.optimizer_shard) == (0, 1)
    assert result.workload.global_batch == 4
    assert result.memory_limit_bytes == 58 * 2**30
    assert result.unread == ()


def test_deepseek_v3_as_shipped_takes_its_shape_from_the_class_defaults():
    result = read_graph(loads(DEEPSEEK_STYLE))
    assert parameter_count(result.model) == 682_636_472_320
    assert result.strategy.layers == ((4,) * 8, (4, 4, 4, 4, 4, 4, 4, 1))
    assert result.strategy.swap_optimizer
    assert result.strategy.schedule == "interleaved"  # seqpipe with one slice of a sequence
    assert result.strategy.optimizer_shard == 4  # "at most 256" of the 4 ranks that hold one copy
    assert result.strategy.devices == 256


def test_llama_with_computed_mlp_width():
    result = read_graph(loads(LLAMA_STYLE))
    assert result.model.ffn == 28672
    assert parameter_count(result.model) == 70_553_706_496
    assert result.workload.framework == "mindformers-legacy"
    assert result.strategy.recompute_full == (10, 8, 6, 4)


@pytest.mark.parametrize(
    ("line", "whole"), [("", True), (", vocab_emb_dp: True", True), (", vocab_emb_dp: False", False)]
)
def test_the_whole_vocabulary_is_the_default_of_legacy_files(line: str, whole: bool):
    text = LLAMA_STYLE.replace("use_seq_parallel: True", f"use_seq_parallel: True{line}")
    assert ("whole-vocabulary" in read_graph(loads(text)).workload.switches) == whole
    mcore = QWEN3_STYLE.replace("use_seq_parallel: False", "vocab_emb_dp: True")
    assert "whole-vocabulary" not in read_graph(loads(mcore)).workload.switches


LEGACY_MOE = LLAMA_STYLE.replace("model_parallel: 8,", "model_parallel: 4, expert_parallel: 2,") + (
    "moe_config: {expert_num: 8, num_experts_chosen: 2}\n"
)


@pytest.mark.parametrize(
    ("added", "etp"),
    [("", 4), (", expert_model_parallel: 1", 1), (", expert_model_parallel: 4", 4), (", use_gmm: True", 1)],
)
def test_experts_of_a_legacy_file_are_split_as_its_network_splits_them(added: str, etp: int):
    result = changed(LEGACY_MOE, ("num_experts_chosen: 2", f"num_experts_chosen: 2{added}"))
    assert (result.strategy.tp, result.strategy.ep, result.strategy.etp) == (4, 2, etp)
    assert read_graph(loads(QWEN3_STYLE)).strategy.etp == 1


def test_shared_experts_of_a_legacy_file_count():
    """57.41e9 parameters of a published 57B-A14B: eight shared experts of the width of the 64 routed ones."""
    sizes = "hidden_size: 3584, num_layers: 28, num_heads: 28, n_kv_heads: 4, vocab_size: 151936, "
    sizes += "intermediate_size: 2560, qkv_has_bias: True, offset: 0}"
    head = LEGACY_MOE[: LEGACY_MOE.index("  model_config:")].replace("[10, 8, 6, 4]", "True")
    text = f"{head}  model_config: {{type: LlamaConfig, seq_length: 4096, {sizes}\n"
    text += "moe_config: {expert_num: 64, num_experts_chosen: 8, shared_expert_num: 8}\n"
    assert parameter_count(read_graph(loads(text)).model) == 57_408_558_592


def test_a_legacy_mixture_without_sequence_parallelism_is_legal():
    result = changed(LEGACY_MOE, ("use_seq_parallel: True", "use_seq_parallel: False"))
    cluster = Cluster(hardware=hardware("910b3"), devices=32)
    context = Context(model=result.model, workload=result.workload, cluster=cluster)
    assert not violations(context, result.strategy)


def test_llama_2_mlp_width_without_multiplier():
    result = changed(LLAMA_STYLE, ("ffn_dim_multiplier: 1.3, ", ""), ("hidden_size: 8192", "hidden_size: 4096"))
    assert result.model.ffn == 11008  # Llama-2-7B


@pytest.mark.parametrize(
    ("text", "old", "new", "unread"),
    [
        (QWEN3_STYLE, "use_seq_parallel: False", "use_seq_parallel: False\n  seq_split_num: 2", "seq_split_num"),
        (QWEN3_STYLE, "micro_batch_num: 4", "micro_batch_num: 4\n  wizardry: 1", "parallel_config.wizardry"),
        (QWEN3_STYLE, "offset: [-1", "pp_interleave_num: 2\n    offset: [-1", "pipeline_interleave is not True"),
        (QWEN3_STYLE, "use_parallel: True", "use_parallel: False", "would run on one device"),
        (LLAMA_STYLE, "select_recompute: False", "select_recompute: ['feed_forward\\.mul']", "operator patterns"),
        (LLAMA_STYLE, "batch_size: 1}", "batch_size: 1, gradient_accumulation_steps: 4}", "ignored with a pipeline"),
        (LLAMA_STYLE, "batch_size: 1}", "batch_size: 1, batch_size: 1}", "given twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_listed(text, old, new, unread):
    assert any(unread in line for line in changed(text, (old, new)).unread)


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (QWEN3_STYLE, "offset: [-1, -1, 1, 1]", "offset: [0, 0, 1, 0]", "adds up to 1, but 64 layers .* leave 0"),
        (QWEN3_STYLE, "offset: [-1, -1, 1, 1]", "offset: [1, -1]", "write 0, a list of 4 numbers"),
        (QWEN3_STYLE, "offset: [-1, -1, 1, 1]", "offset: [-17, 17, 0, 0]", "fewer than 0 layers"),
        (QWEN3_STYLE, "data_parallel: &dp 1", "data_parallel: &dp 0", "line 11: .*data_parallel is 0"),
        (QWEN3_STYLE, "model_parallel: 4", "model_parallel: '4'", "model_parallel is '4'"),
        (QWEN3_STYLE, "model_parallel: 4", "model_parallel: True", "model_parallel is True"),
        (QWEN3_STYLE, 'model_type: "qwen3"', 'model_type: "qwen2"', "MindFormers trains qwen3, qwen3_moe"),
        (QWEN3_STYLE, 'model_type: "qwen3"', "no_type: 1", "model_type is missing"),
        (QWEN3_STYLE, "recompute: True", "recompute: [1, 2]", "has .*|needs|write True"),
        (QWEN3_STYLE, "recompute: True", "recompute: [1, -2, 0, 0]", "cannot be negative"),
        (QWEN3_STYLE, "recompute: True", "recompute: {a: 1}", "write True, False, a list of 4"),
        (QWEN3_STYLE, '"58GB"', '"58 parsecs"', "unknown unit"),
        (LLAMA_STYLE, "type: LlamaConfig", "type: GLM2Config", "read for LlamaConfig, TelechatConfig"),
        (LLAMA_STYLE, "full_batch: True", "full_batch: True, pipeline_config: {pipeline_scheduler: dualpipe}",
         "pipeline_scheduler 'dualpipe' does not exist"),
        (LLAMA_STYLE, "model_parallel: 8", "context_parallel_algo: ring, model_parallel: 8", "legal: colossalai_cp"),
        (LLAMA_STYLE, "model:\n", "model: 5\nmodle:\n", "expected a section"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_with_their_place(text, old, new, message):
    with pytest.raises(SpecError, match=message):
        changed(text, (old, new))


def test_ulysses_without_its_degree_runs_as_ring_in_mcore():
    result = changed(
        QWEN3_STYLE,
        ("micro_batch_num: 4", "micro_batch_num: 4\n  context_parallel: 2\n  context_parallel_algo: ulysses_cp"),
    )
    assert (result.strategy.cp_algorithm, result.strategy.ulysses_degree) == ("ring", 1)
    assert any("no effect in mcore" in line for line in result.unread)


def test_legacy_ulysses_needs_no_degree():
    result = changed(
        LLAMA_STYLE, ("data_parallel: 2", "data_parallel: 2, context_parallel: 2, context_parallel_algo: ulysses_cp")
    )
    assert (result.strategy.cp_algorithm, result.strategy.ulysses_degree) == ("ulysses", 2)


def test_shape_in_a_hugging_face_folder(tmp_path):
    (tmp_path / "hf").mkdir()
    config = '{"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, '
    config += '"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936}'
    (tmp_path / "hf" / "config.json").write_text(config)
    path = tmp_path / "finetune.yaml"
    path.write_text(
        "use_legacy: False\npretrained_model_dir: hf\nuse_parallel: True\n"
        "parallel_config: {data_parallel: 2, model_parallel: 2, use_seq_parallel: True}\n"
        "model: {model_config: {seq_length: 4096}}\n"
    )
    assert parameter_count(read(path).model) == parameter_count(find("Qwen3-8B")) == 8_190_735_360


def test_missing_hugging_face_folder():
    with pytest.raises(SpecError, match="pretrained_model_dir '/path/to/hf', where no config.json is found"):
        read_graph(loads("use_legacy: False\npretrained_model_dir: /path/to/hf\nparallel_config: {}\n"))
    sizes = "hidden_size: 1792, num_hidden_layers: 16, num_attention_heads: 8"  # but not of which family
    text = f"use_legacy: False\npretrained_model_dir: /path/to/hf\nmodel: {{model_config: {{{sizes}}}}}\n"
    with pytest.raises(SpecError, match="pretrained_model_dir '/path/to/hf', where no config.json is found"):
        read_graph(loads(text))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (BOMB.encode(), "aliases expand to more than"),
        (b"a: &a [*a]\n", "an alias contains itself"),
        (b"a: " + b"[" * 300 + b"]" * 300, "nested more than"),
        (b"a: " + b"{b: " * 5000, "not valid YAML|nested"),
        (b"parallel_config:\n\tdata_parallel: 1\n", "line 2, column 1: .*tab"),
        (b"a: !!python/object/apply:os.system ['id']\n", "tags that build objects are not read"),
        (b"a: [1, 2\nb: 3\n", "not valid YAML"),
        (b"a: 'open\n", "not valid YAML"),
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n- b\n", "holds no mapping"),
        (b"a: 1\n--- \nb: 2\n", "not valid YAML"),
        (b"a: 2024-13-45\n", "a value cannot be read"),
        (b"\xff\xfea\x00:\x00", "UTF-16"),
        (b"a: caf\xe9\n", "line 1: not UTF-8"),
        (b"a: \x00\n", "binary file"),
        (b"# x\n" * 600_000, "at most 2097152"),
        (b"lr: 1\nsteps: 2\n", "is no MindFormers file"),
        (b'{"model": 1}', "no field 'schema'"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, data, message):
    path = tmp_path / "user.yaml"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=message):
        read(path)


def test_byte_order_mark_is_harmless(tmp_path):
    path = tmp_path / "user.yaml"
    path.write_text(QWEN3_STYLE, encoding="utf-8-sig")
    assert read(path).strategy.devices == 16


def test_missing_file(tmp_path):
    with pytest.raises(SpecError, match="does not exist"):
        read(tmp_path / "user.yaml")


def test_sizes_beyond_any_machine_are_refused():
    with pytest.raises(SpecError, match=r"seq_length.* no size or degree is above 1,000,000,000,000"):
        changed(LLAMA_STYLE, ("seq_length: 4096", "seq_length: 99999999999999999999"))


def test_gathers_are_counted_by_stage_and_in_early_releases_of_legacy_networks():
    """mcore repeats the gathers it names; a legacy file without use_legacy is for releases up to 1.5, and says so."""
    named = ("select_recompute: False", "select_recompute: False, select_comm_recompute: [1, 0, 0, 0]")
    mcore = changed(QWEN3_STYLE, ("recompute: True", "recompute: False"), named).workload
    assert {"gathers-alone", "gathers=1,0,0,0"} <= set(mcore.switches)
    early = changed(LLAMA_STYLE, ("select_recompute: False", "select_recompute: True")).workload
    assert "selective-legacy" in early.switches
    assert "release up to 1.5" in early.notes[0]
    late = changed(LLAMA_STYLE, ("select_recompute: False", "select_recompute: True"),
                   ("use_parallel: True", "use_parallel: True\nuse_legacy: True")).workload  # fmt: skip
    assert "selective-legacy" not in late.switches
    assert late.notes == ()


@pytest.mark.parametrize(
    ("old", "new", "switch"),
    [
        ("use_parallel: True", "use_parallel: True\nmicro_batch_interleave_num: 2", "batch-parts=2"),
        ("micro_batch_num: 16", "micro_batch_num: 16, seq_split_num: 8", "sequence-pieces=8"),
        ("offset: 0", "offset: 0, use_flash_attention: True, use_ring_attention: True", "ring-attention"),
    ],
)
def test_settings_of_a_legacy_file_become_switches(old: str, new: str, switch: str):
    found = changed(LLAMA_STYLE, (old, new)).workload
    assert switch in found.switches
    assert ("full-attention-mask" in found.switches) == (switch != "ring-attention")
