"""Sections of a MindFormers graph-mode file that both dialects share."""

from __future__ import annotations

from typing import Final

from planner.cost.strategies import Strategy
from planner.dialects.graph import layout
from planner.dialects.records import Settings
from planner.dialects.text.yaml_write import Alias, Entry, Items
from planner.plan import Plan
from planner.units import GIB, format_bytes, format_seconds

#: Version pair that emitted graph-mode files were loaded and built with.
MINDFORMERS, MINDSPORE = "1.9.0", "2.9.0"
#: Other exact pairs of MindFormers and MindSpore releases that read the same sections.
OTHER_PAIRS: Final = (("1.8.0", "2.7.2"), ("2.0.0", "2.10.0"), ("2.1.0", "2.11.0"))
DATA_PLACEHOLDER: Final = "/path/to/dataset"
_STEPS_WITHOUT_BUDGET: Final = 10_000


def header(plan: Plan, dialect: str) -> list[str]:
    """Comment lines on top: what this is, what it was proved on, what is predicted."""
    s = plan.strategy
    pairs = ", ".join(f"{a} with {b}" for a, b in OTHER_PAIRS)
    lines = [
        f"{plan.model.name}: pre-training on {plan.devices} x {plan.hardware}, sequence {plan.workload.seq}, "
        f"global batch {plan.workload.global_batch}",
        f"dp {s.dp} x tp {s.tp} x pp {s.pp} x cp {s.cp} = {s.devices} devices; ep {s.ep}, vpp {s.vpp}, "
        f"{s.micro_batches} micro-batches of {s.micro_batch_size}",
        f"Written by planner {plan.planner}. MindFormers graph mode, {dialect} dialect.",
        f"Proved with MindFormers {MINDFORMERS} and MindSpore {MINDSPORE} (release pairs are exact; others: {pairs}).",
    ]
    figures = predicted(plan)
    return [*lines, figures, ""] if figures else [*lines, ""]


def predicted(plan: Plan) -> str:
    """One line with what is predicted, or nothing."""
    parts = []
    step_s, peak = plan.estimate.get("step_s"), plan.estimate.get("peak_bytes")
    if isinstance(step_s, (int, float)) and step_s > 0:
        tokens = plan.workload.seq * plan.workload.global_batch / step_s / plan.devices
        parts.append(f"{format_seconds(step_s)} a step, {tokens:.0f} tokens/s/device")
    if isinstance(peak, (int, float)) and peak > 0:
        parts.append(f"peak {format_bytes(peak)} of {format_bytes(plan.memory_limit_bytes)}")
    return f"Predicted: {'; '.join(parts)}." if parts else ""


def memory_text(size_bytes: int) -> str:
    """Memory limit as ``context.max_device_memory`` takes it: whole or tenth GB (2**30 bytes), rounded down.

    >>> memory_text(58 * 2**30), memory_text(int(55.5 * 2**30))
    ('58GB', '55.5GB')
    """
    tenths = size_bytes * 10 // GIB
    return f"{tenths // 10}GB" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}GB"


def run(plan: Plan, settings: Settings, *, legacy: bool) -> list[Entry]:
    """Top-level keys, trainer and runner."""
    return [
        Entry("seed", 42),
        Entry("output_dir", settings.output_dir, "checkpoints, strategy files and logs"),
        Entry("load_checkpoint", "", "empty: train from scratch"),
        Entry("load_ckpt_format", "safetensors"),
        Entry("auto_trans_ckpt", False, "True: reshard load_checkpoint to this layout"),
        Entry("resume_training", False),
        Entry("run_mode", "train"),
        Entry("use_parallel", True),
        Entry(
            "use_legacy", legacy, "legacy model classes" if legacy else "mcore model classes; the default would be True"
        ),
        Entry(
            "trainer",
            [Entry("type", "CausalLanguageModelingTrainer"), Entry("model_name", plan.model.name)],
            above="Trainer and steps",
        ),
        Entry("runner_config", _runner(plan)),
    ]


def _runner(plan: Plan) -> list[Entry]:
    s = plan.strategy
    accumulation = s.micro_batches if s.pp == 1 else 1
    why = "micro-batches of a step (no pipeline)" if s.pp == 1 else "ignored with a pipeline: micro_batch_num counts"
    return [
        Entry("epochs", 1),
        Entry("batch_size", s.micro_batch_size, "samples of one micro-batch on one data-parallel rank"),
        Entry("gradient_accumulation_steps", accumulation, why),
        Entry("sink_mode", True),
        Entry("sink_size", 1, "steps between two looks at the loss"),
    ]


