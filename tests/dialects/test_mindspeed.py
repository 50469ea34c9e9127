"""MindSpeed-LLM scripts: known flags, Megatron's own rules, and read back equal."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import plan as plans
from planner.api import estimate_of, plan_of, suggest
from planner.dialects.check import check
from planner.dialects.mindspeed.flags import FLAGS
from planner.dialects.mindspeed.given import Flags
from planner.dialects.mindspeed.model import padded_layers
from planner.dialects.mindspeed.read import read_mindspeed
from planner.dialects.mindspeed.write import as_held, render
from planner.dialects.read import read
from planner.dialects.records import Settings
from planner.dialects.text.shell_read import words
from planner.dialects.write import emit
from planner.errors import EmitError, SpecError
from planner.frameworks import padded_vocab
from planner.model.load import find
from planner.model.operators import parameter_count
from planner.model.records import Workload
from planner.plan import Plan
from tests.dialects.samples import plan, small
from tests.dialects.test_launch import shellcheck

BF16 = Workload(
    seq=4096, global_batch=1, params_dtype="bfloat16", master_weights=True, framework="mindspeed", tokens=10**9
)


def made(name: str, **degrees: object) -> Plan:
    return plan(find(name), workload=BF16, **degrees)


MATRIX = {
    "llama": made("Llama-3.1-70B", dp=2, tp=8, pp=4, micro_batches=16, full=6),
    "llama-2": made("Llama-2-7B", dp=8, full=32),
    "mistral": made("Mistral-7B", dp=4, tp=2),
    "qwen2": made("Qwen2.5-7B", dp=2, tp=4, selective=28),
    "qwen2-tied": made("Qwen2.5-0.5B", dp=8),
    "qwen3": made("Qwen3-32B", dp=1, tp=4, pp=4, vpp=2, cp=2, full=3, selective=2),
    "qwen3-uneven": made("Qwen3-32B", dp=2, tp=4, pp=4, layers=((15, 16, 17, 16),)),
    "qwen3-moe": made("Qwen3-30B-A3B", dp=8, pp=2, ep=8),
    "mixtral": made("Mixtral-8x7B", dp=4, tp=2, pp=2, ep=8),
    "deepseek-v2-lite": made("DeepSeek-V2-Lite", dp=8, ep=8),
    "deepseek-v3": made(
        "DeepSeek-V3", dp=16, tp=8, pp=8, vpp=2, ep=64, layers=((4,) * 8, (4,) * 7 + (1,)), swap_optimizer=True, full=5
    ),
    "glm-4.5-air": made("GLM-4.5-Air", dp=8, tp=2, pp=2, ep=8),
    "internlm2": made("InternLM2-20B", dp=2, tp=4, cp=2, cp_algorithm="ulysses", ulysses_degree=2),
    "llama-hybrid-cp": made("Llama-3.1-8B", dp=1, tp=2, cp=4, cp_algorithm="hybrid", ulysses_degree=2, zero_level=0),
    "gpt": plan(find("GPT-3-6.7B"), dp=4, tp=2, workload=replace(BF16, seq=2048)),
}


def flags(chosen: Plan) -> Flags:
    return Flags(render(chosen).text, "pretrain.sh")


@pytest.mark.parametrize("name", MATRIX)
def test_reads_back_equal(name):
    chosen = MATRIX[name]
    result = read_mindspeed(render(chosen).text)
    assert result.unread == ()
    assert result.strategy == chosen.strategy
    rows = padded_vocab(chosen.workload.runs_on, chosen.model.vocab, chosen.strategy.tp)
    assert parameter_count(result.model) == parameter_count(replace(chosen.model, vocab=rows))
    assert result.model.layer_kinds == chosen.model.layer_kinds
    assert result.workload.global_batch == chosen.workload.global_batch


@pytest.mark.parametrize("name", MATRIX)
def test_every_flag_is_known_and_every_value_legal(name):
    found = flags(MATRIX[name])
    assert found.unknown == []
    for flag, value in found.values.items():
        kind = FLAGS[flag].kind if flag in FLAGS else "str"
        assert (value is None) == (kind == "switch"), flag
        if kind == "int":
            assert int(value) >= 0, flag
        if kind == "float":
            assert float(value) >= 0, flag
        if flag in FLAGS and FLAGS[flag].choices:
            assert value in FLAGS[flag].choices, flag


@pytest.mark.parametrize("name", MATRIX)
def test_rules_that_megatron_asserts(name):
    """The argparse rules of Megatron-LM and MindSpeed, checked on the flags alone."""
    found = flags(MATRIX[name])

    def number(flag: str, default: int = 1) -> int:
        return int(found.values.get(flag) or default)

    tp, pp, cp = (number(f"--{k}-parallel-size") for k in ("tensor-model", "pipeline-model", "context"))
    world = number("--nproc_per_node") * number("--nnodes")
    assert world % (tp * pp * cp) == 0
    dp = world // (tp * pp * cp)
    assert number("--global-batch-size") % (number("--micro-batch-size") * dp) == 0
    if "--num-layer-list" in found.values:
        parts = [int(part) for part in found.values["--num-layer-list"].split(",")]
        assert (len(parts), sum(parts)) == (pp, number("--num-layers"))
    else:
        per_stage, rest = divmod(number("--num-layers"), pp)
        assert rest == 0
        assert per_stage % number("--num-layers-per-virtual-pipeline-stage") == 0
    assert number("--num-attention-heads") % tp == 0
    if "--sequence-parallel" in found.values:
        assert tp > 1
    if found.values.get("--context-parallel-algo") in ("megatron_cp_algo", "hybrid_cp_algo"):
        assert number("--seq-length") % (2 * cp) == 0
    if found.values.get("--context-parallel-algo") == "ulysses_cp_algo":
        assert number("--num-attention-heads") % (cp * tp) == 0
    if found.values.get("--recompute-granularity") == "full":
        assert found.values["--recompute-method"] in ("uniform", "block")
    if "--num-experts" in found.values:
        assert number("--num-experts") % number("--expert-model-parallel-size") == 0
        expert_tp = number("--expert-tensor-parallel-size", tp)
        assert world % (expert_tp * number("--expert-model-parallel-size") * pp) == 0
    if "--swap-optimizer" in found.values:
        assert "--use-distributed-optimizer" in found.values
    if "--overlap-param-gather" in found.values:
        assert {"--use-distributed-optimizer", "--overlap-grad-reduce"} <= set(found.values)


@pytest.mark.parametrize(
    ("flags", "ep", "etp"),
    [
        ("", 4, 2),  # Megatron splits every expert over tp
        ("--expert-tensor-parallel-size 1", 4, 1),
        ("--expert-tensor-parallel-size 4", 4, 4),
        ("--moe-tp-extend-ep --moe-token-dispatcher-type alltoall_seq", 8, 1),  # whole experts, tp times fewer a rank
    ],
)
def test_experts_of_a_script_are_split_as_its_flags_say(flags: str, ep: int, etp: int):
    written = plan(small("qwen3_moe"), dp=4, tp=2, ep=4, etp=1, workload=Workload(seq=4096, global_batch=32))
    text = render(written).text.replace("--expert-tensor-parallel-size 1", flags)
    read_back = read_mindspeed(text).strategy
    assert (read_back.ep, read_back.etp) == (ep, etp)


def test_deepseek_v3_is_padded_as_mindspeed_ships_it():
    """61 layers on 8 stages x 2 chunks: 64 layers, the last three do nothing."""
    found = flags(MATRIX["deepseek-v3"])
    assert (found.values["--num-layers"], found.values["--noop-layers"]) == ("64", "61,62,63")
    assert padded_layers(((1, 2), (2, 2))) == (8, (1,))


def test_scripts_are_shellcheck_clean_and_placeholders_listed(tmp_path):
    for name, chosen in MATRIX.items():
        result = emit(chosen, tmp_path / name, target="mindspeed")
        assert [p.where for p in result.placeholders][:2] == ["DATA_PATH", "TOKENIZER_PATH"]
        assert sorted(path.name for path in result.files) == ["plan.json", "pretrain.sh"]
    scripts = [str(path) for path in tmp_path.glob("*/pretrain.sh")]
    done = subprocess.run([shellcheck(), *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def test_command_that_torchrun_gets(tmp_path):
    """Hostile names stay single words; the node comes from the environment."""
    settings = Settings(hosts=tuple(f"n{i}" for i in range(8)), data_path="/d/$(touch pwned) 'x", tokenizer_path="/t")
    emit(MATRIX["llama"], tmp_path / "out", target="mindspeed", settings=settings)
    tool = tmp_path / "torchrun"
    tool.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    tool.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "3", "MINDSPEED_LLM": "/opt/ms llm"}
    done = subprocess.run(
        ["bash", str(tmp_path / "out/pretrain.sh")], env=environ, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:8] == ["--nproc_per_node", "8", "--nnodes", "8", "--node_rank", "3", "--master_addr", "n0"]
    assert "/opt/ms llm/pretrain_gpt.py" in lines
    assert lines[lines.index("--data-path") + 1] == settings.data_path
    assert not Path("pwned").exists()


UNEQUAL = made("Llama-3.1-70B", dp=2, tp=8, pp=4, micro_batches=16, full=(10, 8, 6, 0), selective=(1, 0, 2, 3))


def test_every_node_gets_the_number_of_its_stage():
    """8 nodes, 4 stages: two nodes hold one stage each, so nothing of the plan is lost."""
    text = render(UNEQUAL).text
    assert render(UNEQUAL).notes == []
    assert "full_of_node=(10 10 8 8 6 6 0 0)" in text
    assert "activation_of_node=(1 1 0 0 2 2 3 3)" in text
    assert read_mindspeed(text).strategy == UNEQUAL.strategy


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("0", ["full", "block", "10", "1"]),
        ("3", ["full", "block", "8", None]),
        ("07", [None, None, None, "3"]),
    ],
)
def test_arguments_of_a_node(tmp_path, node, expected):
    emit(UNEQUAL, tmp_path / "out", target="mindspeed")
    words = started(tmp_path, NODE_RANK=node, MASTER_ADDR="n0").stdout.splitlines()
    names = ("granularity", "method", "num-layers", "activation-function-num-layers")
    found = [words[words.index(f"--recompute-{n}") + 1] if f"--recompute-{n}" in words else None for n in names]
    assert found == expected
    assert words[words.index("--node_rank") + 1] == str(int(node))


@pytest.mark.parametrize("node", ["8", "-1", "", "x[$(touch pwned)]", "1 2"])
def test_node_ranks_that_are_none(tmp_path, node):
    emit(UNEQUAL, tmp_path / "out", target="mindspeed")
    done = started(tmp_path, NODE_RANK=node, MASTER_ADDR="n0")
    assert done.returncode == 2
    assert "set NODE_RANK (0 to 7)" in done.stderr
    assert not list(tmp_path.rglob("pwned"))


def started(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """An emitted script run with a torchrun that prints its arguments."""
    tool = folder / "torchrun"
    tool.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    tool.chmod(0o755)
    return subprocess.run(
        ["bash", str(folder / "out" / "pretrain.sh")], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin", **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_stages_that_share_a_node_get_the_most_of_them_and_the_prediction_says_so(tmp_path):
    """2 nodes, 4 stages: 10 and 8 become 10, 6 and 4 become 6; the plan beside the script is what is written."""
    chosen = made("Llama-3.1-8B", dp=1, tp=4, pp=4, micro_batches=16, full=(8, 6, 4, 2))
    result = emit(chosen, tmp_path / "out", target="mindspeed")
    (note,) = result.notes
    assert "8, 8, 4, 4 whole (plan: 8, 6, 4, 2)" in note
    found = re.search(r"as written: ([0-9., ]+) GiB \(plan: ([0-9., ]+)\); a step .* \+([0-9.]+) %", note)
    new, old = ([float(part) for part in found[i].split(", ")] for i in (1, 2))
    assert [b > a for a, b in zip(new, old, strict=True)] == [False, True, False, True]
    assert 0 <= float(found[3]) < 10
    written = plans.load(tmp_path / "out" / "plan.json")
    assert written.strategy == replace(chosen.strategy, recompute_full=(8, 8, 4, 4))
    assert read(tmp_path / "out" / "pretrain.sh").strategy == written.strategy
    assert check(tmp_path / "out") == ()


def test_the_plan_beside_the_script_carries_the_estimate_of_what_is_written(tmp_path):
    result = suggest("llama-3.1-8b", 8, framework="mindspeed", pins={"tp": [2], "pp": [4]}, top=1)
    chosen = plan_of(result.request, result.estimates.row(0))
    uneven = replace(chosen.strategy, recompute_full=(3, 2, 1, 0), recompute_selective=(0,) * 4)
    chosen = plan_of(result.request, estimate_of(result.request, uneven))
    emit(chosen, tmp_path / "out", target="mindspeed")
    written = plans.load(tmp_path / "out" / "plan.json")
    assert written.strategy.recompute_full == (3, 3, 3, 3)
    assert written.estimate == plan_of(result.request, estimate_of(result.request, written.strategy)).estimate
    assert written.estimate["step_s"] > chosen.estimate["step_s"]


def test_unknown_hardware_leaves_no_estimate_behind():
    chosen = replace(
        made("Llama-3.1-8B", tp=2, pp=4, full=(3, 2, 1, 0)), hardware="card of my own", estimate={"step_s": 2}
    )
    written, (note,) = as_held(chosen)
    assert written.estimate == {}
    assert "3, 3, 3, 3 whole (plan: 3, 2, 1, 0)" in note


@given(st.data())
def test_no_stage_recomputes_less_than_planned(data):
    pp = data.draw(st.sampled_from([1, 2, 4, 8]))
    dp, tp = data.draw(st.sampled_from([1, 2, 3, 6])), data.draw(st.sampled_from([1, 2, 4, 8]))
    nodes = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    layers = [data.draw(st.integers(1, 6)) for _ in range(pp)]
    full = tuple(data.draw(st.integers(0, n)) for n in layers)
    selective = tuple(data.draw(st.integers(0, n - f)) for n, f in zip(layers, full, strict=True))
    model = small("llama", layer_kinds=("dense",) * sum(layers))
    devices = dp * tp * pp
    per_node = devices // nodes if devices % nodes == 0 else devices
    chosen = plan(model, dp=dp, tp=tp, pp=pp, layers=(tuple(layers),), full=full, selective=selective, workload=BF16)
    chosen = replace(chosen, devices_per_node=per_node, hardware="none")
    written = read_mindspeed(render(chosen).text).strategy
    assert written == as_held(chosen)[0].strategy
    assert all(new >= old for new, old in zip(written.recompute_full, full, strict=True))
    both = zip(written.recompute_full, written.recompute_selective, full, selective, strict=True)
    assert all(f + s >= old_f + old_s for f, s, old_f, old_s in both)
    if (devices // pp) % per_node == 0:
        assert written == chosen.strategy


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (made("Qwen3-8B", dp=4, zero_level=2), "level 1 at most"),
        (made("Qwen3-8B", dp=4, optimizer_shard=2), "over all 4 .* not over 2"),
        (made("Qwen3-8B", pp=2, schedule="gpipe"), "no schedule 'gpipe'; legal: 1f1b, interleaved"),
        (made("Qwen3-8B", zero_level=0, swap_optimizer=True), "needs the distributed optimizer"),
        (made("GPT-3-6.7B"), "4096 tokens are more than its 2048 learned positions"),
        (made("GLM-4-9B-0414"), "no flags for 4 norms a layer"),
        (plan(small("qwen3"), workload=replace(BF16, optimizer="Muon")), "optimizer 'Muon' cannot be written"),
    ],
)
def test_what_mindspeed_cannot_hold(chosen, message):
    with pytest.raises(EmitError, match=message):
        render(chosen)


#: In the style of the scripts that MindSpeed-LLM ships: variables, arithmetic, quoted groups.
SHIPPED_STYLE = r"""
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NPUS_PER_NODE=8
NNODES=2   # two servers
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
TP=2
PP=4
MBS="1"
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \
    --nnodes ${NNODES} \
    --node_rank $NODE_RANK
