"""Strong cases of the survey of what people ask planners, with the answer they should get; ids as in the survey.

Legality cases (V01-V12, U03) are in test_legality.py, splits (U01, U05, U06) in test_layouts.py, refusals (O01, O02)
and W03 in test_suggest.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import completion
from planner.cost.estimate import Estimates
from planner.cost.memory.peak import memory
from planner.cost.strategies import Strategies, Strategy
from planner.errors import InfeasibleError
from planner.model.operators import parameter_count
from planner.search.cards import bytes_per_parameter, state_floor
from planner.search.suggest import Request, estimated, search
from planner.units import GIB
from tests.search.requests import request
from tests.search.shapes import dense

MEGATRON = {"params_dtype": "bfloat16", "master_weights": True}


def plan(layers: int, **fields: object) -> Strategy:
    """A strategy with layers spread evenly, optimizer sharded over all of dp x cp, no recompute."""
    pp, vpp = int(fields.get("pp", 1)), int(fields.get("vpp", 1))  # type: ignore[call-overload]
    chunks = [layers // (pp * vpp) + (i < layers % (pp * vpp)) for i in range(pp * vpp)]
    values: dict[str, object] = {
        "dp": 1, "tp": 1, "pp": 1, "cp": 1, "recompute_full": (0,) * pp, "recompute_selective": (0,) * pp,
        "layers": tuple(tuple(chunks[v * pp : (v + 1) * pp]) for v in range(vpp)),
        "schedule": "1f1b" if vpp == 1 else "interleaved",
    } | fields  # fmt: skip
    values.setdefault("sequence_parallel", values["tp"] != 1)
    values.setdefault("optimizer_shard", values["dp"] * values["cp"])  # type: ignore[operator]
    return Strategy(**values)  # type: ignore[arg-type]


def judged(asked: Request, *plans: Strategy) -> Estimates:
    """Estimates whatever the memory: these runs are known to fit."""
    return estimated(replace(asked, limit_bytes=float(2**50)), Strategies.of(plans))


def test_w01_cards_for_the_states_of_671b() -> None:
    """18 bytes a parameter: 671.03 G x 18 B = 12.08 TB, 151 cards of 80 GB; 58 GB: 208.2, so 209."""
    model = replace(request("DeepSeek-V3", 8).model, mtp_layers=0)
    asked = request(model, 8, chip="h100", framework="megatron", workload=MEGATRON)
    assert bytes_per_parameter(asked.workload) == 18.0
    assert state_floor(replace(asked, limit_bytes=80e9)) == 151
    assert state_floor(replace(asked, limit_bytes=58e9)) == 209


@pytest.mark.parametrize("name", ["DeepSeek-V2", "Qwen3-235B-A22B"])
def test_experts_do_not_vanish(name: str) -> None:
    """236 and 235 G parameters x 18 B are 61.7 and 61.6 GiB on each of 64 cards: nothing fits into 58, 80 cards do it.

    MindSpeed's experts over ep x etp ranks hold all of them, whatever the layout.
    """
    asked = request(name, 64, batch=1024, chip="910b3", framework="mindspeed", workload=MEGATRON)
    with pytest.raises(InfeasibleError) as refused:
        search(asked)
    assert refused.value.minimum_devices == 80
    found = search(replace(asked.on(80), workload=replace(asked.workload, global_batch=1040)))
    s = found.estimates.table
    assert ((s.dp * s.cp * s.tp) % (s.ep * s.etp) == 0).all()
    states = 18 * parameter_count(asked.model)
    rows = (found.estimates.row(i) for i in range(len(s)))
    assert all(sum(row.stage_peak_bytes) * 80 / row.strategy.pp >= states for row in rows)


def test_megatron_splits_experts_over_tp_unless_told_otherwise() -> None:
    """8 x 7B, tp 8 on 8 cards: 46.7 G parameters / 8 x 18 B of states a card; whole experts are on every card."""
    asked = request("Mixtral-8x7B", 8, batch=32, chip="h100", framework="megatron", workload=MEGATRON)
    split, whole = (
        Strategies.of([plan(32, tp=8, micro_batches=32, recompute_full=(32,), etp=etp, zero_level=0)]) for etp in (8, 1)
    )
    states = 18 * parameter_count(asked.model) / 8
    static = [memory(asked.model, asked.workload, table).static_bytes_CS[0, 0] for table in (split, whole)]
    assert static[0] == pytest.approx(states, rel=1e-3)
    assert static[1] == pytest.approx(760 * GIB, rel=0.02)
    default = completion.complete(asked, tp=8, recompute="full")
    assert (default.etp, default.ep) == (8, 1)
    assert completion.complete(asked, tp=4, ep=4, etp=1, dp=2).etp == 1


def test_vendor_layout_of_235b_is_among_the_first() -> None:
    """MindSpeed-LLM's script for 256 dies of A3: tp 2, pp 4, 32 x 2 ranks of whole experts."""
    asked = request("Qwen3-235B-A22B", 256, batch=1024, chip="910c", framework="mindspeed", workload=MEGATRON)
    table = search(replace(asked, top=6)).estimates.table
    assert (2, 4, 64, 1) in {(s.tp, s.pp, s.ep, s.etp) for s in map(table.row, range(6))}


