"""How much of a training's time is training, when machines fail and checkpoints cost time.

Symbols: C blocking seconds of a save, M mean seconds between interruptions, R seconds from an interruption until
training goes on, tau seconds of work between saves.  Interruptions are a Poisson process.  Pure functions of numbers.

The exact cost of one second of work is ``M exp(R / M) (exp((tau + C) / M) - 1) / tau`` (J. Daly, FGCS 22, 2006, 303);
the goodput is its inverse, and its optimum is ``tau = M (1 + W0(-exp(-1 - C / M)))`` with Lambert's function W0.
"""

from __future__ import annotations

import math
from typing import Final

from planner.errors import SpecError

#: Below this C / M, Lambert's function loses digits at its branch point and Daly's series is exact to 1e-9.
_LEAST_RATIO: Final = 1e-9
SECONDS_PER_DAY: Final = 86400.0
#: Share of the time that spare nodes may run out.
SPARES_SHORT: Final = 0.01


def young_s(save_s: float, mean_s: float) -> float:
    """Interval of Young (CACM 17, 1974, 530) [s]: ``sqrt(2 C M)``.

    >>> round(young_s(60, 11124), 1)
    1155.4
    """
    return math.sqrt(2 * save_s * mean_s)


def daly_s(save_s: float, mean_s: float) -> float:
    """Interval of Daly's higher-order formula [s]; M where C is not below 2 M.

    >>> round(daly_s(60, 11124), 1)
    1115.7
    """
    if save_s >= 2 * mean_s:
        return mean_s
    part = save_s / (2 * mean_s)
    return young_s(save_s, mean_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def best_interval_s(save_s: float, mean_s: float) -> float:
    """Optimum of the exact cost [s].

    >>> round(best_interval_s(600, 3600), 1)
    1699.2
    """
    from scipy.special import lambertw

    ratio = save_s / mean_s
    if ratio < _LEAST_RATIO:
        return daly_s(save_s, mean_s)
    return float(mean_s * (1 + lambertw(-math.exp(-1 - ratio)).real))


def goodput(interval_s: float, save_s: float, restart_s: float, mean_s: float) -> float:
    """Share of the time that is work that is kept, exact.

    >>> round(goodput(1115.7, 60, 600, 11124), 4)
    0.8525
    """
    exponent = (interval_s + save_s) / mean_s
    if exponent > 700 or restart_s / mean_s > 700:
        return 0.0  # below the smallest number there is
    return interval_s / (mean_s * math.exp(restart_s / mean_s) * math.expm1(exponent))


def first_order_goodput(interval_s: float, save_s: float, restart_s: float, mean_s: float) -> float:
    """The same by its first-order waste ``C / tau + (tau / 2 + C + R) / M``; useless where failures are frequent.

    >>> round(first_order_goodput(1115.7, 60, 600, 11124), 4)
    0.8367
    """
    return 1 - save_s / interval_s - (interval_s / 2 + save_s + restart_s) / mean_s


def mean_between_s(devices: int, per_1000_device_days: float) -> float:
    """Mean time between interruptions of a job [s], each device failing by itself.

    >>> round(mean_between_s(16384, 0.474) / 3600, 2)  # Llama 3 405B
    3.09
    """
    if per_1000_device_days <= 0:
        raise SpecError(f"failure rate {per_1000_device_days} per 1000 device-days must be positive.")
    return SECONDS_PER_DAY * 1000 / (devices * per_1000_device_days)


def state_bytes_per_parameter(weights: float, master: float, moments: int, moment: float) -> tuple[float, float]:
    """Bytes a parameter has in a checkpoint: its weight alone, and with master copy and optimizer moments.

    >>> state_bytes_per_parameter(2, 4, 2, 4)  # BLOOM: 329 GiB and 2.3 TiB for 176.2 G parameters
    (2, 14)
    """
    return weights, weights + master + moments * moment


def spare_nodes(nodes: int, mean_s: float, repair_s: float, short: float = SPARES_SHORT) -> int:
    """Fewest spare nodes that run out for less than a share of the time.

    Every interruption takes its node away until it is repaired; nodes in repair are then Poisson with mean
    ``repair / M``.

    >>> spare_nodes(2048, mean_between_s(16384, 0.474), 86400.0)
    15
    """
    from scipy.special import pdtrc

    away = repair_s / mean_s
    return next((count for count in range(nodes) if pdtrc(count, away) < short), nodes)
