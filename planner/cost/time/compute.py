"""Seconds of computation of one layer, one head, one micro-batch on one rank.

Functions take a `Setting` and return (C,) arrays; nothing here knows of stages or steps.  Constants are the calibrated
ones explained in ``planner.cost.time.step``.

Sources: FLOP counts after Korthikanti et al. 2022 (arXiv 2205.05198), sections 4 and A; byte counts of element-wise
work from the operators of a Llama layer (two RMS norms, rotary embedding, residual additions, gated activation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cluster.tables import shape_factor
from planner.cost.strategies import FloatArray
from planner.cost.time.setting import MEASURED_GROUPS, Number, Setting, Shares
from planner.model.operators import Gemm, gemms
from planner.model.records import DTYPE_BYTES, MOE, LayerKind, Workload

#: Backward over forward of element-wise work that no micro-benchmark covers.
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
class LayerWork:
    """Computation of one layer and micro-batch on one rank, forward unless named otherwise, shape (C,).

    Attributes
    ----------
    matmul_s, attention_s, vector_s : ndarray
        Weight matmuls, attention scores, element-wise work [s].
    matmul_backward_s, attention_backward_s, vector_backward_s : ndarray
        Their backward passes: two matmuls for one; flash attention recomputes the scores; element-wise operators read
        the saved input and the incoming gradient.  What they take over forward is `UNMEASURED` or measured [s].
    selective_s : ndarray
        What selective recompute repeats of the layer [s].
    kernels : float
        Operators launched.
    flop : ndarray
        FLOP of matmuls and scores.
    """

    matmul_s: FloatArray
    matmul_backward_s: FloatArray
    attention_s: FloatArray
    attention_backward_s: FloatArray
    vector_s: FloatArray
    vector_backward_s: FloatArray
    selective_s: FloatArray
    kernels: float
    flop: FloatArray


def matmul_s(
    m: Number, k: Number, n: Number, rate_flop_per_s: Number, k0: Number, bytes_per_s: Number, width: float = 2.0
) -> FloatArray:
    """Time of an (m x k) by (k x n) matmul on operands of ``width`` bytes [s].

    ``max(2 m k n / rate x (1 + k0/m)(1 + k0/k)(1 + k0/n), width (mk + kn + mn) / bandwidth)``: the smooth term makes
    narrow shards slow and is the same for both backward matmuls, which permute m, k and n.

    >>> float(matmul_s(4096, 4096, 4096, 300e12, 0.0, 1e12))  # 137.4 GFLOP
    0.00045812984490666665
    """
    shape = (1.0 + k0 / m) * (1.0 + k0 / k) * (1.0 + k0 / n)
    work = 2.0 * m * k * n * shape / rate_flop_per_s
    traffic = width * (m * k + k * n + m * n) / bytes_per_s
    return np.maximum(work, traffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """Forward and backward time of the same work [s]."""

    forward_s: FloatArray
    backward_s: FloatArray

    def __add__(self, other: Both) -> Both:
        return Both(forward_s=self.forward_s + other.forward_s, backward_s=self.backward_s + other.backward_s)


def _matmul(setting: Setting, m: Number, k: Number, n: Number) -> Both:
    """One matmul and its gradients: the smooth law, corrected near measured shapes."""
    rate, tables = setting.rate, setting.measured
    width = float(DTYPE_BYTES[setting.workload.compute_dtype])
    law = matmul_s(m, k, n, rate.matmul_flop_per_s, rate.k0, rate.hbm_bytes_per_s, width)
    back = setting.own("matmul_backward") * law
    return Both(
        forward_s=law * shape_factor(tables.matmul, m, k, n) + setting.zero,
        backward_s=back * shape_factor(tables.matmul_backward, m, k, n) + setting.zero,
    )


def layer_work(setting: Setting, kind: LayerKind) -> LayerWork:
    """Computation of one decoder layer of a kind."""
    nothing = Both(forward_s=setting.zero, backward_s=setting.zero)
    parts = {"projections": nothing, "mlp": nothing}
    flop = setting.zero
    operators = gemms(setting.model, kind)
    for gemm in operators:
        part = "mlp" if gemm.name.startswith(("mlp", "router", "expert", "shared")) else "projections"
        parts[part] = parts[part] + gemm_time(setting, gemm)
        flop = flop + setting.share.tokens * gemm.flop_per_token / _ranks(setting.share, gemm)
    core_s, core_backward_s, core_flop = attention_core(setting)
    vector = vector_time(setting, kind)
    matmul = parts["projections"] + parts["mlp"]
    elementwise = sum(vector.values(), start=nothing)
    return LayerWork(
        matmul_s=matmul.forward_s,
        matmul_backward_s=matmul.backward_s,
        attention_s=core_s,
        attention_backward_s=core_backward_s,
        vector_s=elementwise.forward_s,
        vector_backward_s=elementwise.backward_s,
        selective_s=_selective_s(setting, parts, vector, core_s),
        kernels=LAYER_KERNELS + KERNELS_PER_GEMM * len(operators) + (ROUTING_KERNELS if kind == MOE else 0),
        flop=flop + core_flop,
    )


def _selective_s(setting: Setting, parts: dict[str, Both], vector: dict[str, Both], core_s: FloatArray) -> FloatArray:
    """What selective recompute repeats: the operators the run lists, or the framework's usual ones [s]."""
    repeats = {
        "activation": vector["activation"].forward_s,
        "norm": vector["norm"].forward_s,
        "attention": core_s + vector["scores"].forward_s,
        **{name: part.forward_s for name, part in parts.items()},
        "alternate_matmuls": 0.5 * (parts["projections"].forward_s + parts["mlp"].forward_s),
    }
    usual = ("activation",) if setting.workload.flash_attention else ("attention",)
    return sum((repeats[name] for name in setting.run.selective or usual), start=setting.zero)


