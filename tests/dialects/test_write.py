"""Files are written all or none, and never over anything that was not asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from planner import plan as plans
from planner.dialects.records import File, Settings
from planner.dialects.write import emit, write_files
from planner.errors import EmitError
from tests.dialects.samples import golden, plan, small

PLAN = golden()["llama-3.1-70b-64"]
SMALL = plan(small("qwen3"), dp=2, tp=2, pp=2)


OLD = "# Written by planner 0.0.1.\n"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_set_of_files(tmp_path):
    result = emit(PLAN, tmp_path / "out")
    assert names(tmp_path / "out") == sorted(
        ["pretrain.yaml", "train.py", "launch.sh", "dryrun.sh", "plan.json"] + [f"node_{i}.sh" for i in range(8)]
    )
    assert sorted(path.name for path in result.files) == names(tmp_path / "out")
    assert plans.load(tmp_path / "out" / "plan.json") == PLAN
    assert [p.where for p in result.placeholders] == ["train_dataset.data_loader.dataset_dir", "MASTER_ADDR"]
    assert (tmp_path / "out" / "launch.sh").stat().st_mode & stat.S_IXUSR


def test_nothing_to_fill_in_when_all_is_given(tmp_path):
    settings = Settings(data_path="/data/set", hosts=tuple(f"node-{i}" for i in range(8)))
    assert emit(PLAN, tmp_path / "out", settings=settings).placeholders == ()


def test_parents_are_made(tmp_path):
    emit(SMALL, tmp_path / "a" / "b")
    assert "pretrain.yaml" in names(tmp_path / "a" / "b")


def test_existing_files_are_kept_without_force(tmp_path):
    (tmp_path / "pretrain.yaml").write_text("mine")
    with pytest.raises(EmitError, match=r"already holds pretrain\.yaml; .* --force"):
        emit(SMALL, tmp_path)
    assert names(tmp_path) == ["pretrain.yaml"]
    assert (tmp_path / "pretrain.yaml").read_text() == "mine"


@pytest.mark.parametrize("name", ["pretrain.yaml", "train.py", "plan.json"])
def test_force_replaces_no_file_that_the_planner_did_not_write(tmp_path, name):
    emit(SMALL, tmp_path)
    (tmp_path / name).write_text('{"plan": "mine"}\n')
    before = {file: (tmp_path / file).read_bytes() for file in names(tmp_path)}
    with pytest.raises(EmitError, match=rf"{name} was not written by planner, so --force leaves it alone"):
        emit(PLAN, tmp_path, force=True)
    assert {file: (tmp_path / file).read_bytes() for file in names(tmp_path)} == before


def test_other_files_of_the_directory_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    emit(SMALL, tmp_path)
    emit(SMALL, tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_force_removes_scripts_of_nodes_that_are_gone_but_no_file_of_the_user(tmp_path):
    emit(PLAN, tmp_path)
    (tmp_path / "node_99.sh").write_text("echo mine\n")
    emit(plan(PLAN.model, dp=2, tp=8, pp=2, full=40), tmp_path, force=True)
    assert [name for name in names(tmp_path) if name.startswith("node_")] == [f"node_{i}.sh" for i in (0, 1, 2, 3, 99)]


@pytest.mark.parametrize("kind", ["file", "symlink to a directory", "dangling symlink"])
def test_what_is_no_directory_is_refused(tmp_path, kind):
    target = tmp_path / "out"
    if kind == "file":
        target.write_text("mine")
    else:
        (tmp_path / "real").mkdir()
        target.symlink_to(tmp_path / ("real" if "directory" in kind else "nowhere"))
    with pytest.raises(EmitError, match="is a file|is a symbolic link"):
        emit(SMALL, target, force=True)
    assert not (tmp_path / "real").exists() or names(tmp_path / "real") == []
    assert not (tmp_path / "nowhere").exists()


def test_a_symlink_in_place_of_a_file_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "launch.sh").symlink_to(victim)
    with pytest.raises(EmitError, match=r"launch\.sh is a symbolic link"):
        emit(SMALL, tmp_path / "out", force=True)
    assert victim.read_text() == "mine"
    assert names(tmp_path / "out") == ["launch.sh"]


def test_a_directory_in_place_of_a_file(tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(EmitError, match=r"plan\.json is a directory"):
        emit(SMALL, tmp_path, force=True)
    assert names(tmp_path) == ["plan.json"]


@pytest.mark.parametrize("place", ["/proc/planner", "/dev/null/out"])
def test_unwritable_places(place):
    with pytest.raises(EmitError, match=r"cannot be written|is a file") as caught:
        emit(SMALL, place)
    assert caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; /proc stands for it above")
def test_read_only_directory(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(EmitError, match="cannot be written: Permission denied"):
        emit(SMALL, tmp_path / "out")


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, existing):
    out = tmp_path / "out"
    if existing:
        emit(SMALL, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()} if existing else {}
    original = Path.write_text

    def write_text(self: Path, *args: object, **options: object) -> int:
        if self.name == "plan.json":
            raise OSError(28, "No space left on device")
        return original(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(EmitError, match="No space left on device"):
        emit(PLAN, out, force=True)
    after = {path.name: path.read_bytes() for path in out.iterdir()} if out.exists() else {}
    assert after == before
    assert names(tmp_path) == (["out"] if existing else [])


def test_a_failed_swap_is_undone(tmp_path, monkeypatch):
    old = [File(name=name, text=OLD) for name in ("a", "b", "c")]
    write_files(old, tmp_path / "out", force=False)
    original, calls = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        calls.append(self.name)
        if len(calls) == 5:
            raise OSError(5, "Input/output error")
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(EmitError, match="Input/output error"):
        write_files([File(name=name, text="new") for name in ("a", "b", "c")], tmp_path / "out", force=True)
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == dict.fromkeys("abc", OLD)


@pytest.mark.parametrize("path", ["/data/a\nb", "/data/\x1b[0m"])
def test_control_characters_in_paths(tmp_path, path):
    with pytest.raises(EmitError, match="control character"):
        emit(SMALL, tmp_path / "out", settings=Settings(data_path=path))
    assert names(tmp_path) == []


def test_unknown_target(tmp_path):
    with pytest.raises(EmitError, match="target 'deepspeed' is not known; legal: mindformers"):
        emit(SMALL, tmp_path / "out", target="deepspeed")


@pytest.mark.parametrize("family", ["qwen2", "mixtral", "glm4_moe", "internlm2", "gpt", "deepseek_v2"])
def test_families_without_a_training_class_name_the_target_that_has_one(tmp_path, family):
    with pytest.raises(EmitError, match=f"no training class for family '{family}'.*(Use|use) --target mindspeed"):
        emit(plan(small(family)), tmp_path / "out")


@pytest.mark.parametrize("model", [small("qwen3"), small("qwen3_moe"), small("deepseek_v3")])
@pytest.mark.parametrize("algorithm", ["ulysses", "hybrid"])
def test_head_exchange_that_does_not_compile_is_refused(tmp_path, model, algorithm):
    chosen = plan(model, cp=4, cp_algorithm=algorithm, ulysses_degree={"ulysses": 4, "hybrid": 2}[algorithm])
    with pytest.raises(EmitError, match=f"cp_algorithm {algorithm} cannot be written .* use cp_algorithm ring"):
        emit(chosen, tmp_path / "out")
