"""Strategies one change away from another, completed as `planner estimate` completes them, and changes in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from planner.cost.experts import usual_etp
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError
from planner.legality.apply import violations
from planner.legality.context import divisors
from planner.search.complete import LISTS, bare, completed, filled, recomputed, said
from planner.search.request import Request
from planner.search.space import MICRO_BATCH_SIZES, USUAL_SCHEDULES, VIRTUAL_STAGES
from planner.units import runs

#: Options that set a field of one strategy; a change of another field is never proposed.
OPTIONS: Final = {
    "dp": "--dp", "tp": "--tp", "pp": "--pp", "cp": "--cp", "ep": "--ep", "etp": "--etp", "vpp": "--vpp",
    "micro_batch_size": "--micro-batch", "schedule": "--schedule", "cp_algorithm": "--cp-algorithm",
    "zero_level": "--zero-level", "optimizer_shard": "--optimizer-shard",
}  # fmt: skip
_WORDS: Final = {
    "micro_batch_size": "micro-batch size", "micro_batches": "micro-batches", "optimizer_shard": "optimizer shard",
    "zero_level": "zero level", "cp_algorithm": "cp algorithm", "ulysses_degree": "ulysses degree",
    "sequence_parallel": "sequence parallel", "swap_optimizer": "optimizer swap", "layers": "layers of the stages",
    "recompute_full": "recomputed layers", "recompute_selective": "selectively recomputed layers",
}  # fmt: skip

#: Words for recompute of a whole strategy, of which the least that fits comes first.
_HOW: Final = ("auto", "none", "selective", "full")


def neighbours(request: Request, strategy: Strategy) -> list[Strategy]:
    """Legal strategies one change away: a factor moved between two degrees, another size, kind or level of one thing.

    What a change leaves open is filled in as `planner estimate` fills it in, with the least recompute that fits; where
    stages stay, also with the layers and the recompute of the strategy as they are.
    """
    found: dict[Strategy, None] = {}
    for near in _candidates(request, strategy):
        if near != strategy and near not in found and not violations(request.context, near):
            found[near] = None
    return list(found)


def _candidates(request: Request, strategy: Strategy) -> Iterator[Strategy]:
    whole = sum(strategy.layers_per_stage) == request.model.layers
    if whole:
        for how in _HOW:
            yield recomputed(request, Strategies.of([bare(strategy)]), how).row(0)
    own = said(request, strategy)
    for move in [{}, *_moves(request, strategy)]:
        fields = _kept(request, own, move)
        try:
            yield completed(request, fields)
            degrees = filled(request, fields)
        except SpecError:
            continue
        if whole and (degrees["pp"], degrees["vpp"]) == (strategy.pp, strategy.vpp):
            near = replace(strategy, **degrees)
            yield near
            yield recomputed(request, Strategies.of([bare(near)]), "auto").row(0)


def _kept(request: Request, own: dict[str, Any], move: dict[str, Any]) -> dict[str, Any]:
    """Degrees of the strategy after a move, without those that no longer mean anything."""
    fields = {name: value for name, value in own.items() if name != "micro_batches"} | move
    gone = set()
    if fields.get("pp", 1) == 1:
        gone |= {"vpp", "schedule"}
    if "vpp" in move and "schedule" not in move:
        gone.add("schedule")
    if fields.get("cp", 1) == 1:
        gone.add("cp_algorithm")
    if "cp" in move or "cp_algorithm" in move:
        gone.add("ulysses_degree")
    if "tp" in move and (move["tp"] == 1 or own.get("tp", 1) == 1):
        gone.add("sequence_parallel")
    shards = fields.get("cp", 1) * fields.get("dp", 1)
    if shards % fields.get("optimizer_shard", 1) or "zero_level" in move:
        gone.add("optimizer_shard")
    if shards == 1 and {"dp", "cp"} & set(move):
        gone |= {"zero_level", "optimizer_shard"}
    return {name: value for name, value in fields.items() if name not in gone or name in move}


# --- moves ----------------------------------------------------------------------------------------------------------


def _moves(request: Request, s: Strategy) -> Iterator[dict[str, Any]]:
    yield from _degrees(request, s)
    yield from ({"micro_batch_size": size} for size in _beside(s.micro_batch_size, MICRO_BATCH_SIZES))
    yield from _pipelines(request, s)
    if s.cp > 1:
        yield from ({"cp_algorithm": name} for name in ("ring", "ulysses") if name != s.cp_algorithm)
    yield from _experts(request, s)
    yield from _sharding(request, s)


def _degrees(request: Request, s: Strategy) -> Iterator[dict[str, Any]]:
    """A factor from one degree to another; where degrees miss the cards, a degree that leaves a whole dp."""
    cards, names = request.cluster.devices, ("dp", "tp", "pp", "cp")
    for one in names if s.devices == cards else ():
        size = getattr(s, one)
        for other in names:
            if size > 1 and other != one:
                factor = next(d for d in divisors(size) if d > 1)
                yield {one: size // factor, other: getattr(s, other) * factor}
    for name in ("tp", "pp", "cp"):
        others = s.tp * s.pp * s.cp // getattr(s, name)
        if cards % others == 0:
            legal = divisors(cards // others)
            yield from ({name: v, "dp": cards // others // v} for v in _beside(getattr(s, name), legal))


def _beside(value: int, legal: tuple[int, ...] | list[int]) -> list[int]:
    """The next smaller and the next larger of some numbers.

    >>> _beside(3, [1, 2, 4, 8]), _beside(1, [1, 2])
    ([2, 4], [2])
    """
    less, more = [v for v in legal if v < value], [v for v in legal if v > value]
    return [*less[-1:], *more[:1]]


def _pipelines(request: Request, s: Strategy) -> Iterator[dict[str, Any]]:
    """More or fewer chunks of a stage, and other schedules."""
    if s.pp == 1:
        return
    for vpp in dict.fromkeys([1, *_beside(s.vpp, VIRTUAL_STAGES)]):
        if vpp != s.vpp:
            yield {"vpp": vpp}
    for schedule in request.workload.runs_on.schedules:
        if schedule != s.schedule and schedule in USUAL_SCHEDULES:
            yield {"schedule": schedule, "vpp": 1 if schedule in ("1f1b", "gpipe") else max(s.vpp, 2)}


def _experts(request: Request, s: Strategy) -> Iterator[dict[str, Any]]:
    """Experts over more or fewer ranks, and whole or split over tp on as many ranks."""
    moe = request.model.moe
    if moe is None:
        return
    yield from ({"ep": ep} for ep in _beside(s.ep, divisors(moe.experts)))
    parts = s.ep * s.etp
    for etp in usual_etp(request.workload.framework, experts=True, tp=s.tp):
        if etp != s.etp and parts % etp == 0:
            yield {"etp": etp, "ep": parts // etp}


def _sharding(request: Request, s: Strategy) -> Iterator[dict[str, Any]]:
    """Other levels of the optimizer, over all of dp x cp."""
    shards = s.dp * s.cp
    if shards == 1:
        return
    for level in request.workload.runs_on.searched_levels:
        if level != s.zero_level:
            yield {"zero_level": level}
    if s.zero_level and s.optimizer_shard != shards:
        yield {"optimizer_shard": shards}


# --- words ----------------------------------------------------------------------------------------------------------


def differences(before: Strategy, after: Strategy) -> list[str]:
    """Everything in which two strategies differ, in words."""
    parts = []
    for name in Strategy.__dataclass_fields__:
        old, new = (_text(name, getattr(s, name)) for s in (before, after))
        if old != new:
            parts.append(f"{_WORDS.get(name, name)} {old} -> {new}")
    return parts


def _text(name: str, value: Any) -> str:
    if name == "layers":
        return " | ".join(runs(chunk) for chunk in value)
    if name in LISTS:
        return runs(value) if any(value) else "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def as_options(request: Request, strategy: Strategy) -> str:
    """Options with which `planner estimate` looks at exactly this strategy; empty where options cannot say it."""
    given = {"dp": strategy.dp} | said(request, strategy)
    settable = {name: value for name, value in given.items() if name in OPTIONS}
    if set(given) - set(settable) or filled(request, settable) != filled(request, given):
        return ""
    how = _recompute_option(strategy)
    if how is None:
        return ""
    words = [f"{OPTIONS[name]} {value}" for name, value in settable.items()]
    lists = (
        [f"--stage-layers {','.join(str(n) for chunk in strategy.layers for n in chunk)}"] if strategy.pp > 1 else []
    )
    return " ".join([*words, *lists, f"--recompute {how}"])


def _recompute_option(s: Strategy) -> str | None:
    if not any(s.recompute_selective):
        return ",".join(map(str, s.recompute_full)) if any(s.recompute_full) else "none"
    whole = s.recompute_selective == s.layers_per_stage and not any(s.recompute_full)
    return "selective" if whole else None
