"""`planner validate` on the command line."""

from __future__ import annotations

import pytest

from planner.cli.validate import paths_of
from planner.errors import SpecError
from planner.validate.run import run as runs
from tests.cli.runner import run
from tests.cli.test_answers import documented, paths
from tests.dialects.test_proof import framework_python
from tests.validate.run.samples import validation

FOUND = (validation(1.3), validation(0.7, micro_batch_size=2))


@pytest.fixture
def _trained(monkeypatch):
    """No training: two validations that are known."""
    monkeypatch.setattr(runs, "validate", lambda plans, settings, progress: FOUND[: len(plans)])


@pytest.fixture
def folder(tmp_path):
    done = run(
        "suggest --layers 4 --hidden 256 --ffn 704 --heads 8 --vocab 2048 --cards 2 --seq 128 --global-batch 8 "
        f"--emit {tmp_path}/out --emit-top 2 --target mindspore"
    )
    assert done.code == 0, done.err
    return tmp_path / "out"


@pytest.mark.usefixtures("_trained")
def test_table_and_verdict(folder):
    done = run(f"validate {folder}/1 --device CPU")
    assert done.code == 0, done.err
    assert "step time" in done.out
    assert "30% longer than predicted, outside the 80 % interval" in done.out
    assert "Cut: zero level 1 -> 0" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.usefixtures("_trained")
def test_the_order_by_what_was_measured(folder):
    done = run(f"validate {folder} --top 2 --device CPU --json")
    document = done.document
    assert document["schema"] == "planner/validate/1"
    per_sample = [plan["rows"][0]["observed"] / plan["global_batch"] for plan in document["plans"]]
    assert document["order"] == sorted((1, 2), key=lambda place: per_sample[place - 1])
    assert document["plans"][0]["rows"][0]["term"] == "step time"
    patterns = [*documented()["planner/validate/1"], *documented()["every document"]]
    assert [path for path in paths(document) if not any(known.fullmatch(path) for known in patterns)] == []
    assert "By measured time" in run(f"validate {folder} --top 2 --device CPU").out


@pytest.mark.usefixtures("_trained")
def test_update_says_what_changed(folder, tmp_path):
    done = run(f"validate {folder}/1 --device CPU --update {tmp_path}/mine.yaml")
    assert done.code == 0, done.err
    assert "fitted to 1 validations, history in mine.validations.jsonl" in " ".join(done.out.split())
    assert (tmp_path / "mine.yaml").exists()


def test_plans_of_a_folder(tmp_path):
    for name in ("1", "2", "3"):
        (tmp_path / name).mkdir()
    assert paths_of([str(tmp_path)], "2") == [str(tmp_path / "1"), str(tmp_path / "2")]
    assert paths_of(["a", "b"], None) == ["a", "b"]
    with pytest.raises(SpecError, match="holds no plans 1, 2, ...; write them with planner suggest --emit"):
        paths_of([str(tmp_path / "1")], "2")


@pytest.mark.slow
def test_from_suggest_to_a_measured_table(folder, tmp_path):
    """One process, real MindSpore: memory is what was predicted, and the calibration made of it predicts nearer."""
    python = framework_python()
    command = f"validate {folder}/1 --device CPU --cards 1 --python {python} --update {tmp_path}/mine.yaml --json"
    first = run(command).document["plans"][0]
    terms = {row["term"]: row for row in first["rows"]}
    assert terms["peak memory"]["ratio"] == pytest.approx(1.0, abs=0.02)
    assert terms["parameters and states"]["ratio"] == pytest.approx(1.0, abs=1e-4)  # and a step counter
    assert first["loss"] > 0.0
    assert {"computation", "update", "the rest"} <= set(terms)
    assert terms["step time"]["observed"] >= 0.5 * sum(terms[name]["observed"] for name in ("computation", "update"))
    again = run(f"validate {folder}/1 --device CPU --cards 1 --python {python} --update {tmp_path}/mine.yaml --json")
    assert again.document["plans"][0]["calibration"] == "cpu-validated"
    assert len((tmp_path / "mine.validations.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--steps 2", 2, "--steps 2: the first 3 are dropped"),
        ("--steps many", 2, "--steps 'many' is not a whole number"),
        ("--python /nowhere/python", 4, "Cannot ask the interpreter /nowhere/python"),
    ],
)
def test_bad_input(folder, words, code, message):
    done = run(f"validate {folder}/1 {words}")
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err
