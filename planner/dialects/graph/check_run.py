"""Faults of how a MindFormers graph-mode file runs: modes, device, schedules, names of classes, precision.

Legal values are those of MindFormers 1.9.0 (``core/context/validators.py``, ``tools/utils.py``) and MindSpore 2.9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeGuard

from planner.dialects.findings import Finding, known_classes, meant
from planner.dialects.graph.view import View, count

_RUN_MODES: Final = ("train", "finetune", "eval", "predict", "predict_with_train_model")
_TRAINING: Final = ("train", "finetune")
_GRAPH: Final = (0, "GRAPH_MODE")
_LEVELS: Final = ("O0", "O1", "O2")
_DATA_PARALLEL: Final = (0, "DATA_PARALLEL")
_BOOLS: Final = (
    ("use_parallel",), ("use_legacy",), ("runner_config", "sink_mode"), ("optimizer", "swap"),
    ("parallel", "full_batch"), ("parallel", "gradients_mean"), ("parallel", "enable_parallel_optimizer"),
    ("parallel", "enable_alltoall"), ("parallel", "pipeline_config", "pipeline_interleave"),
)  # fmt: skip
#: Where a file names a class, and of which kind.  Files may register their own, so only near misses are faults.
_CLASSES: Final = (
    (("trainer",), "trainer"), (("optimizer",), "optimizer"), (("lr_schedule",), "lr"),
    (("runner_wrapper",), "wrapper"),
    (("model", "arch"), "models"), (("model", "model_config"), "config"), (("train_dataset_task",), "dataset"),
    (("train_dataset", "data_loader"), "dataset_loader"),
)  # fmt: skip
_HALF: Final = {"float16": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}


def _training(v: View) -> bool:
    return v.document.root.get("run_mode", "train") in _TRAINING


def _modes(v: View) -> Iterator[Finding]:
    mode = v.document.root.get("run_mode")
    if mode is not None and mode not in _RUN_MODES:
        yield v.finding(("run_mode",), "run-mode", f"run_mode {mode!r} is refused.", f"Legal: {', '.join(_RUN_MODES)}.")
    if not _training(v):
        return
    context = v.section("context")
    graph, target = context.get("mode", 0), context.get("device_target", "Ascend")
    if graph not in _GRAPH or isinstance(graph, bool):
        why = f"mode {graph!r} is not graph mode, which this network and its parallel layout need."
        yield v.finding(("context", "mode"), "run-mode", why, "Write 0.")
    if target not in ("Ascend", "CPU"):
        why = f"device_target {target!r} is no device that MindFormers trains on."
        yield v.finding(("context", "device_target"), "run-mode", why, "Write Ascend.")
    split = {name: n for name, n in (("model_parallel", v.tp), ("pipeline_stage", v.pp), ("expert_parallel", v.ep),
                                     ("context_parallel", v.cp)) if n > 1}  # fmt: skip
    kind = v.parallel.get("parallel_mode", 1)
    if split and kind in _DATA_PARALLEL and not isinstance(kind, bool):
        named = ", ".join(f"{name} {n}" for name, n in split.items())
        why = f"parallel_mode {kind} is data parallelism alone, so {named} does not take effect."
        yield v.finding(("parallel", "parallel_mode"), "run-mode", why, "Write 1 (semi-automatic).")


def _levels(v: View) -> Iterator[Finding]:
    for path in (("context", "jit_config", "jit_level"), ("context", "jit_level")):
        level = v.section(*path[:-1]).get("jit_level")
        if level is not None and level not in _LEVELS:
            why = f"jit_level {level!r} is refused by MindSpore."
            yield v.finding(path, "run-mode", why, f"Legal: {', '.join(_LEVELS)}.")


def _types(v: View) -> Iterator[Finding]:
    for path in _BOOLS:
        value = v.section(*path[:-1]).get(path[-1])
        if value is not None and not isinstance(value, bool):
            why = f"{'.'.join(path)} {value!r} is no bool; any text counts as true."
            yield v.finding(path, "degree", why, "Write True or False.")
    for key in ("batch_size", "gradient_accumulation_steps"):
        value = v.runner.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            why = f"{key} {value!r} is no positive whole number."
            yield v.finding(("runner_config", key), "degree", why, "Write a number of at least 1.")


def _classes(v: View) -> Iterator[Finding]:
    callbacks = v.document.root.get("callbacks")
    listed = [
        (("callbacks", str(i)), "callback", one) for i, one in enumerate(callbacks or ()) if isinstance(one, dict)
    ]
    named = [(path, kind, v.section(*path)) for path, kind in _CLASSES]
    for path, kind, section in (*named, *listed):
        name, known = section.get("type"), known_classes()[kind]
        if not isinstance(name, str) or name in known or "auto_register" in section:
            continue
        real = meant(name, known)
        if real:
            why = f"there is no {'.'.join(path)}.type {name}; MindFormers stops."
            yield v.finding((*path, "type"), "class-name", why, f"Did you mean {real}?")


def _parallel_off(v: View) -> Iterator[Finding]:
    product = v.dp * v.tp * v.pp * v.cp
    if _training(v) and product > 1 and v.document.root.get("use_parallel", False) is False:
        why = (
            f"use_parallel is False: {product} devices train alone, unless --use_parallel True is given when it starts."
        )
        yield v.finding(("use_parallel",), "parallel-off", why, "Write use_parallel: True.")


def _rates(v: View) -> Iterator[Finding]:
    schedule = v.section("lr_schedule")
    first, last, share = (schedule.get(key) for key in ("learning_rate", "lr_end", "warmup_ratio"))
    if _number(share) and not 0 <= share < 1:
        why = f"warmup_ratio {share} is a share of all steps."
        yield v.finding(("lr_schedule", "warmup_ratio"), "learning-rate", why, "Use at least 0.0, below 1.0.")
    if _number(first) and _number(last) and last > first:
        why = f"lr_end {last} is above learning_rate {first}, so the rate rises."
        yield v.finding(("lr_schedule", "lr_end"), "learning-rate", why, "Use at most learning_rate.")


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _precision(v: View) -> Iterator[Finding]:
    section = ("model", "model_config")
    compute = _HALF.get(str(v.model.get("compute_dtype")))
    key = "param_init_type" if v.legacy else "params_dtype"
    stored = _HALF.get(str(v.model.get(key)))
    if _training(v) and compute and stored and compute != stored:
        why = f"{key} {stored} and compute_dtype {compute} cannot hold each other's values; MindFormers accepts both."
        yield v.finding((*section, key), "data-type", why, f"Write {compute} or float32.")
    scale = v.section("runner_wrapper").get("scale_sense")
    if _training(v) and compute == "float16" and _number(scale) and scale <= 1:
        why = f"float16 gradients below 6e-8 become zero with a loss scale of {scale}."
        fix = "Use a DynamicLossScaleUpdateCell there, or compute_dtype bfloat16."
        yield v.finding(("runner_wrapper", "scale_sense"), "loss-scale", why, fix)


def _routing(v: View) -> Iterator[Finding]:
    moe = v.section("moe_config")
    for section, experts, chosen in (
        (("model", "model_config"), "n_routed_experts", "num_experts_per_tok"),
        (("model", "model_config"), "num_experts", "num_experts_per_tok"),
        (("moe_config",), "expert_num", "num_experts_chosen"),
    ):
        values = moe if section == ("moe_config",) else v.model
        total, picked = count(values.get(experts), 0), count(values.get(chosen), 0)
        if total > 1 and picked > total:
            why = f"{chosen} {picked} is more than the {total} experts there are."
            yield v.finding((*section, chosen), "expert-parallel", why, f"At most {total}.")


RUN_RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    _modes, _parallel_off, _levels, _types, _classes, _rates, _precision, _routing,
)  # fmt: skip
