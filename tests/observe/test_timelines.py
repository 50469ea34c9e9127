import json

import pytest

from planner.errors import SpecError
from planner.observe.read import read
from planner.observe.timelines import steps_of_events

CPU = "j_mindspore29_cpu/{}_host_7794_20261201003709528_ascend_ms"


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_three_profiled_steps_on_the_cpu(data, mode):
    found = read(data / CPU.format(mode))
    assert [(s.step, s.rank) for s in found.steps] == [(1, 0), (2, 0), (3, 0)]
    busy = sum(s.compute_s for s in found.steps)
    kernels = sum(k.total_s for k in found.kernels)
    assert busy == pytest.approx(kernels, rel=0.02)  # one thread: operators do not overlap


def test_trace_and_timestamps_agree(data):
    folder = data / CPU.format("graph")
    trace = read(folder / "ASCEND_PROFILER_OUTPUT/trace_view.json").steps
    stamps = read(folder / "FRAMEWORK/cpu_op_execute_timestamp_0.txt").steps
    for one, other in zip(trace, stamps, strict=True):
        assert one.compute_s == pytest.approx(other.compute_s, rel=1e-3)


def test_steps_by_the_operator_that_runs_once():
    spans = {"loss": [(0.0, 1.0), (10.0, 1.0)], "mul": [(1.0, 1.0), (2.0, 1.0), (11.0, 1.0), (11.5, 1.0)]}
    first, second = steps_of_events(spans, 0, "x")
    assert (first.compute_s, first.free_s) == (3.0, 7.0)
    assert (second.compute_s, second.free_s) == (2.5, 0.0)  # overlapping operators count once


def test_overlap_analysis_of_a_device(tmp_path):
    def event(name, ts, dur, pid=7):
        return {"ph": "X", "name": name, "pid": pid, "tid": 0, "ts": str(ts), "dur": dur}

    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "Overlap Analysis"}},
        event("ProfilerStep#4", 0, 100, 1), event("ProfilerStep#5", 100, 100, 1),
        event("Computing", 0, 60), event("Communication", 50, 40), event("Communication(Not Overlapped)", 60, 30),
        event("Free", 90, 10), event("Computing", 100, 90), event("Free", 190, 10),
    ]  # fmt: skip
    (tmp_path / "trace_view.json").write_text(json.dumps(events))
    first, second = read(tmp_path / "trace_view.json").steps
    assert (first.step, first.step_s) == (4, pytest.approx(100e-6))
    assert [first.compute_s, first.exposed_s, first.overlapped_s, first.free_s] == pytest.approx(
        [60e-6, 30e-6, 10e-6, 10e-6]
    )
    assert (second.compute_s, second.exposed_s) == (pytest.approx(90e-6), 0.0)


def test_a_trace_of_something_else(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]))
    with pytest.raises(SpecError, match="without Overlap Analysis"):
        read(tmp_path / "trace.json")
