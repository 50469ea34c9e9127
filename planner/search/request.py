"""What a search is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from planner.cluster.records import Calibration, Cluster
from planner.cost.memory.rules import selective_saves
from planner.cost.memory.verdict import GIB, Room, check_probability, growing, planned
from planner.errors import SpecError
from planner.legality.apply import Context
from planner.model.records import Model, Workload
from planner.search.space import Pins, check_pins
from planner.units import KIB

Objective = Literal["time", "cards", "memory"]
Balance = Literal["none", "fast", "exact"]
Recompute = Literal["auto", "none", "selective", "full"]

#: How likely a plan must fit where an allocator grows as it likes.
FIT_PROBABILITY: Final = 0.95
#: Cards from which MindFormers' documentation advises 54 GB of 64 for the pool instead of 58, and that pool [bytes].
MANY_CARDS: Final = 1000
MANY_CARDS_POOL_BYTES: Final = 54.0 * GIB

OBJECTIVES: Final = ("time", "cards", "memory")
BALANCES: Final = ("none", "fast", "exact")
#: Tokens of one step where no global batch is given: Llama 2's 4 Mi (arXiv 2307.09288, table 1).
DEFAULT_STEP_TOKENS: Final = 4 * KIB * KIB
RECOMPUTE: Final = ("auto", "none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is looked for.

    Attributes
    ----------
    limit_bytes : float, optional
        Memory a stage may use [bytes], taken as it is; default: what the device's room leaves (`limit`).
    fit_probability : float, optional
        How likely a plan must fit, 0.5 to 0.999.  Default: 0.95 where an allocator grows without a limit of its own;
        a planned pool (MindSpore graph mode) is filled to its configured limit.
    batch_follows : bool
        The global batch is the default one, which follows the number of devices; else it was asked for.
    pins : mapping of str to collection
        Allowed values of a dimension, e.g. ``{"tp": {8}, "pp": {1, 2, 4}}``; see `planner.search.space.PINS`.
    objective : {"time", "cards", "memory"}
        Least step time; fewest cards, then time (``cluster.devices`` is the most there are); least peak memory.
    recompute : {"auto", "none", "selective", "full"}
        Least that fits, stage by stage; or the same for every layer.
    balance : {"none", "fast", "exact"}
        How layers and recompute of the finalists are moved between stages: not at all; by local search over the cost
        model; by CP-SAT as well for the leading rows (some seconds).  Finalists are simulated and ranked by it anyway.
    tp_across_nodes : bool
        Tensor-parallel groups may span nodes.
    top : int
        Estimates wanted; 0 for all finalists.
    fill : int
        Where fewer combinations of degrees fit than this, their runners-up (other chunks of a stage, other
        micro-batches) fill the list up to it.
    """

    model: Model
    workload: Workload
    cluster: Cluster
    calibration: Calibration
    limit_bytes: float | None = None
    batch_follows: bool = False
    fit_probability: float | None = None
    pins: Pins = field(default_factory=dict)
    objective: Objective = "time"
    recompute: Recompute = "auto"
    balance: Balance = "fast"
    tp_across_nodes: bool = False
    top: int = 0
    fill: int = 0

    def __post_init__(self) -> None:
        check_pins(self.pins)
        if self.objective not in OBJECTIVES:
            raise SpecError(f"objective={self.objective!r} is not known; legal: {', '.join(OBJECTIVES)}.")
        if self.balance not in BALANCES:
            raise SpecError(f"balance={self.balance!r} is not known; legal: {', '.join(BALANCES)}.")
        if self.recompute not in RECOMPUTE:
            raise SpecError(f"recompute={self.recompute!r} is not known; legal: {', '.join(RECOMPUTE)}.")
        if self.limit_bytes is not None and self.limit_bytes <= 0:
            raise SpecError(f"memory limit {self.limit_bytes} must be positive.")
        if self.fit_probability is not None:
            check_probability(self.fit_probability)

    @property
    def context(self) -> Context:
        """What strategies are judged against."""
        return Context(
            model=self.model, workload=self.workload, cluster=self.cluster, tp_across_nodes=self.tp_across_nodes
        )

    @property
    def tries_selective(self) -> bool:
        """Whether rows that recompute are also looked at with selective recompute."""
        both = {bool(value) for value in self.pins.get("selective", (False, True))} == {False, True}
        return self.recompute == "auto" and both and selective_saves(self.workload)

    @property
    def searched_pins(self) -> Pins:
        """The pins, selective recompute decided: on every row only where nothing else is allowed."""
        only = {bool(value) for value in self.pins.get("selective", (False,))} == {True}
        return dict(self.pins) | {"selective": (only and self.recompute == "auto",)}

    @property
    def room(self) -> Room:
        """What the device offers to this framework."""
        device = self.cluster.hardware.device
        if device.vendor != "cpu" and not self.workload.runs_on.pool_limited:
            charged = None if self.fit_probability is None else self.limit_bytes  # a limit as it is: judged by the card
            return growing(float(device.visible_bytes if charged is None else charged))
        usable = float(device.usable_bytes)
        if self.cluster.devices >= MANY_CARDS:
            usable = min(usable, MANY_CARDS_POOL_BYTES)
        return planned(usable if self.limit_bytes is None else self.limit_bytes)

    @property
    def limit(self) -> float:
        """Memory that a stage's predicted peak may reach [bytes]."""
        room = self.room
        if self.fit_probability is not None:
            return float(math.floor(room.peak_bytes(self.fit_probability)))
        if self.limit_bytes is not None:
            return float(self.limit_bytes)
        if not room.context_bytes:
            return room.limit_bytes
        return float(math.floor(room.peak_bytes(FIT_PROBABILITY)))

    def on(self, devices: int) -> Request:
        """The same request on another number of devices; a global batch that nobody asked for is that number's."""
        workload, cluster = self.workload, replace(self.cluster, devices=devices)
        if self.batch_follows:
            batch = default_batch(devices, workload.seq)
            notes = tuple(note.replace(f"batch {workload.global_batch}", f"batch {batch}") for note in workload.notes)
            workload = replace(workload, global_batch=batch, notes=notes)
        return replace(self, cluster=cluster, workload=workload)


def default_batch(cards: int, seq: int) -> int:
    """Samples of a step where none are asked for: 4 Mi tokens, at least one sample a card, a multiple of the cards.

    >>> default_batch(64, 4096), default_batch(24, 4096), default_batch(16384, 4096)
    (1024, 1032, 16384)
    """
    samples = max(DEFAULT_STEP_TOKENS // seq, cards, 1)
    return -(-samples // cards) * cards
