"""Parallel strategies: one record for a person, one table for a million candidates.

Legend of array suffixes: ``C`` candidates, ``V`` virtual chunks of a stage, ``S`` pipeline stages.  Columns without a
suffix have shape (C,).  A table is padded to the largest ``vpp`` and ``pp`` in it; layers beyond a candidate's own
``pp`` or ``vpp`` are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import SpecError

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]

CP_ALGORITHMS: Final = ("ring", "ulysses", "hybrid")
SCHEDULES: Final = ("gpipe", "1f1b", "interleaved", "zero_bubble_v", "seqpipe")

_SCALARS: Final = (
    "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "micro_batches", "ulysses_degree", "zero_level",
    "optimizer_shard",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How one training job is split over devices.

    Attributes
    ----------
    dp, tp, pp, cp : int
        Degrees; their product is the number of devices.
    ep : int
        Expert-parallel degree: a rank holds an ep-th of the experts.
    etp : int
        Expert tensor-parallel degree: a rank holds an etp-th of each of its experts; 1: experts stay whole.  Copies of
        an expert's part are spread over dp x cp x tp / (ep x etp) ranks of a stage.
    vpp : int
        Virtual chunks per stage (interleaving); 1: none.
    micro_batch_size, micro_batches : int
        Samples of one micro-batch on one dp rank, and micro-batches of one step;
        global batch = dp x micro_batch_size x micro_batches.
    cp_algorithm : {"ring", "ulysses", "hybrid"}
    ulysses_degree : int
        Part of cp done by head exchange: 1 for ring, cp for ulysses, between for hybrid.
    sequence_parallel : bool
        Activations outside tensor-parallel regions are split over tp.
    zero_level : int
        0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters are sharded.
    optimizer_shard : int
        Ranks that share one copy of what ``zero_level`` shards; a divisor of dp x cp, 1: no sharding.
    swap_optimizer : bool
        Optimizer states live on the host between steps.
    schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble_v", "seqpipe"}
    layers : tuple of tuple of int
        Decoder layers of each chunk of each stage: ``layers[chunk][stage]``.  Model order runs through the
        stages of chunk 0, then of chunk 1 and so on (for zero_bubble_v chunk 1 runs backwards through the stages).
    recompute_full : tuple of int
        Layers of each stage that are recomputed whole.
    recompute_selective : tuple of int
        Layers of each stage, among the others, that recompute only cheap operators.
    """

    dp: int
    tp: int
    pp: int
    layers: tuple[tuple[int, ...], ...]
    recompute_full: tuple[int, ...]
    recompute_selective: tuple[int, ...]
    micro_batches: int
    micro_batch_size: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    cp_algorithm: str = "ring"
    ulysses_degree: int = 1
    sequence_parallel: bool = True
    zero_level: int = 1
    optimizer_shard: int = 1
    swap_optimizer: bool = False
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        for name in _SCALARS:
            if name != "zero_level" and getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)} must be a positive whole number.")
        if self.cp_algorithm not in CP_ALGORITHMS:
            raise SpecError(f"cp_algorithm={self.cp_algorithm!r}; legal: {', '.join(CP_ALGORITHMS)}.")
        if self.schedule not in SCHEDULES:
            raise SpecError(f"schedule={self.schedule!r}; legal: {', '.join(SCHEDULES)}.")
        if len(self.layers) != self.vpp or any(len(row) != self.pp for row in self.layers):
            raise SpecError(
                f"layers per stage must be {self.vpp} chunk(s) of {self.pp} numbers for vpp={self.vpp}, "
                f"pp={self.pp}; given {self.layers}."
            )
        for name in ("recompute_full", "recompute_selective"):
            if len(getattr(self, name)) != self.pp:
                raise SpecError(f"{name} needs {self.pp} numbers for pp={self.pp}; given {getattr(self, name)}.")

    @property
    def devices(self) -> int:
        """Devices used: dp x tp x pp x cp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Decoder layers of each stage over all its chunks."""
        return tuple(sum(chunk[stage] for chunk in self.layers) for stage in range(self.pp))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strategies:
    """A table of strategies: one column per dimension, one row per candidate.  Meanings as in `Strategy`."""

    dp: IntArray
    tp: IntArray
    pp: IntArray
    vpp: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch_size: IntArray
    micro_batches: IntArray
    ulysses_degree: IntArray
    zero_level: IntArray
    optimizer_shard: IntArray
    cp_algorithm: IntArray  # index into CP_ALGORITHMS
    schedule: IntArray  # index into SCHEDULES
    sequence_parallel: BoolArray
    swap_optimizer: BoolArray
    layers_CVS: IntArray
    recompute_full_CS: IntArray
    recompute_selective_CS: IntArray

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def devices(self) -> IntArray:
        """Devices of each row."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def expert_copies(self) -> FloatArray:
        """Ranks of a stage that hold the same part of the same experts, dp x cp x tp / (ep x etp)."""
        return np.asarray(self.dp * self.cp * self.tp / (self.ep * self.etp))

    @property
    def layers_CS(self) -> IntArray:
        """Decoder layers of each stage."""
        return np.asarray(self.layers_CVS.sum(axis=1))

    @property
    def stages(self) -> int:
        """Padded number of stages S."""
        return int(self.layers_CVS.shape[2])

    @property
    def stage_mask_CS(self) -> BoolArray:
        """True where the stage exists."""
        return np.arange(self.stages)[None, :] < self.pp[:, None]

    def take(self, rows: IntArray | BoolArray | Sequence[int]) -> Strategies:
        """Rows by index or mask, in that order."""
        picked = np.asarray(rows)
        return Strategies(**{f.name: getattr(self, f.name)[picked] for f in fields(self)})

    def replace(self, **columns: NDArray[np.generic]) -> Strategies:
        """A copy with other columns."""
        return Strategies(**{f.name: columns.get(f.name, getattr(self, f.name)) for f in fields(self)})

    def row(self, index: int) -> Strategy:
        """One row as a record, without padding."""
        pp, vpp = int(self.pp[index]), int(self.vpp[index])
        scalars = {name: int(getattr(self, name)[index]) for name in _SCALARS}
        layers = self.layers_CVS[index, :vpp, :pp].tolist()
        return Strategy(
            **scalars,
            cp_algorithm=CP_ALGORITHMS[int(self.cp_algorithm[index])],
            schedule=SCHEDULES[int(self.schedule[index])],
            sequence_parallel=bool(self.sequence_parallel[index]),
            swap_optimizer=bool(self.swap_optimizer[index]),
            layers=tuple(tuple(chunk) for chunk in layers),
            recompute_full=tuple(self.recompute_full_CS[index, :pp].tolist()),
            recompute_selective=tuple(self.recompute_selective_CS[index, :pp].tolist()),
        )

    @classmethod
    def of(cls, rows: Iterable[Strategy]) -> Strategies:
        """Table of the given records, padded to the widest.

        >>> one = Strategy(dp=2, tp=2, pp=2, layers=((2, 2),), recompute_full=(0, 0),
        ...                recompute_selective=(0, 0), micro_batches=4)
        >>> Strategies.of([one]).row(0) == one
        True
        """
        records = list(rows)
        width = max((r.pp for r in records), default=1)
        depth = max((r.vpp for r in records), default=1)
        layers = np.zeros((len(records), depth, width), np.int64)
        full, selective = np.zeros((2, len(records), width), np.int64)
        for i, r in enumerate(records):
            layers[i, : r.vpp, : r.pp] = r.layers
            full[i, : r.pp] = r.recompute_full
            selective[i, : r.pp] = r.recompute_selective
        return cls(
            **{name: np.array([getattr(r, name) for r in records], np.int64) for name in _SCALARS},
            cp_algorithm=np.array([CP_ALGORITHMS.index(r.cp_algorithm) for r in records], np.int64),
            schedule=np.array([SCHEDULES.index(r.schedule) for r in records], np.int64),
            sequence_parallel=np.array([r.sequence_parallel for r in records], bool),
            swap_optimizer=np.array([r.swap_optimizer for r in records], bool),
            layers_CVS=layers,
            recompute_full_CS=full,
            recompute_selective_CS=selective,
        )


def sum_stages(values_CS: FloatArray) -> FloatArray:
    """Sum over stages, always from the first to the last.

    NumPy's own sum groups terms by array width; adding in order keeps a row's value the same, bit for bit, however
    wide the table around it is padded.
    """
    total = np.zeros(values_CS.shape[0])
    for stage in range(values_CS.shape[1]):
        total = total + values_CS[:, stage]
    return total
