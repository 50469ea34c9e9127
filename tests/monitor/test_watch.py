"""Rules of the monitor: what they find, and that they are quiet where nothing is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.monitor.watch import Expected, period, running_median, watch, watch_run
from planner.observe.read import read
from planner.observe.run import empty_run

DATA = Path(__file__).parents[1] / "observe" / "data" / "h_training_logs"
#: MAD / median of 65 public NPU runs: typical, 90th percentile, worst; and how much longer their first steps are.
NOISE = (0.0033, 0.015, 0.046)
STARTS = (8.0, 2.0)


def run_of(step_s, **known):
    n = len(step_s)
    return empty_run(n, framework="test", step=np.arange(1, n + 1), step_s=np.asarray(step_s, float), **known)


def noisy(generator, steps: int = 200, mad: float = NOISE[0], level: float = 2.0):
    values = level * (1.0 + mad * 1.4826 * generator.standard_normal(steps))
    values[:2] *= STARTS
    return values


def alarms(run, expected=None):
    return list(watch_run(run) if expected is None else watch_run(run, expected))


def test_at_most_two_false_alarms_in_a_hundred_steady_runs() -> None:
    """Typical noise in 80 runs, the 90th percentile in 15, the worst in 5; losses and norms as noisy, and warm-up."""
    generator = np.random.default_rng(13)
    found = []
    for number in range(100):
        mad = NOISE[0 if number < 80 else 1 if number < 95 else 2]
        n = 300
        step = np.arange(n)
        found += alarms(
            run_of(
                noisy(generator, n, mad),
                loss=2.0 + 9.0 * np.exp(-step / 40.0) + 0.05 * generator.standard_normal(n),
                grad_norm=(1.0 + 20.0 * np.exp(-step / 10.0)) * np.exp(0.3 * generator.standard_normal(n)),
                learning_rate=np.minimum(step / 50.0, 1.0) * 3e-4,
                memory_bytes=5e10 * (1.0 + 1e-3 * generator.standard_normal(n)),
            )
        )
    assert len(found) <= 2, found


@pytest.mark.parametrize("path", sorted(DATA.glob("*")), ids=lambda path: path.name)
def test_real_quiet_logs_raise_no_alarm(path: Path) -> None:
    assert watch(read(path).runs) == ()


def test_a_single_slow_step() -> None:
    values = noisy(np.random.default_rng(1))
    values[120] *= 1.3
    (alarm,) = alarms(run_of(values))
    assert (alarm.kind, alarm.step) == ("slow step", 121)
    assert alarm.number == pytest.approx(1.3, abs=0.02)


@pytest.mark.parametrize(("n", "ratio"), [(20, 2.6 / 2.1), (5, 1.33), (50, 2.0)])
def test_periods_are_named(n: int, ratio: float) -> None:
    values = noisy(np.random.default_rng(2))
    values[3 + n - 1 :: n] *= ratio
    (alarm,) = alarms(run_of(values))
    assert alarm.kind == "every N steps"
    assert f"every {n} steps" in alarm.text
    assert alarm.number == pytest.approx(ratio, abs=0.02)
    slow = len(range(3 + n - 1, 200, n))
    assert alarm.cost_s == pytest.approx(2.0 * (ratio - 1.0) * slow / 197, rel=0.1)


def test_a_period_and_one_step_beside_it() -> None:
    values = noisy(np.random.default_rng(3))
    values[22::20] *= 1.3
    values[101] *= 1.5
    assert sorted((alarm.kind, alarm.step) for alarm in alarms(run_of(values))) == [
        ("every N steps", 23), ("slow step", 102),
    ]  # fmt: skip


def test_drift_with_memory() -> None:
    ramp = np.linspace(1.0, 4.5 / 2.8, 400)
    memory = np.linspace(40.0, 50.0, 400) * 2**30
    found = {alarm.kind: alarm for alarm in alarms(run_of(noisy(np.random.default_rng(4), 400) * ramp,
                                                          memory_bytes=memory))}  # fmt: skip
    assert set(found) == {"drift", "memory creep"}
    assert "memory with it from 40.1 to 50.0 GiB" in found["drift"].text


def test_memory_says_when_it_meets_the_limit() -> None:
    memory = (40.0 + 0.01 * np.arange(1, 401)) * 2**30
    (alarm,) = alarms(run_of(np.full(400, 2.0), memory_bytes=memory), Expected(limit_bytes=54 * 2**30))
    assert alarm.kind == "memory creep"
    assert "met at step 1400" in alarm.text


def test_memory_that_goes_up_and_down_is_no_creep() -> None:
    memory = (40.0 + 2.0 * np.sin(np.arange(400) / 20.0)) * 2**30
    assert alarms(run_of(np.full(400, 2.0), memory_bytes=memory)) == []


def test_loss_and_norm_spikes_after_warm_up_alone() -> None:
    n = 200
    loss, norm = np.full(n, 3.0), np.full(n, 1.0)
    loss[[20, 150]], norm[[20, 160]] = 6.0, 30.0
    rate = np.minimum(np.arange(n) / 50.0, 1.0)
    found = [(a.kind, a.step) for a in alarms(run_of(np.full(n, 2.0), loss=loss, grad_norm=norm, learning_rate=rate))]
    assert found == [("loss spike", 151), ("norm spike", 161)]


def test_loss_that_is_gone_and_updates_that_are_skipped() -> None:
    loss, skipped = np.full(60, 3.0), np.zeros(60, bool)
    loss[50:] = np.nan
    skipped[20:31] = True
    found = [(a.kind, a.step) for a in alarms(run_of(np.full(60, 2.0), loss=loss, skipped=skipped))]
    assert found == [("no loss", 51), ("skipped updates", 21)]


def test_slower_than_the_plan() -> None:
    expected = Expected(step_s=1.5, step_high_s=1.8)
    (alarm,) = alarms(run_of(np.full(30, 2.0)), expected)
    assert (alarm.kind, alarm.cost_s) == ("slower than planned", pytest.approx(0.5))
    assert alarms(run_of(np.full(30, 1.7)), expected) == []


def test_stragglers_over_ranks() -> None:
    runs = [run_of(np.full(30, 2.0 if rank != 3 else 2.4), rank=rank) for rank in range(8)]
    (alarm,) = watch(runs)
    assert alarm.kind == "straggler"
    assert alarm.text.startswith("rank 3 takes 2.4 s")


def test_waiting_for_data() -> None:
    (alarm,) = alarms(run_of(np.full(30, 2.0), data_s=np.full(30, 0.6)))
    assert (alarm.kind, alarm.number) == ("data", pytest.approx(0.3))


def test_short_runs_say_nothing() -> None:
    assert alarms(run_of([9.0, 2.0, 2.0, 2.0, 5.0])) == []
    assert alarms(run_of([])) == []


def test_running_median() -> None:
    values = np.arange(200, dtype=float)
    middle = running_median(values, 25)
    assert len(middle) == 200
    assert middle[100] == 100.0
    assert middle[0] == 25.0


def test_gaps_without_a_pattern() -> None:
    assert period([3, 50, 61], 200) is None
    assert period([], 200) is None
