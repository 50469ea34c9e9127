"""What the passes of one strategy consist of, and what they keep in memory: material for drawings of a step.

Times come from the functions that price a step, chunk by chunk; memory from `planner.cost.memory.peak`, its terms taken
apart into what is there all the time and what a micro-batch of a chunk keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cluster.records import Calibration, Cluster
from planner.cost.layers import in_flight_CVS
from planner.cost.memory.peak import MOMENTS, Memory, memory
from planner.cost.strategies import FloatArray, Strategies, Strategy
from planner.cost.time.setting import Execution
from planner.cost.time.stages import Stages
from planner.model.records import Model, Workload
from planner.timeline.chunks import model_order, staged_chunks, unrolled
from planner.timeline.events import Timeline

#: Dimensions whose traffic inside a layer is told apart.
DIMENSIONS: Final = ("tp", "cp", "ep")
#: Terms of memory that micro-batches in flight keep, and those of single moments.
KEPT_TERMS: Final = ("activations", "moe_dispatch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anatomy:
    """One micro-batch in each chunk of each stage, shape (V, S).

    Attributes
    ----------
    forward_VS, backward_VS, weights_VS
        Whole passes; backward includes recompute and the gradients of weights, the delayable part of it [s].
    recompute_VS
        Forward work done again in the backward pass, its communication included [s].
    exposed_VS : mapping of (dimension, "forward" or "backward") to array
        Communication that computation does not hide [s].
    passing_VS : mapping of "forward" or "backward" to array
        Exposed time of handing over to the next chunk, and gradients to the one before [s].
    kept_VS
        Activations of one micro-batch in flight [bytes].
    base_S, rebuilding_S, loss_S, peak_S : ndarray, shape (S,)
        Memory of a stage without activations; on top while it recomputes in a backward pass; while the loss is there;
        and the peak that is predicted [bytes].
    """

    forward_VS: FloatArray
    backward_VS: FloatArray
    weights_VS: FloatArray
    recompute_VS: FloatArray
    exposed_VS: Mapping[tuple[str, str], FloatArray]
    passing_VS: Mapping[str, FloatArray]
    kept_VS: FloatArray
    base_S: FloatArray
    rebuilding_S: FloatArray
    loss_S: FloatArray
    peak_S: FloatArray


def anatomy(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    strategy: Strategy,
    run: Execution | None = None,
) -> Anatomy:
    """What the passes of a strategy consist of."""
    table = Strategies.of([strategy])
    place_VS = model_order(table)[0]
    staged = staged_chunks(model, workload, cluster, calibration, table, run)
    recompute, exposed = _parts(staged)
    needed = memory(model, workload, table)
    terms = {name: term[0] for name, term in needed.terms.items()}
    kept = terms["activations"] + terms["moe_dispatch"]
    return Anatomy(
        forward_VS=staged.forward_CS[0][place_VS],
        backward_VS=staged.backward_CS[0][place_VS],
        weights_VS=staged.weight_gradient_CS[0][place_VS],
        recompute_VS=recompute[place_VS],
        exposed_VS={key: part[place_VS] for key, part in exposed.items()},
        passing_VS={
            "forward": staged.passing_forward_CS[0][place_VS],
            "backward": staged.passing_backward_CS[0][place_VS],
        },
        kept_VS=_kept(model, workload, table, kept)[0],
        base_S=needed.peak_bytes_CS[0] - kept - terms["recompute_working"] - terms["logits_loss"],
        rebuilding_S=terms["recompute_working"],
        loss_S=terms["logits_loss"],
        peak_S=needed.peak_bytes_CS[0],
    )


def _parts(staged: Stages) -> tuple[FloatArray, dict[tuple[str, str], FloatArray]]:
    """Recompute and exposed communication of each chunk in the order of the model, shape (P,) [s]."""
    recompute = np.zeros(staged.forward_CS.shape[1])
    exposed = {(name, way): recompute for name in DIMENSIONS for way in ("forward", "backward")}
    for kind, layer in staged.layers.items():
        count = staged.counts[kind]
        recompute = recompute + count.full[0] * layer.again_s[0] + count.selective[0] * layer.work.selective_s[0]
        for name in DIMENSIONS:
            for way, traffic in zip(("forward", "backward"), layer.traffic[name], strict=True):
                exposed[name, way] = exposed[name, way] + count.all[0] * traffic.exposed_s[0]
    first = np.zeros_like(recompute)
    first[0] = 1.0
    front = {"forward": staged.front.forward_s[0], "backward": staged.front.backward_s[0]}
    exposed |= {("tp", way): exposed["tp", way] + first * seconds for way, seconds in front.items()}
    return recompute, exposed


def _kept(model: Model, workload: Workload, table: Strategies, kept_S: FloatArray) -> FloatArray:
    """Activations of one micro-batch of each chunk, so that the micro-batches in flight keep what memory says.

    Chunks share a stage's bytes as they do when each is a stage of its own.
    """
    alone: Memory = memory(model, workload, unrolled(table))
    bytes_P = sum(alone.terms[name][0] for name in KEPT_TERMS) / np.maximum(alone.in_flight_CS[0], 1.0)
    weight = np.where(np.asarray(alone.moment_CS[0]) == MOMENTS.index("update"), 1.0, bytes_P)[model_order(table)]
    flights = in_flight_CVS(table)
    total = (weight * flights).sum(axis=1)
    scale = np.divide(kept_S, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(weight * scale[:, None])


def memory_curve(parts: Anatomy, line: Timeline, stage: int) -> tuple[FloatArray, FloatArray]:
    """Times [s] and memory of a stage from then on [bytes].

    The curve counts the activations of the micro-batches in flight; while a backward pass runs also what recompute
    rebuilds, and while the last chunk runs backward the logits.
    """
    when, held = line.held_by(stage)
    backward = np.flatnonzero((line.stage == stage) & (line.kind == 1))
    head = parts.loss_S[stage] > 0
    last = line.chunk[backward] == line.chunks - 1
    more = np.maximum(parts.rebuilding_S[stage], np.where(last & head, parts.loss_S[stage], 0.0))
    times = np.concatenate([[0.0], when, line.start_s[backward], line.end_s[backward]])
    kept = np.diff(held @ parts.kept_VS[:, stage], prepend=0.0)
    change = np.concatenate([[parts.base_S[stage]], kept, more, -more])
    order = np.lexsort([change, times])  # at equal times what is freed goes first
    return times[order], np.cumsum(change[order])
