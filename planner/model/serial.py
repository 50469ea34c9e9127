"""`Model` to plain data and back, for plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import chain, groupby
from typing import Any, Final, TypeVar

from planner.errors import SpecError
from planner.model.fields import LIMITS
from planner.model.records import Attention, LayerKind, Model, Moe

_Record = TypeVar("_Record", Attention, Moe, Model)
#: Fields written only where they say something, so that plans of other models read as before.
_RARE: Final = frozenset({
    "norm_whole", "sinks", "index_heads", "index_dim", "index_topk", "expert_bias", "embedding_norm", "window",
    "windowed_layers", "chunked_windows", "note",
})  # fmt: skip
_NESTED: Final = frozenset({"attention", "moe", "layer_kinds"})


def to_dict(model: Model) -> dict[str, Any]:
    """Plain data of a model; layer kinds as runs, ``[["dense", 3], ["moe", 58]]``."""
    data = plain(model)
    data["attention"] = plain(model.attention)
    data["moe"] = None if model.moe is None else plain(model.moe)
    data["layer_kinds"] = [[kind, len(list(run))] for kind, run in groupby(model.layer_kinds)]
    return data


def plain(record: Attention | Moe | Model) -> dict[str, Any]:
    """Fields of one record; features that few families have are left out where the model does not have them."""
    return {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in _RARE or getattr(record, field.name) != field.default
    }


def from_dict(data: Mapping[str, Any]) -> Model:
    """Model of plain data made by `to_dict`.

    Raises
    ------
    SpecError
        A key is unknown or missing, or a value has the wrong type or is illegal.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"model is {data!r}; it must be an object.")
    values = dict(data)
    values["attention"] = _record(Attention, values.get("attention"), "model.attention")
    if values.get("moe") is not None:
        values["moe"] = _record(Moe, values["moe"], "model.moe")
    values["layer_kinds"] = _kinds(values.get("layer_kinds"))
    return _record(Model, values, "model")


def _kinds(runs: Any) -> tuple[LayerKind, ...]:
    message = f"model.layer_kinds is {runs!r}; it must be a list of [kind, count], at most {LIMITS['layers']} layers."
    if not isinstance(runs, (list, tuple)):
        raise SpecError(message)
    for run in runs:
        if not (isinstance(run, (list, tuple)) and len(run) == 2 and isinstance(run[0], str) and type(run[1]) is int):
            raise SpecError(message)
        if not 0 < run[1] <= LIMITS["layers"]:
            raise SpecError(message)
    return tuple(chain.from_iterable([kind] * count for kind, count in runs))


def _record(record: type[_Record], data: Any, where: str) -> _Record:
    if not isinstance(data, Mapping):
        raise SpecError(f"{where} is {data!r}; it must be an object.")
    known = {field.name: field for field in fields(record)}
    for key, value in data.items():
        if key not in known:
            raise SpecError(f"{where} has the unknown key '{key}'; legal: {', '.join(known)}.")
        expected = _expected(str(known[key].type))
        if key not in _NESTED and type(value) is not expected:
            raise SpecError(f"{where}.{key} is {value!r}; it must be of type {expected.__name__}.")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in data]
    if missing:
        raise SpecError(f"{where} lacks {', '.join(missing)}.")
    return record(**data)


def _expected(annotation: str) -> type:
    return {"int": int, "bool": bool}.get(annotation, str)
