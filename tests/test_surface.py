"""The public names, frozen: a name is added or removed on purpose or not at all."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import planner

ROOT = Path(__file__).parents[1]

NAMES = {
    "CalibrationError", "Cluster", "EmitError", "Estimate", "InfeasibleError", "MemoryEstimator", "Model", "Plan",
    "PlannerError", "PredictedOutOfMemory", "ProfileError", "SpecError", "Strategy", "ValidationError", "Workload",
    "estimate", "suggest",
}  # fmt: skip

#: Parameters of the public functions and methods, in order.
SIGNATURES = {
    "suggest": (
        "model cards hardware seq global_batch tokens framework max_memory pins objective recompute balance top "
        "progress as_family"
    ),
    "estimate": (
        "model strategy hardware cards seq global_batch tokens framework max_memory recompute stage_layers degrees"
    ),
    "MemoryEstimator.from_mindformers": "path hardware max_memory accept_unread",
    "MemoryEstimator.from_plan": "plan hardware max_memory",
    "MemoryEstimator.from_strategy": (
        "model strategy hardware seq global_batch framework max_memory recompute stage_layers degrees"
    ),
    "MemoryEstimator.stages": "self micro_batch_size seq",
    "MemoryEstimator.peak": "self stage micro_batch_size seq",
    "MemoryEstimator.headroom": "self stage",
    "MemoryEstimator.card": "self",
    "MemoryEstimator.dryrun": "self stages settings",
    "MemoryEstimator.max_micro_batch_size": "self seq",
    "MemoryEstimator.sweep": "self micro_batch_sizes seqs",
    "MemoryEstimator.check": "self",
    "MemoryEstimator.changes_that_fit": "self",
}


def test_names_are_these_and_all_exist() -> None:
    assert set(planner.__all__) == NAMES
    assert planner.__all__ == sorted(planner.__all__)
    assert dir(planner) == sorted([*NAMES, "__version__"])
    for name in NAMES:
        assert getattr(planner, name).__doc__, name


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'planner' has no attribute 'sugest'"):
        planner.sugest  # noqa: B018


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signatures(name: str) -> None:
    found: object = planner
    for part in name.split("."):
        found = getattr(found, part)
    assert list(inspect.signature(found).parameters) == SIGNATURES[name].split()  # type: ignore[arg-type]


def test_errors_share_one_base_and_have_exit_codes() -> None:
    codes = {name: getattr(planner, name).exit_code for name in NAMES if isinstance(getattr(planner, name), type) and
             issubclass(getattr(planner, name), planner.PlannerError)}  # fmt: skip
    assert codes == {
        "PlannerError": 2,
        "SpecError": 2,
        "ProfileError": 2,
        "CalibrationError": 2,
        "EmitError": 2,
        "InfeasibleError": 3,
        "PredictedOutOfMemory": 3,
        "ValidationError": 4,
    }


def test_readme_commands_are_those_of_the_ci_script() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install, tests = readme.split("```sh\n")[1:3]
    for block in (install, tests):
        for command in block.split("\n```")[0].split(" && "):
            assert f"  {command}" in script or f"\n{command} " in script, command


def test_readme_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both Python blocks of README.md, with the file they name made by the first command of its table."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = (part.split("```")[0] for part in readme.split("```python\n")[1:])
    monkeypatch.chdir(tmp_path)
    from tests.cli.runner import run

    assert run("suggest --params 8B --cards 8 --hardware 910b2 --emit out").code == 0
    (tmp_path / "out" / "pretrain.yaml").rename("pretrain.yaml")
    for code in (first, second):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_version_is_the_projects() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{planner.__version__}"' in text
    assert f"## {planner.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
