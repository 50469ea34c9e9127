"""What runs leave behind, as records: one `Observation` for every source.

Times are seconds, sizes bytes, rates bytes/s, whatever the file wrote.  A number that the file does not hold is
None (scalars) or NaN (arrays), never a guess; ``missing`` says in words what would have been needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from planner.observe.points import Point
from planner.observe.run import FloatArray, Run

#: What an observation is; a folder that holds several is ``"mixed"``.
KINDS: Final = (
    "collective test", "profile", "cluster summary", "training log", "data pipeline", "table of times", "ledger",
    "mixed",
)  # fmt: skip

#: A step's parts must add up to its length within this share, else the row is not trusted; 1 us per 100 ms is exact.
INVARIANT_FRAC: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks of a profiled job were split, as its metadata says.

    Attributes
    ----------
    degrees : mapping of str to int
        ``tp``, ``pp``, ``dp``, ``cp``, ``ep``: those that the file states.
    world_size : int or None
    groups : mapping of str to tuple
        Key of a communication group (as operators name it) to its kind (``"dp"``, ``"tp"``, ``"pp"``, ``"embd"``, ...)
        and its global ranks.
    """

    degrees: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    groups: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """Where one step of one rank went.

    Attributes
    ----------
    rank, device, step, stage : int or None
        Global rank, card number, step number and pipeline stage, where known.  ``device`` is not the rank.
    compute_s : float
        Computation [s].
    exposed_s, overlapped_s : float or None
        Communication alone, and under computation [s].
    free_s : float or None
        Neither computation nor communication [s].
    stage_s, bubble_s : float or None
        As the profile writes them [s]; their sum is the step's length.  The bubble is the writer's own count of receive
        operators; ``pipeline_wait_s`` is what to believe.
    preparing_s : float or None
        From the step's start to its first device operator: host and data [s].
    receive_s, collective_s : float or None
        Exposed communication split into receiving from the neighbour stage and the rest (old MindSpore files) [s].
    pipeline_wait_s : float or None
        Sum over point-to-point operators of their time less size / bandwidth; None without communication.json [s].
    ranks : tuple of int
        Ranks of a row that is the maximum over a stage, each column on its own; empty for a row of one rank.
    mark : str
        ``""``, or why the row is doubtful: ``"first step"``, ``"parts do not add up"``, ``"maximum over ranks"``, ...
    source : str
        File and row.
    """

    rank: int | None = None
    device: int | None = None
    step: int | None = None
    stage: int | None = None
    compute_s: float
    exposed_s: float | None = None
    overlapped_s: float | None = None
    free_s: float | None = None
    stage_s: float | None = None
    bubble_s: float | None = None
    preparing_s: float | None = None
    receive_s: float | None = None
    collective_s: float | None = None
    pipeline_wait_s: float | None = None
    ranks: tuple[int, ...] = ()
    mark: str = ""
    source: str = ""

    @property
    def step_s(self) -> float:
        """Length of the step: computation, exposed communication and the rest [s]."""
        return self.compute_s + (self.exposed_s or 0.0) + (self.free_s or 0.0)

    @property
    def invariant_frac(self) -> float | None:
        """Distance of the parts' sum from stage + bubble, as a share of it; None where a column is missing."""
        if self.stage_s is None or self.bubble_s is None or self.exposed_s is None or self.ranks:
            return None
        whole = self.stage_s + self.bubble_s
        return abs(self.step_s - whole) / whole if whole > 0 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationOp:
    """One communication operator of one rank and step, or the total of its kind.

    Attributes
    ----------
    op : str
        ``"allreduce"``, ``"allgather"``, ``"reducescatter"``, ``"alltoall"``, ``"broadcast"``, ``"sendrecv"``, ...
    name, group : str
        As the file names them; the same name and group on other ranks is the same operation.
    group_kind : str
        ``"dp"``, ``"tp"``, ``"pp"``, ``"ep"``, ``"embd"``, ...; ``""`` when the metadata is missing.
    group_ranks : tuple of int
        Global ranks of the group; empty when unknown.
    elapse_s, transit_s, wait_s, idle_s : float
        Whole time; moving data; waiting for peers; the rest [s].
    size_bytes : float
        Bytes that this rank moved over its links, which is not the operation's size (see ``operation_bytes``).
    link_s : float
        Seconds the link was busy [s].
    link : str
        ``"HCCS"``, ``"RDMA"``, ``"SDMA"``, ``"PCIE"``, ``"SIO"``: the one that carried most; ``""`` when none did.
    large_packets_frac : float
        Share of packets above the link's threshold.
    start_s : float or None
        Start [s].
    """

    rank: int | None = None
    step: int | None = None
    op: str
    name: str = ""
    group: str = ""
    group_kind: str = ""
    group_ranks: tuple[int, ...] = ()
    elapse_s: float
    transit_s: float = 0.0
    wait_s: float = 0.0
    idle_s: float = 0.0
    size_bytes: float = 0.0
    link_s: float = 0.0
    link: str = ""
    large_packets_frac: float = float("nan")
    start_s: float | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Size over the link's own time [bytes/s]; NaN when nothing was moved."""
        return self.size_bytes / self.link_s if self.link_s > 0 else float("nan")

    @property
    def waiting_s(self) -> float:
        """Time beyond the transfer itself, whoever is to blame: elapse - size / bandwidth [s]."""
        return max(0.0, self.elapse_s - self.link_s)

    @property
    def operation_bytes(self) -> float:
        """The operation's size as `planner.cluster.collectives` counts it [bytes]; NaN when the group is unknown.

        Every algorithm without redundancy moves (p - 1)/p of an all-gather, reduce-scatter or all-to-all over a rank's
        links, and twice that of an all-reduce.
        """
        if self.op in ("sendrecv", "broadcast"):
            return self.size_bytes
        p = len(self.group_ranks)
        if p < 2:
            return float("nan")
        return self.size_bytes * p / (p - 1) / (2.0 if self.op == "allreduce" else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStat:
    """All kernels of one type on one rank.

    Attributes
    ----------
    op, core : str
        Operator type (``"MatMulV3"``) and the unit that ran it (``"AI_CORE"``, ``"MIX_AIC"``, ``"CPU"``, ...).
    count : int
        Kernels in all profiled steps together.
    total_s, least_s, most_s : float
        Sum, fastest and slowest [s].
    """

    rank: int | None = None
    op: str
    core: str = ""
    count: int
    total_s: float
    least_s: float = float("nan")
    most_s: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryTrace:
    """Memory of one rank over time.

    Attributes
    ----------
    component : str
        ``"PTA"``, ``"MindSpore"``, ``"GE"``, ``"APP"``, ``"CPU pool"``, ...
    time_s : array
        Stamps [s]; rising.
    allocated_bytes, reserved_bytes : array
        At the stamps [bytes]; NaN where not written.  At most `MEMORY_POINTS` of them, the peaks among them.
    peak_allocated_bytes, peak_reserved_bytes : float
        Over the whole file [bytes]; NaN when never written.
    """

    rank: int | None = None
    component: str
    time_s: FloatArray
    allocated_bytes: FloatArray
    reserved_bytes: FloatArray
    peak_allocated_bytes: float = float("nan")
    peak_reserved_bytes: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOperator:
    """One operator of the data pipeline, or the queue in front of the device.

    Attributes
    ----------
    queue_mean, queue_length : float or None
        Mean depth and capacity of its output queue.
    empty_frac : float or None
        Share of samples at which that queue was empty.
    busy_frac : float or None
        Share of one processor core that a worker used.
    """

    id: int
    op: str
    workers: int = 1
    children: tuple[int, ...] = ()
    queue_mean: float | None = None
    queue_length: int | None = None
    empty_frac: float | None = None
    busy_frac: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPipeline:
    """How training was fed.

    Attributes
    ----------
    batches : int
        Counted batches, the first left out.
    waited_s, elapsed_s : float or None
        Waiting for a batch, and the whole time between the first and the last [s].
    queue_mean, queue_length, empty_frac : float or None
        Depth, capacity and emptiness of the queue from which the trainer takes batches.
    sink : bool or None
        The queue is the device's (dataset sink), not the iterator's.
    """

    rank: int | None = None
    batches: int = 0
    waited_s: float | None = None
    elapsed_s: float | None = None
    queue_mean: float | None = None
    queue_length: int | None = None
    empty_frac: float | None = None
    sink: bool | None = None
    operators: tuple[DataOperator, ...] = ()
    source: str = ""

    @property
    def waited_frac(self) -> float | None:
        """Share of the time that was waiting for data; None without batches."""
        return self.waited_s / self.elapsed_s if self.waited_s is not None and self.elapsed_s else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """Everything that one file, or one folder of files, tells.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    source : Path
        What was read.
    format : str
        Name of the format, as in docs/observe.md; several joined by `` + ``.
    points : tuple of Point
        Measured operations, for ``calibrate --from``.
    runs, steps, communication, kernels, host, memory, pipelines
        What a training log, a step table, communication.json, kernel tables, host calls, memory records and data
        pipeline files hold.
    layout : Layout or None
    facts : mapping of str to str
        What a file says of its making: iterations, warm-up, versions, profiling level.
    notes : tuple of str
        What was corrected, left out or doubted, and why: to be shown.
    missing : tuple of str
        What the source lacks and what that hides.
    """

    kind: str
    source: Path
    format: str = ""
    points: tuple[Point, ...] = ()
    runs: tuple[Run, ...] = ()
    steps: tuple[StepTrace, ...] = ()
    communication: tuple[CommunicationOp, ...] = ()
    kernels: tuple[KernelStat, ...] = ()
    host: tuple[KernelStat, ...] = ()
    memory: tuple[MemoryTrace, ...] = ()
    pipelines: tuple[DataPipeline, ...] = ()
    layout: Layout | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that left something, sorted."""
        records: Iterable[object] = (*self.runs, *self.steps, *self.communication, *self.kernels, *self.memory)
        return tuple(sorted({rank for r in records if (rank := getattr(r, "rank", None)) is not None}))

    def steps_of(self, rank: int | None) -> tuple[StepTrace, ...]:
        """Steps of one rank, in order."""
        return tuple(sorted((s for s in self.steps if s.rank == rank and not s.ranks), key=lambda s: s.step or 0))

    def with_notes(self, *notes: str) -> Observation:
        """The same with further notes; one already there is not repeated."""
        return replace(self, notes=_unique((*self.notes, *notes)))


def merge(parts: Iterable[Observation], source: Path) -> Observation:
    """One observation of several: records in the order of the parts, kinds and formats joined."""
    parts = tuple(parts)
    kinds = _unique(part.kind for part in parts)
    joined = {
        f.name: tuple(item for part in parts for item in getattr(part, f.name))
        for f in fields(Observation)
        if f.name in ("points", "runs", "steps", "communication", "kernels", "host", "memory", "pipelines")
    }
    return Observation(
        kind=kinds[0] if len(kinds) == 1 else "mixed",
        source=source,
        format=" + ".join(_unique(name for part in parts for name in part.format.split(" + ") if name)),
        layout=_one_layout(part.layout for part in parts),
        facts={key: value for part in reversed(parts) for key, value in part.facts.items()},
        notes=_unique(note for part in parts for note in part.notes),
        missing=_unique(word for part in parts for word in part.missing),
        **joined,
    )


def _one_layout(layouts: Iterable[Layout | None]) -> Layout | None:
    """The layouts of all ranks as one: degrees of all, the largest stated size, else one above the highest rank."""
    known = [layout for layout in layouts if layout is not None]
    if not known:
        return None
    groups = {key: group for layout in known for key, group in layout.groups.items()}
    stated = max((layout.world_size for layout in known if layout.world_size is not None), default=None)
    highest = max((max(ranks) + 1 for _, ranks in groups.values() if ranks), default=None)
    degrees = {key: degree for layout in reversed(known) for key, degree in layout.degrees.items()}
    return Layout(degrees=degrees, groups=groups, world_size=stated if stated is not None else highest)


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
