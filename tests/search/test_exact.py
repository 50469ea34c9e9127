"""CP-SAT balance against trying every split."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.memory.peak import memory
from planner.cost.strategies import Strategies, Strategy
from planner.legality.apply import violations
from planner.model.records import Model
from planner.search.exact import balanced, stage_options
from planner.search.objective import estimated, fitted_by_stage
from planner.search.suggest import Request, search
from tests.search.requests import request
from tests.search.shapes import dense, moe
from tests.search.test_user_cases import plan


def halfway(asked: Request, strategy: Strategy) -> Request:
    """The request with a limit between the strategy's peak without recompute and that with all of it."""
    whole = replace(strategy, recompute_full=strategy.layers_per_stage)
    peaks = memory(asked.model, asked.workload, Strategies.of([strategy, whole])).peak_bytes
    return replace(asked, limit_bytes=float(0.4 * peaks[0] + 0.6 * peaks[1]))


def case(model: Model, layers: int, **fields: object) -> tuple[Request, Strategy]:
    strategy = plan(layers, **fields)
    return halfway(request(model, 8, batch=64), strategy), strategy


LLAMA = dense(11, 4096, 32, 8, ffn=11_008, vocab=128_256)
CASES = {
    "dense": case(LLAMA, 11, pp=4, dp=2, micro_batches=32),
    "mixed": case(moe(11, experts=8, dense_layers=2, mtp_layers=1), 11, pp=4, dp=2, micro_batches=32),
    "interleaved": case(LLAMA, 11, pp=2, dp=4, vpp=2, micro_batches=16),
    "v": case(LLAMA, 11, pp=2, dp=4, vpp=2, micro_batches=16, schedule="zero_bubble_v"),
}
DENSE = CASES["dense"][0]


def every_split(asked: Request, strategy: Strategy) -> Strategies:
    """All legal splits of the layers over the strategy's chunks with their best recompute, by plain enumeration."""
    chunks, layers = strategy.pp * strategy.vpp, asked.model.layers
    found = []
    for cuts in itertools.combinations_with_replacement(range(layers + 1), chunks - 1):
        line = np.diff([0, *cuts, layers]).tolist()
        rows = tuple(tuple(line[v * strategy.pp : (v + 1) * strategy.pp]) for v in range(strategy.vpp))
        candidate = replace(strategy, layers=rows)
        if not violations(asked.context, candidate):
            found.append(candidate)
    return fitted_by_stage(asked, Strategies.of(found))[0]


@pytest.mark.parametrize("name", sorted(CASES))
def test_as_good_as_the_best_of_all_splits(name: str) -> None:
    asked, strategy = CASES[name]
    every = every_split(asked, strategy)
    assert len(every) > 20
    best = estimated(asked, every).step_s.min()
    found = balanced(asked, strategy)
    estimate = estimated(asked, Strategies.of([found])).row(0)
    assert violations(asked.context, found) == []
    assert estimate.fits
    assert estimate.step_s is not None
    assert best * (1 - 1e-12) <= estimate.step_s <= best * 1.01


def test_options_are_the_stage_as_it_is_inside_the_strategy() -> None:
    """An option's time and recompute equal those of the same stage in a whole strategy, dense layers included."""
    asked, strategy = CASES["mixed"]
    whole = fitted_by_stage(asked, Strategies.of([strategy]))[0]
    estimate = estimated(asked, whole).row(0)
    assert estimate.stage_s is not None
    options = stage_options(asked, strategy)
    for stage, layers in enumerate(strategy.layers[0]):
        dense_layers = {0: min(2, layers)}.get(stage, 0)
        same = [o for o in options[stage] if o.layers == (layers,) and o.dense == dense_layers]
        assert len(same) == 1
        assert same[0].stage_s == pytest.approx(estimate.stage_s[stage], rel=1e-12)
        assert same[0].full == estimate.strategy.recompute_full[stage]
        assert same[0].selective == estimate.strategy.recompute_selective[stage]


def test_one_stage_has_nothing_to_balance() -> None:
    strategy = plan(11, dp=8, micro_batches=8)
    assert balanced(DENSE, strategy) == strategy


def test_exact_search_is_deterministic_and_never_worse() -> None:
    asked = replace(DENSE, balance="exact")
    first, second = search(asked), search(asked)
    rows = [first.estimates.table.row(i) for i in range(len(first.estimates))]
    assert rows == [second.estimates.table.row(i) for i in range(len(second.estimates))]
    assert first.estimates.step_s.tolist() == second.estimates.step_s.tolist() == sorted(first.estimates.step_s)
    assert all(violations(asked.context, strategy) == [] for strategy in rows)
    fast = search(DENSE)
    assert (first.estimates.step_s[:8] <= fast.estimates.step_s[:8]).all()
    assert first.estimates.fits.all()


def test_ortools_stays_out_of_the_plain_search() -> None:
    code = (
        "import sys, numpy; own = set(sys.modules); "  # NumPy 1.26 brings numpy.ma itself
        "from tests.search.requests import request; from planner.search.suggest import search; "
        "search(request('Llama-2-7B', 8, batch=64)); "
        "new = set(sys.modules) - own; "
        "print([name for name in ('ortools', 'numpy.ma', 'networkx', 'mindspore') if name in new])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
