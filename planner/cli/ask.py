"""From options to records, shared by commands."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING

from planner import limits
from planner.cli import parse
from planner.cli.options import ClusterOptions, ModelOptions, PinOptions, WorkloadOptions
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cost.strategies import Strategy
    from planner.model.records import Model
    from planner.search.suggest import Request


def model_from(options: ModelOptions) -> Model:
    """The model that the options describe.

    Raises
    ------
    SpecError
        None or more than one of ``--params``, ``--model``, ``--config``; a size that is illegal.
    """
    from planner.model import load

    given = [name for name in ("params", "model", "config") if getattr(options, name) not in (None, False)]
    sizes = parse.sizes_of(options)
    if len(given) > 1:
        raise SpecError(f"--{' and --'.join(given)} both name a model; give one of them.")
    if options.as_family is not None and options.config is None:
        raise SpecError("--as says how to read a config.json; give it with --config.")
    if not given and not sizes:
        raise SpecError("which model? Give --params 70B, --model NAME, --config config.json, or sizes like --layers.")
    if not given:
        return load.from_sizes(**sizes)  # type: ignore[arg-type]
    if options.params is not None:
        base = load.closest(parse.parameters(options.params))
    elif options.model is not None:
        base = load.find(options.model)
    else:
        base = load.from_file(options.config or "", as_family=options.as_family)
    return load.with_overrides(base, **sizes) if sizes else base  # type: ignore[arg-type]


def request_from(model: ModelOptions, cluster: ClusterOptions, workload: WorkloadOptions, cards: int | None) -> Request:
    """The request that the options describe, defaults filled in; on one node where ``cards`` is None."""
    from planner import inputs
    from planner.cluster import load

    shape = model_from(model)
    profile = load.hardware(cluster.hardware or load.DEFAULT_HARDWARE)
    request = inputs.request_for(
        shape,
        profile.devices_per_node if cards is None else cards,
        profile,
        seq=None if workload.seq is None else parse.length(workload.seq, "--seq", limits.MOST_SEQ),
        global_batch=_batch(workload),
        tokens=0 if workload.tokens is None else parse.tokens(workload.tokens),
        framework=workload.framework,
        tp_overlap=not workload.no_tp_overlap,
        max_memory=memory_from(cluster),
        calibration=workload.calibration,
    )
    return replace(request, fit_probability=probability_from(cluster))


def file_from(
    path: str,
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    cards: str | None = None,
    *,
    accept_unread: bool = False,
) -> tuple[Request, Strategy, tuple[str, ...]]:
    """Request, strategy and unread keys of a plan.json or a MindFormers YAML."""
    from planner import inputs

    given = [
        *_given(dataclasses.replace(model, vocab=None)),
        *_given(dataclasses.replace(workload, calibration=None)),
        *_given(pins),
    ]
    if given:
        raise SpecError(f"--from takes model, workload and strategy from {path}; leave out {', '.join(given)}.")
    devices = None if cards is None else cards_from(cards)
    request, strategy, unread = inputs.read(
        path,
        cluster.hardware,
        memory_from(cluster),
        devices,
        workload.calibration,
        vocab=parse.sizes_of(model).get("vocab"),
        accept_unread=accept_unread,
    )
    if devices is not None and devices != strategy.devices:
        raise SpecError(
            f"--cards {devices}, but {path} splits the work over {strategy.devices}; leave --cards out, or ask "
            f"planner improve {path} --cards {devices} for a strategy that uses them."
        )
    return request, strategy, unread


def _given(options: object) -> list[str]:
    names = [f.name for f in dataclasses.fields(options)]  # type: ignore[arg-type]
    return [
        "--as" if name == "as_family" else f"--{name.replace('_', '-')}"
        for name in names
        if getattr(options, name) not in (None, False)
    ]


def cards_from(text: str | None) -> int:
    """Number of cards."""
    if text is None:
        raise SpecError("how many cards? Give --cards, e.g. --cards 64.")
    return parse.whole(text, "--cards", most=limits.MOST_CARDS)


def memory_from(cluster: ClusterOptions) -> int | None:
    """Limit of one card [bytes], if given."""
    return None if cluster.max_memory is None else parse.memory(cluster.max_memory)


def probability_from(cluster: ClusterOptions) -> float | None:
    """How likely plans must fit, if given."""
    text = cluster.fit_probability
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"--fit-probability {text} is not a number from 0.5 to 0.999.") from None


def _batch(workload: WorkloadOptions) -> int | None:
    if workload.global_batch is None:
        return None
    return parse.length(workload.global_batch, "--global-batch", limits.MOST_BATCH)
