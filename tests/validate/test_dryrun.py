"""The parent of a DryRun, with a fake interpreter in place of MindSpore."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.children.child_log import last_error_line, read_report
from planner.errors import ValidationError
from planner.validate.compiler import dryrun as module
from planner.validate.compiler.dryrun import DryRunSettings, default_stages, dryrun, load_yaml

FAKE = '''#!{python}
"""Stands in for an interpreter with MindSpore: answers the probe, else acts as FAKE_MODE says."""
import json, os, shutil, sys, time
if sys.argv[1] == "-c":
    print(json.dumps({{"home": "/fake/mindspore", "mindspore": "2.9.0", "mindformers": "1.9.0"}}))
    sys.exit()
with open(os.environ["FAKE_CALLS"], "a") as calls:
    calls.write(os.environ["RANK_ID"] + " " + os.environ["RANK_SIZE"] + "\\n")
open(os.path.join(os.environ["TMPDIR"], "left behind"), "w").close()
mode = os.environ.get("FAKE_MODE", "good")
if mode == "sleep":
    time.sleep(600)
if mode == "crash":
    print("[ERROR] CORE(1,python): the graph is wrong\\nsome more words")
    sys.stdout.flush()
    os.kill(os.getpid(), 11)
if mode == "silent":
    sys.exit(5)
if mode == "torn":
    print('PLANNER_DRYRUN {{"peak_by')
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
if mode == "last fails" and os.environ["RANK_ID"] != "12":
    time.sleep(600)
if mode == "last fails":
    mode = "refused"
report = {{"mindspore": "2.9.0", "mindformers": "1.9.0", "seconds": 1.5, "steps": 2}}
if mode == "refused":
    report["error"] = "ValueError: num_heads 30 must be divisible by 4"
    print("PLANNER_DRYRUN " + json.dumps(report))
    sys.exit(1)
shutil.copytree(os.environ["FAKE_FILES"], ".", dirs_exist_ok=True)
print("PLANNER_DRYRUN " + json.dumps(report | {{"peak_bytes": 2950, "static_bytes": 400}}))
print("Actual peak memory usage (with fragments): 3M")
'''

CONFIG: dict[str, Any] = {
    "use_legacy": False,
    "runner_config": {"batch_size": 1},
    "parallel_config": {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 4, "micro_batch_num": 16},
    "optimizer": {"type": "AdamW", "eps": 1e-8},
    "model": {"model_config": {"seq_length": 128}},
}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker_files: Callable[[Path], None]) -> DryRunSettings:
    """Settings with a fake interpreter and an installed CANN, so that nothing is built."""
    python = tmp_path / "python"
    python.write_text(FAKE.format(python=sys.executable))
    python.chmod(0o755)
    files = tmp_path / "tracker"
    files.mkdir()
    tracker_files(files)
    toolkit = tmp_path / "toolkit/lib64"
    toolkit.mkdir(parents=True)
    (toolkit / "libascendcl.so").touch()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "toolkit"))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAKE_FILES", str(files))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "scratch"))
    return DryRunSettings(python=python, cache=tmp_path / "cache", timeout_s=60.0)


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("stages", "chosen"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (8, (0, 4, 7))])
def test_default_stages(stages: int, chosen: tuple[int, ...]) -> None:
    assert default_stages(stages) == chosen


def test_one_rank_per_stage_and_its_figures(settings: DryRunSettings, tmp_path: Path) -> None:
    lines: list[str] = []
    report = dryrun(CONFIG, settings=settings, progress=lines.append)
    assert calls(tmp_path) == ["0 16", "8 16", "12 16"]
    assert [(stage.stage, stage.rank) for stage in report.stages] == [(0, 0), (2, 8), (3, 12)]
    first = report.stages[0]
    assert (first.peak_bytes, first.static_bytes, first.peak_with_fragments_bytes) == (2950, 400, 3 << 20)
    assert sum(first.terms.values()) == 2950
    assert first.micro_batches == 5
    assert first.real_cann
    assert not first.cached
    assert len(lines) == 6
    assert list((tmp_path / "scratch").iterdir()) == []


def test_tokens_lie_in_the_run_s_own_folder(settings: DryRunSettings, tmp_path: Path) -> None:
    """MindFormers writes an index beside them, which no other run may find half written."""
    dryrun(CONFIG, [1], DryRunSettings(python=settings.python, cache=settings.cache, keep=tmp_path / "kept"))
    run = tmp_path / "kept/stage-1"
    (loader,) = [load_yaml(run / "config.yaml")["train_dataset"]["data_loader"]]
    assert loader["config"]["data_path"] == ["1", "./tokens"]
    assert (run / "tokens.bin").stat().st_size == 4 * (1 << 18) * 4
    assert (run / "tokens.idx").read_bytes().startswith(b"MMIDIDX")


def test_progress_of_stages_at_once_comes_line_by_line(settings: DryRunSettings) -> None:
    inside, most = [], []

    def slow(line: str) -> None:
        inside.append(line)
        most.append(len(inside))
        time.sleep(0.05)
        inside.remove(line)

    dryrun(CONFIG, range(4), DryRunSettings(python=settings.python, cache=settings.cache, jobs=4), slow)
    assert most == [1] * 8


def test_notes_say_what_was_shrunk_and_left_out(settings: DryRunSettings) -> None:
    notes = " ".join(dryrun(CONFIG, [0], settings).notes)
    assert "Ran 5 of 16 micro-batches" in notes
    assert "operator workspace" in notes
    exact = DryRunSettings(python=settings.python, cache=settings.cache, exact=True)
    assert "Ran " not in " ".join(dryrun(CONFIG, [0], exact).notes)


def test_results_are_cached_by_content(settings: DryRunSettings, tmp_path: Path) -> None:
    first = dryrun(CONFIG, [0], settings).stages[0]
    again = dryrun(json.loads(json.dumps(CONFIG)), [0], settings).stages[0]
    assert again.cached
    assert again.peak_bytes == first.peak_bytes
    assert len(calls(tmp_path)) == 1
    other = CONFIG | {"recompute_config": {"recompute": True}}
    dryrun(other, [0], settings)
    dryrun(CONFIG, [1], settings)
    assert len(calls(tmp_path)) == 3


def test_more_micro_batches_than_needed_share_a_result(settings: DryRunSettings, tmp_path: Path) -> None:
    dryrun(CONFIG, [0], settings)
    longer = CONFIG | {"parallel_config": CONFIG["parallel_config"] | {"micro_batch_num": 64}}
    assert dryrun(longer, [0], settings).stages[0].cached
    assert len(calls(tmp_path)) == 1


def test_stages_at_once_come_back_in_order(settings: DryRunSettings) -> None:
    jobs = DryRunSettings(python=settings.python, cache=settings.cache, jobs=4)
    assert [stage.stage for stage in dryrun(CONFIG, range(4), jobs).stages] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("refused", r"stage 1 \(rank 4\) ended with exit status 1: ValueError: num_heads 30 must be divisible by 4$"),
        (
            "crash",
            r"stage 1 \(rank 4\) was killed by signal 11 \(SIGSEGV\): \[ERROR\] CORE\(1,python\): the graph is wrong$",
        ),
        (
            "torn",
            r"stage 1 \(rank 4\) was killed by signal 9 \(SIGKILL, perhaps because this machine ran out of memory\)",
        ),
        ("silent", r"stage 1 \(rank 4\) ended with exit status 5: it left no message$"),
    ],
)
def test_a_stage_that_fails(
    settings: DryRunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    with pytest.raises(ValidationError, match=words):
        dryrun(CONFIG, [1], settings)
    assert not (tmp_path / "cache/dryrun").exists()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_time_limit(settings: DryRunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "sleep")
    limited = DryRunSettings(python=settings.python, cache=settings.cache, timeout_s=1.0)
    started = time.monotonic()
    with pytest.raises(ValidationError, match=r"stage 0 \(rank 0\) was stopped after \d+ s"):
        dryrun(CONFIG, [0], limited)
    assert time.monotonic() - started < 20


def test_failure_of_one_stage_stops_the_others(settings: DryRunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "refused")
    jobs = DryRunSettings(python=settings.python, cache=settings.cache, jobs=2)
    with pytest.raises(ValidationError, match="stage [01]"):
        dryrun(CONFIG, range(4), jobs)


def test_a_late_stage_that_fails_is_reported_while_earlier_ones_still_run(
    settings: DryRunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "last fails")
    jobs = DryRunSettings(python=settings.python, cache=settings.cache, jobs=2)
    started = time.monotonic()
    with pytest.raises(
        ValidationError, match=r"stage 3 \(rank 12\) ended with exit status 1: ValueError: num_heads 30"
    ):
        dryrun(CONFIG, [0, 3], jobs)
    assert time.monotonic() - started < 30


CTRL_C = """
import json, sys
from pathlib import Path
from planner.validate.compiler.dryrun import DryRunSettings, dryrun
dryrun(json.loads(sys.argv[1]), [0, 1], DryRunSettings(python=Path(sys.argv[2]), cache=Path(sys.argv[3]), jobs=2))
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_no_process_and_no_cache_entry(
    settings: DryRunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    monkeypatch.setenv("FAKE_MODE", "sleep")
    command = [sys.executable, "-c", CTRL_C, json.dumps(CONFIG), str(settings.python), str(settings.cache)]
    parent = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while len(calls(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    running = children_of(parent.pid)
    assert len(running) == 2
    parent.send_signal(number)
    _, errors = parent.communicate(timeout=30)
    assert (b"KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert parent.returncode == status
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    assert not (tmp_path / "cache/dryrun").exists()
    assert list((tmp_path / "scratch").iterdir()) == []


def children_of(parent: int) -> list[int]:
    """Process ids whose parent is `parent`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def test_yaml_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="Cannot read"):
        load_yaml(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,")
    with pytest.raises(ValidationError, match="is not YAML"):
        load_yaml(broken)
    broken.write_text("just words")
    with pytest.raises(ValidationError, match="no YAML mapping"):
        load_yaml(broken)


def test_small_floats_are_floats_for_yaml_1_1(settings: DryRunSettings, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    dryrun(CONFIG, [0], DryRunSettings(python=settings.python, cache=settings.cache, keep=keep))
    written = (keep / "stage-0/config.yaml").read_text()
    assert "eps: 1.0e-08" in written
    assert load_yaml(keep / "stage-0/config.yaml")["optimizer"]["eps"] == 1e-8


def test_a_damaged_result_is_made_again(settings: DryRunSettings, tmp_path: Path) -> None:
    dryrun(CONFIG, [0], settings)
    (entry,) = (tmp_path / "cache/dryrun").iterdir()
    whole = entry.read_text()
    for damaged in ("", whole[:40], "[]", '{"stage": 0}'):
        entry.write_text(damaged)
        assert not dryrun(CONFIG, [0], settings).stages[0].cached
        assert entry.read_text() == whole


def test_a_cache_that_cannot_be_written_is_named(settings: DryRunSettings, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    there = DryRunSettings(python=settings.python, cache=blocked / "cache")
    with pytest.raises(ValidationError, match=r"Not a directory\. DryRun writes to .*file/cache and .*XDG_CACHE_HOME"):
        dryrun(CONFIG, [0], there)
    assert list((tmp_path / "scratch").iterdir()) == []
    kept = DryRunSettings(python=settings.python, cache=settings.cache, keep=blocked / "logs")
    with pytest.raises(ValidationError, match="Not a directory"):
        dryrun(CONFIG, [0], kept)
    assert len(calls(tmp_path)) == 0


def test_a_result_that_cannot_be_cached_is_still_a_result(
    settings: DryRunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(module, "write_atomically", full)
    lines: list[str] = []
    report = dryrun(CONFIG, [0], settings, lines.append)
    assert report.stages[0].peak_bytes == 2950
    assert lines[1].startswith("stage 0: not cached, ")
    assert lines[1].endswith("No space left on device")


def test_kept_logs_replace_only_what_a_run_left(settings: DryRunSettings, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    (keep / "stage-0").mkdir(parents=True)
    (keep / "stage-0/mine.txt").write_text("notes")
    settings = DryRunSettings(python=settings.python, cache=settings.cache, keep=keep, use_cache=False)
    dryrun(CONFIG, [0], settings)
    assert (keep / "stage-0/mine.txt").read_text() == "notes"
    (keep / "stage-0/old.ir").touch()
    dryrun(CONFIG, [0], settings)
    assert not (keep / "stage-0/old.ir").exists()


def test_a_stage_named_twice_runs_once(settings: DryRunSettings, tmp_path: Path) -> None:
    assert [stage.stage for stage in dryrun(CONFIG, [1, 1, 0], settings).stages] == [1, 0]
    assert len(calls(tmp_path)) == 2


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([], "No stage is asked for"),
        ([4], "There is no stage 4: this plan has stages 0 to 3"),
        ([-1], "There is no stage -1"),
        (["a"], "There is no stage a"),
        ([0.5], r"There is no stage 0\.5"),
        ([True], "There is no stage True"),
    ],
)
def test_stages_that_do_not_exist(settings: DryRunSettings, tmp_path: Path, stages: list[Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        dryrun(CONFIG, stages, settings)
    assert calls(tmp_path) == []


def test_use_parallel_that_is_off_is_noted(settings: DryRunSettings) -> None:
    assert "--use_parallel True" in dryrun(CONFIG | {"use_parallel": False}, [0], settings).notes[0]
    assert "use_parallel" not in " ".join(dryrun(CONFIG | {"use_parallel": True}, [0], settings).notes)


def test_clipping_that_was_switched_on_is_said(settings: DryRunSettings) -> None:
    wrapper = {"type": "MFTrainOneStepCell", "use_clip_grad": False}
    legacy = CONFIG | {"use_legacy": True, "runner_wrapper": wrapper}
    assert "Ran with gradient clipping" in " ".join(dryrun(legacy, [0], settings).notes)
    assert "clipping" not in " ".join(dryrun(legacy | {"use_legacy": False}, [0], settings).notes)


def test_columns_of_a_sample_are_part_of_the_key(settings: DryRunSettings, tmp_path: Path) -> None:
    """A mask that the data set brings is another graph; where the data lie is not."""
    columns = ["input_ids", "labels", "loss_mask", "position_ids"]
    dryrun(CONFIG | {"train_dataset": {"input_columns": columns}}, [0], settings)
    assert dryrun(CONFIG | {"train_dataset": {"input_columns": columns, "seed": 3}}, [0], settings).stages[0].cached
    masked = {"input_columns": [*columns, "attention_mask"]}
    assert not dryrun(CONFIG | {"train_dataset": masked}, [0], settings).stages[0].cached
    assert len(calls(tmp_path)) == 2


def test_a_model_in_a_config_json_beside_the_file(settings: DryRunSettings, tmp_path: Path) -> None:
    """Only config.json goes along: weights in that folder would be loaded."""
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text('{"max_position_embeddings": 512}')
    (tmp_path / "hf/model.safetensors").touch()
    path = tmp_path / "pretrain.yaml"
    content = CONFIG | {"pretrained_model_dir": "hf", "model": {"model_config": {}}}
    path.write_text(json.dumps(content))
    kept = DryRunSettings(python=settings.python, cache=settings.cache, keep=tmp_path / "kept")
    assert dryrun(path, [0], kept).layout.seq == 512
    run = tmp_path / "kept/stage-0"
    assert load_yaml(run / "config.yaml")["pretrained_model_dir"] == "./pretrained"
    assert [file.name for file in (run / "pretrained").iterdir()] == ["config.json"]
    (tmp_path / "hf/config.json").write_text('{"max_position_embeddings": 512, "hidden_size": 8}')
    assert not dryrun(path, [0], kept).stages[0].cached
    (tmp_path / "hf/config.json").write_text("{")
    with pytest.raises(ValidationError, match=r"hf/config\.json, which pretrained_model_dir names"):
        dryrun(path, [0], kept)


def test_half_a_report_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('PLANNER_DRYRUN {"peak_bytes": 5}\nPLANNER_DRYRUN {"peak_by')
    assert read_report(log) == {"peak_bytes": 5}


def test_last_error_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\nRuntimeError: first\nTypeError: second\n\nending\n")
    assert last_error_line(log) == "TypeError: second"
    log.write_text("only words\n\n")
    assert last_error_line(log) == "only words"
    assert last_error_line(tmp_path / "absent") == ""
    warning = '[CRITICAL] ME(1): [mindspore/run_check/_check_version.py:351] MindSpore relies on whl package "te"'
    log.write_text(f"RuntimeError: first\n{warning}\n")
    assert last_error_line(log) == "RuntimeError: first"


def test_runner_is_never_imported() -> None:
    source = (Path(module.__file__).parent / "runner.py").read_text()
    assert "planner." not in source.replace("planner.validate.compiler.runner", "")
    assert module._RUNNER.is_file()
