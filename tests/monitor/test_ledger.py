"""The ledger is read back as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.monitor.ledger import Ledger, Planned
from planner.observe.read import read
from tests.cli.runner import run


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    ledger = Ledger(path, Planned(tokens=4096.0, mfu_seconds=0.8), rank=3)
    for step in range(1, 6):
        ledger.add(step=step, step_s=2.0, loss=float("nan") if step == 2 else 3.0 / step, grad_norm=None, data_s=0.1)
    ledger.close()
    (seen,) = read(path).runs
    assert seen.rank == 3
    np.testing.assert_array_equal(seen.step, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(seen.tokens_per_s, 2048.0)
    np.testing.assert_allclose(seen.mfu, 0.4)
    np.testing.assert_allclose(seen.loss, [3.0, np.nan, 1.0, 0.75, 0.6])
    assert np.isnan(seen.grad_norm).all()
    assert "NaN" not in path.read_text()


def test_a_closed_ledger_goes_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", Planned())
    for step in (1, 2):
        ledger.add(step=step, step_s=1.0)
        ledger.close()
    assert len((tmp_path / "l.jsonl").read_text().splitlines()) == 2


def test_rates_come_from_the_plan(tmp_path: Path) -> None:
    assert run(f"suggest --params 8B --cards 8 --hardware 910b2 --emit {tmp_path / 'out'}").code == 0
    body = json.loads((tmp_path / "out" / "plan.json").read_text())
    planned = Planned.read(tmp_path / "out" / "plan.json")
    assert planned.tokens == body["workload"]["seq"] * body["workload"]["global_batch"] / 8
    assert planned.mfu_seconds == pytest.approx(body["estimate"]["mfu"] * body["estimate"]["step_s"])
