"""Closed loop on the CPU: predict, train for real, compare, for small networks.

``python -m benchmarks.closed_loop`` trains every configuration of `CONFIGS` with MindSpore on this machine, a few steps
at a time and in turn (A B C ... then backwards), so that other work of the machine meets all of them alike.  A
configuration's time is the least of its rounds' medians.  Constants are then fitted to all configurations but one,
which is predicted; so each is.  Needs MindSpore (``pip install planner[mindspore]``) and two cores, no device.

``--rows FILE`` keeps the measured rows, ``--from FILE`` judges kept rows without training.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.fit import Fit, TimeCase, fit
from planner.children.process import Children, ending_by_exception
from planner.cluster import load as clusters
from planner.cluster.records import Calibration, Cluster
from planner.cost.memory.peak import memory
from planner.cost.memory.rules import NATIVE_CPU
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.setting import default_execution
from planner.model.records import DENSE, Attention, Model, Workload
from planner.plan import Plan
from planner.validate.compiler.framework import find_mindspore
from planner.validate.run.launch import RunSettings, launch
from planner.validate.run.machine import CPU_PROFILE
from planner.validate.run.observe import observe
from planner.validate.run.update import KEYS, widened

SEQ = 128
VOCAB = 2048
HEADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One small network and how it is split."""

    micro_batch: int
    micro_batches: int = 1
    hidden: int = 256
    layers: int = 4
    recompute: bool = False
    dp: int = 1
    tp: int = 1

    def plan(self) -> Plan:
        """The configuration as a plan for the CPU."""
        model = Model(
            name=f"gpt-{self.layers}x{self.hidden}", family="llama", hidden=self.hidden, ffn=self.hidden * 11 // 4,
            vocab=VOCAB, layer_kinds=(DENSE,) * self.layers,
            attention=Attention(
                heads=HEADS, kv_heads=HEADS, head_dim=self.hidden // HEADS, v_head_dim=self.hidden // HEADS
            ),
        )  # fmt: skip
        workload = Workload(
            seq=SEQ, global_batch=self.dp * self.micro_batch * self.micro_batches, params_dtype="float32",
            compute_dtype="float32", flash_attention=False, framework="mindformers-legacy", switches=(NATIVE_CPU,),
        )  # fmt: skip
        strategy = Strategy(
            dp=self.dp, tp=self.tp, pp=1, layers=((self.layers,),), micro_batches=self.micro_batches,
            recompute_full=(self.layers if self.recompute else 0,), recompute_selective=(0,),
            micro_batch_size=self.micro_batch, sequence_parallel=False, zero_level=0,
        )  # fmt: skip
        return Plan(model=model, workload=workload, hardware=CPU_PROFILE, devices=strategy.devices, strategy=strategy)


CONFIGS: Mapping[str, Config] = {
    "b2": Config(micro_batch=2),
    "b4": Config(micro_batch=4),
    "b8": Config(micro_batch=8),
    "b4 recompute": Config(micro_batch=4, recompute=True),
    "b8 recompute": Config(micro_batch=8, recompute=True),
    "b2 x 2": Config(micro_batch=2, micro_batches=2),
    "b2 x 4": Config(micro_batch=2, micro_batches=4),
    "b4 x 2": Config(micro_batch=4, micro_batches=2),
    "8 layers b4": Config(micro_batch=4, layers=8),
    "8 layers b4 recompute": Config(micro_batch=4, layers=8, recompute=True),
    "wide b2": Config(micro_batch=2, hidden=384),
    "wide b4": Config(micro_batch=4, hidden=384),
    "dp 2 b2": Config(micro_batch=2, dp=2),
    "dp 2 b4": Config(micro_batch=4, dp=2),
    "dp 2 b2 x 2": Config(micro_batch=2, micro_batches=2, dp=2),
    "tp 2 b4": Config(micro_batch=4, tp=2),
    "tp 2 b8": Config(micro_batch=8, tp=2),
}