def _ranks(share: Shares, gemm: Gemm) -> FloatArray:
    """Ranks that share the FLOP of a matmul."""
    return share.sp if gemm.shard == "replicated" else share.tp


def gemm_time(setting: Setting, gemm: Gemm) -> Both:
    """One matmul of a layer on one rank."""
    share = setting.share
    if gemm.shard.startswith("expert"):
        forward = expert_matmul_s(setting, gemm)
        return Both(forward_s=forward, backward_s=setting.own("matmul_backward") * forward)
    rows = share.tokens * gemm.tokens_factor
    if gemm.shard == "replicated":
        return _matmul(setting, rows / share.sp, gemm.k, gemm.n)
    width = gemm.n / share.tp if gemm.shard == "column" else np.full_like(share.tp, gemm.n)
    depth = gemm.k / share.tp if gemm.shard == "row" else np.full_like(share.tp, gemm.k)
    return _matmul(setting, rows, depth, width)


def expert_matmul_s(setting: Setting, gemm: Gemm) -> FloatArray:
    """Grouped matmul over the experts of one rank [s].

    The experts of a rank see ``tokens x topk x ep x etp / (tp x experts)`` rows each.  The rate is the dense one times
    ``expert_efficiency / (1 + expert_width0 / narrow side)``; unequal routing stretches it by ``expert_imbalance``.
    """
    share, rate, constants, moe = setting.share, setting.rate, setting.constants, setting.model.moe
    assert moe is not None
    local = moe.experts / share.ep
    rows = share.tokens * gemm.tokens_factor * share.ep * share.etp / (share.tp * moe.experts)
    narrow = np.minimum(float(setting.model.hidden), moe.expert_ffn / share.etp)
    slow = (1.0 + constants["expert_width0"] / narrow) / constants["expert_efficiency"]
    stretch = 1.0 if setting.run.balanced_experts else constants["expert_imbalance"]
    weight = gemm.k * gemm.n / share.etp
    work = 2.0 * rows * local * weight * slow * stretch / rate.matmul_flop_per_s
    traffic = 2.0 * local * (weight + rows * (gemm.k + gemm.n)) / rate.hbm_bytes_per_s
    return np.asarray(np.maximum(work, traffic))


