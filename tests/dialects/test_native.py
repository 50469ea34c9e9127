"""The self-contained MindSpore script: says what was planned, trains on the CPU, compiles for a cluster."""

from __future__ import annotations

import ast
import math
import os
import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.dialects.check import check
from planner.dialects.native.write import constants, recomputed, render, stages
from planner.dialects.records import Settings
from planner.dialects.write import emit
from planner.errors import EmitError
from planner.model.load import find
from planner.model.operators import parameter_count
from planner.model.records import Attention
from planner.plan import Plan
from tests.dialects.samples import plan, small
from tests.dialects.test_proof import framework_python, stage_map

TINY = small(
    "llama", hidden=64, ffn=128, vocab=101, layer_kinds=("dense",) * 2,
    attention=Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16),
)  # fmt: skip
TINY_PLAN = plan(TINY, dp=2, seq=32, micro_batches=1, micro_batch_size=4)
UNEVEN = plan(small("qwen3"), dp=2, tp=2, pp=2, vpp=2, layers=((3, 1), (2, 2)), full=(2, 1), selective=(1, 0))


def values(chosen: Plan) -> dict[str, object]:
    """The PLAN that the script defines."""
    tree = ast.parse(render(chosen).text)
    (node,) = [n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "PLAN"]  # type: ignore[attr-defined]
    return eval(compile(ast.Expression(node.value), "PLAN", "eval"))  # noqa: S307 - our own text


@pytest.mark.parametrize("chosen", [TINY_PLAN, UNEVEN, plan(find("Qwen3-32B"), dp=2, tp=8, pp=4, full=8)])
def test_script_holds_the_plan(chosen):
    said, s = values(chosen), chosen.strategy
    assert said == constants(chosen, Settings())
    assert said["stage_of_layer"] == stage_map(chosen)
    assert len(said["recompute_of_layer"]) == chosen.model.layers
    assert said["recompute_of_layer"].count("full") == sum(s.recompute_full)
    assert said["recompute_of_layer"].count("selective") == sum(s.recompute_selective)
    assert said["dp"] * said["tp"] * said["pp"] == said["devices"] == chosen.devices


def test_recomputed_layers_are_the_first_of_each_chunk():
    assert stages(UNEVEN) == [0, 0, 0, 1, 0, 0, 1, 1]
    assert recomputed(UNEVEN) == ["full", "selective", "", "full", "full", "", "", ""]


def test_a_set_is_clean_and_hostile_names_stay_text(tmp_path):
    named = replace(TINY_PLAN, model=replace(TINY, name='a"""\nimport os\nos.system("x")\\'))
    emit(named, tmp_path / "out", target="mindspore")
    text = (tmp_path / "out" / "pretrain.py").read_text()
    assert "os.system" not in {ast.unparse(n.func) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)}
    assert check(tmp_path / "out") == ()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (plan(small("llama"), cp=2), "context parallelism"),
        (plan(small("llama"), dp=2, zero_level=2), "sharded gradients added up without a pipeline"),
        (plan(small("llama"), tp=2, micro_batch_size=2), "micro-batches above 1"),
        (plan(small("llama"), pp=2, vpp=2, schedule="zero_bubble_v"), "schedule zero_bubble_v"),
        (plan(small("llama", tied_embeddings=True)), "shared embedding and head"),
        (plan(small("qwen3_moe")), "no training class for family 'qwen3_moe'"),
    ],
)
def test_what_the_script_cannot_hold(chosen, message):
    with pytest.raises(EmitError, match=message):
        render(chosen)


def functions(*names: str) -> dict[str, Any]:
    """Functions of the script, with MindSpore's tensors left as arrays."""
    tree = ast.parse(render(UNEVEN).text)
    chosen = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    scope: dict[str, Any] = {"np": np, "Tensor": np.asarray}
    exec(compile(ast.Module(chosen, []), "pretrain.py", "exec"), scope)  # noqa: S102 - our own text
    return scope


def rows_of_ranks(made: dict[str, Any], path: str | None = None) -> list[tuple[int, ...]]:
    """First token of every row of two steps, for each of 16 ranks: dp 4, tp 2, pp 2, two samples a replica."""
    seen = []
    for rank in range(16):
        plan = {"seq": 8, "vocab": 89, "dp": 4, "tp": 2, "pp": 2, "processes": 16, "rank": rank, "parallel": True}
        plan["replica"], plan["replicas"] = made["replica"](plan)
        source = made["batches"](plan, path, 2)
        steps = [next(source) for _ in range(2)]
        assert all((ids[:, 1:] == labels[:, :-1]).all() for ids, labels in steps)
        seen.append(tuple(int(row[0]) for ids, _ in steps for row in ids))
    return seen


