"""Files that are damaged, enormous, oddly encoded or mean harm: one clear message, or the right answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.dialects.check import check
from planner.dialects.improve import improve
from planner.dialects.read import read
from planner.dialects.write import emit
from planner.errors import PlannerError, SpecError
from tests.dialects.samples import plan, small
from tests.dialects.test_targets import FAMILY, MAIN, WORK

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(8)
)
YAML_START = "parallel_config:\n  data_parallel: 2\n"
#: What a file may hold -> words of the message.
DAMAGED: dict[str, tuple[bytes, str]] = {
    "bomb": (BOMB.encode() + YAML_START.encode(), "aliases expand to more than 200000 values"),
    "self": (b"parallel_config: &a\n  x: *a\n", "an alias contains itself"),
    "deep": (b"parallel_config: " + b"[" * 5000 + b"]" * 5000, "nested"),
    "tab": (b"parallel_config:\n\tdata_parallel: 2\n", "line 2.*a tab stands where spaces must"),
    "utf-16": ("parallel_config: {}\n".encode("utf-16"), "is UTF-16 text; the frameworks read UTF-8"),
    "latin-1": (b"# caf\xe9\nparallel_config: {}\n", "line 1: not UTF-8 text; save the file as UTF-8"),
    "nul": (b"parallel_config: {}\0\n", "is a binary file"),
    "object": (b"parallel_config: !!python/object/apply:os.system ['touch pwned']\n", "tags that build objects"),
    "empty": (b"", "is empty"),
    "list": (b"- 1\n- 2\n", "holds no mapping"),
    "undefined": (b"parallel_config: *nowhere\n", "not valid YAML"),
    "date": (b"parallel_config: 2024-13-99\n", "a value cannot be read: month must be in 1..12"),
    "large": (b"#" * (10 * 2**20), "has 10485760 bytes; a training configuration has at most 2097152"),
}


@pytest.mark.parametrize("what", [read, check], ids=["read", "check"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_yaml(tmp_path, monkeypatch, what, kind):
    monkeypatch.chdir(tmp_path)
    content, message = DAMAGED[kind]
    path = tmp_path / "pretrain.yaml"
    path.write_bytes(content)
    started = time.monotonic()
    with pytest.raises(SpecError, match=message) as caught:
        what(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 20
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pretrain.yaml"]


@pytest.mark.parametrize("name", ["pretrain.yaml", "pretrain.sh", "pretrain.py", "plan.json"])
@pytest.mark.parametrize("kind", ["utf-16", "latin-1", "nul", "large", "empty"])
def test_damaged_files_of_every_kind(tmp_path, name, kind):
    path = tmp_path / name
    path.write_bytes(DAMAGED[kind][0])
    for what in (read, lambda file: improve(file, plan(small("qwen3")).strategy)):
        with pytest.raises(PlannerError) as caught:
            what(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pretrain.yaml", "pretrain.sh", "plan.json"])
@pytest.mark.parametrize("kind", ["folder", "missing", "dangling", "device", "loop"])
def test_what_is_no_file(tmp_path, name, kind):
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
    if kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    if kind == "device":
        path.symlink_to("/dev/zero")
    if kind == "loop":
        path.symlink_to(path)
    for what in (read, check):
        with pytest.raises(SpecError, match="does not exist|is not a file|holds no file|cannot be read|is too large"):
            what(path)


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("change", ["bom", "crlf", "link", "spaces"])
def test_files_that_are_only_unusual(tmp_path, kind, change):
    """A byte order mark, Windows line ends, a symbolic link to it, blank ends of lines: read as they are meant."""
    target = kind.split()[0]
    values = {"zero_level": 3} if target == "mindformers-pynative" else {}
    chosen = plan(small(FAMILY[kind]), dp=4, tp=2, full=2, workload=WORK[target], **values)
    emit(chosen, tmp_path / "out", target=target)
    path = tmp_path / "out" / MAIN[target]
    data = path.read_bytes()
    if change == "bom":
        path.write_bytes(b"\xef\xbb\xbf" + data)
    if change == "crlf":
        path.write_bytes(data.replace(b"\n", b"\r\n"))
    if change == "spaces" and target != "mindspeed":
        path.write_bytes(data.replace(b"\n", b"  \n"))
    if change == "link":
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / path.name).symlink_to(path)
        path = tmp_path / "set" / path.name
    assert read(path, 8).strategy == chosen.strategy
    expected = ["line-ends"] if (change, target) == ("crlf", "mindspeed") else []
    assert [finding.rule for finding in check(path, 8)] == expected


@pytest.mark.parametrize(
    "name",
    ["a b", "$(touch pwned)", "`touch pwned`", "it's", 'say "x"', "semi;colon", "star*", "new\nline", "-rf", "\u4e2d"],
)
@pytest.mark.parametrize("target", ["mindformers", "mindspeed", "mindspore"])
def test_folders_with_odd_names(tmp_path, monkeypatch, name, target):
    monkeypatch.chdir(tmp_path)
    family = {"mindformers": "qwen3"}.get(target, "llama")
    chosen = plan(small(family), dp=2, tp=2, workload=WORK[target])
    emit(chosen, Path(name), target=target)
    assert check(Path(name)) == ()
    assert read(Path(name)).strategy == chosen.strategy
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_shell_script_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    emit(plan(small("llama"), dp=2, workload=WORK["mindspeed"]), tmp_path / "out", target="mindspeed")
    path = tmp_path / "out" / "pretrain.sh"
    hostile = "X=$(touch pwned)\nY=`touch pwned`\nZ=$((1 + $(touch pwned)))\neval touch pwned\n"
    path.write_text(path.read_text().replace("set -euo pipefail", hostile))
    assert read(path).strategy.dp == 2
    check(path)
    assert not (tmp_path / "pwned").exists()


def test_another_number_of_processes_than_planned(tmp_path):
    emit(plan(small("llama"), dp=8, workload=WORK["mindspeed"]), tmp_path / "out", target="mindspeed")
    path = tmp_path / "out" / "pretrain.sh"
    path.write_text(path.read_text().replace("--nproc_per_node 8", "--nproc_per_node 4"))
    assert "4 processes are started, but the job has 8 devices." in [finding.why for finding in check(tmp_path / "out")]
