"""A user's own file with another strategy: only the values that say how to split the work are changed."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.cost.strategies import Strategy
from planner.dialects.graph import layout
from planner.dialects.graph.read import ReadResult
from planner.dialects.graph.write import render as render_graph
from planner.dialects.mindspeed.flags import FLAGS, SWITCH
from planner.dialects.mindspeed.given import Flags
from planner.dialects.mindspeed.recompute import held
from planner.dialects.mindspeed.rules import broken_rules
from planner.dialects.mindspeed.write import render as render_script
from planner.dialects.mindspeed.write import strategy_flags
from planner.dialects.own_comments import MARK, refreshed
from planner.dialects.pynative.write import CP_NAMES, SCHEDULES, layers_per_stage, recompute_values
from planner.dialects.pynative.write import render as render_pynative
from planner.dialects.read import dialect, read_text_as
from planner.dialects.text.yaml_edit import YamlText
from planner.dialects.text.yaml_read import Document, loads, read_text
from planner.errors import EmitError, PlannerError, SpecError
from planner.model.records import Workload
from planner.plan import Plan

#: Flags of a MindSpeed script that say how to split the work; those that a new strategy does not need are removed.
_STRATEGY_FLAGS = (
    "tensor-model-parallel-size pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
    "num-layer-list sequence-parallel use-ascend-mc2 context-parallel-size context-parallel-algo ulysses-degree-in-cp "
    "expert-model-parallel-size expert-tensor-parallel-size moe-tp-extend-ep use-distributed-optimizer swap-optimizer "
    "micro-batch-size global-batch-size recompute-granularity recompute-method recompute-num-layers "
    "recompute-activation-function recompute-activation-function-num-layers "
    "enable-recompute-layers-per-pp-rank noop-layers num-layers attention-mask-type use-cp-send-recv-overlap "
    "num-virtual-stages-per-pipeline-rank decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers "
    "pipeline-model-parallel-layout pipeline-num-transformer-layers"
).split()


#: Flags that mean nothing without context parallelism.
_CONTEXT_FLAGS = ("--context-parallel-algo", "--attention-mask-type", "--ulysses-degree-in-cp")
#: One value on a line of a script: arithmetic, quoted or plain; a bracket that closes an array is none of it.
_VALUE = r"(?:\$\(\([^\n]*?\)\)|\"[^\"\n]*\"|'[^'\n]*'|[^\s\\#)\"'])+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """A rewritten file.

    Attributes
    ----------
    text : str
        The whole new file.
    difference : tuple of str
        Unified difference to the old one, line by line.
    before : ReadResult
        What the old file said.
    strategy : Strategy
        What the new file says: the one asked for, or the nearest one that such a file holds without recomputing less
        (MindSpeed scripts have one number of recomputed layers for all stages).
    """

    text: str
    difference: tuple[str, ...]
    before: ReadResult
    strategy: Strategy


def after_change(workload: Workload) -> Workload:
    """The workload of the file that `improve` makes: it cuts neither batches nor sequences and gathers once."""
    gone = ("batch-parts", "sequence-pieces", "gathers", "gathers-alone")
    return replace(workload, switches=tuple(s for s in workload.switches if s.partition("=")[0] not in gone))


def improve(path: str | Path, strategy: Strategy, devices: int | None = None) -> Improved:
    """Copy of a file's text with only its strategy changed.

    Parameters
    ----------
    path : str or Path
        MindFormers YAML (graph mode or PyNative), or a MindSpeed-LLM / Megatron script.
    strategy : Strategy
        What the new file shall say; it must fit the file's model.
    devices : int, optional
        Devices of the old job, for files that do not say it.

    Raises
    ------
    EmitError
        The file is written in a way that cannot be changed safely; the message says what to change by hand.
    SpecError
        The file cannot be read.
    """
    path = Path(path)
    original = read_text(path)
    text = original.replace("\r\n", "\n")
    check_own(path)
    before = read_text_as(path, text, devices)
    if sum(strategy.layers_per_stage) != before.model.layers:
        raise EmitError(
            f"the strategy places {sum(strategy.layers_per_stage)} layers, but {path} has {before.model.layers}."
        )
    strategy = holdable(before.workload, strategy)
    if before.workload.runs_on.dialect == "megatron":
        new = _script(text, strategy, before, str(path))
    else:
        document = loads(text, source=str(path))
        change = _pynative if dialect(document) == "pynative" else _graph
        new = change(document, strategy, before)
    _verify(path, new, strategy)
    if "\r\n" in original:
        new = new.replace("\n", "\r\n")
    return Improved(text=new, difference=_difference(path, original, new), before=before, strategy=strategy)


def check_own(path: Path) -> None:
    """Raise `EmitError` for files that only the planner makes: there is nothing of the user's to keep."""
    if path.suffix in (".json", ".py"):
        raise EmitError(f"{path} is made by the planner itself; make a new one with planner suggest --emit.")


