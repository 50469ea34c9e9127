"""Child program of msrun: times collectives, and matmuls that all ranks do at once; rank 0 writes the results.

All ranks read the same job (see `operators`) and take the same decisions: whatever depends on a clock or on an error of
one rank is agreed upon by a sum over ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import operators  # isort: skip  # binds the process before MindSpore starts its threads
import stopwatch  # isort: skip
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init, release

#: Copies in the smaller and in the larger graph.
FEW, MANY = 1, 3
#: Bytes above which two single calls are timed instead: copies would not fit, and the call's own cost is nothing.
SINGLE_BYTES = 2**25
WORLD = "hccl_world_group"


class Repeated(nn.Cell):  # type: ignore[misc]
    """A collective so many times in one graph, each on an input of its own."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def construct(self, *inputs: Tensor) -> Any:
        out: Any = ()
        for x in inputs:
            out = (*out, self.op(x))
        return out


class Bench:
    """State of one rank."""

    def __init__(self, job: dict[str, Any]) -> None:
        init()
        self.job, self.rank, self.ranks = job, get_rank(), get_group_size()
        self.total = ops.AllReduce()
        self.groups: dict[tuple[int, ...], str] = {}
        self.deadline = max(job["ends"], time.monotonic() + job["least"])
        with open(os.path.join(job["folder"], f"rank_{self.rank}.pid"), "w", encoding="ascii") as file:  # noqa: PTH118,PTH123
            file.write(str(os.getpid()))

    def agree(self, value: float) -> float:
        """The number that rank 0 has."""
        own = value if self.rank == 0 else 0.0
        return float(self.total(Tensor([own], ms.float32)).asnumpy()[0])

    def failures(self, failed: bool) -> int:
        """How many ranks failed."""
        return round(float(self.total(Tensor([float(failed)], ms.float32)).asnumpy()[0]))

    def barrier(self) -> None:
        """All ranks are here."""
        self.agree(0.0)

    def report(self, line: dict[str, Any]) -> None:
        """Rank 0 writes."""
        if self.rank == 0:
            operators.report(self.job, line)

    def run(self) -> None:
        """All tasks, until the deadline of rank 0."""
        self.report({"facts": operators.facts(self.job["device"])})
        wanted = set(self.job["wanted"])
        for task in self.job["tasks"]:
            late = time.monotonic() > self.deadline
            order = self.agree(2.0 if late else float(task["id"] in wanted))
            if order == 2.0:
                break
            if order == 0.0:
                continue
            self.report({"id": task["id"], "begun": True})
            begin = time.monotonic()
            found = self.timed(task)
            found["seconds"] = time.monotonic() - begin
            self.report({"id": task["id"], **found})
        self.barrier()

    def timed(self, task: dict[str, Any]) -> dict[str, Any]:
        """Times of a task, or why it cannot be timed."""
        members, problem, calls = self.members(task), "", None
        group = self.group(members)
        try:
            if self.rank in members:
                calls = self.calls(task, group)
                for call in calls:
                    call()
        except Exception as error:
            problem = operators.message(error)
        if self.failures(bool(problem)):
            return {"unsupported": problem or "another rank failed"}
        return self.measured(task, calls)

    def members(self, task: dict[str, Any]) -> tuple[int, ...]:
        """Ranks of the task's group: consecutive in a node, the same number in each node it spans."""
        size, nodes = task["sizes"].get("ranks", self.ranks), task["sizes"].get("nodes", 1)
        if "m" in task["sizes"]:
            return tuple(range(self.ranks))
        per_node, inside = self.ranks // self.job["nodes"], size // nodes
        return tuple(node * per_node + place for node in range(nodes) for place in range(inside))

    def group(self, members: tuple[int, ...]) -> str:
        """Communicator of these ranks."""
        if len(members) == self.ranks:
            return WORLD
        if members not in self.groups:
            name = "group_" + "_".join(map(str, members))
            if self.rank in members:
                create_group(name, list(members))
            self.groups[members] = name
        return self.groups[members]

    def calls(self, task: dict[str, Any], group: str) -> tuple[stopwatch.Call, stopwatch.Call]:
        """Calls with few and with many copies."""
        if task["kind"] == "matmul":
            ms.set_context(mode=ms.GRAPH_MODE)
            one, many, _ = operators.device_calls(task)
            return one, many
        size, ranks = task["sizes"]["bytes"], task["sizes"]["ranks"]
        if task["op"] == "sendrecv":
            ms.set_context(mode=ms.PYNATIVE_MODE)
            call = self.transfer(size, group)
            return (lambda: None), call
        ms.set_context(mode=ms.GRAPH_MODE)
        op, share = OPERATIONS[task["op"]](group), {"allgather": ranks}.get(task["op"], 1)
        elements = max(ranks, size // 4 // ranks * ranks) // share
        net = Repeated(op)
        inputs = [Tensor(np.ones((elements, 1), np.float32)) for _ in range(FEW if size > SINGLE_BYTES else MANY)]
        few = (lambda: None) if size > SINGLE_BYTES else operators.waiting(lambda: net(*inputs[:FEW]))
        return few, operators.waiting(lambda: net(*inputs))

    def transfer(self, size: int, group: str) -> stopwatch.Call:
        """One message from the first rank of the group to the second."""
        value = Tensor(np.ones(size // 4, np.float32))
        if self.rank == 0:
            send = ops.Send(sr_tag=0, dest_rank=1, group=group)
            return operators.waiting(lambda: send(value))
        receive = ops.Receive(sr_tag=0, src_rank=0, shape=[size // 4], dtype=ms.float32, group=group)
        return operators.waiting(lambda: receive(value))

    def measured(self, task: dict[str, Any], calls: tuple[stopwatch.Call, stopwatch.Call] | None) -> dict[str, Any]:
        """Alternating repeats, as many as rank 0's budget allows, all ranks starting together."""
        few, many = calls or (_nothing, _nothing)
        copies = operators.COPIES if task["kind"] == "matmul" else MANY
        if task["kind"] == "collective" and (task["op"] == "sendrecv" or task["sizes"]["bytes"] > SINGLE_BYTES):
            copies = 2
        once = self.agree(self.paired(few, many)[1])
        repeats = int(min(max(5, self.job["budget_s"] / max(once, 1e-6) / 1.5), 40))
        meter = stopwatch.LoadMeter()
        pairs = [self.paired(few, many) for _ in range(repeats)]
        found: dict[str, Any] = stopwatch.slope_of([a for a, _ in pairs], [b for _, b in pairs], copies)
        found["load"] = meter.read()
        return found

    def paired(self, few: stopwatch.Call, many: stopwatch.Call) -> tuple[float, float]:
        """Seconds of both calls, each after a barrier."""
        out = []
        for call in (few, many):
            self.barrier()
            begin = time.perf_counter()
            call()
            out.append(time.perf_counter() - begin)
        return max(out[0], 1e-9), max(out[1], 1e-9)


def _nothing() -> None:
    """What ranks outside a group do meanwhile."""


OPERATIONS: dict[str, Callable[[str], Any]] = {
    "allreduce": lambda group: ops.AllReduce(group=group),
    "allgather": lambda group: ops.AllGather(group=group),
    "reducescatter": lambda group: ops.ReduceScatter(group=group),
    "alltoall": lambda group: ops.AlltoAll(split_count=get_group_size(group), split_dim=0, concat_dim=0, group=group),
    "broadcast": lambda group: Sender(group),
}


class Sender(nn.Cell):  # type: ignore[misc]
    """Broadcast from the first rank, one tensor in, one out."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.broadcast = ops.Broadcast(0, group=group)

    def construct(self, x: Tensor) -> Tensor:
        return self.broadcast((x,))[0]


def main() -> None:
    """Run the job named by the only argument."""
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        job = json.load(file)
    operators.end_with_parent()
    operators.go_first()
    operators.use_device(job["device"])
    bench = Bench(job)
    bench.run()
    bench.report({"done": True})
    release()


if __name__ == "__main__":
    main()
