"""Which calibration is taken, what completes it, and what a broken one says."""

import textwrap

import pytest

from planner.cluster import load
from planner.cluster.load import calibration, calibration_file, generations, hardware
from planner.errors import CalibrationError

CONSTANT = "{{value: {0}, low: 0.1, high: 1.0, kind: calibrated, source: fit of 67 rows}}"


def text(name, device="[910B2, 910B3]", framework="mindformers", generation="r1.3", date="2024-11-01", **constants):
    entries = "\n".join(f"  {key}: {CONSTANT.format(value)}" for key, value in constants.items()) or "  {}"
    return (
        textwrap.dedent(
            f"""
        name: "{name}"
        device: {device}
        framework: {framework}
        generation: "{generation}"
        date: {date}
        residual_log_p10: -0.12
        residual_log_p90: 0.1
        rows: 67
        sources: [calibration/measurements/step-times.csv]
        constants:
        """
        )
        + (entries if constants else "  {}")
        + "\n"
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    original = load.data_directory
    monkeypatch.setattr(load, "data_directory", lambda name: tmp_path if name == "calibration" else original(name))
    (tmp_path / "priors-ascend.yaml").write_text(text("priors", matmul=0.5, attention=0.4, generation="prior"))
    (tmp_path / "old.yaml").write_text(text("old", generation="r1.3", date="2024-11-01", matmul=0.6))
    (tmp_path / "new.yaml").write_text(text("new", generation="1.9", date="2026-03-01", matmul=0.8))
    (tmp_path / "other.yaml").write_text(text("other", framework="mindspeed", date="2026-04-01", matmul=0.7))
    return tmp_path


def test_newest_generation_of_the_framework_completed_from_priors(folder):
    found = calibration(hardware("910B3"), "mindformers")
    assert (found.name, found.generation, found.device, found.rows) == ("new", "1.9", "910B3", 67)
    assert (found["matmul"], found["attention"]) == (0.8, 0.4)
    assert (found.residual_log_p10, found.residual_log_p90) == (-0.12, 0.1)
    assert found.constants["matmul"].kind == "calibrated"


def test_named_generation(folder):
    assert calibration(hardware("910B3"), "mindformers", "r1.3")["matmul"] == 0.6
    assert calibration(hardware("910B3"), "mindformers", "prior")["matmul"] == 0.5
    assert generations(hardware("910B3"), "mindformers") == ("r1.3", "1.9")


def test_unknown_generation_lists_the_legal_ones(folder):
    with pytest.raises(CalibrationError, match="generation 'r9' for 910B3 with mindformers; legal: r1.3, 1.9, prior"):
        calibration(hardware("910B3"), "mindformers", "r9")


def test_framework_variants_fall_back_on_the_family(folder):
    assert calibration(hardware("910B3"), "mindformers-legacy").framework == "mindformers-legacy"
    assert calibration(hardware("910B3"), "mindformers-legacy")["matmul"] == 0.8
    assert calibration(hardware("910B3"), "mindspeed")["matmul"] == 0.7


def test_device_without_a_file_gets_the_priors(folder):
    found = calibration(hardware("910C"), "mindformers")
    assert (found.generation, found.device, found["matmul"]) == ("prior", "910C", 0.5)


def test_no_file_and_no_priors(folder):
    with pytest.raises(
        CalibrationError, match="no calibration for H100 with megatron, and no priors for nvidia devices"
    ):
        calibration(hardware("H100"), "megatron")


def test_same_date_orders_releases_by_number(folder):
    for release in ("1.10", "1.9"):
        (folder / f"x{release}.yaml").write_text(text(release, generation=release, date="2027-01-01", matmul=0.9))
    assert calibration(hardware("910B3"), "mindformers").generation == "1.10"


def test_own_file(folder, tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text(text("mine", device="lab", matmul=0.9))
    with pytest.raises(CalibrationError, match="is for lab, not for 910B3"):
        calibration_file(path, hardware("910B3"), "mindformers")
    path.write_text(text("mine", device="Atlas 800T A2", matmul=0.9))
    found = calibration_file(path, hardware("910B3"), "mindformers")
    assert (found["matmul"], found["attention"]) == (0.9, 0.4)
    with pytest.raises(CalibrationError, match="is for mindformers, not for megatron"):
        calibration_file(path, hardware("910B3"), "megatron")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows: 67", "rows: -1", "'rows' is -1"),
        ("rows: 67", "row: 67", r"unknown key 'row', did you mean 'rows'\?"),
        ("low: 0.1", "low: 0.9", r"'constants.matmul' has value 0.8 outside its interval \[0.9, 1\]"),
        (
            "kind: calibrated",
            "kind: guess",
            "'constants.matmul.kind' is 'guess'; legal: datasheet, measured, calibrated, prior",
        ),
        (", source: fit of 67 rows", "", "key 'constants.matmul.source' is missing"),
        ("residual_log_p10: -0.12", "residual_log_p10: 0.5", "'residual_log_p10' 0.5 is above 'residual_log_p90' 0.1"),
        ("device: [910B2, 910B3]", "device: []", "'device' is empty"),
        ("date: 2026-03-01\n", "", "key 'date' is missing"),
        ('generation: "r1.3"', "generation: 1.10", "'generation' must be a text, not 1.1; put it in quotes"),
    ],
)
def test_broken_files(tmp_path, old, new, message):
    good = text("x", date="2026-03-01", matmul=0.8)
    assert good.count(old) == 1
    path = tmp_path / "x.yaml"
    path.write_text(good.replace(old, new))
    with pytest.raises(CalibrationError, match=message) as caught:
        calibration_file(path, hardware("910B3"), "mindformers")
    assert str(path) in str(caught.value)
