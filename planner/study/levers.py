"""What else could be switched on for a plan: gains the model knows, and published ones with their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from planner.cost.memory.peak import least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.setting import default_execution
from planner.search.objective import estimated
from planner.study.jobs import Job, Outcome, changed, judge
from planner.timeline.estimate import evaluate

Kind = Literal["predicted", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One thing that could be switched on.

    Attributes
    ----------
    what : str
        In words.
    kind : {"predicted", "published"}
        The gain is this model's for this plan, or somebody's for another job.
    low, high : float or None
        Gain in speed as a share, e.g. 0.05; equal where predicted.  None: it does not fit, or no figure is published.
    memory_bytes : float or None
        Change of the heaviest stage [bytes]; None where not known.
    source : str
        Of a published gain, with the job it was measured on.
    note : str
        Why it cannot be used, or what it cannot be combined with.
    """

    what: str
    kind: Kind
    low: float | None
    high: float | None
    memory_bytes: float | None = None
    source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    what: str
    low: float | None
    high: float | None
    source: str
    applies: Callable[[Job], bool]
    note: str = ""


def _moe(job: Job) -> bool:
    return job.request.model.moe is not None


def _eager(job: Job) -> bool:
    return not job.request.workload.runs_on.graph


def _mindspeed_like(job: Job) -> bool:
    """PyTorch on Ascend."""
    facts = job.request.workload.runs_on
    return facts.ascend and not facts.checkpoint_monitor


#: Gains that others measured on Ascend; MindSpeed's pages are docs/zh/features of Ascend/MindSpeed.
PUBLISHED: Final = (
    _Published(
        what="fused SwiGLU",
        low=0.047,
        high=0.047,
        source="Llama-2-7B, MindSpeed swiglu.md (memory -16.6 %)",
        applies=_mindspeed_like,
    ),
    _Published(
        what="fused RMSNorm",
        low=0.027,
        high=0.027,
        source="Llama-2-7B, MindSpeed rms_norm.md (memory -12 %)",
        applies=_mindspeed_like,
    ),
    _Published(
        what="fused RoPE",
        low=0.01,
        high=0.01,
        source="Llama-2-7B, MindSpeed rotary-embedding.md",
        applies=_mindspeed_like,
    ),
    _Published(
        what="matmul-add fusion",
        low=0.02,
        high=0.02,
        source="Llama-2-7B, MindSpeed npu_matmul_add.md",
        applies=_mindspeed_like,
    ),
    _Published(
        what="parameter gather beside the forward pass",
        low=0.034,
        high=0.034,
        source="Llama-2-70B, MindSpeed async-ddp-param-gather.md",
        applies=lambda job: _mindspeed_like(job) and job.strategy.optimizer_shard > 1,
        note="needs the distributed optimizer",
    ),
    _Published(
        what="grouped matmul of experts",
        low=-0.053,
        high=0.441,
        source="Grok and Mixtral 8x7B, MindSpeed megatron-moe-gmm.md",
        applies=lambda job: _mindspeed_like(job) and _moe(job),
        note="negative for few, wide experts",
    ),
    _Published(
        what="all-to-all beside the experts",
        low=0.10,
        high=None,
        source="dropless MoE, MindSpeed megatron-moe-alltoall-overlap-comm.md",
        applies=lambda job: _mindspeed_like(job) and job.strategy.ep > 1,
        note="not with the all-gather dispatcher",
    ),
    _Published(
        what="all-gather dispatcher",
        low=0.10,
        high=0.10,
        source="DeepSeek-V2 class, MindSpeed megatron-moe-allgather-dispatcher.md",
        applies=lambda job: _mindspeed_like(job) and job.strategy.ep > 1,
        note="not with the all-to-all overlap",
    ),
    _Published(
        what="SDC detection",
        low=-0.02,
        high=0.0,
        source="Llama-2-7B, MindSpore tutorial debug/sdc.md",
        applies=lambda job: not _eager(job),
        note="a safeguard, not a gain",
    ),
    _Published(
        what="graph kernel fusion",
        low=None,
        high=None,
        source="no published figure for a whole step",
        applies=lambda job: not _eager(job),
        note="recompute can break its fusions",
    ),
    _Published(
        what="full_batch False (data read by the ranks that need it)",
        low=None,
        high=None,
        source="part of six levers that gave 1.7x on 1024 cards: MindSpore performance_optimization.md",
        applies=lambda job: not _eager(job) and job.strategy.dp > 1,
        note="changes the data pipeline, not the step",
    ),
)


def levers(job: Job) -> tuple[Outcome, tuple[Lever, ...]]:
    """The plan as it is, then levers: predicted ones with the largest gain first, published ones behind.

    Levers do not add up; `planner compare` says by how much.
    """
    base = judge(job)
    found = [_predicted(base, what, other) for what, other in _changes(job)]
    found += _switched(base)
    found.sort(key=lambda lever: -(lever.low if lever.low is not None else -np.inf))
    published = (
        Lever(what=each.what, kind="published", low=each.low, high=each.high, source=each.source, note=each.note)
        for each in PUBLISHED
        if each.applies(job)
    )
    return base, (*found, *published)


