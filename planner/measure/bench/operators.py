"""Child program: times operations of one process and writes each result as a line of JSON as soon as it has it.

Run by ``planner.measure.run`` as ``python operators.py JOB.json``; see `stopwatch` for why it imports nothing of the
planner.  The job holds ``device``, ``results`` (file to append to), ``budget_s`` (a task), ``ends`` (reading of the
system's monotonic clock; at least ``least`` seconds from now) and ``tasks``, each with ``id``, ``kind``, ``op``,
``dtype``, ``mode`` and ``sizes``.  The first line written describes device and versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import stopwatch  # isort: skip

if os.environ.get("PLANNER_CORE_EACH"):  # before MindSpore starts its threads
    stopwatch.take_core(int(os.environ["MS_NODE_ID"]) if "MS_NODE_ID" in os.environ else None)

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import cells  # isort: skip

#: Copies of an operation in the larger graph, by operation; short ones need more to stand out of the call's cost.
COPIES = 5
MANY_COPIES = {"tiny": 101, "step": 2}


def main() -> None:
    """Run the job named by the only argument."""
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        job = json.load(file)
    end_with_parent()
    go_first()
    use_device(job["device"])
    report(job, {"facts": facts(job["device"])})
    deadline = max(job["ends"], time.monotonic() + job["least"])
    for task in job["tasks"]:
        if time.monotonic() > deadline:
            break
        report(job, {"id": task["id"], "begun": True})
        report(job, {"id": task["id"], **timed(task, job["budget_s"])})


def use_device(device: str) -> None:
    """Graph mode on the device; one throw-away operation, because the first of a process may fail or be slow."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device(device)
    try:
        (Tensor(np.ones(4, np.float32)) * 2.0).asnumpy()
    except SystemError as error:  # NumPy 2 beside a MindSpore that was built for NumPy 1
        print(f"first operation: {error}", flush=True)


def go_first() -> None:
    """Before other programs where the system allows it (an administrator): fewer points are marked as loaded."""
    with contextlib.suppress(OSError):
        os.nice(-10)
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("-10")  # Linux weighs sessions first, processes within them


def end_with_parent() -> None:
    """Ask Linux to end this process with the one that started it: msrun gives its workers sessions of their own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def facts(device: str) -> dict[str, Any]:
    """Device, versions and host."""
    import platform

    found = {"device_target": device, "device_name": "", "mindspore": ms.__version__, "host": platform.node()}
    found["python"], found["cores"] = platform.python_version(), len(os.sched_getaffinity(0))
    if device == "CPU":
        found["device_name"] = cpu_name()
        found["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return found
    readers: tuple[Callable[[], Any], ...] = (
        lambda: ms.hal.get_device_name(0),
        lambda: ms.get_context("ascend_soc_version"),
    )
    for read in readers:
        try:
            found["device_name"] = found["device_name"] or str(read())
        except Exception as error:  # an older MindSpore without the call
            print(f"device name: {error}", flush=True)
    try:
        found["memory_bytes"] = int(ms.hal.get_device_properties(0).total_memory)
    except Exception as error:  # an older MindSpore without the call
        print(f"device memory: {error}", flush=True)
    found["cann"] = os.environ.get("ASCEND_TOOLKIT_HOME", os.environ.get("ASCEND_HOME_PATH", ""))
    return found


def cpu_name() -> str:
    """Model name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "CPU"


def report(job: dict[str, Any], line: dict[str, Any]) -> None:
    """Append one line of JSON."""
    with open(job["results"], "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(line) + "\n")


def timed(task: dict[str, Any], budget_s: float) -> dict[str, Any]:
    """Times of a task, or why it cannot be timed."""
    graph = task["mode"] == "graph"
    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE)
    begin = time.monotonic()
    try:
        if task["kind"] == "host_copy":
            one, many, copies = host_copies(task)
        else:
            one, many, copies = device_calls(task)
        for _ in range(stopwatch.WARM_UP):
            one()
            many()
    except Exception as error:  # whatever an operator without a kernel raises
        return {"unsupported": message(error)}
    found: dict[str, Any] = stopwatch.slope(one, many, copies, budget_s=budget_s)
    found["seconds"] = time.monotonic() - begin
    return found


