"""Whether a predicted peak fits a card: room, margin and probability.

A peak needs ``peak x (1 + share + e) + context`` of the card, e normal with the scatter below.  Two kinds of pool
differ.  An allocator that grows as it likes (PyTorch, on GPUs and as torch_npu) reserves more than is allocated, and
the context lies beside it.  MindSpore's graph mode plans every block before the first step, in a pool whose limit is
configured below the card: only the error of the plan's prediction is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from planner.errors import SpecError

GIB: Final = float(2**30)
#: Runtime, kernels and collective buffers outside the pool [bytes]; assumed, see docs/memory.md.
CONTEXT_BYTES: Final = 1.0 * GIB
#: Mean and standard deviation of reserved / allocated - 1, calibration/memory-fragmentation.csv (17 runs).
FRAGMENTATION: Final = 0.0517
FRAGMENTATION_SCATTER: Final = 0.0211
#: Standard deviation of DryRun / predicted - 1 over the recorded grid (calibration/dryrun/grid.csv); its mean is 0.
GRID_SCATTER: Final = 0.0067


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a card offers, and what a peak costs of it.

    Attributes
    ----------
    limit_bytes, context_bytes : float
        Of the pool, or of all that is visible of the card; what lies beside the pool within it [bytes].
    share, scatter : float
        Mean and standard deviation of what is reserved on top of a predicted peak, as shares of it.
    """

    limit_bytes: float
    context_bytes: float
    share: float
    scatter: float

    def probability(self, peak_bytes: float) -> float:
        """How likely a predicted peak fits, 0 to 1."""
        spare = (self.limit_bytes - self.context_bytes) / peak_bytes - 1.0 - self.share
        return NormalDist().cdf(spare / self.scatter)

    def peak_bytes(self, probability: float) -> float:
        """The largest predicted peak that fits with this probability [bytes].

        Raises
        ------
        SpecError
            A probability that is not between 0.5 and 0.999.
        """
        check_probability(probability)
        margin = NormalDist().inv_cdf(probability) * self.scatter
        return (self.limit_bytes - self.context_bytes) / (1.0 + self.share + margin)


def check_probability(probability: float) -> None:
    """Refuse a probability that is no margin, or none that the calibration can state."""
    if not 0.5 <= probability <= 0.999:
        raise SpecError(f"fit probability {probability} is not between 0.5 and 0.999.")


def growing(visible_bytes: float) -> Room:
    """Room of a card whose allocator grows without a limit of its own.

    >>> round(growing(79.15 * GIB).peak_bytes(0.95) / GIB, 1)
    71.9
    """
    return Room(
        limit_bytes=visible_bytes, context_bytes=CONTEXT_BYTES, share=FRAGMENTATION, scatter=FRAGMENTATION_SCATTER
    )


def planned(pool_bytes: float) -> Room:
    """Room of a pool of fixed size that is laid out before the first step.

    >>> round(planned(58 * GIB).peak_bytes(0.95) / GIB, 1)
    57.4
    """
    return Room(limit_bytes=pool_bytes, context_bytes=0.0, share=0.0, scatter=GRID_SCATTER)
