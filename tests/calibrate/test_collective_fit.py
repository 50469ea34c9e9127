"""Collective fits: lines give back start and bandwidth, tables held-out sizes, constants other groups."""

import numpy as np
import pytest

from planner.calibrate.collective_fit import alpha_beta, fit_collectives, lines
from planner.cluster.collectives import collective_s
from planner.cluster.load import hardware
from planner.cluster.placement import place
from planner.observe.points import Point

SIZES = 2.0 ** np.arange(13, 27)
A2 = hardware("910B3")


def points(op, ranks, seconds, sizes=SIZES):
    return [
        Point(
            kind="collective", op=op, dtype="float32", mode="graph",
            sizes={"bytes": int(n), "ranks": ranks, "nodes": 1}, best_s=float(t), median_s=float(t),
        )
        for n, t in zip(sizes, seconds, strict=True)
    ]  # fmt: skip


def test_start_and_bandwidth_of_a_line():
    line = alpha_beta(SIZES, 35e-6 + SIZES / 110e9)
    assert (line.alpha_s, line.bytes_per_s) == (pytest.approx(35e-6), pytest.approx(110e9))


def test_a_switch_of_algorithm_makes_two_lines():
    below, above = 40e-6 + SIZES / 5e9, 90e-6 + SIZES / 50e9
    first, second = lines(SIZES, np.where(SIZES <= 2**18, below, above))
    assert (first.alpha_s, first.bytes_per_s) == (pytest.approx(40e-6), pytest.approx(5e9))
    assert (second.alpha_s, second.bytes_per_s) == (pytest.approx(90e-6), pytest.approx(50e9))
    assert first.to_bytes == 2**18 < second.from_bytes


def test_held_out_sizes_of_a_noisy_sweep():
    noise = np.exp(np.random.default_rng(5).normal(0.0, 0.05, len(SIZES)))
    (fit,) = fit_collectives(points("allreduce", 8, (60e-6 + SIZES / 90e9) * noise), A2).fits
    errors = np.abs(np.array(fit.held_out_s) / np.array(fit.measured_s) - 1.0)
    assert np.median(errors) < 0.08
    assert np.all(np.diff(fit.fitted_s) >= 0.0)


def test_constants_carry_over_to_groups_that_were_not_measured():
    """Times of 8 cards made with other link constants give them back, and with them the times of 4 cards."""
    true = {"link_frac_allgather": 0.4, "start_s_allgather": 30e-6}

    def times(ranks, constants):
        n = np.full(len(SIZES), ranks)
        return collective_s("allgather", SIZES, place(n, np.ones_like(n), ranks), A2, constants)

    found = fit_collectives(points("allgather", 8, times(8, true)), A2)
    values = {key: constant.value for key, constant in found.constants.items()}
    assert values["link_frac_allgather"] == pytest.approx(0.4, rel=0.02)
    assert times(4, values) == pytest.approx(times(4, true), rel=0.05)


def test_one_size_makes_no_table():
    found = fit_collectives(points("allreduce", 2, [1e-3], SIZES[:1]), A2)
    assert (found.fits, found.tables, dict(found.constants)) == ((), (), {})
