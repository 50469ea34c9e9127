import json

from planner.observe.communication import group_hash
from planner.observe.read import read


def test_layout_groups_and_rank(data):
    found = read(data / "a_torchnpu_pp2_dp2/rank_2_ascend_pt/profiler_metadata.json")
    assert dict(found.layout.degrees) == {"tp": 1, "pp": 2, "dp": 2, "cp": 1, "ep": 1}
    assert found.layout.groups["group_name_3"] == ("dp", (2, 3))
    assert found.layout.groups["group_name_0"] == ("world", (0, 1, 2, 3))
    assert found.facts["rank"] == "2"


def test_level_and_versions(data):
    found = read(data / "c_small_ddp_2ranks/level0/rank1_ascend_pt/profiler_info_1.json")
    assert (found.facts["rank"], found.facts["level"]) == ("1", "0")


def test_mindspores_own_names_of_groups(tmp_path):
    groups = {
        "hccl_world_group": {"group_name": "hccl_world_group", "group_rank": 0, "global_ranks": [0, 1, 2, 3]},
        "tp-0-1": {"group_name": "tp-0-1", "group_rank": 0, "global_ranks": [0, 1]},
        "pp-0-2": {"group_name": "pp-0-2", "group_rank": 0, "global_ranks": [0, 2]},
    }
    (tmp_path / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups}))
    layout = read(tmp_path / "profiler_metadata.json").layout
    assert layout.world_size == 4
    assert [kind for kind, _ in layout.groups.values()] == ["world", "tp", "pp"]


def test_groups_of_a_cluster_give_operators_their_kind(tmp_path):
    identity = "100%enp189s0f1_55000_0_1738895521183247"
    groups = [{"type": "collective", "rank_set": [0, 2], "group_name": group_hash(identity), "pg_name": "dp"}]
    (tmp_path / "communication_group.json").write_text(
        json.dumps({"collective": [[0, 2]], "p2p": [[0, 1]], "comm_group_parallel_info": groups})
    )
    record = {"Communication Time Info": {"Elapse Time(ms)": 2.0}, "Communication Bandwidth Info": {}}
    operators = {"(0, 2)": {"step1": {f"hcom_allReduce__1@{group_hash(identity)}": {"0": record, "2": record}}}}
    (tmp_path / "cluster_communication.json").write_text(json.dumps(operators))
    found = read(tmp_path)
    assert [(op.rank, op.group_kind, op.group_ranks) for op in found.communication] == [
        (0, "dp", (0, 2)), (2, "dp", (0, 2)),
    ]  # fmt: skip
    assert found.layout.world_size == 3  # the highest rank that anything names
