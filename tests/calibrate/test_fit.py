"""Fitting constants: planted values come back, few rows move little, left-out rows match a full refit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from planner.calibrate.calibration_files import remake
from planner.calibrate.cases import read_cases, truth_paths
from planner.calibrate.fit import (
    DENSE_KEYS,
    GENERATION_SPREAD,
    TimeCase,
    default_priors,
    execution,
    fit,
    generation_fit,
    log_error,
    predict,
    time_case,
)
from planner.calibrate.time_sets import EXCLUDED, SETS, fit_sets, generation_of, work_of
from planner.cluster.load import calibration, calibration_file, data_directory, hardware
from planner.errors import CalibrationError
from planner.observe.published import read_step_times

TRUTH = Path(__file__).parents[2] / "calibration" / "measurements"
ROWS = {row.case_id: row for row in read_step_times(TRUTH / "step-times.csv")}


@pytest.fixture(scope="module")
def dense() -> list[TimeCase]:
    """Every third fitted dense row of A2 devices: enough variety for quick fits."""
    cases, _ = read_cases(truth_paths())
    return [case for case in cases if SETS[0].holds(case) and case.case_id not in EXCLUDED][::3]


def test_planted_constants_come_back(dense: list[TimeCase]) -> None:
    priors = default_priors(dense[0])
    planted = {key: constant.value for key, constant in priors.items()} | {
        "matmul_efficiency": 0.86, "attention_efficiency": 0.55, "tp_exposed": 0.9, "tp_exposed_overlapped": 0.35,
        "launch_s": 2e-5,
    }  # fmt: skip
    measured = [replace(case, measured_s=float(predict(case, planted).step_s[0])) for case in dense]
    found = fit(measured, priors)
    assert np.abs(np.expm1(found.log_error)).mean() < 0.012
    assert found.values["matmul_efficiency"] == pytest.approx(0.86, rel=0.03)
    assert found.values["attention_efficiency"] == pytest.approx(0.55, rel=0.10)
    assert found.values["tp_exposed"] == pytest.approx(0.9, rel=0.10)
    for key in DENSE_KEYS:
        constant = found.constants[key]
        assert constant.kind == "calibrated"
        assert constant.low < constant.value < constant.high
    untouched = set(priors) - set(DENSE_KEYS)
    assert {key: found.constants[key] for key in untouched} == {key: priors[key] for key in untouched}


def test_one_row_moves_constants_little_and_never_out_of_their_interval(dense: list[TimeCase]) -> None:
    case = dense[0]
    priors = default_priors(case)
    base = {key: constant.value for key, constant in priors.items()}
    for factor in (0.3, 0.8, 1.25, 3.0):
        row = replace(case, measured_s=factor * float(predict(case, base).step_s[0]))
        found = fit([row], priors)
        for key in DENSE_KEYS:
            assert priors[key].low <= found.values[key] <= priors[key].high
        assert 0 < (math.log(factor) + log_error(row, found.values)) / math.log(factor) < 1  # pulled, not pushed
    own = generation_fit([replace(case, measured_s=10 * case.measured_s)], priors)
    moved = own.values["matmul_efficiency"] / priors["matmul_efficiency"].value
    assert 1 / GENERATION_SPREAD <= moved < 1


def test_outliers_lose_their_weight(dense: list[TimeCase]) -> None:
    priors = default_priors(dense[0])
    plain = fit(dense, priors)
    spoiled = fit([replace(dense[0], measured_s=20 * dense[0].measured_s), *dense[1:]], priors)
    for key in DENSE_KEYS:
        assert spoiled.values[key] == pytest.approx(plain.values[key], rel=0.06)


def test_left_out_rows_match_a_full_refit(dense: list[TimeCase]) -> None:
    priors = default_priors(dense[0])
    whole = fit(dense, priors)
    shape = dense[0].shape
    rows = np.array([case.shape == shape for case in dense])
    refit = fit([case for case in dense if case.shape != shape], priors).values
    quick = whole.without(rows)
    for key in DENSE_KEYS:
        assert quick[key] == pytest.approx(refit[key], rel=0.02)
    left = whole.left_out(lambda case: case.shape)
    for i in np.flatnonzero(rows):
        assert left[i] == pytest.approx(log_error(dense[i], refit), abs=0.004)


def test_order_of_rows_does_not_matter(dense: list[TimeCase]) -> None:
    priors = default_priors(dense[0])
    there, back = fit(dense, priors), fit(dense[::-1], priors)
    for key in DENSE_KEYS:
        assert there.values[key] == pytest.approx(back.values[key], rel=1e-6)


def test_nothing_to_fit_and_unknown_constants_are_refused(dense: list[TimeCase]) -> None:
    priors = default_priors(dense[0])
    with pytest.raises(CalibrationError, match="nothing to fit"):
        fit([], priors)
    with pytest.raises(CalibrationError, match="constant 'warp' cannot be fitted"):
        fit(dense[:1], priors, ("warp",))


@pytest.mark.parametrize(
    ("case_id", "message"),
    [
        ("MF-r1.3.0-qwen2-72b-32768-900A2", "flagged as impossible or doubtful"),
        ("MSL-GPT3-175B-linearity-512", "incomplete layout, missing pp, dp"),
        ("SC21-1.7B", "incomplete layout, mbs not published"),
        ("MSDOC-llama2_13b-ladder1", "which variant of the device ran is not published"),
        ("PANGU-ULTRA-135B", "incomplete layout, micro_batches not published"),
    ],
)
def test_rows_that_cannot_be_predicted_say_why(case_id: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        time_case(ROWS[case_id])


def test_switches_of_a_run_follow_its_row() -> None:
    plain = execution(ROWS["ML1-LLaMA2-7B-tp8"])
    assert (plain.tp_overlap, plain.dp_overlap, plain.eager) == (False, False, True)
    assert execution(ROWS["ML3-LLaMA2-13B-4k"]).tp_overlap
    assert execution(ROWS["ML3-Qwen2-7B-4k"]).dp_overlap
    graph = execution(ROWS["MF-r1.3.0-llama2_70b_64p-4096-900A2"])
    assert (graph.tp_overlap, graph.dp_overlap, graph.eager) == (True, True, False)
    assert execution(ROWS["MF-r1.3.0-Qwen-14B-8192-800TA2-fp16"]).tp_overlap  # interleaved micro-batches
    assert not execution(ROWS["MSLCP-LLaMA2-7B-32k-megatron_cp_algo"]).causal_skip
    assert execution(ROWS["MSLCP-LLaMA2-7B-32k-adaptive_cp_algo"]).causal_skip
    assert execution(ROWS["TTA100-llama3-8B-sel-op"]).selective == ("norm", "activation", "alternate_matmuls")


def test_excluded_rows_exist_and_belong_to_a_set() -> None:
    for case_id in EXCLUDED:
        case = time_case(ROWS[case_id])
        assert any(spec.holds(case) for spec in SETS), case_id


def test_every_case_is_in_at_most_one_set() -> None:
    cases, _ = read_cases(truth_paths())
    for case in cases:
        assert sum(spec.holds(case) for spec in SETS) <= 1, case.case_id
    assert {work_of(case) for case in cases} == {"dense", "moe", "cp"}
    assert generation_of(time_case(ROWS["ML3-LLaMA2-13B-4k"])) == "1.0.RC3"
    assert generation_of(time_case(ROWS["MF-dev-TeleChat2_7b-8192-800TA2"])) == "1.5"


@pytest.fixture(scope="module")
def remade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrations written anew from the measurements."""
    folder = tmp_path_factory.mktemp("calibration")
    remake(folder, "2026-11-30")
    return folder