def optimizer(plan: Plan) -> list[Entry]:
    """Optimizer, learning rate, loss scaling."""
    entries = [Entry("type", plan.workload.optimizer)]
    if plan.workload.optimizer == "AdamW":
        entries += [Entry("betas", [0.9, 0.95]), Entry("eps", 1e-8)]
    entries.append(Entry("weight_decay", 0.1))
    if plan.strategy.swap_optimizer:
        entries.append(Entry("swap", True, "optimizer states wait in host memory between steps"))
    schedule = [
        Entry("type", "CosineWithWarmUpLR"),
        Entry("learning_rate", 1e-4),
        Entry("lr_end", 1e-5),
        Entry("warmup_ratio", 0.01),
        Entry("total_steps", -1, "-1: as many as the data set gives"),
    ]
    wrapper = [Entry("type", "MFTrainOneStepCell"), _loss_scale(plan), Entry("use_clip_grad", True)]
    return [
        Entry("optimizer", entries, above="Optimizer and learning rate"),
        Entry("lr_schedule", schedule),
        Entry("runner_wrapper", wrapper),
    ]


def _loss_scale(plan: Plan) -> Entry:
    if plan.workload.compute_dtype != "float16":
        return Entry("scale_sense", 1.0)
    dynamic = [
        Entry("type", "DynamicLossScaleUpdateCell"),
        Entry("loss_scale_value", 65536),
        Entry("scale_factor", 2, "divided by it on overflow, multiplied after scale_window steps without"),
        Entry("scale_window", 1000),
    ]
    return Entry("scale_sense", dynamic)


