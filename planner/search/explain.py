"""Why a strategy lost, and the smallest change that would save it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.cost.estimate import Estimate
from planner.cost.experts import usual_etp
from planner.cost.memory.peak import TERMS, least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.legality.apply import Violation, violations
from planner.search.nearest import describe, with_layers
from planner.search.objective import estimated, fitted
from planner.search.request import Request
from planner.search.suggest import Result, search
from planner.units import format_bytes, format_seconds

#: Columns whose difference explains a slower step, with the words for them.
TIME_WORDS: Final = {
    "compute_s": "matmuls", "attention_s": "attention", "vector_s": "element-wise work", "recompute_s": "recompute",
    "head_loss_s": "head and loss", "mtp_s": "multi-token prediction", "launch_s": "operator launches",
    "tp_exposed_s": "tensor-parallel traffic", "cp_exposed_s": "context-parallel traffic",
    "ep_exposed_s": "expert traffic", "pp_exposed_s": "pipeline traffic", "bubble_s": "pipeline bubble",
    "dp_exposed_s": "gradient traffic", "optimizer_s": "optimizer", "fixed_s": "fixed cost",
    "straggler_s": "waiting for the slowest rank",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a strategy, and what it gives.

    Attributes
    ----------
    what : str
        The change in words, e.g. ``tp 4 -> 8, dp 8 -> 4``.
    changed : int
        Fields that differ; fewer is a smaller change.
    """

    what: str
    changed: int
    strategy: Strategy
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Verdict on one strategy.

    Attributes
    ----------
    verdict : {"illegal", "out of memory", "slower", "best"}
    reasons : tuple of str
        Sentences, most important first.
    violations : tuple of Violation
        Broken rules; empty unless illegal.
    estimate : Estimate or None
        None when illegal.
    over_bytes : float
        Excess of the heaviest stage over the limit [bytes]; 0 when it fits.
    stage : int or None
        The heaviest stage when out of memory.
    change : Change or None
        The smallest single change that makes it legal, fit, or faster.
    """

    strategy: Strategy
    verdict: str
    reasons: tuple[str, ...]
    violations: tuple[Violation, ...] = ()
    estimate: Estimate | None = None
    over_bytes: float = 0.0
    stage: int | None = None
    change: Change | None = None


def explain(request: Request, strategy: Strategy, result: Result | None = None) -> Explanation:
    """Why a strategy is not the answer to a request.

    Parameters
    ----------
    strategy : Strategy
        Judged as it stands, with its own layers and recompute.
    result : Result, optional
        Of the same request; searched when not given.
    """
    broken = violations(request.context, strategy)
    if broken:
        change = smallest_change(request, strategy, needs_legal=True)
        reasons = tuple(violation.message for violation in broken)
        return Explanation(
            strategy=strategy, verdict="illegal", reasons=reasons, violations=tuple(broken), change=change
        )
    estimate = _estimate(request, [strategy])[0]
    if not estimate.fits:
        return _out_of_memory(request, strategy, estimate)
    return _slower(request, strategy, estimate, result)


def _out_of_memory(request: Request, strategy: Strategy, estimate: Estimate) -> Explanation:
    stage = int(np.argmax(estimate.stage_peak_bytes))
    over = estimate.peak_bytes - estimate.limit_bytes
    terms = sorted(TERMS, key=lambda name: -estimate.memory_bytes[name][stage])[:3]
    fill = ", ".join(f"{name.replace('_', ' ')} {format_bytes(estimate.memory_bytes[name][stage])}" for name in terms)
    return Explanation(
        strategy=strategy,
        verdict="out of memory",
        reasons=(
            f"stage {stage} needs {format_bytes(estimate.peak_bytes)} of {format_bytes(estimate.limit_bytes)}, "
            f"{format_bytes(over)} too much; most of it: {fill}.",
        ),
        estimate=estimate,
        over_bytes=over,
        stage=stage,
        change=smallest_change(request, strategy),
    )


def _slower(request: Request, strategy: Strategy, estimate: Estimate, result: Result | None) -> Explanation:
    best = (result or search(request)).estimates.row(0)
    assert estimate.step_s is not None
    assert best.step_s is not None
    if estimate.step_s <= best.step_s:
        reason = f"nothing faster was found: {format_seconds(estimate.step_s)} a step."
        return Explanation(strategy=strategy, verdict="best", reasons=(reason,), estimate=estimate)
    slower = estimate.step_s / best.step_s - 1.0
    reasons = (
        f"{format_seconds(estimate.step_s)} a step, {slower:.1%} slower than {format_seconds(best.step_s)} of the best "
        f"({describe(best.strategy)}).",
        *_differences(estimate, best),
    )
    change = smallest_change(request, strategy, faster_than=estimate.step_s)
    return Explanation(strategy=strategy, verdict="slower", reasons=reasons, estimate=estimate, change=change)


def _differences(estimate: Estimate, best: Estimate) -> tuple[str, ...]:
    """The three terms in which the estimate loses most."""
    assert estimate.time_s is not None
    assert best.time_s is not None
    lost = {name: estimate.time_s[name] - best.time_s[name] for name in TIME_WORDS}
    worst = sorted((name for name in lost if lost[name] > 0), key=lambda name: -lost[name])[:3]
    return tuple(
        f"{TIME_WORDS[name]}: {format_seconds(estimate.time_s[name])} instead of "
        f"{format_seconds(best.time_s[name])}, {format_seconds(lost[name])} lost."
        for name in worst
    )


# --- smallest change ------------------------------------------------------------------------------------------------


def smallest_change(
    request: Request, strategy: Strategy, *, needs_legal: bool = False, faster_than: float | None = None
) -> Change | None:
    """The neighbour with the fewest changed fields that is legal, fits (and is faster); the fastest of those."""
    context = request.context
    found = [(what, near) for what, near in neighbours(request, strategy) if not violations(context, near)]
    if not found:
        return None
    chosen: list[tuple[int, float, Change]] = []
    estimates = _estimate(request, [near for _, near in found], fill=needs_legal)
    for (what, _), estimate in zip(found, estimates, strict=True):
        if estimate.step_s is None or (faster_than is not None and estimate.step_s >= faster_than):
            continue
        changed = what.count("->")
        change = Change(what=what, changed=changed, strategy=estimate.strategy, estimate=estimate)
        chosen.append((0 if faster_than is not None else changed, estimate.step_s, change))
    return min(chosen, key=lambda item: item[:2])[2] if chosen else None


def _estimate(request: Request, strategies: list[Strategy], *, fill: bool = False) -> list[Estimate]:
    table = Strategies.of(strategies)
    if fill:
        table, _ = least_recompute(request.model, request.workload, table, request.limit)
    estimates = estimated(request, table)
    return [estimates.row(i) for i in range(len(table))]


def neighbours(request: Request, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Strategies one change away, each with the change in words.

    A degree that doubles takes its factor from dp; micro-batches follow from the global batch.
    """
    yield from _mended(request, strategy)
    yield from _recomputing(request, strategy)
    for name in ("tp", "pp", "cp"):
        for factor in (2, -2):
            near = _scaled(request, strategy, name, factor)
            if near is not None:
                yield near
    if strategy.micro_batch_size > 1:
        yield _with(request, strategy, micro_batch_size=strategy.micro_batch_size // 2)
    yield _with(request, strategy, micro_batch_size=strategy.micro_batch_size * 2)
    if request.model.moe is not None:
        yield _with(request, strategy, ep=strategy.ep * 2)
        yield from _expert_parts(request, strategy)
    whole = strategy.dp * strategy.cp
    if strategy.optimizer_shard < whole:
        yield _with(request, strategy, optimizer_shard=whole, zero_level=max(strategy.zero_level, 1))
    for level in range(strategy.zero_level + 1, 4):
        yield _with(request, strategy, zero_level=level, optimizer_shard=whole)
    if not strategy.swap_optimizer:
        yield _with(request, strategy, swap_optimizer=True)
    if strategy.schedule != "1f1b" and strategy.vpp > 1:
        yield _with(request, strategy, schedule="1f1b", vpp=1)


def _expert_parts(request: Request, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Experts whole instead of split over tp, on as many ranks, and the other way round."""
    for etp in usual_etp(request.workload.framework, experts=True, tp=strategy.tp):
        parts = strategy.ep * strategy.etp
        if etp != strategy.etp and parts % etp == 0:
            yield _with(request, strategy, etp=etp, ep=parts // etp)


def _mended(request: Request, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Micro-batches that meet the global batch; layers that add up to the model."""
    _, near = _with(request, strategy)
    if near.micro_batches != strategy.micro_batches:
        yield f"micro-batches {strategy.micro_batches} -> {near.micro_batches}", near
    if sum(strategy.layers_per_stage) != request.model.layers:
        laid = with_layers(request, near)
        before, after = ("/".join(map(str, s.layers_per_stage)) for s in (strategy, laid))
        yield f"layers per stage {before} -> {after}", laid


def _recomputing(request: Request, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Least recompute with and without selective recompute."""
    held = strategy.layers_per_stage
    none = (0,) * strategy.pp
    if sum(held) != request.model.layers:
        return
    for selective in (none, held):
        table = Strategies.of([replace(strategy, recompute_full=none, recompute_selective=selective)])
        near, fits = fitted(request, table)
        if fits.all() and (row := near.row(0)) != strategy:
            yield _said(strategy, row), row


def _scaled(request: Request, strategy: Strategy, name: str, factor: int) -> tuple[str, Strategy] | None:
    size, dp = getattr(strategy, name), strategy.dp
    if factor > 0 and dp % factor == 0:
        return _with(request, strategy, **{name: size * factor, "dp": dp // factor})
    if factor < 0 and size % -factor == 0:
        return _with(request, strategy, **{name: size // -factor, "dp": dp * -factor})
    return None


def _with(request: Request, strategy: Strategy, **changes: object) -> tuple[str, Strategy]:
    """The strategy with changes, completed so that the rest stays consistent."""
    merged = {name: changes.get(name, getattr(strategy, name)) for name in Strategy.__dataclass_fields__}
    dp, tp, cp = (int(str(merged[name])) for name in ("dp", "tp", "cp"))
    merged["micro_batches"] = max(request.workload.global_batch // (dp * int(str(merged["micro_batch_size"]))), 1)
    merged["sequence_parallel"] = tp > 1 and (strategy.sequence_parallel or strategy.tp == 1)
    if "etp" not in changes and strategy.etp == strategy.tp > 1:
        merged["etp"] = tp  # experts stay split over the tensor-parallel ranks
    if "cp" in changes:
        merged |= {"cp_algorithm": "ring", "ulysses_degree": 1}
    if strategy.optimizer_shard in (strategy.dp * strategy.cp, 1) and "optimizer_shard" not in changes:
        merged["optimizer_shard"] = dp * cp if strategy.optimizer_shard > 1 and merged["zero_level"] else 1
    if {"pp", "vpp"} & set(changes):
        merged = _relaid(request, merged)
    near = Strategy(**merged)  # type: ignore[arg-type]
    return _said(strategy, near), near


def _relaid(request: Request, merged: dict[str, object]) -> dict[str, object]:
    """Layers split evenly over other stages, with the least recompute that fits them."""
    pp, vpp = int(str(merged["pp"])), int(str(merged["vpp"]))
    if pp == 1:
        merged |= {"vpp": 1, "schedule": "1f1b"}
        vpp = 1
    zeros = (0,) * pp
    merged |= {"layers": (zeros,) * vpp, "recompute_full": zeros, "recompute_selective": zeros}
    laid = with_layers(request, Strategy(**merged))  # type: ignore[arg-type]
    if sum(laid.layers_per_stage) == request.model.layers:
        table, fits = fitted(request, Strategies.of([laid]))
        laid = table.row(0) if fits.all() else laid
    return merged | {name: getattr(laid, name) for name in ("layers", "recompute_full", "recompute_selective")}


def _said(before: Strategy, after: Strategy) -> str:
    """Changed fields in words."""
    words = {
        "micro_batch_size": "micro-batch size", "optimizer_shard": "optimizer shard", "zero_level": "zero level",
        "swap_optimizer": "optimizer swap", "recompute_full": "recomputed layers",
        "recompute_selective": "selectively recomputed layers",
    }  # fmt: skip
    quiet = {"micro_batches", "layers", "sequence_parallel", "ulysses_degree", "cp_algorithm"}
    parts = []
    for name in Strategy.__dataclass_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new or name in quiet or (isinstance(new, tuple) and len(new) != len(old)):
            continue
        shown = [list(value) if isinstance(value, tuple) else value for value in (old, new)]
        parts.append(f"{words.get(name, name)} {shown[0]} -> {shown[1]}")
    return ", ".join(parts)
