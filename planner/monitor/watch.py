"""Rules over a run's steps: what a person who watched the log would have noticed.

A step is held against the running median around it, so that slow drift and single slow steps are told apart; warm-up is
left out.  Start-up steps (`planner.observe.run.WARM_UP_STEPS`) never count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.observe.run import FloatArray, Run

IntArray = NDArray[np.intp]

#: Share above the median from which a step is slow, and as deviations: 11 of 793 public steady steps, all real.
SPIKE_FRAC: Final = 0.05
SPIKE_SIGMAS: Final = 5.0
#: Normal deviations in a median absolute deviation.
MAD_SIGMAS: Final = 1.4826
#: Rows on either side whose median a step is held against.
WINDOW: Final = 25
#: Steady steps below which nothing is said of a run.
LEAST_STEPS: Final = 8
#: Steps below which no drift is looked for.
LEAST_DRIFT_STEPS: Final = 20
#: Slow steps of a pattern: at least so many, so many of all slow ones, at so many of its places.
PATTERN_LEAST, PATTERN_SHARE = 3, 0.8
#: Growth of memory that counts, over the run.
CREEP_FRAC: Final = 0.01
CREEP_BLOCKS: Final = 8
#: The norm rises by an order of magnitude.
NORM_RATIO: Final = 10.0
#: Loss above its recent median, as a share and in deviations; steps that the recent median needs.
LOSS_FRAC, LOSS_SIGMAS, RECENT = 0.10, 6.0, 16
#: Spread of step times over ranks (msprof-analyze advisor).
RANK_SPREAD: Final = 0.05
#: Waiting for data (7 : 2 : 1 of a healthy run).
DATA_FRAC: Final = 0.10
#: Skipped updates in a row that MindFormers allows by default.
SKIPS: Final = 10

_NOISE: Final = "median + max(5 deviations, 5 %): flags 1.4 % of 793 public steady steps, all of them real"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something a run does that it should not.

    Attributes
    ----------
    kind : str
        ``"slow step"``, ``"every N steps"``, ``"drift"``, ``"memory creep"``, ``"loss spike"``, ``"norm spike"``,
        ``"no loss"``, ``"skipped updates"``, ``"straggler"``, ``"data"``, ``"checkpoints"``, ``"slower than planned"``.
    step : int or None
        First step it is about.
    text : str
    number, threshold : float
    source : str
        Who says so.
    cost_s : float
        Seconds a step that it costs on the mean [s]; 0 where it costs none.
    """

    kind: str
    step: int | None
    text: str
    number: float
    threshold: float
    source: str
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a plan says of the run [s, bytes]; None: not known."""

    step_s: float | None = None
    step_high_s: float | None = None
    limit_bytes: float | None = None


NOTHING: Final = Expected()


def watch(runs: Sequence[Run], expected: Expected = NOTHING) -> tuple[Alarm, ...]:
    """Everything that stands out in the logs of a job, the dearest first."""
    alarms = [alarm for run in runs for alarm in watch_run(run, expected)]
    alarms += _stragglers(runs)
    unique = {(alarm.kind, alarm.step, alarm.text): alarm for alarm in alarms}
    return tuple(sorted(unique.values(), key=lambda alarm: (-alarm.cost_s, alarm.step or 0)))


def watch_run(run: Run, expected: Expected = NOTHING) -> Iterator[Alarm]:
    """Everything that stands out in one log."""
    rows = np.flatnonzero(run.steady())
    if len(rows) >= LEAST_STEPS:
        yield from _slow_steps(run, rows)
        yield from _drift(run, rows)
        yield from _planned(run, rows, expected)
        yield from _data(run, rows)
    yield from _memory(run, expected)
    yield from _loss(run)
    yield from _norm(run)
    yield from _skips(run)
    yield from _checkpoints(run)


def running_median(values: FloatArray, half: int = WINDOW) -> FloatArray:
    """Median of each value with ``half`` before and behind it; the ends repeat the first and last whole window."""
    wide = 2 * half + 1
    if len(values) <= wide:
        return np.full(len(values), np.median(values))
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, wide), axis=1)
    return np.asarray(np.concatenate([np.full(half, inner[0]), inner, np.full(half, inner[-1])]))


def slow_rows(step_s: FloatArray) -> tuple[IntArray, FloatArray]:
    """Places of slow steps, and the running median of all."""
    usual = running_median(step_s)
    sigma = MAD_SIGMAS * float(np.median(np.abs(step_s - usual)))
    return np.flatnonzero(step_s > usual + np.maximum(SPIKE_SIGMAS * sigma, SPIKE_FRAC * usual)), usual


def period(places: Sequence[int], until: int) -> int | None:
    """Distance N of places of which most lie N apart, and most such places are taken; None without a pattern.

    >>> period([4, 9, 14, 19], 23), period([4, 9, 15], 23)
    (5, None)
    """
    gaps = Counter(int(b - a) for a, b in zip(places, places[1:], strict=False))
    for n, _ in gaps.most_common(3):
        rest = Counter(int(place) % n for place in places)
        residue, count = rest.most_common(1)[0]
        possible = len(range(residue, until, n))
        if n > 1 and count >= max(PATTERN_LEAST, PATTERN_SHARE * len(places)) and count >= PATTERN_SHARE * possible:
            return n
    return None


def _slow_steps(run: Run, rows: IntArray) -> Iterator[Alarm]:
    """Single slow steps, or one alarm for those in a pattern."""
    step_s, step = run.step_s[rows], run.step[rows]
    slow, usual = slow_rows(step_s)
    if not len(slow):
        return
    extra = step_s[slow] - usual[slow]
    numbers = step[slow]
    first = int(step[0])
    n = period((numbers - first).tolist(), int(step[-1]) - first + 1)
    in_pattern = np.zeros(len(slow), bool)
    if n is not None:
        residue = Counter((numbers % n).tolist()).most_common(1)[0][0]
        in_pattern = numbers % n == residue
        ratio = float(np.median(step_s[slow][in_pattern] / usual[slow][in_pattern]))
        yield Alarm(
            kind="every N steps", step=int(numbers[in_pattern][0]), number=ratio, threshold=1.0 + SPIKE_FRAC,
            source=_NOISE, cost_s=float(extra[in_pattern].sum()) / len(rows),
            text=f"every {n} steps one takes {ratio:.2f} times the median ({np.median(usual):.4g} s): something that "
            "runs every so often (data, evaluation, logging, checkpoints)",
        )  # fmt: skip
    for at, more in zip(slow[~in_pattern].tolist(), extra[~in_pattern].tolist(), strict=True):
        yield Alarm(
            kind="slow step", step=int(step[at]), number=float(step_s[at] / usual[at]), threshold=1.0 + SPIKE_FRAC,
            source=_NOISE, cost_s=more / len(rows),
            text=f"step {step[at]} takes {step_s[at]:.4g} s, {step_s[at] / usual[at]:.2f} times the median",
        )  # fmt: skip


def _drift(run: Run, rows: IntArray) -> Iterator[Alarm]:
    """The last quarter slower than the first, beyond the noise of their medians."""
    if len(rows) < LEAST_DRIFT_STEPS:
        return
    step_s = run.step_s[rows]
    quarter = len(rows) // 4
    first, last = float(np.median(step_s[:quarter])), float(np.median(step_s[-quarter:]))
    sigma = MAD_SIGMAS * float(np.median(np.abs(step_s - running_median(step_s))))
    error = sigma * math.sqrt(math.pi / quarter)  # of the difference of two medians
    if last - first <= max(SPIKE_SIGMAS * error, SPIKE_FRAC * first):
        return
    memory = run.memory_bytes[rows]
    known = memory[np.isfinite(memory)]
    climbs = len(known) >= LEAST_STEPS and known[-1] > known[0] * (1.0 + CREEP_FRAC)
    words = f", memory with it from {known[0] / 2**30:.1f} to {known[-1] / 2**30:.1f} GiB" if climbs else ""
    yield Alarm(
        kind="drift", step=int(run.step[rows[0]]), number=last / first, threshold=1.0 + SPIKE_FRAC, source=_NOISE,
        cost_s=float(step_s.mean()) - first,
        text=f"steps slow down from {first:.4g} to {last:.4g} s{words}",
    )  # fmt: skip


def _planned(run: Run, rows: IntArray, expected: Expected) -> Iterator[Alarm]:
    """Slower than the plan's interval."""
    high = expected.step_high_s
    usual = float(np.median(run.step_s[rows]))
    if high is not None and usual > high:
        yield Alarm(
            kind="slower than planned", step=None, number=usual, threshold=high, source="plan.json, 80 % interval",
            cost_s=usual - (expected.step_s or high),
            text=f"the median step takes {usual:.4g} s; planned {expected.step_s or high:.4g}, at most {high:.4g}",
        )  # fmt: skip


