"""What was measured, folded into a calibration with its history."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest

from planner.cluster.load import calibration_file
from planner.errors import CalibrationError
from planner.validate.run.run import predict
from planner.validate.run.update import ENOUGH, KEYS, fold, widened
from tests.validate.run.samples import MACHINE, constants, validation

DAY = datetime.date(2026, 12, 1)


@pytest.fixture(autouse=True)
def _no_shipped_constants(monkeypatch):
    """Whatever is shipped for the CPU, these tests complete files from their own constants."""
    monkeypatch.setattr("planner.cluster.load.calibration", lambda *_: constants())


def read(path):
    return calibration_file(path, MACHINE.hardware, "mindformers-legacy")


def test_a_new_file_predicts_nearer(tmp_path):
    mine = tmp_path / "mine.yaml"
    found = [validation(1.4), validation(1.4, micro_batch_size=2)]
    changes = fold(found, mine, DAY)
    assert "fitted to 2 validations, history in mine.validations.jsonl" in changes[0]
    assert any(" -> " in change for change in changes[1:])
    after = read(mine)
    for one in found:
        again = predict(one.shrunk, MACHINE, after)
        assert abs(one.observed.step_s / again.step_s - 1.0) < 0.2 < one.ratio - 1.0
    assert after.sources[-1].startswith("2026-12-01: 2 validated, 2 in all; ")
    assert {after.constants[key].kind for key in KEYS if key in after.constants} == {"calibrated"}


def test_what_was_measured_as_predicted_moves_nothing(tmp_path):
    changes = fold([validation(1.0)], tmp_path / "mine.yaml", DAY)
    assert len(changes) == 1
    assert "no constant moved" in read(tmp_path / "mine.yaml").sources[-1]


def test_updates_add_up_in_any_order(tmp_path):
    first, second = validation(1.3), validation(0.8, micro_batch_size=2)
    for name, order in (("ab", (first, second)), ("ba", (second, first))):
        for one in order:
            fold([one], tmp_path / f"{name}.yaml", DAY)
    texts = [read(tmp_path / f"{name}.yaml") for name in ("ab", "ba")]
    for key in KEYS:
        if key in texts[0].constants:
            assert texts[0].constants[key].value == pytest.approx(texts[1].constants[key].value, rel=2e-3)
    history = (tmp_path / "ab.validations.jsonl").read_text().splitlines()
    assert len(history) == 3
    assert json.loads(history[0])["base"]["matmul_efficiency"]["value"] == 0.3
    assert len(read(tmp_path / "ab.yaml").sources) == 1 + 2


def test_the_rest_of_a_file_stays(tmp_path):
    mine = tmp_path / "mine.yaml"
    fold([validation(1.2)], mine, DAY)
    mine.write_text("# made on Tuesday\n" + mine.read_text())
    fold([validation(1.2)], mine, DAY)
    assert mine.read_text().startswith("# made on Tuesday\n")


def test_own_errors_make_the_interval_once_there_are_enough(tmp_path):
    mine = tmp_path / "mine.yaml"
    for number in range(ENOUGH):
        fold([validation(1.1, micro_batch_size=2**number)], mine, DAY)
    assert read(mine).residual_log_p90 != 0.2
    assert read(mine).residual_log_p10 < 0.0 < read(mine).residual_log_p90


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a history of validations"),
        ("{}\n", "cannot be read as a history"),
        ('{"base": {}, "rows": 0}\n{"hardware": "910B2"}\n', "is the history of 910B2, not of cpu"),
        ('{"base": {}, "rows": 0}\n{"hardware": "cpu"}\n', "a line of the history of validations is damaged"),
    ],
)
def test_a_damaged_history(tmp_path, text, message):
    (tmp_path / "mine.validations.jsonl").write_text(text)
    with pytest.raises(CalibrationError, match=message):
        fold([validation(1.2)], tmp_path / "mine.yaml", DAY)
    assert not (tmp_path / "mine.yaml").exists()


def test_nothing_is_half_written(tmp_path):
    with pytest.raises(CalibrationError, match="cannot be written"):
        fold([validation(1.2)], tmp_path / "absent" / "mine.yaml", DAY)
    (tmp_path / "mine.validations.jsonl").mkdir()
    with pytest.raises(CalibrationError, match="history"):
        fold([validation(1.2)], tmp_path / "mine.yaml", DAY)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.validations.jsonl"]


def test_a_measured_constant_may_still_move():
    loose = constants().constants["launch_s"]
    assert widened(loose) == loose
    wide = widened(replace(constants().constants["matmul_efficiency"], low=0.29, high=0.31))
    assert (wide.low, wide.high) == pytest.approx((0.2, 0.45))
    assert widened(constants().constants["dp_exposed"]).high == 1.0