@pytest.mark.slow
def test_shipped_calibrations_are_what_the_data_give(remade: Path) -> None:
    shipped = data_directory("calibration")
    names = {path.name for path in shipped.glob("*.yaml") if not path.name.startswith("priors-")}
    assert names == {path.name for path in remade.glob("*.yaml")}
    for name in sorted(names):
        device = hardware(str(_listed(remade / name, "device")))
        framework = str(_listed(remade / name, "framework"))
        new = calibration_file(remade / name, device, framework)
        old = calibration(device, framework, new.generation)
        assert new.rows == old.rows
        own = yaml.safe_load((remade / name).read_text(encoding="utf-8"))["constants"]
        assert set(own) == set(yaml.safe_load((shipped / name).read_text(encoding="utf-8"))["constants"])
        for key in own:  # what the file leaves out is completed elsewhere
            assert old.constants[key].value == pytest.approx(new.constants[key].value, rel=0.01), (name, key)
        assert new.residual_log_p10 == pytest.approx(old.residual_log_p10, abs=0.01)
        assert new.residual_log_p90 == pytest.approx(old.residual_log_p90, abs=0.01)


def _listed(path: Path, key: str) -> str:
    line = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(f"{key}: ["))
    return line.split("[")[1].rstrip("]").split(",")[0].strip()


@pytest.mark.slow
def test_residuals_stand_beside_the_constants(remade: Path) -> None:
    text = (remade / "residuals" / "ascend-a2-mindformers-1.3.csv").read_text(encoding="utf-8").splitlines()
    assert text[0] == "case_id,measured_s,predicted_s,left_out_s"
    assert len(text) == 1 + 22
    first = dict(zip(text[0].split(","), text[1].split(","), strict=True))
    assert float(first["measured_s"]) == pytest.approx(ROWS[first["case_id"]].measured["step_s"], rel=1e-3)


