"""Constants of element-wise work, attention, loss, update and launches, each from the points that determine it.

The time model counts bytes of a group of operators and divides them by one vector rate; here a group's measured time
over that quotient becomes its ``..._slowdown``, and backward over forward its ``..._backward``.  Launches are counted
apart in the model, so those of a measured operation are taken off its time first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from planner.calibrate.shape_fit import ShapeFit, shape_of
from planner.cluster.records import Constant, Hardware
from planner.cost.time.compute import USUAL_HEAD
from planner.cost.time.setting import peak_flop_per_s
from planner.observe.points import Point

#: Fewest parameters of an update whose states do not stay in a cache from one step to the next.
STREAMED_PARAMETERS: Final = 2**20
#: Elements from which an addition moves its operands through memory.
STREAMED_ELEMENTS: Final = 2**20
#: Bytes of AdamW on float32 parameters: gradient read, two moments and the parameter read and written.
UPDATE_BYTES: Final = 28.0
#: Normal 90th percentile.
T90: Final = 1.2816

#: Scatter of a lone calm point, and the least of doubtful ones [log].
LONE: Final = 0.1
DOUBTFUL: Final = 0.3

#: Kernels of an operation as the benchmark's cell writes it.
KERNELS: Final[Mapping[str, int]] = {
    "norm": 7, "norm_backward": 21, "rms_norm": 2, "rms_norm_backward": 5, "rotary": 10, "rotary_backward": 20,
    "gate": 2, "gate_backward": 5, "swiglu": 1, "swiglu_backward": 2, "scores": 3, "scores_backward": 6,
    "cross_entropy": 16, "batched_matmul": 3,
}  # fmt: skip


def _norm_bytes(s: Mapping[str, int]) -> float:
    return 14.0 * s["rows"] * s["columns"]


def _rotary_bytes(s: Mapping[str, int]) -> float:
    return 8.0 * s["batch"] * s["seq"] * s["heads"] * s["head_dim"]


def _gate_bytes(s: Mapping[str, int]) -> float:
    return 6.0 * s["rows"] * s["columns"]


def _score_bytes(s: Mapping[str, int]) -> float:
    from planner.cost.time.compute import SCORE_BYTES

    return SCORE_BYTES * s["batch"] * s["heads"] * s["seq"] * s["seq"]


#: Group of the model, operations that measure it (a fused one first), and the bytes the model counts for their sizes.
GROUPS: Final[tuple[tuple[str, tuple[str, ...], Callable[[Mapping[str, int]], float]], ...]] = (
    ("norm", ("rms_norm", "norm"), _norm_bytes),
    ("rotary", ("rotary",), _rotary_bytes),
    ("activation", ("swiglu", "gate"), _gate_bytes),
    ("scores", ("scores",), _score_bytes),
)


def constant(points: Sequence[Point], values: Sequence[float]) -> Constant:
    """Median of several measurements of one constant, with the 80 % interval of a single one.

    Parameters
    ----------
    points : sequence of Point
        What each value was measured with.  Doubtful ones count only where there are no others, are then named in the
        source, and widen the interval by the load they ran beside.
    """
    calm = [value for value, point in zip(values, points, strict=True) if not point.mark]
    used = calm or list(values)
    logs = np.log(np.array(used))
    # a lone point says nothing of its scatter: 10 %, what runs on a calm machine differ by
    scatter = max(float(np.std(logs, ddof=1)) if len(used) > 1 else LONE, 0.02)
    if not calm:
        scatter = max(scatter, DOUBTFUL, *(point.load or 0.0 for point in points))
    centre, half = float(np.median(logs)), T90 * scatter
    source = f"{len(used)} point{'s' if len(used) > 1 else ''}" + ("" if calm else ", all doubtful")
    return Constant(
        value=math.exp(centre),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        kind="measured",
        source=source,
    )


def of(points: Sequence[Point], op: str, dtype: str = "") -> list[Point]:
    """Points of an operation, in graph mode or from a profile."""
    return [p for p in points if p.op == op and p.mode != "pynative" and dtype in ("", p.dtype)]


def launches(points: Sequence[Point], hardware: Hardware) -> dict[str, Constant]:
    """Gap between operators, host time of an operator launched alone, and a step's own time.

    The last only where the measured loop is the training loop: on the CPU, whose step is one call of a graph.
    """
    found = {}
    for key, mode, op in (("launch_s", "graph", "tiny"), ("host_launch_s", "pynative", "tiny")):
        used = [p for p in points if p.op == op and p.mode == mode]
        if used:
            found[key] = constant(used, [p.best_s for p in used])
    steps = of(points, "step")
    if steps and hardware.device.vendor == "cpu":
        found["step_fixed_s"] = constant(steps, [p.best_s for p in steps])
    return found


def streaming(points: Sequence[Point], hardware: Hardware) -> dict[str, Constant]:
    """Share of the memory bandwidth that streams reach: element-wise work with two inputs, and plain copies."""
    bandwidth = hardware.device.hbm_bytes_per_s
    adds = [p for p in of(points, "add") if p.sizes["elements"] >= STREAMED_ELEMENTS]
    copies = [p for p in of(points, "copy") if p.sizes["elements"] >= STREAMED_ELEMENTS]
    found = {}
    if adds:
        found["vector_efficiency"] = constant(adds, [_stream(p, 3) / bandwidth for p in adds])
    if copies or adds:
        used, tensors = (copies, 2) if copies else (adds, 3)
        found["hbm_efficiency"] = constant(used, [_stream(p, tensors) / bandwidth for p in used])
    return found


def _stream(point: Point, tensors: int) -> float:
    """Bytes per second of an operation over so many tensors."""
    width = 4 if point.dtype == "float32" else 2
    return tensors * width * point.sizes["elements"] / point.best_s


def groups(points: Sequence[Point], dtype: str, vector_bytes_per_s: float, launch_s: float) -> dict[str, Constant]:
    """Slow-down and backward ratio of each group of element-wise operators."""
    found = {}
    for group, ops, counted in GROUPS:
        op = next((op for op in ops if of(points, op, dtype)), None)
        if op is None:
            continue
        once = of(points, op, dtype)
        forward = {_key(p): _work(p, launch_s) for p in once}
        slow = [_work(p, launch_s) * vector_bytes_per_s / counted(p.sizes) for p in once]
        found[f"{group}_slowdown"] = constant(once, slow)
        both = [p for p in of(points, f"{op}_backward", dtype) if _key(p) in forward]
        if both:
            ratios = [max(_work(p, launch_s) / forward[_key(p)] - 1.0, 0.1) for p in both]
            found[f"{group}_backward"] = constant(both, ratios)
    return found


def _key(point: Point) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(point.sizes.items()))


def _work(point: Point, launch_s: float) -> float:
    """Time without launches; never less than half of it, where launches were measured slower than they are here."""
    return max(point.best_s - KERNELS.get(point.op, 1) * launch_s, 0.5 * point.best_s)


def loss(points: Sequence[Point], dtype: str, vector_bytes_per_s: float, launch_s: float) -> dict[str, Constant]:
    """Bytes per logit of loss and gradient together, at the vector rate."""
    used = of(points, "cross_entropy", dtype)
    values = [_work(p, launch_s) * vector_bytes_per_s / (p.sizes["rows"] * p.sizes["vocab"]) for p in used]
    return {"loss_bytes": constant(used, values)} if used else {}


def updates(points: Sequence[Point], hbm_bytes_per_s: float) -> dict[str, Constant]:
    """AdamW over its bytes at the streaming rate, of updates that no cache holds (else of the largest)."""
    found = of(points, "adamw")
    large = [p for p in found if p.sizes["parameters"] >= STREAMED_PARAMETERS]
    used = large or found[-1:]
    values = [p.best_s * hbm_bytes_per_s / (UPDATE_BYTES * p.sizes["parameters"]) for p in used]
    return {"optimizer_slowdown": constant(used, values)} if used else {}


def attention(points: Sequence[Point], dtype: str, hardware: Hardware, shapes: ShapeFit | None) -> dict[str, Constant]:
    """Flash attention's share of the peak and its backward; else batched products over the matmul law."""
    found: dict[str, Constant] = {}
    flash = of(points, "flash", dtype)
    if flash:
        peak = peak_flop_per_s(hardware, dtype)
        found["attention_efficiency"] = constant(flash, [_flash_flop(p) / p.best_s / peak for p in flash])
        once = {_key(p): p.best_s for p in flash}
        back = [p for p in of(points, "flash_backward", dtype) if _key(p) in once]
        ratios = [max(p.best_s / once[_key(p)] - 1.0, 0.1) for p in back]
        if ratios:
            found["flash_backward"] = constant(back, ratios)
    batched = of(points, "batched_matmul", dtype)
    if batched and shapes is not None:
        found["score_matmul"] = constant(batched, [p.best_s / _batched_law(p, shapes) for p in batched])
    return found


