"""Matmul fits recover the constants that made the points, and tables what a law cannot say."""

import dataclasses
import itertools

import numpy as np
import pytest

from planner.calibrate.shape_fit import Law, fit_shapes
from planner.observe.points import Point

LAW = Law(efficiency=0.7, k0=40.0, peak_flop_per_s=300e12, bytes_per_s=1e12, element_bytes=2.0)
SHAPES = [
    (float(m), float(k), float(n)) for m, k, n in itertools.product((1024, 4096), (1024, 2048, 8192), (512, 4096))
]


def points(op, shapes, seconds, **changes):
    return [
        Point(
            kind="matmul", op=op, dtype="bfloat16", mode="graph",
            sizes={"m": int(m), "k": int(k), "n": int(n)}, best_s=float(t), median_s=float(t), **changes,
        )
        for (m, k, n), t in zip(shapes, seconds, strict=True)
    ]  # fmt: skip


def fitted(seconds, backward=None, shapes=SHAPES):
    behind = [] if backward is None else points("matmul_backward", shapes, backward)
    return fit_shapes(points("matmul", shapes, seconds), behind, 300e12, 1e12, 2.0)


def test_constants_are_recovered():
    found = fitted(LAW.seconds(SHAPES), 2.3 * LAW.seconds(SHAPES))
    values = [found.constants[key].value for key in ("matmul_efficiency", "matmul_k0", "matmul_backward")]
    assert values == pytest.approx([0.7, 40.0, 2.3], rel=0.01)
    assert max(abs(row.held_out_s / row.measured_s - 1.0) for row in found.rows) < 0.01


def test_intervals_hold_the_truth_under_noise():
    noise = np.random.default_rng(3).normal(0.0, 0.05, len(SHAPES))
    found = fitted(LAW.seconds(SHAPES) * np.exp(noise))
    efficiency = found.constants["matmul_efficiency"]
    assert efficiency.low < 0.7 < efficiency.high < 1.5 * efficiency.low


def test_a_table_takes_up_what_the_law_misses():
    """A library that is 40 % slower for wide outputs: the law cannot say so, shapes that were held out can be."""
    shapes = [
        (m, k, n)
        for m, k, n in itertools.product(
            (1024.0, 2048.0, 4096.0), (1024.0, 2048.0, 4096.0), (512.0, 1024.0, 4096.0, 8192.0)
        )
    ]
    slow = np.where(np.array(shapes)[:, 2] > 2000.0, 1.4, 1.0) * LAW.seconds(shapes)
    found = fitted(slow, shapes=shapes)
    assert found.forward is not None
    assert np.median([abs(row.held_out_s / row.measured_s - 1.0) for row in found.rows]) < 0.03
    bare = np.abs(found.law.seconds(shapes) / slow - 1.0)
    assert np.median(bare) > 0.08


def test_points_of_a_busy_machine_count_less():
    """Two thirds of the points take 1.3 times as long beside a load of 0.3; hidden load is believed."""
    clean = points("matmul", SHAPES, LAW.seconds(SHAPES))
    calm, slow = clean[::3], [p for i, p in enumerate(clean) if i % 3]
    slow = [dataclasses.replace(p, best_s=1.3 * p.best_s, median_s=1.3 * p.median_s) for p in slow]
    loaded = [dataclasses.replace(p, load=0.3) for p in slow]
    known, hidden = (fit_shapes(calm + others, [], 300e12, 1e12, 2.0).law.efficiency for others in (loaded, slow))
    assert abs(known / 0.7 - 1.0) < 0.04 < abs(hidden / 0.7 - 1.0)
