"""Placement in nodes, and what a device computes in."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cluster.placement import legal_on_quads, place_on, strides
from planner.cost.strategies import BoolArray, Strategies, Strategy
from planner.legality.context import Context, Rule, divisors, listed, rows


def _node_holds(context: Context, table: Strategies) -> BoolArray:
    node = context.cluster.hardware.devices_per_node
    spans = (table.tp > node) & (table.tp % node == 0) & context.tp_across_nodes
    return rows(table, (node % table.tp == 0) | spans)


def _node_explain(context: Context, s: Strategy) -> str:
    node = context.cluster.hardware.devices_per_node
    legal = f"tp-node: tp={s.tp} does not fit whole into a node of {node} devices; legal: {listed(divisors(node))}"
    if s.tp > node:
        legal += f". A tensor-parallel group over several nodes (a multiple of {node}) has to be asked for"
    return legal + "."


def _quads_holds(context: Context, table: Strategies) -> BoolArray:
    fabric = context.cluster.hardware.node
    if fabric.kind != "quads":
        return rows(table, True)
    kinds = strides(tp=table.tp, cp=table.cp, dp=table.dp, pp=table.pp, ep=table.ep, etp=table.etp,
                    ulysses=table.ulysses_degree)  # fmt: skip
    good = np.ones(len(table), bool)
    for name in ("tp", "cp", "dp", "dp_cp", "etp", "ep", "edp"):
        size, stride = kinds[name]
        good &= legal_on_quads(place_on(context.cluster, np.maximum(size, 1), stride), fabric.quad_size)
    return good


def _quads_explain(context: Context, s: Strategy) -> str:
    quad, name = context.cluster.hardware.node.quad_size, context.cluster.hardware.name
    return (
        f"quads: HCCL refuses groups of 2 or 4 devices that straddle the quads of {quad} on {name} "
        f"(tp={s.tp} stride 1, cp={s.cp} stride {s.tp}, dp={s.dp} stride {s.tp * s.cp}, ep={s.ep} stride {s.etp}); "
        f"legal inside one server: size x stride at most {quad}, or 8 members."
    )


def _dtype_holds(context: Context, table: Strategies) -> BoolArray:
    return rows(table, context.workload.compute_dtype in context.cluster.hardware.device.peak_flop_per_s)


def _dtype_explain(context: Context, s: Strategy) -> str:
    legal = ", ".join(context.cluster.hardware.device.peak_flop_per_s)
    device = context.cluster.hardware.device.name
    return f"compute-type: {device} has no {context.workload.compute_dtype} matrix unit; legal: {legal}."


#: Every rule, cheap and frequent refusals first; the order decides which rule a removed candidate counts for.


COMPUTE_TYPE: Final = Rule("compute-type", "the device computes in the asked type", _dtype_holds, _dtype_explain)
TP_NODE: Final = Rule("tp-node", "a tensor-parallel group fits a node", _node_holds, _node_explain)
QUADS: Final = Rule("quads", "910A: groups of 2 or 4 inside a quad", _quads_holds, _quads_explain)
