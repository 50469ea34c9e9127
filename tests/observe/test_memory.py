import numpy as np
import pytest

from planner.errors import SpecError
from planner.observe.memory import MEMORY_POINTS
from planner.observe.read import read

HEADER = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type\n"


def test_torch_npu_mb_is_mib(data):
    found = read(data / "a_torchnpu_pp2_dp2/rank_0_ascend_pt")
    traces = {trace.component: trace for trace in found.memory}
    assert traces["APP"].peak_reserved_bytes >= 11925.015625 * 2**20
    assert np.isnan(traces["APP"].peak_allocated_bytes)
    allocated = traces["PTA+GE"].allocated_bytes
    assert np.all(allocated % 512 == 0)  # only with 2^20 bytes do values come out in whole allocator blocks


def test_mindspore_mb_is_kib_over_1000(tmp_path):
    (tmp_path / "memory_record.csv").write_text(HEADER + "MindSpore,1,10.24,20.48,10.24,NPU:0\nAPP,2,,30,,NPU:0\n")
    traces = {trace.component: trace for trace in read(tmp_path / "memory_record.csv").memory}
    assert traces["MindSpore"].peak_allocated_bytes == pytest.approx(10240 * 1024)
    assert traces["APP"].peak_reserved_bytes == pytest.approx(30000 * 1024)


def test_cpu_record_is_in_bytes_and_ns(data):
    folder = data / "j_mindspore29_cpu/graph_host_7794_20261201003709528_ascend_ms"
    (trace,) = read(folder).memory
    assert (trace.component, trace.rank, trace.peak_reserved_bytes) == ("CPU pool", 0, 2**30)
    assert trace.time_s[0] == pytest.approx(1796085429.529541234)
    assert trace.peak_allocated_bytes == trace.allocated_bytes.max() > 6144


def test_long_records_are_thinned_and_keep_the_peak(tmp_path):
    rows = "".join(f"PTA,{i},{100 + (i == 7777)},200,100,NPU:0\n" for i in range(20_000))
    (tmp_path / "memory_record.csv").write_text(HEADER + rows)
    (trace,) = read(tmp_path / "memory_record.csv").memory
    assert len(trace.time_s) == MEMORY_POINTS
    assert trace.allocated_bytes.max() == trace.peak_allocated_bytes == 101 * 2**20


def test_stamps_rounded_by_a_spreadsheet(tmp_path):
    rows = "".join(f"PTA,1.69512E+15,{value},200,1,NPU:0\n" for value in (1, 2, 3))
    (tmp_path / "memory_record.csv").write_text(HEADER + rows)
    assert "rounded by a spreadsheet" in read(tmp_path / "memory_record.csv").notes[0]


def test_empty(tmp_path):
    (tmp_path / "memory_record.csv").write_text(HEADER)
    with pytest.raises(SpecError, match="without a row"):
        read(tmp_path / "memory_record.csv")
