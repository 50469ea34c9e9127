"""Reading layouts, shrinking micro-batches, and making a user's YAML fit for a DryRun."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import ValidationError
from planner.validate.compiler.prepare import (
    Layout,
    as_run,
    filling_micro_batches,
    lacks_clipping,
    mindrecord_path,
    prepared,
    read_layout,
)

LAYOUT = Layout(
    legacy=False,
    data_parallel=2,
    model_parallel=4,
    context_parallel=1,
    pipeline_stages=8,
    interleave=1,
    micro_batches=16,
    accumulation_steps=1,
    batch_size=1,
    seq=4096,
)


def user_config() -> dict[str, Any]:
    """A configuration with everything a user's file may hold that a DryRun must not use."""
    return {
        "use_legacy": False,
        "load_checkpoint": "/somewhere/weights",
        "auto_trans_ckpt": True,
        "resume_training": True,
        "runner_config": {"epochs": 3, "batch_size": 2, "gradient_accumulation_steps": 1},
        "context": {"mode": 0, "ascend_config": {"parallel_speed_up_json_path": "x.json"}, "max_device_memory": "58GB"},
        "parallel_config": {"data_parallel": 2, "model_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 32},
        "parallel": {"pipeline_config": {"pipeline_interleave": True}},
        "train_dataset": {
            "data_loader": {
                "type": "BlendedMegatronDatasetDataLoader",
                "config": {"seq_length": 4096, "create_attention_mask": True, "data_path": ["1", "/real/data"]},
            },
            "input_columns": ["input_ids", "labels", "loss_mask", "position_ids", "attention_mask"],
        },
        "callbacks": [{"type": "CheckpointMonitor"}],
        "model": {"model_config": {"seq_length": 8192, "pp_interleave_num": 2}},
    }


def test_layout_of_a_configuration() -> None:
    layout = read_layout(user_config())
    assert (layout.data_parallel, layout.model_parallel, layout.pipeline_stages) == (2, 4, 2)
    assert (layout.interleave, layout.micro_batches, layout.batch_size, layout.seq) == (2, 32, 2, 8192)
    assert layout.devices == 16
    assert layout.global_batch == 2 * 2 * 32


def test_interleave_counts_only_when_the_schedule_is_on() -> None:
    config = user_config()
    config["parallel"] = {}
    assert read_layout(config).interleave == 1


@pytest.mark.parametrize(("stage", "rank"), [(0, 0), (1, 8), (7, 56)])
def test_first_rank_of_a_stage(stage: int, rank: int) -> None:
    assert LAYOUT.rank_of_stage(stage) == rank


@pytest.mark.parametrize("stage", [-1, 8])
def test_no_such_stage(stage: int) -> None:
    with pytest.raises(ValidationError, match="stages 0 to 7"):
        LAYOUT.rank_of_stage(stage)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parallel_config": {"data_parallel": 0}}, "data_parallel is 0"),
        ({"parallel_config": {"pipeline_stage": "2"}}, "pipeline_stage is '2'"),
        ({"runner_config": {"batch_size": True}}, "batch_size is True"),
        ({"model": {}}, "graph mode"),
        ({"model": None, "parallelism": {}}, "graph mode"),
        ({"model": {"model_config": {}}, "train_dataset": {}}, "sequence length"),
    ],
)
def test_what_is_no_layout_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        read_layout(user_config() | change)


@pytest.mark.parametrize(
    ("stages", "interleave", "planned", "run"),
    [(8, 1, 16, 9), (8, 1, 4, 4), (4, 2, 64, 8), (4, 2, 6, 6), (2, 1, 2, 2), (2, 1, 3, 3)],
)
def test_micro_batches_that_fill_the_pipeline(stages: int, interleave: int, planned: int, run: int) -> None:
    layout = replace(LAYOUT, pipeline_stages=stages, interleave=interleave, micro_batches=planned)
    assert filling_micro_batches(layout) == run
    assert as_run(layout).micro_batches == run
    assert as_run(layout, exact=True) == layout


@pytest.mark.parametrize(("planned", "run"), [(1, 1), (2, 2), (64, 2)])
def test_accumulation_steps_without_a_pipeline(planned: int, run: int) -> None:
    layout = replace(LAYOUT, pipeline_stages=1, accumulation_steps=planned)
    assert as_run(layout).accumulation_steps == run
    assert as_run(layout).micro_batches_of_step == run


