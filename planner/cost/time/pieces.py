"""Into how many calls frameworks cut the gradients and parameters of a stage.

Every call costs its latency, which grows with the ranks of a ring, so what travels in small pieces does not scale.

* Compiled graphs of MindSpore reduce and gather tensor by tensor (docs/dryrun.md), and so does code that gives whole
  tensors to ranks (InternEvo ``hybrid_zero_optim.py``: a broadcast from every owner).
* Megatron fills buckets of 40 million parameters, or of a million for every data-parallel rank where that is more
  (``core/distributed/distributed_data_parallel.py``).
* Sharded parameters (level 3) travel layer by layer (PyTorch FSDP's wrapping).

All arrays are (C,).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.strategies import FloatArray
from planner.cost.time.setting import Setting
from planner.model.operators import gemms
from planner.model.records import MOE

#: Parameters of one of Megatron's buckets, at least, and for each data-parallel rank.
BUCKET: Final = 40e6
BUCKET_PER_RANK: Final = 1e6


def tensorwise(setting: Setting) -> bool:
    """Whether every tensor travels alone."""
    return setting.run.tensorwise or setting.workload.runs_on.graph


def dense_pieces(setting: Setting, parameters: FloatArray) -> FloatArray:
    """Calls for so many parameters outside experts."""
    layers = _layers(setting)
    if tensorwise(setting):
        return np.maximum(layers * _tensors(setting, expert=False), 1.0)
    return _grouped(setting, parameters, layers)


def expert_pieces(setting: Setting, parameters: FloatArray) -> FloatArray:
    """Calls for so many parameters of experts."""
    layers = _layers(setting)
    if tensorwise(setting):
        return np.maximum(layers * _tensors(setting, expert=True), 1.0)
    return _grouped(setting, parameters, layers)


def _grouped(setting: Setting, parameters: FloatArray, layers: FloatArray) -> FloatArray:
    table = setting.table
    bucket = np.maximum(BUCKET, BUCKET_PER_RANK * table.dp * table.cp)
    buckets = np.maximum(np.ceil(parameters / bucket), 1.0)
    return np.where(table.zero_level == 3, np.maximum(layers, 1.0), buckets)


def _layers(setting: Setting) -> FloatArray:
    """Layers of the fullest stage."""
    layers: FloatArray = setting.table.layers_CVS.sum(axis=1).max(axis=1).astype(np.float64)
    return layers


def _tensors(setting: Setting, *, expert: bool) -> float:
    """Tensors of a layer, in or outside of experts; a layer with experts where a model has any.

    Gate and up projection of a dense MLP are two; norms travel, too.
    """
    model = setting.model
    kind = MOE if MOE in model.kinds else model.kinds[0]
    weights = sum(gemm.shard.startswith("expert") is expert for gemm in gemms(model, kind))
    beside = 0 if expert else model.norms_per_layer + (model.gated_mlp and kind != MOE)
    return float(weights + beside)
