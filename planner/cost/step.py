"""Seconds of one optimizer step and where they go.

Per layer kind the time of one layer and micro-batch is an array over candidates (C,); layers, recomputed layers, head
and MTP modules of each stage turn it into stage times (C, S); the schedule turns those into a step.  The columns are
those of the stage that sets the pace, times the micro-batches; what the other stages add is the bubble.

Constants (``Calibration.constants``)
-------------------------------------
matmul_efficiency        share of the 16-bit matmul peak that large matmuls reach
matmul_k0                elements; a dim of d costs (1 + k0 / d) more, see `planner.cost.compute.matmul_s`
attention_efficiency     share of that peak that flash attention reaches, causal FLOP
vector_efficiency        share of the data-sheet memory bandwidth for the counted bytes of element-wise operators
hbm_efficiency           the same for plain streaming: optimizer update, gradient accumulation
tp_exposed               share of tensor-parallel traffic that computation does not hide
tp_exposed_overlapped    the same with fine-grain interleaving, MC2 or asynchronous TP
ep_exposed               share of expert all-to-alls that computation does not hide
dp_exposed               share of gradient and parameter traffic that is never hidden
dp_window                share of the computation beside which that traffic can run
ring_slowdown            attention time in a ring over attention in one piece
expert_efficiency        rate of grouped expert matmuls over dense ones, for wide experts
expert_width0            elements; narrow experts are slower by (1 + width0 / narrow side)
expert_imbalance         tokens of the fullest expert rank over the mean
loss_bytes               bytes moved per logit by loss and its gradient
fused_loss_bytes         the same with one fused kernel
launch_s                 device idle time per operator [s]
host_launch_s            host time per operator, a floor where operators are launched one by one [s]
straggler                spread of equal nodes' speed; a step waits for the slowest of them
step_fixed_s             per step beside optimizer and gradient traffic [s]
(and those of `planner.cluster.collectives`: link shares and latencies)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from planner.cluster.records import Calibration, Cluster
from planner.cost import communication, compute
from planner.cost.communication import Groups, Hidden
from planner.cost.compute import Constants, Execution, LayerWork, Rates, Shares
from planner.cost.memory_stages import StageLayers, head_CS, stage_layers
from planner.cost.pipeline import Pipeline, at_stage, pipeline_time
from planner.cost.strategies import FloatArray, IntArray, Strategies, sum_stages
from planner.model.operators import (
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
)
from planner.model.records import DTYPE_BYTES, LayerKind, Model, Workload

#: Columns that add up to a step, in the order in which they are added.
COLUMNS: Final = (
    "compute_s", "attention_s", "vector_s", "recompute_s", "head_loss_s", "mtp_s", "launch_s", "tp_exposed_s",
    "cp_exposed_s", "ep_exposed_s", "pp_exposed_s", "bubble_s", "straggler_s", "dp_exposed_s", "optimizer_s", "fixed_s",
)  # fmt: skip

#: Traffic that runs beside computation and adds nothing.
HIDDEN_COLUMNS: Final = ("tp_hidden_s", "cp_hidden_s", "ep_hidden_s", "dp_hidden_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTime:
    """Seconds of one step by what they are spent on, one row a candidate.

    Attributes
    ----------
    compute_s, attention_s, vector_s : ndarray, shape (C,)
        Weight matmuls, attention scores, element-wise work of all micro-batches on the stage that sets the pace.
    recompute_s : ndarray, shape (C,)
        Forward work done again, with its communication.
    head_loss_s, mtp_s : ndarray, shape (C,)
        Output projection and loss; MTP modules.  0 unless the stage that holds them sets the pace: the last one, or the
        first of a V-shaped schedule.
    launch_s : ndarray, shape (C,)
        Gaps between operators.
    tp_exposed_s, cp_exposed_s, ep_exposed_s, pp_exposed_s, dp_exposed_s : ndarray, shape (C,)
        Communication that computation does not hide; the ``*_hidden_s`` columns are the rest and add nothing.
    bubble_s, straggler_s : ndarray, shape (C,)
        Waiting of the stage that sets the pace, and of all nodes for the slowest one.
    optimizer_s, fixed_s : ndarray, shape (C,)
        Update, and what a step costs whatever it does.
    stage_s_CS, forward_CS, backward_CS, weight_gradient_CS : ndarray, shape (C, S)
        One micro-batch on each stage: all, forward, backward with recompute, and its delayable part.
    pace_stage : ndarray of int, shape (C,)
        The stage the columns describe.
    recompute_flop : ndarray, shape (C,)
        FLOP done again in one step, all devices.
    """

    compute_s: FloatArray
    attention_s: FloatArray
    vector_s: FloatArray
    recompute_s: FloatArray
    head_loss_s: FloatArray
    mtp_s: FloatArray
    launch_s: FloatArray
    tp_exposed_s: FloatArray
    cp_exposed_s: FloatArray
    ep_exposed_s: FloatArray
    pp_exposed_s: FloatArray
    bubble_s: FloatArray
    straggler_s: FloatArray
    dp_exposed_s: FloatArray
    optimizer_s: FloatArray
    fixed_s: FloatArray
    tp_hidden_s: FloatArray
    cp_hidden_s: FloatArray
    ep_hidden_s: FloatArray
    dp_hidden_s: FloatArray
    stage_s_CS: FloatArray
    forward_CS: FloatArray
    backward_CS: FloatArray
    weight_gradient_CS: FloatArray
    pace_stage: IntArray
    recompute_flop: FloatArray

    def __len__(self) -> int:
        return len(self.compute_s)

    @property
    def step_s(self) -> FloatArray:
        """Seconds of one step, shape (C,): the sum of `COLUMNS`, added in that order."""
        total = np.zeros(len(self))
        for name in COLUMNS:
            total = total + getattr(self, name)
        return total

    def take(self, rows: IntArray) -> StepTime:
        """Rows by index or mask."""
        return StepTime(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer of a kind: its work, and its communication forward and backward."""

    work: LayerWork
    traffic: communication.LayerTraffic
    launch_forward_s: FloatArray
    launch_backward_s: FloatArray
    accumulate_s: FloatArray

    @property
    def forward_s(self) -> FloatArray:
        """Forward of one layer with exposed communication [s]."""
        work, wire = self.work, self.traffic
        inner = work.matmul_s + work.attention_s + work.vector_s + self.launch_forward_s
        return inner + wire.tp_forward.exposed_s + wire.cp_forward.exposed_s + wire.ep_forward.exposed_s

    @property
    def backward_s(self) -> FloatArray:
        """Backward of one layer with exposed communication, without recompute [s]."""
        work, wire = self.work, self.traffic
        inner = compute.MATMUL_BACKWARD * work.matmul_s + work.attention_backward_s + self.launch_backward_s
        inner = inner + compute.VECTOR_BACKWARD * work.vector_s + self.accumulate_s
        return inner + wire.tp_backward.exposed_s + wire.cp_backward.exposed_s + wire.ep_backward.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Layers of one kind: in each stage, recomputed whole, recomputed selectively; shape (C, S) as floats."""

    all: FloatArray
    full: FloatArray
    selective: FloatArray


def step_time(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    run: Execution | None = None,
) -> StepTime:
    """Seconds of one optimizer step of every candidate.

    Parameters
    ----------
    calibration : Calibration
        Constants of the device and framework, see the module's table.
    table : Strategies
        Candidates, C rows.
    run : Execution, optional
        Overlap and mask settings; by default those of the workload's framework.

    Returns
    -------
    StepTime
        A row does not depend on the other rows of the table, bit for bit.
    """
    constants = {key: constant.value for key, constant in calibration.constants.items()}
    return evaluate_constants(model, workload, cluster, constants, table, run or default_execution(workload))


def default_execution(workload: Workload) -> Execution:
    """Settings of a plain run of the workload's framework: PyTorch launches operators one by one."""
    eager = workload.framework in {"mindspeed", "megatron", "mindformers-pynative"}
    return Execution(eager=eager, fused_loss=workload.framework == "megatron")


