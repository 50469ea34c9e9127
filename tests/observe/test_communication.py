import json
import math

import pytest

from planner.errors import SpecError
from planner.observe.communication import group_hash
from planner.observe.read import read


@pytest.fixture(scope="module")
def pipeline(data):
    return read(data / "a_torchnpu_pp2_dp2")


def of(found, op, rank):
    return [one for one in found.communication if one.op == op and one.rank == rank]


def test_waiting_hidden_in_point_to_point_operators(pipeline):
    """Bubble is 0 in the table; operators tell 313 of 810 ms on stage 0."""
    elapsed = {rank: [one.elapse_s * 1e3 for one in of(pipeline, "sendrecv", rank)] for rank in (0, 2)}
    assert elapsed[0] == pytest.approx([0.44, 158.55, 154.89], abs=0.005)
    assert elapsed[2] == pytest.approx([71.42, 0.80, 0.43], abs=0.005)
    first, last = pipeline.steps_of(0)[0], pipeline.steps_of(2)[0]
    assert first.pipeline_wait_s == pytest.approx(0.313, abs=0.0005)
    assert first.pipeline_wait_s / first.step_s == pytest.approx(0.386, abs=0.001)
    assert last.pipeline_wait_s == pytest.approx(0.0719, abs=0.0001)
    assert (first.stage, last.stage) == (0, 1)
    assert any("Bubble is 0 in the table, yet rank 0 waits 313 of 810 ms" in note for note in pipeline.notes)


def test_bandwidths_and_groups(pipeline):
    shards = of(pipeline, "reducescatter", 0)
    assert [one.size_bytes / 1e6 for one in shards] == pytest.approx([440.47, 311.16], abs=0.01)
    assert [one.bandwidth_bytes_per_s / 1e9 for one in shards] == pytest.approx([18.69, 18.69], abs=0.01)
    assert {(one.group_kind, one.group_ranks, one.link) for one in shards} == {("dp_cp", (0, 1), "HCCS")}
    gathers = of(pipeline, "allgather", 0)[:2]
    assert [one.elapse_s * 1e3 for one in gathers] == pytest.approx([12.0, 8.5], abs=0.05)
    embedding = [one for one in pipeline.communication if one.group_kind == "embd"]
    assert [(one.rank, round(one.elapse_s * 1e3, 1)) for one in embedding] == [(0, 34.6), (2, 121.0)]
    assert embedding[0].size_bytes == pytest.approx(151936 * 1024 * 4)


def test_size_of_the_operation_from_the_bytes_on_the_link(pipeline):
    """ZeRO-1: fp32 gradients reduced, bf16 parameters gathered, of the same parameters."""
    reduced = sum(one.operation_bytes for one in of(pipeline, "reducescatter", 0))
    gathered = sum(one.operation_bytes for one in of(pipeline, "allgather", 0)[:2])
    assert reduced / gathered == pytest.approx(2.0, rel=1e-4)


def test_points_take_the_waiting_out(pipeline):
    points = [point for point in pipeline.points if point.kind == "collective"]
    embedding = next(p for p in points if p.op == "allreduce" and p.sizes["bytes"] == 622329856)
    assert (embedding.median_s, embedding.mark) == (pytest.approx(0.03462, abs=1e-5), "")  # rank 0 arrived last
    transfer = next(p for p in points if p.op == "reducescatter")
    assert transfer.mark == "transfer alone: not all ranks of the group"
    assert transfer.median_s < 0.0263


def test_rdma_send(data):
    found = read(data / "b_cluster_16ranks/rank_0_ascend_pt/ASCEND_PROFILER_OUTPUT/communication.json")
    send = next(one for one in found.communication if one.op == "sendrecv")
    assert (send.link, send.size_bytes) == ("RDMA", 20971520.0)
    assert send.transit_s == pytest.approx(0.8638e-3, abs=1e-7)
    assert send.bandwidth_bytes_per_s == pytest.approx(24.28e9, rel=1e-3)


def test_hccl_raw_recomputes_bandwidth(data):
    found = read(data / "e_mindspore_old_pp2_4ranks/hccl_raw_0.csv")
    one = next(o for o in found.communication if o.name == "stream_47_0_AllReduce-op4630" and o.step == 1)
    assert (one.rank, one.op, one.link) == (0, "allreduce", "SDMA")
    assert one.elapse_s == pytest.approx((0.0552 + 0.11918) * 1e-3)
    assert one.bandwidth_bytes_per_s == pytest.approx(1078.784e3 / 0.05225e-3)  # 20.6 GB/s
    assert {o.step for o in found.communication} >= {1, 2}  # the row of averages is no step


def test_hash_of_a_group_name():
    assert group_hash("group_name_5") == "5862276114690318097"


def operators(**times):
    return {"step7": {"collective": {"hcom_allReduce__1_1_1@9": {"Communication Time Info": times}}}}


@pytest.mark.parametrize("by_group", [False, True])
def test_cluster_file_has_ranks_inside(tmp_path, by_group):
    record = {"Communication Time Info": {"Elapse Time(ms)": 2.0}, "Communication Bandwidth Info": {}}
    operator = {"hcom_broadcast__1@8": {"0": record, "1": record}, "Total Op Info": {"0": record}}
    data = {"(0, 1)": {"step3": operator}} if by_group else {"step3": {"collective": operator}}
    (tmp_path / "cluster_communication.json").write_text(json.dumps(data))
    found = read(tmp_path / "cluster_communication.json").communication
    assert [(one.rank, one.step, one.op, one.group) for one in found] == [
        (0, 3, "broadcast", "8"),
        (1, 3, "broadcast", "8"),
    ]
    assert found[0].group_ranks == ((0, 1) if by_group else ())
    assert math.isnan(found[0].bandwidth_bytes_per_s)


def test_an_impossible_rate_is_dropped_with_a_word(tmp_path):
    data = operators(**{"Elapse Time(ms)": 1.0})
    data["step7"]["collective"]["hcom_allReduce__1_1_1@9"]["Communication Bandwidth Info"] = {
        "HCCS": {"Transit Size(MB)": 9e6, "Transit Time(ms)": 1.0}
    }
    (tmp_path / "communication.json").write_text(json.dumps(data))
    found = read(tmp_path / "communication.json")
    assert found.communication[0].size_bytes == 0.0
    assert "no link's rate" in found.notes[0]


def test_files_cut_short_and_empty_of_operators(tmp_path):
    path = tmp_path / "communication.json"
    path.write_text(json.dumps(operators(**{"Elapse Time(ms)": 1.0}))[:-20])
    with pytest.raises(SpecError, match="ends in the middle"):
        read(path)
    path.write_text('{"step": {"p2p": {"Total Op Info": {"Communication Time Info": {}}}}}')
    with pytest.raises(SpecError, match="no communication operator"):
        read(path)
