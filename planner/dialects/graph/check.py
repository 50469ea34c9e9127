"""Faults of MindFormers graph-mode files that the framework accepts silently, or finds late on the cluster.

Each rule looks at one view of the file and yields findings; which gate of the framework lets the fault through was
tried with MindFormers 1.9.0 and 2.0.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from planner.dialects.findings import UNREAL_NAMES, Finding, known_keys, meant, nearest
from planner.dialects.graph.check_layout import LAYOUT_RULES
from planner.dialects.graph.check_run import RUN_RULES
from planner.dialects.graph.check_values import VALUE_RULES
from planner.dialects.graph.view import View, count, divisors
from planner.dialects.text.yaml_read import Document
from planner.errors import PlannerError
from planner.model.records import DTYPE_BYTES
from planner.units import GIB, parse_bytes

_MOST_MEMORY: Final = 59 * GIB
_MEMORY: Final = re.compile(r"[1-9][0-9]*\.?[0-9]*GB|0\.[0-9]*GB")  # mindspore/context.py
#: Keys that MindFormers reads for inference only (``core/context/build_context.py``).
_INFERENCE: Final = (("context", "jit_level"), ("context", "infer_boost"))
#: Sections whose texts that look like numbers are meant to be numbers.
_NUMERIC: Final = (
    ("optimizer",), ("lr_schedule",), ("model", "model_config"), ("runner_config",), ("moe_config",),
    ("parallel", "parallel_optimizer_config"), ("train_dataset",),
)  # fmt: skip
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9_]*\.?[0-9]*")
_NUMBER: Final = re.compile(r"[+-]?[0-9][0-9_]*\.?[0-9]*([eE][+-]?[0-9]+)?")
#: Data types of a model section; legacy networks take the long names alone (``convert_mstype``).
_TYPE_KEYS: Final = (
    "params_dtype", "compute_dtype", "param_init_type", "layernorm_compute_type", "softmax_compute_type",
    "rotary_dtype", "embedding_init_type",
)  # fmt: skip
#: Sizes by their Hugging Face and mcore names, and the names that a legacy LlamaConfig reads.
_SIZES: Final = {
    "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "num_key_value_heads": "n_kv_heads",
    "num_query_groups": "n_kv_heads", "ffn_hidden_size": "intermediate_size", "padded_vocab_size": "vocab_size",
    "num_experts": "moe_config.expert_num", "n_routed_experts": "moe_config.expert_num",
}  # fmt: skip
_TRAINABLE: Final = ("qwen3", "qwen3_moe", "deepseek_v3", "telechat3", "telechat3_moe")


def check(document: Document, devices: int | None = None) -> list[Finding]:
    """All faults of a graph-mode file.

    Parameters
    ----------
    document : Document
    devices : int, optional
        Devices that the job will have, when known.
    """
    view = View(document)
    found = [finding for rule in RULES for finding in rule(view)]
    product = view.dp * view.tp * view.pp * view.cp
    if devices is not None and product != devices:
        found.append(
            view.finding(
                ("parallel_config",),
                "device-product",
                f"dp {view.dp} x tp {view.tp} x pp {view.pp} x cp {view.cp} = {product}, but {devices} devices are "
                "started; MindSpore stops after start-up.",
                f"Make the product {devices}.",
            )
        )
    return sorted(found)


def _duplicates(v: View) -> Iterator[Finding]:
    for path, line in v.document.duplicates:
        yield Finding(
            file=v.document.source,
            line=line,
            rule="duplicate-key",
            why=f"{'.'.join(path)} is given twice; YAML keeps the last silently.",
            fix="Remove one.",
        )


def _sections(v: View) -> Iterator[Finding]:
    known = known_keys()
    names = known["sections"] | known["general_config"] | known["extra_top_level"]
    for key in v.document.root:
        if key not in names and key not in UNREAL_NAMES:
            yield v.finding(
                (key,), "unknown-key", f"{key} is no section of MindFormers, which ignores it.", nearest(key, names)
            )
    training = v.document.root.get("run_mode", "train") in ("train", "finetune")
    for needed in ("trainer", "model", "parallel_config", "runner_config"):
        if training and needed not in v.document.root:
            why = f"{needed} is missing; the loader accepts that and the run stops later, or trains on one device."
            yield v.finding((), "missing-section", why, f"Add {needed}.")


def _keys(v: View) -> Iterator[Finding]:
    known = known_keys()
    inference = v.document.root.get("run_mode") in ("predict", "eval")
    strict = ("parallel_config", "recompute_config", "swap_config", "runner_config")
    for name in (*strict, "parallel", "context"):
        for key in v.section(name):
            if key in known[name] or key in UNREAL_NAMES or (inference and (name, key) in _INFERENCE):
                continue
            why = f"{name}.{key} is not known" + (
                "; MindFormers stops." if name in strict else " and does nothing, or stops late."
            )
            yield v.finding((name, key), "unknown-key", why, nearest(key, known[name]))
    yield from _legacy_keys(v) if v.legacy else _mcore_keys(v)


def _mcore_keys(v: View) -> Iterator[Finding]:
    known = known_keys()["mcore"]
    for key in v.model:
        if key not in known and key not in UNREAL_NAMES:
            why = f"model.model_config.{key} is not known; it is refused when the network is built."
            yield v.finding(("model", "model_config", key), "unknown-key", why, nearest(key, known))


def _legacy_keys(v: View) -> Iterator[Finding]:
    """A legacy configuration class ignores what it does not know: a fault where it was meant to say a size."""
    known = known_keys()["legacy"]
    if v.model.get("type") != "LlamaConfig":
        return
    for key in v.model:
        if key in known or key in UNREAL_NAMES:
            continue
        real = _SIZES.get(key, "") or meant(key, known)
        if real and v.model.get(real) != v.model[key]:
            why = f"model.model_config.{key} is not known; it is ignored."
            yield v.finding(("model", "model_config", key), "unknown-key", why, f"Did you mean {real}?")


def _unreal(v: View) -> Iterator[Finding]:
    for path, line in v.document.lines.items():
        if path[-1] in UNREAL_NAMES:
            yield Finding(
                file=v.document.source,
                line=line,
                rule="unreal-name",
                why=f"{path[-1]} exists in neither MindSpore nor MindFormers.",
                fix=f"Instead: {UNREAL_NAMES[path[-1]]}.",
            )
    if v.parallel.get("parallel_mode") in ("pipeline_parallel", "PIPELINE_PARALLEL"):
        yield v.finding(
            ("parallel", "parallel_mode"),
            "unreal-name",
            "There is no parallel mode pipeline_parallel.",
            "Write 1 (semi-automatic).",
        )


def _legacy_switch(v: View) -> Iterator[Finding]:
    named = "model_type" in v.model or "pretrained_model_dir" in v.document.root
    if v.legacy and named and "type" not in v.model:
        yield v.finding(
            ("use_legacy",),
            "use-legacy",
            "use_legacy is True by default, so the mcore model section is not understood.",
            "Add use_legacy: False.",
        )
    if not v.legacy and "type" in v.model and "model_type" not in v.model:
        yield v.finding(
            ("use_legacy",),
            "use-legacy",
            "a legacy configuration class with use_legacy: False is not found.",
            "Write use_legacy: True.",
        )
    kind = v.model.get("model_type")
    if (
        not v.legacy
        and isinstance(kind, str)
        and kind not in _TRAINABLE
        and v.document.root.get("run_mode") != "predict"
    ):
        yield v.finding(
            ("model", "model_config", "model_type"),
            "no-training-class",
            f"MindFormers has no training class for {kind}; it stops with 'Train mode is not supported'.",
            f"Use one of {', '.join(_TRAINABLE)}, or MindSpeed-LLM.",
        )


def _numbers_as_text(v: View) -> Iterator[Finding]:
    for section in _NUMERIC:
        for key, value in v.section(*section).items():
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                path = (*section, key)
                quoted = "its quotes make it" if _WHOLE.fullmatch(value) else "a number with an exponent needs a dot"
                why = f"{'.'.join(path)} {value} is a text for YAML, not a number ({quoted})."
                yield v.finding(path, "number-as-text", why, f"Write {_dotted(value)}.")
    if not v.legacy:
        for key in ("hidden_dropout", "attention_dropout"):
            if key in v.model and not isinstance(v.model[key], float):
                why = f"{key} {v.model[key]!r} is no float; the conversion refuses it."
                yield v.finding(("model", "model_config", key), "dropout-type", why, "Write 0.0.")
    for key in _TYPE_KEYS:
        value = v.model.get(key)
        if isinstance(value, str) and value not in (*DTYPE_BYTES, *(() if v.legacy else ("fp32", "fp16", "bf16"))):
            why = f"{key} {value!r} is no data type."
            yield v.finding(("model", "model_config", key), "data-type", why, f"Legal: {', '.join(DTYPE_BYTES)}.")


def _dotted(value: str) -> str:
    mantissa, _, exponent = value.lower().partition("e")
    return f"{mantissa}.0e{exponent}" if exponent and "." not in mantissa else value


def _batches(v: View) -> Iterator[Finding]:
    if v.document.root.get("run_mode") in ("predict", "eval"):
        return
    micro = ("parallel_config", "micro_batch_num")
    accumulation = count(v.runner.get("gradient_accumulation_steps"), 1)
    if v.pp > 1 and v.micro_batches < v.pp:
        why = f"{v.micro_batches} micro-batches do not fill {v.pp} stages; MindSpore stops when it compiles."
        yield v.finding(micro, "micro-batches-below-stages", why, f"Use at least {v.pp}.")
    if v.pp == 1 and v.micro_batches > 1:
        why = "without a pipeline micro_batch_num is reset to 1, so the global batch is smaller than it looks."
        yield v.finding(micro, "batch-ignored", why, "Use runner_config.gradient_accumulation_steps.")
    if v.pp > 1 and accumulation > 1:
        why = "with a pipeline gradient_accumulation_steps is reset to 1, so the global batch is smaller than it looks."
        yield v.finding(
            ("runner_config", "gradient_accumulation_steps"),
            "batch-ignored",
            why,
            "Use parallel_config.micro_batch_num.",
        )
    batch = count(v.runner.get("batch_size"), 1) * v.dp * (v.micro_batches if v.pp > 1 else accumulation)
    sizes = v.section("train_dataset", "data_loader").get("sizes")
    if isinstance(sizes, list) and sizes and isinstance(sizes[0], int) and 0 < sizes[0] < batch:
        why = f"{sizes[0]} samples do not fill one step of {batch}; no step is trained."
        yield v.finding(("train_dataset", "data_loader", "sizes"), "too-few-samples", why, f"Use at least {batch}.")
    if not v.legacy:
        for path, value in (
            (("micro_batch_interleave_num",), v.document.root.get("micro_batch_interleave_num")),
            (("parallel_config", "seq_split_num"), v.degrees.get("seq_split_num")),
        ):
            if count(value, 1) > 1:
                yield v.finding(
                    path, "legacy-only", f"{path[-1]} {value} is refused with use_legacy: False.", "Write 1."
                )


def _optimizer(v: View) -> Iterator[Finding]:
    config = v.parallel.get("parallel_optimizer_config")
    config = config if isinstance(config, dict) else {}
    path = ("parallel", "parallel_optimizer_config")
    size, ranks = config.get("optimizer_weight_shard_size", -1), v.dp * v.cp
    if isinstance(size, int) and not isinstance(size, bool) and 1 < size < ranks and ranks % size:
        why = f"groups of {size} do not divide the {ranks} ranks that share parameters."
        yield v.finding(
            (*path, "optimizer_weight_shard_size"), "optimizer-shard", why, f"Legal: {divisors(ranks)}, or -1."
        )
    if "gradient_accumulation_shard" in config and config.get("optimizer_level", "level2") != "level2":
        why = "gradient_accumulation_shard beside another optimizer_level than level2 is refused by MindSpore."
        yield v.finding((*path, "optimizer_level"), "optimizer-shard", why, "Remove gradient_accumulation_shard.")
    for key in config:
        known = (
            "gradient_accumulation_shard",
            "parallel_optimizer_threshold",
            "optimizer_weight_shard_size",
            "optimizer_level",
        )
        if key not in known:
            yield v.finding((*path, key), "unknown-key", f"MindSpore refuses {key}.", nearest(key, known))
    if v.parallel.get("auto_pipeline") is True:
        yield v.finding(("parallel", "auto_pipeline"), "auto-pipeline", "MindFormers stops on it.", "Remove it.")


def _dataset(v: View) -> Iterator[Finding]:
    strategy = v.parallel.get("dataset_strategy")
    path = ("parallel", "dataset_strategy")
    if v.parallel.get("full_batch") is False and strategy is not None and not isinstance(strategy, list):
        yield v.finding(
            path, "dataset-strategy", "with full_batch: False it must be a list of lists.", "See input_columns."
        )
    if isinstance(strategy, list) and strategy and isinstance(strategy[0], list) and strategy[0]:
        if strategy[0][0] != v.dp:
            why = f"the batch is split {strategy[0][0]} ways, but data_parallel is {v.dp}; MindFormers stops."
            yield v.finding(path, "dataset-strategy", why, f"Write {v.dp} first in every row.")
        columns = v.section("train_dataset").get("input_columns")
        if isinstance(columns, list) and len(columns) != len(strategy):
            why = f"{len(strategy)} rows for {len(columns)} input_columns."
            yield v.finding(path, "dataset-strategy", why, "One row a column.")
    data = v.section("train_dataset", "data_loader", "config").get("seq_length")
    seq = v.model.get("seq_length")
    if isinstance(data, int) and isinstance(seq, int) and data != seq:
        why = f"the data set gives {data} tokens, the model takes {seq}."
        yield v.finding(
            ("train_dataset", "data_loader", "config", "seq_length"), "sequence-length", why, f"Write {seq}."
        )


def _memory(v: View) -> Iterator[Finding]:
    limits = {}
    for key in ("max_device_memory", "mempool_block_size"):
        value = v.section("context").get(key)
        if value is None:
            continue
        try:
            limits[key] = parse_bytes(str(value))
        except PlannerError as error:
            yield v.finding(("context", key), "memory-limit", str(error), "Write it like 58GB.")
            continue
        if not (isinstance(value, str) and _MEMORY.fullmatch(value)):
            del limits[key]
            why = f"{key} {value!r} is refused by MindSpore, which takes a text of digits and GB alone."
            yield v.finding(("context", key), "memory-limit", why, "Write it like 58GB.")
    most = limits.get("max_device_memory")
    if most is not None and most > _MOST_MEMORY:
        why = "a 64 GB card shows about 61 GB, and HCCL buffers and the runtime need their share outside the pool."
        yield v.finding(
            ("context", "max_device_memory"), "memory-limit", why, "Use 58GB, 54GB on about a thousand cards."
        )
    if most is not None and limits.get("mempool_block_size", 0) > most:
        yield v.finding(
            ("context", "mempool_block_size"),
            "memory-limit",
            "a block is larger than the pool.",
            "At most max_device_memory.",
        )


RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    _duplicates,
    _sections,
    _keys,
    _unreal,
    _legacy_switch,
    _numbers_as_text,
    _batches,
    *LAYOUT_RULES,
    *VALUE_RULES,
    *RUN_RULES,
    _optimizer,
    _dataset,
    _memory,
)
