"""Options that several commands share, as records: one field is one option.

A command names the records it needs as annotated parameters; `spread` turns their fields into options for typer and
gathers the values into the records again.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

MODEL_PANEL = "Model: one of --params, --model, --config, or sizes"
SIZES_PANEL = "Model sizes: alone, or changing single sizes of the model"
CLUSTER_PANEL = "Cluster"
WORKLOAD_PANEL = "Workload"
STRATEGY_PANEL = "Strategy: fix a dimension, or bound it with values separated by commas"
EMIT_PANEL = "Files"
OUTPUT_PANEL = "Output"


def opt(flag: str, panel: str, help_text: str, metavar: str | None = None, default: Any = None) -> Any:
    """One option as a field of an options record."""
    option = typer.Option(
        *flag.split(), help=help_text, rich_help_panel=panel, metavar=metavar, show_default=default is not None
    )
    return dataclasses.field(default=default, metadata={"option": option})


def own(flag: str, panel: str, help_text: str, metavar: str | None = None) -> Any:
    """One option of a single command, for ``Annotated``."""
    return typer.Option(*flag.split(), help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model."""

    params: str | None = opt("--params", MODEL_PANEL, "Parameter count: the closest published shape.", "70B")
    model: str | None = opt("--model", MODEL_PANEL, "A published model; 'planner models' lists them.", "NAME")
    config: str | None = opt("--config", MODEL_PANEL, "A Hugging Face config.json, read offline.", "FILE")
    as_family: str | None = opt("--as", MODEL_PANEL, "Read --config as this family's sizes.", "FAMILY")
    layers: str | None = opt("--layers", SIZES_PANEL, "Decoder layers.", "N")
    hidden: str | None = opt("--hidden", SIZES_PANEL, "Hidden width.", "N")
    ffn: str | None = opt("--ffn", SIZES_PANEL, "Width of the dense MLP.", "N")
    heads: str | None = opt("--heads", SIZES_PANEL, "Attention heads.", "N")
    kv_heads: str | None = opt("--kv-heads", SIZES_PANEL, "Key/value heads.", "N")
    head_dim: str | None = opt("--head-dim", SIZES_PANEL, "Width of one head.", "N")
    vocab: str | None = opt("--vocab", SIZES_PANEL, "Vocabulary.", "N")
    experts: str | None = opt("--experts", SIZES_PANEL, "Routed experts of a MoE layer.", "N")
    topk: str | None = opt("--topk", SIZES_PANEL, "Experts a token visits.", "N")
    expert_ffn: str | None = opt("--expert-ffn", SIZES_PANEL, "Width of one expert.", "N")
    shared_ffn: str | None = opt("--shared-ffn", SIZES_PANEL, "Total width of the shared experts.", "N")
    mtp_layers: str | None = opt("--mtp-layers", SIZES_PANEL, "Multi-token-prediction modules.", "N")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """On what."""

    hardware: str | None = opt("--hardware", CLUSTER_PANEL, "Profile name or YAML file (default: 910b3).", "NAME")
    max_memory: str | None = opt("--max-memory", CLUSTER_PANEL, "Limit of one card instead of the profile's.", "54GB")
    fit_probability: str | None = opt(
        "--fit-probability",
        CLUSTER_PANEL,
        "How likely plans must fit, 0.5 to 0.999 (default: 0.95 where the pool has no limit).",
        "P",
    )


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """One optimizer step."""

    seq: str | None = opt("--seq", WORKLOAD_PANEL, "Tokens of a sample (default: 4096).", "4k")
    global_batch: str | None = opt(
        "--global-batch", WORKLOAD_PANEL, "Samples of a step (default: 4Mi tokens, at least one a card).", "N"
    )
    tokens: str | None = opt("--tokens", WORKLOAD_PANEL, "Training budget: adds days and card-hours.", "1.5T")
    framework: str | None = opt(
        "--framework", WORKLOAD_PANEL, "Whose memory and speed (-RELEASE: of an older one).", "NAME"
    )
    no_tp_overlap: bool = opt(
        "--no-tp-overlap",
        WORKLOAD_PANEL,
        "MindSpeed without MC2 (traffic beside matmuls).",
        default=False,
    )
    calibration: str | None = opt("--calibration", WORKLOAD_PANEL, "Speed of your own runs, from planner fit.", "FILE")