def test_an_unwritable_folder_is_named(tmp_path: Path, dense: list[TimeCase]) -> None:
    missing = tmp_path / "nowhere" / "deeper"
    small = tmp_path / "few.csv"
    lines = (TRUTH / "step-times.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines[1:] if line.startswith("ML1-LLaMA2-7B-tp8")]
    small.write_text("\n".join([lines[0], *kept]) + "\n", encoding="utf-8")
    with pytest.raises(CalibrationError, match="calibrations cannot be written to .*nowhere"):
        remake(missing, "2026-11-30", [small])


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    small = tmp_path / "few.csv"
    lines = (TRUTH / "step-times.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines[1:] if line.startswith("ML1-LLaMA2-7B-tp8")]
    small.write_text("\n".join([lines[0], *kept]) + "\n", encoding="utf-8")
    folder = tmp_path / "new"
    written = remake(folder, "2026-11-30", [small], force=False)
    before = written[0].read_text(encoding="utf-8")
    with pytest.raises(CalibrationError, match="has ascend-a2-mindspeed-1.0.rc1.yaml, .* already; replace them with"):
        remake(folder, "2026-12-01", [small], force=False)
    assert written[0].read_text(encoding="utf-8") == before
    remake(folder, "2026-12-01", [small])
    assert "date: 2026-12-01" in written[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("thin", ["mindformers-1.5", "mindspeed-0.2023", "mindspeed-1.0.rc1", "mindspeed-2"])
def test_thin_generations_have_no_narrower_interval_than_the_best_known(thin: str) -> None:
    family, generation = thin.split("-")
    card = hardware("910B2")
    few, many = calibration(card, family, generation), calibration(card, "mindspeed", "1.0.RC3")
    assert few.rows < 10 <= many.rows
    assert few.residual_log_p10 <= many.residual_log_p10 <= -0.14  # releases scatter by so much
    assert few.residual_log_p90 >= many.residual_log_p90 >= 0.14


def test_own_runs_make_one_file(tmp_path: Path) -> None:
    small = tmp_path / "few.csv"
    lines = (TRUTH / "step-times.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines[1:] if line.startswith(("ML1-LLaMA2-7B-tp8", "ML1-Baichuan"))]
    small.write_text("\n".join([lines[0], *kept]) + "\n", encoding="utf-8")
    written = remake(tmp_path, "2026-11-30", [small])
    assert [path.name for path in written] == ["ascend-a2-mindspeed-1.0.rc1.yaml", "ascend-a2-mindspeed-1.0.rc1.csv"]
    record = calibration_file(written[0], hardware("910B2"), "mindspeed")
    assert (record.rows, record.generation) == (3, "1.0.RC1")


@pytest.mark.slow
def test_sets_are_fitted_in_order_of_their_bases() -> None:
    cases, _ = read_cases(truth_paths())
    few = [case for case in cases if case.cluster.hardware.name in {"910B2", "910B3"}]
    done = fit_sets(few)
    assert list(done) == ["Ascend A2 dense", "Ascend A2 MoE", "Ascend A2 context parallel"]
    base = done["Ascend A2 dense"].fit.values
    for name in ("Ascend A2 MoE", "Ascend A2 context parallel"):
        assert done[name].fit.values["matmul_efficiency"] == base["matmul_efficiency"]
    without = [case for case in few if case.model.moe is not None]
    with pytest.raises(KeyError):
        fit_sets(without)["Ascend A2 MoE"]


def objective(cases: list[TimeCase], priors, keys, position: np.ndarray) -> float:
    """The docstring's sum, written out again."""
    values = {key: constant.value for key, constant in priors.items()}
    values |= {key: float(np.exp(x)) for key, x in zip(keys, position, strict=True)}
    rows = sum(2 * (math.sqrt(1 + (log_error(case, values) / 0.08) ** 2) - 1) for case in cases)
    pull = 0.0
    for key, x in zip(keys, position, strict=True):
        sigma = math.log(priors[key].high / priors[key].low) / (2 * 1.2815515655446004)
        pull += ((x - math.log(priors[key].value)) / sigma) ** 2
    return rows + pull


@pytest.mark.parametrize("factor", [0.75, 1.0, 1.6])
def test_the_minimum_of_the_docstring_also_where_bounds_are_active(dense: list[TimeCase], factor: float) -> None:
    """A second opinion from another optimiser; x 0.75 drives constants to their bounds."""
    from scipy.optimize import minimize

    some = [replace(case, measured_s=factor * case.measured_s) for case in dense[::2]]
    priors = default_priors(some[0])
    found = fit(some, priors, DENSE_KEYS)
    bounds = [(math.log(priors[key].low), math.log(priors[key].high)) for key in DENSE_KEYS]
    if factor == 0.75:
        assert any(min(x - low, high - x) < 1e-3 for x, (low, high) in zip(found.position, bounds, strict=True))
    other = minimize(lambda x: objective(some, priors, DENSE_KEYS, x), found.position, method="L-BFGS-B", bounds=bounds)
    ours = objective(some, priors, DENSE_KEYS, found.position)
    assert ours <= other.fun * (1 + 1e-3)
