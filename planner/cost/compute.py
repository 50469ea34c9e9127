"""Seconds of computation of one layer, one head, one micro-batch on one rank.

All functions take arrays of shape (C,) (one entry a candidate) or numbers and return (C,) arrays; nothing here knows
of stages or steps.  Constants are the calibrated ones explained in ``planner.cost.step``.

Sources: FLOP counts after Korthikanti et al. 2022 (arXiv 2205.05198), sections 4 and A; byte counts of element-wise
work from the operators of a Llama layer (two RMS norms, rotary embedding, residual additions, gated activation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cluster.records import Hardware
from planner.cost.memory_rules import rules_for
from planner.cost.strategies import FloatArray, Strategies
from planner.errors import ProfileError
from planner.model.operators import gemms
from planner.model.records import DTYPE_BYTES, MOE, LayerKind, Model, Workload

Number = float | FloatArray
Constants = Mapping[str, Number]

#: Backward over forward, by kind of work: two matmuls for one; flash attention recomputes the scores; element-wise
#: operators read the saved input and the incoming gradient.
MATMUL_BACKWARD: Final = 2.0
FLASH_BACKWARD: Final = 2.5
VECTOR_BACKWARD: Final = 2.0

#: Kernels of one layer beside its matmuls (norms, rotary embedding, transposes, casts, residuals); and for routing.
LAYER_KERNELS: Final = 20
KERNELS_PER_GEMM: Final = 4
ROUTING_KERNELS: Final = 60

#: Head width at which ``attention_efficiency`` is quoted.
USUAL_HEAD: Final = 128.0

#: Bytes moved per score of unfused attention, forward: scores written and read, softmax and dropout in between.
SCORE_BYTES: Final = 13.0


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
    """Sizes of the work of one rank.  Whether tp also splits experts is the framework's habit (see `rules_for`)."""
    tp, cp, ep = (column.astype(np.float64) for column in (table.tp, table.cp, table.ep))
    return Shares(
        tokens=table.micro_batch_size * float(workload.seq) / cp,
        tp=tp,
        sp=np.where(table.sequence_parallel, tp, 1.0),
        cp=cp,
        ep=ep,
        etp=tp if rules_for(workload).expert_tensor_parallel else np.ones_like(tp),
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


def matmul_s(m: Number, k: Number, n: Number, rate_flop_per_s: Number, k0: Number, bytes_per_s: Number) -> FloatArray:
    """Time of an (m x k) by (k x n) matmul on 16-bit operands [s].

    ``max(2 m k n / rate x (1 + k0/m)(1 + k0/k)(1 + k0/n), 2 (mk + kn + mn) / bandwidth)``: the smooth term makes narrow
    shards slow and is the same for both backward matmuls, which permute m, k and n.

    >>> float(matmul_s(4096, 4096, 4096, 300e12, 0.0, 1e12))  # 137.4 GFLOP
    0.00045812984490666665
    """
    shape = (1.0 + k0 / m) * (1.0 + k0 / k) * (1.0 + k0 / n)
    work = 2.0 * m * k * n * shape / rate_flop_per_s
    traffic = 2.0 * (m * k + k * n + m * n) / bytes_per_s
    return np.maximum(work, traffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """Computation of one layer and micro-batch on one rank, (C,) seconds each.

    ``attention_backward_s`` and ``kernels`` stand apart because their backward is not twice their forward.
    ``selective_s`` is what selective recompute repeats of the layer; ``hardware_matmul_flop`` and ``attention_flop``
    are forward FLOP for the hardware-utilisation figure.
    """

    matmul_s: FloatArray
    attention_s: FloatArray
    attention_backward_s: FloatArray
    vector_s: FloatArray
    selective_s: FloatArray
    kernels: float
    flop: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Calibrated rates of one device: matmul, flash attention [FLOP/s], element-wise work [bytes/s]."""

    matmul_flop_per_s: Number
    attention_flop_per_s: Number
    vector_bytes_per_s: Number
    hbm_bytes_per_s: Number
    k0: Number


def rates(hardware: Hardware, workload: Workload, constants: Constants) -> Rates:
    """Rates from the profile's peaks and the calibrated shares of them."""
    peak = peak_flop_per_s(hardware, workload.compute_dtype)
    memory = hardware.device.hbm_bytes_per_s
    return Rates(
        matmul_flop_per_s=peak * constants["matmul_efficiency"],
        attention_flop_per_s=peak * constants["attention_efficiency"],
        vector_bytes_per_s=memory * constants["vector_efficiency"],
        hbm_bytes_per_s=memory * constants["hbm_efficiency"],
        k0=constants["matmul_k0"],
    )


def layer_work(
    model: Model, workload: Workload, kind: LayerKind, share: Shares, rate: Rates, constants: Constants, run: Execution
) -> LayerWork:
    """Computation of one decoder layer of a kind."""
    parts = {"projections": np.zeros_like(share.tokens), "mlp": np.zeros_like(share.tokens)}
    flop = np.zeros_like(share.tokens)
    operators = gemms(model, kind)
    for gemm in operators:
        time, work = _gemm(
            model, gemm.name, gemm.k, gemm.n, gemm.shard, gemm.tokens_factor, share, rate, constants, run
        )
        part = "mlp" if gemm.shard.startswith("expert") or _is_mlp(gemm.name) else "projections"
        parts[part] = parts[part] + time
        flop = flop + work
    core_s, core_backward_s, core_flop = attention_core(model, workload, share, rate, constants, run)
    vector = vector_bytes(model, kind, share)
    vector_total = sum(vector.values(), start=np.zeros_like(share.tokens))
    scores = np.zeros_like(share.tokens) if workload.flash_attention else _score_bytes(model, workload, share)
    repeats = {
        "activation": vector["activation"] / rate.vector_bytes_per_s,
        "norm": vector["norm"] / rate.vector_bytes_per_s,
        "attention": core_s + scores / rate.vector_bytes_per_s,
        **parts,
        "alternate_matmuls": 0.5 * (parts["projections"] + parts["mlp"]),
    }
    chosen = run.selective or (("activation",) if workload.flash_attention else ("attention",))
    return LayerWork(
        matmul_s=parts["projections"] + parts["mlp"],
        attention_s=core_s,
        attention_backward_s=core_backward_s,
        vector_s=(vector_total + scores) / rate.vector_bytes_per_s,
        selective_s=sum((repeats[name] for name in chosen), start=np.zeros_like(share.tokens)),
        kernels=LAYER_KERNELS + KERNELS_PER_GEMM * len(operators) + (ROUTING_KERNELS if kind == MOE else 0),
        flop=flop + core_flop,
    )


def _is_mlp(name: str) -> bool:
    return name.startswith(("mlp", "router", "expert", "shared"))


def _gemm(
    model: Model, name: str, k: int, n: int, shard: str, factor: float, share: Shares, rate: Rates,
    constants: Constants, run: Execution,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Forward time [s] and FLOP of one matmul of a layer on one rank."""
    flop = 2.0 * share.tokens * factor * k * n
    if shard.startswith("expert"):
        return expert_matmul_s(model, k, n, factor, share, rate, constants, run), flop / share.tp
    if shard == "replicated":
        rows = share.tokens * factor / share.sp
        return matmul_s(rows, k, n, rate.matmul_flop_per_s, rate.k0, rate.hbm_bytes_per_s), flop / share.sp
    width = n / share.tp if shard == "column" else np.full_like(share.tp, n)
    depth = k / share.tp if shard == "row" else np.full_like(share.tp, k)
    rows = share.tokens * factor
    return matmul_s(rows, depth, width, rate.matmul_flop_per_s, rate.k0, rate.hbm_bytes_per_s), flop / share.tp


def expert_matmul_s(
    model: Model, k: int, n: int, factor: float, share: Shares, rate: Rates, constants: Constants, run: Execution
) -> FloatArray:
    """Grouped matmul over the experts of one rank [s].

    Each rank works on ``tokens x topk / tp`` rows-by-full-width equivalents.  The rate is the dense one times
    ``expert_efficiency / (1 + expert_width0 / narrow side)``; unequal routing stretches it by ``expert_imbalance``.
    """
    experts, width = (float(model.moe.experts), float(model.moe.expert_ffn)) if model.moe is not None else (1.0, 1.0)
    local = experts / share.ep
    rows = share.tokens * factor * share.ep * share.etp / (share.tp * experts)
    narrow = np.minimum(float(model.hidden), width / share.etp)
    slow = (1.0 + constants["expert_width0"] / narrow) / constants["expert_efficiency"]
    stretch = 1.0 if run.balanced_experts else constants["expert_imbalance"]
    work = 2.0 * rows * local * k * n / share.etp * slow * stretch / rate.matmul_flop_per_s
    traffic = 2.0 * local * (k * n / share.etp + rows * (k + n)) / rate.hbm_bytes_per_s
    return np.asarray(np.maximum(work, traffic))


def attention_core(
    model: Model, workload: Workload, share: Shares, rate: Rates, constants: Constants, run: Execution
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Scores and weighted values of one layer: forward [s], backward [s], forward FLOP.

    Flash attention does ``2 tokens x seen x heads (d + dv) / tp`` FLOP with seen = seq / 2 under a causal mask; a ring
    without block skipping sees the whole sequence and pays ``ring_slowdown`` for its smaller blocks.  Unfused attention
    computes all scores at the matmul rate; its traffic is in the vector work.
    """
    heads = model.attention.heads / share.tp
    width = heads * (model.attention.head_dim + model.attention.v_head_dim)
    in_ring = share.ring > 1
    if not workload.flash_attention:
        rows = share.tokens * heads
        k0, d = rate.k0, float(model.attention.head_dim)
        seen = np.full_like(share.tokens, workload.seq)
        flop = 2.0 * share.tokens * seen * width
        shape = (1.0 + k0 / d) * (1.0 + k0 / seen) * (1.0 + k0 / np.minimum(rows, seen))
        time = flop * shape / rate.matmul_flop_per_s
        return time, MATMUL_BACKWARD * time, flop
    skipped = np.where(in_ring & (not run.causal_skip), 1.0, 0.5)
    flop = 2.0 * share.tokens * workload.seq * skipped * width
    narrow = 0.5 * (model.attention.head_dim + model.attention.v_head_dim)
    head0 = constants["attention_head0"]
    slow = np.where(in_ring, constants["ring_slowdown"], 1.0) * (1.0 + head0 / narrow) / (1.0 + head0 / USUAL_HEAD)
    time = flop * slow / rate.attention_flop_per_s
    return time, FLASH_BACKWARD * time, flop


def _score_bytes(model: Model, workload: Workload, share: Shares) -> FloatArray:
    return SCORE_BYTES * share.tokens * workload.seq * model.attention.heads / share.tp


def vector_bytes(model: Model, kind: LayerKind, share: Shares) -> dict[str, FloatArray]:
    """Bytes moved by the element-wise operators of one layer, forward, by group.

    Per token: norms, residuals and casts 28 h, rotary embedding and head transposes 8 (heads + kv heads) d / tp, the
    activation function 6 ffn / tp (gated: two inputs, one output) or 4; routing copies each token topk times, twice.
    """
    attention = model.attention
    norm = share.tokens * (14.0 * model.norms_per_layer * model.hidden) / share.sp
    rotary = share.tokens * 8.0 * (attention.heads + attention.kv_heads) * attention.head_dim / share.tp
    per_width = 6.0 if model.gated_mlp else 4.0
    if kind != MOE or model.moe is None:
        activation = share.tokens * per_width * model.ffn / share.tp
        routing = np.zeros_like(share.tokens)
    else:
        moe = model.moe
        activation = share.tokens * per_width * (moe.topk * moe.expert_ffn + moe.shared_ffn) / share.tp
        routing = share.tokens * (8.0 * moe.topk * model.hidden + 16.0 * moe.experts) / share.tp
    return {"norm": norm, "rotary": rotary, "activation": activation, "routing": routing}


def head_work(
    model: Model, share: Shares, rate: Rates, constants: Constants, run: Execution
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Output projection and loss of one micro-batch: forward [s], backward [s], forward FLOP.

    Logits are tokens x vocabulary / tp; ``loss_bytes`` are moved per logit over forward and backward together
    (``fused_loss_bytes`` with a fused kernel), a third of them forward.
    """
    width = model.vocab / share.tp
    matmul = matmul_s(share.tokens, model.hidden, width, rate.matmul_flop_per_s, rate.k0, rate.hbm_bytes_per_s)
    per_logit = constants["fused_loss_bytes"] if run.fused_loss else constants["loss_bytes"]
    loss = share.tokens * width * per_logit / rate.vector_bytes_per_s
    flop = 2.0 * share.tokens * model.hidden * width
    return matmul + loss / 3.0, MATMUL_BACKWARD * matmul + loss * 2.0 / 3.0, flop


def mtp_projection_s(model: Model, share: Shares, rate: Rates) -> FloatArray:
    """Projection 2h x h of one MTP module, forward [s]; column-parallel."""
    width = model.hidden / share.tp
    return matmul_s(share.tokens, 2 * model.hidden, width, rate.matmul_flop_per_s, rate.k0, rate.hbm_bytes_per_s)


def host_gap_s(kernels: float, device_s: FloatArray, constants: Constants, run: Execution) -> FloatArray:
    """Idle time of a device that waits for its host to launch operators one by one [s]; 0 for compiled graphs."""
    if not run.eager:
        return np.zeros_like(device_s)
    return np.maximum(0.0, kernels * constants["host_launch_s"] - device_s)


def optimizer_bytes(parameters: FloatArray, workload: Workload) -> FloatArray:
    """Bytes one update moves for so many local parameters.

    Gradient read, moments read and written, float32 master (or the parameter itself) read and written, 16-bit copy
    written: 28 a parameter for AdamW on float32 parameters.
    """
    gradient, state = DTYPE_BYTES[workload.grads_dtype], DTYPE_BYTES[workload.states_dtype]
    stored = DTYPE_BYTES[workload.params_dtype]
    weights = 8 + stored if workload.master_weights and stored == 2 else 2 * stored
    return parameters * float(gradient + 2 * workload.moments * state + weights)
