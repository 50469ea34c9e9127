"""Estimates: derived figures by hand, infeasible rows without speed, JSON round trips, intervals."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Cluster, Constant
from planner.cost.estimate import Estimate, Estimates, evaluate, interval
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.step import COLUMNS
from planner.errors import SpecError
from planner.model.load import find
from planner.model.operators import flop_per_token
from planner.model.records import Workload

MODEL = find("llama-2-7b")
WORK = Workload(seq=4096, global_batch=64, tokens=10**12)
CARD = hardware("910B2")
CLUSTER = Cluster(hardware=CARD, devices=8)
CONSTANTS = calibration(CARD, "mindformers")


def row(full: int = 0, tp: int = 2, dp: int = 4) -> Strategy:
    return Strategy(
        dp=dp, tp=tp, pp=1, layers=((32,),), recompute_full=(full,), recompute_selective=(0,),
        micro_batches=64 // dp, optimizer_shard=dp,
    )  # fmt: skip


def estimates(*rows: Strategy, limit: float | None = None) -> Estimates:
    return evaluate(MODEL, WORK, CLUSTER, CONSTANTS, Strategies.of(rows), limit_bytes=limit)


def test_derived_figures_by_hand() -> None:
    result = estimates(row(), limit=1e12).row(0)
    assert result.step_s is not None
    assert result.tokens_per_s_per_device == pytest.approx(64 * 4096 / result.step_s / 8)
    model_flop = flop_per_token(MODEL, 4096) * result.tokens_per_s_per_device
    assert result.mfu == pytest.approx(model_flop / 353.8944e12)
    assert result.hfu == result.mfu  # nothing is recomputed
    hours = 1e12 / (64 * 4096) * result.step_s / 3600
    assert result.card_hours == pytest.approx(8 * hours)
    assert result.days == pytest.approx(hours / 24)
    assert result.time_s is not None
    assert sum(result.time_s[name] for name in COLUMNS) == pytest.approx(result.step_s)
    exposed = sum(value for name, value in result.time_s.items() if name.endswith("_exposed_s"))
    assert result.exposed_share == pytest.approx(exposed / result.step_s)
    assert result.bubble_share == 0.0


def test_recompute_raises_executed_flop_by_a_third() -> None:
    result = estimates(row(full=32), limit=1e12)
    head = 3 * 2 * MODEL.hidden * MODEL.vocab
    layers = flop_per_token(MODEL, 4096) - head
    assert float(result.hfu[0] / result.mfu[0]) == pytest.approx(1 + layers / 3 / (layers + head))


def test_rows_that_do_not_fit_carry_no_speed() -> None:
    one = estimates(row(), row(full=32), limit=1e12)
    limit = float(one.peak_bytes.mean())  # between the two
    result = estimates(row(), row(full=32), limit=limit)
    assert result.fits.tolist() == [False, True]
    out, kept = result.row(0), result.row(1)
    assert not out.fits
    assert out.peak_bytes > limit
    speed = ("step_s", "step_low_s", "step_high_s", "tokens_per_s_per_device", "mfu", "hfu", "exposed_share",
             "hidden_share", "bubble_share", "card_hours", "days", "time_s", "stage_s")  # fmt: skip
    assert [getattr(out, name) for name in speed] == [None] * len(speed)
    assert all(getattr(kept, name) is not None for name in speed)
    assert out.memory_bytes.keys() == kept.memory_bytes.keys()
    assert math.isnan(result.step_s[0])


def test_memory_terms_add_up_to_the_peak() -> None:
    result = estimates(row()).row(0)
    assert sum(values[0] for values in result.memory_bytes.values()) == pytest.approx(result.peak_bytes)
    assert result.limit_bytes == CARD.device.usable_bytes


@pytest.mark.parametrize("limit", [1e12, 1e9])
def test_json_round_trip(limit: float) -> None:
    before = estimates(row(full=3), limit=limit).row(0)
    assert Estimate.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_unknown_and_missing_fields_are_named() -> None:
    data = estimates(row()).row(0).to_dict()
    with pytest.raises(SpecError, match="unknown field.s. speed, missing mfu"):
        Estimate.from_dict({**{k: v for k, v in data.items() if k != "mfu"}, "speed": 1.0})


def test_no_budget_no_days() -> None:
    work = replace(WORK, tokens=0)
    result = evaluate(MODEL, work, CLUSTER, CONSTANTS, Strategies.of([row()]), limit_bytes=1e12).row(0)
    assert (result.card_hours, result.days) == (None, None)


def test_interval_widens_for_experts_and_long_context() -> None:
    constants = replace(
        CONSTANTS, residual_log_p10=-0.1, residual_log_p90=0.12,
        constants={
            **CONSTANTS.constants,
            "residual_moe": Constant(value=0.0, low=-0.5, high=0.4, kind="calibrated", source="test"),
            "residual_cp": Constant(value=0.0, low=-0.05, high=0.3, kind="calibrated", source="test"),
        },
    )  # fmt: skip
    table = Strategies.of([row(), replace(row(dp=2), cp=2)])
    low, high = interval(MODEL, constants, table)
    assert (low.tolist(), high.tolist()) == ([-0.1, -0.1], [0.12, 0.3])
    low, high = interval(find("mixtral-8x7b"), constants, table)
    assert (low.tolist(), high.tolist()) == ([-0.5, -0.5], [0.4, 0.4])
    result = evaluate(MODEL, WORK, CLUSTER, constants, Strategies.of([row()]), limit_bytes=1e12)
    assert float(result.step_low_s[0] / result.step_s[0]) == pytest.approx(math.exp(-0.1))
    assert float(result.step_high_s[0] / result.step_s[0]) == pytest.approx(math.exp(0.12))


def test_kind_follows_the_calibration() -> None:
    assert estimates(row()).kind == "calibrated"
    prior = calibration(CARD, "mindformers", "prior")
    assert evaluate(MODEL, WORK, CLUSTER, prior, Strategies.of([row()])).row(0).kind == "modelled"


def test_a_row_does_not_depend_on_its_table() -> None:
    rows = [row(), row(full=32), row(tp=4, dp=2), row(tp=8, dp=1)]
    whole = estimates(*rows, limit=1e12)
    for i, one in enumerate(rows):
        assert whole.row(i) == estimates(one, limit=1e12).row(0)
    assert np.isfinite(whole.step_s).all()
