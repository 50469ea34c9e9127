"""The plain-Python doors: `suggest` and `estimate`, and how loose inputs become whole records.

Everything a caller may leave out is completed here, once, and what was completed is listed in ``Workload.notes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner import plan as plans
from planner.cluster import load as clusters
from planner.cluster.records import Calibration, Cluster, Hardware
from planner.cost.estimate import Estimate, evaluate
from planner.cost.memory import least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.emit.families import LEGACY, targets_for
from planner.errors import SpecError
from planner.model import load as models
from planner.model.records import Framework, Model, Workload
from planner.plan import Plan
from planner.search.layouts import layouts
from planner.search.legality import require_legal
from planner.search.suggest import RECOMPUTE, Request, Result, search
from planner.units import KIB, format_bytes, parse_bytes, parse_count

#: Sequence length where none is given: what public 7B to 70B runs on Ascend train with.
DEFAULT_SEQ: Final = 4096
#: Tokens of one step where no global batch is given: Llama 2's 4 Mi (arXiv 2307.09288, table 1).
DEFAULT_STEP_TOKENS: Final = 4 * KIB * KIB
#: Frameworks whose memory layout and speed are modelled.
FRAMEWORKS: Final = ("mindformers", "mindformers-legacy", "mindformers-pynative", "mindspeed", "megatron")
#: Frameworks that keep 16-bit parameters beside float32 master copies.
_MASTER_COPY: Final = ("mindspeed", "megatron")

Progress = Callable[[int, int], None]


def suggest(
    model: Model | str | float | Path,
    cards: int,
    hardware: Hardware | str | Path = clusters.DEFAULT_HARDWARE,
    *,
    seq: int | None = None,
    global_batch: int | None = None,
    tokens: int | str = 0,
    framework: str | None = None,
    max_memory: int | str | None = None,
    pins: Mapping[str, Collection[int | str | bool]] | None = None,
    objective: str = "time",
    recompute: str = "auto",
    top: int = 10,
    progress: Progress | None = None,
) -> Result:
    """Rank parallel strategies of a model on a number of cards.

    Parameters
    ----------
    model : Model, str, number or Path
        A record, a published name (``"qwen3-32b"``), a parameter count (``"70B"``, ``70e9``) or a Hugging Face
        config.json.
    cards : int
        Devices of the job; whole nodes, or fewer than one node.
    hardware : Hardware, str or Path
        Profile name (``"910b2"``, ``"Atlas 800T A2"``), file or record.
    seq, global_batch : int, optional
        Tokens of a sample; samples of a step.  Defaults: 4096 (or what the model's positions allow), and 4 Mi tokens a
        step, at least one sample a card, a multiple of the cards.
    tokens : int or str
        Training budget for card-hours and days, e.g. ``"1.5T"``.
    framework : str, optional
        One of `FRAMEWORKS`, with ``-generation`` behind it for another than the newest calibration.  Default: the
        framework that trains this family; Megatron on NVIDIA profiles.
    max_memory : int or str, optional
        Bytes a card may use, or a text like ``"54GB"``; default: the profile's usable memory.
    pins : mapping, optional
        Allowed values by dimension, e.g. ``{"tp": {8}, "pp": {1, 2, 4}}``.
    objective : {"time", "cards", "memory"}
    recompute : {"auto", "none", "selective", "full"}
        The least that fits, stage by stage, or the same for every layer.
    top : int
        Strategies wanted; 0 for all finalists.

    Returns
    -------
    planner.search.suggest.Result
        ``result.estimates.row(0)`` is the best `Estimate`.

    Raises
    ------
    SpecError, ProfileError
        The request is wrong, or no strategy is legal.
    InfeasibleError
        No strategy fits; ``minimum_devices`` says how many cards would do.

    Examples
    --------
    >>> best = suggest("8B", 8, seq=4096, global_batch=128).estimates.row(0)
    >>> best.fits, best.strategy.devices
    (True, 8)
    """
    request = request_for(
        model,
        cards,
        hardware,
        seq=seq,
        global_batch=global_batch,
        tokens=tokens,
        framework=framework,
        max_memory=max_memory,
    )
    asked: dict[str, Any] = {"pins": dict(pins or {}), "objective": objective, "recompute": recompute, "top": top}
    return search(replace(request, **asked), progress)


def estimate(
    model: Model | str | float | Path,
    strategy: Strategy | None = None,
    hardware: Hardware | str | Path = clusters.DEFAULT_HARDWARE,
    *,
    cards: int | None = None,
    seq: int | None = None,
    global_batch: int | None = None,
    tokens: int | str = 0,
    framework: str | None = None,
    max_memory: int | str | None = None,
    recompute: str | Sequence[int] = "auto",
    stage_layers: Sequence[int] | None = None,
    **degrees: Any,
) -> Estimate:
    """Memory and time of one strategy, whether it fits or not.

    Parameters
    ----------
    strategy : Strategy, optional
        A whole strategy; or give its degrees by keyword (``tp=8, pp=4, dp=2``), see `complete`.
    cards : int, optional
        Default: the product of the degrees.
    recompute : {"auto", "none", "selective", "full"} or sequence of int
        Without ``strategy``: the least that fits, or the same for every layer, or fully recomputed layers per stage.
    stage_layers : sequence of int, optional
        Without ``strategy``: decoder layers of each stage.
    **degrees
        Fields of `Strategy`.

    Examples
    --------
    >>> answer = estimate("70B", tp=8, pp=4, dp=2, seq=4096, global_batch=128)
    >>> answer.strategy.layers_per_stage
    (20, 20, 20, 20)
    """
    if strategy is not None and degrees:
        raise SpecError(f"give a whole strategy or its degrees, not both; found {', '.join(degrees)}.")
    if strategy is not None:
        cards = cards or strategy.devices
        global_batch = global_batch or strategy.dp * strategy.micro_batch_size * strategy.micro_batches
    cards = cards or cards_of(degrees)
    request = request_for(
        model,
        cards,
        hardware,
        seq=seq,
        global_batch=global_batch,
        tokens=tokens,
        framework=framework,
        max_memory=max_memory,
    )
    if strategy is None:
        strategy = complete(request, recompute=recompute, stage_layers=stage_layers, **degrees)
    return judged(request, strategy)


def judged(request: Request, strategy: Strategy) -> Estimate:
    """Estimate of a whole strategy after the legality rules; `SpecError` names every broken one."""
    require_legal(request.context, strategy)
    return estimate_of(request, strategy)


def estimate_of(request: Request, strategy: Strategy) -> Estimate:
    """Estimate of a whole strategy under a request's model, workload, cluster and limit."""
    table = Strategies.of([strategy])
    return evaluate(
        request.model, request.workload, request.cluster, request.calibration, table, limit_bytes=request.limit
    ).row(0)


def plan_of(request: Request, estimate: Estimate, rank: int = 1, hardware: str | None = None) -> Plan:
    """The estimate as a plan that can be written and emitted."""
    profile = request.cluster.hardware
    return Plan(
        model=request.model,
        workload=request.workload,
        hardware=hardware or profile.name,
        devices=request.cluster.devices,
        devices_per_node=profile.devices_per_node,
        strategy=estimate.strategy,
        estimate=estimate.to_dict(),
        rank=rank,
        memory_limit_bytes=int(request.limit),
    )


def configuration(source: str | Path) -> Path | dict[str, Any]:
    """What DryRun reads of a file: the YAML itself, the one beside a folder's plan.json, or one made from plan.json."""
    path = Path(source)
    if path.suffix.lower() in (".yaml", ".yml"):
        return path
    if path.is_dir() and (path / "pretrain.yaml").is_file():
        return path / "pretrain.yaml"
    return configuration_of(plans.load(path / "plan.json" if path.is_dir() else path))


def configuration_of(plan: Plan) -> dict[str, Any]:
    """A plan as a parsed MindFormers configuration."""
    import yaml

    from planner.emit.mindformers_graph import render

    content: dict[str, Any] = yaml.safe_load(render(plan).text)
    return content


# --- completing what was left out -----------------------------------------------------------------------------------


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
) -> Request:
    """Whole request from loose inputs; parameters as in `suggest`, and a calibration file of one's own runs."""
    shape = model_for(model)
    profile = hardware if isinstance(hardware, Hardware) else clusters.hardware(hardware)
    cluster = Cluster(hardware=profile, devices=cards)
    nvidia = profile.device.vendor == "nvidia"
    name, generation = _framework("megatron" if framework is None and nvidia else framework, shape)
    workload = workload_for(shape, cards, seq=seq, global_batch=global_batch, tokens=tokens, framework=name)
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
) -> tuple[Request, Strategy, tuple[str, ...]]:
    """Request, strategy and unread keys of a plan.json, a folder that holds one, a MindFormers YAML or a launch script.

    ``cards`` is for files that do not say it; the request's cards are the product of the strategy's degrees.

    The limit is the file's own; a plan put on other hardware, and a file whose limit is more than the card shows to
    the framework, get that hardware's usable memory.

    Raises
    ------
    SpecError
        The file is missing, damaged or of no known kind.
    """
    from planner.emit.read import read as read_file

    found = read_file(path, cards)
    name = hardware or found.hardware or clusters.DEFAULT_HARDWARE
    profile = name if isinstance(name, Hardware) else clusters.hardware(name)
    moved = found.dialect == "plan" and hardware is not None
    limit = None if moved else found.memory_limit_bytes
    if limit and limit > profile.device.visible_bytes:
        limit = None
    if max_memory is not None:
        limit = _limit(max_memory, profile)
    request = Request(
        model=found.model,
        workload=found.workload,
        cluster=Cluster(hardware=profile, devices=found.strategy.devices),
        calibration=_constants(profile, found.workload.framework, None, calibration),
        limit_bytes=limit or None,
    )
    return request, found.strategy, tuple(found.unread)