def holdable(workload: Workload, strategy: Strategy) -> Strategy:
    """What a file of the workload's framework says in place of a strategy: never less recompute than asked for."""
    return held(strategy, None) if workload.runs_on.dialect == "megatron" else strategy


def with_own_comments(path: str | Path, improved: Improved, old: Plan, new: Plan) -> Improved:
    """The rewritten file with the planner's own comments renewed, where it wrote the file; see `own_comments`."""
    if MARK not in improved.text:
        return improved
    dialect_name = new.workload.runs_on.dialect
    render = {"megatron": render_script, "pynative": render_pynative}.get(dialect_name, render_graph)
    try:
        written = render(new).text
    except PlannerError:
        return improved  # a family or a shape that the planner itself does not write
    try:
        before = render(old).text
    except PlannerError:
        before = ""
    ends = "\r\n" if "\r\n" in improved.text else "\n"
    text = refreshed(improved.text.replace(ends, "\n"), before, written).replace("\n", ends)
    return replace(improved, text=text, difference=_difference(Path(path), read_text(Path(path)), text))


def _difference(path: Path, before: str, after: str) -> tuple[str, ...]:
    lines = before.splitlines(), after.splitlines()
    return tuple(difflib.unified_diff(*lines, str(path), f"{path} (new)", lineterm="", n=1))


def _verify(path: Path, text: str, strategy: Strategy) -> None:
    """The new text, read back, says what it shall say."""
    try:
        after = read_text_as(path, text).strategy
    except SpecError:  # it may not say the devices, or a launch script beside it those of the old file
        after = None
    if after is None or (after.dp != strategy.dp and path.suffix != ".sh"):  # a PyNative file does not hold dp
        try:
            after = read_text_as(path, text, strategy.devices).strategy
        except SpecError as error:
            raise EmitError(f"{path} cannot be changed automatically: {error}") from None
    wrong = [name for name in Strategy.__dataclass_fields__ if getattr(after, name) != getattr(strategy, name)]
    if wrong:
        values = ", ".join(f"{name}={getattr(strategy, name)}" for name in wrong)
        raise EmitError(f"{path} cannot be changed automatically; set by hand: {values}.")


def _graph(document: Document, s: Strategy, before: ReadResult) -> str:
    text = YamlText(document.text, document.source)
    legacy = before.workload.runs_on.dialect == "legacy"
    for key, value in _degrees(s, legacy=legacy, moe=before.model.moe is not None).items():
        _set_if_new(text, document, ("parallel_config", key), value)
    if legacy and before.model.moe is not None:
        _legacy_experts(text, document, s)
    runner = {"batch_size": s.micro_batch_size, "gradient_accumulation_steps": s.micro_batches if s.pp == 1 else 1}
    for key, value in runner.items():
        _set_if_new(text, document, ("runner_config", key), value)
    _set_if_new(text, document, ("micro_batch_interleave_num",), 1)
    _set_if_new(text, document, ("parallel_config", "seq_split_num"), 1)
    _set_if_new(text, document, ("recompute_config", "select_comm_recompute"), False)
    if legacy:
        _set_if_new(text, document, ("model", "model_config", "batch_size"), s.micro_batch_size)
    _set_if_new(text, document, ("model", "model_config", "offset"), layout.offset(s))
    pipeline = layout.pipeline_config(s) or {"pipeline_interleave": False, "pipeline_scheduler": "1f1b"}
    if (s.schedule, s.vpp) == (before.strategy.schedule, before.strategy.vpp):
        pipeline.pop("pipeline_scheduler")  # another name for the same schedule may stand there
    for key, value in pipeline.items():
        if pipeline["pipeline_interleave"] or _lookup(document, ("parallel", "pipeline_config")) is not None:
            _set_if_new(text, document, ("parallel", "pipeline_config", key), value)
    if pipeline["pipeline_interleave"] or _lookup(document, ("model", "model_config", "pp_interleave_num")) is not None:
        _set_if_new(text, document, ("model", "model_config", "pp_interleave_num"), s.vpp)
    _set_if_new(text, document, ("recompute_config", "recompute"), layout.recompute(s))
    _set_if_new(text, document, ("recompute_config", "select_recompute"), layout.select_recompute(s))
    if (s.pp, s.vpp) != (before.strategy.pp, before.strategy.vpp):
        _lists_by_stage(text, document)
    _optimizer(text, document, s)
    _dataset_strategy(text, document, s)
    return text.text