def _data(run: Run, rows: IntArray) -> Iterator[Alarm]:
    """Waiting for data."""
    share = run.data_s[rows] / run.step_s[rows]
    usual = float(np.median(share[np.isfinite(share)])) if np.isfinite(share).any() else 0.0
    if usual > DATA_FRAC:
        yield Alarm(
            kind="data", step=None, number=usual, threshold=DATA_FRAC, cost_s=float(np.nanmedian(run.data_s[rows])),
            source="compute : communication : data = 7 : 2 : 1 of a healthy run",
            text=f"{usual:.0%} of the step waits for data",
        )  # fmt: skip


def _memory(run: Run, expected: Expected) -> Iterator[Alarm]:
    """Memory that rises block by block, and the step at which it meets the limit."""
    rows = np.flatnonzero(np.isfinite(run.memory_bytes) & (np.arange(len(run)) >= 3))
    if len(rows) < 2 * CREEP_BLOCKS:
        return
    parts = np.array_split(rows, CREEP_BLOCKS)
    blocks = np.array([np.median(run.memory_bytes[part]) for part in parts])
    rises = np.diff(blocks)
    if (rises < 0).any() or (rises > 0).sum() < CREEP_BLOCKS - 3 or blocks[-1] <= blocks[0] * (1.0 + CREEP_FRAC):
        return
    steps = float(np.median(run.step[parts[-1]]) - np.median(run.step[parts[0]]))
    if steps <= 0:
        return
    slope = float(blocks[-1] - blocks[0]) / steps
    words = ""
    if expected.limit_bytes is not None:
        left = max(0.0, expected.limit_bytes - float(run.memory_bytes[rows[-1]])) / slope
        words = f"; {expected.limit_bytes / 2**30:.1f} GiB are met at step {round(run.step[rows[-1]] + left)}"
    yield Alarm(
        kind="memory creep", step=int(run.step[rows[0]]), number=float(blocks[-1] / blocks[0]),
        threshold=1.0 + CREEP_FRAC, source=f"rises over {CREEP_BLOCKS} blocks without falling (no published threshold)",
        text=f"memory rises from {blocks[0] / 2**30:.2f} to {blocks[-1] / 2**30:.2f} GiB, "
        f"{slope * 1000 / 2**30:.3g} GiB per 1000 steps{words}",
    )  # fmt: skip