def evaluate_constants(
    model: Model, workload: Workload, cluster: Cluster, constants: Constants, table: Strategies, run: Execution
) -> StepTime:
    """`step_time` with bare constants, each a number or an array (C,): fitting varies them along the rows."""
    share = compute.shares(workload, table)
    rate = compute.rates(cluster.hardware, workload, constants)
    groups = communication.place_groups(cluster, table, share)
    layers = {
        kind: _layer(model, workload, kind, share, rate, groups, cluster, constants, table, run) for kind in model.kinds
    }
    staged = stage_layers(model, table)
    counts = {kind: _counts(staged, kind, table) for kind in model.kinds}
    tail = _tail(model, workload, share, rate, layers, constants, table, run)
    transfer = communication.pp_transfer_s(model, workload, share, groups, cluster, constants, table)
    passing = transfer * constants["pp_exposed"]
    forward_CS, backward_CS, weights_CS = _stage_times(layers, counts, tail, passing, table)
    pipeline = pipeline_time(table, forward_CS, backward_CS, weights_CS)
    dp, optimizer_s = _update(
        model, workload, share, groups, cluster, constants, counts, table, forward_CS, backward_CS, run
    )
    return _assemble(
        layers, counts, tail, passing, pipeline, dp, optimizer_s, cluster, constants, table,
        (forward_CS, backward_CS, weights_CS),
    )  # fmt: skip


