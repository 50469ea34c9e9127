"""The plain-Python doors: `suggest` and `estimate`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import plan as plans
from planner.checked import TYPES, checked
from planner.cluster import kept
from planner.cluster import load as clusters
from planner.cluster.records import Hardware
from planner.completion import cards_of, complete
from planner.cost.estimate import Estimate
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError
from planner.inputs import request_for
from planner.legality.apply import require_legal
from planner.model.records import Model
from planner.plan import Plan
from planner.search.suggest import Request, Result, search
from planner.timeline.estimate import evaluate

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
    tp_overlap: bool = True,
    max_memory: int | str | None = None,
    pins: Mapping[str, Collection[int | str | bool]] | None = None,
    objective: str = "time",
    recompute: str = "auto",
    balance: str = "fast",
    top: int = 10,
    progress: Progress | None = None,
    as_family: str | None = None,
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
        One of `planner.frameworks.NAMES`, with ``-generation`` behind it for another than the newest calibration.
        Default: the framework that trains this family; Megatron on NVIDIA profiles.
    tp_overlap : bool
        False: tensor-parallel traffic is not pipelined with matmuls where the framework does that by default
        (MindSpeed's MC2).
    max_memory : int or str, optional
        Bytes a card may use, or a text like ``"54GB"``; default: the profile's usable memory.
    pins : mapping, optional
        Allowed values by dimension, e.g. ``{"tp": {8}, "pp": {1, 2, 4}}``.
    objective : {"time", "cards", "memory"}
    recompute : {"auto", "none", "selective", "full"}
        The least that fits, stage by stage, or the same for every layer.
    balance : {"fast", "exact", "none"}
        How layers of the best strategies are moved between stages: by single moves; by CP-SAT too (some seconds); not
        at all.
    top : int
        Strategies wanted; 0 for all finalists.
    as_family : str, optional
        Family whose sizes a config.json is read as, whatever its ``model_type`` says.

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
        tp_overlap=tp_overlap,
        max_memory=max_memory,
        as_family=as_family,
    )
    if not isinstance(pins or {}, Mapping):
        raise SpecError(f"pins={pins!r} must map dimensions to legal values, e.g. {{'tp': {{8}}}}.")
    asked: dict[str, Any] = checked(objective=objective, recompute=recompute, balance=balance, top=top)
    asked["pins"] = dict(pins or {})
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
    tp_overlap: bool = True,
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
    (20, 21, 20, 19)
    """
    if strategy is not None and degrees:
        raise SpecError(f"give a whole strategy or its degrees, not both; found {', '.join(degrees)}.")
    if strategy is not None:
        cards = cards or strategy.devices
        global_batch = global_batch or strategy.dp * strategy.micro_batch_size * strategy.micro_batches
    checked(**{name: value for name, value in degrees.items() if name in TYPES})
    cards = cards or cards_of(degrees)
    request = request_for(
        model,
        cards,
        hardware,
        seq=seq,
        global_batch=global_batch,
        tokens=tokens,
        framework=framework,
        tp_overlap=tp_overlap,
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
        calibration=kept.to_dict(request.calibration, profile, request.workload.framework),
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
    if path.is_file() and path.suffix.lower() != ".json":
        raise SpecError(f"{path}: DryRun takes a plan.json, its folder, or a MindFormers YAML in graph mode.")
    return configuration_of(plans.load(path / "plan.json" if path.is_dir() else path))


def configuration_of(plan: Plan) -> dict[str, Any]:
    """A plan as a parsed MindFormers configuration."""
    import yaml

    from planner.dialects.graph.write import render

    content: dict[str, Any] = yaml.safe_load(render(plan).text)
    return content