def test_ranks_of_a_replica_read_the_same_rows(tmp_path):
    """Tensor-parallel ranks share their rows, and labels on the last stage belong to the tokens of the first."""
    made = functions("replica", "batches")
    seen = rows_of_ranks(made)
    assert [seen.index(rows) for rows in seen] == [0, 0, 2, 2, 4, 4, 6, 6] * 2
    np.arange(9 * 16, dtype=np.int32).tofile(tmp_path / "tokens")
    from_file = rows_of_ranks(made, str(tmp_path / "tokens"))
    each = [from_file[rank] for rank in (0, 2, 4, 6)]
    assert from_file == [rows for rows in each for _ in range(2)] * 2
    assert sorted(first for rows in each for first in rows) == list(range(0, 9 * 16, 9))  # every sample once


SPLIT = {
    "heads": 8, "kv_heads": 4, "ffn": 64, "vocab": 96, "words": 96, "batch": 16, "micro_batches": 4, "devices": 4,
    "dp": 2, "tp": 2, "pp": 1, "rows": 2, "stage_of_layer": [0, 0],
}  # fmt: skip


def by_hand(**changes: object) -> dict[str, Any]:
    """Sizes of one rank without automatic parallelism."""
    plan = {**SPLIT, "stage_of_layer": list(SPLIT["stage_of_layer"]), **changes}
    made = functions("replica", "split_by_hand")
    made["math"] = math
    made["split_by_hand"](plan)
    plan["replica"] = made["replica"](plan)
    return plan


def test_ranks_split_by_hand_as_planned():
    ranks = [by_hand(processes=4, rank=rank) for rank in range(4)]
    assert {(p["dp"], p["tp"], p["heads"], p["kv_heads"], p["ffn"], p["words"], p["vocab"]) for p in ranks} == {
        (2, 2, 4, 2, 32, 48, 96)
    }
    assert [p["first_word"] for p in ranks] == [0, 48, 0, 48]
    assert [p["replica"] for p in ranks] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert {p["micro_batches"] for p in ranks} == {4}


def test_other_numbers_of_processes_are_replicas():
    two = by_hand(processes=2, rank=1)
    assert (two["dp"], two["tp"], two["heads"], two["words"], two["replica"]) == (2, 1, 8, 96, (1, 2))
    staged = by_hand(processes=4, rank=3, pp=2, stage_of_layer=[0, 1])
    assert (staged["dp"], staged["tp"], staged["pp"], staged["stage_of_layer"]) == (4, 1, 1, [0, 0])
    assert by_hand(processes=3, rank=0)["micro_batches"] == 1  # 5 samples a process
    with pytest.raises(SystemExit, match="kv_heads 3 cannot be split over 2 ranks"):
        by_hand(processes=4, rank=0, kv_heads=3)


