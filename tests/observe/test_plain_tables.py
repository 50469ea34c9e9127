import numpy as np
import pytest

from planner.errors import CalibrationError
from planner.observe.read import read


def written(tmp_path, text, name="mine.csv"):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(tmp_path / name)


def test_products_with_repeats(tmp_path):
    found = written(
        tmp_path,
        "m,k,n,dtype,time_us\r\n4096,4096,4096,bfloat16,600\r\n4096,4096,4096,bfloat16,640\r\n8192,4096,4096,bfloat16,nan\r\n",
    )
    (point,) = found.points
    assert (point.kind, point.op, point.dtype, dict(point.sizes)) == (
        "matmul", "matmul", "bfloat16", {"m": 4096, "k": 4096, "n": 4096},
    )  # fmt: skip
    assert (point.best_s, point.median_s, point.repeats) == (pytest.approx(600e-6), pytest.approx(620e-6), 2)
    assert found.notes == ("1 row(s) without a number were left out.",)


def test_collectives_and_copies(tmp_path):
    found = written(tmp_path, "op,bytes,ranks,nodes,time(ms)\nallreduce,1048576,8,1,0.05\nallreduce,8388608,8,1,0.2\n")
    assert [(p.kind, p.op, p.sizes["ranks"]) for p in found.points] == [("collective", "allreduce", 8)] * 2
    assert found.points[0].median_s == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,k,n,time\n4096,4096,4096,1\n", "column 'time' has no unit; name it time_s, time_ms or time_us"),
        ("m,k,n,speed\n4096,4096,4096,1\n", "no column of times"),
        (
            "m,k,n,time(s)\n4096,4096,4096,0.0000006\n",
            r"all 1 rows are faster than any device; is the unit of 'time\(s\)'",
        ),
        ("m,k,n,time_ms\n128,128,128,1\n1024,1024,1024,1\n4096,4096,4096,1\n", "all take 1000.00 us"),
        ("m,k,n,time_ms\n4096,4096,x,1\n4096,4096,1,-1\n", "no usable row"),
    ],
)
def test_refused(tmp_path, text, message):
    with pytest.raises(CalibrationError, match=message):
        written(tmp_path, text)


def test_a_spreadsheet_in_a_chinese_locale(tmp_path):
    found = written(tmp_path, "m,k,n,耗时(ms)\n4096,4096,4096,0.6\n".encode("gb18030"))
    assert found.points[0].median_s == pytest.approx(0.6e-3)
    assert found.points[0].mark == "type unknown"


def test_steps_of_many_runs_in_one_table(data):
    found = read(data / "h_training_logs/mindspeed_llm_ci_iterations.csv")
    assert len(found.runs) == 10
    first = found.runs[0]
    assert first.source.endswith("pipeline/legacy, baichuan2_13b_tp8_pp1_mcore")
    assert first.step_s[:2].tolist() == pytest.approx([11.8544, 3.5665])
    assert first.loss[0] == 12.09659
    # the first iteration is many times the median, later noise is small: facts of 65 runs
    ratios = [run.step_s[0] / run.median_step_s() for run in found.runs]
    assert min(ratios) > 1.7


def test_a_ledger_that_is_being_written(tmp_path):
    text = '{"step": 1, "step_s": 0.5, "loss": 3.0, "rank": 2}\n{"step": 2, "step_s": 0.4, "loss": NaN}\n{"st'
    found = written(tmp_path, text, "ledger.jsonl")
    (run,) = found.runs
    assert (found.kind, run.step.tolist(), run.step_s.tolist(), run.rank) == ("ledger", [1, 2], [0.5, 0.4], 2)
    assert np.isnan(run.loss[1])
    assert np.isnan(run.mfu).all()
    assert "1 line(s) that are no JSON" in found.notes[0]


def test_the_hccl_tuner(tmp_path):
    head = (
        "op_type,size_bytes,data_type,reduce_type,engine,algorithm.executor_type,algorithm.template_type,HCCL_BUFFSIZE,"
        "ranks.ranks,ranks.npus_per_server,ranks.servers,ranks.pods,ranks.super_pods,check_result,alg_bandwidth(GB/s),"
        "alg_latency(us),timestamp(ms)\n"
    )
    row = "AllReduce,1073741824,fp32,sum,aicpu,mesh,{},200,128,8,16,1,1,success,102.83,{},1\n"
    found = written(tmp_path, head + row.format("nhr", "11000.00") + row.format("ring", "10442.38"))
    (point,) = found.points
    assert (point.op, dict(point.sizes)) == ("allreduce", {"bytes": 2**30, "ranks": 128, "nodes": 16})
    assert point.median_s == pytest.approx(10442.38e-6)  # the faster algorithm
