"""Findings about what feeds the device: the host, the data pipeline, and kernels that compute nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from statistics import mean
from typing import Final

from planner.diagnose.case import Case
from planner.diagnose.records import Finding
from planner.diagnose.thresholds import DATA, FREE, QUEUE, SPREAD, WORTH
from planner.observe.records import DataOperator, DataPipeline

#: Operators that only change a layout or copy.
_LAYOUT: Final = ("transdata", "transpose", "reshape", "reformat", "tensormove", "viewcopy")
_COMMUNICATION: Final = ("COMMUNICATION", "HCCL")
#: Difference of queue use in front of and behind an operator that makes it the slow one (MindSpore 2.9 data viewer).
_STEP_IN_QUEUES: Final = 0.5


def feeding_findings(case: Case) -> Iterator[Finding]:
    """Host-bound launch, data, layout conversion, routing imbalance."""
    yield from _host(case)
    yield from _data(case)
    yield from _layout(case)
    yield from _routing(case)


def _host(case: Case) -> Iterator[Finding]:
    """A device that waits for its next operator."""
    pace = case.pace
    if pace is None or pace.share("free") <= FREE.value:
        return
    shares = [rank.share("free") for rank in case.ranks]
    span = f"{min(shares):.0%} to {max(shares):.0%}" if max(shares) - min(shares) > 0.01 else f"{shares[0]:.0%}"  # noqa: PLR2004
    kernels = [k for k in case.observation.kernels if k.rank == pace.rank and k.core not in _COMMUNICATION]
    count = sum(k.count for k in kernels) // max(pace.steps, 1)
    words = f"; {count} kernels in {pace.step_s:.3g} s" if count else ""
    yield Finding(
        kind="host-bound launch", text=f"the device is free {span} of the step{words}", number=pace.share("free"),
        threshold=FREE, gain_s=pace.free_s - FREE.value * pace.step_s,
        advice="launch less or faster: graph mode with jit_level O2 (MindSpore), TASK_QUEUE_ENABLE=2 and CPU binding "
        "(torch_npu), fused operators, larger micro-batches",
        ranks=case.known_ranks(),
    )  # fmt: skip


def _data(case: Case) -> Iterator[Finding]:
    """A step that waits for its input."""
    for pipeline in case.observation.pipelines:
        waited, empty = pipeline.waited_frac, pipeline.empty_frac
        if waited is not None and waited > DATA.value:
            number, threshold, words = (
                waited,
                DATA,
                f"{pipeline.waited_s:.3g} of {pipeline.elapsed_s:.3g} s wait for data",
            )
        elif waited is None and empty is not None and empty > QUEUE.value:
            number, threshold, words = empty, QUEUE, f"{empty:.0%} of {pipeline.batches} batches found the queue empty"
        else:
            continue
        if pipeline.queue_mean is not None:
            words += f", queue {pipeline.queue_mean:.2g} of {pipeline.queue_length} deep"
        batch_s = pipeline.elapsed_s / pipeline.batches if pipeline.elapsed_s and pipeline.batches else math.nan
        slow = limiting(pipeline)
        yield Finding(
            kind="data-bound input", text=words + ("" if slow is None else f"; {slow.op} limits"), number=number,
            threshold=threshold, gain_s=waited * batch_s if waited is not None else math.nan,
            advice=_data_advice(pipeline, slow), ranks=() if pipeline.rank is None else (pipeline.rank,),
        )  # fmt: skip
    pace = case.pace
    if not case.observation.pipelines and pace is not None and pace.share("data") > DATA.value:
        yield Finding(
            kind="data-bound input", number=pace.share("data"), threshold=DATA, gain_s=pace.data_s,
            text=f"{pace.share('data'):.0%} of the step passes before its first device operator: host or data",
            advice="prefetch deeper and with more workers (50-75 % of the CPU cores); profile the data pipeline "
            "(data_process) to see which of the two it is",
            ranks=() if pace.rank is None else (pace.rank,),
        )  # fmt: skip


def limiting(pipeline: DataPipeline) -> DataOperator | None:
    """The operator behind a full queue and in front of an empty one; the source when its own queue is half empty."""
    use = {
        op.id: op.queue_mean / op.queue_length
        for op in pipeline.operators
        if op.queue_mean is not None and op.queue_length
    }
    drops = {}
    for op in pipeline.operators:
        before = [use[child] for child in op.children if child in use]
        behind = use.get(op.id, 0.0)
        if before and min(before) - behind > _STEP_IN_QUEUES:
            drops[op.id] = min(before) - behind
        elif not op.children and op.id in use and use[op.id] <= _STEP_IN_QUEUES:
            drops[op.id] = _STEP_IN_QUEUES
    slow = max(drops, key=drops.__getitem__, default=None)
    return next((op for op in pipeline.operators if op.id == slow), None)


def workers(pipeline: DataPipeline, slow: DataOperator) -> int | None:
    """Workers with which the limiting operator keeps up: its time a batch over the trainer's."""
    if not pipeline.elapsed_s or pipeline.waited_s is None or pipeline.waited_s >= pipeline.elapsed_s:
        return None
    return math.ceil(slow.workers * pipeline.elapsed_s / (pipeline.elapsed_s - pipeline.waited_s))