def test_r01_llama2_13b_ladder() -> None:
    """Two stages with little recompute beat plain data parallelism with full recompute; selective beats full.

    Measured: dp8 with one micro-batch a step 1860 tokens/s a card; with pp 2 and 128 micro-batches 2136 (full), 2353
    (full on 13 and 5 layers, selective on the others), 2562 (4 and 0).
    """
    data_parallel = judged(
        request("Llama-2-13B", 8, batch=8, chip="910b3"), plan(40, dp=8, micro_batches=1, recompute_full=(40,))
    ).tokens_per_s_per_device[0]
    recompute = [((20, 20), (0, 0)), ((13, 5), (7, 15)), ((4, 0), (16, 20)), ((0, 0), (20, 20))]
    ladder = judged(
        request("Llama-2-13B", 16, batch=1024, chip="910b3"),
        *(plan(40, dp=8, pp=2, micro_batches=128, recompute_full=f, recompute_selective=s) for f, s in recompute),
    ).tokens_per_s_per_device
    assert data_parallel < ladder[1]
    assert (np.diff(ladder) > 0).all()
    assert ladder[2] / ladder[0] == pytest.approx(2562 / 2136, rel=0.06)
    assert ladder[1] / ladder[0] == pytest.approx(2353 / 2136, rel=0.06)


def test_r02_small_model_prefers_data_parallelism() -> None:
    """Llama2-7B on 8 A800: tp1 dp8 8708 tokens/s a card, tp4 dp2 6247; batches differ, so tokens/s are compared."""
    asked = request("Llama-2-7B", 8, batch=64, chip="a100-80g", framework="megatron", workload=MEGATRON)
    one = judged(asked, plan(32, dp=8, micro_batches=8))
    four = judged(asked, plan(32, dp=2, tp=4, micro_batches=32))
    assert one.tokens_per_s_per_device[0] > 1.1 * four.tokens_per_s_per_device[0]


def test_r06_full_recompute_costs_a_quarter_to_a_third() -> None:
    """70B on 128 H100 as tp8 pp8 dp2 with full recompute; the rest of the loss is the pipeline."""
    asked = request("Llama-3.1-70B", 128, batch=512, chip="h100", framework="megatron", workload=MEGATRON)
    row = judged(asked, plan(80, dp=2, tp=8, pp=8, micro_batches=256, recompute_full=(10,) * 8)).row(0)
    assert row.time_s is not None
    assert row.step_s is not None
    assert 0.25 <= row.time_s["recompute_s"] / (row.step_s - row.time_s["recompute_s"]) <= 0.33


