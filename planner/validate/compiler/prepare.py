"""A user's MindFormers YAML made fit for a DryRun: synthetic data, no checkpoints, few micro-batches.

Pure functions on the parsed configuration. Nothing that decides memory is touched, except the number of
micro-batches: the peak of a stage is reached when the pipeline is full, and more micro-batches only make the graph
(and its compile) longer.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.cluster.placement import ends_lie_alike
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
#: Sections that name files, tokenizers or watchers of the user's and decide no size of the step.
_LEFT_OUT = ("eval_dataset", "eval_dataset_task", "metric", "monitor_config", "processor", "src_strategy_path_or_dir",
             "tensorboard")  # fmt: skip
#: Name of the synthetic Megatron tokens, in the cache and in the folder of a run.
TOKENS = "tokens"
_COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
#: Settings of a user's data loader that say what a sample holds.
_SAMPLE_SETTINGS = ("compressed_eod_mask_length", "eod", "eod_mask_loss", "eod_pad_length", "pad",
                    "reset_attention_mask", "reset_position_ids")  # fmt: skip
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
    labelled: bool = False
    """Legacy only: rows hold labels of their own beside the tokens, as the GLM network wants them."""

    @property
    def columns(self) -> list[str]:
        """Columns of the legacy data set."""
        return ["input_ids", "labels"] if self.labelled else ["input_ids"]

    @property
    def row_tokens(self) -> int:
        """Tokens of a row of the legacy data set; without labels the network shifts by one itself."""
        return self.seq if self.labelled else self.seq + 1

    @property
    def devices(self) -> int:
        """Number of ranks."""
        return self.data_parallel * self.model_parallel * self.context_parallel * self.pipeline_stages

    @property
    def ends_exchange_data(self) -> bool:
        """Whether data can be handed from the first to the last stage; legacy networks read them on every rank."""
        return self.legacy or ends_lie_alike(self.devices, self.pipeline_stages)

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
        whole = isinstance(stage, int) and not isinstance(stage, bool)
        if not (whole and 0 <= stage < self.pipeline_stages):
            raise ValidationError(f"There is no stage {stage}: this plan has stages 0 to {self.pipeline_stages - 1}.")
        return stage * (self.devices // self.pipeline_stages)


def read_layout(config: Mapping[str, Any], pretrained: Mapping[str, Any] | None = None) -> Layout:
    """Layout of a parsed graph-mode MindFormers configuration, whose model may lie in a Hugging Face config.json."""
    model = {**(pretrained or {}), **_section(config, "model", "model_config")}
    parallel, runner = _optional(config, "parallel_config"), _optional(config, "runner_config")
    pipeline = _optional(_optional(config, "parallel"), "pipeline_config")
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
        labelled=model.get("type") == "ChatGLM2Config",
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


def _optional(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A section that may be absent."""
    section = config.get(key)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ValidationError(f"{key} is {section!r} in this YAML; it must be a section with keys of its own.")
    return section


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

    A stage of 1F1B keeps at most as many micro-batches as there are stages, so that many fill it. One more must come
    after them: gathered weights stay alive until the last forward pass, which must lie behind the first backward pass
    (measured, small Qwen3 on 2 stages: 73.6 MiB with 2 micro-batches, 83.6 MiB with 3, and with 4 the same to 0.03 %).
    Interleaved chunks keep up to ``2 (p - 1) + (v - 1) p + 1`` chunks of micro-batches in flight on the first stage,
    fewer than the ``2 p v`` of ``2 p`` micro-batches. Never more than the plan itself has.
    """
    p = layout.pipeline_stages
    needed = p + 1 if layout.interleave == 1 else 2 * p
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

#: In a real step weights decay inside the overflow branch, behind the last backward pass.  Without that branch (see the
#: runner) their decayed copies, 4 bytes a parameter, would be made before it and raise its peak.
_WEIGHT_DECAY = 0.0


def prepared(config: Mapping[str, Any], run: Layout, data: Path) -> dict[str, Any]:
    """Copy of `config` that runs without the user's data, checkpoints, tokenizer and callbacks.

    Parameters
    ----------
    config : mapping
        The parsed YAML.
    run : Layout
        Its layout `as_run`.
    data : Path
        Folder of the synthetic data, see `planner.validate.compiler.synthetic`.
    """
    ready: dict[str, Any] = copy.deepcopy(dict(config))
    ready.update(_PLAIN_RUN)
    for key in _LEFT_OUT:
        ready.pop(key, None)
    if "checkpoint_name_or_path" in ready["model"]["model_config"]:
        ready["model"]["model_config"]["checkpoint_name_or_path"] = ""
    ready["callbacks"] = [{"type": "MFLossMonitor"}]
    ready["lr_schedule"] = dict(_CONSTANT_RATE)
    if "weight_decay" in (ready.get("optimizer") or {}):
        ready["optimizer"]["weight_decay"] = _WEIGHT_DECAY
    ready.setdefault("runner_config", {}).update(epochs=1, sink_mode=True, sink_size=1)
    if run.pipeline_stages > 1:
        ready["parallel_config"]["micro_batch_num"] = run.micro_batches
    else:
        ready["runner_config"]["gradient_accumulation_steps"] = run.accumulation_steps
    if lacks_clipping(config, run):
        ready["runner_wrapper"]["use_clip_grad"] = True
    _set_context(ready)
    _set_dataset(ready, run, data)
    return ready


def lacks_clipping(config: Mapping[str, Any], layout: Layout) -> bool:
    """Whether the step is that of a legacy network without gradient clipping, which cannot be simulated.

    It returns no norm (None) beside the loss; MindSpore 2.9 hands such a graph to its CPU backend, which refuses it.
    The pipeline's wrapper clips unless told otherwise, the plain one does not.
    """
    wrapper = config.get("runner_wrapper")
    return (
        layout.legacy and isinstance(wrapper, Mapping) and not wrapper.get("use_clip_grad", layout.pipeline_stages > 1)
    )


def _set_context(ready: dict[str, Any]) -> None:
    context = ready.setdefault("context", {})
    for key in ("ascend_config", "affinity_config", "affinity_cpu_list", "mempool_block_size"):
        context.pop(key, None)
    context.update(device_id=0, max_device_memory="1000GB", save_graphs=False)
    context.setdefault("mode", 0)
    context.setdefault("device_target", "Ascend")
    context.setdefault("jit_config", {"jit_level": "O0"})


def _set_dataset(ready: dict[str, Any], run: Layout, data: Path) -> None:
    dataset = _users_dataset(ready)
    columns = run.columns if run.legacy else _columns(dataset, ready)
    section = {
        "data_loader": _legacy_loader(run, data) if run.legacy else _megatron_loader(dataset, columns, run),
        "input_columns": columns,
        "num_parallel_workers": 1, "python_multiprocessing": False, "drop_remainder": True,
        "numa_enable": False, "prefetch_size": 1, "repeat": 1, "seed": 0,
    }  # fmt: skip
    if not run.legacy:
        section["construct_args_key"] = dataset.get("construct_args_key") or list(columns)
    elif isinstance((ready.get("parallel") or {}).get("dataset_strategy"), list):
        ready["parallel"]["dataset_strategy"] = ready["parallel"]["dataset_strategy"][: len(columns)]
    ready["train_dataset"] = section
    ready["train_dataset_task"] = {
        "type": "CausalLanguageModelDataset",
        "dataset_config": copy.deepcopy(ready["train_dataset"]),
    }


def _users_dataset(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The training set's section, which may stand in its task only; empty when the file has none."""
    task = config.get("train_dataset_task")
    nested = task.get("dataset_config") if isinstance(task, Mapping) else None
    for section in (config.get("train_dataset"), nested):
        if isinstance(section, Mapping) and section:
            return section
    return {}