def _warming(run: Run) -> NDArray[np.bool_]:
    """Rows of warm-up: the learning rate still rises, or there are not yet `RECENT` steps."""
    rate = np.nan_to_num(run.learning_rate)
    rises = np.flatnonzero(np.diff(rate) > 0)
    until = int(rises[-1]) + 2 if len(rises) else 0
    return np.asarray(np.arange(len(run)) < max(until if until < len(run) else 0, RECENT))


def _recent(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Median and deviation of the `RECENT` values before each one; NaN for the first."""
    middle, sigma = np.full(len(values), np.nan), np.full(len(values), np.nan)
    if len(values) > RECENT:
        before = np.lib.stride_tricks.sliding_window_view(values, RECENT)[:-1]
        middle[RECENT:] = np.median(before, axis=1)
        sigma[RECENT:] = MAD_SIGMAS * np.median(np.abs(before - middle[RECENT:, None]), axis=1)
    return middle, sigma


def _loss(run: Run) -> Iterator[Alarm]:
    """Loss that jumps, or is there no more."""
    known = np.isfinite(run.loss) & ~run.skipped
    loss, step = run.loss[known], run.step[known]
    middle, sigma = _recent(loss)
    high = loss > middle + np.maximum(LOSS_SIGMAS * sigma, LOSS_FRAC * np.abs(middle))
    for at in np.flatnonzero(high & ~_warming(run)[known]).tolist():
        if at == 0 or not high[at - 1]:
            yield Alarm(
                kind="loss spike", step=int(step[at]), number=float(loss[at] / middle[at]), threshold=1.0 + LOSS_FRAC,
                source=f"median of the {RECENT} steps before + max(6 deviations, 10 %), after warm-up",
                text=f"loss {loss[at]:.4g} at step {step[at]}, {middle[at]:.4g} before",
            )  # fmt: skip
    if len(step) and (behind := run.step[run.step > step[-1]]).size >= 3:
        yield Alarm(
            kind="no loss", step=int(behind[0]), number=float(behind.size), threshold=3.0, source="the log itself",
            text=f"no finite loss from step {behind[0]} on",
        )  # fmt: skip


def _norm(run: Run) -> Iterator[Alarm]:
    """Norm of the gradients up by an order of magnitude."""
    known = np.isfinite(run.grad_norm)
    norm, step = run.grad_norm[known], run.step[known]
    middle, _ = _recent(norm)
    high = norm > NORM_RATIO * middle
    for at in np.flatnonzero(high & ~_warming(run)[known]).tolist():
        if at == 0 or not high[at - 1]:
            yield Alarm(
                kind="norm spike", step=int(step[at]), number=float(norm[at] / middle[at]), threshold=NORM_RATIO,
                source="an order of magnitude above the recent median (tuning articles: then clip to 1.0 or 5.0)",
                text=f"gradient norm {norm[at]:.4g} at step {step[at]}, {middle[at]:.4g} before",
            )  # fmt: skip


def _skips(run: Run) -> Iterator[Alarm]:
    """Updates skipped many times in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], run.skipped.astype(int), [0]])))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - start >= SKIPS:
            yield Alarm(
                kind="skipped updates", step=int(run.step[start]), number=float(end - start), threshold=float(SKIPS),
                source="MindFormers global_norm_spike_count_threshold: 10",
                text=f"{end - start} updates in a row are skipped from step {run.step[start]} on",
            )  # fmt: skip


