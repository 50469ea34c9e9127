"""What a run left behind, and its comparison with the prediction."""

from __future__ import annotations

import pytest

from planner.errors import ValidationError
from planner.validate.compared import Compared
from planner.validate.run.compare import compare, verdict
from planner.validate.run.launch import Ran
from planner.validate.run.observe import Observed, observe, read_operator_types, read_pool_peak, read_step_trace
from tests.validate.run.samples import estimate

RECORD = """Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)
1796095818671729125,79360,1073741824,79360
1796095818671840410,32922624,1073741824,603648
1796095818671916804,605696,1073741824,605696
"""
TYPES = """op_type,type_occurrences,execution_frequency(per-step),total_compute_time,avg_time(ms),percent
MatMul,222,111,146.269,0.658867,0.560909
BatchMatMul,64,32,13.6973,0.214021,0.0525264
AdamWeightDecay,78,39,16.6947,0.214034,0.0640206
AllReduce,4,2,20.0,5.0,0.01
Mul,382,191,24.4123,0.0639065,0.093616
"""
TRACE = """Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble
1,900000,50000,10000,60000,70000,1000000,0
2,800000,40000,10000,50000,60000,900000,0
"""


def log(rank: int, seconds: list[float], last: str = "parameters and states 1000 bytes", loss: str = "2.0") -> str:
    steps = "".join(f"step {i} loss {loss} {s:.6f} s 9 tokens/s/device\n" for i, s in enumerate(seconds, 1))
    return f"rank {rank} of 2, process {rank + 7}\n{steps}{last}\n"


def ran(folder, *logs: str) -> Ran:
    paths = []
    for rank, text in enumerate(logs):
        paths.append(folder / f"worker_{rank}.log")
        paths[-1].write_text(text)
    return Ran(logs=tuple(paths), profile=folder / "profile", seconds=9.0)


STEADY = [9.0, 2.0, 1.0, 0.4, 0.5, 0.6, 0.7, 5.0]


def test_median_of_the_slowest_rank_without_the_first_three(tmp_path):
    found = observe(ran(tmp_path, log(0, STEADY), log(1, [s + 0.1 for s in STEADY])))
    assert (found.step_s, found.best_s, found.steps) == pytest.approx((0.7, 0.5, 5))
    assert found.spread_s == pytest.approx(0.1)
    assert (found.static_bytes, found.peak_bytes, found.memory_from) == (1000, None, "no record of memory")


def test_memory_of_the_fullest_rank(tmp_path):
    for rank, text in enumerate((RECORD, RECORD.replace("32922624", "40000000"))):
        folder = tmp_path / "profile" / f"vm_{rank}_ascend_ms" / "FRAMEWORK"
        folder.mkdir(parents=True)
        (folder / f"cpu_ms_memory_record_{rank}.txt").write_text(text)
    found = observe(ran(tmp_path, log(0, STEADY), log(1, STEADY)))
    assert found.peak_bytes == 40_001_000
    counted = observe(ran(tmp_path, log(0, STEADY, "peak 1.500000 GiB"), log(1, STEADY, "peak 2.000000 GiB")))
    assert (counted.peak_bytes, counted.static_bytes) == (2 * 2**30, None)


def test_records_of_the_profiler(tmp_path):
    for name, text in (
        ("record", RECORD),
        ("empty", RECORD.splitlines()[0] + "\n"),
        ("types", TYPES),
        ("trace", TRACE),
    ):
        (tmp_path / name).write_text(text)
    assert read_pool_peak(tmp_path / "record") == 32922624
    assert read_pool_peak(tmp_path / "empty") == 0
    phases = read_operator_types(tmp_path / "types")
    assert phases == pytest.approx(
        {"matmul": 0.07998315, "elementwise": 0.01220615, "communication": 0.01, "optimizer": 0.00834735}
    )
    assert read_step_trace(tmp_path / "trace") == pytest.approx(
        {"computing": 0.8, "communication": 0.04, "overlapped": 0.01, "free": 0.06}
    )
    assert read_operator_types(tmp_path / "empty") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (log(0, STEADY[:3]), "rank 0 printed 3 steps; the first 3 are dropped, so at least 4 are needed"),
        (log(0, STEADY, loss="nan"), "rank 0: the loss of step 1 is nan; the run says nothing"),
        (log(0, STEADY).replace("step 2", "step 1"), "cannot be read: worker_0.log: step 1 follows step 1"),
    ],
)
def test_runs_that_say_nothing(tmp_path, text, message):
    with pytest.raises(ValidationError, match=message):
        observe(ran(tmp_path, text))


def observed(**changes: object) -> Observed:
    values = {
        "step_s": 1.2, "best_s": 1.0, "spread_s": 0.1, "steps": 9, "loss": 1.0, "static_bytes": 600, "peak_bytes": 1100,
        "memory_from": "record", "phases_s": {},
    }  # fmt: skip
    return Observed(**{**values, **changes})


def test_terms_beside_each_other():
    phases = {"matmul": 0.5, "elementwise": 0.2, "communication": 0.1, "optimizer": 0.1}
    rows = {row.term: row for row in compare(estimate(step_s=1.0), observed(phases_s=phases))}
    assert [*rows] == [
        "step time", "computation", "communication", "update", "the rest", "peak memory", "parameters and states",
        "activations, gradients",
    ]  # fmt: skip
    assert rows["step time"].ratio == pytest.approx(1.2)
    assert rows["step time"].inside is False  # 0.9 to 1.1
    assert rows["computation"].observed == pytest.approx(0.7)
    assert rows["the rest"].observed == pytest.approx(0.3)
    assert (rows["peak memory"].predicted, rows["peak memory"].observed) == (1000.0, 1100)
    assert rows["activations, gradients"].predicted == pytest.approx(500.0)
    assert rows["activations, gradients"].observed == 500


def test_time_terms_add_up_to_the_step():
    phases = {"matmul": 0.5, "elementwise": 0.2, "communication": 0.1, "optimizer": 0.1}
    rows = compare(estimate(step_s=1.0), observed(phases_s=phases))[1:5]
    assert sum(row.predicted or 0.0 for row in rows) == pytest.approx(1.0)
    trace = {"computing": 0.8, "communication": 0.04, "overlapped": 0.01, "free": 0.06}
    rows = compare(estimate(step_s=1.0), observed(phases_s=trace))[1:4]
    assert sum(row.predicted or 0.0 for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("step_s", "peak", "words"),
    [
        (1.05, 1000, "5% longer than predicted, inside the 80 % interval; the peak of memory was as predicted."),
        (0.8, 1100, "20% less than predicted, outside the 80 % interval; the peak of memory was 10% above the pred"),
    ],
)
def test_verdict(step_s, peak, words):
    assert words in verdict(compare(estimate(step_s=1.0), observed(step_s=step_s, peak_bytes=peak)))


def test_a_disturbed_run_is_known():
    assert observed(step_s=1.6, best_s=1.0).scattered
    assert not observed(step_s=1.4, best_s=1.0).scattered


def test_no_figure_no_ratio():
    row = Compared(term="x", unit="s", predicted=None, observed=1.0)
    assert (row.ratio, row.inside) == (None, None)
    assert Compared(term="x", unit="s", predicted=0.0, observed=1.0).ratio is None
