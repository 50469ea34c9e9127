"""`MemoryEstimator`: will this job fit, asked from inside a training script or a notebook.

>>> from planner import MemoryEstimator
>>> estimator = MemoryEstimator.from_strategy("8B", tp=2, pp=2, dp=2, seq=4096, global_batch=64)
>>> len(estimator.stages()), estimator.check() is estimator
(2, True)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from planner import api, completion, inputs
from planner.cluster.records import Hardware
from planner.cost.memory.peak import memory
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.groups import groups
from planner.dialects.launch.environment import hccl_buffer_mb
from planner.errors import PredictedOutOfMemory, SpecError
from planner.legality.apply import violations
from planner.model.records import Model
from planner.plan import Plan
from planner.search.explain import neighbours
from planner.search.suggest import Request
from planner.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from planner.validate.compiler.dryrun import DryRunReport, DryRunSettings

#: Largest micro-batch size looked at.
MOST_MICRO_BATCH: Final = 4096
#: Longest sequence looked at: far above any trained one, far below what overflows.
MOST_SEQ: Final = 2**27
#: Changes that a refusal names.
NAMED_CHANGES: Final = 3
#: Runtime, kernels and streams outside the pool [bytes]; an assumption, as in `planner accuracy memory`.
CONTEXT_BYTES: Final = GIB
#: From so many cards on MindFormers' documentation recommends 54 GB for the pool of a 64 GB card instead of 58.
MANY_CARDS: Final = 1000
MANY_CARDS_POOL_BYTES: Final = 54 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one pipeline stage [bytes].

    Attributes
    ----------
    terms : dict of str to float
        What fills it at its heaviest moment; the terms add up to ``peak_bytes``.
    """

    stage: int
    layers: int
    peak_bytes: float
    static_bytes: float
    terms: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep: peak of the heaviest stage, and whether it is within the limit."""

    micro_batch_size: int
    seq: int
    peak_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """Memory of the whole card around the framework's pool [bytes].

    Attributes
    ----------
    visible_bytes : float
        What the framework can see of the card.
    pool_bytes : float
        Predicted peak of the heaviest stage, inside the pool.
    communicators : int
        Groups that the framework makes on a rank; each holds two buffers.
    groups : tuple of str
        What each of them is for (`planner.cost.time.groups`).
    hccl_buffsize_mb : int
        HCCL_BUFFSIZE to export [MB]; every communicator takes two buffers of it outside the pool.
    buffers_bytes, context_bytes : float
        All communicators' buffers; runtime and kernels (assumed).
    max_device_memory_bytes : float
        Pool limit to configure: the profile's usable memory, less where buffers and context leave less; 54 GB instead
        of 58 from a thousand cards on (MindFormers' documentation).
    free_bytes : float
        Visible memory that neither the peak, nor buffers, nor context take; negative when the card is too small.
    """

    visible_bytes: float
    pool_bytes: float
    communicators: int
    groups: tuple[str, ...]
    hccl_buffsize_mb: int
    buffers_bytes: float
    context_bytes: float
    max_device_memory_bytes: float
    free_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimator:
    """Predicted device memory of one job.

    Build it with `from_mindformers`, `from_plan` or `from_strategy`.  Nothing is run and no accelerator is needed.

    Attributes
    ----------
    request : planner.search.suggest.Request
        Model, workload, cluster and memory limit.
    strategy : Strategy
    unread : tuple of str
        Keys of the file that were not understood.
    source : Path or None
        The YAML it was built from.
    """

    request: Request
    strategy: Strategy
    unread: tuple[str, ...] = ()
    source: Path | None = None

    @classmethod
    def from_mindformers(
        cls,
        path: str | Path,
        hardware: Hardware | str | Path | None = None,
        max_memory: int | str | None = None,
        *,
        accept_unread: bool = False,
    ) -> MemoryEstimator:
        """Estimator of a MindFormers graph-mode YAML as it stands.

        Parameters
        ----------
        path : str or Path
        hardware : str, Path or Hardware, optional
            Profile name or file; default: Atlas 800T A2.
        max_memory : int or str, optional
            Limit instead of the file's ``max_device_memory``, bytes or a text like ``"58GB"``.
        accept_unread : bool
            Leave out settings that decide the answer and are not read, instead of refusing the file.

        Raises
        ------
        SpecError
            The file is missing, damaged, or describes no strategy.
        """
        file = Path(path)
        if file.suffix.lower() not in (".yaml", ".yml"):
            raise SpecError(f"{file} is not a YAML file; MindFormers configurations end in .yaml.")
        request, strategy, unread = inputs.read(file, hardware, max_memory, accept_unread=accept_unread)
        return cls(request=request, strategy=strategy, unread=unread, source=file)

    @classmethod
    def from_plan(
        cls, plan: Plan | str | Path, hardware: Hardware | str | Path | None = None, max_memory: int | str | None = None
    ) -> MemoryEstimator:
        """Estimator of a plan, a plan.json or the folder that holds it."""
        if not isinstance(plan, Plan):
            request, strategy, unread = inputs.read(plan, hardware, max_memory)
            return cls(request=request, strategy=strategy, unread=unread)
        profile = hardware or plan.hardware
        limit = max_memory if max_memory is not None or hardware is not None else plan.memory_limit_bytes
        request = inputs.request_for(
            plan.model, plan.devices, profile, framework=plan.workload.framework, max_memory=limit
        )
        return cls(request=replace(request, workload=plan.workload), strategy=plan.strategy)

    @classmethod
    def from_strategy(
        cls,
        model: Model | str | float | Path,
        strategy: Strategy | None = None,
        hardware: Hardware | str | Path = "910B3",
        *,
        seq: int | None = None,
        global_batch: int | None = None,
        framework: str | None = None,
        max_memory: int | str | None = None,
        recompute: str | Sequence[int] = "auto",
        stage_layers: Sequence[int] | None = None,
        **degrees: Any,
    ) -> MemoryEstimator:
        """Estimator of a strategy, whole or by its degrees; parameters as in `planner.estimate`."""
        cards = strategy.devices if strategy else completion.cards_of(degrees)
        if strategy is not None:
            global_batch = global_batch or strategy.dp * strategy.micro_batch_size * strategy.micro_batches
        request = inputs.request_for(
            model, cards, hardware, seq=seq, global_batch=global_batch, framework=framework, max_memory=max_memory
        )
        whole = strategy or completion.complete(request, recompute=recompute, stage_layers=stage_layers, **degrees)
        return cls(request=request, strategy=whole)

    @property
    def limit_bytes(self) -> float:
        """Memory a stage may use [bytes]."""
        return self.request.limit

    def stages(self, *, micro_batch_size: int | None = None, seq: int | None = None) -> tuple[StageMemory, ...]:
        """Memory of every stage, optionally with another micro-batch size or sequence length.

        Raises
        ------
        SpecError
            A size that is no whole number in its range, or a sequence length that the strategy cannot split.
        """
        request, strategy = self._with(micro_batch_size, seq)
        found = memory(request.model, request.workload, Strategies.of([strategy]))
        return tuple(
            StageMemory(
                stage=stage,
                layers=strategy.layers_per_stage[stage],
                peak_bytes=float(found.peak_bytes_CS[0, stage]),
                static_bytes=float(found.static_bytes_CS[0, stage]),
                terms={name: float(values[0, stage]) for name, values in found.terms.items()},
            )
            for stage in range(strategy.pp)
        )

    def peak(self, *, stage: int | None = None, micro_batch_size: int | None = None, seq: int | None = None) -> float:
        """Peak of one stage, or of the heaviest [bytes].

        Parameters
        ----------
        stage : int, optional
            Counted from 0.
        micro_batch_size, seq : int, optional
            Other values than the job's; the micro-batches of a step stay as many.

        Raises
        ------
        SpecError
            A stage that does not exist, or a size as in `stages`.
        """
        if stage is not None:
            stage = _whole(stage, "stage", 0, self.strategy.pp - 1)
        stages = self.stages(micro_batch_size=micro_batch_size, seq=seq)
        if stage is None:
            return max(each.peak_bytes for each in stages)
        return stages[stage].peak_bytes

    def headroom(self, *, stage: int | None = None) -> float:
        """Free memory under the limit [bytes]; negative when over it."""
        return self.limit_bytes - self.peak(stage=stage)

    def card(self) -> CardMemory:
        """The whole card: pool, communicators' buffers, context, and the settings that make them fit."""
        device = self.request.cluster.hardware.device
        plan = self._plan()
        buffer_mb = hccl_buffer_mb(plan)
        made = groups(self.strategy, self.request.workload.framework, experts=self.request.model.moe is not None)
        buffers = 2.0 * len(made) * buffer_mb * MIB
        left = device.visible_bytes - buffers - CONTEXT_BYTES
        usable = float(device.usable_bytes)
        if self.request.cluster.devices >= MANY_CARDS and usable > MANY_CARDS_POOL_BYTES:
            usable = min(usable, MANY_CARDS_POOL_BYTES)
        peak = self.peak()
        return CardMemory(
            visible_bytes=device.visible_bytes,
            pool_bytes=peak,
            communicators=len(made),
            groups=tuple(group.name for group in made),
            hccl_buffsize_mb=buffer_mb,
            buffers_bytes=buffers,
            context_bytes=CONTEXT_BYTES,
            max_device_memory_bytes=max(0.0, min(usable, left) // GIB * GIB),
            free_bytes=left - peak,
        )

    def dryrun(self, stages: Sequence[int] | None = None, settings: DryRunSettings | None = None) -> DryRunReport:
        """The job through MindSpore's own compiler, stage by stage, without a device.

        Parameters
        ----------
        stages : sequence of int, optional
            Default: first, one middle, last, and the one that is predicted to need most.
        settings : planner.validate.compiler.dryrun.DryRunSettings, optional
            Interpreter, time limit, stages at once.

        Raises
        ------
        ValidationError
            MindSpore or MindFormers is missing, refuses the file, or a stage died.
        EmitError
            The job comes from no file and MindFormers has no class for its family.
        """
        from planner.validate.compiler.dryrun import default_stages, dryrun

        if stages is None:
            stages = default_stages(self.strategy.pp, api.estimate_of(self.request, self.strategy).heaviest_stage)
        return dryrun(self.source or api.configuration_of(self._plan()), stages, settings)

    def _plan(self) -> Plan:
        return api.plan_of(self.request, api.estimate_of(self.request, self.strategy))

    def max_micro_batch_size(self, *, seq: int | None = None) -> int:
        """Largest micro-batch size that fits with everything else as it is; 0 when not even 1 does.

        Memory rises with the micro-batch size, so bisection finds it.
        """
        low, high = 0, MOST_MICRO_BATCH
        while low < high:
            middle = (low + high + 1) // 2
            if self.peak(micro_batch_size=middle, seq=seq) <= self.limit_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def sweep(self, *, micro_batch_sizes: Sequence[int] = (1, 2, 4, 8), seqs: Sequence[int] = ()) -> tuple[Point, ...]:
        """Peaks over micro-batch sizes and sequence lengths (default: the job's own), sequence by sequence.

        Raises
        ------
        SpecError
            No micro-batch size is given, or one of the sizes is none, as in `stages`.
        """
        sizes = _several(micro_batch_sizes, "micro_batch_sizes", MOST_MICRO_BATCH)
        if not sizes:
            raise SpecError(
                f"micro_batch_sizes={micro_batch_sizes!r} names no size; give at least one, e.g. (1, 2, 4)."
            )
        table = Strategies.of([replace(self.strategy, micro_batch_size=size) for size in sizes])
        points = []
        for seq in _several(seqs, "seqs", MOST_SEQ) or (self.request.workload.seq,):
            request, _ = self._with(None, seq)
            peaks = memory(request.model, request.workload, table).peak_bytes
            points += [
                Point(micro_batch_size=size, seq=seq, peak_bytes=float(peak), fits=bool(peak <= self.limit_bytes))
                for size, peak in zip(sizes, peaks, strict=True)
            ]
        return tuple(points)

    def check(self) -> MemoryEstimator:
        """Itself when the job fits.

        Raises
        ------
        PredictedOutOfMemory
            With the heaviest stage, what fills it, and the nearest changes that fit.
        """
        stages = self.stages()
        worst = max(stages, key=lambda each: each.peak_bytes)
        if worst.peak_bytes <= self.limit_bytes:
            return self
        raise PredictedOutOfMemory(
            _refusal(worst, self.limit_bytes, self.changes_that_fit()),
            peak_bytes=worst.peak_bytes,
            limit_bytes=self.limit_bytes,
        )

    def changes_that_fit(self) -> tuple[str, ...]:
        """Single changes of the strategy that are legal and fit, fewest changed fields first, in words."""
        near = [
            (what, strategy)
            for what, strategy in neighbours(self.request, self.strategy)
            if what and not violations(self.request.context, strategy)
        ]
        if not near:
            return ()
        table = Strategies.of([strategy for _, strategy in near])
        peaks = memory(self.request.model, self.request.workload, table).peak_bytes
        fitting = [i for i in np.argsort(-peaks, kind="stable") if peaks[i] <= self.limit_bytes]
        fitting.sort(key=lambda i: near[i][0].count("->"))
        words = [f"{near[i][0]}: {format_bytes(peaks[i])}" for i in fitting]
        return tuple(dict.fromkeys(words))[:NAMED_CHANGES]

    def _with(self, micro_batch_size: int | None, seq: int | None) -> tuple[Request, Strategy]:
        request, strategy = self.request, self.strategy
        if micro_batch_size is not None:
            size = _whole(micro_batch_size, "micro_batch_size", 1, MOST_MICRO_BATCH)
            strategy = replace(strategy, micro_batch_size=size)
        if seq is not None and _whole(seq, "seq", 1, MOST_SEQ) != request.workload.seq:
            request = replace(request, workload=replace(request.workload, seq=_whole(seq, "seq", 1, MOST_SEQ)))
            known = {found.code for found in violations(self.request.context, self.strategy)}
            broken = [found.message for found in violations(request.context, self.strategy) if found.code not in known]
            if broken:
                raise SpecError(f"seq={seq}: {' '.join(broken)}")
        return request, strategy


def _whole(value: object, name: str, least: int, most: int) -> int:
    """A whole number of a range, NumPy's included."""
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise SpecError(f"{name}={value!r} must be a whole number from {least} to {most}.")
    return number


def _several(values: object, name: str, most: int) -> tuple[int, ...]:
    """Whole numbers from 1 on."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise SpecError(f"{name}={values!r} must be a sequence of whole numbers from 1 to {most}.")
    return tuple(_whole(value, name, 1, most) for value in values)


def _refusal(worst: StageMemory, limit_bytes: float, changes: Sequence[str]) -> str:
    terms = sorted(((size, name) for name, size in worst.terms.items() if size > 0), reverse=True)
    filled = ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for size, name in terms)
    advice = f" Fits with one of: {'; '.join(changes)}." if changes else " No single change fits; use more cards."
    return (
        f"stage {worst.stage} is predicted to need {format_bytes(worst.peak_bytes)}, over the limit of "
        f"{format_bytes(limit_bytes)}: {filled}.{advice}"
    )
