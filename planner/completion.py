"""Some degrees -> a whole strategy: what one strategy given by hand leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.checked import checked
from planner.cost.experts import default_etp
from planner.cost.memory.peak import least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError
from planner.legality.apply import apply_rules
from planner.legality.rules import SCALAR_RULES
from planner.search.layouts import layouts
from planner.search.suggest import Request
from planner.timeline.estimate import evaluate


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
    micro-batches to what the global batch needs, etp to the framework's own habit, the optimizer to the framework's
    least sharding, over dp x cp, the layers to the best even split.  Nothing is searched but the split and, with
    ``recompute="auto"``, the least recompute that fits.  A strategy that breaks a rule comes back as it is, with the
    first split and without recompute.

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
    checked(**fields, recompute=_listed(recompute), stage_layers=_listed(stage_layers))
    fields = _degrees(request, fields)
    candidates = [_strategy(fields, layers) for layers in _splits(request, fields, stage_layers)]
    table = Strategies.of(candidates)
    if not apply_rules(request.context, table.take([0]), SCALAR_RULES)[0].all():
        return table.row(0)  # nothing is known of a layout that cannot run; the rules say why
    return _best(request, table, recompute)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _degrees(request: Request, fields: dict[str, Any]) -> dict[str, Any]:
    cards, batch = request.cluster.devices, request.workload.global_batch
    fields = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1} | fields
    rest = fields["tp"] * fields["pp"] * fields["cp"]
    if "dp" not in fields and cards % rest:
        raise SpecError(
            f"tp {fields['tp']} x pp {fields['pp']} x cp {fields['cp']} = {rest} does not divide {cards} cards; "
            "change one of them, or the cards."
        )
    fields.setdefault("dp", cards // rest)
    fields.setdefault("micro_batches", max(batch // (fields["dp"] * fields["micro_batch_size"]), 1))
    shards = fields["dp"] * fields["cp"]
    sharding = [level for level in request.workload.runs_on.zero_levels if level > 0]
    fields.setdefault("zero_level", min(sharding) if shards > 1 else 0)
    fields.setdefault("optimizer_shard", shards if fields["zero_level"] else 1)
    fields.setdefault("sequence_parallel", fields["tp"] > 1)
    experts, framework = request.model.moe is not None, request.workload.framework
    fields.setdefault("etp", default_etp(framework, experts=experts, tp=fields["tp"]))
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
    if recompute == "full":
        return table.replace(recompute_full_CS=table.layers_CS)
    if recompute == "selective":
        return table.replace(recompute_selective_CS=table.layers_CS)
    if recompute == "none":
        return table
    return least_recompute(request.model, request.workload, table, request.limit)[0]
