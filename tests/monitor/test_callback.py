"""The callback in real trainings on the CPU, and that nothing it meets stops one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from planner.observe.read import read

pytest.importorskip("mindspore")
pytestmark = pytest.mark.slow

TRAIN = Path(__file__).with_name("train.py")


def context(**known):
    return SimpleNamespace(original_args=lambda: SimpleNamespace(**known))


def train(mode: str, ledger: Path | str, plan: str = "-") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN), mode, str(ledger), plan], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "GLOG_v": "3"},
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["graph", "sink", "pynative"])
def test_a_real_training_leaves_a_ledger(tmp_path: Path, mode: str) -> None:
    """20 batches in each of 2 epochs; MindSpore itself turns sink off on the CPU, and says so."""
    begin = time.time()
    done = train(mode, tmp_path / "rank_{rank}.jsonl")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trained False" in done.stdout
    (seen,) = read(tmp_path / "rank_0.jsonl").runs
    np.testing.assert_array_equal(seen.step, np.arange(1, 41))
    assert seen.loss[-1] < seen.loss[0]
    np.testing.assert_allclose(seen.learning_rate, 1e-2)
    assert 0 < float(seen.step_s.sum()) < time.time() - begin


def test_a_sink_is_one_line_with_its_mean_step(tmp_path: Path) -> None:
    from planner.monitor import PlanMonitor

    monitor = PlanMonitor(str(tmp_path / "l.jsonl"))
    monitor.on_train_begin(context(cur_step_num=0))
    for step in (20, 40):
        begin = time.perf_counter()
        monitor.on_train_step_begin(context())
        time.sleep(0.05)
        monitor.on_train_step_end(context(net_outputs=np.float32(1.0), cur_step_num=step, dataset_sink_mode=True))
        spent = time.perf_counter() - begin
    (seen,) = read(tmp_path / "l.jsonl").runs
    np.testing.assert_array_equal(seen.step, [20, 40])
    assert 0.05 / 20 <= seen.step_s[1] <= spent / 20 * 1.5
    assert np.isnan(seen.data_s).all()


def test_a_ledger_that_cannot_be_written_does_not_stop_the_training() -> None:
    done = train("graph", "/proc/nothing/ledger.jsonl")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trained True" in done.stdout
    assert done.stderr.count("planner monitor stops: FileNotFoundError") == 1


def test_a_plan_that_cannot_be_read_does_not_stop_the_training(tmp_path: Path, capsys) -> None:
    from planner.monitor import PlanMonitor

    (tmp_path / "plan.json").write_text("{")
    for plan in ("plan.json", "none.json"):
        monitor = PlanMonitor(str(tmp_path / "l.jsonl"), plan=str(tmp_path / plan))
        assert monitor.is_broken
        monitor.on_train_step_end(None)
    assert capsys.readouterr().err.count("planner monitor stops") == 2


@pytest.mark.parametrize("outputs", [None, "text", (), ("x", None), object(), (np.float32(2.0), True, "y")])
def test_odd_outputs_are_no_error(tmp_path: Path, outputs) -> None:
    from planner.monitor import PlanMonitor

    monitor = PlanMonitor(str(tmp_path / "l.jsonl"))
    monitor.on_train_begin(context())
    monitor.on_train_step_begin(context())
    monitor.on_train_step_end(context(net_outputs=outputs, cur_step_num=1))
    assert not monitor.is_broken
    assert list(read(tmp_path / "l.jsonl").runs[0].step) == [1]


def test_outputs_with_loss_scale_and_norm(tmp_path: Path) -> None:
    """What MindFormers' training cell gives: loss, overflow, scale, learning rate, norm."""
    from planner.monitor import PlanMonitor

    monitor = PlanMonitor(str(tmp_path / "l.jsonl"))
    monitor.on_train_begin(context())
    outputs = (np.float32(2.5), np.bool_(False), np.float32(65536.0), np.float32(1e-4), np.array([10.5]))
    monitor.on_train_step_end(context(net_outputs=outputs, cur_step_num=1))
    (seen,) = read(tmp_path / "l.jsonl").runs
    assert (seen.loss[0], seen.loss_scale[0], seen.grad_norm[0]) == (2.5, 65536.0, 10.5)
    assert seen.learning_rate[0] == pytest.approx(1e-4)


def test_the_pynative_trainer_of_mindformers(tmp_path: Path) -> None:
    from planner.monitor import PlanMonitor

    monitor = PlanMonitor(str(tmp_path / "l.jsonl"))
    for step in (1, 2):
        monitor.on_step_begin(None, SimpleNamespace(global_step=step))
        monitor.on_step_end(None, SimpleNamespace(global_step=step), loss=np.float32(3.0), grad_norm=1.5)
    (seen,) = read(tmp_path / "l.jsonl").runs
    np.testing.assert_array_equal(seen.step, [1, 2])
    np.testing.assert_array_equal(seen.loss, [3.0, 3.0])
    np.testing.assert_array_equal(seen.grad_norm, [1.5, 1.5])


def test_mindformers_builds_it_from_yaml(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("mindformers")
    from mindformers.core.callback.build_callback import build_callback

    (tmp_path / "planner_monitor.py").write_text("from planner.monitor import PlanMonitor\n")
    monkeypatch.setenv("REGISTER_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    section = {"type": "PlanMonitor", "auto_register": "planner_monitor.PlanMonitor", "path": str(tmp_path / "l.jsonl")}
    (built,) = build_callback([section])
    built.on_train_begin(context())
    built.on_train_step_end(context(net_outputs=np.float32(1.0), cur_step_num=1))
    assert list(read(tmp_path / "l.jsonl").runs[0].step) == [1]