def model_for(model: Model | str | float | Path) -> Model:
    """Model from a record, a name, a parameter count or a config.json.

    >>> model_for("70B").name, model_for("llama-3.1-8b").layers
    ('Llama-3.1-70B', 32)
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, Path):
        return models.from_file(model)
    if not isinstance(model, str):
        return models.closest(model)
    if re.fullmatch(r"\s*[0-9][0-9_.,eE+]*\s*[KMBGTkmbgt]?\s*", model):
        return models.closest(parse_count(model, "parameter count"))
    if model.endswith(".json") or "\\" in model or Path(model).is_dir():
        return models.from_file(model)
    return models.find(model)


def workload_for(
    model: Model,
    cards: int,
    *,
    seq: int | None = None,
    global_batch: int | None = None,
    tokens: int | str = 0,
    framework: Framework = "mindformers",
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
    if framework in _MASTER_COPY:
        types = {"params_dtype": "bfloat16", "master_weights": True}
    return Workload(seq=seq, global_batch=global_batch, tokens=budget, framework=framework, notes=tuple(notes), **types)


def default_batch(cards: int, seq: int) -> int:
    """Samples of a step where none are asked for: 4 Mi tokens, at least one sample a card, a multiple of the cards.

    >>> default_batch(64, 4096), default_batch(24, 4096), default_batch(16384, 4096)
    (1024, 1032, 16384)
    """
    samples = max(DEFAULT_STEP_TOKENS // seq, cards, 1)
    return -(-samples // cards) * cards


def default_framework(model: Model) -> Framework:
    """The framework that trains this family: MindFormers in the dialect that holds it, else MindSpeed-LLM."""
    if "mindformers" in targets_for(model):
        return "mindformers-legacy" if model.family in LEGACY else "mindformers"
    return "mindspeed"


def framework_of_target(target: str, model: Model) -> Framework:
    """The framework whose memory and speed a target's files have."""
    if target == "mindspore":
        return "mindformers-legacy"  # graph mode with the same optimizer sharding
    if target == "mindformers":
        return "mindformers-legacy" if model.family in LEGACY else "mindformers"
    return target  # type: ignore[return-value]


