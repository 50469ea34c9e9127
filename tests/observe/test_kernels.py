from collections import defaultdict

import pytest

from planner.errors import SpecError
from planner.observe.read import read

#: Accelerator core: total us (count), sample a, rank 0 and 2.
CORES = {
    0: {"AI_VECTOR_CORE": (68795, 1857), "AI_CORE": (58023, 336), "MIX_AIC": (87847, 56), "MIX_AIV": (16625, 199)},
    2: {
        "AI_VECTOR_CORE": (168358, None),
        "AI_CORE": (84416, None),
        "MIX_AIC": (124287, None),
        "MIX_AIV": (23388, None),
    },
}


@pytest.mark.parametrize("rank", [0, 2])
def test_kernels_by_core_add_up_to_computing(data, rank):
    found = read(data / "a_torchnpu_pp2_dp2")
    times, counts = defaultdict(float), defaultdict(int)
    for stat in found.kernels:
        if stat.rank == rank and stat.core != "COMMUNICATION":
            times[stat.core] += stat.total_s * 1e6
            counts[stat.core] += stat.count
    for core, (time_us, count) in CORES[rank].items():
        assert times[core] == pytest.approx(time_us, abs=1.0)
        assert count in (None, counts[core])
    assert sum(times.values()) == pytest.approx(found.steps_of(rank)[0].compute_s * 1e6, abs=1.0)


def test_flash_attention_counts_layers_times_micro_batches(data):
    found = read(data / "a_torchnpu_pp2_dp2")
    assert [k.count for k in found.kernels if k.op == "FlashAttentionScore"] == [14 * 2, 14 * 2]


def test_head_products_as_points(data):
    found = read(data / "a_torchnpu_pp2_dp2")
    times = {tuple(p.sizes.values()): p for p in found.points if p.kind == "matmul"}
    forward = times[4096, 1024, 151936]
    assert forward.median_s == pytest.approx(7.4e-3, abs=0.02e-3)
    assert 2 * 4096 * 1024 * 151936 / forward.best_s == pytest.approx(172e12, rel=0.005)
    assert times[4096, 151936, 1024].median_s == pytest.approx(18.4e-3, abs=0.02e-3)  # input gradient
    assert (forward.dtype, forward.mode, forward.repeats) == ("bfloat16", "profile", 2)


def test_level_0_has_no_shapes(data):
    found = read(data / "c_small_ddp_2ranks/level0")
    assert any("no shapes" in word for word in found.missing)
    assert any("communication.json" in word for word in found.missing)


def test_op_statistic_and_kernel_details_are_not_counted_twice(data):
    found = read(data / "a_torchnpu_pp2_dp2")
    assert len([k for k in found.kernels if k.rank == 0 and k.op == "FlashAttentionScoreGrad"]) == 1


def test_spellings_of_2023_and_cann_8_5(data):
    old = read(data / "b_cluster_16ranks/op_summary_head.csv")
    assert {k.core for k in old.kernels} >= {"COMMUNICATION", "AI_CORE"}  # the file says HCCL
    new = read(data / "k_msprof_small")
    (kernel,) = new.kernels
    assert (kernel.op, kernel.count) == ("kernel_a", 2)
    assert kernel.total_s == pytest.approx(84457.60e-6)


def test_old_aicore_and_cpu_tables_are_in_ms(data):
    types = {k.op: k for k in read(data / "f_mindspore_old_files/aicore_intermediate_1_type.csv").kernels}
    assert (types["MatMul"].total_s, types["MatMul"].count, types["MatMul"].rank) == (pytest.approx(1.085e-3), 9, 1)
    cpu = read(data / "j_mindspore29_cpu/graph_host_7794_20261201003709528_ascend_ms/FRAMEWORK/cpu_op_type_info_0.csv")
    assert cpu.kernels[0].core == "CPU"
    assert {k.op: k.total_s for k in cpu.kernels}["MatMul"] == pytest.approx(0.54023e-3)


def test_impossible_and_missing_times_are_counted(tmp_path):
    (tmp_path / "kernel_details.csv").write_text(
        "Step ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Input Data Types\n"
        '1,a,MatMulV3,AI_CORE,1.0\t,N/A,"""8192,8192;8192,4096""",DT_BF16;DT_BF16\n'
        '1,b,MatMulV3,AI_CORE,2.0\t,10.0,"""8192,8192;8192,4096""",DT_BF16;DT_BF16\n'
        '1,c,MatMulV3,AI_CORE,3.0\t,2000.0,"""8192,8192;8192,4096""",DT_BF16;DT_BF16\n'
    )
    found = read(tmp_path / "kernel_details.csv")
    assert [(p.sizes["m"], p.sizes["k"], p.sizes["n"], p.repeats) for p in found.points] == [(8192, 8192, 4096, 1)]
    assert "2 rows with impossible times" in found.notes[0]


def test_a_table_without_rows(tmp_path):
    (tmp_path / "op_statistic.csv").write_text("Device_id,OP Type,Core Type,Count,Total Time(us)\n")
    with pytest.raises(SpecError, match="without a row"):
        read(tmp_path / "op_statistic.csv")
