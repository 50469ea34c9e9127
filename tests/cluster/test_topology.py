"""The cluster graph: counts by hand, and link counts against the closed forms."""

from dataclasses import dataclass

import networkx
import pytest

from planner.cluster.collectives import links
from planner.cluster.load import hardware
from planner.cluster.placement import place, place_on
from planner.cluster.records import Cluster
from planner.cluster.topology import describe, graph, links_of, place_groups


@dataclass(frozen=True)
class Degrees:
    tp: int
    cp: int
    dp: int
    pp: int
    ep: int = 1
    etp: int = 1


def kinds(built, what):
    return sum(data["kind"] == what for *_, data in (built.nodes if what in NODES else built.edges)(data=True))


NODES = {"device", "switch", "bridge", "superpod"}


def test_two_nodes_of_910b():
    built = graph(Cluster(hardware=hardware("910B3"), devices=16))
    assert kinds(built, "device") == 16
    assert kinds(built, "link") == 2 * 8 * 7 // 2
    assert networkx.shortest_path_length(built, 0, 7) == 1
    assert networkx.shortest_path_length(built, 0, 8) == 4  # port, network, port, device
    assert built.edges[0, 7]["bytes_per_s"] == 28e9


def test_910a_has_two_meshes_and_a_bridge():
    built = graph(Cluster(hardware=hardware("910A"), devices=8))
    assert kinds(built, "link") == 2 * 4 * 3 // 2
    assert kinds(built, "bridge") == 1
    assert networkx.shortest_path_length(built, 0, 3) == 1
    assert networkx.shortest_path_length(built, 0, 4) == 2


def test_a3_nodes_meet_in_the_superpod():
    built = graph(Cluster(hardware=hardware("910C"), devices=48))
    assert networkx.shortest_path_length(built, 0, 47) == 2
    assert kinds(built, "superpod") == 1
    assert kinds(built, "switch") == 3


def test_one_node_has_no_network():
    assert "network" not in graph(Cluster(hardware=hardware("910B3"), devices=8))


@pytest.mark.parametrize(("tp", "links_each"), [(1, 0), (2, 1), (4, 3), (8, 7)])
def test_links_of_a_tensor_parallel_group(tp, links_each):
    cluster = Cluster(hardware=hardware("910B3"), devices=16)
    built = graph(cluster)
    for group in place_groups(cluster, Degrees(tp=tp, cp=1, dp=16 // tp, pp=1))["tp"]:
        assert {links_of(built, group, device) for device in group} == {links_each}
    assert int(links(cluster.hardware, place_on(cluster, tp, 1)).links) == links_each


def test_groups_of_a_small_job_by_hand():
    cluster = Cluster(hardware=hardware("910B3"), devices=8)
    groups = place_groups(cluster, Degrees(tp=2, cp=1, dp=2, pp=2, ep=2))
    assert groups["tp"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups["dp"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert groups["pp"] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert groups["ep"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups["edp"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    split = place_groups(cluster, Degrees(tp=2, cp=1, dp=2, pp=2, ep=2, etp=2))
    assert (split["etp"], split["ep"]) == (groups["tp"], groups["dp"])
    assert split["edp"] == [(rank,) for rank in range(8)]


def test_context_parallel_sits_between_tensor_and_data_parallel():
    cluster = Cluster(hardware=hardware("910B3"), devices=8)
    groups = place_groups(cluster, Degrees(tp=2, cp=2, dp=2, pp=1))
    assert groups["cp"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert groups["dp"] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert groups["dp_cp"] == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_quads_of_910a_in_the_graph_and_in_closed_form():
    built = graph(Cluster(hardware=hardware("910A"), devices=8))
    for size, stride in ((2, 1), (2, 4), (4, 1), (4, 2)):
        group = [k * stride for k in range(size)]
        meshed = all(links_of(built, group, device) == size - 1 for device in group)
        placed = place(size, stride, 8, quad_size=4)
        assert meshed == bool(placed.quad == placed.inner)


def test_description():
    text = describe(Cluster(hardware=hardware("910C"), devices=1536))
    assert text == (
        "1536 x 910C: 96 nodes of 16, switch of 196.0 GB/s per device in a node, 196.0 GB/s in superpods of 768,"
        " a 25.0 GB/s port per device between superpods"
    )
