"""A hardware profile of a device that no shipped profile knows, from what was measured on it.

Rates are the best that was reached, so a calibration's shares of them are at most 1.  What a machine alone cannot show
(links between nodes, when one node was measured) is taken from inside the node, and the profile says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from planner.errors import CalibrationError
from planner.measure.raw import Facts
from planner.observe.points import Point

#: Share of the memory for the framework's pool: MindFormers' advice for 64 GiB cards is 58.
USABLE: Final = 0.9
_AS_MEASURED: Final = ("TFLOP/s", "not measured: as the type that was", "derived")


def profile_text(points: Sequence[Point], facts: Facts) -> str:
    """The profile as YAML.

    Raises
    ------
    CalibrationError
        Something that a profile must hold was not measured.
    """
    where = f"planner calibrate, MindSpore {facts.mindspore}"
    peaks = _peaks(points)
    stream = _best(points, ("add", "copy"), _stream)
    host = _best(points, ("host_to_device",), lambda p: p.sizes["bytes"] / p.best_s)
    inside = [p for p in points if p.kind == "collective" and p.sizes.get("nodes", 1) == 1]
    across = [p for p in points if p.kind == "collective" and p.sizes.get("nodes", 1) > 1]
    absent = {
        "a matmul": not peaks, "a stream": stream is None, "a host copy": host is None, "a collective": not inside,
        "the size of its memory": not facts.memory_bytes,
    }  # fmt: skip
    if any(absent.values()):
        missing = ", ".join(name for name, is_absent in absent.items() if is_absent)
        raise CalibrationError(
            f"no profile is named '{facts.device_name}', and none can be made without {missing}; name the nearest with "
            "--hardware, or measure longer and with --ranks 2 or more."
        )
    memory = facts.memory_bytes / 2**30
    lines = [
        f"# {facts.device_name}, as measured; check it against the data sheet.",
        f'name: "{facts.device_name}"',
        "vendor: ascend",
        f'description: "{facts.device_name}, measured by {where}"',
        "device:",
        *(_fact(f"peak_{kind}", rate / 1e12, "TFLOP/s", f"{where}: fastest matmul") for kind, rate in peaks.items()),
        *(() if "float16" in peaks else (_fact("peak_float16", max(peaks.values()) / 1e12, *_AS_MEASURED),)),
        _fact("vector_float16", (stream or 0.0) / 6e12, "TFLOP/s", f"{where}: x + y, a FLOP for three 16-bit numbers"),
        _fact("memory", memory, "GiB", f"{where}: what the device says of itself"),
        _fact("memory_visible", memory, "GiB", f"{where}: what the device says of itself"),
        _fact("memory_usable", USABLE * memory, "GiB", "nine tenths of it", "derived"),
        _fact("memory_bandwidth", (stream or 0.0) / 1e9, "GB/s", f"{where}: fastest stream"),
        _fact("host_bandwidth", (host or 0.0) / 1e9, "GB/s", f"{where}: 16 MiB to the device"),
        "node:",
        "  fabric: switch",
        _fact("devices", max(p.sizes["ranks"] for p in inside), "devices", f"{where}: ranks of the largest group"),
        _fact("link", _link(inside) / 1e9, "GB/s", f"{where}: fastest collective, bytes of one rank"),
        _fact("latency", 1e6 * min(p.best_s for p in inside), "us", f"{where}: smallest message"),
        "network:",
    ]
    source = where if across else "not measured: as inside the node; measure with --hosts"
    network = across or inside
    lines += [
        _fact("port", _link(network) / 1e9, "GB/s", source, "measured" if across else "derived"),
        _fact("latency", 1e6 * min(p.best_s for p in network), "us", source, "measured" if across else "derived"),
    ]
    return "\n".join(lines) + "\n"


def _fact(key: str, value: float, unit: str, source: str, kind: str = "measured") -> str:
    return f'  {key}: {{value: {value:.6g}, unit: {unit}, kind: {kind}, source: "{source}"}}'


def _peaks(points: Sequence[Point]) -> dict[str, float]:
    """Fastest matmul by type [FLOP/s]; types that were not measured are left out."""
    rates: dict[str, float] = {}
    for p in points:
        if p.op == "matmul" and "ranks" not in p.sizes:
            rate = 2.0 * p.sizes["m"] * p.sizes["k"] * p.sizes["n"] / p.best_s
            rates[p.dtype] = max(rates.get(p.dtype, 0.0), rate)
    return {kind: rates[kind] for kind in ("bfloat16", "float16", "float32") if kind in rates}


def _stream(point: Point) -> float:
    tensors, width = (3 if point.op == "add" else 2), (4 if point.dtype == "float32" else 2)
    return tensors * width * point.sizes["elements"] / point.best_s


def _best(points: Sequence[Point], ops: tuple[str, ...], rate: Callable[[Point], float]) -> float | None:
    rates = [rate(p) for p in points if p.op in ops and p.mode == "graph"]
    return max(rates, default=None)


def _link(points: Sequence[Point]) -> float:
    """Bytes per second that a rank sends in the fastest collective; (p - 1)/p of the size, twice for an all-reduce."""
    return max(
        (2.0 if p.op == "allreduce" else 1.0) * p.sizes["bytes"] * (1.0 - 1.0 / p.sizes["ranks"]) / p.best_s
        for p in points
    )
