"""What a plan keeps of its calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import api, inputs
from planner import plan as plans
from planner.cluster import kept
from planner.cluster.load import calibration, generations, hardware
from planner.errors import CalibrationError

A2 = hardware("910b3")


def plan_with(record, path: Path) -> Path:
    request = replace(
        inputs.request_for("8B", 8, A2, seq=4096, global_batch=64, framework="mindspeed"), calibration=record
    )
    best = api.search(replace(request, top=1)).estimates.row(0)
    plans.save(api.plan_of(request, best), path / "plan.json")
    return path / "plan.json"


@pytest.mark.parametrize("generation", generations(A2, "mindspeed"))
def test_a_shipped_generation_is_found_again(generation: str, tmp_path: Path) -> None:
    record = calibration(A2, "mindspeed", generation)
    file = plan_with(record, tmp_path)
    request, strategy, unread = inputs.read(file)
    assert request.calibration == record
    assert api.judged(request, strategy).step_s == plans.load(file).estimate["step_s"]
    assert "constants" not in plans.load(file).calibration
    assert not [line for line in unread if "calibration" in line]


def test_a_users_own_constants_travel_whole(tmp_path: Path) -> None:
    shipped = calibration(A2, "mindspeed")
    slower = replace(shipped.constants["matmul_efficiency"], value=0.5, low=0.4, kind="measured", source="own run")
    own = replace(shipped, name="mine", constants={**shipped.constants, "matmul_efficiency": slower})
    file = plan_with(own, tmp_path)
    request, strategy, _ = inputs.read(file)
    assert request.calibration == own
    assert api.judged(request, strategy).step_s == plans.load(file).estimate["step_s"]


def test_other_hardware_and_a_given_file_win(tmp_path: Path) -> None:
    file = plan_with(calibration(A2, "mindspeed", generations(A2, "mindspeed")[0]), tmp_path)
    request, _, _ = inputs.read(file, hardware="910b2")
    assert request.calibration == calibration(hardware("910b2"), "mindspeed")


def test_changed_and_lost_calibrations_are_said() -> None:
    record = calibration(A2, "mindspeed")
    body = kept.to_dict(record, A2, "mindspeed")
    found, remark = kept.from_dict({**body, "digest": "0" * 16}, A2, "mindspeed")
    assert found == record
    assert "has changed since the plan was made" in remark
    found, remark = kept.from_dict({**body, "generation": "9.9"}, A2, "mindspeed")
    assert found == record
    assert "which this planner does not have" in remark


@pytest.mark.parametrize("damage", [{"constants": {"launch_s": {"value": 1}}}, {"constants": 3}])
def test_damage_is_refused(damage: dict[str, object]) -> None:
    body = {**kept.to_dict(calibration(A2, "mindspeed"), A2, "mindspeed"), **damage}
    with pytest.raises(CalibrationError, match="damaged"):
        kept.from_dict(body, A2, "mindspeed")
