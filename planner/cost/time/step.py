"""Seconds of one optimizer step and where they go.

Per layer kind the time of one layer and micro-batch is an array over candidates (C,); layers, recomputed layers, head
and MTP modules of each stage turn it into stage times (C, S); the schedule turns those into a step.  The columns are
those of the stage that sets the pace, times the micro-batches; what the other stages add is the bubble.

Constants (``Calibration.constants``)
-------------------------------------
matmul_efficiency        share of the 16-bit matmul peak that large matmuls reach
matmul_k0                elements; a dim of d costs (1 + k0 / d) more, see `planner.cost.time.compute.matmul_s`
attention_efficiency     share of that peak that flash attention reaches, causal FLOP, heads of 128
attention_head0          columns of a head as slow as the softmax of one score; narrow heads are slower by it
vector_efficiency        share of the data-sheet memory bandwidth for the counted bytes of element-wise operators
hbm_efficiency           the same for plain streaming: optimizer update, gradient accumulation
tp_exposed               share of tensor-parallel traffic that computation does not hide
tp_exposed_overlapped    the same with fine-grain interleaving, MC2 or asynchronous TP
ep_exposed               share of expert all-to-alls that computation does not hide
pp_exposed               share of transfers between stages that computation does not hide
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
residual_moe, residual_cp  80 % interval of log(measured / predicted) of such rows (``low``, ``high``)

What only micro-benchmarks determine (``planner calibrate``; without them `planner.cost.time.setting.UNMEASURED` holds):

matmul_backward          time of a matmul's two gradient products over its forward product
flash_backward           the same of flash attention
score_matmul             batched products of unfused attention over the matmul law
norm_slowdown            time of norms, residuals and casts over their counted bytes at the vector rate
rotary_slowdown          the same of rotary embedding and head transposes
activation_slowdown      the same of the activation function
scores_slowdown          the same of scale, mask and softmax of materialised scores
norm_backward, rotary_backward  backward over forward time of such a group
activation_backward, scores_backward  the same
optimizer_slowdown       update over its bytes at the streaming rate
crowding                 slow-down of every device of a node for each further one in use: 0 on accelerators, 1 on
                         processes that share the cores of one machine
(and those of `planner.cluster.rates`: link shares and latencies)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from planner.cluster.records import Calibration, Cluster
from planner.cluster.tables import NOTHING, Measured
from planner.cost.layers import head_CS
from planner.cost.strategies import FloatArray, IntArray, Strategies, sum_stages
from planner.cost.time.communication import Traffic, dp_traffic
from planner.cost.time.compute import optimizer_bytes
from planner.cost.time.messages import Groups, Held, place_groups
from planner.cost.time.pipeline import Pipeline, at_stage, pipeline_time
from planner.cost.time.setting import Constants, Execution, Number, Setting, default_execution, setting
from planner.cost.time.stages import Stages, held_parameters, stages
from planner.model.records import DTYPE_BYTES, Model, Workload

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
    used = run or default_execution(workload)
    return evaluate_constants(model, workload, cluster, constants, table, used, calibration.measured)


def evaluate_constants(
    model: Model, workload: Workload, cluster: Cluster, constants: Constants, table: Strategies, run: Execution,
    measured: Measured = NOTHING,
) -> StepTime:  # fmt: skip
    """`step_time` with bare constants, each a number or an array (C,): fitting varies them along the rows."""
    given = setting(model, workload, cluster, constants, table, run, measured)
    groups = place_groups(given)
    staged = stages(given, groups)
    parts = (staged.forward_CS, staged.backward_CS, staged.weight_gradient_CS)
    pipeline = pipeline_time(table, *parts, head_s=staged.tail.seconds)
    held = held_parameters(given, staged.counts)
    forward_s, backward_s = staged.forward_CS.max(axis=1), staged.backward_CS.max(axis=1)
    reduced, gathered = dp_traffic(given, groups, held, forward_s, backward_s)
    columns = {
        **_pace_columns(given, staged, pipeline),
        **_step_columns(given, pipeline, reduced + gathered),
        "optimizer_s": optimizer_s(given, groups, held),
    }
    return StepTime(
        **columns,
        stage_s_CS=staged.forward_CS + staged.backward_CS,
        forward_CS=staged.forward_CS,
        backward_CS=staged.backward_CS,
        weight_gradient_CS=staged.weight_gradient_CS,
        pace_stage=pipeline.stage,
        recompute_flop=_recompute_flop(given, staged),
    )


def with_pipeline(
    time: StepTime, table: Strategies, cluster: Cluster, calibration: Calibration, pipeline_s: FloatArray
) -> StepTime:
    """The same step with the time of all micro-batches known otherwise, by simulation or measurement.

    Parameters
    ----------
    pipeline_s : ndarray, shape (C,)
        Seconds from the first pass to the end of the last one; what the pace-setting stage does not work is its bubble.
    """
    busy_s = table.micro_batches * at_stage(time.stage_s_CS, time.pace_stage)
    return replace(
        time,
        bubble_s=np.maximum(pipeline_s - busy_s, 0.0),
        straggler_s=_behind(cluster, calibration.constants["straggler"].value) * pipeline_s,
    )


def optimizer_s(setting: Setting, groups: Groups, held: Held) -> FloatArray:
    """Update of the parameters a rank owns, and their states' way to the host and back where they live there [s]."""
    table, workload, device = setting.table, setting.workload, setting.cluster.hardware.device
    sharded = table.zero_level > 0
    owned = held.dense / np.where(sharded, groups.shard.size, 1)
    owned = owned + held.expert / np.where(sharded, groups.expert_shard.size, 1)
    states = owned * float(workload.moments * DTYPE_BYTES[workload.states_dtype])
    swap = np.where(table.swap_optimizer, 2.0 * states / device.host_bytes_per_s, 0.0)
    slower = setting.own("optimizer_slowdown")
    return optimizer_bytes(owned, workload) / setting.rate.hbm_bytes_per_s * slower + swap