def target_of_framework(framework: str) -> str:
    """The target whose files a framework runs."""
    return {"mindformers-legacy": "mindformers", "megatron": "mindspeed"}.get(framework, framework)


def cards_of(degrees: Mapping[str, Any]) -> int:
    """Product of the given degrees."""
    product = 1
    for name in ("dp", "tp", "pp", "cp"):
        product *= int(degrees.get(name) or 1)
    return product


def complete(
    request: Request,
    *,
    recompute: str | Sequence[int] = "auto",
    stage_layers: Sequence[int] | None = None,
    **degrees: Any,
) -> Strategy:
    """Whole strategy from some of its degrees.

    dp defaults to what the other degrees leave of the cards, every other degree and the micro-batch size to 1, the
    micro-batches to what the global batch needs, the optimizer to sharding over dp x cp, the layers to the best even
    split.  Nothing is searched but the split and, with ``recompute="auto"``, the least recompute that fits.

    Parameters
    ----------
    recompute : {"auto", "none", "selective", "full"} or sequence of int
        The last: fully recomputed layers of each stage.
    stage_layers : sequence of int, optional
        Decoder layers of each stage.
    **degrees
        Fields of `Strategy`.

    Raises
    ------
    SpecError
        Degrees do not multiply to the cards, or the batch cannot be cut.
    """
    fields = {name: value for name, value in degrees.items() if value is not None}
    legal = set(Strategy.__dataclass_fields__) - {"layers", "recompute_full", "recompute_selective"}
    unknown = sorted(set(fields) - legal)
    if unknown:
        raise SpecError(f"a strategy has no {', '.join(unknown)}; legal: {', '.join(sorted(legal))}.")
    fields = _degrees(request, fields)
    candidates = [_strategy(fields, layers) for layers in _splits(request, fields, stage_layers)]
    return _best(request, Strategies.of(candidates), recompute)


