"""The space of strategies: complete, legal, counted, and bounded in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost.strategies import CP_ALGORITHMS, Strategies, Strategy
from planner.errors import SpecError
from planner.legality.apply import Context, apply_rules, violations
from planner.search.layouts import layouts
from planner.search.space import Batch, Pins, batches, check_pins
from tests.search.shapes import DEEPSEEK_V3, LLAMA_70B, context, dense, moe

SMALL = {
    "dense": context(dense(5, heads=8, kv_heads=4), 4, seq=8192, batch=8),
    "moe": context(moe(5, experts=2, dense_layers=1, mtp_layers=1), 4, seq=4096, batch=8),
    "megatron": context(dense(5), 4, seq=8192, batch=12, framework="mindspeed"),
}
PINS: Pins = {"micro_batch_size": {1, 4}, "vpp": {1, 2, 3}, "cp": {1, 2}, "zero_level": {0, 3}}


def rows(where: Context, pins: Pins | None = None, **limits: int) -> list[Strategy]:
    return [batch.table.row(i) for batch in batches(where, pins, **limits) for i in range(len(batch.table))]


def by_hand(where: Context) -> set[Strategy]:
    """All strategies of the pinned space, one at a time, judged by their violations."""
    devices, model, found = where.cluster.devices, where.model, set()
    degrees = [1, 2, 3, 4]
    schedules = ("1f1b", "interleaved", "zero_bubble_v")
    experts = [1, 2] if model.moe else [1]
    for tp, pp, cp, mbs, vpp, schedule, ep, selective in itertools.product(
        degrees, degrees, [1, 2], [1, 4], [1, 2, 3], schedules, experts, [False, True]
    ):
        if devices % (tp * pp * cp) or vpp * pp > model.layers + 2 or (vpp == 1) != (schedule == "1f1b"):
            continue
        dp = devices // (tp * pp * cp)
        shards = dp * cp
        levels = [level for level in (0, 3) if where.framework != "mindspeed" or level < 2]
        algorithms = [("ring", 1)] if cp == 1 else [("ring", 1), ("ulysses", cp)]
        for level, (algorithm, degree) in itertools.product(levels, algorithms):
            for split in layouts(model.layers, model.mtp_layers, pp, vpp, schedule == "zero_bubble_v").tolist():
                totals = tuple(sum(column) for column in zip(*split, strict=True))
                strategy = Strategy(
                    dp=dp, tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, micro_batch_size=mbs,
                    micro_batches=max(where.workload.global_batch // (dp * mbs), 1), cp_algorithm=algorithm,
                    ulysses_degree=degree, sequence_parallel=tp > 1, zero_level=level,
                    optimizer_shard=shards if level else 1, schedule=schedule, layers=tuple(map(tuple, split)),
                    recompute_full=(0,) * pp, recompute_selective=totals if selective else (0,) * pp,
                )  # fmt: skip
                if not violations(where, strategy):
                    found.add(strategy)
    return found


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_space_is_the_one_found_by_hand(name: str) -> None:
    found = rows(SMALL[name], PINS)
    assert len(found) == len(set(found))
    expected = by_hand(SMALL[name])
    assert len(expected) > 50
    assert set(found) == expected


@pytest.mark.parametrize("name", sorted(SMALL))
def test_counts_add_up(name: str) -> None:
    parts: list[Batch] = list(batches(SMALL[name], PINS))
    for part in parts:
        assert len(part.table) + sum(part.removed.values()) == part.examined
    assert sum(part.examined for part in parts) > sum(len(part.table) for part in parts) > 0


@pytest.mark.parametrize(
    "where", [context(batch=128), context(seq=32_768), context(DEEPSEEK_V3, 256, batch=2048)], ids=["70b", "long", "v3"]
)
def test_every_row_is_legal_and_of_exact_width(where: Context) -> None:
    seen = 0
    for batch in batches(where):
        if not len(batch.table):
            continue
        mask, _ = apply_rules(where, batch.table)
        assert mask.all()
        assert set(batch.table.pp.tolist()) == {batch.table.stages}
        assert batch.table.layers_CVS.shape[1] == batch.table.vpp.max()
        seen += len(batch.table)
    assert seen > 1000


def test_batches_are_cut_without_losing_a_row() -> None:
    where = SMALL["moe"]
    whole = rows(where, PINS)
    cut = rows(where, PINS, rows=7)
    assert max(len(batch.table) for batch in batches(where, PINS, rows=7)) == 7
    assert cut == whole
    assert rows(where, PINS, cells=8) == whole


def test_tp_stays_inside_a_node_unless_asked() -> None:
    model = dense(16, 8192, 64, 16, ffn=16_384)
    assert {s.tp for s in rows(context(model, 32, batch=64))} == {1, 2, 4, 8}
    assert 16 in {s.tp for s in rows(context(model, 32, batch=64, tp_across_nodes=True))}


def test_pins_and_bounds_are_kept() -> None:
    pins: Pins = {"tp": {8}, "pp": {1, 2, 4}, "zero_level": {1}, "schedule": {"1f1b"}, "selective": {False}}
    found = rows(context(batch=128), pins)
    assert {s.tp for s in found} == {8}
    assert {s.pp for s in found} == {1, 2, 4}
    assert {(s.zero_level, s.schedule, sum(s.recompute_selective)) for s in found} == {(1, "1f1b", 0)}


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"tensor": {8}}, "cannot be pinned; legal: dp, tp"),
        ({"tp": set()}, "at least one value"),
        ({"tp": "8"}, "at least one value"),
        ({"tp": {0}}, "positive"),
        ({"tp": {"8"}}, "positive"),
        ({"schedule": {"dualpipe"}}, "legal: gpipe, 1f1b"),
        ({"cp_algorithm": {"allgather"}}, "legal: ring, ulysses, hybrid"),
    ],
)
def test_impossible_pins(pins: Pins, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_pins(pins)


def test_pinned_degrees_that_miss_the_devices_are_counted_not_lost() -> None:
    parts = list(batches(context(), {"tp": {3}}))
    assert sum(len(part.table) for part in parts) == 0
    assert sum(part.removed.get("devices", 0) for part in parts) > 0


def test_long_sequences_bring_context_parallel() -> None:
    where = context(seq=32_768, framework="mindformers-legacy")
    found = rows(where, {"pp": {2}, "selective": {False}, "zero_level": {1}, "micro_batch_size": {1}})
    kinds = {(s.cp, s.cp_algorithm, s.ulysses_degree) for s in found}
    assert {(1, "ring", 1), (4, "ring", 1), (4, "ulysses", 4), (4, "hybrid", 2), (8, "hybrid", 2)} <= kinds
    assert max(s.cp for s in found) == 8  # 4096 tokens a rank
    assert {s.cp for s in rows(context(seq=4096), {"pp": {2}})} == {1}
    assert set(CP_ALGORITHMS) == {s.cp_algorithm for s in found}


def test_selective_rows_allow_it_on_every_layer() -> None:
    tables = [batch.table for batch in batches(context(), {"pp": {4}, "selective": {True}}) if len(batch.table)]
    assert all(np.array_equal(table.recompute_selective_CS, table.layers_CS) for table in tables)
    assert all(isinstance(table, Strategies) for table in tables)
    assert LLAMA_70B.layers == tables[0].layers_CS.sum(axis=1)[0]