def _lists_by_stage(text: YamlText, document: Document) -> None:
    """Other lists with a number for each old stage: the framework would index past the new ones."""
    section = _lookup(document, ("recompute_config",))
    for key, value in section.items() if isinstance(section, dict) else ():
        if key not in ("recompute", "select_recompute", "select_comm_recompute") and _counts_stages(value):
            text.set(("recompute_config", key), False)


def _counts_stages(value: Any) -> bool:
    """Whether a setting holds a list of numbers, by itself, by chunk or by pattern of operators."""
    if isinstance(value, dict):
        return any(map(_counts_stages, value.values()))
    return isinstance(value, list) and any(isinstance(item, int) or _counts_stages(item) for item in value)


def _legacy_experts(text: YamlText, document: Document, s: Strategy) -> None:
    """Experts split over tp, which is the default of a legacy network without grouped products, or whole."""
    path = ("moe_config", "expert_model_parallel")
    usual = 1 if _lookup(document, ("moe_config", "use_gmm")) is True else s.tp
    if (_lookup(document, path) or usual) != s.etp:
        text.set(path, s.etp)


def _degrees(s: Strategy, *, legacy: bool, moe: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data_parallel": s.dp,
        "model_parallel": s.tp,
        "pipeline_stage": s.pp,
        "context_parallel": s.cp,
        "micro_batch_num": s.micro_batches if s.pp > 1 else 1,
    }
    if s.tp > 1 or not legacy:  # without effect otherwise
        values["use_seq_parallel"] = s.sequence_parallel
    if moe:
        values["expert_parallel"] = s.ep
    hybrid = s.cp_algorithm == "hybrid" and not legacy
    values["context_parallel_algo"] = layout.CP_NAMES["ring" if hybrid else s.cp_algorithm]
    values["ulysses_degree_in_cp"] = s.ulysses_degree
    return values


#: What a key means when it is absent, so that it need not be added for that.
_DEFAULTS: dict[str, Any] = {
    "data_parallel": 1, "model_parallel": 1, "pipeline_stage": 1, "context_parallel": 1, "expert_parallel": 1,
    "micro_batch_num": 1, "use_seq_parallel": False, "context_parallel_algo": "colossalai_cp",
    "ulysses_degree_in_cp": 1,
    "batch_size": 1, "gradient_accumulation_steps": 1, "micro_batch_interleave_num": 1, "offset": 0,
    "seq_split_num": 1, "recompute": False, "select_recompute": False, "select_comm_recompute": False,
    "enable_parallel_optimizer": False, "swap": False,
    "gradient_accumulation_shard": False, "optimizer_weight_shard_size": -1,
}  # fmt: skip


def _set_if_new(text: YamlText, document: Document, path: tuple[str, ...], value: Any) -> None:
    old = _lookup(document, path)
    if old == value and type(old) is type(value):
        return
    if old is None and _DEFAULTS.get(path[-1], path) == value:
        return
    text.set(path, value)


def _lookup(document: Document, path: tuple[str, ...]) -> Any:
    node: Any = document.root
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _optimizer(text: YamlText, document: Document, s: Strategy) -> None:
    section = ("parallel", "parallel_optimizer_config")
    _set_if_new(text, document, ("parallel", "enable_parallel_optimizer"), s.zero_level > 0)
    if _lookup(document, ("optimizer", "swap")) is not None or s.swap_optimizer:
        _set_if_new(text, document, ("optimizer", "swap"), s.swap_optimizer)
    if s.zero_level == 0:
        return
    if s.zero_level == 3:
        text.remove((*section, "gradient_accumulation_shard"))
        _set_if_new(text, document, (*section, "optimizer_level"), "level3")
    else:
        text.remove((*section, "optimizer_level"))
        _set_if_new(text, document, (*section, "gradient_accumulation_shard"), s.zero_level == 2)
    old = _lookup(document, (*section, "optimizer_weight_shard_size"))
    everything = s.optimizer_shard == s.dp * s.cp
    if not everything or (isinstance(old, int) and 0 < old < s.optimizer_shard):
        _set_if_new(text, document, (*section, "optimizer_weight_shard_size"), -1 if everything else s.optimizer_shard)


