"""Every wrong input: exit code, one clear message, nothing on stdout, nothing written."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from planner.cluster.load import data_directory
from tests.cli.runner import run

JOB = "suggest --params 8B --cards 8 --global-batch 64"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with damaged inputs, made the current one."""
    profile = (data_directory("hardware_profiles") / "910b2.yaml").read_text(encoding="utf-8")
    (tmp_path / "no-unit.yaml").write_text(profile.replace("unit: GiB, ", "", 1), encoding="utf-8")
    (tmp_path / "cut-profile.yaml").write_text(profile[:1500], encoding="utf-8")
    (tmp_path / "no-heads.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4096}), encoding="utf-8")
    (tmp_path / "cut.json").write_text('{"model_type": "llama", "hidden_si', encoding="utf-8")
    (tmp_path / "cut-plan.json").write_text('{"schema": 1, "model": {"name": "x", ', encoding="utf-8")
    (tmp_path / "cut.yaml").write_text("parallel_config:\n  data_parallel: 2\n  model_par", encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("parallel_config: [1, 2\nmodel: }\n", encoding="utf-8")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "pretrain.yaml").write_text("mine\n", encoding="utf-8")
    (tmp_path / "a-file").write_text("mine\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


#: Command, exit code, words that the message must hold: the input, and the remedy.
CASES = [
    # which model
    ("suggest --cards 64", 2, ["which model?", "--params 70B"]),
    ("suggest --model gpt-9 --cards 64", 2, ["'gpt-9' is not in the catalogue", "planner models"]),
    ("suggest --model lama-3.1-70b --cards 64", 2, ["did you mean Llama-3.1-70B"]),
    ("suggest --params 70B --model llama-2-7b --cards 8", 2, ["--params and --model", "give one"]),
    ("suggest --config no-heads.json --cards 8", 2, ["no-heads.json", "num_attention_heads"]),
    ("suggest --config cut.json --cards 8", 2, ["cut.json", "not valid JSON"]),
    ("suggest --config nowhere.json --cards 8", 2, ["nowhere.json", "no such file"]),
    # zero, negative, absurd sizes
    ("suggest --params 0 --cards 8", 2, ["--params '0' is out of range", "1.00M to 100T"]),
    ("suggest --params -7B --cards 8", 2, ["--params '-7B' must be positive"]),
    ("suggest --params 7X --cards 8", 2, ["unknown unit 'X'", "K, M, B"]),
    ("suggest --params 1e400B --cards 8", 2, ["--params '1e400B' is out of range"]),
    ("suggest --params 900000T --cards 8", 2, ["out of range", "100T"]),
    ("suggest --params 8B --layers 0 --cards 8", 2, ["--layers '0' is out of range"]),
    ("suggest --params 8B --layers 1e3 --cards 8", 2, ["--layers '1e3' is not a whole number"]),
    ("suggest --params 8B --hidden 99999999999999999999 --cards 8", 2, ["--hidden has 20 digits"]),
    ("suggest --params 8B --heads 7 --cards 8", 2, ["heads=7", "nearest"]),
    ("suggest --layers 32 --hidden 4096 --cards 8", 2, ["lacks heads, vocab, ffn"]),
    # cards
    ("suggest --params 8B", 2, ["how many cards?", "--cards 64"]),
    ("suggest --params 8B --cards 0", 2, ["--cards '0' is out of range"]),
    ("suggest --params 8B --cards -8", 2, ["--cards '-8' is out of range"]),
    ("suggest --params 8B --cards 8.5", 2, ["--cards '8.5' is not a whole number"]),
    ("suggest --params 8B --cards 99999999", 2, ["--cards '99999999' is out of range", "1000000"]),
    ("suggest --params 70B --cards 63", 2, ["63 cards do not fill whole nodes of 8", "56 or 64"]),
    # workload
    ("suggest --params 8B --cards 8 --seq 0", 2, ["--seq '0' is out of range"]),
    ("suggest --params 8B --cards 8 --seq 4Q", 2, ["unknown unit 'Q'"]),
    ("suggest --params 8B --cards 8 --tokens -1T", 2, ["--tokens '-1T' must be positive"]),
    ("suggest --params 8B --cards 8 --framework torch", 2, ["framework 'torch'", "mindformers"]),
    ("suggest --params 8B --cards 8 --framework mindformers:1.0", 2, ["'1.0'", "legal"]),
    ("suggest --params 70B --cards 64 --global-batch 3", 2, ["global-batch", "asked is 3", "nearest legal"]),
    ("suggest --params 70B --cards 64 --dp 8 --global-batch 127", 2, ["asked is 127", "120 or 128"]),
    # strategy
    ("suggest --params 70B --cards 64 --global-batch 7", 2, ["asked is 7", "nearest legal global batches: 8."]),
    ("suggest --params 70B --cards 64 --vpp 4 --pp 1", 2, ["vpp=4 needs pp >= 2", "Use vpp=1"]),
    ("suggest --params 70B --cards 64 --tp 1,,2", 2, ["--tp '1,,2' has an empty place"]),
    ("suggest --params 70B --cards 64 --tp 3", 2, ["tp=3", "legal"]),
    ("suggest --params 70B --cards 64 --tp 0", 2, ["--tp '0' is out of range"]),
    ("suggest --params 70B --cards 64 --tp eight", 2, ["--tp 'eight' is not a whole number"]),
    ("suggest --params 70B --cards 64 --tp ,", 2, ["--tp ',' holds no number"]),
    ("suggest --params 70B --cards 64 --pp 200", 2, ["pp=200", "does not divide 64"]),
    ("suggest --params 70B --cards 64 --recompute much", 2, ["--recompute 'much'", "selective"]),
    ("suggest --params 70B --cards 64 --recompute 4,2", 2, ["--recompute 4,2", "planner estimate"]),
    ("suggest --params 70B --cards 64 --schedule fast", 2, ["'fast'", "1f1b"]),
    ("suggest --params 8B --cards 8 --objective speed", 2, ["--objective 'speed'", "time, cards, memory"]),
    ("suggest --params 8B --cards 8 --top 0", 2, ["--top '0' is out of range"]),
    # memory and hardware
    ("suggest --params 8B --cards 8 --max-memory 54", 2, ["--max-memory '54' has no unit", "54GB"]),
    ("suggest --params 8B --cards 8 --max-memory 54XB", 2, ["unknown unit 'XB'"]),
    ("suggest --params 8B --cards 8 --max-memory 640GB", 2, ["more than one 910B3 has", "64.0 GiB"]),
    ("suggest --params 8B --cards 8 --hardware 910z", 2, ["'910z' is not known", "910B2"]),
    ("suggest --params 8B --cards 8 --hardware no-unit.yaml", 2, ["no-unit.yaml", "device.memory.unit", "GiB"]),
    ("suggest --params 8B --cards 8 --hardware cut-profile.yaml", 2, ["cut-profile.yaml", "not readable YAML"]),
    ("suggest --params 8B --cards 8 --hardware nowhere.yaml", 2, ["nowhere.yaml", "cannot be read"]),
    # nothing fits
    ("suggest --params 70B --cards 8", 3, ["does not fit on 8 x 910B3", "needs at least", "cards of this kind"]),
    ("suggest --model deepseek-v3 --cards 64", 3, ["does not fit on 64 x 910B3", "needs at least"]),
    ("suggest --model deepseek-v3 --cards 2", 3, ["does not fit on 2 x 910B3 in any of", "needs at least"]),  # O01
    # what frameworks refuse or hang on (ids of the published reports)
    ("estimate --params 7B --cards 7 --dp 7 --micro-batch 2 --global-batch 256", 2, ["252 or 266"]),  # V06
    ("estimate --model qwen2-7b --cards 8 --tp 8", 2, ["28 attention heads", "1, 2, 4, 7, 14, 28", "Try tp=4"]),  # V01
    ("estimate --model llama-2-7b --cards 8 --pp 8 --global-batch 4", 2, ["micro_batches=4 < pp=8", "pp <= 4"]),  # V07
    ("estimate --model qwen3-30b-a3b --cards 4 --pp 2 --dp 2 --ep 4 --global-batch 8", 2, ["legal ep: 1, 2"]),  # V11
    # output
    (f"{JOB} --emit taken", 2, ["taken already holds pretrain.yaml", "--force"]),
    (f"{JOB} --emit a-file", 2, ["a-file is a file"]),
    (f"{JOB} --emit {'x' * 300}", 2, ["cannot be written", "name a directory"]),
    (f"{JOB} --emit ''", 2, ["--emit names no folder"]),
    (f"{JOB} --emit-top 3", 2, ["--emit-top without --emit", "add --emit DIR"]),
    (f"{JOB} --force --data corpus", 2, ["--data and --force without --emit"]),
    (f"{JOB} --emit new --target torch", 2, ["target 'torch' is not known", "mindformers"]),
    (f"{JOB} --emit new --hosts nowhere.txt", 2, ["nowhere.txt cannot be read"]),
    (f"{JOB} --emit new --emit-top 0", 2, ["--emit-top '0' is out of range"]),
    # estimate, explain, emit and the lists
    ("estimate --params 70B --tp 6 --cards 64", 2, ["6 does not divide 64 cards"]),
    ("estimate --params 70B --tp 1,2 --cards 64", 2, ["--tp has 2 values", "planner suggest"]),
    ("estimate --params 70B --tp 8 --pp 4 --dp 2 --recompute 1,2", 2, ["4 numbers for pp=4", "given 2"]),
    ("estimate --params 70B --tp 8 --pp 4 --dp 2 --recompute much", 2, ["--recompute 'much'", "selective"]),
    ("estimate --params 70B --tp 8 --pp 4 --dp 2 --stage-layers 20,20,20,19", 2, ["79", "80"]),
    (
        "estimate --params 8B --tp 1 --dp 8 --global-batch 64 --measured 337",
        2,
        ["measured '337' has an unknown unit", "tokens/s/card"],
    ),
    (
        "estimate --params 8B --tp 1 --dp 8 --global-batch 64 --measured '0 s'",
        2,
        ["measured '0 s' is not a positive number"],
    ),
    (
        "estimate --params 8B --tp 1 --dp 8 --global-batch 64 --measured '90000 tokens/s/card'",
        2,
        ["of the card's peak", "per card"],
    ),
    ("estimate --from nowhere.yaml", 2, ["nowhere.yaml"]),
    ("estimate --from broken.yaml", 2, ["broken.yaml", "line 2", "not valid YAML"]),
    ("estimate --from cut.yaml", 2, ["cut.yaml"]),
    ("estimate --from latin.yaml", 2, ["latin.yaml", "UTF-8"]),
    ("estimate --from cut-plan.json", 2, ["cut-plan.json", "ends too early"]),
    ("estimate --from cut-plan.json --tp 8", 2, ["leave out --tp"]),
    ("emit cut-plan.json new", 2, ["cut-plan.json", "ends too early"]),
    ("emit nowhere new", 2, ["nowhere", "cannot be read"]),
    ("cards --params 70B --tp 64", 2, ["is legal on any number of 910B3", "tp-node: tp=64"]),
    ("cards --params 70B --tp 3", 2, ["is legal on any number of 910B3", "heads: tp=3 does not divide 64"]),
    (
        "cards --model llama-3.1-405b --tp 1 --pp 1",
        3,
        ["fits on none of", "do not split further: temporaries", "Relax"],
    ),
    ("collective --ranks 1", 2, ["--ranks 1", "at least 2"]),
    ("collective --op gossip", 2, ["'gossip'", "allreduce"]),
    ("collective --size 1QB", 2, ["unknown unit 'QB'"]),
    ("accuracy speed", 2, ["'speed'", "time"]),
    ("accuracy time --data nowhere.csv", 2, ["nowhere.csv"]),
    ("accuracy time --data a-file", 2, ["a-file"]),
    ("fit", 2, ["--out"]),
    ("fit --out nowhere/deeper", 2, ["cannot be written to nowhere/deeper"]),
    ("dryrun nowhere", 2, ["nowhere"]),
    ("dryrun cut-plan.json", 2, ["cut-plan.json"]),
    ("models zzz", 2, ["'zzz' is not in the catalogue"]),
    ("hardware zzz", 2, ["'zzz' is not known", "910B2"]),
    # usage
    ("suggest --nonsense", 2, ["No such option", "--nonsense", "planner suggest --help"]),
    ("suggest --params", 2, ["--params", "requires an argument"]),
    ("sugest --params 8B", 2, ["No such command 'sugest'", "Did you mean 'suggest'?"]),
]


@pytest.mark.parametrize(("command", "code", "words"), CASES, ids=[case[0] for case in CASES])
def test_refused_with_one_clear_message(files: Path, command: str, code: int, words: list[str]) -> None:
    before = tree(files)
    answer = run(command)
    assert answer.code == code
    assert answer.out == ""
    assert answer.err.startswith("Error: ")
    for word in words:
        assert word in answer.err
    assert "Traceback" not in answer.err
    assert len(answer.err.strip().splitlines()) <= 2
    assert len(answer.err) < 700
    assert tree(files) == before


def test_read_only_folder_leaves_nothing_behind(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object, **kwargs: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    before = tree(files)
    monkeypatch.setattr("planner.dialects.write.tempfile.mkdtemp", denied)
    answer = run(f"{JOB} --emit new")
    assert answer.code == 2
    assert "new" in answer.err
    assert "Read-only file system" in answer.err
    assert tree(files) == before
    assert not (files / "new").exists()


def test_force_replaces_the_named_files_only(files: Path) -> None:
    shutil.copy(files / "a-file", files / "taken" / "notes.txt")
    (files / "taken" / "pretrain.yaml").unlink()
    assert run(f"{JOB} --emit taken").code == 0
    assert run(f"{JOB} --emit taken").code == 2
    assert run(f"{JOB} --emit taken --force").code == 0
    assert (files / "taken" / "notes.txt").read_text(encoding="utf-8") == "mine\n"
