"""A plan as one MindFormers PyNative file (``TrainConfig`` of MindFormers 2.x)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from planner.cost.strategies import Strategy
from planner.dialects import families
from planner.dialects.graph import layout, mcore
from planner.dialects.graph.sections import DATA_PLACEHOLDER, memory_text, predicted, samples
from planner.dialects.records import File, Placeholder, Settings
from planner.dialects.text.yaml_write import Entry, Items, document
from planner.errors import EmitError
from planner.plan import Plan

TARGET: Final = "mindformers-pynative"
NAME: Final = "pretrain.yaml"
CP_NAMES: Final = {"ring": "colossal", "ulysses": "ulysses", "hybrid": "hybrid"}
SCHEDULES: Final = {"1f1b": "1f1b", "interleaved": "interleaved_1f1b", "gpipe": "gpipe"}
#: Module of a layer that selective recompute recomputes: the activation of the MLP.
SELECTED: Final = "mlp.activation_func"
#: Keys of the graph-mode model section that this dialect does not have or spells otherwise.
_GRAPH_ONLY: Final = frozenset(
    "model_type architectures offset pp_interleave_num input_sliced_sig hidden_act gated_linear_unit "
    "use_contiguous_weight_layout_attention bias_swiglu_fusion use_fused_ops_topkrouter fp32_residual_connection "
    "moe_token_dispatcher_type apply_rope_fusion mla_qkv_concat mtp_loss_factor moe_router_pre_softmax "
    "use_attn_mask_compression".split()
)


def render(plan: Plan, settings: Settings | None = None) -> File:
    """Text of ``pretrain.yaml``.

    Raises
    ------
    EmitError
        No PyNative class for the family, or something in the strategy that this dialect has no words for.
    """
    settings = settings or Settings()
    families.check_family(plan.model, TARGET)
    mcore.check(plan.model)
    _check(plan)
    entries = [
        *_training(plan, settings),
        _parallelism(plan),
        _recompute(plan),
        Entry("context", _context(plan), above="MindSpore context"),
        _dataset(plan, settings),
        Entry("model", _model(plan), above=f"Model (shape: {plan.model.name})"),
    ]
    where = "train_dataset.dataloader.config.data_path"
    needed = Placeholder(file=NAME, where=where, what="prefix of the Megatron .bin/.idx training data")
    placeholders = () if settings.data_path else (needed,)
    return File(name=NAME, text=document(_header(plan, placeholders), entries), placeholders=placeholders)


def _header(plan: Plan, placeholders: Sequence[Placeholder]) -> list[str]:
    s, w = plan.strategy, plan.workload
    lines = [
        f"{plan.model.name}: pre-training on {plan.devices} x {plan.hardware}, sequence {w.seq}, "
        f"global batch {w.global_batch}",
        f"dp {s.dp} x tp {s.tp} x pp {s.pp} x cp {s.cp} = {s.devices} devices; ep {s.ep}, vpp {s.vpp}, "
        f"{s.micro_batches} micro-batches of {s.micro_batch_size}",
        f"Written by planner {plan.planner}. MindFormers PyNative mode (run_mindformer.py --mode 1).",
        "Sections of MindFormers 2.0.0 (MindSpore 2.10.0, hyper-parallel 1.0) and 2.1.0 (MindSpore 2.11.0).",
    ]
    figures = predicted(plan)
    lines += [figures] if figures else []
    return [*lines, *(f"To fill in: {p.where}: {p.what}" for p in placeholders), ""]


def _check(plan: Plan) -> None:
    s = plan.strategy
    both = any(s.recompute_full) and any(s.recompute_selective)
    for wrong, what in (
        (s.schedule not in SCHEDULES, f"schedule {s.schedule!r}; legal: {', '.join(SCHEDULES)}"),
        ((s.vpp > 1) != (s.schedule == "interleaved"), f"schedule {s.schedule} together with vpp {s.vpp}"),
        (s.zero_level not in (0, 3), f"optimizer sharding level {s.zero_level}; legal: 0, 3 (fully sharded)"),
        (
            s.zero_level == 3 and s.optimizer_shard % s.cp > 0,
            f"a shard of {s.optimizer_shard} ranks that splits cp {s.cp}",
        ),
        (s.zero_level == 0 and s.cp > 1, "context parallelism without sharding: its ranks always share parameters"),
        (s.swap_optimizer, "optimizer states on the host"),
        (s.sequence_parallel != (s.tp > 1), "sequence parallelism other than together with tensor parallelism"),
        (both, "whole and selective recompute together: one mode serves all layers"),
        (any(s.recompute_selective) and plan.model.moe is not None, "selective recompute of MoE layers"),
        (any(n == 0 for row in s.layers for n in row), "a stage without layers"),
        (s.ep > 1 and (_shard(plan) * s.cp * s.tp) % s.ep > 0, f"ep {s.ep} that does not divide shard x cp x tp"),
        (plan.workload.optimizer != "AdamW", f"optimizer {plan.workload.optimizer}"),
    ):
        if wrong:
            raise EmitError(f"{TARGET} cannot hold {what}.")


def _shard(plan: Plan) -> int:
    """``data_parallel_shard``: data-parallel ranks of one sharding group."""
    s = plan.strategy
    return max(s.optimizer_shard // s.cp, 1) if s.zero_level == 3 else 1


def _training(plan: Plan, settings: Settings) -> list[Entry]:
    s, batch = plan.strategy, plan.workload.global_batch
    training = [
        Entry("steps", samples(plan) // batch),
        Entry("local_batch_size", s.micro_batch_size, "samples of one micro-batch on one data-parallel rank"),
        Entry("global_batch_size", batch, f"{s.micro_batch_size} x dp {s.dp} x {s.micro_batches} micro-batches"),
        Entry("max_norm", 1.0),
        Entry("seed", 42),
        Entry("deterministic", False),
    ]
    optimizer = [
        Entry("type", "AdamW"), Entry("betas", [0.9, 0.95]), Entry("eps", 1e-8), Entry("weight_decay", 0.1),
    ]  # fmt: skip
    scheduler = [
        Entry("type", "CosineWithWarmUpLR"), Entry("learning_rate", 1e-4), Entry("lr_end", 1e-5),
        Entry("warmup_ratio", 0.01),
    ]  # fmt: skip
    checkpoint = [
        Entry("enable_save", True),
        Entry("save_path", f"{settings.output_dir}/checkpoint"),
        Entry("save_max", 3),
        Entry("save_interleaved_steps", 1000),
        Entry("load_path", "", "empty: train from scratch"),
    ]
    return [
        Entry("training", training, above="Steps and batch"),
        Entry("optimizer", optimizer),
        Entry("lr_scheduler", scheduler),
        Entry("checkpoint", checkpoint),
    ]


def _parallelism(plan: Plan) -> Entry:
    s = plan.strategy
    shard = _shard(plan)
    why = {1: "nothing is sharded over data parallelism", s.dp: "parameters, gradients and states over all dp ranks"}
    entries = [
        Entry("data_parallel_shard", shard, why.get(shard, f"groups of {shard} of {s.dp}")),
        Entry("data_parallel_shard_strategy", "optim_grads_params"),
        Entry("reshard_after_forward_policy", "default", "gathered parameters are dropped unless there is a pipeline"),
        Entry("tensor_parallel", s.tp, f"{plan.model.attention.heads // s.tp} attention heads on a device"),
        Entry("sequence_parallel", s.sequence_parallel),
        Entry("context_parallel", s.cp, f"{plan.devices} devices leave dp {s.dp}"),
    ]
    if s.cp > 1:
        entries.append(Entry("context_parallel_method", CP_NAMES[s.cp_algorithm]))
        if s.cp_algorithm != "ring":
            entries.append(Entry("ulysses_degree_in_cp", s.ulysses_degree))
    entries += [
        Entry("pipeline_parallel", s.pp),
        Entry("pipeline_parallel_schedule", SCHEDULES[s.schedule]),
        Entry("pipeline_parallel_interleave_num", s.vpp),
        Entry("pipeline_parallel_layers_per_stage", layers_per_stage(s.layers), _stage_note(plan)),
    ]
    if plan.model.moe is not None:
        entries.append(Entry("expert_parallel", s.ep, f"{plan.model.moe.experts // s.ep} experts on a device"))
        entries.append(Entry("moe_token_dispatcher_type", "alltoall"))
    return Entry("parallelism", entries, above="Degrees of parallelism")


def _stage_note(plan: Plan) -> str:
    return "layers of each stage, first-last of each chunk" if plan.strategy.pp > 1 else ""


def layers_per_stage(layers: layout.Counts) -> str | list[str]:
    """``pipeline_parallel_layers_per_stage``: "auto" where all chunks are equal.

    >>> layers_per_stage(((2, 2),)), layers_per_stage(((3, 2), (2, 1)))
    ('auto', ['0-2,5-6', '3-4,7'])
    """
    if len({count for row in layers for count in row}) == 1:
        return "auto"
    stages: list[list[str]] = [[] for _ in layers[0]]
    first = 0
    for row in layers:
        for stage, count in enumerate(row):
            stages[stage].append(_range(first, first + count - 1))
            first += count
    return [",".join(chunks) for chunks in stages]


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def ranges(numbers: Iterable[int]) -> list[str]:
    """Ascending ranges of layer numbers.

    >>> ranges([0, 1, 2, 5, 7, 8])
    ['0-2', '5', '7-8']
    """
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return [_range(first, last) for first, last in found]


def first_layers(counts: Sequence[int], layers: layout.Counts) -> list[int]:
    """Numbers of the layers that a count for each stage means: the first of its chunks, dealt in turn."""
    rows = layout.spread(counts, layers)
    numbers: list[int] = []
    first = 0
    for row, chunk in zip(rows, layers, strict=True):
        for taken, count in zip(row, chunk, strict=True):
            numbers += range(first, first + taken)
            first += count
    return numbers


def recompute_values(s: Strategy) -> dict[str, str | list[str] | dict[str, list[str]]]:
    """Section ``recompute``."""
    if any(s.recompute_full):
        return {"mode": "full", "full_recompute_layer": ranges(first_layers(s.recompute_full, s.layers))}
    if any(s.recompute_selective):
        layers = ranges(first_layers(s.recompute_selective, s.layers))
        return {"mode": "select", "select_module": {SELECTED: layers}}
    return {"mode": "None"}


def _recompute(plan: Plan) -> Entry:
    s = plan.strategy
    why = f"{sum(s.recompute_full)} of {plan.model.layers} layers are recomputed whole" if any(s.recompute_full) else ""
    entries = []
    for key, value in recompute_values(s).items():
        nested = [Entry(name, layers) for name, layers in value.items()] if isinstance(value, dict) else value
        entries.append(Entry(key, nested, why if key == "full_recompute_layer" else ""))
    return Entry("recompute", entries, above="Recompute")


def _context(plan: Plan) -> list[Entry]:
    return [
        Entry("mode", 1, "PyNative"),
        Entry("device_target", "Ascend"),
        Entry("max_device_memory", memory_text(plan.memory_limit_bytes), "limit of the memory pool"),
    ]


def _dataset(plan: Plan, settings: Settings) -> Entry:
    note = "weight, then prefix of a .bin/.idx pair" + ("" if settings.data_path else "  <-- PLACEHOLDER")
    config = [
        Entry("split", "1, 0, 0"),
        Entry("seq_length", plan.workload.seq),
        Entry("eod_mask_loss", False),
        Entry("reset_position_ids", False),
        Entry("create_attention_mask", False),
        Entry("reset_attention_mask", False),
        Entry("create_compressed_eod_mask", False),
        Entry("eod_pad_length", 128),
        Entry("eod", 0, "unused while the flags above are False"),
        Entry("pad", -1),
        Entry("data_path", Items(("1", settings.data_path or DATA_PLACEHOLDER)), note),
    ]
    loader = [
        Entry("type", "BlendedMegatronDatasetDataLoader"),
        Entry("datasets_type", "GPTDataset"),
        Entry("sizes", [samples(plan), 0, 0], "samples to train on"),
        Entry("config", config),
        Entry("column_names", mcore.COLUMNS),
        Entry("shuffle", False),
        Entry("python_multiprocessing", False),
    ]
    entries = [
        Entry("dataloader", loader),
        Entry("drop_remainder", True),
        Entry("num_parallel_workers", 8),
        Entry("prefetch_size", 1),
        Entry("numa_enable", False),
    ]
    return Entry("train_dataset", entries, above="Data")


def _model(plan: Plan) -> list[Entry]:
    """Flat model section: the graph-mode keys that this dialect shares, and its own spellings."""
    kind, architecture = families.PYNATIVE[plan.model.family]
    shared = [entry for entry in mcore.model_config(plan) if entry.key not in _GRAPH_ONLY]
    own = [Entry("hidden_act", "silu"), Entry("gated_linear_unit", True)]
    if plan.workload.flash_attention:
        own.append(Entry("use_attn_mask_compression", True, "needed with context parallelism"))
    if plan.model.mtp_layers:
        own.append(Entry("mtp_loss_scaling_factor", 0.3))
    return [Entry("model_type", kind), Entry("architectures", architecture), *shared, *own]