def message(error: BaseException) -> str:
    """First lines of a framework's message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def device_calls(task: dict[str, Any]) -> tuple[stopwatch.Call, stopwatch.Call, int]:
    """Calls with one copy and with several, each on inputs of its own, returning when the device is done."""
    copies = MANY_COPIES.get(task["op"], COPIES)
    if task["kind"] == "optimizer":
        return updates(task, 1), updates(task, copies), copies
    if task["op"] in ("tiny", "step"):
        return chained(task, 1), chained(task, copies), copies
    build = cells.OPERATIONS[task["op"]]
    cell, shapes = build(task["sizes"], task["dtype"])
    return copied(cell, shapes, task, 1), copied(cell, shapes, task, copies), copies


def copied(cell: nn.Cell, shapes: Sequence[Any], task: dict[str, Any], copies: int) -> stopwatch.Call:
    """A call of a graph with copies of a cell."""
    rng = np.random.default_rng(1)
    net = cells.Copies(cell, len(shapes))
    inputs = [tensor(shape, task["dtype"], rng) for _ in range(copies) for shape in shapes]
    return waiting(lambda: net(*inputs))


def tensor(shape: Any, dtype: str, rng: np.random.Generator) -> Tensor:
    """Random input; a shape may carry its own type and range: ``(shape, "int32", high)``."""
    if len(shape) == 3 and isinstance(shape[0], tuple):
        dims, kind, high = shape
        if kind == "int32":
            return Tensor(rng.integers(0, high, dims).astype(np.int32))
        return Tensor(rng.standard_normal(dims, np.float32)).astype(getattr(ms, kind))
    return Tensor(rng.standard_normal(shape, np.float32)).astype(getattr(ms, dtype))


def waiting(call: Callable[[], Any]) -> stopwatch.Call:
    """The call with a wait for the device behind it."""

    def run() -> None:
        call()
        ms.runtime.synchronize()

    return run


def chained(task: dict[str, Any], copies: int) -> stopwatch.Call:
    """Dependent operations of a few elements: what one costs beside its work, or what a call costs from the host."""
    rng = np.random.default_rng(1)
    net = cells.Chain(copies)
    if task["op"] == "tiny":
        values = [Tensor(rng.standard_normal(8, np.float32)) for _ in range(2)]
        return waiting(lambda: net(*values))
    single = cells.Chain(1)
    sample = np.ones((task["sizes"]["rows"], task["sizes"]["columns"]), np.float32)

    def steps() -> None:
        for _ in range(copies):
            single(Tensor(sample), Tensor(sample)).asnumpy()

    return steps


def updates(task: dict[str, Any], copies: int) -> stopwatch.Call:
    """A call of AdamW on that many parameters of the same size, with their gradients."""
    size = task["sizes"]["parameters"]
    rng = np.random.default_rng(1)
    owned = [
        Parameter(Tensor(rng.standard_normal(size, np.float32)), name=f"weight_{copies}_{i}") for i in range(copies)
    ]
    update = nn.AdamWeightDecay(owned, 1e-6, 0.9, 0.95, 1e-8, 0.1)
    gradients = tuple(Tensor(rng.standard_normal(size, np.float32)) for _ in owned)
    return waiting(lambda: update(gradients))


def host_copies(task: dict[str, Any]) -> tuple[stopwatch.Call, stopwatch.Call, int]:
    """Copies to the device or back, one and several in a row."""
    count = task["sizes"]["bytes"] // 4
    values = [np.ones(count, np.float32) for _ in range(COPIES)]
    tensors = [Tensor(value) for value in values]

    def to_device(number: int) -> stopwatch.Call:
        return waiting(lambda: [ops.add(Tensor(value), 0.0) for value in values[:number]])

    def to_host(number: int) -> stopwatch.Call:
        return lambda: [(made + 0.0).asnumpy() for made in tensors[:number]]

    start = to_device if task["op"] == "host_to_device" else to_host
    return start(1), start(COPIES), COPIES


if __name__ == "__main__":
    main()