def samples(plan: Plan) -> int:
    """Samples to train on: the token budget, else ten thousand steps."""
    batch = plan.workload.global_batch
    wanted = plan.workload.tokens // plan.workload.seq if plan.workload.tokens else _STEPS_WITHOUT_BUDGET * batch
    return max(wanted // batch, 1) * batch


def context(plan: Plan) -> Entry:
    """MindSpore context."""
    memory = memory_text(plan.memory_limit_bytes)
    entries = [
        Entry("mode", 0, "graph mode"),
        Entry("device_target", "Ascend"),
        Entry("max_call_depth", 10000, "deep networks unroll into deep call stacks"),
        Entry("max_device_memory", memory, "limit of the memory pool; the rest is for HCCL buffers and the runtime"),
        Entry("mempool_block_size", memory, "reserve it in one block, so that it cannot fragment"),
        Entry("memory_optimize_level", "O0"),
        Entry("jit_config", [Entry("jit_level", "O0")]),
    ]
    return Entry("context", entries, above="MindSpore context")


def parallel_config(plan: Plan, *, legacy: bool) -> list[Entry]:
    """Degrees and micro-batches."""
    s = plan.strategy
    entries = [
        Entry(
            "data_parallel",
            s.dp,
            f"{plan.devices} devices = dp {s.dp} x tp {s.tp} x pp {s.pp} x cp {s.cp}",
            anchor="dp",
        ),
        Entry("model_parallel", s.tp, _tensor_reason(plan)),
        Entry("pipeline_stage", s.pp, f"{_span(s.layers_per_stage)} layers a stage"),
        Entry("context_parallel", s.cp, f"{plan.workload.seq // s.cp} of {plan.workload.seq} tokens on a device"),
    ]
    entries += _context_parallel(plan, legacy=legacy)
    if plan.model.moe is not None:
        share = plan.model.moe.experts // s.ep
        entries.append(Entry("expert_parallel", s.ep, f"{share} of {plan.model.moe.experts} experts on a device"))
    entries += [
        Entry("micro_batch_num", s.micro_batches if s.pp > 1 else 1, _batch_reason(plan)),
        Entry("use_seq_parallel", s.sequence_parallel, _sequence_reason(s)),
        Entry("vocab_emb_dp", False, "the vocabulary is split over the tensor-parallel ranks" if s.tp > 1 else ""),
        Entry("gradient_aggregation_group", 4, "fuses gradient communication"),
    ]
    interleave = Entry("micro_batch_interleave_num", 1)
    return [Entry("parallel_config", entries, above="Degrees of parallelism"), interleave]


def _sequence_reason(s: Strategy) -> str:
    if s.sequence_parallel:
        return "norms and residuals are split over the tensor-parallel ranks"
    return "needs model_parallel of at least 2" if s.tp == 1 else "norms and residuals are whole on every rank"


def _context_parallel(plan: Plan, *, legacy: bool) -> list[Entry]:
    s = plan.strategy
    if s.cp == 1:
        return []
    name = layout.CP_NAMES[s.cp_algorithm]
    if s.cp_algorithm == "ring":
        return [Entry("context_parallel_algo", name, "keys and values travel, heads stay")]
    if s.cp_algorithm == "hybrid" and not legacy:
        name, why = layout.CP_NAMES["ring"], "mcore makes it hybrid by the degree below; it has no name for it"
    else:
        why = {"ulysses": "heads are exchanged for tokens", "hybrid": "heads inside, keys and values between"}[
            s.cp_algorithm
        ]
    degree_why = f"{s.ulysses_degree} ranks exchange heads"
    if not legacy:
        degree_why += "; mcore reads it from here, not from the name"
    degree = Entry("ulysses_degree_in_cp", s.ulysses_degree, degree_why)
    return [Entry("context_parallel_algo", name, why), degree]


def _tensor_reason(plan: Plan) -> str:
    heads = plan.model.attention.heads // plan.strategy.tp
    inside = plan.strategy.tp <= plan.devices_per_node
    where = "" if plan.strategy.tp == 1 else "; stays inside a node" if inside else "; spans nodes"
    return f"{heads} attention heads on a device{where}"


def _batch_reason(plan: Plan) -> str:
    s = plan.strategy
    return f"global batch {plan.workload.global_batch} = {s.micro_batch_size} x dp {s.dp} x {s.micro_batches}"


def _span(counts: tuple[int, ...]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def parallel(plan: Plan, *, legacy: bool) -> Entry:
    """Section handed to ``mindspore.set_auto_parallel_context``."""
    exchanged = plan.model.moe is not None or plan.strategy.ulysses_degree > 1
    why = "experts and heads are exchanged by all-to-all, not gathered" if exchanged else "no experts, no head exchange"
    entries = [
        Entry("parallel_mode", 1, "semi-automatic"),
        Entry("gradients_mean", False),
        Entry("enable_alltoall", exchanged, why),
    ]
    if legacy:
        entries.append(Entry("full_batch", True, "every rank reads the whole batch"))
    else:
        columns = [[Alias("dp"), 1]] * 4
        entries += [
            Entry("full_batch", False, "a rank reads its own share of the batch"),
            Entry("dataset_strategy", columns, "input_ids, labels, loss_mask, position_ids"),
        ]
    entries.append(Entry("search_mode", "sharding_propagation"))
    entries += _optimizer_sharding(plan)
    entries += _pipeline(plan)
    strategy_file = [Entry("save_file", "./ckpt_strategy.ckpt"), Entry("only_trainable_params", False)]
    entries.append(Entry("strategy_ckpt_config", strategy_file))
    return Entry("parallel", entries, above="Automatic parallel context")


def _optimizer_sharding(plan: Plan) -> list[Entry]:
    s = plan.strategy
    if s.zero_level == 0:
        return [Entry("enable_parallel_optimizer", False, "every data-parallel rank keeps all optimizer states")]
    ranks = s.dp * s.cp
    config = []
    if s.zero_level == 3:
        config.append(Entry("optimizer_level", "level3", "parameters too are gathered only where they are used"))
    else:
        why = "accumulated gradients too are sharded" if s.zero_level == 2 else "accumulated gradients stay whole"
        config.append(Entry("gradient_accumulation_shard", s.zero_level == 2, why))
    config.append(Entry("parallel_optimizer_threshold", 64, "parameters below 64 KB are not sharded"))
    if s.optimizer_shard != ranks:
        why = f"{s.optimizer_shard} of the {ranks} ranks share one copy"
        config.append(Entry("optimizer_weight_shard_size", s.optimizer_shard, why))
    return [
        Entry("enable_parallel_optimizer", True, f"optimizer states are sharded over {s.optimizer_shard} ranks"),
        Entry("parallel_optimizer_config", config),
    ]


def _pipeline(plan: Plan) -> list[Entry]:
    config = layout.pipeline_config(plan.strategy)
    if config is None:
        return []
    reasons = {
        "pipeline_interleave": f"takes effect together with pp_interleave_num {plan.strategy.vpp}",
        "pipeline_scheduler": "",
    }
    return [Entry("pipeline_config", [Entry(key, value, reasons[key]) for key, value in config.items()])]


def recompute(plan: Plan, named: bool | list[Entry] | None = None, *, legacy: bool) -> Entry:
    """Recompute lists; `named` selective recompute where the default operators are not the network's."""
    s = plan.strategy
    full, selective = sum(s.recompute_full), sum(s.recompute_selective)
    nested = "; rows are chunks, columns stages" if s.vpp > 1 and isinstance(layout.recompute(s), list) else ""
    select_why = "layers from the front of a stage, whole recompute first; recompute only the activation of the MLP"
    if legacy:
        select_why = "saves no memory in legacy networks of MindFormers 1.9"
    entries = [
        Entry("recompute", layout.recompute(s), f"{full} of {plan.model.layers} layers are recomputed whole{nested}"),
        Entry(
            "select_recompute",
            layout.select_recompute(s) if named is None else named,
            select_why if selective else "",
        ),
        Entry("parallel_optimizer_comm_recompute", False, "gathered parameters are kept for the backward pass"),
        Entry("mp_comm_recompute", True, "tensor-parallel communication is recomputed with its layer"),
        Entry("recompute_slice_activation", False),
    ]
    return Entry("recompute_config", entries, above="Recompute")


def callbacks(plan: Plan, *, balance: bool) -> Entry:
    """Loss, checkpoints and, where the router has a bias, its update."""
    checkpoint = [
        Entry("type", "CheckpointMonitor"),
        Entry("prefix", "pretrain"),
        Entry("save_checkpoint_steps", 1000),
        Entry("keep_checkpoint_max", 3),
        Entry("integrated_save", False, "every rank saves its own part"),
        Entry("async_save", False),
        Entry("checkpoint_format", "safetensors"),
    ]
    items: list[list[Entry]] = [[Entry("type", "MFLossMonitor")]]
    if balance:
        items.append([Entry("type", "TopkBiasBalanceCallback", "moves the router bias towards even experts")])
    return Entry("callbacks", Items((*items, checkpoint)), above="Callbacks")
