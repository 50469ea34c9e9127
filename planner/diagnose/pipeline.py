"""Findings about stages and ranks: who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean, median
from typing import Final

from planner.diagnose.case import Case
from planner.diagnose.records import Finding, RankTime
from planner.diagnose.thresholds import BUBBLE, SPREAD, STAGES
from planner.observe.records import KernelStat

#: An operator this much longer than the longest of its type elsewhere is one that only this stage has.
_ONE_OF_A_KIND: Final = 5.0


def pipeline_findings(case: Case) -> Iterator[Finding]:
    """Too few micro-batches, unequal stages, slow ranks."""
    yield from _micro_batches(case)
    yield from _unequal(case)
    yield from _slow_ranks(case)


def micro_batches(case: Case) -> tuple[int | None, str]:
    """Micro-batches of a step and where they come from.

    Without a plan they are counted on the first stage: a schedule without interleaving runs m + p - 1 fused
    ``batchSendRecv`` there (p - 1 sends, m - p + 1 exchanges, p - 1 receives), or m sends and m receives.
    """
    if case.plan is not None:
        return case.plan.strategy.micro_batches, "plan"
    for rank in case.by_stage().get(0, ()):
        ops, steps = case.operators.get(rank.rank, ((), 1))
        names = [one.op.name.lower() for one in ops if one.op.op == "sendrecv"]
        fused = sum("batchsendrecv" in name for name in names) // steps
        alone = sum("send" in name and "recv" not in name for name in names) // steps
        if fused and fused - case.stages + 1 > 0:
            return fused - case.stages + 1, f"{fused} exchanges of the first stage"
        if alone:
            return alone, f"{alone} sends of the first stage"
    return None, ""


def _micro_batches(case: Case) -> Iterator[Finding]:
    """Waiting that more micro-batches dilute: that of the rank that sets the pace."""
    pace, p = case.pace, case.stages
    if pace is None or p < 2:
        return
    most = max(case.ranks, key=lambda rank: rank.bubble_s)
    share = most.share("bubble")
    if share <= BUBBLE.value:
        return
    m, source = micro_batches(case)
    wanted = 9 * (p - 1)
    words = f"rank {most.rank} waits {_ms(most.bubble_s)} of {_ms(most.step_s)} for other stages ({share:.1%}"
    words += f", {_ms(most.pipeline_wait_s)} of it in point-to-point operators)"
    if m is None:
        gain = pace.bubble_s - BUBBLE.value * pace.step_s
        words += "; the number of micro-batches is not known"
    else:
        gain = pace.bubble_s * max(0.0, 1.0 - m / wanted)
        words += f"; m = {m} micro-batches ({source}) on p = {p} stages: (p-1)/(m+p-1) = {(p - 1) / (m + p - 1):.0%}"
    yield Finding(
        kind="too few micro-batches", text=words, number=share, threshold=BUBBLE, gain_s=max(gain, 0.0),
        ranks=() if most.rank is None else (most.rank,),
        advice=f"more micro-batches a step ({wanted} make the bubble 10 %): smaller micro-batches, fewer data-parallel "
        "ranks or a larger global batch; else interleave the stages or use fewer of them",
    )  # fmt: skip


def _unequal(case: Case) -> Iterator[Finding]:
    """Stages that compute longer than the mean one."""
    stages = {
        stage: mean(rank.compute_s for rank in ranks) for stage, ranks in case.by_stage().items() if stage is not None
    }
    if len(stages) < 2:
        return
    slow, quick = max(stages, key=stages.__getitem__), min(stages, key=stages.__getitem__)
    average = mean(stages.values())
    number = (stages[slow] - stages[quick]) / average
    if number <= STAGES.value:
        return
    why, advice = _reason(case, slow, quick)
    ratio = stages[slow] / stages[quick] if stages[quick] > 0 else float("inf")
    yield Finding(
        kind="unequal stages",
        text=f"stage {slow} computes {_ms(stages[slow])}, stage {quick} {_ms(stages[quick])}: {ratio:.3g} times{why}",
        number=number, threshold=STAGES, gain_s=stages[slow] - average, advice=advice,
        ranks=tuple(r.rank for r in case.by_stage()[slow] if r.rank is not None),
    )  # fmt: skip


def _reason(case: Case, slow: int, quick: int) -> tuple[str, str]:
    """What the slow stage has that the quick one has not."""
    heavy, light = _kernels(case, slow), _kernels(case, quick)
    excess = {op: total - light.get(op, (0.0, 0.0))[0] for op, (total, _) in heavy.items()}
    advice = f"move layers away from stage {slow} ('planner suggest' balances them)"
    if not excess:
        return "", advice
    op = max(excess, key=excess.__getitem__)
    longest, usual = heavy[op][1], light.get(op, (0.0, 0.0))[1]
    words = f"; most of it in {op}, {_ms(excess[op])} more"
    if "matmul" in op.lower() and longest > _ONE_OF_A_KIND * usual and slow == case.stages - 1:
        words += f", whose longest takes {_ms(longest)} against {_ms(usual)}: the vocabulary head on the last stage"
        advice = f"fewer layers on stage {slow}, which also has the head and the loss ('planner suggest' balances them)"
    elif any(word in op.lower() for word in ("grouped", "moe", "alltoall")):
        words += ": its MoE layers"
        advice = f"share out the MoE layers of stage {slow}, counting one as what it takes"
    elif slow == 0 and any(word in op.lower() for word in ("embedding", "gather")):
        words += ": the embedding on the first stage"
    return words, advice


def _kernels(case: Case, stage: int) -> dict[str, tuple[float, float]]:
    """Seconds and longest kernel of each type on the first profiled rank of a stage, communication left out [s]."""
    ranks = [rank.rank for rank in case.by_stage().get(stage, ())]
    found: dict[str, tuple[float, float]] = {}
    for kernel in case.observation.kernels:
        if kernel.rank == ranks[0] and kernel.core not in ("COMMUNICATION", "HCCL"):
            total, longest = found.get(kernel.op, (0.0, 0.0))
            found[kernel.op] = total + kernel.total_s, max(longest, _longest(kernel))
    return found


def _longest(kernel: KernelStat) -> float:
    return kernel.most_s if kernel.most_s == kernel.most_s else 0.0


def _slow_ranks(case: Case) -> Iterator[Finding]:
    """Ranks that compute longer than others of their stage, which do the same work; the waiting ones are not blamed."""
    if not case.stages_known:
        return
    for stage, ranks in case.by_stage().items():
        if len(ranks) < 2 or (slow := _slowest(ranks)) is None:
            continue
        usual = median(rank.compute_s for rank in ranks)
        spread = (slow.compute_s - min(r.compute_s for r in ranks)) / mean(r.compute_s for r in ranks)
        where = "" if stage is None else f" of stage {stage}"
        yield Finding(
            kind="slow rank",
            text=f"rank {slow.rank} computes {_ms(slow.compute_s)}, the median{where} {_ms(usual)}; "
            f"(max - min) / mean = {spread:.1%}; the others wait for it in their collectives",
            number=spread, threshold=SPREAD, gain_s=slow.compute_s - usual if len(ranks) > 2 else
            slow.compute_s - min(r.compute_s for r in ranks),
            advice="compare its clock, temperature and neighbours with the others' (npu-smi), then replace the card; "
            "if the data decide (packed samples, experts), balance them",
            ranks=() if slow.rank is None else (slow.rank,),
        )  # fmt: skip


def _slowest(ranks: list[RankTime]) -> RankTime | None:
    """The rank that computes longest, if it stands out."""
    slow = max(ranks, key=lambda rank: rank.compute_s)
    spread = slow.compute_s - min(rank.compute_s for rank in ranks)
    return slow if spread > SPREAD.value * mean(rank.compute_s for rank in ranks) else None


def _ms(seconds: float) -> str:
    """Milliseconds as a person writes them.

    >>> _ms(0.31307), _ms(0.0004)
    ('313 ms', '0.4 ms')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