def _columns(dataset: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Columns of a sample: the file's own, else as many as its dataset strategy splits."""
    own = dataset.get("input_columns")
    if isinstance(own, list) and own:
        return [str(name) for name in own]
    strategy = (config.get("parallel") or {}).get("dataset_strategy")
    masked = isinstance(strategy, list) and len(strategy) == len(_COLUMNS) + 1
    return [*_COLUMNS, "attention_mask"] if masked else list(_COLUMNS)


def samples_needed(layout: Layout) -> int:
    """Rows of synthetic data: enough for the simulated steps, whether a rank reads its share or the whole batch."""
    return _DATASET_SPARE * _STEPS * layout.global_batch


def _legacy_loader(layout: Layout, data: Path) -> dict[str, Any]:
    return {"type": "MindDataset", "dataset_files": [str(mindrecord_path(data, layout))], "shuffle": False}


def mindrecord_path(data: Path, layout: Layout) -> Path:
    """File of synthetic MindRecord rows for this sequence length and batch."""
    rows = 2 ** math.ceil(math.log2(samples_needed(layout)))
    kind = "labelled" if layout.labelled else "tokens"
    return data / f"{kind}-{layout.row_tokens}x{rows}.mindrecord"


def _megatron_loader(dataset: Mapping[str, Any], columns: Sequence[str], layout: Layout) -> dict[str, Any]:
    """Loader of synthetic samples with the user's columns.

    The loader writes its index beside the tokens, without care for others: so they lie in the run's own folder.
    (``path_to_cache`` is no way: with it, ranks above 0 wait for files that rank 0 would write.)
    """
    loader = dataset.get("data_loader")
    own = (loader.get("config") if isinstance(loader, Mapping) else None) or {}
    settings = {"eod": 1, "pad": -1} | {key: own[key] for key in _SAMPLE_SETTINGS if key in own}
    settings.update(
        seed=1234, split="1, 0, 0", seq_length=layout.seq, data_path=["1", f"./{TOKENS}"],
        create_attention_mask="attention_mask" in columns, create_compressed_eod_mask="actual_seq_len" in columns,
    )  # fmt: skip
    return {
        "type": "BlendedMegatronDatasetDataLoader", "datasets_type": "GPTDataset", "shuffle": False,
        "sizes": [samples_needed(layout), 0, 0], "config": settings,
    }  # fmt: skip
