"""Some degrees -> a whole strategy: what one strategy given by hand leaves open, behind a strict door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.checked import checked
from planner.cost.strategies import Strategy
from planner.errors import SpecError
from planner.search.complete import LISTS, completed
from planner.search.request import Request


def cards_of(degrees: Mapping[str, Any]) -> int:
    """Product of the given degrees."""
    product = 1
    for name in ("dp", "tp", "pp", "cp"):
        product *= int(degrees.get(name) or 1)
    return product


def with_dp(degrees: Mapping[str, Any], cards: int) -> dict[str, Any]:
    """The degrees, with the dp that comes nearest where they do not divide the cards: for rules to judge.

    >>> with_dp({"tp": 3, "pp": 2}, 64), with_dp({"tp": 4}, 64)
    ({'tp': 3, 'pp': 2, 'dp': 10}, {'tp': 4})
    """
    rest = cards_of({**degrees, "dp": 1})
    missing = degrees.get("dp") is None and cards % rest
    return {**degrees, **({"dp": max(cards // rest, 1)} if missing else {})}


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
    legal = set(Strategy.__dataclass_fields__) - set(LISTS)
    unknown = sorted(set(fields) - legal)
    if unknown:
        raise SpecError(f"a strategy has no {', '.join(unknown)}; legal: {', '.join(sorted(legal))}.")
    checked(**fields, recompute=_listed(recompute), stage_layers=_listed(stage_layers))
    return completed(request, fields, recompute, stage_layers)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
