"""Loose inputs become whole records: the machine of a script, vocabularies, shapes that are left to the framework."""

from __future__ import annotations

import pytest

from planner import inputs
from planner.dialects.mindspeed.read import read_mindspeed
from planner.errors import SpecError
from planner.model.operators import parameter_count
from planner.model.records import DENSE, MOE
from tests.dialects.test_megatron_rules import DENSE_FLAGS, MOE_FLAGS
from tests.dialects.test_weights import script


def written(tmp_path, text: str):
    path = tmp_path / "pretrain.sh"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("per_node", "hardware", "profile", "note"),
    [
        (8, None, "910B3", ""),
        (16, None, "910C", "machine 910C, because 16 processes are started a node"),
        (16, "910b2", "910B2", "16 processes are started a node, but 910B2 has 8 devices a node"),
        (16, "910c", "910C", ""),
        (4, None, "910B3", "4 processes are started a node, but 910B3 has 8 devices a node"),
    ],
)
def test_the_machine_is_the_one_of_the_script(tmp_path, per_node, hardware, profile, note):
    text = script("").replace("--nproc_per_node 8 --nnodes 2", f"--nproc_per_node {per_node} --nnodes {32 // per_node}")
    request, _, unread = inputs.read(written(tmp_path, text), hardware)
    assert request.cluster.hardware.name == profile
    assert [line.startswith(note) for line in unread] == ([True] if note else [])


def test_a_part_of_one_node_needs_no_word(tmp_path):
    text = script("").replace("--nproc_per_node 8 --nnodes 2", "--nproc_per_node 4 --nnodes 1")
    text = text.replace("-model-parallel-size 4", "-model-parallel-size 2")
    assert inputs.read(written(tmp_path, text))[2] == ()


def test_tensor_parallelism_over_sixteen_devices_of_a_node(tmp_path):
    text = script("").replace("--nproc_per_node 8 --nnodes 2", "--nproc_per_node 16 --nnodes 1")
    text = text.replace("tensor-model-parallel-size 2", "tensor-model-parallel-size 16")
    text = text.replace("pipeline-model-parallel-size 4", "pipeline-model-parallel-size 1")
    text = text.replace("--group-query-attention --num-query-groups 8", "")
    request, strategy, _ = inputs.read(written(tmp_path, text))
    assert (strategy.tp, request.context.node) == (16, 16)


@pytest.mark.parametrize(
    ("given", "option", "rows"),
    [
        ("--padded-vocab-size 32000", None, 32000),
        ("--vocab-size 32000", None, 32000),
        ("--vocab-size 50257", None, 50432),  # 128 x tp 2 = 256
        ("--vocab-size 50257 --make-vocab-size-divisible-by 1", None, 50258),
        ("", 50257, 50432),
        ("", 32000, 32000),
    ],
)
def test_vocabularies_are_padded_as_megatron_pads_them(given, option, rows):
    text = script(given).replace("--padded-vocab-size 32000 --swiglu", "--swiglu")
    assert read_mindspeed(text, vocab=option).model.vocab == rows


def test_a_vocabulary_of_the_tokenizer_is_asked_for(tmp_path):
    path = written(tmp_path, script("").replace("--padded-vocab-size 32000", ""))
    with pytest.raises(SpecError, match="comes from the tokenizer; give its number of tokens with --vocab N"):
        inputs.read(path)
    assert inputs.read(path, vocab=32000)[0].model.vocab == 32000
    yaml = tmp_path / "pretrain.yaml"
    yaml.write_text("trainer: {}\n")
    with pytest.raises(SpecError, match="--vocab is for launch scripts"):
        inputs.read(yaml, vocab=32000)


def test_a_model_gets_the_vocabulary_that_its_framework_makes():
    """GPT-3 with 50257 tokens runs with 51200 rows under Megatron (arXiv 2104.04473, section 5.1)."""
    request = inputs.request_for("gpt-3-175b", 64, framework="mindspeed")
    assert request.model.vocab == 51200
    assert any("padded to 51200" in note for note in request.workload.notes)
    assert inputs.request_for("gpt-3-175b", 64, framework="mindformers").model.vocab == 50257
    assert inputs.request_for("70B", 64, framework="mindspeed").model.vocab == 128256


@pytest.mark.parametrize(
    ("base", "flags", "ffn", "gated"),
    [
        (DENSE_FLAGS, "--swiglu", 10880, True),  # Megatron: 8 h / 3 in steps of 64
        (DENSE_FLAGS, "", 16384, False),
        (DENSE_FLAGS, "--geglu", 16384, True),
        (DENSE_FLAGS, "--gelu-tanh", 16384, True),
    ],
)
def test_widths_left_to_megatron(base, flags, ffn, gated):
    model = read_mindspeed(script(flags, base.replace("--ffn-hidden-size 11008", "").replace("--swiglu", ""))).model
    assert (model.ffn, model.gated_mlp) == (ffn, gated)


def test_experts_as_wide_as_the_mlp_when_nothing_is_said():
    base = MOE_FLAGS.replace("--moe-ffn-hidden-size 1024", "")
    assert read_mindspeed(script("", base)).model.moe.expert_ffn == 11008


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ("--first-k-dense-replace -1 --moe-layer-freq -1", [MOE] * 32),
        ("--first-k-dense-replace 3 --moe-layer-freq 1", [DENSE] * 3 + [MOE] * 29),
        ("--first-k-dense-replace 3", [DENSE] * 3 + [MOE] * 29),
        ("--moe-layer-freq 2", [MOE, DENSE] * 16),
        ("--moe-layer-freq '([0]*2+[1]*30)'", [DENSE] * 2 + [MOE] * 30),
        ("--moe-layer-freq ([0]*1+[1,0]*15+[1])", [DENSE] + [MOE, DENSE] * 15 + [MOE]),
    ],
)
def test_which_layers_have_experts(flags, kinds):
    quoted = flags.replace("([", "'([").replace(")", ")'") if "'" not in flags else flags
    assert list(read_mindspeed(script(quoted, MOE_FLAGS)).model.layer_kinds) == kinds


def test_a_pattern_of_another_length_is_refused():
    with pytest.raises(SpecError, match="a list of 32 zeros and ones"):
        read_mindspeed(script("--moe-layer-freq '([0]*2+[1]*3)'", MOE_FLAGS))


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("--pipeline-model-parallel-layout 'Et*7|(t*8|)*2,t*9L'", ((7, 8, 8, 9),)),
        ("--pipeline-model-parallel-layout 'Et*3|(t*4|)*6,t*5L'", ((3, 4, 4, 4), (4, 4, 4, 5))),
        ("--pipeline-model-parallel-layout 'E|(t*8|)*2,t*16L'", ((0, 8, 8, 16),)),
    ],
)
def test_layers_laid_out_in_a_text(flags, layers):
    assert read_mindspeed(script(flags)).strategy.layers == layers


def test_embedding_and_loss_counted_as_layers():
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    base = DENSE_FLAGS.replace("--num-layers 32", "--num-layers 30")
    assert read_mindspeed(script(flags, base)).strategy.layers == ((7, 8, 8, 7),)
    with pytest.raises(SpecError, match="are 34, which 4 stages x 1 chunks do not divide"):
        read_mindspeed(script(flags))


def test_four_norms_and_a_bias_behind_attention():
    plain, more = (read_mindspeed(script(flags)).model for flags in ("", "--post-norm --add-dense-bias"))
    assert parameter_count(more) - parameter_count(plain) == 32 * (2 * 4096 + 4096)
