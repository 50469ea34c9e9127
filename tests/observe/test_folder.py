import json
import shutil

import pytest

from planner.errors import SpecError
from planner.observe.read import read, read_all

STEP = (
    "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,Preparing\n"
    "{},100,50,0,50,30,180,0,1\n"
)


def profile(folder, rank, step=2, world=None):
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "step_trace_time.csv").write_text(STEP.format(step))
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps({"ms_version": "2.9.0", "rank_id": rank}))
    if world:
        text = json.dumps(
            {
                "parallel_group_info": {
                    "hccl_world_group": {"group_name": "hccl_world_group", "global_ranks": list(range(world))}
                }
            }
        )
        (folder / "profiler_metadata.json").write_text(text)


def test_ranks_layout_and_what_is_missing(data):
    found = read(data / "a_torchnpu_pp2_dp2")
    assert (found.kind, found.ranks) == ("profile", (0, 2))
    assert dict(found.layout.degrees) == {"tp": 1, "pp": 2, "dp": 2, "cp": 1, "ep": 1}
    assert (found.layout.world_size, found.facts["cann_version"], found.facts["level"]) == (4, "8.3.RC1", "2")
    assert found.missing == ("ranks: 2 of 4 (0, 2); the others may be slower or wait.",)


def test_total_of_the_sixteen_rank_job(data):
    found = read(data / "b_cluster_16ranks")
    step = found.steps_of(0)[0]
    assert step.step_s == pytest.approx(0.2917, abs=5e-5)
    assert (step.compute_s, found.steps_of(1)[0].compute_s) == (
        pytest.approx(0.0752, abs=1e-4),
        pytest.approx(0.0754, abs=1e-4),
    )


def test_the_rank_is_the_profiles_own_word(tmp_path):
    profile(tmp_path / "host_11_2025_ascend_ms", rank=3)
    profile(tmp_path / "host_12_2025_ascend_ms", rank=5)
    found = read(tmp_path)
    assert [step.rank for step in found.steps] == [3, 5]
    assert any(word.startswith("communication.json") for word in found.missing)
    assert any(word.startswith("kernel_details.csv") for word in found.missing)


def test_two_jobs_in_one_folder_are_refused(tmp_path, data):
    profile(tmp_path / "host_11_2025_ascend_ms", rank=0)
    profile(tmp_path / "host_99_2026_ascend_ms", rank=0)
    with pytest.raises(SpecError, match=r"2 profiles of rank 0 \(host_11_2025_ascend_ms, host_99_2026_ascend_ms\)"):
        read(tmp_path)
    with pytest.raises(SpecError, match="3 profiles of rank 0"):
        read(data / "c_small_ddp_2ranks")


def test_jobs_of_different_size_are_refused(tmp_path):
    profile(tmp_path / "host_11_2025_ascend_ms", rank=0, world=8)
    profile(tmp_path / "host_12_2025_ascend_ms", rank=1, world=16)
    with pytest.raises(SpecError, match="profiles of two jobs .*8 ranks.*16 ranks"):
        read(tmp_path)


def test_ranks_profiled_at_different_steps(tmp_path):
    profile(tmp_path / "host_11_2025_ascend_ms", rank=0, step=10)
    profile(tmp_path / "host_12_2025_ascend_ms", rank=1, step=20)
    assert any("no step was profiled on all ranks" in note for note in read(tmp_path).notes)


def test_the_ranks_own_table_counts_before_the_clusters(tmp_path):
    profile(tmp_path / "host_11_2025_ascend_pt", rank=0)
    cluster = tmp_path / "cluster_analysis_output"
    cluster.mkdir()
    (cluster / "cluster_step_trace_time.csv").write_text(
        "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble\n"
        '2,rank,0,101,50,0,50,30,181,0\n2,rank,1,60,90,0,90,30,180,0\n2,stage,"(0, 1)",100,90,0,90,30,180,0\n'
    )
    found = read(tmp_path)
    assert sorted((s.rank, round(s.compute_s * 1e6)) for s in found.steps if not s.ranks) == [(0, 100), (1, 60)]
    assert len([s for s in found.steps if s.ranks]) == 1


def test_one_damaged_file_does_not_hide_the_rest(data, tmp_path):
    folder = tmp_path / "rank_0_ascend_pt"
    shutil.copytree(data / "a_torchnpu_pp2_dp2/rank_0_ascend_pt", folder)
    path = folder / "ASCEND_PROFILER_OUTPUT/communication.json"
    path.write_text(path.read_text()[:9000])
    found = read(tmp_path)
    assert found.steps[0].pipeline_wait_s is None
    assert any("left out" in note and "ends in the middle" in note for note in found.notes)
    assert any(word.startswith("communication.json") for word in found.missing)


def test_logs_of_ranks_and_logs_kept_twice(tmp_path):
    line = "{{ Epoch:[  1/  1], step:[{n:5d}/  200], loss: 1.5, per_step_time: {ms}ms, lr: 0.0, overflow cond: False\n"
    for rank in (0, 1):
        text = "".join(line.format(n=n, ms=500 + rank) for n in range(1, 5))
        for name in (f"msrun_log/worker_{rank}.log", f"output/log/rank_{rank}/info.log"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    (tmp_path / "msrun_log/scheduler.log").write_text("waiting for workers\n")
    found = read(tmp_path)
    assert sorted((run.rank, run.median_step_s()) for run in found.runs) == [(0, 0.5), (1, 0.501)]
    assert found.notes == ()


def test_logs_of_several_jobs_are_told(data):
    found = read(data / "h_training_logs")
    assert "15 logs of different jobs are in h_training_logs: each is a run of its own." in found.notes


def test_nothing_known(tmp_path):
    with pytest.raises(SpecError, match="no profile, log or test in it"):
        read(tmp_path)
    (tmp_path / "step_trace_time.csv").write_text("")
    with pytest.raises(SpecError, match=r"no profile, log or test in it .*step_trace_time\.csv is empty"):
        read(tmp_path)


def test_several_paths_as_one(data):
    tests = data / "i_hccl_test"
    found = read_all([tests / "synthetic_current_format_8npu_allreduce.log", data / "g_minddata_cpu29"])
    assert (found.kind, len(found.points), len(found.pipelines)) == ("mixed", 6, 1)