def _pace_columns(setting: Setting, staged: Stages, pipeline: Pipeline) -> dict[str, FloatArray]:
    """What the stage that sets the pace does in all micro-batches."""
    names = ("compute_s", "attention_s", "vector_s", "recompute_s", "launch_s")
    columns = {name: setting.zero for name in names}
    columns |= {f"{kind}_{part}_s": setting.zero for kind in ("tp", "cp", "ep") for part in ("exposed", "hidden")}
    micro = setting.table.micro_batches.astype(np.float64)
    for kind, layer in staged.layers.items():
        count, work = staged.counts[kind], layer.work
        number, full, some = (micro * at_stage(n, pipeline.stage) for n in (count.all, count.full, count.selective))
        parts = {
            "compute_s": number * (work.matmul_s + work.matmul_backward_s),
            "attention_s": number * (work.attention_s + work.attention_backward_s),
            "vector_s": number * (work.vector_s + work.vector_backward_s + layer.accumulate_s),
            "recompute_s": full * layer.forward_s + some * work.selective_s,
            "launch_s": number * (layer.launch_forward_s + layer.launch_backward_s),
        }
        for name, (forward, backward) in layer.traffic.items():
            parts[f"{name}_exposed_s"] = number * (forward.exposed_s + backward.exposed_s)
            parts[f"{name}_hidden_s"] = number * (forward.hidden_s + backward.hidden_s)
        columns = {name: columns[name] + part for name, part in parts.items()}
    with_head = micro * at_stage(head_CS(setting.table).astype(np.float64), pipeline.stage)
    tail = staged.tail
    return columns | {
        "head_loss_s": with_head * (tail.head_forward_s + tail.head_backward_s),
        "mtp_s": with_head * (tail.mtp_forward_s + tail.mtp_backward_s),
        "pp_exposed_s": 2.0 * micro * staged.passing_s,
    }


def _step_columns(setting: Setting, pipeline: Pipeline, dp: Traffic) -> dict[str, FloatArray]:
    """What a step adds to the work of its pace-setting stage.

    The slowest of n equal nodes is ``sqrt(2 ln n)`` standard deviations behind their mean.
    """
    return {
        "bubble_s": pipeline.bubble_s,
        "straggler_s": _behind(setting.cluster, setting.constants["straggler"]) * (pipeline.busy_s + pipeline.bubble_s),
        "dp_exposed_s": dp.exposed_s,
        "dp_hidden_s": dp.hidden_s,
        "fixed_s": setting.zero + setting.constants["step_fixed_s"],
    }


def _behind(cluster: Cluster, straggler: Number) -> Number:
    """Share of the pipeline's time by which the slowest node is behind."""
    return math.sqrt(2.0 * math.log(cluster.nodes)) * straggler


def _recompute_flop(setting: Setting, staged: Stages) -> FloatArray:
    """FLOP of recomputed layers in one step, all devices."""
    table, again = setting.table, setting.zero
    for kind, layer in staged.layers.items():
        again = again + sum_stages(staged.counts[kind].full) * layer.work.flop
    return again * (table.micro_batches * table.dp * table.cp * table.tp)