"
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --sequence-parallel \
    --use-distributed-optimizer \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \
    --seq-length 4096 --max-position-embeddings 4096 \
    --micro-batch-size ${MBS} --global-batch-size 256 \
    --padded-vocab-size=32000 --swiglu --untie-embeddings-and-output-weights --disable-bias-linear \
    --normalization RMSNorm --position-embedding-type rope --use-flash-attn --bf16 \
    --recompute-granularity full --recompute-method block --recompute-num-layers 2 \
    --wizardry 3
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS | tee logs/train.log
"""


def test_script_in_the_shipped_style(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(SHIPPED_STYLE)
    result = read(path)
    s = result.strategy
    assert (s.dp, s.tp, s.pp, s.micro_batches, s.layers) == (2, 2, 4, 128, ((8, 8, 8, 8),))
    assert s.recompute_full == (2, 2, 2, 2)
    assert parameter_count(result.model) == 6_738_415_616
    assert any("--wizardry" in line for line in result.unread)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--num-layers 32", "--num-layers 30", "30 does not divide into 4 stages x 1 chunks; .* drop layers"),
        ("--num-layers 32", "--num-layers many", "--num-layers many is no whole number"),
        ("--num-layers 32", "--num-layers 0", "must be at least 1"),
        ("--global-batch-size 256", "--global-batch-size 255", "255 does not divide by .* dp 2"),
        ("TP=2", "TP=3", "16 devices do not divide by tp x pp x cp = 12"),
        ("--padded-vocab-size=32000", "", "add --padded-vocab-size"),
        ("--hidden-size 4096", "--hidden-size 4096 --context-parallel-size 2 --context-parallel-algo ring",
         "--context-parallel-algo ring: legal: megatron_cp_algo"),
        ("--recompute-method block", "", "needs --recompute-method"),
        ("--nproc_per_node $NPUS_PER_NODE", "", "number of devices is not in the script"),
    ],
)  # fmt: skip
def test_broken_scripts(tmp_path, old, new, message):
    assert old in SHIPPED_STYLE
    path = tmp_path / "pretrain.sh"
    path.write_text(SHIPPED_STYLE.replace(old, new))
    with pytest.raises(SpecError, match=message):
        read(path)


def test_words_of_a_shell_script():
    text = "A='x y'\nB=${A}z # comment --no\ncmd \"$B\" \\\n  --n=$((2*3+1)) a#b 'it''s' ${C:-dflt} $(rm -rf x)"
    assert [w.text for w in words(text)] == [
        "A=x", "y", "B=x", "yz", "cmd", "x", "yz", "--n=7", "a#b", "its", "dflt", "$(rm -rf x)",
    ]  # fmt: skip
    assert words(text)[7].line == 4


@pytest.mark.parametrize("text", ["'open", '"open \\', "${", "$((", "\\", "#", "a=$a$a" * 50, "A=$A\nB=$((9**9))"])
def test_odd_scripts_end(text):
    assert isinstance(words(text), list)


@pytest.mark.parametrize(
    ("extra", "layers"),
    [
        ("--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6", ((6, 10, 10, 6),)),
        ("--decoder-first-pipeline-num-layers 8", ((8, 8, 8, 8),)),
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6 "
            "--num-virtual-stages-per-pipeline-rank 2",
            ((3, 5, 5, 3), (3, 5, 5, 3)),
        ),
    ],
)
def test_stages_of_different_length_at_the_ends(tmp_path, extra, layers):
    path = tmp_path / "pretrain.sh"
    path.write_text(SHIPPED_STYLE.replace("--swiglu", f"--swiglu {extra}"))
    assert read(path).strategy.layers == layers


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--decoder-first-pipeline-num-layers 7", "32 layers less 7 on the first and 0 on the last stage"),
        ("--decoder-first-pipeline-num-layers 5 --num-virtual-stages-per-pipeline-rank 2",
         "stages of 5, 9, 9, 9 layers do not divide into 2 chunks"),
        ("--decoder-first-pipeline-num-layers 8 --num-layers-per-virtual-pipeline-stage 2",
         "does not fit stages of different length"),
    ],
)  # fmt: skip
def test_ends_that_do_not_fit(tmp_path, extra, message):
    path = tmp_path / "pretrain.sh"
    path.write_text(SHIPPED_STYLE.replace("--swiglu", f"--swiglu {extra}"))
    with pytest.raises(SpecError, match=message):
        read(path)
