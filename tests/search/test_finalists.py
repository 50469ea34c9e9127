"""What a search shows is simulated: its seconds, its order, and how far its first row is from the best."""

from __future__ import annotations

import numpy as np
import pytest

from planner.api import estimate_of
from planner.cost.strategies import Strategies
from planner.search import objective as search_objective
from planner.search.objective import fitted, simulated, timed
from planner.search.suggest import _joined, search, tie_groups
from planner.search.tables import concatenate
from planner.timeline.estimate import evaluate
from tests.search.requests import answer, request

#: Model, cards, sequence, global batch: 7B to 671B, 8 to 2,048 cards.
JOBS = [
    ("Llama-2-7B", 8, 4096, 64),
    ("Llama-2-13B", 16, 4096, 128),
    ("qwen3-30b-a3b", 16, 4096, 256),
    ("qwen3-32b", 64, 4096, 256),
    ("Llama-3.1-70B", 64, 4096, 256),
    ("Llama-3.1-70B", 64, 32_768, 64),
    ("Llama-3.1-70B", 512, 8192, 1024),
    ("qwen3-235b-a22b", 256, 4096, 1024),
    ("qwen3-235b-a22b", 256, 4096, 4096),
    ("Llama-3.1-405B", 1024, 4096, 1024),
    ("DeepSeek-V3", 1024, 4096, 2048),
    ("DeepSeek-V3", 1024, 4096, 8192),
    ("DeepSeek-V3", 2048, 4096, 4096),
]


def contenders(name: str, cards: int, seq: int, batch: int) -> Strategies:
    """Every fitting row that closed forms put within 12 % of the best, at most 400 of a batch of the space."""
    asked = request(name, cards, seq, batch)
    tables = []
    for part in _joined(asked):
        table, _ = fitted(asked, part.table)
        if len(table):
            tables.append(table.take(np.argsort(timed(asked, table).step_s, kind="stable")[:400]))
    every = concatenate(tables)
    seconds = timed(asked, every).step_s
    return every.take(np.flatnonzero(seconds <= 1.12 * seconds.min()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cards", "seq", "batch"), JOBS)
def test_the_first_row_is_within_one_percent_of_the_best_by_simulation(
    name: str, cards: int, seq: int, batch: int
) -> None:
    asked = request(name, cards, seq, batch)
    best = simulated(asked, contenders(name, cards, seq, batch)).step_s.min()
    assert search(asked).estimates.step_s[0] <= 1.01 * best


@pytest.mark.parametrize(("name", "cards", "seq", "batch"), [JOBS[3], JOBS[4], JOBS[7]])
def test_shown_seconds_are_the_simulation_and_rank_the_rows(name: str, cards: int, seq: int, batch: int) -> None:
    asked, found = request(name, cards, seq, batch), answer(name, cards, seq, batch).estimates
    job = (asked.model, asked.workload, asked.cluster, asked.calibration)
    again = evaluate(*job, found.table, limit_bytes=asked.limit)
    assert again.step_s.tolist() == found.step_s.tolist() == sorted(found.step_s.tolist())
    for row in range(0, len(found), 7):
        alone = estimate_of(asked, found.table.row(row))
        assert alone == found.row(row)


def test_the_default_path_simulates_every_row_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shown strategy was among those that were simulated."""
    seen: set[object] = set()
    real = search_objective.simulated_time

    def spy(*args: object) -> object:
        table = args[4]
        assert isinstance(table, Strategies)
        seen.update(table.row(i) for i in range(len(table)))
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(search_objective, "simulated_time", spy)
    found = search(request("qwen3-32b", 64, batch=256)).estimates
    assert {found.table.row(i) for i in range(len(found))} <= seen


@pytest.mark.parametrize(("name", "cards", "seq", "batch"), [JOBS[4], JOBS[7]])
def test_ties_are_cut_at_a_third_of_the_interval_that_is_shown(name: str, cards: int, seq: int, batch: int) -> None:
    found = answer(name, cards, seq, batch)
    estimates = found.estimates
    for group in found.ties:
        first = group[0]
        width = np.log(estimates.step_high_s[first] / estimates.step_low_s[first]) / 6.0
        apart = np.log(estimates.step_s / estimates.step_s[first])
        inside = [row for row in range(first, len(estimates)) if apart[row] <= width]
        assert list(group) == inside
    assert [row for group in found.ties for row in group] == list(range(len(estimates)))
    assert tie_groups(estimates) == found.ties
