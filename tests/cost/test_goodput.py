"""Checkpoint intervals and goodput against published points and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cost import goodput as g
from planner.errors import SpecError

#: C, M, R [s], then Young, Daly, exact optimum [s], goodput there, first-order goodput there.  Computed from the
#: formulas in J. Young, CACM 17 (1974) 530 and J. Daly, FGCS 22 (2006) 303, with the exact optimum by minimisation.
POINTS = (
    (60, 11124, 600, 1155.4, 1115.7, 1115.7, 0.8525, 0.8367),
    (300, 11124, 600, 2583.5, 2387.4, 2387.5, 0.7441, 0.6861),
    (10, 28440, 120, 754.2, 747.5, 747.5, 0.9696, 0.9689),
    (60, 6480, 300, 881.8, 842.3, 842.3, 0.8307, 0.8082),
    (0.6, 11124, 300, 115.5, 115.1, 115.1, 0.9633, 0.9626),
    (242, 36000, 900, 4174.2, 4014.4, 4014.5, 0.8666, 0.8522),
    (600, 3600, 900, 2078.5, 1697.7, 1699.2, 0.4112, -0.006),
    (60, 4121280, 600, 22238.6, 22198.6, 22198.5, 0.9945, 0.9944),
)


@pytest.mark.parametrize("point", POINTS)
def test_eight_points_of_daly(point: tuple[float, ...]) -> None:
    save, mean, restart, young, daly, exact, kept, first = point
    assert g.young_s(save, mean) == pytest.approx(young, rel=1e-4, abs=0.05)
    assert g.daly_s(save, mean) == pytest.approx(daly, rel=1e-4, abs=0.05)
    assert g.best_interval_s(save, mean) == pytest.approx(exact, rel=1e-4, abs=0.05)
    assert g.daly_s(save, mean) == pytest.approx(g.best_interval_s(save, mean), rel=1e-3)
    assert g.goodput(exact, save, restart, mean) == pytest.approx(kept, abs=1e-4)
    assert g.first_order_goodput(exact, save, restart, mean) == pytest.approx(first, abs=1e-3)


@pytest.mark.parametrize("ratio", [1e-15, 1e-9, 1.1e-9, 1e-6, 1e-3, 0.1, 1.0, 10.0])
def test_best_interval_is_where_the_cost_is_least(ratio: float) -> None:
    best = g.best_interval_s(ratio, 1.0)
    assert best == pytest.approx(math.sqrt(2 * ratio), rel=0.02) or ratio > 1e-4
    kept = [g.goodput(best * scale, ratio, 0.1, 1.0) for scale in (0.97, 1.0, 1.03)]
    assert kept[1] >= max(kept) - 1e-15


def test_exact_model_is_what_a_simulation_gives() -> None:
    """Work of 20,000 intervals with exponential interruptions, which also hit restarts."""
    save, mean, restart, tau = 60.0, 3000.0, 300.0, 600.0
    random = np.random.default_rng(7)
    wall, done, left = 0.0, 0, random.exponential(mean)
    while done < 20_000:
        if left >= tau + save:
            wall, left, done = wall + tau + save, left - tau - save, done + 1
            continue
        wall += left
        left = random.exponential(mean)
        while left < restart:
            wall, left = wall + left, random.exponential(mean)
        wall, left = wall + restart, left - restart
    assert done * tau / wall == pytest.approx(g.goodput(tau, save, restart, mean), abs=0.005)


def test_what_never_succeeds_has_no_goodput() -> None:
    assert g.goodput(1e6, 60, 60, 100) == 0.0
    with pytest.raises(SpecError, match="must be positive"):
        g.mean_between_s(8, 0.0)


def test_llama_3_from_its_own_inputs() -> None:
    """arXiv 2407.21783: 466 interruptions of 16,384 GPUs in 54 days, 2 TB/s storage, more than 90 % effective.

    It names no restart time: MegaScale's 15 minutes (arXiv 2402.15627).
    """
    mean = 54 * 86400 / 466
    save = 405.85e9 * 14 / 2e12
    kept = g.goodput(g.best_interval_s(save, mean), save, 900.0, mean)
    assert kept == pytest.approx(0.90, abs=0.02)


def test_bloom_from_its_own_inputs() -> None:
    """Checkpoint of 2.3 TB in 40 s every 3 h: 0.37 % of the time; 329 GB of weights (BigScience model card, binary)."""
    rare = 1e12
    assert 1 - g.goodput(10800.0, 40.0, 0.0, rare) == pytest.approx(0.0037, abs=0.0001)
    alone, full = g.state_bytes_per_parameter(2, 4, 2, 4)
    assert 176.247e9 * alone / 2**30 == pytest.approx(329, rel=0.01)
    assert 176.247e9 * full / 2**40 == pytest.approx(2.3, rel=0.03)


def test_spares_cover_the_nodes_in_repair() -> None:
    mean = g.mean_between_s(16384, 0.474)
    random = np.random.default_rng(3)
    spares = g.spare_nodes(2048, mean, 86400.0)
    away = random.poisson(86400.0 / mean, 200_000)
    assert (away > spares).mean() < 0.01 < (away > spares - 1).mean()
    assert g.spare_nodes(4, 1.0, 1e6) == 4
