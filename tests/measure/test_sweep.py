"""Sweeps: what every constant needs comes first, nothing comes twice, shards are those of the model."""

import pytest

from planner.errors import CalibrationError
from planner.measure.sweep import ASCEND, CPU, collective_tasks, matmul_shapes, operator_tasks, shapes_of
from planner.model.load import find


@pytest.mark.parametrize(("shapes", "device"), [(CPU, "CPU"), (ASCEND, "Ascend")])
def test_the_head_of_a_sweep_serves_every_constant(shapes, device):
    tasks = operator_tasks(shapes, device)
    assert len({task.key for task in tasks}) == len(tasks)
    head = {task.op for task in tasks[:70]}
    assert head >= {
        "tiny", "step", "add", "matmul", "matmul_backward", "norm", "norm_backward", "rotary", "gate", "scores",
        "batched_matmul", "flash", "cross_entropy", "adamw", "copy",
    }  # fmt: skip
    assert {task.dtype for task in tasks if task.op == "matmul"} == {"float32", "float16", "bfloat16"}
    assert "grouped_matmul" in {task.op for task in tasks}


def test_any_head_of_the_shapes_covers_the_range():
    shapes = matmul_shapes(ASCEND, "Ascend")
    flop = [m * k * n for m, k, n in shapes]
    assert max(flop[:12]) / min(flop[:12]) > 0.1 * max(flop) / min(flop)


def test_a_models_shards():
    shapes = shapes_of(find("qwen3-32b"), 4096, (8,), ASCEND)
    assert (4096, 5120, 2 * 25600 // 8) in shapes.matmuls
    assert (4096, 25600 // 8, 5120) in shapes.matmuls
    assert matmul_shapes(shapes, "Ascend")[: len(shapes.matmuls)] == list(shapes.matmuls)
    with pytest.raises(CalibrationError, match="--tp 7 does not divide the 64 heads"):
        shapes_of(find("qwen3-32b"), 4096, (7,), ASCEND)


def test_collectives_of_several_nodes():
    tasks = [task for task in collective_tasks("Ascend", 16, 2) if task.op == "allreduce"]
    groups = {(task.sizes["ranks"], task.sizes["nodes"]) for task in tasks}
    assert groups == {(16, 2), (8, 1), (4, 1), (2, 1), (4, 2)}
    assert max(task.sizes["bytes"] for task in tasks) == 2**28
    together = [task for task in collective_tasks("CPU", 2, 1) if task.kind == "matmul"]
    assert {task.sizes["ranks"] for task in together} == {2}
