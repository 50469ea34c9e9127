"""Plan: one estimate chosen, ranked and kept as ``plan.json``, which every other command reads back.

The file holds the whole model shape, the workload, the hardware by name, the strategy and a summary of the estimate, so
it needs no catalogue and no other file.  Its layout is described in docs/json.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from planner.cost.experts import default_etp
from planner.cost.strategies import Strategy
from planner.errors import SpecError
from planner.model import serial
from planner.model.records import Model, Workload
from planner.units import GIB
from planner.version import __version__

#: Version of the layout of plan.json; raised when an older reader could misunderstand a file.
SCHEMA: Final = 1
_FILE_LIMIT_BYTES: Final = 8 * 2**20
_ONE_LINE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy for one model on one cluster, with what is predicted for it.

    Attributes
    ----------
    model, workload, strategy
        Records as the search used them; the strategy's layers add up to the model's.
    hardware : str
        Name of the hardware profile.
    devices : int
        Devices of the job: the product of the strategy's degrees.
    devices_per_node : int
        Devices of one server, which decides how many launch scripts there are.
    memory_limit_bytes : int
        Limit of the framework's memory pool [bytes], written as ``max_device_memory``.
    estimate : mapping
        Summary of the estimate: ``step_s``, its interval, memory and time by term.  Kept as JSON holds it (lists for
        tuples, None for infinities), so that a plan read back equals the plan written.
    calibration : mapping
        The constants the seconds were priced with, as ``planner.cluster.kept`` writes them; empty in older plans.
    rank : int
        1 for the best plan of the search.
    planner : str
        Version of the planner that made the plan.
    """

    model: Model
    workload: Workload
    hardware: str
    devices: int
    strategy: Strategy
    estimate: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 1
    devices_per_node: int = 8
    memory_limit_bytes: int = 58 * GIB
    planner: str = __version__

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimate", _plain(self.estimate))
        object.__setattr__(self, "calibration", _plain(self.calibration))
        strategy = self.strategy
        layers = sum(strategy.layers_per_stage)
        if layers != self.model.layers:
            raise SpecError(
                f"the stages hold {layers} layers but {self.model.name} has {self.model.layers}; "
                f"layers per stage must add up to {self.model.layers}."
            )
        if strategy.devices != self.devices:
            raise SpecError(
                f"dp {strategy.dp} x tp {strategy.tp} x pp {strategy.pp} x cp {strategy.cp} = {strategy.devices} "
                f"devices, but the plan says {self.devices}."
            )
        samples = strategy.dp * strategy.micro_batch_size * strategy.micro_batches
        if samples != self.workload.global_batch:
            raise SpecError(
                f"dp {strategy.dp} x micro-batch size {strategy.micro_batch_size} x {strategy.micro_batches} "
                f"micro-batches = {samples} samples a step, but the global batch is {self.workload.global_batch}."
            )
        for name in ("rank", "devices_per_node", "memory_limit_bytes"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)} must be a positive whole number.")

    @property
    def nodes(self) -> int:
        """Servers of the job."""
        return -(-self.devices // self.devices_per_node)


def dumps(plan: Plan) -> str:
    """Plan as JSON text, the same for equal plans.

    >>> from planner.model.records import Attention
    >>> model = Model(name="tiny", family="llama", hidden=64, ffn=128, vocab=256, layer_kinds=("dense",) * 2,
    ...               attention=Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16))
    >>> strategy = Strategy(dp=2, tp=1, pp=1, layers=((2,),), recompute_full=(0,), recompute_selective=(0,),
    ...                     micro_batches=4)
    >>> plan = Plan(model=model, workload=Workload(seq=128, global_batch=8), hardware="910b2", devices=2,
    ...             strategy=strategy)
    >>> loads(dumps(plan)) == plan
    True
    """
    body = {"schema": SCHEMA, **_mapping(plan), "model": serial.to_dict(plan.model)}
    return _text(body) + "\n"


def loads(text: str, *, source: str = "plan") -> Plan:
    """Plan from JSON text.

    Parameters
    ----------
    text : str
        What `dumps` wrote.
    source : str
        Where the text comes from, for messages.

    Raises
    ------
    SpecError
        Damaged JSON, unknown schema version, missing or unknown fields, wrong types, inconsistent numbers.
    """
    body = _parsed(text, source)
    if "schema" not in body:
        raise SpecError(f"{source}: no field 'schema': this is not a plan.json; write one with --emit or planner emit.")
    if body["schema"] != SCHEMA or isinstance(body["schema"], bool):
        raise SpecError(
            f"{source}: schema version {body['schema']!r} is not known to planner {__version__}, which reads version "
            f"{SCHEMA}; make the plan again, or install the planner that wrote it ({body.get('planner', 'unknown')})."
        )
    fields = {key: value for key, value in body.items() if key != "schema"}
    _complete(fields)
    try:
        return typing.cast(Plan, _record(Plan, fields, source))
    except SpecError as error:
        raise SpecError(_prefixed(source, str(error))) from None


def _complete(fields: dict[str, Any]) -> None:
    """Add what plans of 0.1 do not say: their experts were split over tp, where the ranks of a stage are enough."""
    strategy, workload, model = (fields.get(name) for name in ("strategy", "workload", "model"))
    if not (isinstance(strategy, dict) and isinstance(workload, dict) and isinstance(model, dict)):
        return
    if "etp" in strategy or not all(_is_int(strategy.get(name, 1)) for name in ("dp", "tp", "cp", "ep")):
        return
    dp, tp, cp, ep = (strategy.get(name, 1) for name in ("dp", "tp", "cp", "ep"))
    split = ep > 0 and dp * cp % ep == 0
    experts = bool(model.get("moe"))
    framework = str(workload.get("framework", ""))
    fields["strategy"] = strategy | {"etp": default_etp(framework, experts=experts, tp=tp) if split else 1}


def save(plan: Plan, path: str | Path) -> None:
    """Write `plan` to a file; an existing file is replaced."""
    Path(path).write_text(dumps(plan), encoding="utf-8")


def load(path: str | Path) -> Plan:
    """Plan from a file.

    Raises
    ------
    SpecError
        The file is missing, unreadable, too large or not a plan.
    """
    path = Path(path)
    try:
        with path.open("rb") as handle:
            data = handle.read(_FILE_LIMIT_BYTES + 1)  # never more, whatever the path leads to
        if len(data) > _FILE_LIMIT_BYTES:
            raise SpecError(f"{path} is too large; a plan.json has at most {_FILE_LIMIT_BYTES} bytes.")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text (byte {error.start}); a plan.json is UTF-8.") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from None
    return loads(text, source=str(path))


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except SpecError as error:
        raise SpecError(_prefixed(source, str(error))) from None
    except json.JSONDecodeError as error:
        ending = "the file ends too early" if error.pos >= len(text.rstrip()) else error.msg
        raise SpecError(
            f"{source}: not valid JSON at line {error.lineno}, column {error.colno}: {ending}; make the plan again."
        ) from None
    except RecursionError:
        raise SpecError(f"{source}: the JSON is nested too deeply to be a plan.") from None
    if not isinstance(body, dict):
        raise SpecError(f"{source}: a plan.json holds one object, this holds {type(body).__name__}.")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise SpecError(f"field {next(n for n in names if names.count(n) > 1)!r} is given twice.")
    return result


def _no_constant(name: str) -> float:
    raise SpecError(f"{name} is not a number that JSON or a plan can hold.")


def _prefixed(source: str, message: str) -> str:
    return message if message.startswith(f"{source}:") else f"{source}: {message}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _mapping(record: Any) -> dict[str, Any]:
    return {f.name: _plain(getattr(record, f.name)) for f in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _mapping(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _record(kind: type[Any], body: object, where: str) -> Any:
    """Dataclass of `kind` from parsed JSON, every field checked against its annotation."""
    if not isinstance(body, Mapping):
        raise SpecError(f"{where}: expected an object with fields, found {body!r}.")
    names = [f.name for f in dataclasses.fields(kind)]
    for name in body:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            raise SpecError(f"{where}: unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
    for f in dataclasses.fields(kind):
        optional = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if f.name not in body and not optional:
            raise SpecError(f"{where}: field {f.name!r} is missing; make the plan again.")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in body.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value not in arguments:
            raise SpecError(f"{where} is {value!r}; legal: {', '.join(map(str, arguments))}.")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise SpecError(f"{where} needs a list, found {value!r}.")
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if hint is Model:
        return serial.from_dict(value)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type[Any], hint), value, where)
    return _scalar(hint, value, where)


_CHECKS: Final[dict[Any, tuple[Callable[[object], bool], str]]] = {
    int: (_is_int, "a whole number"),
    float: (lambda v: _is_int(v) or isinstance(v, float), "a number"),
    bool: (lambda v: isinstance(v, bool), "true or false"),
    str: (lambda v: isinstance(v, str), "a text"),
}


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint not in _CHECKS:  # open mappings
        if not isinstance(value, Mapping):
            raise SpecError(f"{where} needs an object, found {value!r}.")
        return dict(value)
    check, what = _CHECKS[hint]
    if not check(value):
        raise SpecError(f"{where} needs {what}, found {value!r}.")
    return value


def _text(value: Any, indent: str = "") -> str:
    """JSON with two spaces of indent, where whatever fits stands on one line."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, (dict, list)) or not value:
        return line
    if len(indent) + len(line) <= _ONE_LINE and _is_flat(value):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key), ensure_ascii=False)}: {_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + item for item in items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(item, inner) for item in value) + f"\n{indent}]"


def _is_flat(value: dict[str, Any] | Sequence[Any]) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return all(not isinstance(item, dict) for item in items)
