"""The ``measured`` section of a calibration file: tables of micro-benchmarks, checked and made records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from planner.cluster.algorithms import OPS
from planner.cluster.tables import Measured, ShapeTable, SizeTable
from planner.errors import CalibrationError

_SECTION: Final = ("dtype", "width", "noise", "matmul", "matmul_backward", "collectives")
_COLLECTIVE: Final = ("op", "ranks", "nodes", "bytes", "seconds")
_ROW: Final = "[m, k, n, log of measured over law]"

Fail = Callable[[str], NoReturn]


def tables_from(data: Any, fail: Fail) -> Measured:
    """Tables of a parsed section.

    Parameters
    ----------
    data : object
        What the YAML parser returned.
    fail : callable
        Raises the complaint it is given, with the file's name before it.
    """
    section = _mapping(data, "measured", _SECTION, fail)
    dtype = section.get("dtype", "")
    if not isinstance(dtype, str):
        fail(f"'measured.dtype' is {dtype!r}; write a data type such as bfloat16.")
    collectives = section.get("collectives", [])
    if not isinstance(collectives, list):
        fail("'measured.collectives' must be a list.")
    try:
        return Measured(
            dtype=dtype,
            matmul=_shapes(section, "matmul", fail),
            matmul_backward=_shapes(section, "matmul_backward", fail),
            collectives=tuple(_sizes(entry, i, fail) for i, entry in enumerate(collectives)),
        )
    except CalibrationError as error:
        fail(f"'measured': {error}")


def tables_to_dict(measured: Measured) -> dict[str, Any]:
    """The section of `tables_from`."""
    section: dict[str, Any] = {"dtype": measured.dtype}
    for key in ("matmul", "matmul_backward"):
        table: ShapeTable | None = getattr(measured, key)
        if table is not None:
            section |= {"width": table.width, "noise": table.noise}
            section[key] = [[*shape, ratio] for shape, ratio in zip(table.shapes, table.log_ratio, strict=True)]
    section["collectives"] = [
        {
            "op": table.op,
            "ranks": table.ranks,
            "nodes": table.nodes,
            "bytes": list(table.size_bytes),
            "seconds": list(table.seconds),
        }
        for table in measured.collectives
    ]
    return section


def _shapes(section: Mapping[str, Any], key: str, fail: Fail) -> ShapeTable | None:
    rows = section.get(key)
    if rows is None:
        return None
    if not isinstance(rows, list) or not rows:
        fail(f"'measured.{key}' must be a list of rows {_ROW}.")
    table = [_numbers(row, f"measured.{key}[{i}]", _ROW, fail, length=4) for i, row in enumerate(rows)]
    width, noise = (_number(section.get(name), f"measured.{name}", fail) for name in ("width", "noise"))
    return ShapeTable(
        shapes=tuple((m, k, n) for m, k, n, _ in table),
        log_ratio=tuple(row[3] for row in table),
        width=width,
        noise=noise,
    )


def _sizes(entry: Any, place: int, fail: Fail) -> SizeTable:
    path = f"measured.collectives[{place}]"
    found = _mapping(entry, path, _COLLECTIVE, fail)
    if found.get("op") not in OPS:
        fail(f"'{path}.op' is {found.get('op')!r}; legal: {', '.join(OPS)}.")
    ranks, nodes = (_number(found.get(name), f"{path}.{name}", fail) for name in ("ranks", "nodes"))
    if ranks != int(ranks) or nodes != int(nodes) or not 1 <= nodes <= ranks:
        fail(f"'{path}' has {ranks:g} ranks on {nodes:g} nodes; legal: whole numbers, at least a rank on each node.")
    size, seconds = (_numbers(found.get(name), f"{path}.{name}", "[...]", fail) for name in ("bytes", "seconds"))
    return SizeTable(op=found["op"], ranks=int(ranks), nodes=int(nodes), size_bytes=size, seconds=seconds)


def _mapping(value: Any, path: str, legal: tuple[str, ...], fail: Fail) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        fail(f"'{path}' must be a mapping.")
    for key in value:
        if key not in legal:
            fail(f"unknown key '{path}.{key}'; legal: {', '.join(legal)}.")
    return value


def _numbers(value: Any, path: str, form: str, fail: Fail, length: int | None = None) -> tuple[float, ...]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        fail(f"'{path}' must be a list of numbers {form}.")
    return tuple(_number(each, path, fail) for each in value)


def _number(value: Any, path: str, fail: Fail) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        fail(f"'{path}' holds {value!r}; it must be a finite number.")
    return float(value)
