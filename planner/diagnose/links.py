"""Findings about communication: what nothing hides, which link is slow, which packets are small."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final

from planner.diagnose.case import Case
from planner.diagnose.records import Finding
from planner.diagnose.thresholds import EXPOSED, EXPOSED_FINE, EXPOSED_KIND, LINK, PACKETS

#: What to try first, by kind of group.
_ADVICE: Final = {
    "dp": "overlap gradients and parameters with the passes (--overlap-grad-reduce, --overlap-param-gather; MindSpore: "
    "communication fusion, parallel optimizer with overlap), or accumulate more micro-batches",
    "tp": "fused or interleaved communication (MC2, fine-grain interleaving), sequence parallel, or a smaller tp",
    "ep": "overlap the all-to-all with computation, keep expert groups inside a node, or a smaller ep",
    "cp": "overlap the ring with attention, or a smaller cp",
    "pp": "send and receive beside computation (batch-p2p overlap), or fewer chunks a stage",
    "embd": "untie the embedding, or overlap its all-reduce with the last backward passes",
}
#: Samples from which a slow one may be called so.
_LEAST_PEERS: Final = 3


def link_findings(case: Case) -> Iterator[Finding]:
    """Exposed communication by kind of group, all of it, slow links, small packets."""
    yield from _kinds(case)
    yield from _all(case)
    yield from _slow_links(case)
    yield from _packets(case)


def _kinds(case: Case) -> Iterator[Finding]:
    """Transfers of each kind of group that computation does not hide, on the rank that sets the pace."""
    pace = case.pace
    if pace is None or pace.rank not in case.operators:
        return
    ops, steps = case.operators[pace.rank]
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in ops:
        seconds[one.kind][0] += one.moving_s / steps
        seconds[one.kind][1] += one.op.elapse_s / steps
    whole = pace.exposed_s + pace.bubble_s + pace.overlapped_s
    bare = 1.0 - pace.overlapped_s / whole if whole > 0 else 1.0
    for kind, (moving, elapsed) in sorted(seconds.items()):
        number = bare * elapsed / pace.step_s
        if kind in ("pp", "") or number <= EXPOSED_KIND.value or bare * moving < 0.5 * EXPOSED_KIND.value * pace.step_s:
            continue
        hidden = "none of it hidden" if bare > 0.99 else f"{1 - bare:.0%} of all communication hidden"  # noqa: PLR2004
        yield Finding(
            kind=f"exposed {kind} communication",
            text=f"rank {pace.rank}: {elapsed * 1e3:.3g} ms in collectives of {kind} groups, {moving * 1e3:.3g} ms of "
            f"it moving data; {hidden}",
            number=number, threshold=EXPOSED_KIND, gain_s=min(bare * moving, pace.compute_s),
            advice=_ADVICE.get(kind, "hide it behind computation, or send less"),
            ranks=() if pace.rank is None else (pace.rank,),
        )  # fmt: skip


def _all(case: Case) -> Iterator[Finding]:
    """A step that is mostly communication."""
    pace = case.pace
    if pace is None or pace.share("exposed") <= EXPOSED.value:
        return
    share = pace.share("exposed")
    yield Finding(
        kind="communication-bound",
        text=f"rank {pace.rank}: exposed communication is {share:.0%} of the step, computation "
        f"{pace.share('compute'):.1%}",
        number=share, threshold=EXPOSED, gain_s=pace.exposed_s - EXPOSED_FINE.value * pace.step_s,
        advice="more computation a step and rank: a larger batch a device or more accumulation, fewer ranks, then "
        "overlap",
        ranks=() if pace.rank is None else (pace.rank,),
    )  # fmt: skip


def _slow_links(case: Case) -> Iterator[Finding]:
    """Operators whose link is slower than that of equal operators on other ranks."""
    peers: dict[tuple[str, str, str, int], list[tuple[float, int, float]]] = defaultdict(list)
    for rank, (ops, steps) in case.operators.items():
        for one in ops:
            op = one.op
            if op.link_s > 0 and op.size_bytes >= 2**20 and rank is not None:
                key = op.op, op.link, one.kind, round(op.size_bytes / 2**20)
                peers[key].append((op.bandwidth_bytes_per_s, rank, op.link_s / steps))
    slow: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for (_, link, _, _), found in peers.items():
        if len({rank for _, rank, _ in found}) < _LEAST_PEERS:
            continue
        usual = median(rate for rate, _, _ in found)
        for rate, rank, seconds in found:
            if rate < LINK.value * usual:
                worst = slow[rank, link]
                worst[0] += seconds * (1.0 - rate / usual)
                worst[1:] = min(worst[1] or rate, rate), usual
    for (rank, link), (gain, rate, usual) in sorted(slow.items()):
        yield Finding(
            kind="slow link",
            text=f"rank {rank}: {link} moves {rate / 1e9:.3g} GB/s where its equals move {usual / 1e9:.3g}",
            number=rate / usual, threshold=LINK, gain_s=gain, ranks=(rank,),
            advice="check the port, cable and retransmissions of this link (hccn_tool -link_stat -g, -stat -g)",
        )  # fmt: skip


def _packets(case: Case) -> Iterator[Finding]:
    """Transfers in packets too small for their link."""
    pace = case.pace
    if pace is None or pace.rank not in case.operators:
        return
    ops, steps = case.operators[pace.rank]
    moved = [one.op for one in ops if one.op.link_s > 0 and one.op.large_packets_frac == one.op.large_packets_frac]
    total = sum(op.link_s for op in moved)
    best: dict[str, float] = defaultdict(float)
    for op in moved:
        if op.large_packets_frac > 1.0 - PACKETS.value:
            best[op.link] = max(best[op.link], op.bandwidth_bytes_per_s)
    small = [op for op in moved if op.large_packets_frac < PACKETS.value]
    share = sum(op.link_s for op in small) / total if total > 0 else 0.0
    gain = sum(op.link_s - op.size_bytes / best[op.link] for op in small if best[op.link] > 0) / steps
    if share > PACKETS.value:
        yield Finding(
            kind="small packets",
            text=f"rank {pace.rank}: {share:.0%} of the transfer time is in {len(small) // steps} operators with small "
            "packets",
            number=share, threshold=PACKETS, gain_s=gain if gain > 0 else float("nan"),
            advice="fuse collectives into larger ones (communication fusion, larger gradient buckets)",
            ranks=() if pace.rank is None else (pace.rank,),
        )  # fmt: skip
