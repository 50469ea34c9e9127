"""Faults of MindFormers PyNative files that ``TrainConfig`` accepts silently or that stop the job after start-up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from planner.dialects.findings import UNREAL_NAMES, Finding, nearest
from planner.dialects.graph.view import count
from planner.dialects.pynative.read import read_pynative
from planner.dialects.text.yaml_read import Document
from planner.errors import PlannerError

#: Keys of TrainConfig in MindFormers 2.0.0 and 2.1.0; sections that are not listed take any key.
SECTIONS: Final = frozenset(
    "training parallelism recompute recompute_comm optimizer lr_scheduler checkpoint train_dataset model context "
    "callbacks monitor profiler swap lora_config".split()
)
KEYS: Final = {
    "training": frozenset(
        "steps local_batch_size global_batch_size max_norm seed deterministic use_skip_step_on_nan "
        "max_consecutive_skipped_steps rampup_batch_size".split()
    ),
    "parallelism": frozenset(
        "data_parallel_shard data_parallel_shard_strategy reshard_after_forward_policy cpu_offload "
        "disable_gradient_division dense_fsdp_shard_size tensor_parallel context_parallel context_parallel_method "
        "context_parallel_async ulysses_degree_in_cp context_parallel_mask_type pipeline_parallel "
        "pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_microbatch_size "
        "pipeline_parallel_interleave_num pipeline_parallel_overlap_p2p pipeline_parallel_overlap_b_f "
        "pipeline_parallel_enable_dxdw_split pipeline_parallel_p2p_transport sequence_parallel enable_mc2 "
        "enable_loss_parallel expert_parallel npu_nums_per_device moe_token_dispatcher_type expert_parallel_async_d2h "
        "expert_parallel_use_safe_tokens".split()
    ),
    "context": frozenset({"mode", "max_device_memory", "device_target"}),
    "recompute": frozenset({"mode", "full_recompute_layer", "select_module", "exclude_op"}),
    "swap": frozenset({"enable", "default_prefetch", "layer_swap", "op_swap"}),
}

_NUMBERS: Final = (
    "data_parallel_shard", "tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel",
    "pipeline_parallel_interleave_num",
)  # fmt: skip
_METHODS: Final = ("colossal", "ulysses", "hybrid")
#: ``npu_nums_per_device`` of TrainConfig, when the file does not give it.
_CARDS_OF_A_NODE: Final = 8


def check(document: Document, devices: int | None = None) -> list[Finding]:
    """All faults of a PyNative file."""
    found = [*_keys(document), *_rules(document), *_mode(document)]
    try:
        read_pynative(document, devices=devices)
    except PlannerError as error:
        message = str(error)
        line = re.search(r", line ([0-9]+)", message)
        if "number of devices is not in the file" not in message:
            found.append(
                Finding(
                    file=document.source,
                    line=int(line[1]) if line else 1,
                    rule=_rule_of(message),
                    why=re.sub(r"^.*?line [0-9]+: ", "", message),
                    fix="See the message.",
                )
            )
    return sorted(found)


def _rule_of(message: str) -> str:
    for sign, rule in (
        ("left out or held twice", "layers-dropped"),
        ("ends at layer", "layers-dropped"),
        ("would drop", "batch-remainder"),
        ("do not divide by tp x pp x cp", "device-product"),
        ("pipeline_parallel_schedule", "pipeline-scheduler"),
        ("context_parallel_method", "context-parallel"),
        ("recompute", "recompute-form"),
    ):
        if sign in message:
            return rule
    return "layout"


def _keys(document: Document) -> Iterator[Finding]:
    for path, line in document.duplicates:
        why = f"{'.'.join(path)} is given twice; YAML keeps the last silently."
        yield Finding(file=document.source, line=line, rule="duplicate-key", why=why, fix="Remove one.")
    for name, value in document.root.items():
        if name not in SECTIONS:
            yield _finding(
                document, (name,), "unknown-key", f"{name} is no section; it is ignored.", nearest(name, SECTIONS)
            )
        for key in value if isinstance(value, dict) and name in KEYS else ():
            if key not in KEYS[name]:
                why = f"{name}.{key} is not known; TrainConfig refuses it."
                yield _finding(document, (name, key), "unknown-key", why, nearest(key, KEYS[name]))
    for path, line in document.lines.items():
        if path[-1] in UNREAL_NAMES:
            why, fix = f"{path[-1]} exists in neither MindSpore nor MindFormers.", f"Instead: {UNREAL_NAMES[path[-1]]}."
            yield Finding(file=document.source, line=line, rule="unreal-name", why=why, fix=fix)


def _rules(document: Document) -> Iterator[Finding]:
    degrees, model = _section(document, "parallelism"), _section(document, "model")
    tp, cp, ep = (count(degrees.get(f"{n}_parallel"), 1) for n in ("tensor", "context", "expert"))
    pp, shard = count(degrees.get("pipeline_parallel"), 1), count(degrees.get("data_parallel_shard"), 0)
    where = "parallelism"
    if tp > 1 and degrees.get("sequence_parallel") is not True:
        why = "tensor parallelism without sequence parallelism is refused by 2.1.0."
        yield _finding(document, (where, "tensor_parallel"), "sequence-parallel", why, "Write sequence_parallel: True.")
    if ep > 1 and shard and (shard * cp * tp) % ep:
        why = f"expert_parallel {ep} does not divide data_parallel_shard x cp x tp = {shard * cp * tp}."
        yield _finding(document, (where, "expert_parallel"), "expert-parallel", why, "Raise data_parallel_shard.")
    yield from _groups(document, tp=tp, cp=cp, ep=ep, shard=shard)
    if pp > 1 and degrees.get("pipeline_parallel_layers_per_stage", "auto") is None:
        yield _finding(
            document, (where, "pipeline_parallel_layers_per_stage"), "layout", "null stops a pipeline.", "Write auto."
        )
    if pp > 1 and _section(document, "swap").get("enable") is True:
        yield _finding(
            document, ("swap", "enable"), "swap-pipeline", "swap with a pipeline is refused.", "Write False."
        )
    if model.get("hidden_act") == "swiglu":
        why = "PyNative refuses hidden_act swiglu."
        yield _finding(
            document, ("model", "hidden_act"), "hidden-act", why, "Write silu, with gated_linear_unit: True."
        )
    masks = ("use_attn_mask_compression", "use_eod_attn_mask_compression")
    if cp > 1 and not any(model.get(key) is True for key in masks):
        why = "context parallelism needs a compressed mask."
        yield _finding(
            document, (where, "context_parallel"), "context-parallel", why, "Add model.use_attn_mask_compression: True."
        )
    if "recompute" in document.root and "mode" in _section(document, "recompute"):
        mode = _section(document, "recompute")["mode"]
        if not isinstance(mode, str):
            why = f"recompute.mode {mode!r} is no text."
            yield _finding(
                document, ("recompute", "mode"), "recompute-form", why, "Write 'None', 'full' or 'select' in quotes."
            )
    if "exclude_op" in _section(document, "recompute"):
        why = "exclude_op is a list in 2.0.0 and a mapping in 2.1.0."
        yield _finding(document, ("recompute", "exclude_op"), "version-dependent", why, "Leave it out.")


def _mode(document: Document) -> Iterator[Finding]:
    mode = _section(document, "context").get("mode", 1)
    if mode != 1 or isinstance(mode, bool):
        why = f"mode {mode!r} is not PyNative mode, which these sections belong to."
        yield _finding(document, ("context", "mode"), "run-mode", why, "Write 1.")


def _groups(document: Document, *, tp: int, cp: int, ep: int, shard: int) -> Iterator[Finding]:
    """Groups that do not divide, and values of the wrong type."""
    degrees, model = _section(document, "parallelism"), _section(document, "model")
    where = "parallelism"
    for key in _NUMBERS:
        value = degrees.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            why = f"{key} {value!r} is no whole number; TrainConfig refuses it."
            yield _finding(document, (where, key), "degree", why, "Write a number without quotes.")
    part = count(degrees.get("dense_fsdp_shard_size"), 0)
    if part and shard and (shard * cp) % part:
        why = f"dense_fsdp_shard_size {part} does not divide data_parallel_shard x cp = {shard * cp}."
        yield _finding(document, (where, "dense_fsdp_shard_size"), "optimizer-shard", why, "Use a divisor.")
    seq = count(model.get("seq_length"), 0)
    if cp > 1 and seq % cp:
        why = f"{seq} tokens do not divide by context_parallel {cp}."
        yield _finding(document, ("model", "seq_length"), "sequence-length", why, f"Use a multiple of {cp}.")
    method, degree = degrees.get("context_parallel_method"), degrees.get("ulysses_degree_in_cp")
    if method not in (None, *_METHODS):
        why = f"{method!r} is refused."
        yield _finding(
            document, (where, "context_parallel_method"), "context-parallel", why, f"Legal: {', '.join(_METHODS)}."
        )
    if method == "ulysses" and degree not in (None, cp):
        why = f"ulysses takes its degree from context_parallel; {degree} is refused."
        yield _finding(document, (where, "ulysses_degree_in_cp"), "ulysses-degree", why, f"Write {cp} or leave it out.")
    if method == "hybrid" and cp > 1 and not (1 < count(degree, 0) < cp and cp % count(degree, 1) == 0):
        why = f"hybrid needs a ulysses_degree_in_cp between 1 and {cp} that divides {cp}; given {degree}."
        yield _finding(document, (where, "ulysses_degree_in_cp"), "ulysses-degree", why, "Use colossal or ulysses.")
    node = count(degrees.get("npu_nums_per_device"), _CARDS_OF_A_NODE)
    if degrees.get("moe_token_dispatcher_type") == "alltoall_deredundancy" and ep < node:
        why = f"alltoall_deredundancy needs expert_parallel of at least npu_nums_per_device = {node}; given {ep}."
        yield _finding(document, (where, "moe_token_dispatcher_type"), "expert-parallel", why, "Use alltoall.")
    heads = count(model.get("num_attention_heads"), 0)
    if heads % tp:
        why = f"tensor_parallel {tp} does not divide {heads} attention heads."
        yield _finding(document, (where, "tensor_parallel"), "heads", why, "Use a divisor.")


def _section(document: Document, name: str) -> dict[str, Any]:
    value = document.root.get(name)
    return value if isinstance(value, dict) else {}


def _finding(document: Document, path: tuple[str, ...], rule: str, why: str, fix: str) -> Finding:
    return Finding(file=document.source, line=document.line(*path), rule=rule, why=why, fix=fix)