def _layer(
    model: Model, workload: Workload, kind: LayerKind, share: Shares, rate: Rates, groups: Groups, cluster: Cluster,
    constants: Constants, table: Strategies, run: Execution,
) -> _Layer:  # fmt: skip
    work = compute.layer_work(model, workload, kind, share, rate, constants, run)
    tp = communication.tp_traffic(model, kind, share, groups, cluster, constants, work.matmul_s, run)
    cp = communication.cp_traffic(
        model, share, groups, cluster, constants, work.attention_s, work.attention_backward_s, run
    )
    ep = communication.ep_traffic(model, kind, share, groups, cluster, constants, run)
    launch = work.kernels * constants["launch_s"] + np.zeros_like(share.tokens)
    device = work.matmul_s + work.attention_s + work.vector_s + launch
    device_backward = 2.0 * (work.matmul_s + work.vector_s + launch) + work.attention_backward_s
    local = layer_parameters(model, kind)
    held = local.tp / share.tp + local.replicated + local.expert / (share.ep * share.etp)
    return _Layer(
        work=work,
        traffic=communication.LayerTraffic(
            tp_forward=tp[0], tp_backward=tp[1], cp_forward=cp[0], cp_backward=cp[1], ep_forward=ep[0],
            ep_backward=ep[1],
        ),
        launch_forward_s=launch + compute.host_gap_s(work.kernels, device, constants, run),
        launch_backward_s=2.0 * launch + compute.host_gap_s(2.0 * work.kernels, device_backward, constants, run),
        accumulate_s=_accumulate_s(held, workload, rate, table),
    )  # fmt: skip


def _accumulate_s(parameters: FloatArray, workload: Workload, rate: Rates, table: Strategies) -> FloatArray:
    """Adding a micro-batch's gradients to the accumulated ones: read and write, with more than one micro-batch [s]."""
    moved = 2.0 * DTYPE_BYTES[workload.grads_dtype] * parameters / rate.hbm_bytes_per_s
    return np.where(table.micro_batches > 1, moved, 0.0)


