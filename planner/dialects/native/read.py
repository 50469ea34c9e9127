"""Read the dictionary ``PLAN`` of an emitted MindSpore script back; the script is parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from planner.cost.strategies import Strategy
from planner.dialects.graph.layout import Counts
from planner.dialects.graph.read import ReadResult
from planner.errors import SpecError
from planner.model.records import DENSE, Attention, Model, Workload
from planner.units import parse_bytes

_MOST_ITEMS: Final = 10_000
_SCHEDULERS: Final = ("1f1b", "gpipe")
_RECOMPUTE: Final = ("", "full", "selective")


def read_native(text: str, *, source: str = "script") -> ReadResult:
    """Model, workload and strategy of a script that ``planner emit --target mindspore`` wrote.

    Parameters
    ----------
    text : str
    source : str
        File name, for messages.

    Raises
    ------
    SpecError
        No ``PLAN``, something else than plain values in it, or values that contradict each other.
    """
    plan = _Values(_dictionary(text, source), source)
    layers, full, selective = _layers(plan)
    return ReadResult(
        model=_model(plan, sum(map(sum, layers))),
        workload=Workload(
            seq=plan.count("seq"),
            global_batch=plan.count("batch"),
            params_dtype=plan.text("params"),
            compute_dtype=plan.text("compute"),
            flash_attention=plan.flag("flash"),
            framework="mindformers-legacy",  # graph mode with the same optimizer sharding, as `suggest` prices it
        ),
        strategy=_strategy(plan, layers, full, selective),
        dialect="mindspore",
        memory_limit_bytes=parse_bytes(plan.text("memory"), f"{source}: PLAN['memory']"),
    )


class _Values:
    """Values of ``PLAN`` by kind."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values, self.source = values, source

    def refuse(self, key: str, legal: str) -> SpecError:
        """Error for the value of a key."""
        return SpecError(f"{self.source}: PLAN[{key!r}] is {self._values[key]!r}; legal: {legal}.")

    def get(self, key: str) -> Any:
        """Any value."""
        if key not in self._values:
            raise SpecError(f"{self.source}: PLAN has no {key!r}; write the script again with planner emit.")
        return self._values[key]

    def count(self, key: str, least: int = 1) -> int:
        """Whole number."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(key, f"whole numbers of at least {least}")
        return value

    def flag(self, key: str) -> bool:
        """True or False."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.refuse(key, "True, False")
        return value

    def text(self, key: str, *choices: str) -> str:
        """Text."""
        value = self.get(key)
        if not isinstance(value, str) or (choices and value not in choices):
            raise self.refuse(key, ", ".join(choices) or "a text")
        return value

    def listed(self, key: str, kind: type[Any]) -> list[Any]:
        """List of values of one kind."""
        value = self.get(key)
        if not isinstance(value, list) or not value or not all(type(item) is kind for item in value):
            raise self.refuse(key, "a list with one entry a layer")
        return value


def _dictionary(text: str, source: str) -> dict[str, Any]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SpecError(f"{source}, line {error.lineno or 1}: not valid Python: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError(f"{source}: not valid Python.") from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["PLAN"]:
            value = _value(node.value, source)
            if isinstance(value, dict) and all(isinstance(key, str) for key in value):
                return value
    raise SpecError(
        f"{source} has no dictionary PLAN; only scripts of planner emit --target mindspore are read. "
        "Name the YAML or launch script that it starts, if there is one."
    )


def _value(node: ast.expr, source: str) -> Any:
    """A literal, or lists joined and repeated as the planner writes them."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left, source), _value(node.right, source)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            joined = left + right
        elif isinstance(left, list) and type(right) is int and len(left) * right <= _MOST_ITEMS:
            joined = left * right
        else:
            raise _not_plain(node, source)
        if len(joined) > _MOST_ITEMS:
            raise _not_plain(node, source)
        return joined
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {
            _value(key, source): _value(value, source) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise _not_plain(node, source) from None


def _not_plain(node: ast.expr, source: str) -> SpecError:
    return SpecError(f"{source}, line {node.lineno}: PLAN holds more than plain values; write them out.")


def _model(plan: _Values, layers: int) -> Model:
    bias, norm = plan.flag("qkv_bias"), plan.flag("qk_norm")
    return Model(
        name=plan.source.rsplit("/", 1)[-1].removesuffix(".py"),
        family="qwen3" if norm else "qwen2" if bias else "llama",
        hidden=plan.count("hidden"),
        ffn=plan.count("ffn"),
        vocab=plan.count("vocab"),
        attention=Attention(
            heads=plan.count("heads"),
            kv_heads=plan.count("kv_heads"),
            head_dim=plan.count("head_dim"),
            v_head_dim=plan.count("head_dim"),
            qkv_bias=bias,
            qk_norm=norm,
        ),
        layer_kinds=(DENSE,) * layers,
        source=plan.source,
    )


def _layers(plan: _Values) -> tuple[Counts, tuple[int, ...], tuple[int, ...]]:
    """Layers of each chunk of each stage, and how many of a stage are recomputed whole and selectively."""
    pp, stages, kinds = plan.count("pp"), plan.listed("stage_of_layer", int), plan.listed("recompute_of_layer", str)
    if min(stages) < 0 or max(stages) >= pp:
        raise plan.refuse("stage_of_layer", f"stages 0 to {pp - 1}")
    if len(kinds) != len(stages) or not set(kinds) <= set(_RECOMPUTE):
        raise plan.refuse("recompute_of_layer", f"one of {_RECOMPUTE} for each of {len(stages)} layers")
    rows: list[list[int]] = []
    last = pp
    full, selective = [0] * pp, [0] * pp
    for stage, kind in zip(stages, kinds, strict=True):
        if stage < last:
            if rows and pp == 1:
                raise plan.refuse("stage_of_layer", "0")
            rows.append([0] * pp)
        rows[-1][stage] += 1
        full[stage] += kind == "full"
        selective[stage] += kind == "selective"
        last = stage
    return tuple(map(tuple, rows)), tuple(full), tuple(selective)


def _strategy(plan: _Values, layers: Counts, full: tuple[int, ...], selective: tuple[int, ...]) -> Strategy:
    dp, tp, pp = (plan.count(name) for name in ("dp", "tp", "pp"))
    if dp * tp * pp != plan.count("devices"):
        raise plan.refuse("devices", f"dp x tp x pp = {dp * tp * pp}")
    micro_batches, batch = plan.count("micro_batches"), plan.count("batch")
    if batch % (dp * micro_batches):
        raise plan.refuse("batch", f"multiples of dp x micro_batches = {dp * micro_batches}")
    if plan.count("rows") not in (dp, dp * tp):
        raise plan.refuse("rows", f"dp = {dp}, or dp x tp = {dp * tp} with sequence parallelism")
    zero, shard = plan.count("zero_level", 0), plan.count("shard_size", -1)
    gpipe = plan.text("scheduler", *_SCHEDULERS) == "gpipe"
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        vpp=len(layers),
        layers=layers,
        recompute_full=full,
        recompute_selective=selective,
        micro_batches=micro_batches,
        micro_batch_size=batch // (dp * micro_batches),
        sequence_parallel=tp > 1 and plan.count("rows") == dp * tp,
        zero_level=zero,
        optimizer_shard=(dp if shard == -1 else max(shard, 1)) if zero else 1,
        schedule="gpipe" if gpipe else "interleaved" if len(layers) > 1 else "1f1b",
    )
