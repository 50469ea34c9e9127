"""Rows of published measurements as records."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import CalibrationError
from planner.model.operators import parameter_count
from planner.observe.published import (
    MEMORY_CASES,
    SIMULATOR_ROWS,
    STEP_TIMES,
    TruthRow,
    kind_of,
    read_memory_cases,
    read_simulator_rows,
    read_step_times,
)
from planner.observe.published_text import recompute_layers, spread

TRUTH = Path(__file__).parents[2] / "calibration" / "measurements"


@pytest.fixture(scope="module")
def steps() -> dict[str, TruthRow]:
    return {row.case_id: row for row in read_step_times(TRUTH / "step-times.csv")}


@pytest.fixture(scope="module")
def cases() -> dict[str, TruthRow]:
    return {row.case_id: row for row in read_memory_cases(TRUTH / "memory-cases.csv")}


def test_every_row_is_read(steps: dict[str, TruthRow], cases: dict[str, TruthRow]):
    simulator = read_simulator_rows(TRUTH / "simulator-rows.csv")
    assert (len(steps), len(cases), len(simulator)) == (173, 83, 52)
    assert all(row.strategy is not None for row in simulator)
    assert {row.case_id for row in cases.values() if row.strategy is None} == {"H12", "H14", "I46"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("step-times", STEP_TIMES), ("memory-cases", MEMORY_CASES), ("simulator-rows", SIMULATOR_ROWS)],
)
def test_kinds_are_known_by_columns(name: str, kind: str):
    assert kind_of(TRUTH / f"{name}.csv") == kind


def test_mindformers_row(steps: dict[str, TruthRow]):
    row = steps["MF-r1.3.0-llama2_70b_64p-4096-900A2"]
    assert row.model is not None
    assert parameter_count(row.model) == 68_976_648_192
    assert row.generation == "r1.3.0"
    assert row.workload is not None
    assert (row.workload.framework, row.workload.params_dtype) == ("mindformers-legacy", "bfloat16")
    strategy = row.strategy
    assert strategy is not None
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.micro_batches, strategy.optimizer_shard) == (
        2,
        4,
        8,
        256,
        2,
    )
    assert strategy.recompute_selective == (10, 8, 6, 4, 2, 0, 0, 0)
    assert strategy.recompute_full == (0,) * 8
    assert row.flags == {"fine-grain-interleave"}
    assert row.measured["step_s"] == 80.91


def test_layers_follow_offsets_and_chunks(steps: dict[str, TruthRow]):
    offset = steps["MF-r1.3.0-yi_34b-4096-800TA2"].strategy
    chunks = steps["MF-dev-TeleChat2_115b-8192-800TA2"].strategy
    listed = steps["ML3-Qwen1.5-110B-8k"].strategy
    assert offset is not None
    assert chunks is not None
    assert listed is not None
    assert offset.layers == ((14, 16, 16, 14),)
    assert chunks.vpp == 3
    assert [sum(chunk) for chunk in chunks.layers] == [30, 31, 35]
    assert listed.layers == ((7, 8, 9, 10, 11, 11, 12, 12),)


def test_interleaved_micro_batches_count(steps: dict[str, TruthRow]):
    row = steps["MF-r1.3.0-Qwen-14B-8192-800TA2-fp16"]
    assert row.options == {"micro_batch_interleave": 4}
    assert row.strategy is not None
    assert row.strategy.micro_batches == 4


def test_latent_attention_and_experts_of_rows_that_leave_them_out(cases: dict[str, TruthRow]):
    model = cases["S08"].model
    assert model is not None
    assert model.moe is not None
    assert (model.attention.kind, model.attention.q_lora_rank, model.attention.head_dim) == ("mla", 1536, 192)
    assert (model.layer_kinds, model.moe.expert_ffn, model.moe.shared_ffn) == (("dense", *["moe"] * 3), 2048, 2048)


def test_printed_ranks_of_a_row(cases: dict[str, TruthRow]):
    row = cases["M29"]
    assert [value / 2**30 for value in row.stage_static_bytes] == [14.67, 13.58, 14.67]
    assert "first-iteration-peak" in row.flags


def test_expert_ranks_beside_dp_are_multiplied(cases: dict[str, TruthRow]):
    """I31 counts 8 cards as pp 2 x dp 2 x ep 2."""
    strategy = cases["I31"].strategy
    assert strategy is not None
    assert (strategy.devices, strategy.dp, strategy.ep) == (8, 4, 2)


def test_what_a_row_leaves_out_is_listed(cases: dict[str, TruthRow]):
    assert cases["I05"].assumed == {"seq", "recompute", "zero", "micro_batches"}
    assert cases["H12"].missing == ("tp", "pp", "dp")


@pytest.mark.parametrize(
    ("text", "full", "selective"),
    [
        ("none", (0, 0), (0, 0)),
        ("full", (10, 10), (0, 0)),
        ("full (uniform 1)", (10, 10), (0, 0)),
        ("full-block-1", (2, 2), (0, 0)),
        ("full layers [4,0] + selective silu/mul", (4, 0), (6, 10)),
        ("full [1,0] + selective [9,0]", (1, 0), (9, 0)),
        ("partial: full [7,5] + selective silu/mul on the rest", (7, 5), (3, 5)),
        ("select_recompute layers [8,4]", (0, 0), (8, 4)),
        ("selective (mlp mul/act)", (0, 0), (10, 10)),
        ("selective (every 2nd layer)", (5, 5), (0, 0)),
        ("selective [20,4]", (0, 0), (10, 4)),
        ("default", (10, 10), (0, 0)),
    ],
)
def test_recompute_texts(text: str, full: tuple[int, ...], selective: tuple[int, ...]):
    assumed: set[str] = set()
    assert recompute_layers(text, (10, 10), 2, (), assumed) == (full, selective)
    assert not assumed


@pytest.mark.parametrize("text", ["", "unknown", "none/selective", "partial + swap-attention"])
def test_unclear_recompute_is_assumed_to_be_none(text: str):
    assumed: set[str] = set()
    assert recompute_layers(text, (10, 10), 1, (), assumed) == ((0, 0), (0, 0))
    assert assumed == {"recompute"}


def test_spread_keeps_every_layer():
    for total in range(1, 130):
        for parts in range(1, min(total, 16) + 1):
            assert sum(spread(total, parts)) == total
            assert max(spread(total, parts)) - min(spread(total, parts)) <= 1


def test_wrong_table_names_missing_columns():
    with pytest.raises(CalibrationError, match="not a memory-cases table"):
        read_memory_cases(TRUTH / "step-times.csv")