def _counts(staged: StageLayers, kind: LayerKind, table: Strategies) -> _Counts:
    full = staged.of_kind(kind, staged.places(table.recompute_full_CS))
    some = staged.of_kind(kind, staged.places(table.recompute_full_CS + table.recompute_selective_CS))
    return _Counts(
        all=staged.count(kind).astype(np.float64),
        full=full.astype(np.float64),
        selective=(some - full).astype(np.float64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """What the stage with the head does after its layers: head, loss, MTP modules; (C,) seconds of one micro-batch."""

    head_forward_s: FloatArray
    head_backward_s: FloatArray
    mtp_forward_s: FloatArray
    mtp_backward_s: FloatArray


def _tail(
    model: Model, workload: Workload, share: Shares, rate: Rates, layers: Mapping[LayerKind, _Layer],
    constants: Constants, table: Strategies, run: Execution,
) -> _Tail:  # fmt: skip
    forward, backward, _ = compute.head_work(model, share, rate, constants, run)
    backward = backward + _accumulate_s(model.vocab * model.hidden / share.tp, workload, rate, table)
    layer = layers[model.layer_kinds[-1]]
    join = compute.mtp_projection_s(model, share, rate)
    modules = float(model.mtp_layers)
    return _Tail(
        head_forward_s=forward,
        head_backward_s=backward,
        mtp_forward_s=modules * (layer.forward_s + join + forward),
        mtp_backward_s=modules * (layer.backward_s + compute.MATMUL_BACKWARD * join + backward),
    )


def _stage_times(
    layers: Mapping[LayerKind, _Layer], counts: Mapping[LayerKind, _Counts], tail: _Tail, passing: FloatArray,
    table: Strategies,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Forward, backward and delayable part of one micro-batch on each stage, shape (C, S)."""
    stage = np.arange(table.stages)[None, :]
    last = head_CS(table)
    forward = np.where(last, (tail.head_forward_s + tail.mtp_forward_s)[:, None], 0.0)
    backward = np.where(last, (tail.head_backward_s + tail.mtp_backward_s)[:, None], 0.0)
    weights = np.zeros_like(forward)
    for kind, layer in layers.items():
        count = counts[kind]
        once, back = layer.forward_s[:, None], layer.backward_s[:, None]
        forward = forward + count.all * once
        backward = backward + count.all * back + count.full * once
        backward = backward + count.selective * layer.work.selective_s[:, None]
        weights = weights + count.all * (layer.work.matmul_s + layer.accumulate_s)[:, None]
    passing_CS = np.where(stage < table.pp[:, None], passing[:, None], 0.0)
    return forward + passing_CS, backward + passing_CS, weights


def _update(
    model: Model, workload: Workload, share: Shares, groups: Groups, cluster: Cluster, constants: Constants,
    counts: Mapping[LayerKind, _Counts], table: Strategies, forward_CS: FloatArray, backward_CS: FloatArray,
    run: Execution,
) -> tuple[Hidden, FloatArray]:  # fmt: skip
    """Gradient traffic and optimizer update of the stage with most parameters."""
    dense, expert = _held_parameters(model, share, counts, table)
    backward, forward = backward_CS.max(axis=1), forward_CS.max(axis=1)
    dp = communication.dp_traffic(workload, groups, cluster, constants, table, dense, expert, backward, forward, run)
    sharded = np.where(table.zero_level > 0, groups.shard.size, 1)
    expert_ranks = np.where(table.zero_level > 0, groups.expert_shard.size, 1)
    owned = dense / sharded + expert / expert_ranks
    device = cluster.hardware.device
    moved = compute.optimizer_bytes(owned, workload)
    states = owned * float(workload.moments * DTYPE_BYTES[workload.states_dtype])
    swap = np.where(table.swap_optimizer, 2.0 * states / device.host_bytes_per_s, 0.0)
    return dp.split, moved / (device.hbm_bytes_per_s * constants["hbm_efficiency"]) + swap


def _held_parameters(
    model: Model, share: Shares, counts: Mapping[LayerKind, _Counts], table: Strategies
) -> tuple[FloatArray, FloatArray]:
    """Dense and expert parameters of one rank on the stage that holds most of each, shape (C,)."""
    dense = np.zeros(table.recompute_full_CS.shape)
    expert = np.zeros_like(dense)
    for kind, count in counts.items():
        local = layer_parameters(model, kind)
        dense = dense + count.all * (local.tp / share.tp + local.replicated)[:, None]
        expert = expert + count.all * (local.expert / (share.ep * share.etp))[:, None]
    stage = np.arange(table.stages)[None, :]
    table_in, out = embedding_parameters(model), head_parameters(model) + final_norm_parameters(model)
    mtp = mtp_parameters(model)
    at_start = table_in.tp / share.tp + table_in.replicated
    at_end = (out.tp + mtp.tp) / share.tp + out.replicated + mtp.replicated
    dense = dense + np.where(stage == 0, at_start[:, None], 0.0)
    last = head_CS(table)
    dense = dense + np.where(last, at_end[:, None], 0.0)
    expert = expert + np.where(last, (mtp.expert / (share.ep * share.etp))[:, None], 0.0)
    return dense.max(axis=1), expert.max(axis=1)


def _assemble(
    layers: Mapping[LayerKind, _Layer], counts: Mapping[LayerKind, _Counts], tail: _Tail, passing: FloatArray,
    pipeline: Pipeline, dp: Hidden, optimizer_s: FloatArray, cluster: Cluster, constants: Constants, table: Strategies,
    stages_CS: tuple[FloatArray, FloatArray, FloatArray],
) -> StepTime:  # fmt: skip
    """Columns of the stage that sets the pace.

    The slowest of n equal nodes is ``sqrt(2 ln n)`` standard deviations behind their mean.
    """
    forward_CS, backward_CS, weights_CS = stages_CS
    behind = math.sqrt(2.0 * math.log(cluster.nodes)) * constants["straggler"]
    micro = table.micro_batches.astype(np.float64)
    zero = np.zeros_like(micro)
    columns = {name: zero for name in (*COLUMNS, *HIDDEN_COLUMNS)}
    flop = zero
    for kind, layer in layers.items():
        number = micro * at_stage(counts[kind].all, pipeline.stage)
        full = micro * at_stage(counts[kind].full, pipeline.stage)
        some = micro * at_stage(counts[kind].selective, pipeline.stage)
        work, wire = layer.work, layer.traffic
        columns["compute_s"] = columns["compute_s"] + number * (1.0 + compute.MATMUL_BACKWARD) * work.matmul_s
        columns["attention_s"] = columns["attention_s"] + number * (work.attention_s + work.attention_backward_s)
        element = (1.0 + compute.VECTOR_BACKWARD) * work.vector_s + layer.accumulate_s
        columns["vector_s"] = columns["vector_s"] + number * element
        columns["launch_s"] = columns["launch_s"] + number * (layer.launch_forward_s + layer.launch_backward_s)
        columns["recompute_s"] = columns["recompute_s"] + full * layer.forward_s + some * work.selective_s
        for name, ahead, back in (
            ("tp", wire.tp_forward, wire.tp_backward),
            ("cp", wire.cp_forward, wire.cp_backward),
            ("ep", wire.ep_forward, wire.ep_backward),
        ):
            seen = number * (ahead.exposed_s + back.exposed_s)
            columns[f"{name}_exposed_s"] = columns[f"{name}_exposed_s"] + seen
            columns[f"{name}_hidden_s"] = columns[f"{name}_hidden_s"] + number * (ahead.hidden_s + back.hidden_s)
        again = sum_stages(counts[kind].full) * work.flop
        flop = flop + micro * again * table.dp * table.cp * table.tp
    at_end = micro * at_stage(head_CS(table).astype(np.float64), pipeline.stage)
    columns["head_loss_s"] = at_end * (tail.head_forward_s + tail.head_backward_s)
    columns["mtp_s"] = at_end * (tail.mtp_forward_s + tail.mtp_backward_s)
    columns["pp_exposed_s"] = 2.0 * micro * passing
    columns["bubble_s"] = pipeline.bubble_s
    columns["straggler_s"] = behind * (pipeline.busy_s + pipeline.bubble_s)
    columns["dp_exposed_s"], columns["dp_hidden_s"] = dp.exposed_s, dp.hidden_s
    columns["optimizer_s"] = optimizer_s
    columns["fixed_s"] = zero + constants["step_fixed_s"]
    return StepTime(
        **columns, stage_s_CS=forward_CS + backward_CS, forward_CS=forward_CS, backward_CS=backward_CS,
        weight_gradient_CS=weights_CS, pace_stage=pipeline.stage, recompute_flop=flop,
    )  # fmt: skip