@dataclass(frozen=True, kw_only=True)
class PinOptions:
    """What the search may not change."""

    tp: str | None = opt("--tp", STRATEGY_PANEL, "Tensor parallel.", "8")
    pp: str | None = opt("--pp", STRATEGY_PANEL, "Pipeline stages.", "1,2,4")
    dp: str | None = opt("--dp", STRATEGY_PANEL, "Data parallel.", "N")
    cp: str | None = opt("--cp", STRATEGY_PANEL, "Context parallel.", "N")
    ep: str | None = opt("--ep", STRATEGY_PANEL, "Expert parallel.", "N")
    etp: str | None = opt("--etp", STRATEGY_PANEL, "Expert tensor parallel: ranks that share each expert.", "N")
    vpp: str | None = opt("--vpp", STRATEGY_PANEL, "Chunks of a stage (interleaving).", "N")
    micro_batch: str | None = opt("--micro-batch", STRATEGY_PANEL, "Samples of a micro-batch.", "N")
    recompute: str | None = opt("--recompute", STRATEGY_PANEL, "auto, none, selective or full (default: auto).", "HOW")
    schedule: str | None = opt(
        "--schedule", STRATEGY_PANEL, "1f1b, interleaved, gpipe, zero_bubble_v, seqpipe.", "NAME"
    )
    cp_algorithm: str | None = opt("--cp-algorithm", STRATEGY_PANEL, "ring, ulysses or hybrid.", "NAME")
    zero_level: str | None = opt(
        "--zero-level", STRATEGY_PANEL, "What is sharded: 1 states, 2 gradients, 3 weights.", "N"
    )
    optimizer_shard: str | None = opt(
        "--optimizer-shard", STRATEGY_PANEL, "Ranks that share the optimizer states.", "N"
    )


@dataclass(frozen=True, kw_only=True)
class EmitOptions:
    """Files of a plan."""

    target: str | None = opt(
        "--target", EMIT_PANEL, "Framework to write for (default: the one that trains it).", "NAME"
    )
    data: str | None = opt("--data", EMIT_PANEL, "Training data; else a placeholder.", "PATH")
    tokenizer: str | None = opt("--tokenizer", EMIT_PANEL, "Tokenizer folder; else a placeholder.", "PATH")
    hosts: str | None = opt("--hosts", EMIT_PANEL, "File with one host a line; else placeholders.", "FILE")
    rank_table: str | None = opt(
        "--rank-table", EMIT_PANEL, "Also rank_table.json; a line of FILE: host, address of each device.", "FILE"
    )
    force: bool = opt("--force", EMIT_PANEL, "Replace files of an earlier plan.", default=False)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How to answer."""

    json: bool = opt("--json", OUTPUT_PANEL, "One JSON document on stdout (docs/json.md).", default=False)


#: For commands that read a file.
ACCEPT_UNREAD = own(
    "--accept-unread", MODEL_PANEL, "Answer without settings of the file that decide it and are not read."
)


def spread(*, epilog: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn parameters annotated with an options record into one option per field.

    A bracket in the epilog is a bracket, not markup.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)  # get_type_hints of 3.10 hides Annotated behind Optional
        hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        records = {name: hints[name] for name in signature.parameters if dataclasses.is_dataclass(hints[name])}
        parameters = _flat(signature, hints, records)

        @functools.wraps(function)
        def call(**values: Any) -> Any:
            for name, record in records.items():
                values[name] = record(**{f.name: values.pop(f.name) for f in dataclasses.fields(record)})
            return function(**values)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.epilog = epilog.replace("[", r"\[")  # type: ignore[attr-defined]
        return call

    return wrap


def _flat(signature: inspect.Signature, hints: dict[str, Any], records: dict[str, Any]) -> list[inspect.Parameter]:
    parameters = []
    for name, parameter in signature.parameters.items():
        if name not in records:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        kinds = typing.get_type_hints(records[name])
        for f in dataclasses.fields(records[name]):
            annotation: Any = Annotated[kinds[f.name], f.metadata["option"]]
            parameters.append(
                inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=annotation)
            )
    return parameters