def _checkpoints(run: Run) -> Iterator[Alarm]:
    """Time of checkpoints over the time of the run."""
    spent = sum(event.seconds or 0.0 for event in run.events if event.kind == "checkpoint")
    steps = run.step_s[run.steady()]
    whole = float(steps.sum()) + spent
    if whole > 0 and spent > SPIKE_FRAC * whole:
        yield Alarm(
            kind="checkpoints", step=None, number=spent / whole, threshold=SPIKE_FRAC,
            cost_s=spent / max(len(steps), 1),
            source="checkpoints and evaluation up to 5 % of the training time (tuning articles)",
            text=f"{spent:.4g} s of checkpoints beside {float(steps.sum()):.4g} s of steps: {spent / whole:.0%}",
        )  # fmt: skip


def _stragglers(runs: Sequence[Run]) -> list[Alarm]:
    """Ranks whose steps take longer than others'."""
    usual = {run.rank: run.median_step_s() for run in runs if run.rank is not None}
    usual = {rank: seconds for rank, seconds in usual.items() if math.isfinite(seconds)}
    if len(usual) < 2:
        return []
    average, slow = sum(usual.values()) / len(usual), max(usual, key=usual.__getitem__)
    spread = (usual[slow] - min(usual.values())) / average
    if spread <= RANK_SPREAD:
        return []
    return [
        Alarm(
            kind="straggler",
            step=None,
            number=spread,
            threshold=RANK_SPREAD,
            cost_s=usual[slow] - average,
            source="msprof-analyze advisor: (max - min) / mean above 0.05",
            text=f"rank {slow} takes {usual[slow]:.4g} s a step, the mean is {average:.4g}",
        )  # fmt: skip
    ]
