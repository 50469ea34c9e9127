"""NCCL's ring and tree against published GPU measurements."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from planner.cluster.collectives import bus_bytes_per_s, chosen, collective_s
from planner.cluster.load import hardware
from planner.cluster.placement import place

A100, H100 = hardware("a100"), hardware("h100")


def bus(hw, op, size, group):
    return float(bus_bytes_per_s(op, size, group.size, collective_s(op, size, group, hw))) / 1e9


def test_eight_gpu_all_reduce():
    # 235 GB/s on A100, 370 GB/s ring on H100 (stas00/ml-engineering, nccl-tests)
    assert_allclose(bus(A100, "allreduce", 4 * 2**30, place(8, 1, 8)), 235, rtol=0.05)
    assert_allclose(bus(H100, "allreduce", 4 * 2**30, place(8, 1, 8)), 370, rtol=0.05)


# total bytes / time on A800 (NVLink 200 GB/s), 4 and 8 GPUs (gameofdimension/limulidae)
@pytest.mark.parametrize(
    ("op", "gpus", "gb_per_s"),
    [("allgather", 4, 190), ("allgather", 8, 173), ("allreduce", 4, 104), ("allreduce", 8, 89)],
)
def test_a800(op, gpus, gb_per_s):
    a800 = replace(A100, node=replace(A100.node, link_bytes_per_s=200e9))
    time = collective_s(op, 2**31, place(gpus, 1, 8), a800)
    assert_allclose(2**31 / time / 1e9, gb_per_s, rtol=0.08)


def test_three_nodes_with_four_ports_each():
    # 4 x HDR per node, 3 nodes: 84.8 GB/s of 100 (nccl-tests 119); here four GPUs a node drive one port each
    assert_allclose(bus(A100, "allreduce", 8 * 2**30, place(12, 2, 8)), 84.8, rtol=0.08)


def test_ring_by_hand():
    # 16 GPUs on two nodes, Simple: 8.4 us + 2 (1 x 14 + 14 x 3.4) us + 2 (15/16) n / B, B = 8 ports x 22.5 GB/s
    n, port = 2**30, 25e9 * 0.9
    expected = 8.4e-6 + 2 * (14e-6 + 14 * 3.4e-6) + 2 * 15 / 16 * n / (8 * port)
    assert_allclose(collective_s("allreduce", n, place(16, 1, 8), A100), expected, rtol=1e-12)


def test_trees_for_small_messages_on_many_nodes_rings_for_large():
    sizes = np.array([8e3, 16e9])
    assert chosen("allreduce", sizes, place(512, 1, 8), H100).tolist() == ["tree", "ring"]


def test_small_messages_on_many_nodes_cost_about_the_fitted_start():
    # 83 us start-up fitted to a multi-node H100 table from 32 KiB on; node count unknown, 4 to 64 nodes tried
    times = collective_s("allreduce", 32 * 2**10, place([32, 512], 1, 8), H100)
    assert (times > 83e-6 / 3).all()
    assert (times < 83e-6 * 1.2).all()


def test_all_to_all_is_bounded_by_one_port():
    # two nodes: half of the bytes leave over the GPU's own port at 45 GB/s
    time = collective_s("alltoall", 1e9, place(16, 1, 8), H100, {"nic_frac": 0.9})
    assert_allclose(time, 8.4e-6 + 14e-6 + 0.5e9 / 45e9, rtol=1e-12)
