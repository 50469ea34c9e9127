"""Closed-form placement against hand counts, and against ranks enumerated one by one."""

from dataclasses import dataclass
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.load import hardware
from planner.cluster.placement import legal_on_quads, place, place_on, pod_devices, strides
from planner.cluster.records import Cluster
from planner.cluster.topology import members_per_node, place_groups


@dataclass(frozen=True)
class Degrees:
    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1


def enumerated(size, stride, domain, world):
    """Members per domain of every group of this kind, by listing ranks."""
    block = size * stride
    return [
        members_per_node([first + offset + k * stride for k in range(size)], domain)
        for first in range(0, world, block)
        for offset in range(stride)
    ]


@pytest.mark.parametrize(
    ("size", "stride", "inner", "outer", "per_node"),
    [
        (8, 1, 8, 1, 1),  # tp8 fills a node
        (4, 1, 4, 1, 2),  # two tp4 groups a node
        (2, 8, 1, 2, 8),  # dp2 over tp8: one member a node, eight groups a node
        (4, 4, 2, 2, 4),  # dp4 over tp4
        (16, 1, 8, 2, 1),
        (64, 4, 2, 32, 4),
        (1, 64, 1, 1, 8),
    ],
)
def test_groups_counted_by_hand(size, stride, inner, outer, per_node):
    group = place(size, stride, 8)
    assert (int(group.inner), int(group.outer), int(group.per_node)) == (inner, outer, per_node)
    assert not group.straddles


def test_tp6_straddles_nodes_of_8():
    group = place(6, 1, 8)  # groups 0-5, 6-11, 12-17, 18-23: two of four lie on two nodes
    assert (int(group.outer), bool(group.straddles)) == (2, True)


@settings(max_examples=300, deadline=None)
@given(size=st.integers(1, 24), stride=st.integers(1, 24), domain=st.sampled_from([1, 2, 3, 4, 6, 8, 16]))
def test_closed_form_equals_enumeration(size, stride, domain):
    world = lcm(size * stride, domain)
    counts = enumerated(size, stride, domain, world)
    group = place(size, stride, domain)
    assert int(group.outer) == max(len(c) for c in counts)
    assert bool(group.even) == (len({m for c in counts for m in c}) == 1)
    if group.even:
        assert int(group.inner) == counts[0][0]


@settings(max_examples=60, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 3]),
    dp=st.sampled_from([1, 2, 3, 4]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4]),
    etp=st.sampled_from([1, 2, 4]),
    nodes_of=st.sampled_from([8, 16]),
)
def test_every_kind_agrees_with_enumerated_groups(tp, cp, dp, pp, ep, etp, nodes_of):
    devices = tp * cp * dp * pp
    if devices > nodes_of and devices % nodes_of or (tp * cp * dp) % (ep * etp):
        return
    cluster = Cluster(hardware=hardware("910b3" if nodes_of == 8 else "910c"), devices=devices)
    listed = place_groups(cluster, Degrees(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp))
    kinds = strides(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp)
    for kind, groups in listed.items():
        size, stride = kinds[kind]
        placed = place_on(cluster, size, stride)
        assert {len(g) for g in groups} == {int(size)}
        assert sorted(r for g in groups for r in g) == list(range(devices))
        assert all(b - a == int(stride) for g in groups for a, b in zip(g, g[1:], strict=False))
        counts = [members_per_node(g, nodes_of) for g in groups]
        assert int(placed.outer) == max(map(len, counts))
        if placed.even:
            assert {m for c in counts for m in c} == {int(placed.inner)}


def test_table_rows_equal_single_rows():
    rng = np.random.default_rng(1)
    size, stride = rng.integers(1, 65, 500), rng.integers(1, 129, 500)
    table = place(size, stride, 16, devices_per_pod=64, quad_size=4)
    for i in range(0, 500, 7):
        one = place(size[i], stride[i], 16, devices_per_pod=64, quad_size=4)
        for name in ("size", "inner", "outer", "pods", "quad", "even", "per_node"):
            assert getattr(table, name)[i] == getattr(one, name)


def test_groups_inside_a_part_of_a_node():
    # six cards of an 8-card node: tp3 dp2, all in one node
    cluster = Cluster(hardware=hardware("910b3"), devices=6)
    assert int(place_on(cluster, 2, 3).outer) == 1


def test_superpods_hold_equal_parts():
    a3 = hardware("910c")
    assert pod_devices(Cluster(hardware=a3, devices=1024)) == 512  # two superpods of 32 nodes
    assert pod_devices(Cluster(hardware=a3, devices=384)) == 384
    assert pod_devices(Cluster(hardware=hardware("910b3"), devices=64)) == 0
    group = place_on(Cluster(hardware=a3, devices=1536), 1536, 1)
    assert (int(group.inner), int(group.outer), int(group.pods), int(group.domain)) == (16, 96, 2, 768)


def test_expert_groups_are_consecutive_ranks():
    # ep 8 over tp 4, dp 4: experts spread over two tensor-parallel groups of one node
    group = place(*strides(tp=4, cp=1, dp=4, pp=1, ep=8)["ep"], 8)
    assert (int(group.inner), int(group.outer)) == (8, 1)


@pytest.mark.parametrize(
    ("size", "stride", "legal"),
    [
        (2, 1, True),
        (2, 2, True),
        (2, 4, False),  # cards 0 and 4
        (4, 1, True),
        (4, 2, False),  # cards 0, 2, 4, 6
        (8, 1, True),
        (3, 1, False),
        (16, 1, True),
        (4, 4, True),  # two cards in each of two servers: a published 910A run (tp4 dp4, 16 cards)
        (2, 8, True),
    ],
)
def test_910a_groups_keep_to_quads(size, stride, legal):
    assert bool(legal_on_quads(place(size, stride, 8, quad_size=4))) is legal
