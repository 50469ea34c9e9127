"""MindFormers and MindSpore accept every emitted file and understand what was planned.

Each file goes through MindFormers' loader and object checks, MindSpore's own parallel context, the conversion to the
network's configuration and the construction of the real network; one process a file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.dialects.graph import layout
from planner.dialects.graph.write import render
from planner.model.operators import parameter_count
from planner.plan import Plan
from tests.dialects.samples import matrix

CHILD = Path(__file__).with_name("prove_child.py")
MATRIX = matrix()
_SECONDS = 600

pytestmark = pytest.mark.slow


def framework_python() -> str:
    """Interpreter that has MindSpore: the one named in the environment, else this one."""
    named = os.environ.get("PLANNER_MINDSPORE_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("mindspore") and importlib.util.find_spec("mindformers"):
        return sys.executable
    if os.environ.get("PLANNER_NO_MINDSPORE") == "1":
        pytest.skip("MindSpore is left out on purpose (PLANNER_NO_MINDSPORE=1)")
    pytest.fail(
        "MindSpore and MindFormers are not installed: install the extra 'mindspore', name an interpreter that has "
        "them in PLANNER_MINDSPORE_PYTHON, or leave the proof out with PLANNER_NO_MINDSPORE=1"
    )


def prove(path: Path, folder: Path) -> dict:
    """Report of the framework on one file; fails with its last words."""
    done = subprocess.run(
        [framework_python(), str(CHILD), str(path)],
        cwd=folder,
        env={**os.environ, "GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def stage_map(plan: Plan) -> list[int]:
    """Stage of each decoder layer in model order."""
    s = plan.strategy
    stages = []
    for chunk, row in enumerate(s.layers):
        backwards = s.schedule == "zero_bubble_v" and chunk == 1
        order = reversed(range(s.pp)) if backwards else range(s.pp)
        for stage in order:
            stages += [stage] * row[stage]
    return stages


@pytest.mark.parametrize("name", MATRIX)
def test_framework_understands_the_plan(name, tmp_path):
    plan = MATRIX[name]
    s = plan.strategy
    path = tmp_path / "pretrain.yaml"
    path.write_text(render(plan).text, encoding="utf-8")
    seen = prove(path, tmp_path)
    assert seen["useless"] == []
    degrees = seen["parallel_config"]
    assert [degrees[key] for key in ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel")] == [
        s.dp, s.tp, s.pp, s.cp,
    ]  # fmt: skip
    assert degrees["expert_parallel"] == s.ep
    assert degrees["micro_batch_num"] == (s.micro_batches if s.pp > 1 else 1)
    assert degrees["use_seq_parallel"] == s.sequence_parallel
    assert seen["parallel"] == meant(plan)
    if s.schedule == "zero_bubble_v":
        assert seen["segments"] == [chunk for chunk, row in enumerate(s.layers) for _ in range(sum(row))]
    assert seen["trainable"] == parameter_count(plan.model)
    assert seen["stages"] == stage_map(plan)
    zbv = s.schedule == "zero_bubble_v"
    assert seen["layer_list"] == in_model_order(s.layers, reverse=zbv)
    assert seen["layer_recompute"] == in_model_order(layout.spread(s.recompute_full, s.layers), reverse=zbv)
    both = (
        [f + c for f, c in zip(s.recompute_full, s.recompute_selective, strict=True)]
        if any(s.recompute_selective)
        else (0,) * s.pp
    )
    for rows in seen["select_recompute"].values():
        assert rows == in_model_order(layout.spread(both, s.layers), reverse=zbv)


def meant(plan: Plan) -> dict[str, object]:
    """What MindSpore's parallel context shall hold."""
    s = plan.strategy
    named = s.schedule in ("gpipe", "seqpipe", "zero_bubble_v")
    return {
        "pipeline_stages": s.pp,
        "pipeline_interleave": s.vpp > 1 or s.schedule == "gpipe",
        "pipeline_scheduler": s.schedule if named else "1f1b",
        "enable_parallel_optimizer": s.zero_level > 0,
        "optimizer_weight_shard_size": -1
        if not s.zero_level or s.optimizer_shard == s.dp * s.cp
        else s.optimizer_shard,
        "gradients_sharded": s.zero_level == 2,
        "weights_sharded": s.zero_level == 3,
    }


def in_model_order(rows: tuple[tuple[int, ...], ...], *, reverse: bool) -> list[list[int]]:
    """Rows as MindFormers keeps them: zero-bubble-V runs the second chunk backwards through the stages."""
    result = [list(row) for row in rows]
    if reverse:
        result[1].reverse()
    return result
