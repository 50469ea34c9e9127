"""A user's MindFormers YAML made fit for a DryRun: synthetic data, no checkpoints, few micro-batches.

Pure functions on the parsed configuration. Nothing that decides memory is touched, except the number of
micro-batches: the peak of a stage is reached when the pipeline is full, and more micro-batches only make the graph
(and its compile) longer.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import ValidationError

_STEPS = 2
_PLAIN_RUN = {
    "output_dir": "./output",
    "load_checkpoint": "",
    "auto_trans_ckpt": False,
    "only_save_strategy": False,
    "resume_training": False,
    "use_parallel": True,
    "run_mode": "train",
    "profile": False,
    "do_eval": False,
}
_DATASET_SPARE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What of a configuration decides ranks, batches and data."""

    legacy: bool
    data_parallel: int
    model_parallel: int
    context_parallel: int
    pipeline_stages: int
    interleave: int
    micro_batches: int
    accumulation_steps: int
    batch_size: int
    seq: int

    @property
    def devices(self) -> int:
        """Number of ranks."""
        return self.data_parallel * self.model_parallel * self.context_parallel * self.pipeline_stages

    @property
    def micro_batches_of_step(self) -> int:
        """Micro-batches of the pipeline, or accumulation steps without one."""
        return self.micro_batches if self.pipeline_stages > 1 else self.accumulation_steps

    @property
    def global_batch(self) -> int:
        """Samples of one step."""
        return self.batch_size * self.data_parallel * self.micro_batches_of_step

    def rank_of_stage(self, stage: int) -> int:
        """First rank of a pipeline stage."""
        if not 0 <= stage < self.pipeline_stages:
            raise ValidationError(f"There is no stage {stage}: this plan has stages 0 to {self.pipeline_stages - 1}.")
        return stage * (self.devices // self.pipeline_stages)


def read_layout(config: Mapping[str, Any]) -> Layout:
    """Layout of a parsed graph-mode MindFormers configuration."""
    model = _section(config, "model", "model_config")
    parallel = config.get("parallel_config") or {}
    runner = config.get("runner_config") or {}
    pipeline = (config.get("parallel") or {}).get("pipeline_config") or {}
    interleave = model.get("pp_interleave_num", 1) if pipeline.get("pipeline_interleave") else 1
    return Layout(
        legacy=bool(config.get("use_legacy", True)),
        data_parallel=_count(parallel, "data_parallel"),
        model_parallel=_count(parallel, "model_parallel"),
        context_parallel=_count(parallel, "context_parallel"),
        pipeline_stages=_count(parallel, "pipeline_stage"),
        interleave=int(interleave),
        micro_batches=_count(parallel, "micro_batch_num"),
        accumulation_steps=_count(runner, "gradient_accumulation_steps"),
        batch_size=_count(runner, "batch_size"),
        seq=_sequence_length(config, model),
    )


def _section(config: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    node: Any = config
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping):
        raise ValidationError(
            f"The file has no section {'.'.join(path)}: DryRun takes MindFormers YAML in graph mode "
            "(use_legacy True or False), not the PyNative dialect."
        )
    return node


def _count(section: Mapping[str, Any], key: str) -> int:
    value = section.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValidationError(f"{key} is {value!r} in this YAML; it must be a whole number of at least 1.")
    return int(value)


def _sequence_length(config: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    loader = (((config.get("train_dataset") or {}).get("data_loader")) or {}).get("config") or {}
    for value in (model.get("seq_length"), loader.get("seq_length"), model.get("max_position_embeddings")):
        if isinstance(value, int):
            return int(value)
    raise ValidationError("The YAML names no sequence length: set model.model_config.seq_length.")


def filling_micro_batches(layout: Layout) -> int:
    """Fewest micro-batches that give every stage its peak.

    A stage of 1F1B keeps at most as many micro-batches as there are stages, so that many fill it. Interleaved
    chunks keep up to ``2 (p - 1) + (v - 1) p + 1`` chunks of micro-batches in flight on the first stage, more than
    ``p v``: ``2 p`` micro-batches fill it. Never more than the plan itself has.
    """
    needed = layout.pipeline_stages * (1 if layout.interleave == 1 else 2)
    return min(layout.micro_batches, needed)


def as_run(layout: Layout, *, exact: bool = False) -> Layout:
    """`layout` with the numbers of micro-batches and accumulation steps that a DryRun uses.

    Without a pipeline two accumulation steps do: the peak of a step that adds to kept gradients.
    """
    if exact:
        return layout
    steps = min(layout.accumulation_steps, 2)
    return dataclasses.replace(layout, micro_batches=filling_micro_batches(layout), accumulation_steps=steps)


#: Schedules that branch on the step (cosine and the like) end a simulated step with "Can not build a sub graph which
#: contains ConditionSwitch"; the learning rate changes no size.
_CONSTANT_RATE = {"type": "ConstantWarmUpLR", "learning_rate": 1e-6, "warmup_ratio": 0, "total_steps": -1}


def prepared(config: Mapping[str, Any], run: Layout, data: Path) -> dict[str, Any]:
    """Copy of `config` that runs without the user's data, checkpoints and callbacks.

    Parameters
    ----------
    config : mapping
        The parsed YAML.
    run : Layout
        Its layout `as_run`.
    data : Path
        Folder of the synthetic data, see `planner.validate.synthetic`.
    """
    ready: dict[str, Any] = copy.deepcopy(dict(config))
    ready.update(_PLAIN_RUN)
    ready["callbacks"] = [{"type": "MFLossMonitor"}]
    ready["lr_schedule"] = dict(_CONSTANT_RATE)
    ready.setdefault("runner_config", {}).update(epochs=1, sink_mode=True, sink_size=1)
    if run.pipeline_stages > 1:
        ready["parallel_config"]["micro_batch_num"] = run.micro_batches
    else:
        ready["runner_config"]["gradient_accumulation_steps"] = run.accumulation_steps
    _set_context(ready)
    _set_dataset(ready, run, data)
    return ready


def _set_context(ready: dict[str, Any]) -> None:
    context = ready.setdefault("context", {})
    for key in ("ascend_config", "affinity_config", "affinity_cpu_list", "mempool_block_size"):
        context.pop(key, None)
    context.update(device_id=0, max_device_memory="1000GB", save_graphs=False)
    context.setdefault("mode", 0)
    context.setdefault("device_target", "Ascend")
    context.setdefault("jit_config", {"jit_level": "O0"})


def _set_dataset(ready: dict[str, Any], run: Layout, data: Path) -> None:
    dataset = ready.get("train_dataset") or {}
    samples = samples_needed(run)
    loader = _legacy_loader(run, data) if run.legacy else _megatron_loader(dataset, run, data, samples)
    ready["train_dataset"] = {
        "data_loader": loader,
        "input_columns": ["input_ids"] if run.legacy else dataset.get("input_columns"),
        "construct_args_key": None if run.legacy else dataset.get("construct_args_key"),
        "num_parallel_workers": 1, "python_multiprocessing": False, "drop_remainder": True,
        "numa_enable": False, "prefetch_size": 1, "repeat": 1, "seed": 0,
    }  # fmt: skip
    ready["train_dataset"] = {key: value for key, value in ready["train_dataset"].items() if value is not None}
    for key in ("eval_dataset", "eval_dataset_task"):
        ready.pop(key, None)
    ready["train_dataset_task"] = {
        "type": "CausalLanguageModelDataset",
        "dataset_config": copy.deepcopy(ready["train_dataset"]),
    }


def samples_needed(layout: Layout) -> int:
    """Rows of synthetic data: enough for the simulated steps, whether a rank reads its share or the whole batch."""
    return _DATASET_SPARE * _STEPS * layout.global_batch


def _legacy_loader(layout: Layout, data: Path) -> dict[str, Any]:
    return {"type": "MindDataset", "dataset_files": [str(mindrecord_path(data, layout))], "shuffle": False}


def mindrecord_path(data: Path, layout: Layout) -> Path:
    """File of synthetic MindRecord rows for this sequence length and batch."""
    rows = 2 ** math.ceil(math.log2(samples_needed(layout)))
    return data / f"tokens-{layout.seq + 1}x{rows}.mindrecord"


def _megatron_loader(dataset: Mapping[str, Any], layout: Layout, data: Path, samples: int) -> dict[str, Any]:
    loader = copy.deepcopy(dict(dataset.get("data_loader") or {}))
    settings = dict(loader.get("config") or {})
    settings.update(
        seed=1234, split="1, 0, 0", seq_length=layout.seq, eod=settings.get("eod", 1), pad=settings.get("pad", -1),
        data_path=["1", str(data / "tokens")],
    )  # fmt: skip
    loader.update(
        type="BlendedMegatronDatasetDataLoader", datasets_type="GPTDataset", sizes=[samples, 0, 0], config=settings,
        shuffle=False,
    )  # fmt: skip
    return loader
