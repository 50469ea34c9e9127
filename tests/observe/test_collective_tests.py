import json

import pytest

from planner.errors import CalibrationError
from planner.observe.read import read

HEADER = "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
NCCL = """# nThread 1 nGpus 1 minBytes 536870912 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] Some GPU
#  Rank  1 Group  0 Pid   1888 on   worker-0 device  0 [0x91] Some GPU
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   536870912     134217728     float     sum      -1   1806.7  297.16  297.16      0   1835.9  292.43  292.43      0
  1073741824     268435456     float     sum      -1   3108.8  345.38  345.38      0   2924.7  367.13  367.13      0
# Out of bounds values : 0 OK
"""


def test_current_format(data):
    found = read(data / "i_hccl_test" / "synthetic_current_format_8npu_allreduce.log")
    assert [point.sizes["bytes"] for point in found.points] == [2**20 * 4**k for k in range(6)]
    assert found.points[0].median_s == pytest.approx(51.68e-6)
    assert {(p.op, p.sizes["ranks"], p.mode, p.mark) for p in found.points} == {("allreduce", 8, "hccl_test", "")}


def test_official_sample_is_in_gib_and_lacks_its_operation(data):
    found = read(data / "i_hccl_test" / "doc_sample_8npu_gib.log")
    assert any("GiB/s although" in note for note in found.notes)
    assert found.points[-1].median_s == pytest.approx(2630.2e-6)  # the time column, not the printed bandwidth
    assert found.points[0].mark == "operation unknown"
    assert "operation" in found.missing[0]


def test_a_constant_time_is_refused(data):
    with pytest.raises(CalibrationError, match=r"3 sizes from 64 to 536870912 all take 1000\.00 us"):
        read(data / "i_hccl_test" / "simulator_constant_time_reject.log")


def test_slowest_rank_group_counts_and_failed_rows_do_not(tmp_path):
    log = tmp_path / "all_gather_2node_16npu_bf16.log"
    log.write_text(
        HEADER + "1024 | 50.00 | 0.1 | success\n1024 | 70.00 | 0.1 | success\n2048 | 60.00 | 0.1 | failed\n"
        "4096 | 80.00 | 0.1 | NULL\n"
    )
    found = read(log)
    assert [(p.sizes["bytes"], round(p.median_s * 1e6)) for p in found.points] == [(1024, 70), (4096, 80)]
    assert dict(found.points[0].sizes) == {"bytes": 1024, "ranks": 16, "nodes": 2}
    assert (found.points[0].op, found.points[0].dtype) == ("allgather", "bfloat16")
    assert "2048 bytes: the test's own check failed" in found.notes[0]


def test_setting_from_the_command_and_from_the_record_beside(tmp_path):
    command = "mpirun -f hosts -n 16 ./bin/reduce_scatter_test -p 8 -b 8K -e 64M -d fp16 -o sum\n"
    (tmp_path / "a.log").write_text(command + HEADER + "1024 | 50.00 | 0.1 | success\n")
    point = read(tmp_path / "a.log").points[0]
    assert (point.op, point.dtype, point.sizes["ranks"], point.sizes["nodes"]) == ("reducescatter", "float16", 16, 2)
    (tmp_path / "b.log").write_text(HEADER + "1024 | 50.00 | 0.1 | success\n")
    (tmp_path / "b.log.json").write_text(json.dumps({"op": "alltoall", "p": 4, "nodes": 1}))
    point = read(tmp_path / "b.log").points[0]
    assert (point.op, point.sizes["ranks"]) == ("alltoall", 4)


def test_a_test_that_never_started(tmp_path):
    log = tmp_path / "x.log"
    log.write_text(HEADER + "hccl interface return err main.cc:12, retcode: 7\nThis is an error in init_hcclComm.\n")
    with pytest.raises(CalibrationError, match="hccl interface return err"):
        read(log)


def test_nccl_tests(tmp_path):
    (tmp_path / "run.log").write_text(NCCL)
    found = read(tmp_path / "run.log")
    assert [p.median_s for p in found.points] == pytest.approx([1806.7e-6, 3108.8e-6])
    assert (found.points[0].op, dict(found.points[0].sizes)) == (
        "allreduce",  # bus bandwidth = algorithm bandwidth at two ranks
        {"bytes": 536870912, "ranks": 2, "nodes": 2},
    )


def test_nccl_tests_of_single_ranks(tmp_path):
    (tmp_path / "run.log").write_text(NCCL.replace("Rank  1", "Rank  0"))
    with pytest.raises(CalibrationError, match="rank 0 is listed 2 times"):
        read(tmp_path / "run.log")
