"""Collectives on real hardware: published measurements, HCCL's selection rules, laws of the whole function."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from planner.cluster.algorithms import OPS
from planner.cluster.collectives import bus_bytes_per_s, by_algorithm, chosen, collective_s, links
from planner.cluster.load import hardware, hardware_names
from planner.cluster.placement import place
from planner.cluster.rates import DEFAULTS, Rates, wiring
from planner.errors import SpecError

A2 = hardware("910b2")
A3 = hardware("910c")
NODE = place(8, 1, 8)
STILL = {key: 0.0 for key in DEFAULTS["a2"] if key.startswith(("start_s", "step_s", "reduce"))}


def a3_group(size, stride=1, pod=768):
    return place(size, stride, 16, devices_per_pod=pod)


# HCCL on 8 x 910B, one node, 2 GiB: time [us] and small-message floor [us] (zzudongxiang/astrasim:docs/HELP.md)
ASTRASIM = [
    ("allgather", 14754.7, 57.8),
    ("reducescatter", 15802.0, 59.9),
    ("allreduce", 29993.9, 41.1),
    ("alltoall", 17763.6, 116.9),
]


@pytest.mark.parametrize(("op", "time_us", "floor_us"), ASTRASIM)
def test_hccl_on_one_node_of_8(op, time_us, floor_us):
    assert_allclose(collective_s(op, 2**31, NODE, A2), time_us * 1e-6, rtol=0.03)
    assert_allclose(collective_s(op, 8, NODE, A2), floor_us * 1e-6, rtol=0.01)


def test_point_to_point_on_910b():
    assert_allclose(collective_s("sendrecv", 8, place(2, 1, 8), A2), 33.3e-6, rtol=0.01)
    assert_allclose(1e9 / collective_s("sendrecv", 1e9, place(2, 1, 8), A2), 18.9e9, rtol=0.01)
    across = 8 * 2**20 / (collective_s("sendrecv", 8 * 2**20, place(2, 8, 8), A2, {"start_s_sendrecv": 0.0}))
    assert_allclose(across, 22.6e9, rtol=0.01)  # RDMA between two nodes, 8 MB (HIXL)


# total bytes / time [GB/s] on 2, 4, 8 cards (gameofdimension/limulidae), nothing fitted to them
LIMULIDAE = [("allgather", 2, 38), ("allgather", 4, 64), ("allgather", 8, 149)] + [
    ("allreduce", 2, 18),
    ("allreduce", 4, 30),
    ("allreduce", 8, 72),
]


@pytest.mark.parametrize(("op", "cards", "gb_per_s"), LIMULIDAE)
def test_hccl_on_2_4_8_cards(op, cards, gb_per_s):
    time = collective_s(op, 2**31, place(cards, 1, 8), A2)
    assert_allclose(2**31 / time / 1e9, gb_per_s, rtol=0.18)


def test_wide_mesh_groups_are_fast_and_narrow_ones_slow():
    times = collective_s("allgather", 64 * 2**20, place([2, 4, 8], 1, 8), A2, {**STILL, "link_frac_allgather": 18 / 28})
    latency = A2.node.latency_s
    assert_allclose(times - latency, [1.864e-3, 0.932e-3, 0.466e-3], rtol=5e-4)


# one-sided writes of 1, 2, 4, 8 MiB between dies, GB/s (xiaojia151/Hixl:benchmarks/A3_benchmark_performance.md)
@pytest.mark.parametrize(
    ("stride", "rates"),
    [(1, (106.3, 115.1, 120.2, 123.5)), (16, (91.8, 106.4, 115.1, 119.7))],
    ids=["one node", "two nodes"],
)
def test_transfers_between_dies_of_a3(stride, rates):
    size = np.array([1, 2, 4, 8]) * 2.0**20
    time = collective_s("sendrecv", size, a3_group(2, stride), A3, {"start_s_sendrecv": 0.0})
    assert_allclose(size / time / 1e9, rates, rtol=0.01)


def test_transfers_between_superpods_use_the_port():
    time = collective_s("sendrecv", 1e9, a3_group(2, 768), A3, {"start_s_sendrecv": 0.0})
    assert_allclose(1e9 / time, 22.65e9, rtol=0.001)  # RDMA, A3 die (HIXL)


def test_expert_exchange_on_a3_falls_off_with_width():
    # DeepEP on Ascend, normal mode, mean of dispatch and combine [GB/s]; one slope for five points
    measured = np.sqrt(np.array([146 * 125, 107 * 103, 102 * 95, 81 * 91, 57 * 81.0]))
    width, size = np.array([8, 16, 32, 64, 128]), 1e10
    time = collective_s("alltoall", size, a3_group(width), A3)
    assert_allclose(size * (width - 1) / width / time / 1e9, measured, rtol=0.1)


def test_a3_is_flat_inside_a_superpod():
    size = 1e9
    inside, across = (float(collective_s("allgather", size, a3_group(16, s), A3)) for s in (1, 16))
    far = float(collective_s("allgather", size, a3_group(16, 768), A3))
    assert across < 1.05 * inside
    assert far > 5 * across


def test_serial_all_reduce_of_64_ranks_in_graph_mode():
    constants = {
        **STILL,
        **dict.fromkeys(("link_frac_allgather", "link_frac_reducescatter"), 17 / 28),
        "nic_frac": 22.6 / 25,
    }
    still = replace(A2, node=replace(A2.node, latency_s=0.0), nic_latency_s=0.0)
    group = place(64, 1, 8)
    assert_allclose(collective_s("allreduce", 1e9, group, still, constants, "graph"), 24.385e-3, rtol=1e-4)
    assert_allclose(collective_s("allreduce", 1e9, group, still, constants), 14.706e-3, rtol=1e-4)
    assert_allclose(collective_s("allgather", 1e9, group, still, constants), 7.353e-3, rtol=1e-4)


KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("op", "size", "group", "mode", "name"),
    [
        ("allreduce", 256 * KIB, NODE, "single", "mesh, one shot"),
        ("allreduce", 256 * KIB + 1, NODE, "single", "mesh"),
        ("allreduce", 64 * KIB, NODE, "graph", "mesh, one shot"),
        ("allreduce", 64 * KIB + 1, NODE, "graph", "mesh"),
        ("allgather", 1e9, NODE, "single", "mesh"),
        ("allgather", 64 * 32 * KIB, place(64, 1, 8), "single", "pipeline"),
        ("allgather", 64 * 32 * KIB - 1, place(64, 1, 8), "single", "mesh + NHR"),
        ("reducescatter", 16 * 32 * KIB - 1, place(16, 1, 8), "single", "mesh + ring"),
        ("allreduce", 64 * MIB, place(64, 1, 8), "single", "pipeline"),
        ("allreduce", 64 * MIB - 1, place(64, 1, 8), "single", "mesh + NHR"),
        ("allreduce", 1e9, place(8, 8, 8), "single", "mesh + NHR"),  # one card a server: no pipeline
        ("allreduce", 1e9, place(64, 1, 8), "graph", "mesh + H-D_R"),
        ("allreduce", 1e9, place(48, 1, 8), "graph", "mesh + ring"),  # 6 servers
        ("allreduce", 1e9, place(96, 1, 8), "graph", "mesh + H-D_R"),  # 12 servers
        ("allgather", 1e9, place(6, 1, 8), "single", "flat NHR"),  # straddles nodes
        ("alltoall", 1e9, NODE, "single", "mesh"),
        ("alltoall", 1e9, place(64, 1, 8), "single", "mesh + pairwise"),
        ("alltoall", 1e9, place(8, 8, 8), "single", "pairwise"),
        ("broadcast", 1e9, place(64, 1, 8), "single", "mesh + NHR"),
        ("sendrecv", 1e9, place(4, 1, 8), "single", "link"),
        ("sendrecv", 1e9, place(8, 8, 8), "single", "port"),
        ("allreduce", 1e9, place(1, 1, 8), "single", ""),
    ],
)
def test_hccl_picks_on_910b(op, size, group, mode, name):
    assert str(chosen(op, size, group, A2, mode=mode)) == name


@pytest.mark.parametrize(
    ("servers", "name"), [(2, "H-D_R"), (3, "ring"), (4, "H-D_R"), (6, "ring"), (8, "H-D_R"), (9, "H-D_R")]
)
def test_910a_takes_halving_doubling_for_8_servers_or_a_power_of_two(servers, name):
    group = place(8 * servers, 1, 8, quad_size=4)
    assert str(chosen("allreduce", 1e9, group, hardware("910a"))) == f"mesh/ring + {name}"


@pytest.mark.parametrize(("pods", "name"), [(2, "H-D_R"), (3, "ring"), (6, "ring"), (9, "H-D_R")])
def test_a3_between_superpods(pods, name):
    assert str(chosen("allreduce", 1e9, a3_group(pods * 768), A3)) == f"ring/NHR + {name}"


def test_910a_ring_of_eight_crosses_the_bridge():
    a = hardware("910a")
    rates = links(a, place([4, 8], 1, 8, quad_size=4))
    # a quad: three links of 18 GB/s; eight cards: one way over the bridge of 20 GB/s x 0.8
    assert rates.links.tolist() == [3, 1]
    assert_allclose(rates.inside_bytes_per_s, [54e9, 16e9])


def test_ports_of_all_members_in_a_node_work_together():
    rates = links(A2, place([8, 2, 1], [8, 4, 8], 8))
    assert rates.group_port_bytes_per_s.tolist() == [rates.port_bytes_per_s[0], 0.0, 0.0]
    wide, narrow = place(16, 1, 8), place(2, 8, 8)
    wide_port, narrow_port = (links(A2, g).group_port_bytes_per_s for g in (wide, narrow))
    assert_allclose(wide_port, 8 * narrow_port)


def test_gradient_reduction_over_one_and_over_four_ports():
    # 1 GB over two nodes.  One member a node: one port moves 2 x 1/2 n.  Four: the links move 4 x n/8 each (pipeline).
    one, four = (collective_s("allreduce", 1e9, place(*g, 8), A2, STILL) for g in ((2, 8), (8, 2)))
    assert_allclose(one, 1e9 / (22.6e9 * 0.85), rtol=1e-3)
    assert_allclose(four, 4 * 1e9 / 8 * (1 / 17.0e9 + 1 / 18.2e9) / 2, rtol=1e-3)


SIZES = st.floats(1, 1e11)
GROUPS = st.builds(
    lambda size, stride: (size, stride),
    st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24, 64, 256]),
    st.sampled_from([1, 2, 4, 8]),
)


def placed(profile, size, stride):
    h = hardware(profile)
    pod = 768 if h.superpod else 0
    return place(size, stride, h.devices_per_node, devices_per_pod=pod, quad_size=h.node.quad_size)


@settings(max_examples=60, deadline=None)
@given(group=GROUPS, small=SIZES, factor=st.floats(1, 100))
@pytest.mark.parametrize("profile", ["910A", "910B3", "910B4", "910C", "A100-80G"])
def test_time_never_falls_with_size_under_one_algorithm(profile, group, small, factor):
    h, where = hardware(profile), placed(profile, *group)
    for op in OPS:
        size = np.array([small, small * factor])
        if len(set(chosen(op, size, where, h).tolist())) == 1:
            low, high = collective_s(op, size, where, h)
            assert low <= high


@pytest.mark.parametrize("profile", hardware_names())
@pytest.mark.parametrize("op", OPS)
def test_a_group_of_one_costs_nothing(profile, op):
    assert float(collective_s(op, 1e9, placed(profile, 1, 8), hardware(profile))) == 0.0


@pytest.mark.parametrize("profile", ["910A", "910B3", "910B4", "910C", "A100-80G", "H100"])
@pytest.mark.parametrize("op", OPS)
def test_rows_of_a_table_equal_single_rows(profile, op):
    rng = np.random.default_rng(7)
    h = hardware(profile)
    size, stride = rng.choice([1, 2, 3, 4, 6, 8, 16, 64, 1024], 300), rng.choice([1, 2, 3, 4, 8, 16, 64], 300)
    n = 10 ** rng.uniform(0, 10, 300)
    table = collective_s(op, n, placed(profile, size, stride), h)
    assert np.isfinite(table).all()
    for i in range(0, 300, 5):
        assert float(collective_s(op, n[i], placed(profile, size[i], stride[i]), h)) == table[i]


def test_sizes_and_groups_broadcast():
    times = collective_s("allgather", np.array([[1e6], [1e9]]), place([2, 4, 8], 1, 8), A2)
    assert times.shape == (2, 3)
    assert times[1, 2] == collective_s("allgather", 1e9, NODE, A2)


def test_rates_made_once_give_the_same():
    rates = Rates.of(A2, {"nic_frac": 0.5, "matmul_frac": 0.8})
    group = place(64, 1, 8)
    assert collective_s("allreduce", 1e6, group, A2, rates) == collective_s(
        "allreduce", 1e6, group, A2, {"nic_frac": 0.5}
    )
    assert collective_s("allreduce", 1e6, group, A2, rates) > collective_s("allreduce", 1e6, group, A2)


def test_the_chosen_algorithm_is_among_the_explained_ones():
    for group in (NODE, place(64, 1, 8), place(8, 8, 8), place(6, 1, 8)):
        for op in OPS:
            times = by_algorithm(op, 512 * MIB, group, A2)
            name = str(chosen(op, 512 * MIB, group, A2))
            assert times[name] == collective_s(op, 512 * MIB, group, A2)


def test_pipeline_wins_among_algorithms_of_64_ranks():
    times = by_algorithm("allreduce", 512 * MIB, place(64, 1, 8), A2)
    assert min(times, key=lambda name: float(times[name])) == "pipeline"
    assert {"flat ring", "flat NHR", "flat NB", "flat H-D_R", "mesh + NHR"} <= set(times)


def test_bus_bandwidth_as_benchmarks_print_it():
    # 2 GiB all-reduce on 8 cards in 29993.9 us: 125 GB/s; all-gather in 14754.7 us: 127 GB/s (astrasim)
    assert_allclose(bus_bytes_per_s("allreduce", 2**31, 8, 29993.9e-6) / 1e9, 125.3, rtol=1e-3)
    assert_allclose(bus_bytes_per_s("allgather", 2**31, 8, 14754.7e-6) / 1e9, 127.4, rtol=1e-3)
    assert float(bus_bytes_per_s("allgather", 1e6, 1, 0.0)) == 0.0


@pytest.mark.parametrize(
    ("op", "hint"), [("all_reduce", "allreduce"), ("AllGather", "allgather"), ("gather", "allgather")]
)
def test_unknown_operations_name_the_nearest(op, hint):
    with pytest.raises(SpecError, match=rf"'{op}' is not known, did you mean '{hint}'.*legal: allreduce"):
        collective_s(op, 1e6, NODE, A2)


def test_every_default_has_a_source_and_lies_in_its_interval():
    for constants in DEFAULTS.values():
        for key, constant in constants.items():
            assert constant.low <= constant.value <= constant.high, key
            assert len(constant.source) > 8, key


def test_wiring_of_every_profile():
    kinds = {name: wiring(hardware(name)) for name in hardware_names()}
    assert kinds == {
        "910A": "910a",
        "910B1": "a2",
        "910B2": "a2",
        "910B3": "a2",
        "910B4": "pcie",
        "910B4-64G": "a2",
        "910C": "a3",
        "A100-80G": "gpu",
        "A100-PCIE": "gpu",
        "B200": "gpu",
        "H100": "gpu",
        "cpu": "pcie",
    }