def attention_core(setting: Setting) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Scores and weighted values of one layer: forward [s], backward [s], forward FLOP.

    Flash attention does ``2 tokens x seen x heads (d + dv) / tp`` FLOP with seen = seq / 2 under a causal mask; a ring
    without block skipping sees the whole sequence and pays ``ring_slowdown`` for its smaller blocks.  Narrow heads do
    less matmul work for each score, whose softmax takes as long as ``attention_head0`` columns.
    """
    model, share, constants = setting.model, setting.share, setting.constants
    if not setting.workload.flash_attention:
        return _unfused_attention(setting)
    widths = model.attention.head_dim + model.attention.v_head_dim
    in_ring = share.ring > 1
    skipped = np.where(in_ring & (not setting.run.causal_skip), 1.0, 0.5)
    flop = 2.0 * share.tokens * setting.workload.seq * skipped * (model.attention.heads / share.tp * widths)
    head0 = constants["attention_head0"]
    narrow = (1.0 + head0 / (0.5 * widths)) / (1.0 + head0 / USUAL_HEAD)
    time = flop * np.where(in_ring, constants["ring_slowdown"], 1.0) * narrow / setting.rate.attention_flop_per_s
    return time, setting.own("flash_backward") * time, flop


def _unfused_attention(setting: Setting) -> tuple[FloatArray, FloatArray, FloatArray]:
    """All scores as batched matmuls at the matmul rate; their traffic is in the element-wise work."""
    attention, share, k0 = setting.model.attention, setting.share, setting.rate.k0
    heads = attention.heads / share.tp
    seen = np.full_like(share.tokens, setting.workload.seq)
    flop = 2.0 * share.tokens * seen * (heads * (attention.head_dim + attention.v_head_dim))
    rows = np.minimum(share.tokens * heads, seen)
    shape = (1.0 + k0 / attention.head_dim) * (1.0 + k0 / seen) * (1.0 + k0 / rows)
    time = flop * shape / setting.rate.matmul_flop_per_s * setting.own("score_matmul")
    return time, setting.own("matmul_backward") * time, flop


def vector_bytes(setting: Setting, kind: LayerKind) -> dict[str, FloatArray]:
    """Bytes moved by the element-wise operators of one layer, forward, by group.

    Per token: norms, residuals and casts 28 h, rotary embedding and head transposes 8 (heads + kv heads) d / tp, the
    activation function 6 ffn / tp (gated: two inputs, one output) or 4; routing copies each token topk times, twice;
    materialised scores `SCORE_BYTES` each.
    """
    model, share, attention = setting.model, setting.share, setting.model.attention
    per_width = 6.0 if model.gated_mlp else 4.0
    ffn, routing = float(model.ffn), 0.0
    if kind == MOE and model.moe is not None:
        ffn = float(model.moe.topk * model.moe.expert_ffn + model.moe.shared_ffn)
        routing = 8.0 * model.moe.topk * model.hidden + 16.0 * model.moe.experts
    scores = 0.0 if setting.workload.flash_attention else SCORE_BYTES * setting.workload.seq * attention.heads
    rotary = 8.0 * (attention.heads + attention.kv_heads) * attention.head_dim
    return {
        "norm": share.tokens * (14.0 * model.norms_per_layer * model.hidden) / share.sp,
        "rotary": share.tokens * rotary / share.tp,
        "activation": share.tokens * (per_width * ffn) / share.tp,
        "routing": share.tokens * routing / share.tp,
        "scores": share.tokens * scores / share.tp,
    }


def vector_time(setting: Setting, kind: LayerKind) -> dict[str, Both]:
    """Element-wise work of one layer by group: its bytes at the vector rate, times what the group was measured to take.

    Only groups that micro-benchmarks know have constants of their own; routing goes at the plain rate.
    """
    times = {}
    for group, size in vector_bytes(setting, kind).items():
        slower = setting.own(f"{group}_slowdown") if group in MEASURED_GROUPS else 1.0
        behind = setting.own(f"{group}_backward") if group in MEASURED_GROUPS else VECTOR_BACKWARD
        forward = size / setting.rate.vector_bytes_per_s * slower
        times[group] = Both(forward_s=forward, backward_s=behind * forward)
    return times


def head_work(setting: Setting) -> tuple[FloatArray, FloatArray]:
    """Output projection and loss of one micro-batch: forward and backward [s].

    Logits are tokens x vocabulary / tp; ``loss_bytes`` are moved per logit over forward and backward together
    (``fused_loss_bytes`` with a fused kernel), a third of them forward.
    """
    model, share = setting.model, setting.share
    width = model.vocab / share.tp
    matmul = _matmul(setting, share.tokens, model.hidden, width)
    per_logit = setting.constants["fused_loss_bytes" if setting.run.fused_loss else "loss_bytes"]
    loss = share.tokens * width * per_logit / setting.rate.vector_bytes_per_s
    return matmul.forward_s + loss / 3.0, matmul.backward_s + loss * 2.0 / 3.0


def mtp_projection(setting: Setting) -> Both:
    """Projection 2h x h of one MTP module; column-parallel."""
    hidden = setting.model.hidden
    return _matmul(setting, setting.share.tokens, 2 * hidden, hidden / setting.share.tp)


def host_gap_s(setting: Setting, kernels: float, device_s: FloatArray) -> FloatArray:
    """Idle time of a device that waits for its host to launch operators one by one [s]; 0 for compiled graphs."""
    if not setting.run.eager:
        return np.zeros_like(device_s)
    return np.maximum(0.0, kernels * setting.constants["host_launch_s"] - device_s)


def accumulate_s(setting: Setting, parameters: FloatArray) -> FloatArray:
    """Adding a micro-batch's gradients to the accumulated ones: read and write, with more than one micro-batch [s]."""
    moved = 2.0 * DTYPE_BYTES[setting.workload.grads_dtype] * parameters / setting.rate.hbm_bytes_per_s
    return np.where(setting.table.micro_batches > 1, moved, 0.0)


def optimizer_bytes(parameters: FloatArray, workload: Workload) -> FloatArray:
    """Bytes one update moves for so many local parameters.

    Gradient read, moments read and written, float32 master (or the parameter itself) read and written, 16-bit copy
    written: 28 a parameter for AdamW on float32 parameters.
    """
    gradient, state = DTYPE_BYTES[workload.grads_dtype], DTYPE_BYTES[workload.states_dtype]
    stored = DTYPE_BYTES[workload.params_dtype]
    weights = 8 + stored if workload.master_weights and stored == 2 else 2 * stored
    return parameters * float(gradient + 2 * workload.moments * state + weights)
