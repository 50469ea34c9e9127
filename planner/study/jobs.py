"""Jobs that differ in some variables, and mixtures of two: the one with single variables of the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from planner.cluster import load as clusters
from planner.cluster.records import Cluster
from planner.cost.estimate import Estimate
from planner.cost.memory.peak import least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.errors import PlannerError, SpecError
from planner.legality.apply import violations
from planner.model.records import Model
from planner.search.nearest import with_layers
from planner.search.objective import estimated
from planner.search.request import Request
from planner.units import format_bytes

#: Variables: what is changed together, because its parts mean nothing alone.  Fields of the strategy, of the workload.
OF_STRATEGY: Final[Mapping[str, tuple[str, ...]]] = {
    "layout": ("dp", "tp", "pp", "cp", "ep", "etp", "cp_algorithm", "ulysses_degree"),
    "interleaving": ("vpp", "schedule"),
    "micro-batch size": ("micro_batch_size",),
    "layers of stages": ("layers",),
    "recompute": ("recompute_full", "recompute_selective"),
    "optimizer sharding": ("zero_level", "optimizer_shard"),
    "sequence parallelism": ("sequence_parallel",),
    "optimizer on the host": ("swap_optimizer",),
}
OF_WORKLOAD: Final[Mapping[str, tuple[str, ...]]] = {
    "sequence": ("seq",),
    "global batch": ("global_batch",),
    "number types": ("params_dtype", "compute_dtype", "grads_dtype", "states_dtype", "master_weights"),
    "optimizer": ("optimizer", "moments"),
    "framework": ("framework",),
    "flash attention": ("flash_attention",),
    "switches": ("switches",),
}
HARDWARE: Final = "hardware"
CALIBRATION: Final = "calibration"
LIMIT: Final = "memory limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request and the strategy that answers it."""

    request: Request
    strategy: Strategy

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.request.workload.global_batch * self.request.workload.seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job would do; ``why`` says why it has no seconds, empty where it has."""

    job: Job
    estimate: Estimate | None
    why: str = ""

    @property
    def seconds_a_token(self) -> float | None:
        """Seconds of the whole job for a token [s]."""
        if self.estimate is None or self.estimate.step_s is None:
            return None
        return self.estimate.step_s / self.job.tokens


def judge(job: Job) -> Outcome:
    """The job estimated; a broken rule and memory that does not fit are said in one line."""
    try:
        request = job.request.on(job.strategy.devices)
        broken = violations(request.context, job.strategy)
    except PlannerError as error:
        return Outcome(job=job, estimate=None, why=str(error))
    if broken:
        return Outcome(job=job, estimate=None, why=broken[0].message)
    answer = estimated(request, Strategies.of([job.strategy])).row(0)
    if answer.fits:
        return Outcome(job=job, estimate=answer)
    why = f"needs {format_bytes(answer.peak_bytes)} of {format_bytes(answer.limit_bytes)}"
    return Outcome(job=job, estimate=answer, why=why)


def differing(before: Job, after: Job) -> dict[str, str]:
    """Variables in which two jobs of one model differ, each in words.

    What follows from another variable (micro-batches, stages of another number of stages) is no variable of its own.

    Raises
    ------
    SpecError
        They train different models.
    """
    one, other = before.request, after.request
    if _shape(one.model) != _shape(other.model):
        raise SpecError(f"{one.model.name} and {other.model.name} are different models; compare two jobs of one model.")
    found = {
        name: words for name, fields in OF_WORKLOAD.items() if (words := _words(one.workload, other.workload, fields))
    }
    if one.cluster.hardware.name != other.cluster.hardware.name:
        found[HARDWARE] = f"{one.cluster.hardware.name} -> {other.cluster.hardware.name}"
    elif one.workload.framework == other.workload.framework and _values(one) != _values(other):
        found[CALIBRATION] = f"{one.calibration.name} -> {other.calibration.name}, other constants"
    if HARDWARE not in found and one.limit != other.limit:
        found[LIMIT] = f"{format_bytes(one.limit)} -> {format_bytes(other.limit)}"
    for name, fields in OF_STRATEGY.items():
        words = _words(before.strategy, after.strategy, fields)
        if words:
            found[name] = words
    following = _following(before, after, found)
    return {name: words for name, words in found.items() if name not in following}


def _values(request: Request) -> dict[str, float]:
    """What a calibration says, without where it comes from."""
    return {key: constant.value for key, constant in request.calibration.constants.items()}


def _shape(model: Model) -> Model:
    """The model without what is told of it."""
    return replace(model, name="", source="", note="")


def _following(before: Job, after: Job, found: Mapping[str, str]) -> set[str]:
    """Variables that another one has changed: applying the others changes them, too."""
    out: set[str] = set()
    for name in ("layers of stages", "optimizer sharding", "recompute"):
        if name in found and mixed(before, after, set(found) - {name} - out).strategy == after.strategy:
            out.add(name)
    return out


def _words(one: object, other: object, fields: tuple[str, ...]) -> str:
    parts = [
        f"{name} {_shown(getattr(one, name))} -> {_shown(getattr(other, name))}"
        for name in fields
        if getattr(one, name) != getattr(other, name)
    ]
    return ", ".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        inner = [_shown(item) for item in value]
        same = len(set(inner)) == 1 and len(inner) > 2
        return f"{inner[0]} x{len(inner)}" if same else ",".join(inner) or "none"
    return str(value)


def mixed(before: Job, after: Job, names: Collection[str]) -> Job:
    """`before` with the named variables of `after`; what follows from them is made to fit."""
    fields = [field for name in names for field in OF_WORKLOAD.get(name, ())]
    workload = replace(before.request.workload, **{f: getattr(after.request.workload, f) for f in fields})
    hardware = (after if HARDWARE in names else before).request.cluster.hardware
    whole = next(
        (
            job.request
            for job in ((after, before) if CALIBRATION in names else (before, after))
            if job.request.cluster.hardware == hardware and job.request.workload.framework == workload.framework
        ),
        None,
    )
    calibration = whole.calibration if whole else clusters.calibration(hardware, workload.framework)
    limit = whole.limit_bytes if whole else None
    if HARDWARE not in names and before.request.cluster.hardware == hardware:
        limit = (after if LIMIT in names else before).request.limit_bytes
    fields = [field for name in names for field in OF_STRATEGY.get(name, ())]
    wanted = {f: getattr(after.strategy, f) for f in fields}
    devices = _product(before.strategy, wanted)
    request = replace(
        before.request,
        workload=workload,
        cluster=Cluster(hardware=hardware, devices=devices),
        calibration=calibration,
        limit_bytes=limit,
    )
    likes = (after.strategy, before.strategy) if "layout" in names or "interleaving" in names else (before.strategy,)
    return Job(request=request, strategy=changed(request, before.strategy, wanted, likes))


def _product(strategy: Strategy, wanted: Mapping[str, Any]) -> int:
    product = 1
    for name in ("dp", "tp", "pp", "cp"):
        product *= int(wanted.get(name, getattr(strategy, name)))
    return product


def changed(
    request: Request, strategy: Strategy, wanted: Mapping[str, Any], likes: Collection[Strategy] = ()
) -> Strategy:
    """The strategy with other fields, what follows from them made to fit.

    Micro-batches follow from the batch, the optimizer's ranks stay all copies where they were, layers are those of
    the first of `likes` that has such stages, else an even split, and recompute stays none, full or selective where it
    was that on every layer, else becomes the least that fits.
    """
    parts = {name: value for name, value in wanted.items() if name not in ("recompute_full", "recompute_selective")}
    zeros = (0,) * int(parts.get("pp", strategy.pp))
    degrees = {name: getattr(strategy, name) for name in Strategy.__dataclass_fields__} | parts
    if "optimizer_shard" not in wanted and strategy.optimizer_shard == strategy.dp * strategy.cp:
        degrees["optimizer_shard"] = degrees["dp"] * degrees["cp"]
    samples = degrees["dp"] * degrees["micro_batch_size"]
    degrees["micro_batches"] = max(request.workload.global_batch // samples, 1)
    pp, vpp = degrees["pp"], degrees["vpp"]
    if "layers" not in wanted or not _shaped(degrees["layers"], pp, vpp):
        same = [like.layers for like in (*likes, strategy) if _shaped(like.layers, pp, vpp)]
        degrees["layers"] = same[0] if same else ((0,) * pp,) * vpp
        whole = Strategy(**degrees | {"recompute_full": zeros, "recompute_selective": zeros})
        degrees["layers"] = whole.layers if same else with_layers(request, whole).layers
    bare = Strategy(**degrees | {"recompute_full": zeros, "recompute_selective": zeros})
    full = tuple(wanted.get("recompute_full", strategy.recompute_full))
    selective = tuple(wanted.get("recompute_selective", strategy.recompute_selective))
    return recomputed(request, bare, full, selective, strategy)


def _shaped(layers: tuple[tuple[int, ...], ...], pp: int, vpp: int) -> bool:
    return len(layers) == vpp and all(len(row) == pp for row in layers)


def recomputed(
    request: Request, bare: Strategy, full: tuple[int, ...], selective: tuple[int, ...], old: Strategy
) -> Strategy:
    """The given recompute where the stages have such layers, else its habit, else the least that fits."""
    layers = bare.layers_per_stage
    if len(full) == len(selective) == bare.pp and all(
        f + s <= n for f, s, n in zip(full, selective, layers, strict=True)
    ):
        return replace(bare, recompute_full=full, recompute_selective=selective)
    if not sum(full) + sum(selective):
        return bare
    if sum(full) == sum(old.layers_per_stage):
        return replace(bare, recompute_full=layers)
    if sum(selective) == sum(old.layers_per_stage):
        return replace(bare, recompute_selective=layers)
    table = Strategies.of([replace(bare, recompute_selective=layers) if sum(selective) else bare])
    return least_recompute(request.model, request.workload, table, request.limit)[0].row(0)
