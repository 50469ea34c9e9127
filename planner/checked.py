"""What a caller hands in, checked once at the door of the Python functions and of the command line.

One type a parameter, read by msgspec: strict (no text for a number, no truth value for a count, no fraction, nothing
that is not finite), with bounds wide enough for any job anybody has proposed and narrow enough to catch a slipped
digit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from planner.cost.strategies import CP_ALGORITHMS, SCHEDULES
from planner.errors import SpecError
from planner.limits import (
    LEAST_PARAMETERS,
    MOST_BATCH,
    MOST_CARDS,
    MOST_PARAMETERS,
    MOST_ROWS,
    MOST_SEQ,
    MOST_TOKENS,
)


def _whole(least: int, most: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


_DEGREE: Final = _whole(1, MOST_CARDS)

#: Legal values of each parameter.  A text where a number may stand with a unit is read later, by `planner.units`.
TYPES: Final[Mapping[str, Any]] = {
    "cards": _DEGREE,
    "seq": _whole(1, MOST_SEQ),
    "global_batch": _whole(1, MOST_BATCH),
    "tokens": _whole(0, MOST_TOKENS) | str,
    "max_memory": _whole(1, 2**50) | str,
    "framework": str,
    "objective": Literal["time", "cards", "memory"],
    "recompute": Literal["auto", "none", "selective", "full"] | list[_whole(0, 10_000)],  # type: ignore[misc]
    "balance": Literal["none", "fast", "exact"],
    "top": _whole(0, MOST_ROWS),
    "fill": _whole(0, MOST_ROWS),
    "stage_layers": list[_whole(0, 10_000)],  # type: ignore[misc]
    "zero_level": _whole(0, 3),
    "sequence_parallel": bool,
    "tp_overlap": bool,
    "swap_optimizer": bool,
    "cp_algorithm": Literal[CP_ALGORITHMS],
    "schedule": Literal[SCHEDULES],
    **dict.fromkeys(
        ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "ulysses_degree", "optimizer_shard"), _DEGREE
    ),
    "micro_batches": _whole(1, MOST_BATCH),
}


def checked(**values: Any) -> dict[str, Any]:
    """The given values, each of the type of its name in `TYPES`; None is left as it is.

    Raises
    ------
    SpecError
        Names the parameter, its value and what is legal.

    Examples
    --------
    >>> checked(seq=4096, tp=None)
    {'seq': 4096, 'tp': None}
    >>> checked(seq="4k")
    Traceback (most recent call last):
    planner.errors.SpecError: seq='4k' must be a whole number from 1 to 134217728.
    """
    return {name: None if value is None else _one(name, value) for name, value in values.items()}


def model_size(value: object) -> float:
    """A number of parameters as a model, e.g. ``70e9``.

    Raises
    ------
    SpecError
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not LEAST_PARAMETERS <= number <= MOST_PARAMETERS:
        raise SpecError(
            f"model={value!r} must be a name, a config.json, a `Model`, or a number of parameters from "
            f"{LEAST_PARAMETERS:.0e} to {MOST_PARAMETERS:.0e}."
        )
    return float(number)


def _one(name: str, value: Any) -> Any:
    legal = TYPES[name]
    try:
        return msgspec.convert(_plain(value), legal)
    except msgspec.ValidationError:
        raise SpecError(f"{name}={_shown(value)} must be {_said(legal)}.") from None


def _plain(value: Any) -> Any:
    """NumPy's whole numbers and sequences as Python's own."""
    if isinstance(value, (bool, str, Path)):
        return str(value) if isinstance(value, Path) else value
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        items = value.tolist() if hasattr(value, "tolist") else value
        return [_plain(item) for item in items] if isinstance(items, (list, tuple)) else items
    try:
        return operator.index(value)
    except TypeError:
        return value


def _said(legal: Any) -> str:
    """A type in words."""
    parts = get_args(legal)
    if getattr(legal, "__metadata__", ()):
        meta = legal.__metadata__[0]
        return f"a whole number from {meta.ge} to {meta.le}"
    if legal is bool:
        return "True or False"
    if legal is str:
        return "a text"
    if getattr(legal, "__origin__", None) is list:
        return f"a list, each {_said(parts[0])}"
    if getattr(legal, "__origin__", None) is Literal:
        return "one of " + ", ".join(map(str, parts))
    return " or ".join(_said(part) for part in parts)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
