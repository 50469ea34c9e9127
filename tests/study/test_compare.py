"""Two jobs, one variable at a time, and the ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli.changes import apply
from planner.completion import complete
from planner.errors import SpecError
from planner.inputs import request_for
from planner.study import ledger
from planner.study.jobs import Job, differing, judge, mixed
from planner.study.whatif import compare
from tests.cli.runner import run
from tests.cli.test_answers import undocumented


@pytest.fixture(scope="module")
def job() -> Job:
    request = request_for("13B", 32, seq=4096, global_batch=128)
    return Job(request=request, strategy=complete(request, tp=4, pp=2, recompute="full"))


CHANGES = (
    ["recompute=selective"],
    ["recompute=full", "micro_batch=2"],
    ["tp=8", "recompute=auto", "micro_batch=2"],
    ["pp=4", "vpp=2"],
    ["global_batch=256", "tp=2"],
    ["cp=2"],
    ["zero_level=0"],
    ["swap_optimizer=true", "sequence_parallel=off"],
)


@pytest.mark.parametrize("changes", CHANGES, ids=" ".join)
def test_all_variables_together_make_the_second_job(job: Job, changes: list[str]) -> None:
    after = apply(job, changes)
    names = differing(job, after)
    assert mixed(job, after, names).strategy == after.strategy
    assert mixed(job, after, ()).strategy == job.strategy
    assert differing(job, job) == {}


@pytest.mark.parametrize("changes", CHANGES, ids=" ".join)
def test_steps_in_order_add_up_to_the_whole(job: Job, changes: list[str]) -> None:
    found = compare(job, apply(job, changes))
    steps = [each.step_s for each in found.variables]
    if None not in steps:
        assert sum(filter(None, steps)) == pytest.approx(found.together_s)
    if len(found.variables) == 1:
        assert found.interplay_s in (None, pytest.approx(0.0, abs=1e-12))


def test_seconds_are_those_of_estimates(job: Job) -> None:
    after = apply(job, ["micro_batch=2", "recompute=selective", "tp=8"])
    found = compare(job, after)
    before_s, after_s = judge(job).estimate.step_s, judge(after).estimate.step_s  # type: ignore[union-attr]
    assert before_s is not None
    assert after_s is not None
    assert found.together_s == pytest.approx(before_s - after_s)
    assert {each.name for each in found.variables} == {"micro-batch size", "recompute", "layout"}
    single = next(each for each in found.variables if each.name == "micro-batch size")
    alone = judge(apply(job, ["micro_batch=2"])).estimate
    assert alone is not None
    assert single.alone.estimate == alone
    if found.sum_s is not None:
        assert found.interplay_s == pytest.approx(found.together_s - found.sum_s)


def test_seconds_are_for_the_same_tokens(job: Job) -> None:
    found = compare(job, apply(job, ["global_batch=256"]))
    one, other = found.before.estimate, found.after.estimate
    assert one is not None
    assert other is not None
    assert found.together_s == pytest.approx((one.step_s or 0) - (other.step_s or 0) / 2)
    assert "square root" in found.learning[0]


def test_what_cannot_run_has_no_seconds_and_says_why(job: Job) -> None:
    small = replace(job, request=replace(job.request, limit_bytes=24 * 2**30))
    found = compare(small, apply(small, ["recompute=none", "micro_batch=4"]))
    assert found.together_s is None
    assert any("GiB" in each.alone.why for each in found.variables)


def test_other_limits_and_constants_are_variables(job: Job) -> None:
    constants = job.request.calibration.constants
    slower = replace(constants["matmul_efficiency"], value=0.5 * constants["matmul_efficiency"].value)
    calibration = replace(job.request.calibration, constants={**constants, "matmul_efficiency": slower})
    other = replace(job, request=replace(job.request, calibration=calibration, limit_bytes=50 * 2**30))
    found = compare(job, other)
    assert {each.name for each in found.variables} == {"calibration", "memory limit"}
    gains = {each.name: each.alone_s for each in found.variables}
    assert gains["memory limit"] == 0.0
    assert gains["calibration"] == found.together_s
    assert (found.together_s or 0) < 0


def test_different_models_are_no_two_jobs(job: Job) -> None:
    request = request_for("8B", 32, seq=4096, global_batch=128)
    with pytest.raises(SpecError, match="different models"):
        differing(job, Job(request=request, strategy=complete(request, tp=4, pp=2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed=9", "is no change; write name=value"),
        ("tp", "is no change"),
        ("tp=fast", "is not a whole number"),
        ("tp=2,4", "takes one number"),
        ("tp=0", "tp=0 must be"),
        ("swap_optimizer=maybe", "is true or false"),
        ("recompute=some", "legal: auto, none"),
        ("recompute=1,2,3", "needs 2 numbers"),
        ("tp=5", "does not divide 32 cards"),
    ],
)
def test_bad_changes(job: Job, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        apply(job, [text])


@pytest.mark.parametrize(
    ("predicted", "after", "verdict"),
    [
        (0.1, 9.0, "helped"),
        (0.1, 11.0, "hurt"),
        (0.1, 9.9, "no effect"),
        (0.005, 9.9, "inside the noise"),
        (None, 10.1, "inside the noise"),
        (0.1, None, "not measured"),
    ],
)
def test_verdicts(predicted: float | None, after: float | None, verdict: str) -> None:
    entry = ledger.Entry(
        hypothesis="", changes=("a",), predicted=predicted, measured_before_s=10.0, measured_after_s=after
    )
    assert entry.verdict == verdict


def test_command_keeps_a_ledger(tmp_path: Path) -> None:
    assert run(f"suggest --params 8B --cards 16 --global-batch 64 --emit {tmp_path / 'a'}").code == 0
    kept = tmp_path / "ledger.json"
    command = f"compare {tmp_path / 'a'} --ledger {kept} --hypothesis why"
    answer = run(f"{command} --set micro_batch=2 --set recompute=full --measured 10s,9s")
    assert answer.code == 0, answer.err
    assert "changes 2 variables at once" in answer.out
    body = run(f"{command} --set recompute=full --json").document
    assert undocumented(body) == []
    assert [each["verdict"] for each in body["ledger"]] == ["helped", "not measured"]
    assert [each["single"] for each in body["ledger"]] == [False, True]
    shown = run(f"compare --ledger {kept}")
    assert shown.code == 0
    assert max(map(len, shown.lines)) <= 80
    entries = ledger.read(str(kept))
    assert ledger.read(str(kept)) == entries
    assert json.loads(ledger.dumps(entries)) == json.loads(kept.read_text(encoding="utf-8"))
    same = run(f"compare {tmp_path / 'a'} {tmp_path / 'a' / 'pretrain.yaml'}")
    assert "nothing that is known here" in same.out


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "planner/ledger/1", "entries": [{}]}', '{"schema": "planner/ledger/2"}']
)
def test_bad_ledgers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=r"ledger\.json"):
        ledger.read(str(path))


def test_ledger_refuses_wrong_types(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    entry = ledger.Entry(hypothesis="", changes=("a",), predicted=None)
    path.write_text(ledger.dumps((replace(entry, noise=-1.0),)), encoding="utf-8")
    with pytest.raises(SpecError, match="noise not negative"):
        ledger.read(str(path))
    assert run("compare").code == 2
    assert run("compare a --hypothesis x").err.startswith("Error: --hypothesis and --measured belong to a ledger")
