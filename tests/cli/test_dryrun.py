"""`planner dryrun`: comparison of made-up results, and one real run from suggest to the compiler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from planner import MemoryEstimator, api, completion, inputs
from planner import plan as plans
from planner.cost.memory.peak import TERMS as OURS
from planner.report.comparison import PARTS, trained
from planner.validate.compiler.dryrun import DryRunReport, StageResult
from planner.validate.compiler.prepare import read_layout
from planner.validate.compiler.tracker import TERMS as THEIRS
from tests.cli.runner import run
from tests.cli.test_answers import undocumented

SMALL = (
    "--model qwen3-0.6b --layers 4 --hidden 256 --heads 4 --kv-heads 2 --ffn 512 --vocab 4096 --cards 4 --seq 2048 "
    "--global-batch 8 --tp 2 --pp 2 --dp 1 --vpp 1 --micro-batch 1 --recompute none"
)


def test_every_term_of_both_sides_is_in_one_part() -> None:
    assert sorted(term for _, ours, _ in PARTS for term in ours) == sorted(OURS)
    assert sorted(term for _, _, theirs in PARTS for term in theirs) == sorted(THEIRS)


def result(stage: int, peak_bytes: int) -> StageResult:
    return StageResult(
        stage=stage, rank=stage, micro_batches=2, steps=2, peak_bytes=peak_bytes, static_bytes=peak_bytes // 2,
        peak_with_fragments_bytes=peak_bytes, seconds=1.0, mindspore="2.9.0", mindformers="1.9.0", real_cann=False,
        terms={**dict.fromkeys(THEIRS, 0), "activations": peak_bytes}, peak_operator="x",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "pp", "ending"),
    [
        ((0,), 1, "the only stage trained 2 simulated steps"),
        ((0, 1), 2, "first and last stage trained 2 simulated steps"),
        ((0, 2, 3), 4, "first, middle and last stage trained 2 simulated steps"),
        ((3,), 4, "stage 3 trained 2 simulated steps"),
        ((0, 1, 3), 4, "stages 0, 1 and 3 trained 2 simulated steps"),
    ],
)
def test_the_last_line_says_which_stages_trained(stages: tuple[int, ...], pp: int, ending: str) -> None:
    layout = read_layout({"parallel_config": {"pipeline_stage": pp}, "model": {"model_config": {"seq_length": 2048}}})
    report = DryRunReport(layout=layout, stages=tuple(result(stage, 2**30) for stage in stages), notes=())
    assert trained(report) == f"DryRun: {ending}"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    assert run(f"suggest {SMALL} --emit {out}").code == 0
    return out


def test_difference_is_predicted_against_dryrun(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    peaks = [stage["peak_gib"] for stage in run(f"estimate --from {plan} --json").document["stages"]]

    def made_up(config: Path, stages: Any, settings: Any, progress: Any) -> DryRunReport:
        seen.append((config, stages, settings.jobs, settings.exact))
        progress("stage 0: compiling")
        results = (result(0, round(peaks[0] * 2**30 / 1.25)), result(1, round(peaks[1] * 2**30 / 0.8)))
        layout = {"parallel_config": {"data_parallel": 1, "model_parallel": 2, "pipeline_stage": 2}}
        return DryRunReport(layout=read_layout({**layout, "model": {"model_config": {"seq_length": 2048}}}),
                            stages=results, notes=("a note",))  # fmt: skip

    monkeypatch.setattr("planner.validate.compiler.dryrun.dryrun", made_up)
    answer = run(f"dryrun {plan} --stages 0,1 --jobs 2 --exact")
    assert answer.code == 0
    assert answer.err == "stage 0: compiling\n"
    assert seen == [(plan / "pretrain.yaml", (0, 1), 2, True)]
    percents = [line.split()[-1] for line in answer.lines if line.strip().startswith(("0 ", "1 "))]
    assert percents == ["+25.0%", "-20.0%"]
    assert "- a note" in answer.lines
    assert "Every stage that was run stays below the limit of 58.00 GiB." in answer.lines
    assert answer.lines[-1] == "DryRun: first and last stage trained 2 simulated steps"
    body = run(f"dryrun {plan} --stages 0,1 --json").document
    assert undocumented(body) == []
    assert [stage["difference_percent"] for stage in body["stages"]] == pytest.approx([25.0, -20.0], abs=1e-3)


def test_the_heaviest_stage_is_run_and_the_others_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight stages of which the second holds most layers: first, heaviest, middle, last are run; the rest is said."""
    out = tmp_path / "plan.json"
    request = inputs.request_for("qwen3-8b", 8, seq=2048, global_batch=8)
    layers = [5, 8, 5, 4, 4, 4, 3, 3]
    strategy = completion.complete(request, tp=1, pp=8, recompute="none", stage_layers=layers)
    plans.save(api.plan_of(request, api.judged(request, strategy)), out)
    peaks = [stage["peak_gib"] for stage in run(f"estimate --from {out} --json").document["stages"]]
    assert max(range(8), key=peaks.__getitem__) == 1
    asked: list[tuple[int, ...]] = []

    def made_up(config: Path, stages: Any, settings: Any, *_: Any) -> DryRunReport:
        asked.append(stages)
        layout = {"parallel_config": {"data_parallel": 1, "model_parallel": 1, "pipeline_stage": 8}}
        results = tuple(result(stage, 2**30) for stage in stages)
        return DryRunReport(layout=read_layout({**layout, "model": {"model_config": {"seq_length": 2048}}}),
                            stages=results, notes=())  # fmt: skip

    monkeypatch.setattr("planner.validate.compiler.dryrun.dryrun", made_up)
    answer = run(f"dryrun {out}")
    assert asked == [(0, 1, 4, 7)]
    worst = max((2, 3, 5, 6), key=peaks.__getitem__)
    said = " ".join(answer.out.split())
    most = f"stage {worst} is predicted to need most of them, {peaks[worst]:.2f} GiB."
    assert f"Not run: stages 2, 3, 5 and 6; {most}" in said
    assert run(f"dryrun {out} --json").document["not_run"] == [2, 3, 5, 6]
    MemoryEstimator.from_plan(out).dryrun()
    assert asked[-1] == (0, 1, 4, 7)


