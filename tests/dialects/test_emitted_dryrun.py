"""Emitted files train: first and last stage of each plan, two simulated steps, compiled by MindSpore itself.

Plans are written as `--emit` writes them, checked as `planner check` does, and run as `planner dryrun` runs them; the
memory predicted for the plan is compared with the compiler's. Fails, and is not skipped, where MindSpore is missing,
unless PLANNER_NO_MINDSPORE=1; PLANNER_MINDSPORE_PYTHON names another interpreter that has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.dialects.write import emit
from tests.cli.runner import run
from tests.dialects.compiled import compiled

pytestmark = [
    pytest.mark.dryrun,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("PLANNER_NO_MINDSPORE") == "1", reason="PLANNER_NO_MINDSPORE=1"),
]

PLANS = compiled()
#: Largest error of a predicted peak [percent of the DryRun's].
LIMIT = 4.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this module's own: nothing is taken from earlier runs."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=PLANS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Any]:
    """Answer of `planner dryrun` on the emitted folder, first and last stage side by side."""
    name = request.param
    out = tmp_path_factory.mktemp(name) / "out"
    emit(PLANS[name], out)
    checked = run(f"check {out}")
    assert checked.code == 0, checked.out
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        answer = run(f"dryrun {out} --stages 0,{PLANS[name].strategy.pp - 1} --jobs 2 --timeout 600 --json")
    assert answer.code == 0, answer.err
    return {"name": name, **answer.document}


def test_first_and_last_stage_train_two_steps(trained: dict[str, Any]) -> None:
    strategy = PLANS[trained["name"]].strategy
    assert [stage["stage"] for stage in trained["stages"]] == [0, strategy.pp - 1]
    for stage in trained["stages"]:
        assert stage["steps"] == 2
        assert (stage["mindspore"], stage["mindformers"]) == ("2.9.0", "1.9.0")
        assert stage["micro_batches"] == strategy.micro_batches
        assert not stage["cached"]


def test_predicted_memory_is_the_compiler_s(
    trained: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    for stage in trained["stages"]:
        error = stage["difference_percent"]
        record_property(f"stage {stage['stage']}", f"{stage['dryrun_gib']:.3f} GiB, {error:+.1f} %")
        assert abs(error) <= LIMIT
