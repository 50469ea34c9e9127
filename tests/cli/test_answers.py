"""What commands print: recorded text, documents, and that both say the same."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.cost.strategies import Strategy
from planner.report import documents
from tests.cli.runner import run
from tests.golden.cli.remake import COMMANDS, FOLDER, README, readme_block

DOCS = Path(__file__).parents[2] / "docs"
#: Small inputs of commands that read files.
DATA = Path(__file__).parents[1] / "study" / "data"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_recorded_output(name: str) -> None:
    """After a wanted change: ``python tests/golden/cli/remake.py``, then review the difference as text."""
    answer = run(COMMANDS[name])
    assert answer.out == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert answer.err == ""


@pytest.mark.parametrize("name", list(COMMANDS))
def test_recorded_output_fits_80_columns(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80


def test_readme_shows_what_the_program_prints() -> None:
    command, block = readme_block(README.read_text(encoding="utf-8"))
    assert command == "planner suggest --params 70B --cards 64"
    assert block == run(command.removeprefix("planner ")).out


JOB = "--params 8B --cards 16 --seq 4096 --global-batch 128"
DOCUMENTS = {
    "suggest": f"suggest {JOB} --top 3 --json",
    "suggest-moe": "suggest --model qwen3-30b-a3b --cards 32 --top 2 --json --tokens 1T --pp 1,2",
    "estimate": "estimate --params 70B --tp 8 --pp 4 --dp 2 --global-batch 128 --json",
    "estimate-measured": (
        "estimate --params 70B --tp 8 --pp 4 --dp 2 --global-batch 128 --measured '150 tokens/s/card' --json"
    ),
    "estimate-moe": "estimate --model deepseek-v3 --tp 4 --pp 16 --dp 16 --ep 64 --json --max-memory 60GB",
    "cards": "cards --params 13B --json",
    "explain-memory": "explain --params 70B --cards 64 --tp 8 --pp 1 --recompute none --json",
    "explain-slower": f"explain {JOB} --tp 8 --pp 2 --json",
    "collective": "collective --op allgather --size 64MB --ranks 16 --json",
    "goodput": "goodput --params 8B --cards 64 --tokens 1T --repair 24h --interval 1h --json",
    "scaling": f"scaling --params 8B --cards 8,16 --global-batch 64 --measured {DATA / 'runs.csv'} --json",
    "schedule": "schedule --params 8B --cards 64 --tokens 1T --json",
    "models": "models qwen3 --json",
    "hardware": "hardware 910c --json",
    "hardware-mesh": "hardware 910a --json",
}


def paths(value: Any, prefix: str = "") -> set[str]:
    """Paths of all leaves: ``plans[].speed.step_s``."""
    if isinstance(value, dict):
        names = {key: re.sub(r"[.\[\]]", "_", key) for key in value}  # row ids and the like hold dots
        return {p for key, item in value.items() for p in paths(item, f"{prefix}.{names[key]}".lstrip("."))}
    if isinstance(value, list):
        return {p for item in value for p in paths(item, f"{prefix}[]")} or {f"{prefix}[]"}
    return {prefix}


def documented() -> dict[str, list[re.Pattern[str]]]:
    """Path patterns of each schema in docs/json.md; ``*`` stands for any name, and a path for all below it."""
    found: dict[str, list[re.Pattern[str]]] = {}
    schema = ""
    for line in (DOCS / "json.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            schema = line[3:].strip().strip("`")
        match = re.match(r"\| `([^`]+)` \|", line)
        if match:
            pattern = re.escape(match[1]).replace(r"\*", r"[^.\[\]]+")
            found.setdefault(schema, []).append(re.compile(pattern))
    return found


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_every_field_of_every_document_is_documented(name: str) -> None:
    answer = run(DOCUMENTS[name])
    body = json.loads(answer.out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    schema = body["schema"]
    assert schema == documents.SCHEMAS.get(name, documents.SCHEMAS.get(name.split("-")[0]))
    assert body["planner"] == planner.__version__
    described = documented()
    patterns = described["every document"] + described.get("the job", []) + described[schema]
    missing = sorted(p for p in paths(body) if not any(known.fullmatch(p) for known in patterns))
    assert missing == []


#: Documents that need files or a framework; their fields are tested where they are made.
ELSEWHERE = tuple(
    f"planner/{kind}/1"
    for kind in (
        "compare",
        "levers",
        "emit",
        "check",
        "improve",
        "dryrun",
        "validate",
        "fit",
        "calibrate",
        "calibrate-show",
        "accuracy-time",
        "accuracy-memory",
        "diagnose",
        "monitor",
    )
)


@pytest.mark.parametrize("schema", [each for each in documents.SCHEMAS.values() if each not in ELSEWHERE])
def test_documented_fields_exist(schema: str) -> None:
    """No field is described that no document has."""
    kind = schema.split("/")[1]
    answers = [run(command) for name, command in DOCUMENTS.items() if kind in (name, name.split("-")[0])]
    seen = {p for answer in answers for p in paths(answer.document)}
    unknown = [known.pattern for known in documented()[schema] if not any(known.fullmatch(p) for p in seen)]
    assert unknown == []


def strategy_of(body: dict[str, Any]) -> Strategy:
    fields = {key: value for key, value in body.items() if key != "layers_per_stage"}
    fields["layers"] = tuple(tuple(chunk) for chunk in fields["layers"])
    for name in ("recompute_full", "recompute_selective"):
        fields[name] = tuple(fields[name])
    return Strategy(**fields)


def test_a_plan_of_the_document_estimated_again_gives_its_own_figures() -> None:
    body = run(DOCUMENTS["suggest"]).document
    for plan in body["plans"]:
        again = planner.estimate("8B", strategy_of(plan["strategy"]), seq=4096)
        assert again.step_s == plan["speed"]["step_s"]
        assert again.peak_bytes / 2**30 == plan["peak_gib"]
        assert [size / 2**30 for size in again.stage_peak_bytes] == [stage["peak_gib"] for stage in plan["stages"]]


def test_terms_of_a_document_add_up() -> None:
    body = run(DOCUMENTS["estimate"]).document
    for stage in body["stages"]:
        assert sum(stage["terms_gib"].values()) == pytest.approx(stage["peak_gib"], rel=1e-12)
    adding = {name: value for name, value in body["speed"]["terms_s"].items() if not name.endswith("_hidden_s")}
    assert sum(adding.values()) == pytest.approx(body["speed"]["step_s"], rel=1e-12)
    tokens = body["workload"]["seq"] * body["workload"]["global_batch"]
    rate = tokens / body["speed"]["step_s"] / body["cluster"]["cards"]
    assert rate == pytest.approx(body["speed"]["tokens_per_s_per_card"], rel=1e-12)


def test_what_does_not_fit_has_no_speed_and_exit_code_3() -> None:
    answer = run("estimate --params 70B --tp 8 --pp 2 --dp 1 --recompute none --json")
    assert answer.code == 3
    body = answer.document
    assert body["fits"] is False
    assert body["speed"] is None
    assert body["peak_gib"] > body["limit_gib"] == 58.0
    text = run("estimate --params 70B --tp 8 --pp 2 --dp 1 --recompute none")
    assert text.code == 3
    assert "Does not fit: stage 0 of 2 needs" in text.out
    assert "tokens/s" not in text.out


def test_table_and_document_hold_the_same_figures() -> None:
    body = run(DOCUMENTS["suggest"]).document
    lines = run(DOCUMENTS["suggest"].replace(" --json", "")).lines
    rows = [line.split() for line in lines if re.match(r"\s*\d+ ", line)]
    assert len(rows) == 3
    for row, plan in zip(rows, body["plans"], strict=True):
        s = plan["strategy"]
        assert row[:4] == [str(plan["rank"]), str(s["dp"]), str(s["tp"]), str(s["pp"])]
        assert f"{s['micro_batch_size']}x{s['micro_batches']}" in row
        assert f"{plan['peak_gib']:.1f}" in row
        assert f"{plan['speed']['tokens_per_s_per_card']:.0f}" in row


def test_counts_of_a_search_add_up() -> None:
    body = run(DOCUMENTS["suggest"]).document
    assert body["fitting"] + sum(body["removed"].values()) == body["examined"]
    ranks = [rank for group in body["ties"] for rank in group]
    assert ranks == [1, 2, 3]


def test_pins_hold_in_every_plan() -> None:
    body = run("suggest --params 70B --cards 64 --tp 8 --pp 1,2,4 --micro-batch 1 --json").document
    assert {plan["strategy"]["tp"] for plan in body["plans"]} == {8}
    assert {plan["strategy"]["pp"] for plan in body["plans"]} <= {1, 2, 4}
    assert {plan["strategy"]["micro_batch_size"] for plan in body["plans"]} == {1}


@pytest.mark.parametrize(("how", "full", "selective"), [("none", 0, 0), ("selective", 0, 80), ("full", 80, 0)])
def test_recompute_asked_for_holds_in_every_plan(how: str, full: int, selective: int) -> None:
    body = run(f"suggest --params 70B --cards 128 --recompute {how} --json").document
    assert body["plans"]
    for plan in body["plans"]:
        assert sum(plan["strategy"]["recompute_full"]) == full
        assert sum(plan["strategy"]["recompute_selective"]) == selective
        assert plan["peak_gib"] <= plan["limit_gib"]


def test_free_recompute_is_never_slower_than_one_asked_for() -> None:
    best = {
        how: run(f"suggest --params 70B --cards 128 --recompute {how} --top 1 --json").document["plans"][0]
        for how in ("auto", "none", "selective", "full")
    }
    assert best["auto"]["speed"]["step_s"] <= min(plan["speed"]["step_s"] for plan in best.values())


def test_memory_limit_holds_in_every_stage() -> None:
    body = run("suggest --params 70B --cards 64 --max-memory 40GB --json").document
    assert body["cluster"]["usable_gib"] == 40.0
    assert max(stage["peak_gib"] for plan in body["plans"] for stage in plan["stages"]) <= 40.0


def test_defaults_are_named() -> None:
    body = run("suggest --params 70B --cards 64 --top 1 --json").document
    assert body["defaults"] == ["sequence 4096", "global batch 1024", "framework mindformers-legacy"]
    assert body["model"]["name"] == "Llama-3.1-70B"
    assert body["model"]["parameters"] == 70_553_706_496  # Hugging Face meta-llama/Llama-3.1-70B
    given = "suggest --params 70B --cards 64 --seq 8k --global-batch 256 --framework mindformers --top 1 --json"
    assert run(given).document["defaults"] == []


def test_objective_cards_answers_on_the_fewest_cards() -> None:
    fewest = run("cards --params 13B --json").document["cards"]
    body = run("suggest --params 13B --cards 64 --objective cards --top 1 --json").document
    assert body["cluster"]["cards"] == fewest


def test_emitted_plan_reads_back_to_the_same_figures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    suggested = run(f"suggest {JOB} --top 1 --emit {out} --json")
    assert suggested.code == 0
    best = suggested.document["plans"][0]
    for source in (out, out / "plan.json", out / "pretrain.yaml"):
        again = run(f"estimate --from {source} --json").document
        assert again["strategy"] == best["strategy"]
        assert again["peak_gib"] == best["peak_gib"]
        assert again["speed"]["step_s"] == best["speed"]["step_s"]
    files = suggested.document["emitted"][0]
    assert sorted(Path(path).name for path in files["files"]) == sorted(path.name for path in out.iterdir())


def test_several_plans_go_to_numbered_folders(tmp_path: Path) -> None:
    answer = run(f"suggest {JOB} --top 2 --emit {tmp_path / 'out'} --emit-top 2 --json")
    assert answer.code == 0
    for rank in (1, 2):
        body = run(f"estimate --from {tmp_path / 'out' / str(rank)} --json").document
        assert body["strategy"] == answer.document["plans"][rank - 1]["strategy"]


def undocumented(body: dict[str, Any]) -> list[str]:
    """Fields of a document that docs/json.md does not have."""
    described = documented()
    patterns = described["every document"] + described["the job"] + described[body["schema"]]
    return sorted(p for p in paths(body) if not any(known.fullmatch(p) for known in patterns))


def test_files_of_emit_and_fit_are_documented(tmp_path: Path) -> None:
    assert run(f"suggest {JOB} --emit {tmp_path / 'a'}").code == 0
    emitted = run(f"emit {tmp_path / 'a'} {tmp_path / 'b'} --json").document
    assert undocumented(emitted) == []
    assert {Path(path).name for path in emitted["plans"][0]["files"]} == {p.name for p in (tmp_path / "b").iterdir()}


@pytest.mark.slow
def test_accuracy_and_fit(tmp_path: Path) -> None:
    body = run("accuracy time --json").document
    assert undocumented(body) == []
    dense = [g for g in body["groups"] if g["name"] == "Ascend A2 dense"]
    assert {g["left_out"] for g in dense} == {"", "shape", "release"}
    assert run("accuracy time").out.count("Ascend A2 dense") == len(dense)
    fitted = run(f"fit --out {tmp_path} --date 2026-01-31 --json").document
    assert undocumented(fitted) == []
    assert all(Path(path).is_file() for path in fitted["files"])
    assert "2026-01-31" in Path(fitted["files"][0]).read_text(encoding="utf-8")


def test_accuracy_of_memory_counts_its_verdicts() -> None:
    body = run("accuracy memory --json").document
    assert undocumented(body) == []
    for group in body["groups"]:
        errors = [
            100 * (r["predicted_bytes"] / r["reference_bytes"] - 1) for r in group["rows"] if r["reference_bytes"]
        ]
        if group["mean_abs_percent"] is not None:
            assert group["max_abs_percent"] == pytest.approx(max(map(abs, errors)), abs=0.01)
        if group["confusion"]:
            assert sum(group["confusion"].values()) == group["n"]
            wrong = group["confusion"]["fits_as_oom"] + group["confusion"]["oom_as_fits"]
            assert len(group["wrong"]) == wrong


def test_collective_names_the_fastest_reachable_algorithm() -> None:
    body = run(DOCUMENTS["collective"]).document
    assert body["time_s"] == pytest.approx(body["algorithms_s"][body["algorithm"]], rel=1e-12)
    # bus bandwidth of an all-gather: n (p - 1) / p / t
    assert body["bus_bytes_per_s"] == pytest.approx(64 * 2**20 * 15 / 16 / body["time_s"], rel=1e-12)
    times = [point["time_s"] for point in body["curve"]]
    assert times == sorted(times)


def test_emit_writes_the_plan_again(tmp_path: Path) -> None:
    assert run(f"suggest {JOB} --emit {tmp_path / 'a'}").code == 0
    answer = run(f"emit {tmp_path / 'a'} {tmp_path / 'b'}")
    assert answer.code == 0
    assert (tmp_path / "b" / "pretrain.yaml").read_bytes() == (tmp_path / "a" / "pretrain.yaml").read_bytes()
    assert "Fill in before the run:" in answer.out


@pytest.mark.parametrize("command", ["explain", "cards"])
def test_examples_of_the_help_work(command: str) -> None:
    """Those without a file of one's own; a verdict is an answer, whatever it says."""
    module = importlib.import_module(f"planner.cli.{command}")
    examples = [line.removeprefix("planner ") for line in module.EPILOG.split("\n") if line.startswith("planner ")]
    own = [line for line in examples if "--from" not in line]
    assert own
    for line in own:
        answer = run(line)
        assert answer.code == 0, answer.err
        assert answer.out


def test_degrees_that_do_not_divide_the_cards_are_judged() -> None:
    """Three does not divide 64 cards: illegal, and the nearest tp that is legal helps."""
    body = run("explain --model qwen3-32b --cards 64 --tp 3 --pp 2 --json").document
    assert body["verdict"] == "illegal"
    assert {"devices", "heads"} <= set(body["rules"])
    assert body["change"]["strategy"]["tp"] in (2, 4)
    assert body["change"]["options"].startswith("--dp ")
    again = run(f"estimate --model qwen3-32b {body['change']['options']} --json").document
    assert again["speed"]["step_s"] == body["change"]["speed"]["step_s"]


def test_what_was_not_read_of_a_file_is_said_by_explain(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(f"suggest --params 8B --cards 16 --global-batch 128 --emit {out}").code == 0
    file = out / "pretrain.yaml"
    file.write_text(file.read_text().replace("recompute_config:\n", "recompute_config:\n  my_own_knob: 3\n"))
    answer = run(f"explain --from {file}")
    assert "Verdict: best" in answer.out or "Verdict: slower" in answer.out
    assert "Not read: recompute_config.my_own_knob" in " ".join(answer.out.split())
