"""Made-up predictions and validations."""

from __future__ import annotations

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Calibration, Constant
from planner.cost.estimate import Estimate
from planner.cost.time.step import COLUMNS
from planner.model.records import Attention
from planner.units import GIB
from planner.validate.run.compare import compare, verdict
from planner.validate.run.machine import Machine
from planner.validate.run.observe import Observed
from planner.validate.run.run import Planned, Validation, predict
from planner.validate.run.shrink import shrink
from tests.dialects.samples import plan, small

TINY = small(
    "llama", hidden=64, ffn=128, vocab=101, layer_kinds=("dense",) * 2,
    attention=Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=16),
)  # fmt: skip
MACHINE = Machine(device="CPU", cards=2, hardware=hardware("cpu"), limit_bytes=4.0 * GIB)


def estimate(*, step_s: float) -> Estimate:
    """An estimate of 1000 bytes, half of them static, whose time is spread evenly over all columns."""
    chosen = plan(TINY, dp=2, seq=32, micro_batches=1)
    return Estimate(
        strategy=chosen.strategy, kind="calibrated", fits=True, peak_bytes=1000.0, limit_bytes=2000.0,
        stage_peak_bytes=(1000.0,), stage_static_bytes=(500.0,), memory_bytes={}, step_s=step_s,
        step_low_s=0.9 * step_s, step_high_s=1.1 * step_s, time_s={name: step_s / len(COLUMNS) for name in COLUMNS},
    )  # fmt: skip


def constants() -> Calibration:
    """Constants of the CPU: those of Ascend with the few changed that matter to a tiny network."""
    prior = calibration(hardware("910b2"), "mindformers", "prior")
    own = {
        "matmul_efficiency": (0.3, 0.2, 0.5), "vector_efficiency": (0.25, 0.1, 0.6), "hbm_efficiency": (0.2, 0.1, 0.5),
        "launch_s": (3e-5, 1e-5, 1e-4), "step_fixed_s": (0.004, 0.001, 0.02), "dp_exposed": (1.0, 0.5, 1.0),
    }  # fmt: skip
    changed = {
        key: Constant(value=value, low=low, high=high, kind="prior", source="a test")
        for key, (value, low, high) in own.items()
    }
    return Calibration(
        name="test-cpu", device="cpu", framework="mindformers-legacy", generation="prior", date="2026-12-01",
        constants={**prior.constants, **changed}, residual_log_p10=-0.2, residual_log_p90=0.2, rows=0,
        sources=("a test",),
    )  # fmt: skip


def validation(factor: float, *, micro_batch_size: int = 4, before: Calibration | None = None) -> Validation:
    """A tiny plan that took ``factor`` times as long as predicted."""
    before = before or constants()
    chosen = plan(TINY, dp=2, seq=32, micro_batches=1, micro_batch_size=micro_batch_size)
    shrunk = shrink(chosen.model, chosen.workload, chosen.strategy, MACHINE)
    predicted = predict(shrunk, MACHINE, before)
    assert predicted.step_s is not None
    seen = Observed(
        step_s=factor * predicted.step_s, best_s=0.9 * factor * predicted.step_s, spread_s=0.0, steps=10, loss=1.0,
        static_bytes=round(predicted.stage_static_bytes[0]), peak_bytes=round(predicted.peak_bytes),
        memory_from="record", phases_s={},
    )  # fmt: skip
    rows = compare(predicted, seen)
    return Validation(
        planned=Planned(
            name="out", model=chosen.model, workload=chosen.workload, strategy=chosen.strategy,
            hardware=hardware("910b2"), step_s=0.1,
        ),
        machine=MACHINE, shrunk=shrunk, calibration=before, estimate=predicted, observed=seen, rows=rows,
        verdict=verdict(rows), mindspore="2.9.0", seconds=12.0,
    )  # fmt: skip
