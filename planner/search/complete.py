"""Some degrees -> a whole strategy, and a whole strategy -> the degrees that say it.

`planner.completion` is the strict door in front of `completed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from planner.cost.experts import default_etp
from planner.cost.memory.peak import least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError
from planner.legality.apply import apply_rules
from planner.legality.rules import SCALAR_RULES
from planner.search.layouts import layouts
from planner.search.objective import estimated
from planner.search.request import Request

#: Per-stage and per-chunk fields, which degrees do not say.
LISTS: Final = ("layers", "recompute_full", "recompute_selective")
#: Fields beside the degrees, each before those whose default follows from it.
_GIVEN: Final = (
    "vpp", "micro_batch_size", "micro_batches", "ep", "etp", "schedule", "cp_algorithm", "ulysses_degree",
    "sequence_parallel", "zero_level", "optimizer_shard", "swap_optimizer",
)  # fmt: skip


def completed(
    request: Request,
    fields: Mapping[str, Any],
    recompute: str | Sequence[int] = "auto",
    stage_layers: Sequence[int] | None = None,
) -> Strategy:
    """Whole strategy from some of its degrees; see `planner.completion.complete`.

    Raises
    ------
    SpecError
        Degrees do not multiply to the cards, or the batch cannot be cut.
    """
    whole = filled(request, fields)
    table = Strategies.of([_strategy(whole, layers) for layers in _splits(request, whole, stage_layers)])
    if not apply_rules(request.context, table.take([0]), SCALAR_RULES)[0].all():
        return table.row(0)  # nothing is known of a layout that cannot run; the rules say why
    return _best(request, table, recompute)


def said(request: Request, strategy: Strategy) -> dict[str, Any]:
    """The fewest degrees from which `completed` makes the strategy again, but for its lists.

    Degrees above one are always among them.
    """
    degrees = {name: size for name in ("dp", "tp", "pp", "cp") if (size := getattr(strategy, name)) > 1}
    for name in _GIVEN:
        value = getattr(strategy, name)
        if filled(request, {"dp": strategy.dp} | degrees)[name] != value:
            degrees[name] = value
    return degrees


def filled(request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every degree, those not given by their defaults.

    Raises
    ------
    SpecError
        Degrees do not multiply to the cards.
    """
    fields = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1} | dict(given)
    rest, cards = fields["tp"] * fields["pp"] * fields["cp"], request.cluster.devices
    if "dp" not in fields and cards % rest:
        raise SpecError(
            f"tp {fields['tp']} x pp {fields['pp']} x cp {fields['cp']} = {rest} does not divide {cards} cards; "
            "change one of them, or the cards."
        )
    fields.setdefault("dp", cards // rest)
    batch = fields["dp"] * fields["micro_batch_size"]
    fields.setdefault("micro_batches", max(request.workload.global_batch // batch, 1))
    shards = fields["dp"] * fields["cp"]
    sharding = [level for level in request.workload.runs_on.zero_levels if level > 0]
    fields.setdefault("zero_level", min(sharding) if shards > 1 else 0)
    fields.setdefault("optimizer_shard", shards if fields["zero_level"] else 1)
    fields.setdefault("sequence_parallel", fields["tp"] > 1)
    experts, framework = request.model.moe is not None, request.workload.framework
    fields.setdefault("etp", default_etp(framework, experts=experts, tp=fields["tp"]))
    fields.setdefault("schedule", "interleaved" if fields["vpp"] > 1 else "1f1b")
    fields.setdefault("cp_algorithm", "ring")
    fields.setdefault("ulysses_degree", fields["cp"] if fields["cp_algorithm"] == "ulysses" else 1)
    fields.setdefault("swap_optimizer", False)
    return fields


def _splits(request: Request, fields: dict[str, Any], stage_layers: Sequence[int] | None) -> list[Any]:
    pp, vpp, model = fields["pp"], fields["vpp"], request.model
    if stage_layers is not None:
        if len(stage_layers) != pp * vpp:
            raise SpecError(
                f"layers per stage need {pp * vpp} numbers for pp={pp}, vpp={vpp}; given {len(stage_layers)}."
            )
        if sum(stage_layers) != model.layers:
            raise SpecError(
                f"layers per stage add up to {sum(stage_layers)} layers, but {model.name} has {model.layers}."
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
    table = recomputed(request, table, recompute)
    answers = estimated(request, table)
    speed = np.where(answers.fits, answers.step_s, np.inf)
    best = int(np.argmin(speed)) if answers.fits.any() else int(np.argmin(answers.peak_bytes))
    return table.row(best)


def recomputed(request: Request, table: Strategies, recompute: str | Sequence[int]) -> Strategies:
    """Rows without recompute with the one asked for."""
    if not isinstance(recompute, str):
        given = tuple(recompute)
        stages = int(table.pp[0])
        if len(given) != stages:
            raise SpecError(f"recompute needs {stages} numbers for pp={stages}; given {len(given)}.")
        return table.replace(recompute_full_CS=np.tile(np.array(given, np.int64), (len(table), 1)))
    if recompute == "full":
        return table.replace(recompute_full_CS=table.layers_CS)
    if recompute == "selective":
        return table.replace(recompute_selective_CS=table.layers_CS)
    if recompute == "none":
        return table
    return least_recompute(request.model, request.workload, table, request.limit)[0]


def bare(strategy: Strategy) -> Strategy:
    """The strategy without recompute."""
    nothing = (0,) * strategy.pp
    return replace(strategy, recompute_full=nothing, recompute_selective=nothing)
