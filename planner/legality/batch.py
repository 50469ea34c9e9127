"""Devices and batch: degrees multiply to the devices, samples to the global batch."""

from __future__ import annotations

from typing import Final

from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.legality.context import Context, Rule, rows


def _devices_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, table.devices == context.cluster.devices)


def _devices_explain(context: Context, s: Strategy) -> str:
    cards, rest = context.cluster.devices, s.tp * s.pp * s.cp
    advice = (
        f"dp={cards // rest} makes it {cards}"
        if cards % rest == 0
        else f"tp x pp x cp={rest} does not divide {cards} cards; change one of them"
    )
    return (
        f"devices: dp={s.dp} x tp={s.tp} x pp={s.pp} x cp={s.cp} = {s.devices} devices, "
        f"the cluster has {cards}; {advice}."
    )


def _batch_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, table.dp * table.micro_batch_size * table.micro_batches == context.workload.global_batch)


def _batch_explain(context: Context, s: Strategy) -> str:
    batch, unit = context.workload.global_batch, s.dp * s.micro_batch_size
    lower, upper = batch // unit * unit, -(-batch // unit) * unit
    if lower == upper:
        advice = f"micro_batches={batch // unit} makes it {batch}"
    else:
        near = f"{lower} or {upper}" if lower else f"{upper}"
        advice = f"dp x micro_batch_size={unit} does not divide {batch}; nearest legal global batches: {near}"
    return (
        f"global-batch: dp={s.dp} x micro_batch_size={s.micro_batch_size} x micro_batches={s.micro_batches} = "
        f"{s.dp * s.micro_batch_size * s.micro_batches}, asked is {batch}; {advice}."
    )


DEVICES: Final = Rule("devices", "dp x tp x pp x cp = devices", _devices_holds, _devices_explain)
GLOBAL_BATCH: Final = Rule(
    "global-batch", "dp x micro-batch size x micro-batches = global batch", _batch_holds, _batch_explain
)
