"""Read a MindFormers PyNative file (``TrainConfig`` of 2.x) back: model, workload and strategy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from planner.cost.strategies import Strategy
from planner.dialects.graph import layout, read_model
from planner.dialects.graph.read import MOMENTS, ReadResult, data_type
from planner.dialects.pynative.write import CP_NAMES, SCHEDULES
from planner.dialects.text.fields import Section
from planner.dialects.text.yaml_read import Document
from planner.errors import SpecError
from planner.model.records import Workload
from planner.units import parse_bytes

_RANGE: Final = re.compile(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?")
_IGNORED: Final = frozenset(
    "data_parallel_shard_strategy reshard_after_forward_policy disable_gradient_division context_parallel_mask_type "
    "pipeline_parallel_microbatch_size pipeline_parallel_p2p_transport npu_nums_per_device moe_token_dispatcher_type "
    "pipeline_parallel_overlap_p2p".split()
)
_KNOWN: Final = frozenset(
    "training parallelism recompute recompute_comm optimizer lr_scheduler checkpoint train_dataset model context "
    "callbacks monitor profiler swap lora_config".split()
)


def read_pynative(document: Document, devices: int | None = None) -> ReadResult:
    """Parsed PyNative file.

    Parameters
    ----------
    document : Document
    devices : int, optional
        Number of devices; the file does not hold it.

    Raises
    ------
    SpecError
    """
    unread = [f"{'.'.join(path)}: given twice, the last one (line {line}) counts" for path, line in document.duplicates]
    unread += [
        f"{name}: not a section that is known; MindFormers ignores it" for name in document.root if name not in _KNOWN
    ]
    section = Section(document, "model")
    family = read_model.with_defaults(section)
    model = read_model.mcore_model(section, family, Path(document.source).stem, document.source)
    strategy = _strategy(document, model.layers, unread, devices)
    optimizer = Section(document, "optimizer").text("type", default="AdamW")
    params = data_type(section, "float32", "params_dtype")
    workload = Workload(
        seq=_sequence(document, section),
        global_batch=strategy.dp * strategy.micro_batch_size * strategy.micro_batches,
        params_dtype=params,
        compute_dtype=data_type(section, "bfloat16", "compute_dtype"),
        optimizer=optimizer,
        moments=MOMENTS.get(optimizer, 2),
        framework="mindformers-pynative",
        flash_attention=section.flag("use_flash_attention", default=True),
    )
    if Section(document, "swap").values.get("enable"):
        unread.append("swap: activations on the host are not modelled")
    if Section(document, "recompute_comm").values.get("enable"):
        unread.append("recompute_comm: not modelled")
    unread += section.unread(read_model.IGNORED)
    memory = Section(document, "context").any("max_device_memory")
    return ReadResult(
        model=model,
        workload=workload,
        strategy=strategy,
        unread=tuple(unread),
        dialect="mindformers-pynative",
        memory_limit_bytes=None if memory is None else parse_bytes(str(memory), "max_device_memory"),
    )


def _sequence(document: Document, section: Section) -> int:
    loader = Section(document, "train_dataset", "dataloader", "config")
    chosen = section if "seq_length" in section else loader
    return chosen.integer("seq_length", least=1)


def _strategy(document: Document, layers: int, unread: list[str], devices: int | None) -> Strategy:
    degrees, training = Section(document, "parallelism"), Section(document, "training")
    tp, cp, pp = (degrees.integer(f"{k}_parallel", default=1, least=1) for k in ("tensor", "context", "pipeline"))
    vpp = degrees.integer("pipeline_parallel_interleave_num", default=1, least=1)
    dp, shard = _data_parallel(degrees, tp * cp * pp, devices, unread)
    size = training.integer("local_batch_size", default=1, least=1)
    batch = training.integer("global_batch_size", default=1, least=1)
    if batch % (dp * size):
        raise SpecError(
            f"{training.where('global_batch_size')} is {batch}, which does not divide by dp {dp} x local_batch_size "
            f"{size}; MindFormers would drop {batch % (dp * size)} samples."
        )
    placed = _placement(degrees, layers, pp, vpp)
    full, selective = _recompute(document, placed, unread)
    algorithm, degree = _context_parallel(degrees, cp)
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=degrees.integer("expert_parallel", default=1, least=1),
        layers=placed,
        recompute_full=full,
        recompute_selective=selective,
        micro_batches=batch // (dp * size),
        micro_batch_size=size,
        cp_algorithm=algorithm,
        ulysses_degree=degree,
        sequence_parallel=degrees.flag("sequence_parallel", default=False) and tp > 1,
        zero_level=3 if shard * cp > 1 else 0,
        optimizer_shard=shard * cp,
        schedule=_schedule(degrees, vpp),
    )
    unread += degrees.unread(_IGNORED, only_set=True)
    return strategy


def _data_parallel(degrees: Section, rest: int, devices: int | None, unread: list[str]) -> tuple[int, int]:
    shard = degrees.any("data_parallel_shard", default=-1)
    if isinstance(shard, bool) or not isinstance(shard, int) or (shard < 1 and shard != -1):
        raise SpecError(
            f"{degrees.where('data_parallel_shard')} is {shard!r}; it must be -1 or a positive whole number."
        )
    if devices is None:
        if shard == -1:
            raise SpecError(
                f"{degrees.document.source}: the number of devices is not in the file; give it with --cards."
            )
        unread.append(f"parallelism: the number of devices is not in the file; read as {shard * rest}")
        devices = shard * rest
    if devices % rest:
        raise SpecError(f"{degrees.where()}: {devices} devices do not divide by tp x pp x cp = {rest}.")
    dp = devices // rest
    if shard > 0 and dp % shard:
        raise SpecError(f"{degrees.where('data_parallel_shard')} is {shard}, which does not divide dp {dp}.")
    return dp, dp if shard == -1 else shard


def _context_parallel(degrees: Section, cp: int) -> tuple[str, int]:
    names = {value: key for key, value in CP_NAMES.items()}
    name = degrees.text("context_parallel_method", default="colossal")
    degree = degrees.any("ulysses_degree_in_cp")
    if name not in names:
        raise SpecError(f"{degrees.where('context_parallel_method')} is {name!r}; legal: {', '.join(names)}.")
    if cp == 1:
        return "ring", 1
    if names[name] != "hybrid":
        return names[name], {"ring": 1, "ulysses": cp}[names[name]]
    if not isinstance(degree, int) or not 1 < degree < cp or cp % degree:
        raise SpecError(
            f"{degrees.where('ulysses_degree_in_cp')} is {degree!r}; hybrid needs a divisor of {cp} between."
        )
    return "hybrid", degree


def _schedule(degrees: Section, vpp: int) -> str:
    names = {value: key for key, value in SCHEDULES.items()}
    name = degrees.text("pipeline_parallel_schedule", default="1f1b")
    if name not in names:
        raise SpecError(f"{degrees.where('pipeline_parallel_schedule')} is {name!r}; legal: {', '.join(names)}.")
    return "interleaved" if vpp > 1 and names[name] == "1f1b" else names[name]


def _placement(degrees: Section, layers: int, pp: int, vpp: int) -> layout.Counts:
    value = degrees.any("pipeline_parallel_layers_per_stage", default="auto")
    where = degrees.where("pipeline_parallel_layers_per_stage")
    if value == "auto" or pp == 1:
        if layers % (pp * vpp):
            raise SpecError(f"{where} is 'auto', but {layers} layers do not divide by {pp} stages x {vpp} chunks.")
        return ((layers // (pp * vpp),) * pp,) * vpp
    if not isinstance(value, list) or len(value) != pp:
        raise SpecError(f"{where} needs one text for each of {pp} stages, found {value!r}.")
    rows = [[_span(part, where) for part in str(text).split(",")] for text in value]
    if any(len(row) != vpp for row in rows):
        raise SpecError(f"{where} needs {vpp} ranges for each stage, found {value!r}.")
    following = 0
    for chunk in range(vpp):
        for stage in range(pp):
            first, last = rows[stage][chunk]
            if first != following or last < first:
                raise SpecError(
                    f"{where}: chunk {chunk} of stage {stage} is {first}-{last}, but layer {following} is next; layers "
                    "would be left out or held twice, and MindFormers does not notice."
                )
            following = last + 1
    if following != layers:
        raise SpecError(
            f"{where} ends at layer {following - 1}, but the model has {layers} layers (0 to {layers - 1})."
        )
    return tuple(tuple(rows[s][c][1] - rows[s][c][0] + 1 for s in range(pp)) for c in range(vpp))


def _span(text: Any, where: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(str(text))
    if not found:
        raise SpecError(f"{where}: {text!r} is no range of layers; write them like '0-14' or '7'.")
    return int(found[1]), int(found[2] or found[1])


def _recompute(document: Document, layers: layout.Counts, unread: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    section = Section(document, "recompute")
    none = (0,) * len(layers[0])
    mode = section.text("mode", default="None")
    if mode == "full":
        return _per_stage(section, section.any("full_recompute_layer"), layers), none
    if mode == "select":
        modules = section.any("select_module")
        if not isinstance(modules, dict) or not modules:
            raise SpecError(f"{section.where('select_module')}: mode 'select' needs modules with their layers.")
        if len(modules) > 1 or "mlp.activation_func" not in modules:
            unread.append(
                "recompute.select_module: modules are not told apart; read as selective recompute of their layers"
            )
        counts = [_per_stage(section, value, layers) for value in modules.values()]
        return none, tuple(max(column) for column in zip(*counts, strict=True))
    if mode != "None":
        raise SpecError(f"{section.where('mode')} is {mode!r}; legal: 'None', 'full', 'select'.")
    return none, none


def _per_stage(section: Section, value: Any, layers: layout.Counts) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise SpecError(f"{section.where('mode')}: this mode needs a list of layer ranges, found {value!r}.")
    chosen: set[int] = set()
    for text in value:
        first, last = _span(text, section.where())
        chosen |= set(range(first, last + 1))
    totals, first_layer = [0] * len(layers[0]), 0
    for row in layers:
        for stage, count in enumerate(row):
            totals[stage] += len(chosen & set(range(first_layer, first_layer + count)))
            first_layer += count
    return tuple(totals)