#: Time with recomputed layers over time without.
RECOMPUTE = (("b4 recompute", "b4"), ("b8 recompute", "b8"), ("8 layers b4 recompute", "8 layers b4"))
#: Time of several micro-batches over time of one.
ACCUMULATION = (("b2 x 2", "b2"), ("b2 x 4", "b2"), ("b4 x 2", "b4"), ("dp 2 b2 x 2", "dp 2 b2"))
#: Peak of one configuration less that of another.
MEMORY = (
    ("b4", "b2"), ("b8", "b4"), ("8 layers b4", "b4"), ("b4", "b4 recompute"), ("b8", "b8 recompute"),
    ("8 layers b4 recompute", "b4 recompute"), ("wide b4", "wide b2"), ("dp 2 b4", "dp 2 b2"), ("tp 2 b8", "tp 2 b4"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration in one round."""

    name: str
    round: int
    median_s: float
    best_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How near the predictions came.

    ``errors`` are |predicted / measured - 1| of each configuration, itself left out; ``recompute`` and ``accumulation``
    differences of ratios of two times, in shares of the smaller one's time per micro-batch; ``memory`` relative errors
    of differences of two peaks.
    """

    measured_s: Mapping[str, float]
    predicted_s: Mapping[str, float]
    spearman: float
    recompute: Mapping[str, tuple[float, float]]
    accumulation: Mapping[str, tuple[float, float]]
    memory: Mapping[str, tuple[float, float]]
    fitted: Fit

    @property
    def errors(self) -> dict[str, float]:
        """|predicted / measured - 1| of each configuration."""
        return {name: abs(self.predicted_s[name] / seconds - 1.0) for name, seconds in self.measured_s.items()}


def measure(names: Sequence[str], rounds: int, steps: int, folder: Path, python: Path | None = None) -> list[Row]:
    """Train configurations in turn."""
    interpreter, _ = find_mindspore(python)
    rows = []
    with ending_by_exception(), Children() as children:
        for number in range(rounds):
            order = names if number % 2 == 0 else list(reversed(names))
            for name in order:
                rows.append(_measured(name, number, steps, folder, interpreter, children))
                print(f"{rows[-1].median_s:9.4f} s  {name}", file=sys.stderr, flush=True)
    return rows


def _measured(name: str, number: int, steps: int, folder: Path, python: Path, children: Children) -> Row:
    settings = RunSettings(steps=steps, timeout_s=600.0, profile=number == 0)
    with tempfile.TemporaryDirectory(dir=folder, prefix="run-") as place:
        found = observe(launch(CONFIGS[name].plan(), "CPU", python, Path(place), settings, children))
    return Row(name=name, round=number, median_s=found.step_s, best_s=found.best_s, peak_bytes=found.peak_bytes or 0)


def case(name: str, measured_s: float, calibration: Calibration) -> TimeCase:
    """A configuration as a row to fit to."""
    plan = CONFIGS[name].plan()
    return TimeCase(
        case_id=name, model=plan.model, workload=plan.workload,
        cluster=Cluster(hardware=clusters.hardware(CPU_PROFILE), devices=plan.devices),
        table=Strategies.of([plan.strategy]), run=default_execution(plan.workload), measured_s=measured_s,
        release="closed loop", generation="", tables=calibration.measured,
    )  # fmt: skip


def judge(rows: Iterable[Row], calibration: Calibration) -> Judged:
    """Predict each configuration from the others."""
    from scipy.stats import spearmanr

    measured: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for row in rows:
        measured[row.name] = min(measured.get(row.name, math.inf), row.median_s)
        peaks[row.name] = max(peaks.get(row.name, 0), row.peak_bytes)
    cases = [case(name, seconds, calibration) for name, seconds in measured.items()]
    movable = {key: widened(c) for key, c in calibration.constants.items() if key in (*KEYS, *EXTRA) and c.value > 0.0}
    fitted = fit(cases, {**calibration.constants, **movable}, tuple(movable))
    left = fitted.left_out(lambda each: each.case_id)
    predicted = {each.case_id: each.measured_s * math.exp(error) for each, error in zip(cases, left, strict=True)}
    order = float(spearmanr(list(predicted.values()), list(measured.values())).statistic)
    return Judged(
        measured_s=measured,
        predicted_s=predicted,
        spearman=order,
        recompute=_ratios(RECOMPUTE, predicted, measured),
        accumulation=_per_micro_batch(predicted, measured),
        memory=_growth(peaks),
        fitted=fitted,
    )


#: Constants that only this machine's runs determine, beside those a validation moves.
EXTRA = ("crowding", "optimizer_slowdown")


def _ratios(
    pairs: Iterable[tuple[str, str]], predicted: Mapping[str, float], measured: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Predicted and measured time of the first of a pair over the second's."""
    return {
        f"{a} / {b}": (predicted[a] / predicted[b], measured[a] / measured[b])
        for a, b in pairs
        if a in measured and b in measured
    }


def _per_micro_batch(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The same for one micro-batch of several."""
    ratios = _ratios(ACCUMULATION, predicted, measured)
    counts = {f"{a} / {b}": CONFIGS[a].micro_batches for a, b in ACCUMULATION}
    return {pair: (ours / counts[pair], theirs / counts[pair]) for pair, (ours, theirs) in ratios.items()}


def _growth(peaks: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Predicted and measured difference of two peaks [bytes]."""
    found = {}
    for a, b in MEMORY:
        if peaks.get(a) and peaks.get(b):
            ours = [_peak(CONFIGS[name].plan()) for name in (a, b)]
            found[f"{a} - {b}"] = (ours[0] - ours[1], float(peaks[a] - peaks[b]))
    return found


def _peak(plan: Plan) -> float:
    return float(memory(plan.model, plan.workload, Strategies.of([plan.strategy])).peak_bytes[0])


def write_rows(path: Path, rows: Iterable[Row], mindspore: str) -> None:
    """Measured rows as a CSV with a line on where they come from."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(
            f"# python -m benchmarks.closed_loop; mindspore {mindspore}, {os.cpu_count()} cores, {platform.machine()}\n"
        )
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("name", "round", "median_s", "best_s", "peak_bytes"))
        for row in rows:
            writer.writerow((row.name, row.round, f"{row.median_s:.6f}", f"{row.best_s:.6f}", row.peak_bytes))


def read_rows(path: Path) -> list[Row]:
    """Rows that `write_rows` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return [
        Row(
            name=row["name"], round=int(row["round"]), median_s=float(row["median_s"]), best_s=float(row["best_s"]),
            peak_bytes=int(row["peak_bytes"]),
        )
        for row in csv.DictReader(lines)
    ]  # fmt: skip


def report(found: Judged) -> list[str]:
    """Lines of the answer."""
    errors = found.errors
    lines = [f"{'configuration':24s} {'measured':>10s} {'predicted':>10s} {'error':>7s}  (left out of the fit)"]
    for name, seconds in sorted(found.measured_s.items(), key=lambda pair: pair[1]):
        ours = found.predicted_s[name]
        lines.append(f"{name:24s} {seconds * 1e3:8.1f}ms {ours * 1e3:8.1f}ms {ours / seconds - 1.0:+7.1%}")
    lines += [
        "",
        f"step time: median error {np.median(list(errors.values())):.1%} (target 15%), worst "
        f"{max(errors.values()):.1%} (35%), Spearman {found.spearman:.3f} (0.9)",
    ]
    for title, pairs in (("recompute", found.recompute), ("a micro-batch of several", found.accumulation)):
        lines += ["", f"{title}, ratio predicted and measured, difference in points (target 10)"]
        lines += [f"  {pair:36s} {a:6.3f} {b:6.3f} {100 * (a - b):+6.1f}" for pair, (a, b) in pairs.items()]
    lines += ["", "growth of peak memory, MB predicted and measured (target 5%)"]
    lines += [
        f"  {pair:36s} {a / 1e6:8.2f} {b / 1e6:8.2f} {a / b - 1.0:+7.2%}" for pair, (a, b) in found.memory.items()
    ]
    moved = [f"{key} {c.value:.4g}" for key, c in found.fitted.constants.items() if key in found.fitted.keys]
    return [*lines, "", "fitted: " + ", ".join(moved)]


def main() -> None:
    """Measure, or read what was measured, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--only", nargs="*", choices=list(CONFIGS), help="configurations (default: all)")
    parser.add_argument("--calibration", type=Path, help="calibration of the CPU (default: shipped)")
    parser.add_argument("--python", type=Path, help="interpreter that has MindSpore")
    parser.add_argument("--rows", type=Path, help="keep measured rows here")
    parser.add_argument("--from", dest="kept", type=Path, help="judge these rows instead of training")
    chosen = parser.parse_args()
    profile = clusters.hardware(CPU_PROFILE)
    framework = "mindformers-legacy"
    calibration = (
        clusters.calibration_file(chosen.calibration, profile, framework)
        if chosen.calibration
        else clusters.calibration(profile, framework)
    )
    if chosen.kept:
        rows = read_rows(chosen.kept)
    else:
        with tempfile.TemporaryDirectory(prefix="closed-loop-") as folder:
            rows = measure(chosen.only or list(CONFIGS), chosen.rounds, chosen.steps, Path(folder), chosen.python)
    if chosen.rows:
        write_rows(chosen.rows, rows, find_mindspore(chosen.python)[1])
    print("\n".join(report(judge(rows, calibration))))


if __name__ == "__main__":
    main()
