"""Read a MindFormers graph-mode file back: model, workload and strategy, and what of it could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from planner.cost.strategies import Strategy
from planner.dialects.graph import glm, layout, read_model, weights
from planner.dialects.text.fields import Section
from planner.dialects.text.yaml_read import Document
from planner.errors import SpecError
from planner.frameworks import LEAST_COMPRESSED_SEQ, FrameworkName
from planner.model.records import Model, Workload
from planner.units import parse_bytes

_TYPES: Final = {"float32": "float32", "fp32": "float32", "float16": "float16", "fp16": "float16",
                 "bfloat16": "bfloat16", "bf16": "bfloat16"}  # fmt: skip
#: State tensors that each optimizer of MindFormers keeps for a parameter.
MOMENTS: Final = {"AdamW": 2, "FusedAdamW": 2, "FP32StateAdamWeightDecay": 2, "AdamWeightDecay": 2, "PmaAdamW": 2,
                   "FusedPmaAdamW": 2, "Adam": 2, "Muon": 1, "Came": 1}  # fmt: skip
#: Key that releases from 1.6 on know; no file of an earlier one has it.
RELEASE_MARK: Final = "use_legacy"
#: What a file without it is taken for, where that changes the answer.
EARLY_NOTE: Final = (
    "release up to 1.5 (no use_legacy in the file), where selective recompute of legacy networks takes effect; "
    "write use_legacy: True for a newer one"
)
_IGNORED_PARALLEL_CONFIG: Final = frozenset(
    "gradient_aggregation_group vocab_emb_dp optimizer_shard mem_coeff".split()
)  # fmt: skip
_IGNORED_PARALLEL: Final = frozenset(
    "gradients_mean enable_alltoall full_batch dataset_strategy search_mode strategy_ckpt_save_file "
    "strategy_ckpt_config loss_repeated_mean comm_fusion device_num global_rank pipeline_stages".split()
)
_IGNORED_RECOMPUTE: Final = frozenset(
    "parallel_optimizer_comm_recompute mp_comm_recompute recompute_slice_activation".split()
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """What a file says.

    Attributes
    ----------
    model, workload, strategy
        As far as the file determines them.
    unread : tuple of str
        Keys and settings that the records cannot hold or that were not understood, one line each.
    unreliable : tuple of str
        What was not read and decides the answer, one line each with the reason; see ``planner.dialects.weights``.
    dialect : str
        ``mindformers-mcore``, ``mindformers-legacy``, ``mindformers-pynative``, ``mindspeed`` or ``plan``.
    memory_limit_bytes : int or None
        Limit of the memory pool written in the file [bytes].
    hardware : str
        Hardware profile when the file names one, else empty.
    per_node : int
        Devices of a node, where a script says it; else 0.
    calibration : mapping
        Constants that a plan.json was priced with, see ``planner.cluster.kept``; empty for other files.
    """

    model: Model
    workload: Workload
    strategy: Strategy
    unread: tuple[str, ...] = ()
    unreliable: tuple[str, ...] = ()
    dialect: str = ""
    memory_limit_bytes: int | None = None
    hardware: str = ""
    per_node: int = 0
    calibration: Mapping[str, Any] = field(default_factory=dict)


def read_graph(document: Document) -> ReadResult:
    """Parsed graph-mode file of either dialect.

    Raises
    ------
    SpecError
        A section or key that is needed is missing or has an impossible value.
    """
    unread = [f"{'.'.join(path)}: given twice, the last one (line {line}) counts" for path, line in document.duplicates]
    legacy = Section(document).flag("use_legacy", default=True)
    name = str(Section(document, "trainer").any("model_name") or Path(document.source).stem)
    if legacy:
        section, model = read_model.legacy_model(document, name, document.source)
    else:
        section, family = read_model.mcore_section(document)
        model = read_model.mcore_model(section, family, name, document.source)
    strategy = _strategy(document, section, model, unread, legacy=legacy)
    workload = _workload(document, section, strategy, legacy=legacy)
    found = weights.weigh(document, section, legacy=legacy, ignored=read_model.IGNORED)
    return ReadResult(
        model=model,
        workload=workload,
        strategy=strategy,
        unread=(*unread, *found.notes),
        unreliable=found.reasons,
        dialect="mindformers-legacy" if legacy else "mindformers-mcore",
        memory_limit_bytes=_memory_limit(document),
    )


def _memory_limit(document: Document) -> int | None:
    value = Section(document, "context").any("max_device_memory")
    if value is None:
        return None
    return parse_bytes(str(value), f"{Section(document, 'context').where('max_device_memory')}")


def _strategy(document: Document, model_section: Section, model: Model, unread: list[str], *, legacy: bool) -> Strategy:
    degrees, parallel = Section(document, "parallel_config"), Section(document, "parallel")
    pp = degrees.integer("pipeline_stage", default=1, least=1)
    vpp = _chunks(model_section, parallel, pp, unread)
    layers = _layers(model_section, model, pp, vpp)
    sizes = {
        "dp": degrees.integer("data_parallel", default=1, least=1),
        "tp": degrees.integer("model_parallel", default=1, least=1),
        "cp": degrees.integer("context_parallel", default=1, least=1),
        "ep": degrees.integer("expert_parallel", default=1, least=1) if model.moe else 1,
    }
    degrees.read.add("expert_parallel")
    sizes["etp"] = _expert_parts(document, sizes["tp"]) if legacy and model.moe else 1
    if not Section(document).flag("use_parallel", default=False) and any(v > 1 for v in (*sizes.values(), pp)):
        unread.append("use_parallel: False, so MindFormers would run on one device; the degrees are read as written")
    full, selective = _recompute(document, layers, unread)
    batch_size, micro_batches = _batches(document, degrees, pp, unread)
    zero_level, shard = _optimizer_sharding(parallel, sizes["dp"] * sizes["cp"])
    algorithm, degree = _context_parallel(degrees, sizes["cp"], unread, legacy=legacy)
    strategy = Strategy(
        **sizes,
        pp=pp,
        vpp=vpp,
        layers=layers,
        recompute_full=full,
        recompute_selective=selective,
        micro_batches=micro_batches,
        micro_batch_size=batch_size,
        cp_algorithm=algorithm,
        ulysses_degree=degree,
        # without tensor parallelism legacy networks do nothing for it, and mcore networks refuse it
        sequence_parallel=degrees.flag("use_seq_parallel", default=False) and not (legacy and sizes["tp"] == 1),
        zero_level=zero_level,
        optimizer_shard=shard,
        swap_optimizer=bool(Section(document, "optimizer").any("swap", default=False)),
        schedule=_schedule(parallel, vpp, legacy=legacy),
    )
    if degrees.integer("seq_split_num", default=1, least=1) > 1:
        unread.append(
            "parallel_config.seq_split_num: memory counts the pieces, the seconds do not (their bubble is long)"
        )
    _leftovers(document, degrees, parallel, unread)
    return strategy


def _expert_parts(document: Document, tp: int) -> int:
    """Ranks that share each expert of a legacy network: grouped products take whole experts (``moev3.py``), others tp.

    ``expert_model_parallel`` says which (``llama_layer.py``).
    """
    section = Section(document, "moe_config")
    if section.flag("use_gmm", default=False):
        return 1
    return section.integer("expert_model_parallel", default=tp, least=1)


def _schedule(parallel: Section, vpp: int, *, legacy: bool) -> str:
    """Schedule that runs: with one slice of a sequence, all that mcore networks take, and one chunk seqpipe is 1F1B."""
    schedule = layout.schedule_of(parallel.any("pipeline_config"), vpp)
    if schedule == "seqpipe" and (vpp == 1 or not legacy):
        return "interleaved" if vpp > 1 else "1f1b"
    return schedule


def _leftovers(document: Document, degrees: Section, parallel: Section, unread: list[str]) -> None:
    parallel.any("parallel_mode")
    parallel.any("auto_pipeline")
    unread += degrees.unread(_IGNORED_PARALLEL_CONFIG) + parallel.unread(_IGNORED_PARALLEL)


def _chunks(model_section: Section, parallel: Section, pp: int, unread: list[str]) -> int:
    vpp = model_section.integer("pp_interleave_num", "virtual_pipeline_model_parallel_size", default=1, least=1)
    pipeline = parallel.any("pipeline_config") or {}
    if not isinstance(pipeline, dict):
        raise SpecError(f"{parallel.where('pipeline_config')} is {pipeline!r}; it must be a section.")
    if vpp > 1 and (pp == 1 or not pipeline.get("pipeline_interleave", False)):
        unread.append(
            "model.model_config.pp_interleave_num: ignored, because "
            + ("there is no pipeline" if pp == 1 else "parallel.pipeline_config.pipeline_interleave is not True")
        )
        return 1
    return vpp


def _layers(section: Section, model: Model, pp: int, vpp: int) -> layout.Counts:
    try:
        return layout.layers_from_offset(section.any("offset", default=0), model.layers, pp, vpp)
    except SpecError as error:
        raise SpecError(f"{section.where('offset')}: {error}") from None


def _recompute(document: Document, layers: layout.Counts, unread: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    section = Section(document, "recompute_config")
    full, select = section.any("recompute", default=False), section.any("select_recompute", default=False)
    if not select:
        select = section.any("select_comm_recompute", default=False) or False
    section.read.add("select_comm_recompute")
    if Section(document, "swap_config").values.get("swap") and isinstance(full, list):
        raise SpecError(
            f"{section.where('recompute')}: with swap_config.swap the list holds layer numbers; it is not read."
        )
    if isinstance(select, dict) and set(select) == set(glm.SELECTED) and len({str(v) for v in select.values()}) == 1:
        select = select[glm.SELECTED[0]]
    elif isinstance(select, dict):
        unread.append("recompute_config.select_recompute: operator patterns; the layers of the longest list are taken")
        select = _longest(section, list(select.values()), layers)
    elif isinstance(select, list) and select and all(isinstance(item, str) for item in select):
        unread.append(
            "recompute_config.select_recompute: operator patterns; read as selective recompute of every layer"
        )
        select = True
    unread += section.unread(_IGNORED_RECOMPUTE, only_set=True)
    try:
        return layout.recompute_of(full, select, layers)
    except SpecError as error:
        raise SpecError(f"{section.where()}: {error}") from None


def _longest(section: Section, values: list[Any], layers: layout.Counts) -> Any:
    try:
        counts = [layout.chunk_counts(value, layers, "select_recompute") for value in values]
    except SpecError as error:
        raise SpecError(f"{section.where('select_recompute')}: {error}") from None
    if not counts:
        return False
    top = max(counts, key=lambda rows: sum(map(sum, rows)))
    return [list(row) for row in top] if len(top) > 1 else list(top[0])


def _batches(document: Document, degrees: Section, pp: int, unread: list[str]) -> tuple[int, int]:
    runner = Section(document, "runner_config")
    batch_size = runner.integer("batch_size", default=1, least=1)
    micro = degrees.integer("micro_batch_num", default=1, least=1)
    accumulation = runner.integer("gradient_accumulation_steps", default=1, least=1)
    if pp == 1 and micro > 1:
        unread.append("parallel_config.micro_batch_num: ignored without a pipeline; gradient_accumulation_steps counts")
    if pp > 1 and accumulation > 1:
        unread.append("runner_config.gradient_accumulation_steps: ignored with a pipeline; micro_batch_num counts")
    interleave = Section(document).integer("micro_batch_interleave_num", default=1, least=1)
    return batch_size * interleave, micro if pp > 1 else accumulation


def _optimizer_sharding(parallel: Section, ranks: int) -> tuple[int, int]:
    config = parallel.any("parallel_optimizer_config") or {}
    if not parallel.flag("enable_parallel_optimizer", default=False):
        return 0, 1
    size = config.get("optimizer_weight_shard_size", -1)
    if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
        raise SpecError(
            f"{parallel.where('parallel_optimizer_config')}.optimizer_weight_shard_size is {size!r}; "
            "it must be -1 or a positive whole number."
        )
    level = {"level1": 1, "level2": 2, "level3": 3}.get(str(config.get("optimizer_level")), 1)
    if level == 1 and config.get("gradient_accumulation_shard"):
        level = 2
    return level, ranks if size == -1 else min(size, ranks)


def _context_parallel(degrees: Section, cp: int, unread: list[str], *, legacy: bool) -> tuple[str, int]:
    name = degrees.text("context_parallel_algo", default="colossalai_cp")
    degree = degrees.integer("ulysses_degree_in_cp", default=1, least=1)
    if name not in ("colossalai_cp", "ulysses_cp", "hybrid_cp", "hybird_cp"):
        legal = "colossalai_cp, ulysses_cp, hybrid_cp"
        raise SpecError(f"{degrees.where('context_parallel_algo')} is {name!r}; legal: {legal}.")
    if cp == 1:
        return "ring", 1
    if legacy:
        degree = {"colossalai_cp": 1, "ulysses_cp": cp}.get(name, degree)
    elif name == "ulysses_cp" and degree == 1:
        unread.append(
            "parallel_config.context_parallel_algo: ulysses_cp has no effect in mcore without ulysses_degree_in_cp; "
            "read as ring"
        )
    if cp % degree:
        raise SpecError(
            f"{degrees.where('ulysses_degree_in_cp')} is {degree}, which does not divide context_parallel {cp}."
        )
    return {1: "ring", cp: "ulysses"}.get(degree, "hybrid"), degree


def _workload(document: Document, section: Section, strategy: Strategy, *, legacy: bool) -> Workload:
    params = data_type(
        section, "float16" if legacy else "float32", "params_dtype", "param_init_type", "param_init_dtype"
    )
    optimizer = Section(document, "optimizer").text("type", default="AdamW")
    framework: FrameworkName = "mindformers-legacy" if legacy else "mindformers"
    seq = _sequence(document, section, legacy=legacy)
    early = legacy and any(strategy.recompute_selective) and RELEASE_MARK not in document.root
    return Workload(
        seq=seq,
        global_batch=strategy.dp * strategy.micro_batch_size * strategy.micro_batches,
        params_dtype=params,
        compute_dtype=data_type(section, "float16" if legacy else "bfloat16", "compute_dtype"),
        grads_dtype=params,
        optimizer=optimizer,
        moments=MOMENTS.get(optimizer, 2),
        framework=framework,
        flash_attention=section.flag("use_flash_attention", default=not legacy),
        switches=(
            *_switches(document, section, seq, legacy=legacy),
            *_selective_switches(document, strategy, early=early, legacy=legacy),
        ),
        notes=(EARLY_NOTE,) if early else (),
    )


def _switches(document: Document, section: Section, seq: int, *, legacy: bool) -> tuple[str, ...]:
    """Settings that change memory and differ from the planner's own files (``planner.cost.memory.rules.SWITCHES``)."""
    values = section.values
    compressed = any(values.get(f"use_{kind}attn_mask_compression") is True for kind in ("", "eod_"))
    ring = values.get("use_ring_attention") is True
    degrees = Section(document, "parallel_config")
    parts = Section(document).integer("micro_batch_interleave_num", default=1, least=1)
    pieces = degrees.integer("seq_split_num", default=1, least=1) if legacy else 1
    found = {
        f"batch-parts={parts}": parts > 1,
        f"sequence-pieces={pieces}": pieces > 1,
        "ring-attention": ring,
        "full-attention-mask": not ring and not compressed and seq >= LEAST_COMPRESSED_SEQ,
        "whole-vocabulary": legacy and degrees.flag("vocab_emb_dp", default=True),
        "fused-swiglu": values.get("bias_swiglu_fusion") is True or values.get("hidden_act") == "fusedswiglu",
        "float32-residual": values.get("fp32_residual_connection") is True,
    }
    return tuple(name for name, on in found.items() if on)


