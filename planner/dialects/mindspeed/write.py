"""A plan as one MindSpeed-LLM pre-training script (Megatron arguments, launched by torchrun on every node)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from planner.cost.strategies import Strategy
from planner.dialects import families
from planner.dialects.graph.sections import samples
from planner.dialects.held import as_written
from planner.dialects.launch import environment
from planner.dialects.launch.environment import Variable
from planner.dialects.launch.msrun import HERE, MARK, PORT, checked_hosts, hosts_note
from planner.dialects.mindspeed import recompute as mindspeed_recompute
from planner.dialects.mindspeed.flags import FLAGS, SWITCH
from planner.dialects.mindspeed.model import Line, padded_layers, shape_flags
from planner.dialects.mindspeed.rules import broken_rules
from planner.dialects.records import File, Placeholder, Settings
from planner.dialects.text.shell_write import quoted, script
from planner.dialects.text.yaml_write import comment
from planner.errors import EmitError
from planner.frameworks import NO_TP_OVERLAP
from planner.model.records import Model, Workload
from planner.plan import Plan
from planner.units import format_seconds

TARGET: Final = "mindspeed"
NAME: Final = "pretrain.sh"
CP_NAMES: Final = {"ring": "megatron_cp_algo", "ulysses": "ulysses_cp_algo", "hybrid": "hybrid_cp_algo"}


def render(plan: Plan, settings: Settings | None = None) -> File:
    """Text of ``pretrain.sh``.

    Raises
    ------
    EmitError
        The family, the shape or the strategy has no flags.
    """
    settings = settings or Settings()
    families.check_family(plan.model, TARGET)
    _check(plan)
    hosts = checked_hosts(plan, settings)
    if settings.device_addresses:
        raise EmitError("mindspeed is started by torchrun, which takes no rank table; leave it out.")
    plan, notes = as_held(plan)
    notes += hosts_note(plan, settings)
    by_node = mindspeed_recompute.by_node(plan)
    groups = {
        "parallel": _parallel(plan),
        "recompute": [] if by_node else mindspeed_recompute.lines(plan.strategy),
        "model": shape_flags(plan),
        "kernels": _kernels(plan),
        "training": _training(plan),
    }
    _check_flags(plan, groups)
    lines = [*_header(plan), "set -euo pipefail", HERE, "", *environment.exports(_variables(plan)), ""]
    lines += _addresses(plan, hosts)
    lines += _inputs(settings)
    for name, flags in groups.items():
        if not flags:
            continue
        lines += [f"{name}=(", *(_text(line) for line in flags), ")", ""]
    names = [name for name, flags in groups.items() if flags or (by_node and name == "recompute")]
    arrays = " ".join(f'"${{{name}[@]}}"' for name in names)
    lines += [
        *by_node,
        'exec torchrun "${nodes[@]}" "${MINDSPEED_LLM:-.}/pretrain_gpt.py" \\',
        f"  {arrays} \\",
        '  --data-path "$data_path" --tokenizer-type PretrainedFromHF --tokenizer-name-or-path "$tokenizer" \\',
        '  --save "${SAVE_DIR:-$here/checkpoints}" --distributed-backend nccl "$@"',
    ]
    return File(
        name=NAME, text=script(lines), executable=True, placeholders=_placeholders(plan, settings, hosts), notes=notes
    )


def as_held(plan: Plan) -> tuple[Plan, list[str]]:
    """The plan that the script holds, and what is said about the difference to the one given."""
    written = mindspeed_recompute.held(plan.strategy, mindspeed_recompute.Nodes.of(plan))
    if written == plan.strategy:
        return plan, []
    kept, change = as_written(plan, written)
    parts = []
    for kind, new, old in (
        ("whole", written.recompute_full, plan.strategy.recompute_full),
        ("selectively", written.recompute_selective, plan.strategy.recompute_selective),
    ):
        if new != old:
            parts.append(f"{', '.join(map(str, new))} {kind} (plan: {', '.join(map(str, old))})")
    note = (
        "MindSpeed recomputes equally many layers on all stages that share a node. Layers of each stage as written: "
        f"{'; '.join(parts)}. {change} plan.json beside the script says what is written."
    )
    return kept, [note]


def _check_flags(plan: Plan, groups: Mapping[str, Sequence[Line]]) -> None:
    """The rules that Megatron and MindSpeed put on their arguments."""
    values = {flag: None if value is None else str(value) for lines in groups.values() for flag, value, _ in lines}
    broken = list(broken_rules(values, plan.devices))
    if broken:
        raise EmitError(f"mindspeed refuses this plan: {' '.join(map(str, broken))}")


def strategy_flags(strategy: Strategy, model: Model, workload: Workload) -> dict[str, str | int | float | None]:
    """Flags that say how to split the work, for a script that exists already; None is the value of a switch.

    One number of recomputed layers serves all stages (``mindspeed_recompute.held``).

    Raises
    ------
    EmitError
    """
    batch = strategy.dp * strategy.micro_batch_size * strategy.micro_batches
    plan = Plan(
        model=model,
        workload=replace(workload, global_batch=batch, optimizer="AdamW"),
        hardware="",
        devices=strategy.devices,
        strategy=strategy,
    )
    _check(plan)
    flags = {flag: value for flag, value, _ in (*_parallel(plan), *mindspeed_recompute.lines(strategy))}
    flags["--num-layers"] = padded_layers(strategy.layers)[0] if strategy.vpp > 1 else model.layers
    return {flag: value for flag, value in flags.items() if not flag.startswith("--overlap-")}


def _check(plan: Plan) -> None:
    model, s = plan.model, plan.strategy
    families.leading_dense(model, TARGET)
    for wrong, what in (
        (model.norms_per_layer != 2, f"there are no flags for {model.norms_per_layer} norms a layer"),
        (model.family in ("glm4", "glm4_moe") and model.mlp_bias, "there are no flags for a bias in the MLP alone"),
        (
            0 < model.learned_positions < plan.workload.seq,
            f"{plan.workload.seq} tokens are more than its {model.learned_positions} learned positions",
        ),
        (model.mtp_layers > 1, "one MTP module at most"),
        (bool(model.moe and model.moe.shared_ffn % model.moe.expert_ffn), "shared experts must be whole experts wide"),
    ):
        if wrong:
            raise families.refuse(model, TARGET, what)
    if s.schedule not in ("1f1b", "interleaved"):
        raise EmitError(f"mindspeed has no schedule {s.schedule!r}; legal: 1f1b, interleaved.")
    if (s.vpp > 1) != (s.schedule == "interleaved"):
        raise EmitError(f"schedule {s.schedule} and vpp {s.vpp} contradict each other; interleaved needs vpp above 1.")
    if s.zero_level > 1:
        raise EmitError(f"mindspeed shards optimizer states only (level 1 at most), not level {s.zero_level}.")
    if s.zero_level == 1 and s.optimizer_shard != s.dp * s.cp:
        raise EmitError(
            f"mindspeed shards optimizer states over all {s.dp * s.cp} data- and context-parallel ranks, not over "
            f"{s.optimizer_shard}."
        )
    if s.swap_optimizer and s.zero_level == 0:
        raise EmitError("--swap-optimizer needs the distributed optimizer: use zero level 1.")
    if s.sequence_parallel and s.tp == 1:
        raise EmitError("sequence parallelism needs tp of at least 2; switch sequence_parallel off.")
    if plan.workload.optimizer not in ("Adam", "AdamW"):
        raise EmitError(f"optimizer {plan.workload.optimizer!r} cannot be written for mindspeed; legal: AdamW.")


def _header(plan: Plan) -> list[str]:
    s, w = plan.strategy, plan.workload
    lines = [
        f"# {comment(plan.model.name)}: pre-training on {plan.devices} x {comment(plan.hardware)}, sequence {w.seq}, "
        f"global batch {w.global_batch}",
        f"# dp {s.dp} x tp {s.tp} x pp {s.pp} x cp {s.cp} = {s.devices} devices; ep {s.ep}, vpp {s.vpp}, "
        f"{s.micro_batches} micro-batches of {s.micro_batch_size}",
        MARK,
        "# MindSpeed-LLM 26.0 (Megatron-LM core_v0.12.1).  Run from its root, or name it in MINDSPEED_LLM.",
        "# Usage: bash pretrain.sh"
        + ("" if plan.nodes == 1 else " on every node, with NODE_RANK set (0 is the master)"),
    ]
    step_s = plan.estimate.get("step_s")
    if isinstance(step_s, (int, float)) and step_s > 0:
        lines.append(f"# Predicted: {format_seconds(step_s)} a step.")
    return lines


def _variables(plan: Plan) -> tuple[Variable, ...]:
    return (
        *environment.hccl(plan),
        Variable(
            name="CUDA_DEVICE_MAX_CONNECTIONS",
            value="1",
            reason="kernels start in the order in which they were queued, which Megatron's overlap relies on",
        ),
        Variable(
            name="PYTORCH_NPU_ALLOC_CONF",
            value="expandable_segments:True",
            reason="torch_npu's pool grows its segments, so that it does not fragment",
        ),
    )


def _addresses(plan: Plan, hosts: Sequence[str]) -> list[str]:
    local = min(plan.devices, plan.devices_per_node)
    if plan.nodes == 1:
        return [f'nodes=(--nproc_per_node {local} --nnodes 1 --master_port "${{MASTER_PORT:-{PORT}}}")', ""]
    master = quoted(hosts[0]) if hosts else ""
    return [
        f'master_addr="${{MASTER_ADDR:-{master}}}"',
        'node_rank="${NODE_RANK:-}"',
        'if [[ ! "$master_addr" =~ ^[A-Za-z0-9][A-Za-z0-9.:-]*$ || ! "$node_rank" =~ ^[0-9]+$ ]] \\',
        f"  || (( 10#$node_rank >= {plan.nodes} )); then",
        f'  echo "pretrain.sh: set NODE_RANK (0 to {plan.nodes - 1}) and MASTER_ADDR (address of node 0)" >&2; exit 2',
        "fi",
        "node_rank=$(( 10#$node_rank ))",
        f'nodes=(--nproc_per_node {local} --nnodes {plan.nodes} --node_rank "$node_rank"',
        f'  --master_addr "$master_addr" --master_port "${{MASTER_PORT:-{PORT}}}")',
        "",
    ]


def _inputs(settings: Settings) -> list[str]:
    lines = []
    for name, variable, value, default in (
        ("data_path", "DATA_PATH", settings.data_path, "/path/to/dataset"),
        ("tokenizer", "TOKENIZER_PATH", settings.tokenizer_path, "/path/to/tokenizer"),
    ):
        if set("$`") & set(value):
            lines.append("# shellcheck disable=SC2016  # the path holds these signs, nothing is to expand")
        lines.append(f"default={quoted(value or default)}" + ("" if value else "  # <-- PLACEHOLDER"))
        lines.append(f'{name}="${{{variable}:-$default}}"')
    return [*lines, ""]


def _placeholders(plan: Plan, settings: Settings, hosts: Sequence[str]) -> tuple[Placeholder, ...]:
    found = []
    if not settings.data_path:
        found.append(Placeholder(file=NAME, where="DATA_PATH", what="prefix of the Megatron .bin/.idx training data"))
    if not settings.tokenizer_path:
        found.append(Placeholder(file=NAME, where="TOKENIZER_PATH", what="folder of the Hugging Face tokenizer"))
    if plan.nodes > 1 and not hosts:
        found.append(Placeholder(file=NAME, where="MASTER_ADDR", what="address of node 0"))
    return tuple(found)


def _text(line: Line) -> str:
    flag, value, why = line
    spec = FLAGS.get(flag)
    assert spec is not None, flag
    assert (value is None) == (spec.kind == SWITCH), flag
    text = quoted(str(value))
    word = f"  {flag}" if value is None else f"  {flag} {text}" if "," not in text else f'  {flag} "{text}"'
    return f"{word}  # {comment(why)}" if why else word


def _parallel(plan: Plan) -> list[Line]:
    s = plan.strategy
    lines: list[Line] = [
        ("--tensor-model-parallel-size", s.tp, f"{plan.model.attention.heads // s.tp} attention heads on a device"),
        ("--pipeline-model-parallel-size", s.pp, f"{plan.devices} devices leave dp {s.dp}"),
        *_placement(plan),
    ]
    if s.sequence_parallel:
        lines.append(("--sequence-parallel", None, "norms and residuals are split over the tensor-parallel ranks"))
        if plan.model.moe is None and NO_TP_OVERLAP not in plan.workload.switches:
            lines.append(("--use-ascend-mc2", None, "tensor-parallel traffic travels beside the matmuls"))
    if s.cp > 1:
        lines += _context_parallel(plan)
    if plan.model.moe is not None:
        lines.append(("--expert-model-parallel-size", s.ep, f"{plan.model.moe.experts // s.ep} experts on a device"))
        if s.tp > 1 or s.etp > 1:  # without it experts are split like the dense layers
            why = "experts stay whole" if s.etp == 1 else "ranks that share each expert"
            lines.append(("--expert-tensor-parallel-size", s.etp, why))
    if s.zero_level == 1:
        lines.append(("--use-distributed-optimizer", None, f"optimizer states sharded over {s.dp * s.cp} ranks"))
        if s.dp * s.cp > 1:
            lines.append(("--overlap-grad-reduce", None, "gradients travel behind the backward pass"))
            lines.append(("--overlap-param-gather", None, "parameters travel behind the forward pass"))
    if s.swap_optimizer:
        lines.append(("--swap-optimizer", None, "optimizer states wait in host memory between steps"))
    lines.append(("--micro-batch-size", s.micro_batch_size, ""))
    why = f"{s.micro_batch_size} x dp {s.dp} x {s.micro_batches} micro-batches"
    lines.append(("--global-batch-size", plan.workload.global_batch, why))
    return lines


def _context_parallel(plan: Plan) -> list[Line]:
    s = plan.strategy
    lines: list[Line] = [
        ("--context-parallel-size", s.cp, f"{plan.workload.seq // s.cp} of {plan.workload.seq} tokens on a device"),
        ("--context-parallel-algo", CP_NAMES[s.cp_algorithm], ""),
        ("--attention-mask-type", "causal", ""),
    ]
    if s.cp_algorithm == "hybrid":
        lines.append(
            ("--ulysses-degree-in-cp", s.ulysses_degree, "heads are exchanged inside, keys and values between")
        )
    if s.cp_algorithm != "ulysses":
        lines.append(("--use-cp-send-recv-overlap", None, "keys and values travel behind attention"))
    return lines


def _placement(plan: Plan) -> list[Line]:
    s = plan.strategy
    counts = {count for row in s.layers for count in row}
    if s.vpp > 1:
        total, idle = padded_layers(s.layers)
        chunk = total // (s.pp * s.vpp)
        lines: list[Line] = [("--num-layers-per-virtual-pipeline-stage", chunk, f"{s.vpp} chunks a stage")]
        if idle:
            lines.append(("--noop-layers", ",".join(map(str, idle)), f"{total} layers, {len(idle)} of them do nothing"))
        return lines
    if len(counts) > 1:
        return [("--num-layer-list", ",".join(map(str, s.layers[0])), "layers of each stage")]
    return []


def _kernels(plan: Plan) -> list[Line]:
    types = {"bfloat16": "--bf16", "float16": "--fp16"}
    lines: list[Line] = [
        ("--use-mcore-models", None, ""),
        ("--no-masked-softmax-fusion", None, ""),
        ("--attention-softmax-in-fp32", None, ""),
        ("--no-gradient-accumulation-fusion", None, ""),
    ]
    if plan.workload.compute_dtype in types:
        lines.append((types[plan.workload.compute_dtype], None, "parameters, with float32 copies in the optimizer"))
    if plan.workload.flash_attention:
        lines.append(("--use-flash-attn", None, ""))
    fused = {
        "--use-fused-rmsnorm": not plan.model.norm_bias,
        "--use-fused-swiglu": plan.model.gated_mlp,
        "--use-fused-rotary-pos-emb": not plan.model.learned_positions,
    }
    return lines + [(flag, None, "") for flag, on in fused.items() if on]


def _training(plan: Plan) -> list[Line]:
    return [
        ("--train-iters", samples(plan) // plan.workload.global_batch, ""),
        ("--lr", 1e-4, ""),
        ("--min-lr", 1e-5, ""),
        ("--lr-decay-style", "cosine", ""),
        ("--lr-warmup-fraction", 0.01, ""),
        ("--weight-decay", 0.1, ""),
        ("--clip-grad", 1.0, ""),
        ("--adam-beta1", 0.9, ""),
        ("--adam-beta2", 0.95, ""),
        ("--seed", 42, ""),
        ("--split", "100,0,0", ""),
        ("--log-interval", 1, ""),
        ("--save-interval", 1000, ""),
        ("--eval-interval", 1000, ""),
        ("--eval-iters", 0, ""),
    ]