def test_prepared_configuration_uses_nothing_of_the_user() -> None:
    config = user_config()
    before = copy.deepcopy(config)
    run = as_run(read_layout(config))
    ready = prepared(config, run, Path("/cache/data"))
    assert config == before
    assert ready["load_checkpoint"] == ""
    assert ready["resume_training"] is False
    assert ready["callbacks"] == [{"type": "MFLossMonitor"}]
    assert ready["parallel_config"]["micro_batch_num"] == 4
    assert "ascend_config" not in ready["context"]
    assert "/real/data" not in str(ready)
    loader = ready["train_dataset"]["data_loader"]
    assert loader["config"]["data_path"] == ["1", "./tokens"]  # beside the run: no run sees another's unfinished index
    assert loader["config"]["seq_length"] == 8192
    assert loader["config"]["create_attention_mask"] is True
    assert "path_to_cache" not in loader["config"]
    assert ready["train_dataset"]["input_columns"][-1] == "attention_mask"


COLUMNS = ["input_ids", "labels", "loss_mask", "position_ids"]


@pytest.mark.parametrize(
    ("sections", "columns"),
    [
        ({"train_dataset": None}, COLUMNS),
        ({"train_dataset": None, "parallel": {"dataset_strategy": [[2, 1]] * 4}}, COLUMNS),
        ({"train_dataset": None, "parallel": {"dataset_strategy": [[2, 1]] * 5}}, [*COLUMNS, "attention_mask"]),
        ({"train_dataset": {"input_columns": [*COLUMNS, "actual_seq_len"]}}, [*COLUMNS, "actual_seq_len"]),
        (
            {"train_dataset": None, "train_dataset_task": {"dataset_config": {"input_columns": COLUMNS[:2]}}},
            COLUMNS[:2],
        ),
    ],
)
def test_columns_of_synthetic_samples(sections: dict[str, Any], columns: list[str]) -> None:
    config = user_config() | sections
    section = prepared(config, as_run(read_layout(config)), Path("/cache"))["train_dataset"]
    assert section["input_columns"] == section["construct_args_key"] == columns
    settings = section["data_loader"]["config"]
    assert settings["create_attention_mask"] == ("attention_mask" in columns)
    assert settings["create_compressed_eod_mask"] == ("actual_seq_len" in columns)


def test_a_loader_of_another_kind_leaves_nothing_but_its_columns() -> None:
    loader = {"type": "HFDataLoader", "path": "alpaca", "handler": [{"type": "AlpacaInstructDataHandler"}],
              "config": {"tokenizer": "x", "train_data_path": ["/a"], "eod": 7, "eod_mask_loss": True}}  # fmt: skip
    config = user_config() | {"train_dataset": {"data_loader": loader, "input_columns": COLUMNS, "shuffle": True}}
    section = prepared(config, as_run(read_layout(config)), Path("/cache"))["train_dataset"]
    assert set(section["data_loader"]) == {"type", "datasets_type", "shuffle", "sizes", "config"}
    settings = section["data_loader"]["config"]
    assert {"tokenizer", "train_data_path"}.isdisjoint(settings)
    assert (settings["eod"], settings["eod_mask_loss"], settings["pad"]) == (7, True, -1)


def test_sections_that_name_files_of_the_user_are_left_out() -> None:
    config = user_config() | {
        "processor": {"tokenizer": {"vocab_file": "/x"}}, "monitor_config": {"monitor_on": True}, "do_eval": True,
        "eval_dataset": {"data_loader": {}}, "metric": {"type": "PerplexityMetric"}, "use_parallel": False,
    }  # fmt: skip
    config["model"]["model_config"]["checkpoint_name_or_path"] = "llama2_7b"
    ready = prepared(config, as_run(read_layout(config)), Path("/cache"))
    assert {"processor", "monitor_config", "eval_dataset", "metric"}.isdisjoint(ready)
    assert (ready["do_eval"], ready["use_parallel"]) == (False, True)
    assert ready["model"]["model_config"]["checkpoint_name_or_path"] == ""


def test_legacy_input_is_one_column_and_so_is_its_strategy() -> None:
    config = user_config() | {"use_legacy": True, "parallel": {"dataset_strategy": [[2, 1], [2, 1]]}}
    ready = prepared(config, as_run(read_layout(config)), Path("/cache"))
    assert ready["parallel"]["dataset_strategy"] == [[2, 1]]


def test_sizes_in_a_config_json_stand_behind_those_of_the_file() -> None:
    config = user_config() | {"model": {"model_config": {"pp_interleave_num": 2}}, "train_dataset": None}
    assert read_layout(config, {"max_position_embeddings": 1024}).seq == 1024
    config["model"]["model_config"]["seq_length"] = 512
    assert read_layout(config, {"max_position_embeddings": 1024}).seq == 512


@pytest.mark.parametrize("key", ["parallel_config", "runner_config", "parallel"])
def test_a_section_that_is_none(key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key} is 'on' in this YAML; it must be a section"):
        read_layout(user_config() | {key: "on"})