def _changes(job: Job) -> Iterator[tuple[str, Job]]:
    """Single changes of the strategy or the kernels; what is on already is left out."""
    s, request, facts = job.strategy, job.request, job.request.workload.runs_on
    layers, zeros = s.layers_per_stage, (0,) * s.pp
    if not request.workload.flash_attention:
        yield "flash attention", replace(job, request=_workload(job, flash_attention=True))
    yield from _recomputes(job, layers, zeros)
    if not s.swap_optimizer:
        yield "optimizer states on the host", replace(job, strategy=replace(s, swap_optimizer=True))
    if not s.sequence_parallel and s.tp > 1:
        yield "sequence parallelism", replace(job, strategy=replace(s, sequence_parallel=True))
    copies = s.dp * s.cp
    least = min((level for level in facts.zero_levels if level > 0), default=0)
    if copies > 1 and s.optimizer_shard < copies and least:
        wider = replace(s, optimizer_shard=copies, zero_level=max(s.zero_level, least))
        yield f"optimizer states over all {copies} copies", replace(job, strategy=wider)
    if s.pp > 1 and s.vpp == 1 and s.schedule == "1f1b":
        yield "interleaving, 2 chunks a stage, recompute as needed", _to(job, vpp=2, schedule="interleaved")
    if s.pp > 1 and "zero_bubble_v" in facts.schedules and s.schedule != "zero_bubble_v":
        yield "zero-bubble schedule, recompute as needed", _to(job, vpp=2, schedule="zero_bubble_v")
    yield (
        f"micro-batch of {2 * s.micro_batch_size}, recompute as needed",
        _to(job, micro_batch_size=2 * s.micro_batch_size),
    )


def _recomputes(job: Job, layers: tuple[int, ...], zeros: tuple[int, ...]) -> Iterator[tuple[str, Job]]:
    s, request = job.strategy, job.request
    bare = replace(s, recompute_full=zeros, recompute_selective=zeros)
    every = replace(bare, recompute_selective=layers)
    least, fits = least_recompute(request.model, request.workload, Strategies.of([bare, every]), request.limit)
    for what, strategy, good in (
        ("no recompute", bare, True),
        ("least full recompute that fits", least.row(0), fits[0]),
        ("selective recompute of all layers", every, True),
        ("selective recompute, full where it must be", least.row(1), fits[1]),
    ):
        if good and strategy != s:
            yield what, replace(job, strategy=strategy)


def _workload(job: Job, **fields: Any) -> Any:
    return replace(job.request, workload=replace(job.request.workload, **fields))


def _to(job: Job, **fields: Any) -> Job:
    """The job with other fields; where it no longer fits, with the least recompute that does."""
    request, strategy = job.request, changed(job.request, job.strategy, fields)
    if not judge(replace(job, strategy=strategy)).why:
        return replace(job, strategy=strategy)
    zeros = (0,) * strategy.pp
    bare = replace(strategy, recompute_full=zeros, recompute_selective=zeros)
    least, _ = least_recompute(request.model, request.workload, Strategies.of([bare]), request.limit)
    return replace(job, strategy=least.row(0))


def _predicted(base: Outcome, what: str, other: Job) -> Lever:
    found = judge(other)
    memory = None
    if found.estimate is not None and base.estimate is not None:
        memory = found.estimate.peak_bytes - base.estimate.peak_bytes
    one, two = base.seconds_a_token, found.seconds_a_token
    gain = None if one is None or two is None else one / two - 1
    return Lever(what=what, kind="predicted", low=gain, high=gain, memory_bytes=memory, note=found.why)


#: Smaller gains of a switch mean that the calibration does not tell it apart.
_LEAST_GAIN: Final = 1e-4
#: Switches of a run that the time model knows, and when they mean something.
_SWITCHES: Final[Mapping[str, tuple[str, Callable[[Strategy], bool], str]]] = {
    "tp_overlap": (
        "tensor-parallel traffic beside matmuls (fine-grained interleaving, MC2, CoC)",
        lambda s: s.tp > 1,
        "one of the three at a time",
    ),
    "node_dispatch": ("tokens cross to a node once (deredundant all-to-all)", lambda s: s.ep > 1, ""),
    "fused_loss": ("fused loss kernel", lambda s: True, ""),
}


def _switched(base: Outcome) -> list[Lever]:
    """Switches of the run, priced on the plan as it is; those of the framework's habit are on already."""
    request, strategy = base.job.request, base.job.strategy
    usual = default_execution(request.workload)
    table = Strategies.of([strategy])
    plain = estimated(request, table).step_s[0]
    out = []
    for name, (what, useful, note) in _SWITCHES.items():
        if getattr(usual, name) or not useful(strategy) or not np.isfinite(plain):
            continue
        job = (request.model, request.workload, request.cluster, request.calibration)
        on: dict[str, Any] = {name: True}
        run = replace(usual, **on)
        step_s = evaluate(*job, table, limit_bytes=request.limit, run=run).step_s[0]
        gain = float(plain / step_s - 1)
        if abs(gain) < _LEAST_GAIN:
            continue
        out.append(Lever(what=what, kind="predicted", low=gain, high=gain, note=note))
    return out