def _dataset_strategy(text: YamlText, document: Document, s: Strategy) -> None:
    path = ("parallel", "dataset_strategy")
    rows = _lookup(document, path)
    after = _lookup(loads(text.text, source=document.source), path)  # anchors follow data_parallel by themselves
    if not isinstance(rows, list) or not isinstance(after, list) or not all(isinstance(row, list) for row in after):
        return
    wanted = [[s.dp, *row[1:]] for row in after]
    if wanted != after:
        text.set(path, wanted)


def _pynative(document: Document, s: Strategy, before: ReadResult) -> str:
    text = YamlText(document.text, document.source)
    batch = s.dp * s.micro_batch_size * s.micro_batches
    values: dict[tuple[str, ...], Any] = {
        ("training", "local_batch_size"): s.micro_batch_size,
        ("training", "global_batch_size"): batch,
        **{
            ("parallelism", key): value for key, value in _pynative_degrees(s, moe=before.model.moe is not None).items()
        },
    }
    for key, value in recompute_values(s).items():
        nested = value.items() if isinstance(value, dict) else ()
        values.update({("recompute", key, module): layers for module, layers in nested})
        if not nested:
            values["recompute", key] = value
    for path, value in values.items():
        old = _lookup(document, path)
        absent = old is None and _PYNATIVE_DEFAULTS.get(path[-1], path) == value
        everything = path[-1] == "data_parallel_shard" and old == -1 and value == s.dp
        if old != value and not absent and not everything:
            text.set(path, value)
    for key in ("full_recompute_layer", "select_module"):  # of the other mode
        if ("recompute", key) not in {path[:2] for path in values}:
            text.remove(("recompute", key))
    return text.text


#: What a key of a PyNative file means when it is absent.
_PYNATIVE_DEFAULTS: dict[str, Any] = {
    "tensor_parallel": 1, "sequence_parallel": False, "context_parallel": 1, "pipeline_parallel": 1,
    "pipeline_parallel_schedule": "1f1b", "pipeline_parallel_interleave_num": 1,
    "pipeline_parallel_layers_per_stage": "auto", "expert_parallel": 1, "ulysses_degree_in_cp": None, "mode": "None",
}  # fmt: skip


def _pynative_degrees(s: Strategy, *, moe: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data_parallel_shard": max(s.optimizer_shard // s.cp, 1) if s.zero_level == 3 else 1,
        "tensor_parallel": s.tp,
        "sequence_parallel": s.sequence_parallel,
        "context_parallel": s.cp,
        "pipeline_parallel": s.pp,
        "pipeline_parallel_schedule": SCHEDULES.get(s.schedule, s.schedule),
        "pipeline_parallel_interleave_num": s.vpp,
        "pipeline_parallel_layers_per_stage": layers_per_stage(s.layers),
    }
    if s.cp > 1:
        values["context_parallel_method"] = CP_NAMES[s.cp_algorithm]
        values["ulysses_degree_in_cp"] = s.ulysses_degree if s.cp_algorithm != "ring" else None
    if moe:
        values["expert_parallel"] = s.ep
    return values