def _selective_switches(document: Document, strategy: Strategy, *, early: bool, legacy: bool) -> tuple[str, ...]:
    """What selective recompute does: in legacy networks nothing since release 1.6."""
    if not any(strategy.recompute_selective) or (legacy and not early):
        return ()
    section = Section(document, "recompute_config")
    operators = section.values.get("select_recompute") or False
    gathers = _gathers(section, strategy.layers)
    found = {
        "selective-legacy": early and bool(operators),
        "gathers-alone": not operators,
        "gathers=" + ",".join(map(str, gathers)): any(gathers),
    }
    return tuple(name for name, on in found.items() if on)


def _gathers(section: Section, layers: layout.Counts) -> tuple[int, ...]:
    """Layers of each stage whose gathers are recomputed."""
    value = section.any("select_comm_recompute", default=False) or False
    if isinstance(value, dict):
        value = _longest(section, list(value.values()), layers)
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = True
    try:
        return layout.recompute_of(False, value, layers)[1]
    except SpecError as error:
        raise SpecError(f"{section.where('select_comm_recompute')}: {error}") from None


def data_type(section: Section, default: str, *names: str) -> str:
    """Data type under the first of `names` that is given, by its long name."""
    name = section.text(*names, default=default)
    if name not in _TYPES:
        raise SpecError(f"{section.where(names[0])} is {name!r}; legal: float32, float16, bfloat16.")
    return _TYPES[name]


def _sequence(document: Document, section: Section, *, legacy: bool) -> int:
    loader = Section(document, "train_dataset", "data_loader", "config")
    if "seq_length" in section:
        return section.integer("seq_length", least=1)
    if "seq_length" in loader:
        return loader.integer("seq_length", least=1)
    if legacy:
        return 2048
    return section.integer("max_position_embeddings", "seq_length", least=1)