def test_prepared_keeps_what_decides_memory() -> None:
    config = user_config() | {"recompute_config": {"recompute": [1, 0]}, "optimizer": {"type": "AdamW", "swap": True}}
    ready = prepared(config, as_run(read_layout(config)), Path("/cache"))
    for section in ("model", "recompute_config", "parallel", "optimizer"):
        assert ready[section] == config[section]


def test_legacy_data_is_a_mindrecord_large_enough() -> None:
    config = user_config() | {"use_legacy": True}
    run = as_run(read_layout(config))
    path = mindrecord_path(Path("/cache"), run)
    assert path.name == "tokens-8193x64.mindrecord"
    assert run.global_batch * 2 <= 64
    ready = prepared(config, run, Path("/cache"))
    assert ready["train_dataset"]["data_loader"]["dataset_files"] == [str(path)]
    assert ready["train_dataset"]["input_columns"] == ["input_ids"]


def test_glm_gets_labels_of_its_own() -> None:
    """Its network does not cut labels out of seq + 1 tokens, as Llama's does."""
    config = user_config() | {"use_legacy": True}
    config["model"]["model_config"]["type"] = "ChatGLM2Config"
    run = as_run(read_layout(config))
    assert (run.columns, run.row_tokens) == (["input_ids", "labels"], 8192)
    assert mindrecord_path(Path("/cache"), run).name == "labelled-8192x64.mindrecord"
    assert prepared(config, run, Path("/cache"))["train_dataset"]["input_columns"] == ["input_ids", "labels"]


def test_weights_do_not_decay() -> None:
    """Without the overflow branch the compiler makes the decayed copies before the backward pass."""
    config = user_config() | {"optimizer": {"type": "AdamW", "weight_decay": 0.1, "swap": True}}
    ready = prepared(config, as_run(read_layout(config)), Path("/cache"))
    assert ready["optimizer"] == {"type": "AdamW", "weight_decay": 0.0, "swap": True}
    assert config["optimizer"]["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("legacy", "stages", "wrapper", "lacks"),
    [
        (True, 2, {"use_clip_grad": False}, True),
        (True, 1, {"scale_sense": 1.0}, True),  # the wrapper without a pipeline does not clip by itself
        (True, 2, {"scale_sense": 1.0}, False),
        (True, 1, {"use_clip_grad": True}, False),
        (False, 2, {"use_clip_grad": False}, False),
    ],
    ids="pipeline plain default on mcore".split(),
)
def test_legacy_networks_are_clipped(legacy: bool, stages: int, wrapper: dict[str, Any], lacks: bool) -> None:
    """MindSpore hands a legacy step that returns no norm to its CPU backend, which refuses it."""
    config = user_config() | {"use_legacy": legacy, "runner_wrapper": {"type": "MFTrainOneStepCell", **wrapper}}
    config["parallel_config"]["pipeline_stage"] = stages
    layout = read_layout(config)
    assert lacks_clipping(config, layout) == lacks
    ready = prepared(config, as_run(layout), Path("/cache"))
    assert ready["runner_wrapper"].get("use_clip_grad") == (True if lacks else wrapper.get("use_clip_grad"))
    assert config["runner_wrapper"].get("use_clip_grad") == wrapper.get("use_clip_grad")
    assert not lacks_clipping({"use_legacy": True}, layout)


def test_a_learning_rate_that_branches_on_the_step_is_made_constant() -> None:
    """A cosine schedule ends a simulated step with "Can not build a sub graph which contains ConditionSwitch"."""
    config = user_config() | {"lr_schedule": {"type": "CosineWithWarmUpLR", "learning_rate": 1e-4, "lr_end": 1e-5}}
    ready = prepared(config, as_run(read_layout(config)), Path("/cache"))
    assert ready["lr_schedule"]["type"] == "ConstantWarmUpLR"
    assert "lr_end" not in ready["lr_schedule"]


@pytest.mark.parametrize(
    ("dp", "tp", "pp", "together"),
    [(2, 1, 4, False), (2, 2, 4, False), (4, 2, 4, True), (2, 1, 2, True), (6, 2, 2, False), (1, 1, 1, True)],
)
def test_ends_of_a_pipeline_share_data_where_they_lie_alike_on_nodes(dp: int, tp: int, pp: int, together: bool) -> None:
    """MindSpore makes no group of ranks 0 and 6, or 0 and 12, and one of 0 and 24."""
    degrees = {"data_parallel": dp, "model_parallel": tp, "pipeline_stage": pp}
    layout = read_layout(
        {"parallel_config": degrees, "use_legacy": False, "model": {"model_config": {"seq_length": 2048}}}
    )
    assert layout.ends_exchange_data == together