def test_r08_bubble_of_1024_cards_and_the_stage_that_binds_memory() -> None:
    """dp8 mp8 pp16 with 16 micro-batches: (p - 1)/(m + p - 1) = 48 %, 24 % with interleave 3; stage 0 is fullest."""
    asked = request(dense(96, 8192, 64, 8, ffn=28_672, vocab=32_000), 1024, batch=128)
    shape = {"dp": 8, "tp": 8, "pp": 16, "micro_batches": 16}
    found = judged(asked, plan(96, **shape), plan(96, **shape, vpp=3))
    share = found.time.bubble_s / (found.time.bubble_s + 16 * found.time.stage_s_CS.max(axis=1))
    assert share[0] == pytest.approx(15 / 31, abs=0.03)
    assert share[1] == pytest.approx(5 / 21, abs=0.02)
    assert np.argmax(found.memory.peak_bytes_CS, axis=1).tolist() == [0, 0]


def test_r20_context_parallel_beats_full_recompute_at_less_memory() -> None:
    """32k tokens, tp4 on 8 cards: cp2 3862 ms, cp1 with full recompute 4729 ms (a Mamba model; here 7B Llama)."""
    asked = request("Llama-2-7B", 8, seq=32_768, batch=8, framework="mindspeed", workload=MEGATRON)
    found = judged(
        asked,
        plan(32, dp=1, tp=4, cp=2, micro_batches=8),
        plan(32, dp=2, tp=4, micro_batches=4, recompute_full=(32,)),
        plan(32, dp=2, tp=4, micro_batches=4),
    )
    assert found.step_s[0] < found.step_s[1]
    assert found.peak_bytes[0] < found.peak_bytes[2]


def test_u04_the_heaviest_stage_not_the_average() -> None:
    """8 layers as [1, 2, 2, 3]: an average of 2 is a third too low for the stage that holds 3 and the head."""
    asked = request(dense(8, vocab=1024), 4, batch=8)
    row = judged(asked, replace(plan(8, pp=4, micro_batches=8), layers=((1, 2, 2, 3),))).row(0)
    assert row.peak_bytes == max(row.stage_peak_bytes)
    assert int(np.argmax(row.stage_static_bytes)) == 3
    inner = row.stage_static_bytes[1] / 2  # a middle stage holds two layers and nothing else
    assert row.stage_static_bytes[3] > 3 * inner > 1.4 * 2 * inner


def test_u07_early_stages_are_lighter_under_1f1b() -> None:
    """pp 4 with stage 0 too full: MindSpore's guide moves layers back, offsets like [-2, 1, 1, 0]."""
    pins = {"tp": {8}, "pp": {4}, "schedule": {"1f1b"}, "selective": {0}}
    best = search(request("Llama-3.1-70B", 64, batch=256, pins=pins)).estimates.row(0).strategy
    assert best.layers_per_stage[0] < 20 <= max(best.layers_per_stage[1:3])
    assert list(best.recompute_full) == sorted(best.recompute_full, reverse=True)


@pytest.mark.parametrize("cards", [2, 8, 64, 512])
def test_o01_no_table_for_what_cannot_fit(cards: int) -> None:
    from planner.errors import InfeasibleError

    asked = request("Llama-3.1-405B", cards, batch=1024, pins={"tp": {1}, "pp": {1}})
    with pytest.raises(InfeasibleError) as caught:
        search(asked)
    assert "405B" in str(caught.value)
    assert "58.0 GiB" in str(caught.value)
    assert caught.value.exit_code == 3


def test_limits_are_of_the_usable_memory_not_the_card() -> None:
    asked = request("Llama-3.1-70B", 64, batch=256)
    assert asked.limit == 58 * GIB
    tight = search(replace(asked, limit_bytes=40.0 * GIB))
    assert tight.estimates.peak_bytes.max() <= 40 * GIB
    assert tight.estimates.step_s[0] > search(asked).estimates.step_s[0]
