"""Accuracy of step times: how scores are counted, and the level that must be kept.

The level is that of left-out rows.  Limits are the project's acceptance figures; ``RECORDED`` is what was reached, and
a change that moves it is meant to be seen.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.accuracy.time import (
    Accuracy,
    accuracy,
    accuracy_of_file,
    left_out_errors,
    score,
    size_family,
)
from planner.calibrate.cases import read_cases
from planner.calibrate.fit import TimeCase
from planner.calibrate.time_sets import EXCLUDED, SETS, fit_sets
from planner.errors import CalibrationError

TRUTH = Path(__file__).parents[2] / "calibration" / "measurements"
B200 = next(spec for spec in SETS if spec.name == "B200 dense")


@pytest.fixture(scope="module")
def scored() -> Accuracy:
    """Everything, once."""
    return accuracy()


@pytest.fixture(scope="module")
def sweep() -> list[TimeCase]:
    """The B200 rows: three shapes under several layouts."""
    cases, _ = read_cases([TRUTH / "simulator-rows.csv"])
    return [case for case in cases if B200.holds(case)]


# ------------------------------------------------------------------------------------------- how scores are counted


def test_errors_by_hand(sweep: list[TimeCase]) -> None:
    errors = np.log1p([0.10, -0.10, 0.02, 0.0])
    group = score("four", sweep[:4], errors)
    assert (group.n, group.mape_percent, group.bias_percent, group.max_abs_percent) == (4, 5.5, 0.5, 10.0)
    assert group.p90_abs_percent == 10.0
    assert (group.cross_validated, group.constant_mfu_mape_percent, group.coverage_percent) == (False, None, None)


def test_perfect_and_reversed_predictions(sweep: list[TimeCase]) -> None:
    perfect = score("perfect", sweep, np.zeros(len(sweep)))
    assert (perfect.spearman, perfect.regret_percent) == (1.0, 0.0)
    assert (perfect.pair_order_percent, perfect.family_regret_percent) == (100.0, 0.0)
    batch = [int(c.table.dp[0] * c.table.micro_batch_size[0] * c.table.micro_batches[0]) for c in sweep]
    per_sample = np.log([c.measured_s * c.cluster.devices / b for c, b in zip(sweep, batch, strict=True)])
    backwards = score("reversed", sweep, -2.0 * per_sample)  # predicted 1 / measured
    assert backwards.spearman == -1.0
    assert backwards.regret_percent is not None
    assert backwards.regret_percent > 20.0


def test_interval_holds_what_the_other_rows_say(sweep: list[TimeCase]) -> None:
    rng = np.random.default_rng(0)
    many = [sweep[i % len(sweep)] for i in range(400)]
    normal = score("normal", many, rng.normal(0.0, 0.1, 400), "shape")
    assert normal.coverage_percent == pytest.approx(80.0, abs=2.0)


def test_constant_utilisation_is_exact_where_utilisation_is_constant(sweep: list[TimeCase]) -> None:
    one = sweep[0]
    longer = replace(one, workload=replace(one.workload, seq=4096), measured_s=one.measured_s)
    level = score("level", [one, longer, one], np.zeros(3), "case")
    assert level.constant_mfu_mape_percent == 0.0


def test_size_families(sweep: list[TimeCase]) -> None:
    assert len({size_family(case) for case in sweep if case.model.hidden == 8192 and case.model.layers == 12}) == 1


# --------------------------------------------------------------------------------------------- the level to be kept


@pytest.mark.slow
def test_dense_rows_of_a2(scored: Accuracy) -> None:
    for left_out, mape in (("shape", 8.8), ("release", 9.4)):
        group = scored.group("Ascend A2 dense", left_out)
        assert group.n == 65
        assert group.cross_validated
        assert group.mape_percent <= mape
        assert group.p90_abs_percent <= 18.0
        assert abs(group.bias_percent) <= 3.0
        assert group.constant_mfu_mape_percent is not None
        assert group.mape_percent <= group.constant_mfu_mape_percent - 5.0
        assert group.coverage_percent is not None
        assert 75.0 <= group.coverage_percent <= 90.0
        assert group.pair_order_percent is not None
        assert group.pair_order_percent >= 85.0  # 86 with a release left out; 89 before the refit
        assert group.family_regret_percent is not None
        assert group.family_regret_percent <= 5.0
        assert group.regret_percent is not None
        assert group.regret_percent <= 6.5  # a release left out; 3.1 before the refit
    everything = scored.group("Ascend A2 dense, with excluded rows", "shape")
    assert everything.n == 65 + len(EXCLUDED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left_out", "mape", "largest"),
    [
        ("Ascend A2 MoE", "case", 35.0, 100.0),
        ("Ascend A2 context parallel", "case", 14.0, 40.0),
        ("A100 Megatron dense", "", 3.4, 8.0),
        ("A100 Megatron dense", "shape", 5.0, 12.0),
        ("B200 dense", "", 2.9, 8.9),
        ("B200 dense", "shape", 4.9, 15.0),
    ],
)
def test_other_sets(scored: Accuracy, name: str, left_out: str, mape: float, largest: float) -> None:
    group = scored.group(name, left_out)
    assert group.mape_percent <= mape
    assert group.max_abs_percent <= largest


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), [("B200 dense", 22), ("A100 PCIe dense", 15)])
def test_sweeps_are_ranked_right(scored: Accuracy, name: str, n: int) -> None:
    group = scored.group(name, "shape")
    assert group.n == n
    assert group.spearman is not None
    assert group.spearman >= 0.95
    assert group.regret_percent is not None
    assert group.regret_percent <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ascend A2 MoE", "Ascend A2 context parallel", "A100 Megatron dense", "H100 MoE"])
def test_few_rows_do_not_claim_too_much(scored: Accuracy, name: str) -> None:
    spec = next(spec for spec in SETS if spec.name == name)
    held = scored.group(name, spec.left_out[0]).coverage_percent
    assert held is not None
    assert held >= 70.0  # of 8 to 10 rows: 7 or more, where 80 % cannot be met exactly


@pytest.mark.slow
def test_recorded_ranking_and_coverage(scored: Accuracy) -> None:
    dense = scored.group("Ascend A2 dense", "shape")
    assert dense.pair_order_percent == pytest.approx(89.1, abs=1.5)
    assert dense.family_regret_percent == pytest.approx(1.6, abs=0.5)
    assert dense.regret_percent == pytest.approx(2.3, abs=0.5)
    assert dense.coverage_percent == pytest.approx(84.6, abs=3.5)


#: Mean absolute error of left-out rows [percent] as reached, by group and what was left out.
RECORDED = {
    ("Ascend A2 dense", "shape"): 7.14,
    ("Ascend A2 dense", "release"): 8.9,
    ("Ascend A2 dense, with excluded rows", "shape"): 10.79,
    ("Ascend A2 MoE", "case"): 24.6,
    ("Ascend A2 context parallel", "case"): 11.2,
    ("Ascend 910A dense", "case"): 15.2,
    ("A100 Megatron dense", "shape"): 2.9,
    ("A100 torchtitan dense", "shape"): 3.2,
    ("A100 PCIe dense", "shape"): 7.2,
    ("B200 dense", "shape"): 2.9,
    ("B200 context parallel", "shape"): 3.54,
    ("B200 MoE", "case"): 1.88,
    ("H100 MoE", "shape"): 14.2,
}


@pytest.mark.slow
def test_recorded_level_is_kept(scored: Accuracy) -> None:
    reached = {key: scored.group(*key).mape_percent for key in RECORDED}
    for key, before in RECORDED.items():
        assert reached[key] == pytest.approx(before, abs=max(0.3, 0.03 * before)), key


@pytest.mark.slow
def test_json_form_and_named_exclusions(scored: Accuracy) -> None:
    data = json.loads(json.dumps(scored.to_dict()))
    keys = {
        "name",
        "n",
        "mape_percent",
        "p90_abs_percent",
        "bias_percent",
        "spearman",
        "regret_percent",
        "cross_validated",
    }
    assert all(keys <= set(group) for group in data["groups"])
    assert data["excluded"] == dict(EXCLUDED)
    assert "flagged" in data["skipped"]["ML3-InternLM2-20B-32k"]
    pairs = {(group["name"], group["left_out"]) for group in data["groups"]}
    assert len(pairs) == len(data["groups"])
    for spec in SETS:
        assert {(spec.name, ""), *((spec.name, kind) for kind in spec.left_out)} <= pairs


@pytest.mark.slow
def test_generation_constants_need_the_generation(scored: Accuracy) -> None:
    # with its release left out a row falls back on the constants of all releases
    shape, release = (scored.group("Ascend A2 dense", kind) for kind in ("shape", "release"))
    assert shape.mape_percent < release.mape_percent


# ---------------------------------------------------------------------------------------------------- any file


@pytest.mark.parametrize("name", ["step-times.csv", "simulator-rows.csv"])
def test_a_file_is_scored_with_the_shipped_calibrations(name: str) -> None:
    result = accuracy_of_file(TRUTH / name)
    assert not any(group.cross_validated for group in result.groups)
    by_name = {group.name: group for group in result.groups}
    if name == "simulator-rows.csv":
        assert by_name["B200, megatron core, dense"].mape_percent < 2.9
        assert by_name["A100-PCIE, megatron core, dense"].n == 15
    else:
        assert by_name["910B2, mindspeed 1.0.RC1, dense"].mape_percent < 5.0
        assert by_name["A100-80G, megatron 2022, dense"].mape_percent < 3.4


def table(path: Path, rows: list[dict[str, str]], leave_out: set[str] | None = None) -> Path:
    columns = [name for name in rows[0] if name not in (leave_out or set())]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def published() -> dict[str, dict[str, dict[str, str]]]:
    """Some rows of each file by case id, for spoiling."""
    names = {
        "step-times.csv": ("ML1-LLaMA2-7B-tp8", "ML1-Baichuan-7B", "ML3-LLaMA2-13B-4k"),
        "simulator-rows.csv": ("mlm-sc22-megatron-1T-full",),
    }
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name, wanted in names.items():
        with (TRUTH / name).open(newline="", encoding="utf-8") as stream:
            found[name] = {row["case_id"]: row for row in csv.DictReader(stream) if row["case_id"] in wanted}
    return found


@pytest.mark.parametrize("name", ["step-times.csv", "simulator-rows.csv"])
def test_columns_that_say_nothing_about_the_layout_may_be_missing(
    name: str, published: dict[str, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    rows = list(published[name].values())
    optional = {
        "source", "source_ref", "truth_kind", "confidence", "notes", "peak_memory_gib", "mfu_flag", "config_complete",
        "reported_tflops_or_mfu", "reported_step_time_s", "metric", "value", "unit", "implied_mfu_causal_attn",
        "measured_peak_alloc_gib", "measured_peak_reserved_gib", "measured_alloc_stage_first_gib", "peer", "peer2",
        "measured_alloc_stage_last_gib", "ce_fusion", "device_memory_gib",
    }  # fmt: skip
    full = accuracy_of_file(table(tmp_path / "full.csv", rows))
    short = accuracy_of_file(table(tmp_path / "short.csv", rows, optional))
    assert [row.case_id for row in short.rows] == [row.case_id for row in full.rows]
    for row in short.rows:
        assert row.low_s < row.predicted_s < row.high_s


def test_step_time_from_throughput(published: dict[str, dict[str, dict[str, str]]], tmp_path: Path) -> None:
    row = published["step-times.csv"]["ML1-LLaMA2-7B-tp8"]
    bare = row | {"derived_step_time_s": "", "reported_step_time_s": ""}
    found = accuracy_of_file(table(tmp_path / "bare.csv", [bare])).rows[0]
    tokens = int(row["gbs"]) * int(row["seq"])
    assert found.measured_s == pytest.approx(tokens / (float(row["value"]) * int(row["devices"])))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"hardware": "Quantum 9000"}, "hardware 'Quantum 9000' is not known"),
        ({"hidden": "wide"}, "incomplete layout, missing hidden"),
        ({"tp": "0"}, "incomplete layout, missing tp"),
        ({"seq": "-4096"}, "-4096"),
        ({"tp": "3"}, "but the row says 8 devices"),
        ({"derived_step_time_s": "nan", "value": "nan"}, "no step time and nothing to derive it from"),
        ({"derived_step_time_s": "-2"}, "a step of -2 s; legal: above 0"),
        ({"derived_step_time_s": "0"}, "a step of 0 s; legal: above 0"),
        ({"derived_step_time_s": "0.01"}, "impossible, "),
        ({"mfu_flag": "IMPOSSIBLE"}, "flagged as impossible or doubtful"),
        ({"experts": "8", "topk": ""}, "incomplete layout, missing topk"),
    ],
)
def test_a_bad_row_is_named_and_the_others_are_scored(
    cells: dict[str, str], reason: str, published: dict[str, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    good, bad = published["step-times.csv"]["ML1-Baichuan-7B"], published["step-times.csv"]["ML1-LLaMA2-7B-tp8"]
    path = table(tmp_path / "mixed.csv", [bad | {"reported_step_time_s": ""} | cells, good])
    result = accuracy_of_file(path)
    assert [row.case_id for row in result.rows] == ["ML1-Baichuan-7B"]
    assert reason in result.skipped["ML1-LLaMA2-7B-tp8"]
    assert result.groups[0].n == 1
    with pytest.raises(CalibrationError, match="no complete, unflagged row with a step time; 1 skipped. ML1-LLaMA2"):
        accuracy_of_file(table(tmp_path / "bad.csv", [bad | {"reported_step_time_s": ""} | cells]))


def test_coverage_of_a_file_is_that_of_the_printed_intervals() -> None:
    result = accuracy_of_file(TRUTH / "step-times.csv")
    for group in result.groups:
        inside = [row.low_s <= row.measured_s <= row.high_s for row in result.rows if row.group == group.name]
        assert group.n == len(inside)
        assert group.coverage_percent == pytest.approx(100.0 * sum(inside) / len(inside), abs=0.01)


def test_files_that_cannot_be_scored(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="memory-cases table has no step times"):
        accuracy_of_file(TRUTH / "memory-cases.csv")
    with pytest.raises(CalibrationError, match="cannot be read as CSV"):
        accuracy_of_file(tmp_path / "none.csv")
    empty = tmp_path / "empty.csv"
    empty.write_text((TRUTH / "step-times.csv").read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    with pytest.raises(CalibrationError, match="no complete, unflagged row"):
        accuracy_of_file(empty)


@pytest.mark.slow
def test_left_out_shape_of_b200(sweep: list[TimeCase]) -> None:
    fitted = fit_sets(sweep)["B200 dense"]
    assert np.abs(np.expm1(left_out_errors(fitted, "shape"))).mean() < 0.049
