"""MindFormers PyNative files: only keys that TrainConfig has, and read back equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from planner.dialects.pynative.read import read_pynative
from planner.dialects.pynative.write import render
from planner.dialects.read import read
from planner.dialects.text.yaml_read import loads
from planner.dialects.write import emit
from planner.errors import EmitError, SpecError
from planner.model.load import find
from planner.model.operators import parameter_count
from planner.model.records import Workload
from planner.plan import Plan
from tests.dialects.samples import golden_pynative, plan, small

BF16 = Workload(seq=4096, global_batch=1, params_dtype="bfloat16", framework="mindformers-pynative")


def made(model: object, **degrees: object) -> Plan:
    return plan(model, workload=BF16, **{"zero_level": 3, **degrees})  # type: ignore[arg-type]


MATRIX = {
    **golden_pynative(),
    "plain": made(small("qwen3"), dp=2),
    "replicated": made(small("qwen3"), dp=4, zero_level=0),
    "hybrid-shard": made(small("qwen3"), dp=8, optimizer_shard=2, selective=4),
    "uneven-vpp": made(small("qwen3"), dp=2, pp=2, vpp=2, layers=((3, 2), (2, 1)), full=(3, 0)),
    "cp-hybrid": made(small("qwen3"), dp=2, cp=4, tp=2, cp_algorithm="hybrid", ulysses_degree=2),
    "cp-ulysses": made(small("qwen3"), dp=2, cp=2, cp_algorithm="ulysses", ulysses_degree=2),
    "cp-ring": made(small("qwen3"), dp=1, cp=2),
    "gpipe": made(small("qwen3"), dp=2, pp=4, schedule="gpipe", micro_batch_size=2),
    "tied": made(replace(small("qwen3"), tied_embeddings=True), dp=2),
    "latent": made(small("deepseek_v3"), dp=4, tp=2, pp=2, ep=8, layers=((5, 3),), full=(2, 1)),
}

#: Keys of MindFormers 2.0.0's TrainConfig; sections marked None take any key.
KEYS: dict[str, set[str] | None] = {
    "checkpoint": set(
        "enable_save save_path save_max save_interleaved_steps no_save_optim async_save prefix remove_redundancy "
        "load_path load_balanced no_load_optim load_worker_number save_global_layout_cache".split()
    ),
    "training": set("steps local_batch_size global_batch_size max_norm seed deterministic".split()),
    "parallelism": set(
        "data_parallel_shard data_parallel_shard_strategy reshard_after_forward_policy cpu_offload "
        "disable_gradient_division dense_fsdp_shard_size tensor_parallel context_parallel context_parallel_method "
        "context_parallel_async ulysses_degree_in_cp context_parallel_mask_type pipeline_parallel "
        "pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_microbatch_size "
        "pipeline_parallel_interleave_num pipeline_parallel_overlap_p2p pipeline_parallel_overlap_b_f "
        "pipeline_parallel_enable_dxdw_split pipeline_parallel_p2p_transport sequence_parallel enable_mc2 "
        "enable_loss_parallel expert_parallel npu_nums_per_device moe_token_dispatcher_type".split()
    ),
    "context": {"mode", "max_device_memory", "device_target"},
    "recompute": {"mode", "full_recompute_layer", "select_module"},  # exclude_op changed its type in 2.1.0
    "train_dataset": set("dataloader drop_remainder num_parallel_workers prefetch_size numa_enable".split()),
    "optimizer": None,
    "lr_scheduler": None,
    "model": None,
}


@pytest.mark.parametrize("name", MATRIX)
def test_only_keys_that_exist(name):
    body = yaml.safe_load(render(MATRIX[name]).text)
    for section, values in body.items():
        assert section in KEYS
        allowed = KEYS[section]
        assert allowed is None or set(values) <= allowed
    assert body["recompute"]["mode"] in ("None", "full", "select")
    assert body["model"]["hidden_act"] == "silu"  # PyNative refuses 'swiglu'
    degrees = body["parallelism"]
    product = degrees["tensor_parallel"] * degrees["context_parallel"] * degrees["pipeline_parallel"]
    dp = MATRIX[name].devices // product
    assert dp % degrees["data_parallel_shard"] == 0
    assert body["training"]["global_batch_size"] % (dp * body["training"]["local_batch_size"]) == 0
    if degrees["tensor_parallel"] > 1:
        assert degrees["sequence_parallel"] is True  # 2.1.0 insists


@pytest.mark.parametrize("name", MATRIX)
def test_reads_back_equal(name):
    written = MATRIX[name]
    result = read_pynative(loads(render(written).text), devices=written.devices)
    assert result.unread == ()
    assert result.strategy == written.strategy
    assert parameter_count(result.model) == parameter_count(written.model)
    assert result.workload.params_dtype == "bfloat16"


def test_the_number_of_devices_comes_from_the_launch_script(tmp_path):
    written = MATRIX["hybrid-shard"]
    emit(written, tmp_path / "out", target="mindformers-pynative")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["launch.sh", "plan.json", "pretrain.yaml", "train.py"]  # DryRun exists in graph mode only
    assert read(tmp_path / "out" / "pretrain.yaml").strategy == written.strategy
    (tmp_path / "out" / "launch.sh").unlink()
    alone = read(tmp_path / "out" / "pretrain.yaml")
    assert alone.strategy.devices == 2
    assert any("number of devices is not in the file" in line for line in alone.unread)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "zero_bubble_v", "pp": 2, "vpp": 2}, "schedule 'zero_bubble_v'; legal: 1f1b, interleaved, gpipe"),
        ({"dp": 2, "zero_level": 1}, "level 1; legal: 0, 3"),
        ({"dp": 2, "swap_optimizer": True}, "optimizer states on the host"),
        ({"dp": 2, "full": 2, "selective": 2}, "whole and selective recompute together"),
        ({"cp": 2, "zero_level": 0}, "context parallelism without sharding"),
        ({"dp": 2, "cp": 2, "optimizer_shard": 1}, "splits cp 2"),
        ({"tp": 2, "sequence_parallel": False}, "sequence parallelism other than"),
        ({"pp": 2, "layers": ((8, 0),)}, "a stage without layers"),
    ],
)
def test_what_the_dialect_cannot_hold(changes, message):
    with pytest.raises(EmitError, match=message):
        render(made(small("qwen3"), **changes))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "telechat3"])
def test_families_without_a_pynative_class(family):
    with pytest.raises(EmitError, match="--target mindformers"):
        render(made(small(family)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["0-2,5-6", "3-4,7"]', '["0-2,5-6", "3-3,7"]', "but layer 4 is next; layers would be left out"),
        ('["0-2,5-6", "3-4,7"]', '["0-2,5-6", "3-4,6-7"]', "layers would be left out or held twice"),
        ('["0-2,5-6", "3-4,7"]', '["0-2,5-5", "3-4,6"]', "ends at layer 6, but the model has 8"),
        ('["0-2,5-6", "3-4,7"]', '["0-2", "3-7"]', "needs 2 ranges for each stage"),
        ('["0-2,5-6", "3-4,7"]', '["all"]', "needs one text for each of 2 stages"),
        ('["0-2,5-6", "3-4,7"]', '"auto"\n  x: 1', None),
        ('"interleaved_1f1b"', '"dualpipe"', "is 'dualpipe'; legal: 1f1b"),
        ('mode: "full"', 'mode: "some"', "is 'some'; legal"),
        ("global_batch_size: 16", "global_batch_size: 15", "would drop 1 samples"),
        ("data_parallel_shard: 2", "data_parallel_shard: 3", "is 3, which does not divide dp 2"),
        ("tensor_parallel: 1", "tensor_parallel: 3", "do not divide by tp x pp x cp = 6"),
        ('model_type: "qwen3"', 'model_type: "llama"', "MindFormers trains"),
    ],
)
def test_broken_files(old, new, message):
    text = render(MATRIX["uneven-vpp"]).text
    assert old in text
    document = loads(text.replace(old, new))
    if message is None:
        result = read_pynative(document, devices=4)
        assert result.strategy.layers == ((2, 2), (2, 2))
        assert "parallelism.x" in result.unread
        return
    with pytest.raises(SpecError, match=message):
        read_pynative(document, devices=4)


def test_sections_that_would_be_ignored_are_listed():
    text = render(MATRIX["plain"]).text + "\nparallel:\n  data_parallel: 4\n"
    assert any(line.startswith("parallel: not a section") for line in read_pynative(loads(text), devices=2).unread)


def test_qwen3_32b_count():
    """What MindFormers 2.0.0 itself builds from this file on its meta device: 32,762,123,264 parameters."""
    result = read_pynative(loads(render(MATRIX["qwen3-32b-64"]).text), devices=64)
    assert parameter_count(result.model) == parameter_count(find("Qwen3-32B")) == 32_762_123_264