def _script(text: str, s: Strategy, before: ReadResult, source: str) -> str:
    old = Flags(text, source)
    if any("[" in (old.values.get(f"--{name}") or "") for name in _STRATEGY_FLAGS):
        raise EmitError(f"{source} gives every node numbers of its own; make a new one with planner suggest --emit.")
    wanted = strategy_flags(s, before.model, before.workload)
    if s.cp == 1 and old.has("--context-parallel-size"):
        wanted["--context-parallel-size"] = 1  # stays, with what belongs to it and has no effect then
        wanted |= {flag: old.values[flag] for flag in _CONTEXT_FLAGS if flag in old.values}
    dispatcher = _experts(old, s, wanted)
    if dispatcher:
        text = _set_flag(text, "--moe-token-dispatcher-type", dispatcher, source)
    for name in _STRATEGY_FLAGS:
        flag = f"--{name}"
        if flag not in wanted:
            text = _remove_flag(text, flag)
        elif flag not in old.values or old.values[flag] != str(wanted[flag]):
            text = _set_flag(text, flag, wanted[flag], source)
    text = _set_nodes(text, s.devices)
    kept = set(map(str, broken_rules(old.values)))
    new = [str(rule) for rule in broken_rules(Flags(text, source).values, s.devices) if str(rule) not in kept]
    if new:
        raise EmitError(f"{source} cannot be changed automatically: {' '.join(new)}")
    return text


def _experts(old: Flags, s: Strategy, wanted: dict[str, Any]) -> str | None:
    """Whole experts the way a script already has them; a dispatcher that takes the new layout, where its own does not.

    ``alltoall_seq`` takes experts split over tp, and whole ones with --moe-tp-extend-ep alone.
    """
    extended = old.has("--moe-tp-extend-ep")
    if extended and s.etp == 1 and s.ep % s.tp == 0:
        wanted.pop("--expert-tensor-parallel-size", None)
        wanted |= {"--moe-tp-extend-ep": None, "--expert-model-parallel-size": s.ep // s.tp}
        return None
    ordered = old.has("--num-experts") and old.text("--moe-token-dispatcher-type", "allgather") == "alltoall_seq"
    return "alltoall" if ordered and (extended or s.etp != s.tp) else None


def _set_nodes(text: str, devices: int) -> str:
    """Number of nodes for another number of devices, where the script says how many a node has."""
    flags = Flags(text, "script")
    local, nodes = flags.launched("--nproc_per_node", "--nproc-per-node"), flags.launched("--nnodes")
    if local is None or local * (nodes or 1) == devices or devices % local:
        return text
    return _set_value(text, "--nnodes", devices // local)


def _set_flag(text: str, flag: str, value: str | float | None, source: str) -> str:
    """`text` with a flag set: its number, the variable that holds it, or a new line for it."""
    if re.search(rf"(?<![\w-]){flag}(?![\w-])", text) is None:
        return _insert_flag(text, flag, value, source)
    return text if FLAGS[flag].kind == SWITCH else _set_value(text, flag, value)


def _set_value(text: str, flag: str, value: str | float | None) -> str:
    found = re.search(rf"(?<![\w-]){flag}[ \t=]+(?P<value>{_VALUE})", text)
    if found is None:
        return text
    old = (found["value"] or "").strip("\"'")
    variable = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", old)
    if variable:
        new, count = re.subn(
            rf"(?m)^(\s*(?:export\s+)?{variable[1]}=)(?P<quote>[\"']?)(?:\$\(\([^\n]*?\)\)|[^\s\"'#;]+)(?P=quote)",
            rf"\g<1>\g<quote>{value}\g<quote>",
            text,
            count=1,
        )
        if count:
            return new
    return text[: found.start("value")] + str(value) + text[found.end("value") :]


def _insert_flag(text: str, flag: str, value: str | float | None, source: str) -> str:
    """A new line for a flag, like the line of a flag that every script has."""
    found = re.search(
        r"(?m)^(?P<indent>\s*)--(num-layers|hidden-size|tensor-model-parallel-size)\b[^\n]*?(?P<tail>\s*\\)?$", text
    )
    if found is None:
        raise EmitError(f"{source}: add by hand: {flag}{'' if value is None else f' {value}'}.")
    words = flag if value is None else f"{flag} {value}"
    line = f"{found['indent'].lstrip(chr(10))}{words}{found['tail'] or ''}\n"
    start = text.rfind("\n", 0, found.start() + len(found["indent"])) + 1
    return text[:start] + line + text[start:]


def _remove_flag(text: str, flag: str) -> str:
    value = "" if FLAGS[flag].kind == SWITCH else rf"[ \t=]+{_VALUE}"
    alone = re.compile(rf"(?m)^[ \t]*{flag}{value}[ \t]*(\\)?[ \t]*(#[^\n]*)?\n")
    text, count = alone.subn("", text)
    return text if count else re.sub(rf"[ \t]*(?<![\w-]){flag}{value}(?![\w-])", "", text)
