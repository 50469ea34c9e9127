"""Memory of the MindSpore script on the CPU against the profiler's record of real runs, sizes varied one at a time."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cost.memory.peak import MOMENTS, memory
from planner.cost.memory.rules import NATIVE_CPU
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError
from planner.model.records import DENSE, Attention, Model, Workload

ROWS = [
    {name: int(value) for name, value in row.items()}
    for row in csv.DictReader(
        line for line in Path(__file__).with_name("native_cpu.csv").read_text().splitlines() if not line.startswith("#")
    )
]
#: Some sixty small tensors a layer that the list leaves out (scalars, norm weights' gradients, rounding) [bytes].
SMALL = 64 * 1024


def job(row: dict[str, int]) -> tuple[Model, Workload, Strategy]:
    model = Model(
        name="tiny", family="llama", hidden=row["hidden"], ffn=row["ffn"], vocab=row["vocab"],
        layer_kinds=(DENSE,) * row["layers"],
        attention=Attention(
            heads=row["heads"], kv_heads=row["kv_heads"], head_dim=row["head_dim"], v_head_dim=row["head_dim"],
            qk_norm=bool(row["qk_norm"]),
        ),
    )  # fmt: skip
    strategy = Strategy(
        dp=row["dp"], tp=row["tp"], pp=1, layers=((row["layers"],),), recompute_full=(row["full"],),
        recompute_selective=(row["selective"],), micro_batches=row["micro_batches"],
        micro_batch_size=row["micro_batch"], sequence_parallel=False, zero_level=0,
    )  # fmt: skip
    workload = Workload(
        seq=row["seq"], global_batch=row["dp"] * row["micro_batch"] * row["micro_batches"], params_dtype="float32",
        compute_dtype="float32", flash_attention=False, framework="mindformers-legacy", switches=(NATIVE_CPU,),
    )  # fmt: skip
    return model, workload, strategy


def beside_static(row: dict[str, int]) -> float:
    model, workload, strategy = job(row)
    found = memory(model, workload, Strategies.of([strategy]))
    return float(found.peak_bytes_CS[0, 0] - found.static_bytes_CS[0, 0])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_every_recorded_peak_within_one_per_cent(row):
    """And never above it: the list names real tensors only."""
    ours, theirs = beside_static(row), row["peak_bytes"]
    assert 0.0 <= theirs - ours <= 0.01 * theirs + SMALL


def test_states_by_hand():
    """A layer of 4 h^2 + 3 h f + 2 h, two tables, one norm; weight and two moments, and sums over micro-batches."""
    row = {**ROWS[0], "layers": 2}
    weights = 2 * (4 * 64 * 64 + 3 * 64 * 160 + 2 * 64) + 2 * 128 * 64 + 64
    for micro_batches, each in ((1, 12), (2, 16)):
        model, workload, strategy = job({**row, "micro_batches": micro_batches})
        found = memory(model, workload, Strategies.of([strategy]))
        assert found.static_bytes_CS[0, 0] == each * weights


def test_terms_add_up_and_rows_do_not_mix():
    jobs = [job(row) for row in ROWS if row["layers"] == 4 and row["seq"] == 128]
    model, workload, _ = jobs[0]
    table = Strategies.of([strategy for _, _, strategy in jobs])
    together = memory(model, workload, table)
    assert sum(together.terms.values())[:, 0] == pytest.approx(together.peak_bytes_CS[:, 0])
    for i, (_, _, strategy) in enumerate(jobs):
        alone = memory(model, workload, Strategies.of([strategy]))
        assert alone.peak_bytes_CS[0, 0] == together.peak_bytes_CS[i, 0]
    assert {MOMENTS[i] for i in together.moment_CS[:, 0]} == {"loss", "backward"}


def test_recompute_and_layers_never_go_the_wrong_way():
    base = {**ROWS[0], "layers": 4, "micro_batch": 4}
    peaks = [beside_static({**base, "full": n}) for n in range(5)]
    assert peaks == sorted(peaks, reverse=True)
    assert beside_static({**base, "selective": 4}) < peaks[0]
    assert beside_static({**base, "layers": 5}) > peaks[0]


def test_a_tiny_batch_is_heaviest_at_the_update():
    row = {**ROWS[0], "seq": 1, "micro_batch": 1, "heads": 1, "kv_heads": 1}
    model, workload, strategy = job(row)
    found = memory(model, workload, Strategies.of([strategy]))
    assert MOMENTS[found.moment_CS[0, 0]] == "update"


def test_what_it_does_not_know():
    model, workload, strategy = job(ROWS[0])
    with pytest.raises(SpecError, match="without pipeline, context parallelism and sharded states"):
        memory(model, workload, Strategies.of([replace(strategy, zero_level=1)]))
