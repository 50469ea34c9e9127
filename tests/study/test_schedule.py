"""Evaluations, saves and profiles over a training."""

from __future__ import annotations

import pytest

from planner import api
from planner.completion import complete
from planner.cost.estimate import Estimate
from planner.errors import SpecError
from planner.inputs import request_for
from planner.search.request import Request
from planner.study.schedule import FORWARD, MOST_SHARE, PROFILE_STEPS, schedule
from tests.cli.runner import run


def job(tokens: str = "100B", cards: int = 64) -> tuple[Request, Estimate]:
    request = request_for("8B", cards, seq=4096, global_batch=512, tokens=tokens)
    return request, api.judged(request, complete(request, tp=4, pp=2))


def test_evaluations_cost_what_their_tokens_cost() -> None:
    request, estimate = job()
    found = schedule(request, estimate)
    assert found.steps == -(-100_000_000_000 // (512 * 4096))
    stage, deep = found.tiers[1], found.tiers[2]
    assert stage.share == pytest.approx(10 * 0.01 * FORWARD)
    assert found.evaluation_share == pytest.approx(12 * 1e9 * FORWARD / 100e9)
    assert found.affordable
    assert (len(stage.steps), stage.steps[-1], deep.steps[-1]) == (10, found.steps, found.steps)
    dear = schedule(request, estimate, 2e9)
    assert dear.evaluation_share > MOST_SHARE
    assert not dear.affordable


@pytest.mark.parametrize("cards", [16, 64, 512])
def test_profiles_meet_no_save_and_no_evaluation(cards: int) -> None:
    found = schedule(*job(cards=cards))
    tiers = {tier.name: tier for tier in found.tiers}
    save = tiers["checkpoint"].every
    evaluated = {*tiers["stage"].steps, *tiers["deep"].steps}
    assert tiers["profile"].steps[0] >= 10
    assert save > PROFILE_STEPS + 1
    for first in tiers["profile"].steps:
        for step in range(first, first + PROFILE_STEPS):
            assert step % save
            assert step not in evaluated
    assert 10 <= tiers["health"].every <= 100


def test_a_budget_is_needed_and_long_enough() -> None:
    request, estimate = job("100M")
    with pytest.raises(SpecError, match="a schedule needs at least 100"):
        schedule(request, estimate)
    assert run("schedule --params 8B --cards 16").err.startswith("Error: how long is the training?")


def test_command_says_what_would_be_affordable() -> None:
    answer = run("schedule --params 8B --cards 16 --tokens 100B --eval-tokens 3B")
    assert answer.code == 0
    assert "above 5 %" in answer.out
    assert "--eval-tokens 1.25B would be within it" in answer.out
    assert max(map(len, answer.lines)) <= 80
