"""Loose inputs -> whole records: names, counts and files become model, workload, cluster, limit and constants.

Everything a caller may leave out is completed here, once, and what was completed is listed in ``Workload.notes``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from planner import frameworks
from planner.checked import checked, model_size
from planner.cluster import kept
from planner.cluster import load as clusters
from planner.cluster.records import Calibration, Cluster, Hardware
from planner.cost.strategies import Strategy
from planner.dialects.families import framework_of, targets_for
from planner.dialects.weights import Reason
from planner.errors import SpecError
from planner.frameworks import FrameworkName
from planner.model import load as models
from planner.model.records import Model, Workload
from planner.search.suggest import Request
from planner.units import KIB, format_bytes, parse_bytes, parse_count

#: Sequence length where none is given: what public 7B to 70B runs on Ascend train with.
DEFAULT_SEQ: Final = 4096
#: Tokens of one step where no global batch is given: Llama 2's 4 Mi (arXiv 2307.09288, table 1).
DEFAULT_STEP_TOKENS: Final = 4 * KIB * KIB


def request_for(
    model: Model | str | float | Path,
    cards: int,
    hardware: Hardware | str | Path = clusters.DEFAULT_HARDWARE,
    *,
    seq: int | None = None,
    global_batch: int | None = None,
    tokens: int | str = 0,
    framework: str | None = None,
    max_memory: int | str | None = None,
    calibration: str | Path | None = None,
    as_family: str | None = None,
) -> Request:
    """Whole request from loose inputs; parameters as in `suggest`, and a calibration file of one's own runs."""
    checked(cards=cards, seq=seq, global_batch=global_batch, tokens=tokens, framework=framework, max_memory=max_memory)
    shape = model_for(model, as_family)
    profile = hardware if isinstance(hardware, Hardware) else clusters.hardware(hardware)
    cluster = Cluster(hardware=profile, devices=cards)
    name, generation = _framework(_usual(profile) if framework is None else framework, shape)
    workload = workload_for(shape, cards, seq=seq, global_batch=global_batch, tokens=tokens, framework=name)
    shape, padding = _padded(shape, name, profile)
    workload = replace(workload, notes=(*workload.notes, *padding))
    if profile.device.vendor == "cpu":
        workload = on_cpu(workload)
    if framework is None:
        workload = replace(workload, notes=(*workload.notes, f"framework {name}"))
    limit = None if max_memory is None else _limit(max_memory, profile)
    constants = _constants(profile, name, generation, calibration)
    return Request(model=shape, workload=workload, cluster=cluster, calibration=constants, limit_bytes=limit)


def read(
    path: str | Path,
    hardware: Hardware | str | Path | None = None,
    max_memory: int | str | None = None,
    cards: int | None = None,
    calibration: str | Path | None = None,
    *,
    vocab: int | None = None,
    accept_unread: bool = False,
) -> tuple[Request, Strategy, tuple[str, ...]]:
    """Request, strategy and unread keys of a plan.json, a folder that holds one, a MindFormers YAML or a launch script.

    ``cards`` is for files that do not say it; the request's cards are the product of the strategy's degrees.  ``vocab``
    is for scripts that leave the vocabulary to the tokenizer.

    A file with settings that decide the answer and cannot be read is refused; with ``accept_unread`` they are left out
    and stand among the unread ones, each as a `planner.dialects.weights.Reason`.

    Without ``hardware`` a script that starts more processes a node than the usual machine holds is put on one that
    holds them.

    The limit is the file's own; a plan put on other hardware, and a file whose limit is more than the card shows to
    the framework, get that hardware's usable memory.

    Raises
    ------
    SpecError
        The file is missing, damaged, of no known kind, or holds settings that decide the answer and are not read.
    """
    from planner.dialects.read import read as read_file

    found = read_file(path, cards, vocab)
    if found.unreliable and not accept_unread:
        raise SpecError(
            f"{path}: an answer is not reliable because of {'; '.join(found.unreliable)}. "
            "To leave that out of the answer, give --accept-unread (accept_unread=True in Python)."
        )
    name = hardware or found.hardware or clusters.machine_of(found.per_node)
    profile = name if isinstance(name, Hardware) else clusters.hardware(name)
    moved = found.dialect == "plan" and hardware is not None
    limit = None if moved else found.memory_limit_bytes
    if limit and limit > profile.device.visible_bytes:
        limit = None
    if max_memory is not None:
        limit = _limit(max_memory, profile)
    constants = _constants(profile, found.workload.framework, None, calibration)
    remarks = _machine_remark(found.per_node, found.strategy.devices, profile, given=hardware is not None)
    if found.calibration and calibration is None and not moved:
        constants, remark = kept.from_dict(found.calibration, profile, found.workload.framework)
        remarks += (remark,) if remark else ()
    request = Request(
        model=found.model,
        workload=found.workload,
        cluster=Cluster(hardware=profile, devices=found.strategy.devices),
        calibration=constants,
        limit_bytes=limit or None,
    )
    return request, found.strategy, (*map(Reason, found.unreliable), *found.unread, *remarks)


def _padded(model: Model, framework: str, profile: Hardware) -> tuple[Model, tuple[str, ...]]:
    """The model with a vocabulary that every tp of a node divides, where the framework pads it; and a note."""
    rows = frameworks.padded_vocab(frameworks.of(framework), model.vocab, profile.devices_per_node)
    if rows == model.vocab:
        return model, ()
    return replace(model, vocab=rows), (f"vocabulary {model.vocab} padded to {rows}, as {framework} pads it",)


