"""What is written is read back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import plan as plans
from planner.cost.strategies import Strategy
from planner.dialects.graph import layout
from planner.dialects.graph.read import read_graph
from planner.dialects.graph.write import render
from planner.dialects.text.yaml_read import loads
from planner.plan import Plan
from tests.dialects.samples import matrix, plan, small, wide_values

MATRIX = matrix()


@pytest.mark.parametrize("name", MATRIX)
def test_mindformers_file_reads_back_as_the_plan(name):
    written = MATRIX[name]
    result = read_graph(loads(render(written).text))
    assert result.strategy == written.strategy
    shape = replace(
        result.model, name=written.model.name, family=written.model.family, source=written.model.source,
        max_seq=written.model.max_seq,
    )  # fmt: skip
    assert shape == written.model
    for field in ("seq", "global_batch", "params_dtype", "compute_dtype", "optimizer", "moments"):
        assert getattr(result.workload, field) == getattr(written.workload, field)
    assert result.memory_limit_bytes == written.memory_limit_bytes
    assert result.unread == ()


@pytest.mark.parametrize("name", MATRIX)
def test_plan_json_reads_back_equal(name):
    assert plans.loads(plans.dumps(MATRIX[name])) == MATRIX[name]


@st.composite
def strategies(draw) -> Plan:
    pp = draw(st.sampled_from([1, 2, 3, 4]))
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    layers = tuple(tuple(draw(st.integers(1, 5)) for _ in range(pp)) for _ in range(vpp))
    total_layers = sum(map(sum, layers))
    totals = [sum(chunk[stage] for chunk in layers) for stage in range(pp)]
    full = tuple(draw(st.integers(0, total)) for total in totals)
    selective = tuple(draw(st.integers(0, total - f)) for total, f in zip(totals, full, strict=True))
    cp = draw(st.sampled_from([1, 2, 4]))
    algorithms = {1: [("ring", 1)], 2: [("ring", 1), ("ulysses", 2)]}
    algorithm, degree = draw(st.sampled_from(algorithms.get(cp, [("ring", 1), ("ulysses", 4), ("hybrid", 2)])))
    kinds = ("dense",) + ("moe",) * (total_layers - 1)
    latent = total_layers > 1 and algorithm != "ring"  # other mcore attention takes the ring only
    if not latent:
        algorithm, degree = "ring", 1
    model = (
        wide_values(small("deepseek_v3", layer_kinds=kinds))
        if latent
        else small("qwen3", layer_kinds=("dense",) * total_layers)
    )
    dp = draw(st.sampled_from([1, 2, 6]))
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    shard = draw(st.sampled_from([d for d in range(1, dp * cp + 1) if dp * cp % d == 0])) if zero else 1
    schedules = ["interleaved"] + (["zero_bubble_v"] if vpp == 2 else []) if vpp > 1 else ["1f1b", "gpipe"]
    return plan(
        model, dp=dp, tp=2, pp=pp, vpp=vpp, cp=cp, layers=layers, full=full, selective=selective,
        cp_algorithm=algorithm, ulysses_degree=degree, zero_level=zero, optimizer_shard=shard,
        schedule=draw(st.sampled_from(schedules)), micro_batches=draw(st.integers(1, 40)),
        micro_batch_size=draw(st.integers(1, 4)), swap_optimizer=draw(st.booleans()),
        sequence_parallel=draw(st.booleans()),
    )  # fmt: skip


@given(strategies())
def test_any_strategy_survives_the_file(written):
    assert read_graph(loads(render(written).text)).strategy == written.strategy


@given(strategies())
def test_any_plan_survives_json(written):
    assert plans.loads(plans.dumps(written)) == written


@given(strategies())
def test_offsets_obey_the_frameworks_rule(written):
    """The entries add up to the remainder of the even split (LayerSetting refuses anything else)."""
    s: Strategy = written.strategy
    value = layout.offset(s)
    rows = [[value]] if isinstance(value, int) else [[v] if isinstance(v, int) else v for v in value]
    assert sum(map(sum, rows)) == (0 if s.pp * s.vpp == 1 else written.model.layers % (s.pp * s.vpp))
    assert layout.layers_from_offset(value, written.model.layers, s.pp, s.vpp) == s.layers


def test_round_trip_of_an_even_multiple_with_moved_layers():
    """Offsets that cancel out still have to be written: 8 layers as 3, 1, 2, 2."""
    written = plan(small("qwen3"), pp=4, layers=((3, 1, 2, 2),))
    assert layout.offset(written.strategy) == [1, -1, 0, 0]
    assert read_graph(loads(render(written).text)).strategy == written.strategy
