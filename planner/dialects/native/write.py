"""A plan as one self-contained MindSpore training script, for reading, changing and running without MindFormers."""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

from planner.dialects import families, traits
from planner.dialects.graph import layout
from planner.dialects.graph.sections import memory_text, predicted, samples
from planner.dialects.launch.msrun import template
from planner.dialects.records import File, Placeholder, Settings
from planner.errors import EmitError
from planner.plan import Plan

TARGET: Final = "mindspore"
NAME: Final = "pretrain.py"


def render(plan: Plan, settings: Settings | None = None) -> File:
    """Text of ``pretrain.py``.

    Raises
    ------
    EmitError
        The family or the strategy is beyond the script: experts, latent attention, context parallelism.
    """
    settings = settings or Settings()
    families.check_family(plan.model, TARGET)
    _check(plan)
    s = plan.strategy
    summary = f"dp {s.dp} x tp {s.tp} x pp {s.pp}, {s.micro_batches} micro-batches of {s.micro_batch_size}."
    figures = predicted(plan)
    text = (
        template("native", "native.py")
        .replace("@TITLE@", _line(f"{plan.model.name} on {plan.devices} x {plan.hardware}."))
        .replace("@SUMMARY@", _line(f"{summary} {figures}".rstrip()))
        .replace("@PLANNER@", plan.planner)
        .replace("@PLAN@", _literal(constants(plan, settings)))
    )
    needed = Placeholder(
        file=NAME, where="PLAN['data'] or --data", what="flat file of int32 tokens (else made-up data)"
    )
    return File(name=NAME, text=text, executable=True, placeholders=() if settings.data_path else (needed,))


def _literal(values: dict[str, Any]) -> str:
    """A Python dictionary with one entry a line; equal neighbours of a list are written as a product."""
    return "{\n" + "".join(f'    "{key}": {_expression(value)},\n' for key, value in values.items()) + "}"


def _expression(value: Any) -> str:
    if isinstance(value, list):
        runs = [(item, len(list(same))) for item, same in itertools.groupby(value)]
        return " + ".join(
            f"[{_expression(item)}] * {count}" if count > 1 else f"[{_expression(item)}]" for item, count in runs
        )
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _line(text: str) -> str:
    """One line that cannot end the script's docstring."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.replace("\\", "/").replace('"""', "'''")


def _check(plan: Plan) -> None:
    model, s = plan.model, plan.strategy
    att = model.attention
    for wrong, what in (
        (model.moe is not None or att.kind != "gqa", "experts or latent attention"),
        (model.norms_per_layer != 2 or model.mlp_bias or model.norm_bias or att.output_bias, "biases or further norms"),
        (not model.gated_mlp or model.learned_positions > 0, "plain MLPs or learned positions"),
        (model.tied_embeddings, "shared embedding and head"),
        (s.cp > 1, "context parallelism"),
        (s.zero_level > 1 and s.pp == 1 and s.micro_batches > 1, "sharded gradients added up without a pipeline"),
        (s.swap_optimizer, "optimizer states on the host"),
        (s.schedule in ("zero_bubble_v", "seqpipe"), f"schedule {s.schedule}"),
        (s.sequence_parallel and s.micro_batch_size > 1, "sequence parallelism with micro-batches above 1"),
        (plan.workload.optimizer != "AdamW", f"optimizer {plan.workload.optimizer}"),
    ):
        if wrong:
            raise EmitError(f"{TARGET} cannot hold {what}; use another target or another strategy.")


def constants(plan: Plan, settings: Settings) -> dict[str, Any]:
    """What the script knows of the plan."""
    model, s, workload, own = plan.model, plan.strategy, plan.workload, traits.of(plan.model)
    att = model.attention
    return {
        "vocab": model.vocab,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "heads": att.heads,
        "kv_heads": att.kv_heads,
        "head_dim": att.head_dim,
        "qkv_bias": att.qkv_bias,
        "qk_norm": att.qk_norm,
        "norm_epsilon": own.norm_epsilon,
        "rotary_base": own.rotary_base,
        "seq": workload.seq,
        "batch": workload.global_batch,
        "params": workload.params_dtype,
        "compute": workload.compute_dtype,
        "flash": workload.flash_attention,
        "devices": plan.devices,
        "dp": s.dp,
        "tp": s.tp,
        "pp": s.pp,
        "rows": s.dp * s.tp if s.sequence_parallel else s.dp,
        "micro_batches": s.micro_batches,
        "interleave": s.vpp > 1 or s.schedule == "gpipe",
        "scheduler": "gpipe" if s.schedule == "gpipe" else "1f1b",
        "zero_level": s.zero_level,
        "shard_size": -1 if s.optimizer_shard == s.dp else s.optimizer_shard,
        "stage_of_layer": stages(plan),
        "recompute_of_layer": recomputed(plan),
        "memory": memory_text(plan.memory_limit_bytes),
        "learning_rate": 1e-4,
        "steps": samples(plan) // workload.global_batch,
        "data": settings.data_path,
    }


def stages(plan: Plan) -> list[int]:
    """Pipeline stage of each layer in model order."""
    return [stage for row in plan.strategy.layers for stage, count in enumerate(row) for _ in range(count)]


def recomputed(plan: Plan) -> list[str]:
    """How each layer is recomputed: "full", "selective" or ""."""
    s = plan.strategy
    full = layout.spread(s.recompute_full, s.layers)
    both = layout.spread([f + c for f, c in zip(s.recompute_full, s.recompute_selective, strict=True)], s.layers)
    kinds = []
    for whole, either, row in zip(full, both, s.layers, strict=True):
        for f, e, count in zip(whole, either, row, strict=True):
            kinds += ["full"] * f + ["selective"] * max(e - f, 0) + [""] * (count - max(e, f))
    return kinds
