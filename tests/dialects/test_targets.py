"""Laws that hold for every target: what is written is read back, and what cannot be held is said."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.dialects.check import check
from planner.dialects.graph.write import NO_SELECTIVE
from planner.dialects.read import read_text_as
from planner.dialects.records import Settings
from planner.dialects.write import emit, render
from planner.errors import EmitError
from planner.model.records import Workload
from planner.plan import Plan
from tests.dialects.samples import plan, small
from tests.dialects.test_launch import shellcheck

MASTER = {"params_dtype": "bfloat16", "master_weights": True, "framework": "mindspeed"}
WORK = {
    "mindformers": Workload(seq=4096, global_batch=1),
    "mindformers-pynative": Workload(
        seq=4096, global_batch=1, params_dtype="bfloat16", framework="mindformers-pynative"
    ),
    "mindspore": Workload(seq=4096, global_batch=1),
    "mindspeed": Workload(seq=4096, global_batch=1, **MASTER),
}
#: Target (and dialect) -> family of a small model.
FAMILY = {
    "mindformers": "qwen3", "mindformers legacy": "llama", "mindformers-pynative": "qwen3", "mindspore": "llama",
    "mindspeed": "llama",
}  # fmt: skip
MAIN = {"mindformers": "pretrain.yaml", "mindformers-pynative": "pretrain.yaml", "mindspore": "pretrain.py",
        "mindspeed": "pretrain.sh"}  # fmt: skip


def held(target: str, chosen: Plan) -> Plan:
    """The plan as its files say it: the emitted main file, read back."""
    file, *_ = render(chosen, target, Settings())
    result = read_text_as(_path(target), file.text, chosen.devices)
    assert result.unread == ()
    return replace(chosen, strategy=result.strategy)


def _path(target: str) -> Path:
    return Path("/nowhere") / MAIN[target]


@st.composite
def plans_for(draw, kind: str) -> Plan:
    """Plans that a target holds whole."""
    target = kind.split()[0]
    pp = draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    equal = draw(st.integers(1, 4))
    layers = tuple(tuple(equal if vpp > 1 else draw(st.integers(1, 5)) for _ in range(pp)) for _ in range(vpp))
    totals = [sum(row[stage] for row in layers) for stage in range(pp)]
    full = tuple(draw(st.integers(0, total)) for total in totals)
    selective = tuple(draw(st.integers(0, total - f)) for total, f in zip(totals, full, strict=True))
    dp, tp = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 8]))
    zero = draw(st.sampled_from([0, 1]))
    micro_batches = pp * draw(st.integers(1, 6))
    values: dict[str, object] = {"optimizer_shard": dp if zero else 1, "zero_level": zero}
    if target == "mindformers-pynative":
        sharded = dp > 1 and draw(st.booleans())
        values = {"zero_level": 3 if sharded else 0, "optimizer_shard": dp if sharded else 1}
        selective = (0,) * pp if any(full) else selective
    if target == "mindspeed":
        full, selective = (min(full),) * pp, (0,) * pp
    if target in ("mindformers", "mindspeed"):
        values["swap_optimizer"] = zero > 0 and draw(st.booleans())
    chosen = plan(
        small(FAMILY[kind], layer_kinds=("dense",) * sum(totals)), dp=dp, tp=tp, pp=pp, vpp=vpp, layers=layers,
        full=full, selective=selective, micro_batches=micro_batches, workload=WORK[target], **values,
    )  # fmt: skip
    return replace(chosen, devices_per_node=chosen.devices if chosen.devices % 8 else 8)


@pytest.mark.parametrize("kind", FAMILY)
@given(data=st.data())
def test_a_plan_survives_its_files(kind, data):
    chosen = data.draw(plans_for(kind))
    assert held(kind.split()[0], chosen).strategy == chosen.strategy


QWEN, LLAMA, MOE = small("qwen3"), small("llama"), small("qwen3_moe")
#: Target, model, what it cannot hold, and what is said.
BEYOND = [
    ("mindformers", QWEN, {"cp": 2, "cp_algorithm": "ulysses", "ulysses_degree": 2, "tp": 2}, "head exchange|ulysses"),
    ("mindformers", LLAMA, {"pp": 2, "vpp": 2, "schedule": "zero_bubble_v"}, "zero_bubble_v"),
    ("mindformers-pynative", QWEN, {"dp": 4, "zero_level": 1}, "level"),
    ("mindformers-pynative", QWEN, {"swap_optimizer": True, "zero_level": 0}, "host"),
    ("mindformers-pynative", QWEN, {"pp": 2, "vpp": 2, "schedule": "zero_bubble_v"}, "zero_bubble_v"),
    ("mindformers-pynative", QWEN, {"dp": 4, "zero_level": 0, "tp": 2, "sequence_parallel": False}, "sequence"),
    ("mindspore", LLAMA, {"cp": 2}, "context parallelism"),
    ("mindspore", LLAMA, {"swap_optimizer": True}, "optimizer states on the host"),
    ("mindspore", LLAMA, {"pp": 2, "vpp": 2, "schedule": "seqpipe"}, "schedule seqpipe"),
    ("mindspeed", LLAMA, {"dp": 4, "zero_level": 2}, "level 1 at most"),
    ("mindspeed", LLAMA, {"dp": 4, "optimizer_shard": 2}, "over all 4"),
    ("mindspeed", LLAMA, {"pp": 2, "schedule": "gpipe"}, "no schedule 'gpipe'"),
]


@pytest.mark.parametrize(("target", "model", "degrees", "said"), BEYOND)
def test_what_a_target_cannot_hold_is_refused_in_its_words(tmp_path, target, model, degrees, said):
    chosen = plan(model, workload=WORK[target], **degrees)
    with pytest.raises(EmitError, match=said) as caught:
        emit(chosen, tmp_path / "out", target=target)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_target_that_can_is_named(tmp_path):
    ring = plan(LLAMA, cp=2, dp=2, workload=WORK["mindspore"])
    with pytest.raises(
        EmitError, match="context parallelism; .* written with --target mindformers or --target mindspeed"
    ):
        emit(ring, tmp_path / "out", target="mindspore")
    with pytest.raises(
        EmitError, match=r"schedule 'seqpipe'; legal: 1f1b, interleaved\. .* with --target mindformers\.$"
    ):
        emit(plan(LLAMA, pp=2, vpp=2, schedule="seqpipe"), tmp_path / "out", target="mindspeed")
    with pytest.raises(EmitError) as caught:
        emit(plan(LLAMA, dp=12), tmp_path / "out")
    assert "--target" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "model", "other"),
    [
        ("mindformers", replace(LLAMA, family="glm4_moe"), "mindspeed"),
        ("mindformers-pynative", LLAMA, "mindformers"),
        ("mindspore", MOE, "mindformers"),
        ("mindspeed", replace(LLAMA, family="telechat3"), "mindformers"),
    ],
)
def test_a_family_without_a_class_is_refused_with_a_target_that_has_one(tmp_path, target, model, other):
    with pytest.raises(EmitError, match=f"no training class for family .* Use --target {other}"):
        emit(plan(model, workload=WORK[target]), tmp_path / "out", target=target)


def test_what_is_held_only_nearly_is_said(tmp_path):
    chosen = plan(LLAMA, tp=2, pp=4, full=(2, 1, 0, 0), workload=WORK["mindspeed"])
    result = emit(chosen, tmp_path / "out", target="mindspeed")
    assert any("2, 2, 2, 2 whole (plan: 2, 1, 0, 0)" in note for note in result.notes)
    assert held("mindspeed", chosen).strategy.recompute_full == (2, 2, 2, 2)


SITES = [Settings(), Settings(data_path="/data/set a", tokenizer_path="/t'k", hosts=("node-1", "10.0.0.2", "n3", "n4"))]


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("site", SITES, ids=["bare", "hosts"])
@pytest.mark.parametrize(
    "degrees",
    [
        {"dp": 4, "tp": 2, "pp": 4},
        {"dp": 16, "tp": 2},
        {"dp": 2, "tp": 8, "pp": 2, "full": (3, 1)},
        {"dp": 4, "tp": 4, "pp": 2, "vpp": 2, "full": 2},
    ],
)
def test_nothing_is_found_in_emitted_sets(tmp_path, kind, site, degrees):
    target = kind.split()[0]
    values = {"zero_level": 3, **degrees} if target == "mindformers-pynative" else degrees
    emit(plan(small(FAMILY[kind]), workload=WORK[target], **values), tmp_path / "out", target=target, settings=site)
    assert check(tmp_path / "out") == ()


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("site", SITES, ids=["bare", "hosts"])
@pytest.mark.parametrize("name", ["plain", "$(touch pwned) 'q\" ;x"])
def test_scripts_of_every_target_run_as_meant(tmp_path, monkeypatch, kind, site, name):
    """Shellcheck finds nothing, and the launcher gets every word whole, whatever the folder is called."""
    target = kind.split()[0]
    values = {"zero_level": 3} if target == "mindformers-pynative" else {}
    chosen = plan(small(FAMILY[kind]), dp=8, tp=2, pp=2, full=(2, 1), workload=WORK[target], **values)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / name
    emit(chosen, out, target=target, settings=site)
    scripts = sorted(out.glob("*.sh"))
    done = subprocess.run([shellcheck(), *scripts], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("msrun", "torchrun"):
        (tools / tool).write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
        (tools / tool).chmod(0o755)
    start = out / ("pretrain.sh" if target == "mindspeed" else "node_2.sh")
    variables = {"PATH": f"{tools}:/usr/bin:/bin", "NODE_RANK": "2", **({} if site.hosts else {"MASTER_ADDR": "m"})}
    done = subprocess.run(["bash", str(start)], env=variables, capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    master = site.hosts[0] if site.hosts else "m"
    if target == "mindspeed":
        assert words[words.index("--master_addr") + 1] == master
        assert words[words.index("--node_rank") + 1] == "2"
        assert words[words.index("--data-path") + 1] == (site.data_path or "/path/to/dataset")
        assert words[words.index("--tokenizer-name-or-path") + 1] == (site.tokenizer_path or "/path/to/tokenizer")
        assert words[words.index("--save") + 1] == f"{out}/checkpoints"
    else:
        assert {f"--master_addr={master}", "--node_rank=2", "--worker_num=32", f"--log_dir={out}/log"} <= set(words)
        program = [f"{out}/pretrain.py"] if target == "mindspore" else [f"{out}/train.py", f"{out}/pretrain.yaml"]
        assert words[-len(program) :] == program
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "tools"])


def test_selective_recompute_of_legacy_networks_is_said_to_save_nothing(tmp_path):
    chosen = plan(
        small("llama"), dp=2, pp=2, selective=(2, 0),
        workload=Workload(seq=4096, global_batch=1, framework="mindformers-legacy"),
    )  # fmt: skip
    assert emit(chosen, tmp_path / "out").notes == (NO_SELECTIVE,)
    text = (tmp_path / "out" / "pretrain.yaml").read_text(encoding="utf-8")
    assert re.search(r"select_recompute: \[2, 0\] +# saves no memory in legacy networks of MindFormers 1.9", text)


def test_figures_of_another_framework_are_said(tmp_path):
    chosen = plan(small("qwen3"), dp=2)
    assert chosen.workload.framework == "mindformers"
    (note,) = emit(chosen, tmp_path / "script", target="mindspore").notes
    assert note.endswith("run the estimate again with --framework mindformers-legacy.")
    assert emit(chosen, tmp_path / "file").notes == ()
