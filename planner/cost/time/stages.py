"""Time of one micro-batch on every pipeline stage, put together from layers, head and MTP modules.

Per layer kind everything is worked out once as (C,) arrays; the numbers of layers, recomputed layers and the place of
the head turn that into (C, S) arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.layers import StageLayers, head_CS, stage_layers
from planner.cost.memory.rules import rules_for
from planner.cost.parameters import layer_classes, rank_parameters
from planner.cost.strategies import FloatArray, Strategies
from planner.cost.time import compute
from planner.cost.time.communication import Traffic, cp_traffic, ep_traffic, pp_transfer_s, tp_traffic
from planner.cost.time.compute import LayerWork
from planner.cost.time.messages import Groups, Held
from planner.cost.time.setting import Setting
from planner.model.records import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a kind in one micro-batch: its work, its gaps and its traffic, shape (C,).

    ``traffic`` holds forward and backward communication by dimension ("tp", "cp", "ep"); ``accumulate_s`` is what
    adding its gradients to the accumulated ones takes.
    """

    work: LayerWork
    traffic: Mapping[str, tuple[Traffic, Traffic]]
    launch_forward_s: FloatArray
    launch_backward_s: FloatArray
    accumulate_s: FloatArray

    @property
    def forward_s(self) -> FloatArray:
        """Forward with exposed communication [s]."""
        time = self.work.matmul_s + self.work.attention_s + self.work.vector_s + self.launch_forward_s
        for forward, _ in self.traffic.values():
            time = time + forward.exposed_s
        return time

    @property
    def backward_s(self) -> FloatArray:
        """Backward with exposed communication, without recompute [s]."""
        work = self.work
        time = work.matmul_backward_s + work.attention_backward_s + self.launch_backward_s
        time = time + work.vector_backward_s + self.accumulate_s
        for _, backward in self.traffic.values():
            time = time + backward.exposed_s
        return time


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Layers of one kind in each stage, shape (C, S): all, recomputed whole, recomputed selectively."""

    all: FloatArray
    full: FloatArray
    selective: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What the stage with the head does after its layers, one micro-batch, shape (C,) [s]."""

    head_forward_s: FloatArray
    head_backward_s: FloatArray
    mtp_forward_s: FloatArray
    mtp_backward_s: FloatArray

    @property
    def seconds(self) -> FloatArray:
        """All of it [s]."""
        return self.head_forward_s + self.head_backward_s + self.mtp_forward_s + self.mtp_backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """One micro-batch on every stage, and what it consists of.

    Attributes
    ----------
    forward_CS, backward_CS, weight_gradient_CS : ndarray, shape (C, S)
        Forward, backward with recompute, and the part of the backward that a schedule may delay; 0 where a stage does
        not exist [s].
    passing_s : ndarray, shape (C,)
        Exposed time of one hand-over between stages, in each direction.
    """

    layers: Mapping[LayerKind, Layer]
    counts: Mapping[LayerKind, Counts]
    tail: Tail
    passing_s: FloatArray
    forward_CS: FloatArray
    backward_CS: FloatArray
    weight_gradient_CS: FloatArray


def stages(setting: Setting, groups: Groups) -> Stages:
    """Time of one micro-batch on every stage."""
    kinds = setting.model.kinds
    layers = {kind: layer(setting, groups, kind) for kind in kinds}
    counts = layer_counts(setting)
    tail = _tail(setting, layers)
    passing_s = pp_transfer_s(setting, groups) * setting.constants["pp_exposed"]
    head = head_CS(setting.table)
    forward = np.where(head, (tail.head_forward_s + tail.mtp_forward_s)[:, None], 0.0)
    backward = np.where(head, (tail.head_backward_s + tail.mtp_backward_s)[:, None], 0.0)
    weights = np.zeros_like(forward)
    for kind, one in layers.items():
        count, once = counts[kind], one.forward_s[:, None]
        forward = forward + count.all * once
        backward = backward + count.all * one.backward_s[:, None] + count.full * once
        backward = backward + count.selective * one.work.selective_s[:, None]
        weights = weights + count.all * (0.5 * one.work.matmul_backward_s + one.accumulate_s)[:, None]
    passing_CS = np.where(setting.table.stage_mask_CS, passing_s[:, None], 0.0)
    return Stages(
        layers=layers,
        counts=counts,
        tail=tail,
        passing_s=passing_s,
        forward_CS=forward + passing_CS,
        backward_CS=backward + passing_CS,
        weight_gradient_CS=weights,
    )


def layer(setting: Setting, groups: Groups, kind: LayerKind) -> Layer:
    """One layer of a kind."""
    work = compute.layer_work(setting, kind)
    launch = work.kernels * setting.constants["launch_s"] + setting.zero
    device = work.matmul_s + work.attention_s + work.vector_s + launch
    device_backward = work.matmul_backward_s + work.vector_backward_s + 2.0 * launch + work.attention_backward_s
    own = sum(layer_classes(setting.model, setting.table, kind, rules_for(setting.workload)).values(), setting.zero)
    return Layer(
        work=work,
        traffic={
            "tp": tp_traffic(setting, groups, kind, work.matmul_s),
            "cp": cp_traffic(setting, groups, work.attention_s, work.attention_backward_s),
            "ep": ep_traffic(setting, groups, kind),
        },
        launch_forward_s=launch + compute.host_gap_s(setting, work.kernels, device),
        launch_backward_s=2.0 * launch + compute.host_gap_s(setting, 2.0 * work.kernels, device_backward),
        accumulate_s=compute.accumulate_s(setting, own),
    )


def layer_counts(setting: Setting) -> dict[LayerKind, Counts]:
    """Layers of each kind in each stage."""
    staged = stage_layers(setting.model, setting.table)
    return {kind: _counts(staged, kind, setting.table) for kind in setting.model.kinds}


def _counts(staged: StageLayers, kind: LayerKind, table: Strategies) -> Counts:
    full = staged.of_kind(kind, staged.places(table.recompute_full_CS))
    some = staged.of_kind(kind, staged.places(table.recompute_full_CS + table.recompute_selective_CS))
    return Counts(
        all=staged.count(kind).astype(np.float64),
        full=full.astype(np.float64),
        selective=(some - full).astype(np.float64),
    )


def _tail(setting: Setting, layers: Mapping[LayerKind, Layer]) -> Tail:
    model = setting.model
    forward, backward = compute.head_work(setting)
    backward = backward + compute.accumulate_s(setting, model.vocab * model.hidden / setting.share.tp)
    last, join = layers[model.layer_kinds[-1]], compute.mtp_projection(setting)
    modules = float(model.mtp_layers)
    return Tail(
        head_forward_s=forward,
        head_backward_s=backward,
        mtp_forward_s=modules * (last.forward_s + join.forward_s + forward),
        mtp_backward_s=modules * (last.backward_s + join.backward_s + backward),
    )


def held_parameters(setting: Setting, counts: Mapping[LayerKind, Counts]) -> Held:
    """Parameters of one rank on the stage that holds most outside experts, and on the one that holds most in them."""
    held = held_CS(setting, counts)
    return Held(dense=held.dense.max(axis=1), expert=held.expert.max(axis=1))


def held_CS(setting: Setting, counts: Mapping[LayerKind, Counts]) -> Held:
    """Parameters of one rank of each stage, shape (C, S)."""
    numbers = {kind: count.all for kind, count in counts.items()}
    held = rank_parameters(setting.model, setting.table, numbers, rules_for(setting.workload))
    return Held(dense=held.dense_CS(), expert=held.experts_CS())
