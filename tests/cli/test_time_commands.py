"""Commands of the time model: generations, own calibrations, scoring and fitting files, curves of collectives."""

from __future__ import annotations

import builtins
import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.cases import truth_paths
from tests.cli.runner import run

JOB = "estimate --model llama-2-7b --cards 8 --tp 1 --pp 2 --global-batch 64 --hardware 910b2"
RUNS = ("ML1-LLaMA2-7B-tp8", "ML1-Baichuan-7B", "ML1-Baichuan2-7B")
FIELDS = {
    "name", "n", "mape_percent", "p90_abs_percent", "bias_percent", "spearman", "regret_percent", "cross_validated",
}  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three published runs, one of them with a device that does not exist."""
    with truth_paths()[0].open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["case_id"] in RUNS]
    rows[0]["hardware"] = "Quantum 9000"
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("mindspeed", "ascend-a2-mindspeed-2"),
        ("mindspeed-1.0.RC3", "ascend-a2-mindspeed-1.0.rc3"),
        ("mindspeed:1.0.rc3", "ascend-a2-mindspeed-1.0.rc3"),
        ("mindformers-legacy-1.3", "ascend-a2-mindformers-1.3"),
        ("mindformers", "ascend-a2-mindformers-1.5"),
    ],
)
def test_framework_picks_a_generation(framework: str, name: str) -> None:
    answer = run(f"{JOB} --framework {framework}")
    assert answer.code == 0
    assert f"calibrated: {name}" in " ".join(answer.out.split())


def test_generations_that_do_not_exist_are_listed() -> None:
    with_wrong = run(f"{JOB} --framework mindspeed-9").err
    assert "generation '9'" in with_wrong
    assert "0.2023, 1.0.RC1, 1.0.RC2, 1.0.RC3, 2, prior" in with_wrong
    assert "modelled: priors-ascend" in " ".join(run(f"{JOB} --framework mindspeed-prior").out.split())


def test_own_runs_become_the_calibration_of_an_estimate(runs: Path, tmp_path: Path) -> None:
    written = run(f"fit --data {runs} --out {tmp_path / 'mine'}")
    assert written.code == 0
    own = tmp_path / "mine" / "ascend-a2-mindspeed-1.0.rc1.yaml"
    answer = run(f"{JOB} --framework mindspeed --calibration {own}")
    assert answer.code == 0
    assert "calibrated: ascend-a2-mindspeed-1.0.rc1, 2 measured rows" in " ".join(answer.out.split())
    again = run(f"fit --data {runs} --out {tmp_path / 'mine'}")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "--force" in again.err
    assert run(f"fit --data {runs} --out {tmp_path / 'mine'} --force").code == 0


def test_a_file_is_scored_row_by_row(runs: Path) -> None:
    document = run(f"accuracy time --data {runs} --json").document
    assert [row["case_id"] for row in document["rows"]] == ["ML1-Baichuan-7B", "ML1-Baichuan2-7B"]
    assert all(set(group) >= FIELDS for group in document["groups"])
    assert sum(group["n"] for group in document["groups"]) == len(document["rows"])
    assert not any(group["cross_validated"] for group in document["groups"])
    text = run(f"accuracy time --data {runs}").out
    assert "Largest errors" in text
    assert "hardware 'Quantum 9000' is not known" in " ".join(text.split())


def test_curves_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "curve.html"
    answer = run(f"collective --op allreduce --ranks 64 --html {page}")
    assert answer.code == 0
    assert answer.out.endswith(f"Curves: {page}\n")
    text = page.read_text(encoding="utf-8")
    assert "bus bandwidth" in text
    assert "pipeline" in text
    assert "cannot be written" in run(f"collective --html {tmp_path / 'no' / 'curve.html'}").err


def test_a_missing_plot_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Mapping[str, Any]) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    answer = run(f"collective --html {tmp_path / 'curve.html'}")
    assert (answer.code, answer.out) == (2, "")
    assert "pip install 'planner[plot]'" in answer.err
