"""What the time of a table of strategies depends on, gathered once: sizes, rates, constants and switches.

Arrays have shape (C,), one entry a candidate; calibrated constants are numbers, or arrays (C,) when a fit varies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.cluster.records import Cluster, Hardware
from planner.cluster.tables import NOTHING, Measured
from planner.cost.strategies import FloatArray, Strategies
from planner.errors import ProfileError
from planner.model.records import Model, Workload

Number = float | FloatArray
Constants = Mapping[str, Number]

#: Groups of element-wise operators that micro-benchmarks time, see `planner.cost.time.compute.vector_bytes`.
MEASURED_GROUPS: Final = ("norm", "rotary", "activation", "scores")

#: Constants that only micro-benchmarks determine, and what holds without them; see ``planner.cost.time.step``.
UNMEASURED: Final[Mapping[str, float]] = {
    "matmul_backward": 2.0,
    "flash_backward": 2.5,
    "score_matmul": 1.0,
    "optimizer_slowdown": 1.0,
    "crowding": 0.0,
    **{f"{group}_slowdown": 1.0 for group in MEASURED_GROUPS},
    **{f"{group}_backward": 2.0 for group in MEASURED_GROUPS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Switches of the run that are neither strategy nor model.

    Attributes
    ----------
    tp_overlap : bool
        Tensor-parallel traffic is pipelined with matmuls (MindFormers ``fine_grain_interleave``, MindSpeed MC2,
        asynchronous TP).
    dp_overlap : bool
        Gradient reduction runs beside the backward pass, parameter gathering beside the forward pass.
    cp_overlap : bool
        Ring context parallelism sends the next block while it computes the present one.
    causal_skip : bool
        Masked blocks are skipped.  A general mask (packed samples with reset positions) turns this off in ring
        attention, not in Ulysses, where one kernel sees the whole sequence.
    fused_loss : bool
        The loss is one kernel over the logits.
    balanced_experts : bool
        Experts receive equal shares: forced balance, or a capacity factor of 1 that drops the rest.
    node_dispatch : bool
        A token crosses to a node once, whatever the number of its experts there (MindFormers
        ``alltoall_deredundency``, DeepEP).
    eager : bool
        Operators are launched one by one by the host (PyTorch); False for compiled graphs (MindSpore graph mode).
    selective : tuple of {"activation", "norm", "attention", "mlp", "projections", "alternate_matmuls"}
        What a selectively recomputed layer repeats; empty: the activation function, or the attention core where scores
        are materialised (Megatron's meaning).
    """

    tp_overlap: bool = False
    dp_overlap: bool = True
    cp_overlap: bool = True
    causal_skip: bool = True
    fused_loss: bool = False
    balanced_experts: bool = False
    node_dispatch: bool = False
    eager: bool = False
    selective: tuple[str, ...] = ()


def default_execution(workload: Workload) -> Execution:
    """Settings of a plain run of the workload's framework: PyTorch launches operators one by one."""
    return Execution(eager=not workload.runs_on.graph, fused_loss=workload.runs_on.fused_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What falls on one rank, as (C,) float arrays.

    ``tokens``: tokens of one micro-batch on one context-parallel rank (all of a TP group work on the same ones);
    ``sp``: ranks that share the work outside TP regions; ``etp``: TP degree of one expert; ``ulysses``: ranks that
    exchange heads; ``ring``: ranks that pass keys and values around.
    """

    tokens: FloatArray
    tp: FloatArray
    sp: FloatArray
    cp: FloatArray
    ep: FloatArray
    etp: FloatArray
    ulysses: FloatArray
    ring: FloatArray


def shares(workload: Workload, table: Strategies) -> Shares:
    """Sizes of the work of one rank."""
    tp, cp, ep, etp = (column.astype(np.float64) for column in (table.tp, table.cp, table.ep, table.etp))
    return Shares(
        tokens=table.micro_batch_size * float(workload.seq) / cp,
        tp=tp,
        sp=np.where(table.sequence_parallel, tp, 1.0),
        cp=cp,
        ep=ep,
        etp=etp,
        ulysses=table.ulysses_degree.astype(np.float64),
        ring=cp / table.ulysses_degree,
    )


def peak_flop_per_s(hardware: Hardware, dtype: str) -> float:
    """Matmul peak a training run can count on [FLOP/s].

    float16 and bfloat16 run at the same measured rate on 910B (315 and 314 TFLOP/s on a 910B2), though the fp16 data
    sheet figure is 6 % higher; the lower of the two is the base of all efficiencies.
    """
    peaks = hardware.device.peak_flop_per_s
    if dtype not in peaks:
        legal = ", ".join(sorted(peaks))
        raise ProfileError(f"{hardware.name} has no matmul peak for {dtype}; it has: {legal}. Pick one of these types.")
    if dtype == "float32":
        return float(peaks[dtype])
    return float(min(peaks[name] for name in ("float16", "bfloat16") if name in peaks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Calibrated rates of one device: matmul, flash attention [FLOP/s], element-wise work [bytes/s]."""

    matmul_flop_per_s: Number
    attention_flop_per_s: Number
    vector_bytes_per_s: Number
    hbm_bytes_per_s: Number
    k0: Number


def rates(cluster: Cluster, workload: Workload, constants: Constants) -> Rates:
    """Rates from the profile's peaks and the calibrated shares of them.

    Devices that share a node slow each other down by ``crowding`` for each further one in use: not at all on
    accelerators, wholly on processes that share the cores of one machine.
    """
    hardware = cluster.hardware
    near = min(cluster.devices, hardware.devices_per_node)
    crowd = 1.0 + constants.get("crowding", UNMEASURED["crowding"]) * (near - 1)
    peak = peak_flop_per_s(hardware, workload.compute_dtype) / crowd
    memory = hardware.device.hbm_bytes_per_s / crowd
    return Rates(
        matmul_flop_per_s=peak * constants["matmul_efficiency"],
        attention_flop_per_s=peak * constants["attention_efficiency"],
        vector_bytes_per_s=memory * constants["vector_efficiency"],
        hbm_bytes_per_s=memory * constants["hbm_efficiency"],
        k0=constants["matmul_k0"],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """One model and workload on one cluster under every strategy of a table."""

    model: Model
    workload: Workload
    cluster: Cluster
    constants: Constants
    table: Strategies
    run: Execution
    share: Shares
    rate: Rates
    measured: Measured = NOTHING

    @property
    def zero(self) -> FloatArray:
        """Zeros of shape (C,)."""
        return np.zeros_like(self.share.tokens)

    def own(self, key: str) -> Number:
        """A constant that micro-benchmarks may have determined."""
        return self.constants.get(key, UNMEASURED[key])


def setting(
    model: Model, workload: Workload, cluster: Cluster, constants: Constants, table: Strategies, run: Execution,
    measured: Measured = NOTHING,
) -> Setting:  # fmt: skip
    """A setting with its sizes and rates worked out."""
    return Setting(
        model=model,
        workload=workload,
        cluster=cluster,
        constants=constants,
        table=table,
        run=run,
        share=shares(workload, table),
        rate=rates(cluster, workload, constants),
        measured=measured
        if measured.dtype in ("", workload.compute_dtype)
        else replace(measured, matmul=None, matmul_backward=None),
    )
