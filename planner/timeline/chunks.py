"""What a job's passes take: the cost functions asked chunk by chunk.

The chunks in model order are priced as the stages of a pipeline of pp x vpp stages without interleaving, so a chunk
costs what the same layers cost as a stage; the chunks of a stage add up to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cluster.records import Calibration, Cluster
from planner.cost.layers import dealt
from planner.cost.strategies import SCHEDULES, FloatArray, IntArray, Strategies
from planner.cost.time.message import place_groups
from planner.cost.time.setting import Execution, default_execution, setting
from planner.cost.time.stages import Stages, stages
from planner.model.records import Model, Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """Seconds of one micro-batch in each chunk of each stage, shape (C, V, S); 0 where there is none.

    ``backward_CVS`` holds recompute and the gradients of weights; ``weights_CVS`` is the part a schedule may delay.
    """

    forward_CVS: FloatArray
    backward_CVS: FloatArray
    weights_CVS: FloatArray


def chunk_seconds(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    run: Execution | None = None,
) -> Chunks:
    """Seconds of every chunk of every candidate."""
    place_CVS = model_order(table)
    staged = staged_chunks(model, workload, cluster, calibration, table, run)

    def by_chunk(values_CP: FloatArray) -> FloatArray:
        flat = np.take_along_axis(values_CP, np.maximum(place_CVS, 0).reshape(len(table), -1), axis=1)
        return np.asarray(np.where(place_CVS >= 0, flat.reshape(place_CVS.shape), 0.0))

    return Chunks(
        forward_CVS=by_chunk(staged.forward_CS),
        backward_CVS=by_chunk(staged.backward_CS),
        weights_CVS=by_chunk(staged.weight_gradient_CS),
    )


def staged_chunks(
    model: Model,
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    table: Strategies,
    run: Execution | None = None,
) -> Stages:
    """One micro-batch in every chunk, `unrolled` in the order of the model, and what it consists of."""
    constants = {key: constant.value for key, constant in calibration.constants.items()}
    used, line = run or default_execution(workload), unrolled(table)
    asked = setting(model, workload, cluster, constants, line, used, calibration.measured)
    turn = np.where(table.schedule == SCHEDULES.index("zero_bubble_v"), table.pp, 0)
    return stages(asked, place_groups(asked), turn)


def model_order(table: Strategies) -> IntArray:
    """Place of each chunk of each stage in the order of the model, shape (C, V, S); -1 where there is none."""
    chunk, stage = np.arange(table.layers_CVS.shape[1])[None, :, None], np.arange(table.stages)[None, None, :]
    pp, vpp = table.pp[:, None, None], table.vpp[:, None, None]
    bent = (table.schedule == SCHEDULES.index("zero_bubble_v"))[:, None, None] & (chunk % 2 == 1)
    place = chunk * pp + np.where(bent, pp - 1 - stage, stage)
    return np.where((chunk < vpp) & (stage < pp), place, -1)


def unrolled(table: Strategies) -> Strategies:
    """Every chunk as a stage of its own."""
    place_CVS = model_order(table)
    depth = table.layers_CVS.shape[1]
    room = np.moveaxis(table.layers_CVS, 1, 0).reshape(depth, -1)
    full, some = table.recompute_full_CS, table.recompute_full_CS + table.recompute_selective_CS
    whole, touched = (
        np.moveaxis(dealt(room, number.ravel()).reshape(depth, len(table), -1), 0, 1) for number in (full, some)
    )
    count = table.pp * table.vpp
    row, chunk, stage = np.nonzero(place_CVS >= 0)
    place = place_CVS[row, chunk, stage]

    def in_order(values_CVS: IntArray) -> IntArray:
        line = np.zeros((len(table), int(count.max(initial=1))), np.int64)
        line[row, place] = values_CVS[row, chunk, stage]
        return line

    return table.replace(
        pp=count,
        vpp=np.ones_like(count),
        schedule=np.full_like(count, SCHEDULES.index("1f1b")),
        layers_CVS=in_order(table.layers_CVS)[:, None],
        recompute_full_CS=in_order(whole),
        recompute_selective_CS=in_order(touched - whole),
    )