def _flash_flop(point: Point) -> float:
    """Causal FLOP of flash attention as heads of `USUAL_HEAD` columns would do it at the same speed."""
    s = point.sizes
    return 2.0 * s["batch"] * s["seq"] * s["seq"] * 0.5 * s["heads"] * 2.0 * min(float(s["head_dim"]), USUAL_HEAD)


def _batched_law(point: Point, shapes: ShapeFit) -> float:
    """What the time model takes for the two products of unfused attention [s]."""
    s, law = point.sizes, shapes.law
    flop = 4.0 * s["batch"] * s["heads"] * s["seq"] * s["seq"] * s["head_dim"]
    rows = min(s["batch"] * s["seq"] * s["heads"], s["seq"])
    shape = (1.0 + law.k0 / s["head_dim"]) * (1.0 + law.k0 / s["seq"]) * (1.0 + law.k0 / rows)
    return flop * shape / (law.peak_flop_per_s * law.efficiency)


def crowding(points: Sequence[Point], alone: Sequence[Point]) -> dict[str, Constant]:
    """Slow-down of a matmul by each further device of the node that does the same at the same time.

    Shapes that were also measured alone are compared with that time; below 0 counts as 0.  Other programs can only add
    to it: where every point ran beside a load, the least counts.
    """
    single = {shape_of(p): p.best_s for p in alone}
    pairs = [p for p in points if p.sizes["ranks"] > 1 and shape_of(p) in single]
    values = [(p.best_s / single[shape_of(p)] - 1.0) / (p.sizes["ranks"] - 1) for p in pairs]
    if not values:
        return {}
    calm = [value for value, p in zip(values, pairs, strict=True) if not p.mark]
    middle = max(0.0, float(np.median(calm)) if calm else min(values))
    low, high = max(0.0, min(*values, middle)), max(*values, middle)
    plural = "s" if len(values) > 1 else ""
    source = f"{len(values)} shape{plural} by {int(max(p.sizes['ranks'] for p in points))} ranks at once"
    return {"crowding": Constant(value=middle, low=low, high=high, kind="measured", source=source)}