def test_a_stage_over_the_limit_is_said_and_ends_with_3(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {"parallel_config": {"data_parallel": 1, "model_parallel": 2, "pipeline_stage": 2}}
    stages = (result(0, 59 * 2**30), result(1, 2**30))
    report = DryRunReport(
        layout=read_layout({**layout, "model": {"model_config": {"seq_length": 2048}}}), stages=stages, notes=()
    )
    monkeypatch.setattr("planner.validate.compiler.dryrun.dryrun", lambda *_: report)
    answer = run(f"dryrun {plan}")
    assert answer.code == 3
    assert "Over the limit of 58.00 GiB: stage 0 by 1.00 GiB. The job would run out of" in answer.lines
    document = run(f"dryrun {plan} --json").document
    assert (document["fits"], document["limit_gib"]) == (False, 58.0)


def test_collectives_of_a_stage_and_how_they_differ(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up graph: two micro-batches of two layers, a tied embedding, and one gather too many."""
    activation, table = 2 * 2048 * 256, 4 * 4096 * 256 // 2
    folders: list[Path] = []

    def made_up(config: Path, stages: Any, settings: Any, progress: Any) -> DryRunReport:
        assert settings.graphs
        assert not settings.use_cache
        folders.append(settings.keep)
        folder = settings.keep / "stage-0"
        folder.mkdir(parents=True)
        sizes = [activation] * 16 + [2 * activation] * 2 + [activation]
        rows = [f'{i},"0 1",AllGather,{size // 2},{size}' for i, size in enumerate(sizes)]
        rows += [f'{i},"0 2",Send,{activation // 2},{activation // 2}' for i in (98, 99)]
        rows.append(f'97,"0 2",Send,{table},{table}')
        head = "index,comm_rank,primitive,input_size,output_size"
        (folder / "comm_execute_order.csv").write_text("\n".join([head, *rows]), encoding="utf-8")
        (folder / "execute_order.csv").write_text("index,node_name", encoding="utf-8")
        layout = {
            "parallel_config": {"data_parallel": 1, "model_parallel": 2, "pipeline_stage": 2},
            "use_legacy": False,
        }
        return DryRunReport(layout=read_layout({**layout, "model": {"model_config": {"seq_length": 2048}}}),
                            stages=(result(0, 2**30),), notes=())  # fmt: skip

    monkeypatch.setattr("planner.validate.compiler.dryrun.dryrun", made_up)
    answer = run(f"dryrun {plan} --stages 0 --volumes")
    assert answer.code == 0, answer.err
    assert not folders[0].exists()
    start = answer.lines.index("Collectives of stage 0, one step of 2 micro-batches, one rank")
    gather = next(line for line in answer.lines[start:] if "allgather" in line)
    # planned: 2 + 2 in 2 layers and 2 micro-batches of 1 MiB, 2 look-ups of 2 MiB; the graph has one more
    assert gather.split() == ["tp", "allgather", "18", "20.00", "19", "21.00", "-1.00"]
    assert max(map(len, answer.lines)) <= 80
    body = run(f"dryrun {plan} --stages 0 --volumes --json").document
    assert undocumented(body) == []
    rows = {(row["group"], row["collective"]): row for row in body["stages"][0]["volumes"]}
    assert rows["tp", "allgather"]["unexplained_bytes"] == activation
    assert rows["tp", "allgather"]["unexplained_count"] == 1
    assert rows["pp", "send"]["dryrun_count"] == 3
    assert rows["pp", "send"]["unexplained_bytes"] == 0
    assert rows["pp", "send"]["unexplained_count"] == 0


def test_brackets_of_the_help_text_survive() -> None:
    assert "pip install planner[mindspore]" in run("dryrun --help").out


def test_a_plan_json_without_yaml_is_rendered(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def made_up(config: Any, *rest: Any) -> DryRunReport:
        seen.append(config)
        return DryRunReport(layout=read_layout(config), stages=(result(0, 2**30),), notes=())

    monkeypatch.setattr("planner.validate.compiler.dryrun.dryrun", made_up)
    (plan / "pretrain.yaml").unlink()
    assert run(f"dryrun {plan}").code == 0
    assert seen[0]["parallel_config"]["model_parallel"] == 2


def test_stages_that_do_not_exist_are_refused(plan: Path) -> None:
    answer = run(f"dryrun {plan} --stages 2")
    assert (answer.code, answer.out) == (2, "")
    assert "the plan has stages 0 to 1" in answer.err


def test_missing_mindspore_is_said_with_the_install_command(plan: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"home": null, "mindspore": null, "mindformers": null}\'\n', encoding="utf-8")
    python.chmod(0o755)
    answer = run(f"dryrun {plan} --python {python}")
    assert (answer.code, answer.out) == (4, "")
    assert "has no mindspore" in answer.err
    assert "pip install mindspore==2.9.0 mindformers==1.9.0" in answer.err


@pytest.mark.dryrun
@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("PLANNER_NO_MINDSPORE") == "1", reason="PLANNER_NO_MINDSPORE=1")
def test_from_suggest_to_the_compiler(plan: Path) -> None:
    """Emitted as it is, cosine learning rate and all, compiled for the first stage, and near the prediction."""
    assert run(f"check {plan}").code == 0
    answer = run(f"dryrun {plan} --stages 0 --json")
    assert answer.code == 0, answer.err
    (stage,) = answer.document["stages"]
    assert stage["steps"] == 2
    assert (stage["mindspore"], stage["mindformers"]) == ("2.9.0", "1.9.0")
    assert abs(stage["difference_percent"]) < 8


@pytest.mark.parametrize("name", ["pretrain.sh", "plan.txt"])
def test_files_of_other_kinds_are_refused(plan: Path, name: str) -> None:
    script = "python pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 2048 "
    script += "--micro-batch-size 1 --global-batch-size 8 --max-position-embeddings 2048 --padded-vocab-size 4096\n"
    (plan / name).write_text(script, encoding="utf-8")
    answer = run(f"dryrun {plan / name}")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Error: ")
    assert "not valid JSON" not in answer.err
