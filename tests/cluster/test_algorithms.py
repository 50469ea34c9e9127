"""Cost formulas: hand-computed values, laws, and exact-rational second opinions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from planner.cluster.algorithms import (
    Hop,
    ceil_log2,
    floor_log2,
    halving_doubling,
    is_power_of_two,
    mesh,
    mesh_one_shot,
    nb,
    nhr,
    pairwise,
    pipeline,
    ring,
    star,
    two_level,
)

LINK = Hop(0.0, 1 / 17e9)
NET = Hop(0.0, 1 / 22.6e9)


def test_serial_hierarchical_all_reduce_of_64_ranks():
    # 8 nodes x 8, 1e9 bytes: 7.353 + 9.679 + 7.353 ms
    inside = mesh("allreduce", 1e9, 8, LINK)
    between = ring("allreduce", 1e9 / 8, 8, NET)
    assert_allclose(inside / 2, 7.353e-3, rtol=1e-4)
    assert_allclose(between, 9.679e-3, rtol=1e-4)
    assert_allclose(two_level(inside, between), 24.385e-3, rtol=1e-4)


def test_pipeline_of_64_ranks():
    assert_allclose(pipeline("allgather", 1e9, 8, 8, LINK, NET), 7.353e-3, rtol=1e-4)
    assert_allclose(pipeline("reducescatter", 1e9, 8, 8, LINK, NET), 7.353e-3, rtol=1e-4)
    assert_allclose(pipeline("allreduce", 1e9, 8, 8, LINK, NET), 14.706e-3, rtol=1e-4)


def test_mesh_all_gather_2_gib_on_8_cards():
    assert_allclose(mesh("allgather", 2147483648, 8, Hop(0.0, 1 / 18.2e9)), 14.75e-3, rtol=1e-3)


def test_tensor_parallel_groups_have_p_minus_1_links():
    times = mesh("allgather", 64 * 2**20, [2, 4, 8], Hop(0.0, 1 / 18e9))
    assert_allclose(times, [1.864e-3, 0.932e-3, 0.466e-3], rtol=5e-4)


def test_six_participants():
    # alpha 10 us, n b = 1 ms, gamma 0
    hop = Hop(10e-6, 1e-3 / 1e9)
    assert_allclose(halving_doubling("allreduce", 1e9, 6, hop), 3.560e-3, rtol=1e-9)
    assert_allclose(nhr("allreduce", 1e9, 6, hop), 60e-6 + 10e-3 / 6, rtol=1e-9)  # 1.727 ms
    assert_allclose(ring("allreduce", 1e9, 6, hop), 100e-6 + 10e-3 / 6, rtol=1e-9)  # 1.767 ms


def test_halving_doubling_of_6_ranks_by_hand():
    # fold: a + n(b+g); halves of 3 and 2 sixths: 2a + 5/6 n(b+g); unfold: a + n/6 b
    hop = Hop(1.0, 6.0, 12.0)
    assert float(halving_doubling("reducescatter", 6.0, 6, hop)) == (1 + 6 * 18) + (2 + 5 * 18) + (1 + 6)
    assert float(halving_doubling("allgather", 6.0, 6, hop)) == (1 + 6 * 6) + (2 + 5 * 6) + (1 + 6)


@pytest.mark.parametrize("p", [3, 5, 6, 7, 9, 12, 24, 100])
def test_halving_doubling_stays_within_the_published_bounds(p):
    # the middle part lies between f + 2^f - 1 and 2^(f+1) - 2 units of n/p (b+g)
    f = p.bit_length() - 1
    middle = float(halving_doubling("reducescatter", p, p, Hop(0.0, 1.0))) - p - 1
    assert f + 2**f - 1 <= middle <= 2 ** (f + 1) - 2


ALGORITHMS = [mesh, ring, nhr, nb, halving_doubling]
OPS = ["allreduce", "allgather", "reducescatter", "broadcast"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("op", OPS)
def test_group_of_one_costs_nothing(algorithm, op):
    assert float(algorithm(op, 1e9, 1, Hop(1e-3, 1e-9, 1e-9))) == 0.0


def test_single_transfers_and_exchanges_of_one_cost_nothing():
    hop = Hop(1e-3, 1e-9, 1e-9)
    assert [float(f(1e9, 1, hop)) for f in (pairwise, star, mesh_one_shot)] == [0.0, 0.0, 0.0]
    assert float(pipeline("allgather", 1e9, 1, 1, hop, hop)) == 0.0


@given(
    p=st.integers(1, 4096),
    n=st.floats(1, 1e12),
    alpha=st.floats(0, 1e-2),
    beta=st.floats(1e-12, 1e-8),
    gamma=st.floats(0, 1e-8),
)
@pytest.mark.parametrize("algorithm", [mesh, ring, nhr, nb])
def test_all_reduce_is_reduce_scatter_and_all_gather(algorithm, p, n, alpha, beta, gamma):
    hop = Hop(alpha, beta, gamma)
    parts = algorithm("reducescatter", n, p, hop) + algorithm("allgather", n, p, hop)
    assert_allclose(algorithm("allreduce", n, p, hop), parts, rtol=1e-12)


@given(k=st.integers(0, 13), n=st.floats(1, 1e12))
def test_halving_doubling_equals_nhr_for_powers_of_two(k, n):
    hop = Hop(3e-6, 4e-11, 1e-12)
    for op in ("allreduce", "allgather", "reducescatter"):
        assert_allclose(halving_doubling(op, n, 2**k, hop), nhr(op, n, 2**k, hop), rtol=1e-13)


@given(p=st.integers(2, 5000), small=st.floats(0, 1e10), more=st.floats(0, 1e10))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("op", OPS)
def test_time_never_falls_with_size(algorithm, op, p, small, more):
    hop = Hop(1e-5, 5e-11, 2e-12)
    assert algorithm(op, small + more, p, hop) >= algorithm(op, small, p, hop)


@given(p=st.integers(2, 1000), n=st.floats(0, 1e10))
def test_ring_beats_nhr_never_and_ties_up_to_three(p, n):
    hop = Hop(60e-6, 5e-11)
    gap = float(ring("allgather", n, p, hop) - nhr("allgather", n, p, hop))
    assert gap == 0.0 if p <= 3 else gap > 0.0


@given(p=st.integers(1, 2**40))
def test_logarithms_are_exact(p):
    assert int(ceil_log2(p)) == (p - 1).bit_length()
    assert int(floor_log2(p)) == p.bit_length() - 1
    assert bool(is_power_of_two(p)) == (bin(p).count("1") == 1)


def exact_ring_all_reduce(n, p, a, b, g):
    return 2 * (p - 1) * a + Fraction(2 * (p - 1), p) * n * b + Fraction(p - 1, p) * n * g


@given(n=st.integers(1, 10**12), p=st.integers(2, 10**4))
def test_ring_against_exact_fractions(n, p):
    a, b, g = Fraction(1, 10**5), Fraction(1, 22 * 10**9), Fraction(1, 483 * 10**9)
    exact = exact_ring_all_reduce(n, p, a, b, g)
    assert_allclose(ring("allreduce", n, p, Hop(float(a), float(b), float(g))), float(exact), rtol=1e-12)


def test_pairwise_by_hand():
    # 7 partners, 1/8 of 800 MB each at 10 GB/s, 20 us a step
    assert_allclose(pairwise(800e6, 8, Hop(20e-6, 1e-10)), 7 * (20e-6 + 10e-3), rtol=1e-12)


def test_one_shot_sends_the_whole_buffer():
    assert_allclose(mesh_one_shot(1e6, 8, Hop(5e-6, 1e-10, 1e-11)), 5e-6 + 1e-4 + 7e-5, rtol=1e-12)


def test_arrays_broadcast():
    times = ring("allgather", np.ones((5, 1)), np.arange(1, 4), Hop(1.0, 0.0))
    assert times.tolist() == [[0.0, 1.0, 2.0]] * 5
