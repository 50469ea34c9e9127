"""Commands that read and write a user's own files: check, improve, emit for every target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.cli.runner import run
from tests.cli.test_answers import undocumented

JOB = "--params 8B --cards 16 --seq 4096 --global-batch 128"


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that is far from the best one: tp 8 for an 8B model."""
    out = tmp_path_factory.mktemp("files") / "out"
    assert run(f"suggest {JOB} --tp 8 --pp 2 --emit {out}").code == 0
    return out


def test_emitted_files_are_clean(emitted: Path) -> None:
    answer = run(f"check {emitted}")
    assert (answer.code, answer.lines) == (0, [f"{emitted}: nothing found."])


def test_a_fault_is_named_with_line_and_fix_and_exits_4(emitted: Path, tmp_path: Path) -> None:
    text = (emitted / "pretrain.yaml").read_text(encoding="utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("  pipeline_stage: 2 ", "  pipeline_stage: 3 "), encoding="utf-8")
    answer = run(f"check {broken} --cards 16")
    assert answer.code == 4
    line = next(
        i for i, each in enumerate(broken.read_text(encoding="utf-8").splitlines(), 1) if "pipeline_stage" in each
    )
    assert any(each.startswith(f"{broken}:") for each in answer.lines)
    assert answer.lines[-1].endswith("found.")
    body = run(f"check {broken} --cards 16 --json").document
    assert undocumented(body) == []
    assert len(body["findings"]) == sum(each.startswith(f"{broken}:") for each in answer.lines)
    assert {"file", "line", "rule", "why", "fix"} == set(body["findings"][0])
    assert line > 1


def test_improve_changes_only_the_strategy_and_gains(emitted: Path, tmp_path: Path) -> None:
    source, new = emitted / "pretrain.yaml", tmp_path / "better.yaml"
    before = source.read_bytes()
    body = run(f"improve {source} --out {new} --json").document
    assert undocumented(body) == []
    assert source.read_bytes() == before
    assert body["after"]["speed"]["step_s"] < body["before"]["speed"]["step_s"]
    read = run(f"estimate --from {new} --json").document
    assert read["strategy"] == body["after"]["strategy"]
    assert read["speed"]["step_s"] == pytest.approx(body["after"]["speed"]["step_s"], rel=1e-12)
    old, changed = yaml.safe_load(before), yaml.safe_load(new.read_text(encoding="utf-8"))
    assert old["optimizer"] == changed["optimizer"]
    assert old["train_dataset"]["data_loader"] == changed["train_dataset"]["data_loader"]
    assert run(f"check {new}").code == 0


def test_improve_for_other_cards_says_so(emitted: Path) -> None:
    answer = run(f"improve {emitted / 'pretrain.yaml'} --cards 32")
    assert answer.code == 0
    assert "(32 cards instead of 16)" in " ".join(answer.out.split())
    assert any(line.startswith("+  data_parallel:") for line in answer.lines)


def test_improve_says_which_rule_the_old_strategy_breaks(emitted: Path, tmp_path: Path) -> None:
    text = (emitted / "pretrain.yaml").read_text(encoding="utf-8")
    broken = re.sub(r"micro_batch_num: \d+", "micro_batch_num: 1", text)
    assert broken != text
    (tmp_path / "own.yaml").write_text(broken, encoding="utf-8")
    words = " ".join(run(f"improve {tmp_path / 'own.yaml'} --cards 16").out.split())
    assert "the file's own strategy breaks a rule: fill-pipeline: MindSpore needs at least as many" in words


def test_improve_never_overwrites_without_force(emitted: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken.yaml"
    taken.write_text("mine\n", encoding="utf-8")
    answer = run(f"improve {emitted / 'pretrain.yaml'} --out {taken}")
    assert answer.code == 2
    assert "exists; name another file, or replace it with --force" in answer.err
    assert taken.read_text(encoding="utf-8") == "mine\n"
    assert run(f"improve {emitted / 'pretrain.yaml'} --out {taken} --force").code == 0
    assert "parallel_config" in taken.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.yaml"]


def test_cards_beside_a_file_must_be_its_own(emitted: Path) -> None:
    answer = run(f"estimate --from {emitted / 'pretrain.yaml'} --cards 32")
    assert answer.code == 2
    assert "--cards 32" in answer.err
    assert "over 16" in answer.err
    assert f"planner improve {emitted / 'pretrain.yaml'} --cards 32" in answer.err
    assert run(f"estimate --from {emitted / 'pretrain.yaml'} --cards 16").code == 0


@pytest.mark.parametrize(
    ("model", "target", "framework", "main"),
    [
        ("llama-3.1-8b", "mindformers", "mindformers-legacy", "pretrain.yaml"),
        ("qwen3-8b", "mindformers", "mindformers", "pretrain.yaml"),
        ("qwen3-8b", "mindformers-pynative", "mindformers-pynative", "pretrain.yaml"),
        ("qwen2-7b", "mindspeed", "mindspeed", "pretrain.sh"),
        ("llama-3.1-8b", "mindspore", "mindformers-legacy", "pretrain.py"),
    ],
)
def test_every_target_is_estimated_as_what_will_run(
    tmp_path: Path, model: str, target: str, framework: str, main: str
) -> None:
    out = tmp_path / "out"
    answer = run(f"suggest --model {model} --cards 16 --global-batch 128 --target {target} --top 1 --emit {out} --json")
    assert answer.code == 0, answer.err
    assert answer.document["workload"]["framework"] == framework
    assert Path(answer.document["emitted"][0]["files"][0]).name == main
    assert not any("was estimated for" in note for note in answer.document["emitted"][0]["notes"])
    assert run(f"check {out}").code == 0


def test_plans_that_a_target_cannot_hold_are_named_once(tmp_path: Path) -> None:
    job = f"--model deepseek-v3 --cards 1024 --max-memory 58GB --target mindformers-pynative --emit {tmp_path / 'out'}"
    notes = run(f"suggest {job} --json").document["emitted"][0]["notes"]
    refused = [re.fullmatch(r"Plans? ([\d, to and]+) (?:are|is) not written: mindformers-pynative cannot .*", note)
               for note in notes[:-1]]  # fmt: skip
    assert all(refused)
    assert len({note.split(": ", 1)[1] for note in notes[:-1]}) == len(notes) - 1
    last = max(int(number) for match in refused if match for number in re.findall(r"\d+", match[1]))
    assert notes[-1] == f"Written is plan {last + 1}."


def test_a_script_is_priced_as_its_plan(tmp_path: Path) -> None:
    body = run(f"suggest --model qwen3-8b --cards 16 --target mindspore --emit {tmp_path / 'out'} --json").document
    again = run(f"estimate --from {tmp_path / 'out' / 'pretrain.py'} --json").document
    assert again["peak_gib"] == body["plans"][0]["peak_gib"]
    assert again["speed"]["step_s"] == pytest.approx(body["plans"][0]["speed"]["step_s"])


def test_a_family_that_a_target_cannot_train_is_refused_before_the_search(tmp_path: Path) -> None:
    answer = run(f"suggest --model mixtral-8x7b --cards 16 --target mindformers --emit {tmp_path / 'out'}")
    assert answer.code == 2
    assert "mindformers has no training class for family 'mixtral'" in answer.err
    assert "--target mindspeed" in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", ["qwen3-8b", "llama-3.1-8b"])
@pytest.mark.parametrize(("seq", "compressed"), [(1024, False), (2048, True), (4096, True)])
def test_short_sequences_get_no_compressed_mask(tmp_path: Path, model: str, seq: int, compressed: bool) -> None:
    """MindFormers refuses "seq_length should be larger than 2048 when use mask_compression" below 2048."""
    job = f"--model {model} --cards 8 --seq {seq} --global-batch 64"
    body = run(f"suggest {job} --top 1 --emit {tmp_path / 'out'} --json").document
    config = yaml.safe_load((tmp_path / "out" / "pretrain.yaml").read_text(encoding="utf-8"))
    assert bool(config["model"]["model_config"].get("use_attn_mask_compression")) is compressed
    again = run(f"estimate --from {tmp_path / 'out' / 'pretrain.yaml'} --json").document
    assert again["peak_gib"] == body["plans"][0]["peak_gib"]


@pytest.mark.parametrize("pins", ["--pp 4 --vpp 3", "--pp 4 --vpp 2 --schedule zero_bubble_v", "--pp 8"])
def test_a_plan_keeps_its_seconds_through_its_files(tmp_path: Path, pins: str) -> None:
    """Simulated in suggest, written, read back and simulated again: the same verdict and seconds."""
    job = f"--model qwen3-32b --cards 64 --global-batch 256 {pins}"
    body = run(f"suggest {job} --emit {tmp_path / 'out'} --json").document
    first = body["plans"][0]
    for name in ("plan.json", "pretrain.yaml"):
        again = run(f"estimate --from {tmp_path / 'out' / name} --json").document
        assert again["fits"]
        assert again["peak_gib"] == first["peak_gib"]
        assert again["speed"]["step_s"] == first["speed"]["step_s"]
