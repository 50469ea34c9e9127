"""Faults of single values in MindFormers graph-mode files: types, required entries, keys of the other dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from planner.dialects.findings import Finding
from planner.dialects.graph.view import View, count

_NUMBERS: Final = (
    "data_parallel", "model_parallel", "context_parallel", "expert_parallel", "pipeline_stage", "micro_batch_num",
    "seq_split_num", "gradient_aggregation_group",
)  # fmt: skip
_BOOLS: Final = (
    ("parallel_config", "use_seq_parallel"),
    ("parallel_config", "vocab_emb_dp"),
    ("recompute_config", "mp_comm_recompute"),
    ("recompute_config", "parallel_optimizer_comm_recompute"),
    ("recompute_config", "recompute_slice_activation"),
)
#: Sections that must say their type as soon as they hold anything.
_TYPED: Final = ("trainer", "optimizer", "lr_schedule", "runner_wrapper", "train_dataset_task")
_POSITIONS: Final = ("rope", "yarn", "none", "relative", "learned_absolute")
#: ``npu_nums_per_device`` of MindFormers, when the file does not give it.
_CARDS_OF_A_NODE: Final = 8


def _types(v: View) -> Iterator[Finding]:
    for key in _NUMBERS:
        value = v.degrees.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            why = f"{key} {value!r} is no positive whole number; MindFormers stops."
            yield v.finding(("parallel_config", key), "degree", why, "Write a number of at least 1.")
    for section, key in _BOOLS:
        value = v.section(section).get(key)
        if value is not None and not isinstance(value, bool):
            yield v.finding(
                (section, key), "degree", f"{key} {value!r} is no bool; MindFormers stops.", "Write True or False."
            )
    if not v.legacy:
        for key in ("hidden_dropout", "attention_dropout"):
            value = v.model.get(key)
            if isinstance(value, float) and not 0 <= value < 1:
                why = f"{key} {value} is refused."
                yield v.finding(("model", "model_config", key), "dropout-type", why, "Use at least 0.0, below 1.0.")


def _required(v: View) -> Iterator[Finding]:
    for name in _TYPED:
        section = v.section(name)
        if section and "type" not in section:
            yield v.finding((name,), "missing-type", f"{name} has no type; MindFormers stops.", f"Add {name}.type.")
    callbacks = v.document.root.get("callbacks")
    for position, entry in enumerate(callbacks if isinstance(callbacks, list) else ()):
        if isinstance(entry, dict) and "type" not in entry:
            why = f"callback {position + 1} has no type; MindFormers stops."
            yield v.finding(("callbacks", str(position)), "missing-type", why, "Add its type.")
    if v.section("model") and not v.model:
        why = "model has no model_config; MindFormers stops."
        yield v.finding(("model",), "missing-section", why, "Add model.model_config.")


def _experts(v: View) -> Iterator[Finding]:
    moe = v.section("moe_config")
    if moe and not v.legacy and count(moe.get("expert_num"), 1) > 1:
        why = "moe_config is dropped with use_legacy: False; the keys of experts stand in model.model_config there."
        yield v.finding(("moe_config",), "legacy-only", why, "Move its settings to model.model_config.")
    dispatcher = v.model.get("moe_token_dispatcher_type")
    node = count(v.model.get("npu_nums_per_device"), _CARDS_OF_A_NODE)
    if dispatcher == "alltoall_deredundency" and v.ep < node:
        why = f"alltoall_deredundency needs expert_parallel of at least npu_nums_per_device = {node}; given {v.ep}."
        path = ("model", "model_config", "moe_token_dispatcher_type")
        yield v.finding(path, "expert-parallel", why, "Use alltoall.")


def _model(v: View) -> Iterator[Finding]:
    positions = v.model.get("position_embedding_type")
    if not v.legacy and positions is not None and positions not in _POSITIONS:
        path = ("model", "model_config", "position_embedding_type")
        yield v.finding(path, "model-value", f"{positions!r} is refused.", f"Legal: {', '.join(_POSITIONS)}.")
    vocabulary = v.size("vocab_size")
    if vocabulary and vocabulary % v.tp:
        why = f"model_parallel {v.tp} does not divide {vocabulary} tokens, so every rank holds the whole embedding."
        yield v.finding(("model", "model_config", "vocab_size"), "vocabulary", why, f"Pad to a multiple of {v.tp}.")
    width = v.size("intermediate_size")
    if width % v.tp:
        why = f"model_parallel {v.tp} does not divide an MLP of width {width}; MindSpore stops when it compiles."
        yield v.finding(("model", "model_config", "intermediate_size"), "mlp-width", why, f"Use a multiple of {v.tp}.")


VALUE_RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (_types, _required, _experts, _model)