def _data_advice(pipeline: DataPipeline, slow: DataOperator | None) -> str:
    if slow is None:
        return (
            "more workers (50-75 % of the CPU cores), a deeper prefetch, or prepared data; full_batch False reads less"
        )
    if not slow.children:
        return (
            f"{slow.op} reads too slowly: faster storage, prepared data, or full_batch False (each card reads its part)"
        )
    wanted = workers(pipeline, slow)
    more = f"num_parallel_workers {slow.workers} -> {wanted}" if wanted else "more num_parallel_workers"
    return f"{slow.op}: {more} (at most 75 % of the CPU cores), or do its work before training"


def _layout(case: Case) -> Iterator[Finding]:
    """Kernels that only change a layout."""
    pace = case.pace
    rank = pace.rank if pace is not None else next((k.rank for k in case.observation.kernels), None)
    mine = [k for k in case.observation.kernels if k.rank == rank and k.core not in _COMMUNICATION]
    total = sum(k.total_s for k in mine)
    moving = [k for k in mine if k.op.lower().startswith(_LAYOUT)]
    share = sum(k.total_s for k in moving) / total if total > 0 else 0.0
    if share > SPREAD.value:
        ops = ", ".join(dict.fromkeys(k.op for k in sorted(moving, key=lambda k: -k.total_s)[:3]))
        compute = pace.compute_s if pace is not None else math.nan
        yield Finding(
            kind="layout conversion", text=f"{share:.0%} of the kernel time only changes layouts ({ops})", number=share,
            threshold=WORTH, gain_s=share * compute, ranks=() if rank is None else (rank,),
            advice="keep one layout through the block: fewer Transpose and Reshape, fused operators that take it",
        )  # fmt: skip


def _routing(case: Case) -> Iterator[Finding]:
    """Expert kernels that take some ranks longer than others."""
    total: dict[int, float] = defaultdict(float)
    steps = {rank.rank: rank.steps for rank in case.ranks}
    stage = {rank.rank: rank.stage for rank in case.ranks}
    for kernel in case.observation.kernels:
        if "groupedmatmul" in kernel.op.lower() and kernel.rank in steps:
            total[kernel.rank] += kernel.total_s / steps[kernel.rank]  # type: ignore[index]
    for one in sorted({stage[rank] for rank in total}, key=str):
        mine = {rank: seconds for rank, seconds in total.items() if stage[rank] == one}
        average = mean(mine.values())
        full = max(mine, key=mine.__getitem__)
        number = (mine[full] - min(mine.values())) / average
        if len(mine) > 1 and number > SPREAD.value:
            yield Finding(
                kind="routing imbalance", number=number, threshold=SPREAD, gain_s=mine[full] - average, ranks=(full,),
                text=f"experts of rank {full} take {mine[full] * 1e3:.3g} ms, the mean {average * 1e3:.3g} ms: "
                f"{mine[full] / average:.2f} times",
                advice="raise the load-balancing loss, balance by bias, or limit tokens an expert; check hot experts",
            )  # fmt: skip