def test_too_little_data_is_said(tmp_path):
    np.arange(8, dtype=np.int32).tofile(tmp_path / "tokens")
    with pytest.raises(SystemExit, match="holds 8 tokens, fewer than one sample of 9"):
        next(functions("batches")["batches"]({"seq": 8, "vocab": 89, "replica": 0}, str(tmp_path / "tokens"), 1))


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"step \d+ loss ([0-9.]+)", text)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_trains_on_one_process(tmp_path):
    """Counting modulo 97 is learned: from ln(101) = 4.6 to below 1 in 30 steps."""
    emit(TINY_PLAN, tmp_path / "out", target="mindspore")
    command = [framework_python(), "pretrain.py", "--device", "CPU", "--steps", "30", "--learning-rate", "3e-3"]
    done = subprocess.run(
        [*command, "--save-every", "30"], cwd=tmp_path / "out", env={**os.environ, "GLOG_v": "3"}, capture_output=True,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{parameter_count(TINY)} parameters" in done.stdout
    seen = losses(done.stdout)
    assert len(seen) == 30
    assert 4.2 < seen[0] < 5.0
    assert seen[-1] < 1.0
    assert (tmp_path / "out" / "output" / "checkpoint" / "rank_0" / "step_30.safetensors").stat().st_size > 10_000


@pytest.mark.slow
def test_two_processes_learn_the_same(tmp_path):
    emit(TINY_PLAN, tmp_path / "out", target="mindspore")
    python = Path(framework_python())
    environ = {**os.environ, "GLOG_v": "3", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    command = [str(python), "-m", "mindspore.parallel.cluster.run", "--worker_num=2", "--local_worker_num=2",
               f"--master_port={free_port()}", "--log_dir=log", "--join=True", "--cluster_time_out=300",
               "pretrain.py", "--device", "CPU", "--steps", "30", "--learning-rate", "3e-3",
               "--save-every", "0"]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path / "out", env=environ, capture_output=True, text=True, timeout=900, check=False
    )
    logs = [(tmp_path / "out" / "log" / f"worker_{i}.log").read_text() for i in range(2)]
    assert done.returncode == 0, logs[0][-3000:]
    for log in logs:
        seen = losses(log)
        assert len(seen) == 30
        assert seen[-1] < 1.0 < seen[0]


#: Weights that do not depend on how many ranks share them: the same array for each, of which a rank takes its part.
SAME_WEIGHTS = """
made = []


def part(shape, plan, split):
    axis = 1 if split == "row" else 0
    whole = tuple(size * plan["tp"] if i == axis else size for i, size in enumerate(shape))
    values = np.random.default_rng(len(made)).normal(0.0, 0.05, whole)
    made.append(split)
    return Tensor(np.split(values, plan["tp"], axis)[plan["rank"] % plan["tp"]], plan["params"])


"""


def trained(folder: Path, processes: int = 1, *, steps: int = 6) -> list[float]:
    """Losses of rank 0 of a script in a folder whose weights are drawn as wholes."""
    script = folder / "pretrain.py"
    text = script.read_text()
    for old, new in (
        ('initializer(Normal(0.02), (outputs, inputs), plan["params"])', "part((outputs, inputs), plan, split)"),
        ('initializer(Normal(0.02), (plan["words"], plan["hidden"]), plan["params"])',
         'part((plan["words"], plan["hidden"]), plan, "column")'),
        ("# --- the network ---", f"{SAME_WEIGHTS}# --- the network ---"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    python = Path(framework_python())
    environ = {**os.environ, "GLOG_v": "3", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    several = [
        "-m", "mindspore.parallel.cluster.run", f"--worker_num={processes}", f"--local_worker_num={processes}",
        f"--master_port={free_port()}", "--log_dir=log", "--join=True", "--cluster_time_out=300",
    ]  # fmt: skip
    command = [str(python), *(several if processes > 1 else ()), "pretrain.py", "--device", "CPU",
               "--steps", str(steps), "--learning-rate", "1e-2", "--save-every", "0"]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=900, check=False)
    text = done.stdout if processes == 1 else (folder / "log" / "worker_0.log").read_text()
    assert done.returncode == 0, text[-3000:]
    return losses(text)


@pytest.mark.slow
def test_splits_micro_batches_and_recompute_learn_the_same(tmp_path):
    """One batch of four samples: whole; in two micro-batches; recomputed; over two tensor-parallel ranks.

    With the same weights at the start it is the same network however it is split, so the losses must agree: from the
    vocabulary's halves to the norms of heads, whose gradients come from all ranks.
    """
    tiny = replace(TINY, vocab=102, attention=replace(TINY.attention, qk_norm=True), family="qwen3")
    common = {"seq": 32, "zero_level": 0, "sequence_parallel": False}
    plans = {
        "whole": plan(tiny, micro_batches=1, micro_batch_size=4, **common),
        "parts": plan(tiny, micro_batches=2, micro_batch_size=2, **common),
        "again": plan(tiny, micro_batches=1, micro_batch_size=4, full=2, **common),
        "split": plan(tiny, tp=2, micro_batches=1, micro_batch_size=4, **common),
        "both": plan(tiny, tp=2, micro_batches=2, micro_batch_size=2, full=1, selective=1, **common),
    }
    seen = {}
    for name, chosen in plans.items():
        emit(chosen, tmp_path / name, target="mindspore")
        seen[name] = trained(tmp_path / name, chosen.devices)
    assert seen["whole"][0] - seen["whole"][-1] > 0.5
    for name in plans:
        assert seen[name] == pytest.approx(seen["whole"], abs=5e-3), name


@pytest.mark.slow
@pytest.mark.dryrun
@pytest.mark.parametrize("stage", [0, 3])
def test_compiles_for_64_ranks(tmp_path, stage):
    """dp 4, tp 4, pp 4: two simulated steps of the first and the last stage."""
    from planner.validate.compiler.dryrun import default_cache
    from planner.validate.compiler.framework import find_framework
    from planner.validate.compiler.standins import find_cann

    chosen = plan(small("qwen3"), dp=4, tp=4, pp=4, seq=1024, micro_batches=4, full=(1, 1, 0, 0))
    emit(chosen, tmp_path / "out", target="mindspore")
    framework = find_framework(Path(framework_python()))
    cann = find_cann(framework.home, framework.mindspore, default_cache(), os.environ)
    environ = {**cann.environment(os.environ), "MS_SIMULATION_LEVEL": "1", "RANK_SIZE": "64", "GLOG_v": "3",
               "RANK_ID": str(16 * stage), "MS_DEV_RUNTIME_CONF": "inline:false"}  # fmt: skip
    done = subprocess.run(
        [framework_python(), "pretrain.py", "--steps", "2", "--save-every", "0"], cwd=tmp_path / "out", env=environ,
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert len(losses(done.stdout)) == 2
    assert f"{parameter_count(chosen.model)} parameters" in done.stdout
    assert float(re.search(r"peak ([0-9.]+) GiB", done.stdout)[1]) > 0.01  # type: ignore[index]