def _machine_remark(per_node: int, devices: int, profile: Hardware, *, given: bool) -> tuple[str, ...]:
    """A word on the machine, where the processes a node of a script do not fit the usual or the given one."""
    if not per_node or (per_node == profile.devices_per_node and (given or profile.name == clusters.DEFAULT_HARDWARE)):
        return ()
    if per_node == profile.devices_per_node:
        return (f"machine {profile.name}, because {per_node} processes are started a node; --hardware names another",)
    if per_node < profile.devices_per_node and devices <= per_node:
        return ()
    return (
        f"{per_node} processes are started a node, but {profile.name} has {profile.devices_per_node} devices a node",
    )


def model_for(model: Model | str | float | Path, as_family: str | None = None) -> Model:
    """Model from a record, a name, a parameter count or a config.json, read as ``as_family`` where that is given.

    >>> model_for("70B").name, model_for("llama-3.1-8b").layers
    ('Llama-3.1-70B', 32)
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, Path):
        return models.from_file(model, as_family=as_family)
    if not isinstance(model, str):
        return models.closest(model_size(model))
    if re.fullmatch(r"\s*[0-9][0-9_.,eE+]*\s*[KMBGTkmbgt]?\s*", model):
        return models.closest(parse_count(model, "parameter count"))
    if model.endswith(".json") or "\\" in model or Path(model).is_dir():
        return models.from_file(model, as_family=as_family)
    if as_family is not None:
        raise SpecError(f"as_family={as_family!r} says how to read a config.json; {model!r} is none.")
    return models.find(model)


def _usual(profile: Hardware) -> str | None:
    """Framework of devices other than Ascend's; on the CPU that of the self-contained script, target ``mindspore``."""
    if profile.device.vendor == "cpu":
        return frameworks.of_target("mindspore", legacy=True).name
    return next(each.name for each in frameworks.ALL if not each.ascend) if profile.device.vendor == "nvidia" else None


def on_cpu(workload: Workload) -> Workload:
    """The workload as the CPU runs it: float32 and attention written out, because its backend has no other kernels.

    >>> on_cpu(workload_for(model_for("8B"), 2)).compute_dtype
    'float32'
    """
    notes = (*workload.notes, "float32", "attention without a fused kernel")
    return replace(workload, compute_dtype="float32", flash_attention=False, notes=notes)


def workload_for(
    model: Model,
    cards: int,
    *,
    seq: int | None = None,
    global_batch: int | None = None,
    tokens: int | str = 0,
    framework: FrameworkName = "mindformers",
) -> Workload:
    """Workload with defaults filled in and named in its notes.

    >>> workload_for(model_for("8B"), 24).global_batch
    1032
    """
    notes = []
    if seq is None:
        seq = min(DEFAULT_SEQ, model.max_seq or DEFAULT_SEQ)
        notes.append(f"sequence {seq}")
    if global_batch is None:
        global_batch = default_batch(cards, seq)
        notes.append(f"global batch {global_batch}")
    budget = parse_count(tokens, "token budget") if isinstance(tokens, str) else tokens
    types: dict[str, Any] = {}
    if frameworks.of(framework).master_copies:
        types = {"params_dtype": "bfloat16", "master_weights": True}
    return Workload(seq=seq, global_batch=global_batch, tokens=budget, framework=framework, notes=tuple(notes), **types)


def default_batch(cards: int, seq: int) -> int:
    """Samples of a step where none are asked for: 4 Mi tokens, at least one sample a card, a multiple of the cards.

    >>> default_batch(64, 4096), default_batch(24, 4096), default_batch(16384, 4096)
    (1024, 1032, 16384)
    """
    samples = max(DEFAULT_STEP_TOKENS // seq, cards, 1)
    return -(-samples // cards) * cards


def default_framework(model: Model) -> FrameworkName:
    """The framework that trains this family: MindFormers in the dialect that holds it, else MindSpeed-LLM."""
    if "mindformers" in targets_for(model):
        return framework_of_target("mindformers", model)
    return "mindspeed"


def framework_of_target(target: str, model: Model) -> FrameworkName:
    """The framework whose memory and speed a target's files have."""
    return framework_of(model, target).name


def target_of_framework(framework: str) -> str:
    """The target whose files a framework runs."""
    return frameworks.of(framework).targets[0]


def _constants(profile: Hardware, framework: str, generation: str | None, path: str | Path | None) -> Calibration:
    """Constants of a file of the user's own, or the shipped ones."""
    if path is None:
        return clusters.calibration(profile, framework, generation)
    return clusters.calibration_file(path, profile, framework)


def _framework(text: str | None, model: Model) -> tuple[FrameworkName, str | None]:
    if text is None:
        return default_framework(model), None
    names = sorted(frameworks.NAMES, key=len, reverse=True)
    for name in names:
        rest = text[len(name) :]
        if text.lower().startswith(name) and (not rest or (rest[0] in ":-@" and len(rest) > 1)):
            return name, rest[1:] or None
    raise SpecError(
        f"framework '{text}' is not known; legal: {', '.join(frameworks.NAMES)}, with -GENERATION behind it for "
        "another than the newest calibration, e.g. mindspeed-1.0.RC3."
    )


def _limit(max_memory: int | str, profile: Hardware) -> int:
    limit = parse_bytes(max_memory, "memory limit")
    size = profile.device.hbm_bytes
    if not 0 < limit <= size:
        raise SpecError(
            f"memory limit {format_bytes(limit)} is more than one {profile.name} has; legal: up to "
            f"{format_bytes(size)} ({format_bytes(profile.device.usable_bytes)} when not given)."
        )
    return limit