def _degrees(request: Request, fields: dict[str, Any]) -> dict[str, Any]:
    cards, batch = request.cluster.devices, request.workload.global_batch
    fields = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1} | fields
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1 and name != "zero_level":
            raise SpecError(f"{name}={value} must be a positive whole number.")
    rest = fields["tp"] * fields["pp"] * fields["cp"]
    if "dp" not in fields and cards % rest:
        raise SpecError(
            f"tp {fields['tp']} x pp {fields['pp']} x cp {fields['cp']} = {rest} does not divide {cards} cards; "
            "change one of them, or the cards."
        )
    fields.setdefault("dp", cards // rest)
    fields.setdefault("micro_batches", max(batch // (fields["dp"] * fields["micro_batch_size"]), 1))
    shards = fields["dp"] * fields["cp"]
    fields.setdefault("zero_level", 1 if shards > 1 else 0)
    fields.setdefault("optimizer_shard", shards if fields["zero_level"] else 1)
    fields.setdefault("sequence_parallel", fields["tp"] > 1)
    fields.setdefault("schedule", "interleaved" if fields["vpp"] > 1 else "1f1b")
    fields.setdefault("ulysses_degree", fields["cp"] if fields.get("cp_algorithm") == "ulysses" else 1)
    return fields


def _splits(request: Request, fields: dict[str, Any], stage_layers: Sequence[int] | None) -> list[Any]:
    pp, vpp, model = fields["pp"], fields["vpp"], request.model
    if stage_layers is not None:
        if len(stage_layers) != pp * vpp:
            raise SpecError(
                f"layers per stage need {pp * vpp} numbers for pp={pp}, vpp={vpp}; given {len(stage_layers)}."
            )
        return [np.array(stage_layers).reshape(vpp, pp).tolist()]
    found = layouts(model.layers, model.mtp_layers, pp, vpp, fields["schedule"] == "zero_bubble_v", True)
    if not len(found):
        raise SpecError(
            f"{model.layers} layers cannot fill {pp} stages of {vpp} chunk(s); pp x vpp may be at most {model.layers}."
        )
    return list(found.tolist())


def _strategy(fields: dict[str, Any], layers: Sequence[Sequence[int]]) -> Strategy:
    nothing = (0,) * fields["pp"]
    return Strategy(
        **fields,
        layers=tuple(tuple(chunk) for chunk in layers),
        recompute_full=nothing,
        recompute_selective=nothing,
    )


def _best(request: Request, table: Strategies, recompute: str | Sequence[int]) -> Strategy:
    """The row that fits and is fastest; where none fits, the one with the lowest peak."""
    table = _recomputed(request, table, recompute)
    answers = evaluate(
        request.model, request.workload, request.cluster, request.calibration, table, limit_bytes=request.limit
    )
    speed = np.where(answers.fits, answers.step_s, np.inf)
    best = int(np.argmin(speed)) if answers.fits.any() else int(np.argmin(answers.peak_bytes))
    return table.row(best)


def _recomputed(request: Request, table: Strategies, recompute: str | Sequence[int]) -> Strategies:
    if not isinstance(recompute, str):
        given = tuple(recompute)
        stages = int(table.pp[0])
        if len(given) != stages:
            raise SpecError(f"recompute needs {stages} numbers for pp={stages}; given {len(given)}.")
        return table.replace(recompute_full_CS=np.tile(np.array(given, np.int64), (len(table), 1)))
    if recompute not in RECOMPUTE:
        raise SpecError(f"recompute '{recompute}' is not known; legal: {', '.join(RECOMPUTE)}, or layers per stage.")
    if recompute == "full":
        return table.replace(recompute_full_CS=table.layers_CS)
    if recompute == "selective":
        return table.replace(recompute_selective_CS=table.layers_CS)
    if recompute == "none":
        return table
    return least_recompute(request.model, request.workload, table, request.limit)[0]


def _constants(profile: Hardware, framework: str, generation: str | None, path: str | Path | None) -> Calibration:
    """Constants of a file of the user's own, or the shipped ones."""
    if path is None:
        return clusters.calibration(profile, framework, generation)
    return clusters.calibration_file(path, profile, framework)


def _framework(text: str | None, model: Model) -> tuple[Framework, str | None]:
    if text is None:
        return default_framework(model), None
    names = sorted(FRAMEWORKS, key=len, reverse=True)
    for name in names:
        rest = text[len(name) :]
        if text.lower().startswith(name) and (not rest or (rest[0] in ":-@" and len(rest) > 1)):
            return name, rest[1:] or None  # type: ignore[return-value]
    raise SpecError(
        f"framework '{text}' is not known; legal: {', '.join(FRAMEWORKS)}, with -GENERATION behind it for another than "
        "the newest calibration, e.g. mindspeed-1.0.RC3."
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


def calibration_label(calibration: Calibration) -> str:
    """Which calibration stands behind the seconds, in one phrase."""
    if not calibration.rows:
        return f"{calibration.name}: priors only, no measured row of this device and framework"
    return f"{calibration.name} ({calibration.rows} measured rows, {calibration.generation}, {calibration.date})"
