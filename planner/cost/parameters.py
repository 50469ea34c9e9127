"""Parameters that one rank holds, by classes that are split and shared alike [count].

The one place that knows how a framework splits weights over ranks; memory turns the numbers into bytes, time into
traffic and updates.  Numbers are of whole weights: what optimizer parallelism shards further is no matter of this
module.  A layer of each kind, the first stage and the stage with the head have numbers of shape (C,), which `spread`
puts on stages.

=========  ============================================================================================
class      split
=========  ============================================================================================
split      over tp: projections, MLPs, shared experts
whole      not: routers, latent down projections, shared experts of MindFormers' mcore networks
norms      not: norms and their like
experts    routed experts, over ep, and each of them over etp
embedding  token table, and positions that are learned
head       output projection; also the copy of a tied table on another stage
=========  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from planner.cost.layers import head_stage
from planner.cost.strategies import BoolArray, FloatArray, IntArray, Strategies
from planner.frameworks import TensorLayout
from planner.model.operators import (
    Shards,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    qk_norm_parameters,
)
from planner.model.records import DENSE, LayerKind, Model

#: Classes of weights that are split and shared alike.
CLASSES: Final = ("split", "whole", "norms", "experts", "embedding", "head")

#: A number for each class, shape (C,).
Classes = Mapping[str, FloatArray]


#: Families of MindFormers' legacy ChatGLM2 network, which splits other tensors than the legacy Llama network.
GLM_FAMILIES: Final = ("glm", "glm4", "chatglm")


class Splitting(Protocol):
    """What decides how weights are split; `planner.cost.memory.rules.MemoryRules` explains the names."""

    @property
    def layout(self) -> TensorLayout: ...  # noqa: D102
    @property
    def sharded_weights(self) -> bool: ...  # noqa: D102
    @property
    def vocabulary_split(self) -> bool: ...  # noqa: D102


def is_glm(model: Model, rules: Splitting) -> bool:
    """Whether the network is MindFormers' legacy ChatGLM2."""
    return rules.layout == "legacy" and model.family in GLM_FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameters:
    """Parameters of one rank [count].

    Attributes
    ----------
    numbers_CS : mapping of kind to array
        Layers of each kind on each stage.
    head_stage : array, shape (C,)
        Stage with the head.
    layer : mapping of kind to classes
        One layer of each kind.
    first, last : classes
        What the first stage and the stage with the head hold beside their layers.
    """

    numbers_CS: Mapping[LayerKind, FloatArray]
    head_stage: IntArray
    layer: Mapping[LayerKind, Classes]
    first: Classes
    last: Classes

    def spread(self, size: Mapping[str, FloatArray | float]) -> FloatArray:
        """Total of each stage, shape (C, S), where a weight of each class counts ``size``, shape (C,)."""
        total: FloatArray | None = None
        for kind, numbers in self.numbers_CS.items():
            part = numbers * dot(self.layer[kind], size)[:, None]
            total = part if total is None else total + part
        assert total is not None
        total[:, 0] += dot(self.first, size)
        total[np.arange(len(total)), self.head_stage] += dot(self.last, size)
        return total

    def dense_CS(self) -> FloatArray:
        """Parameters of a rank of each stage outside routed experts, shape (C, S) [count]."""
        return self.spread({name: 1.0 for name in CLASSES if name != "experts"})

    def experts_CS(self) -> FloatArray:
        """Parameters of a rank of each stage in routed experts, shape (C, S) [count]."""
        return self.spread({"experts": 1.0})

    def at_first(self, values: FloatArray) -> FloatArray:
        """A value on the first stage only, shape (C, S)."""
        total = np.zeros_like(next(iter(self.numbers_CS.values())))
        total[:, 0] = values
        return total

    def at_head(self, values: FloatArray) -> FloatArray:
        """A value on the stage with the head only, shape (C, S)."""
        total = np.zeros_like(next(iter(self.numbers_CS.values())))
        total[np.arange(len(total)), self.head_stage] = values
        return total


def dot(counts: Classes, size: Mapping[str, FloatArray | float]) -> FloatArray:
    """Sum over classes of numbers times sizes, shape (C,)."""
    total = np.zeros_like(counts["norms"])
    for name in CLASSES:
        if name in counts and name in size:
            total = total + counts[name] * size[name]
    return total


def rank_parameters(
    model: Model, table: Strategies, numbers_CS: Mapping[LayerKind, FloatArray], rules: Splitting
) -> Parameters:
    """Parameters of one rank.

    Parameters
    ----------
    numbers_CS : mapping of kind to array
        Layers of each kind on each stage.
    """
    embedding = embedding_parameters(model)
    table_of = embedding.tp / _table_split(model, table, rules) + embedding.replicated
    return Parameters(
        numbers_CS=numbers_CS,
        head_stage=head_stage(table),
        layer={kind: layer_classes(model, table, kind, rules) for kind in model.kinds},
        first={"norms": np.zeros(len(table)), "embedding": table_of},
        last=_last(model, table, table_of, rules),
    )


def layer_classes(model: Model, table: Strategies, kind: LayerKind, rules: Splitting) -> Classes:
    """Parameters of one rank in one layer of a kind, shape (C,) [count]."""
    each, att = layer_parameters(model, kind), model.attention
    inner = att.q_lora_rank + att.kv_lora_rank if att.kind == "mla" else qk_norm_parameters(model)
    norms = model.norms_per_layer * model.hidden * (2 if model.norm_bias else 1) + inner
    shared = 0
    if kind != DENSE and model.moe is not None:
        shared = (3 if model.gated_mlp else 2) * model.hidden * model.moe.shared_ffn
    whole = np.where(whole_shared(table, rules.layout), float(shared), 0.0)
    return {
        "split": (float(each.tp) - whole) / table.tp,
        "whole": float(each.replicated - norms) + whole,
        "norms": np.full(len(table), float(norms)),
        "experts": float(each.expert) / (table.ep * table.etp),
    }


def whole_shared(table: Strategies, layout: TensorLayout) -> BoolArray:
    """Where every tensor-parallel rank holds all of the shared experts, shape (C,).

    MindFormers' mcore networks do that, legacy ones with sequence parallelism (``LlamaFeedForwardWithMoE.shard``).
    """
    if layout == "legacy":
        return table.sequence_parallel
    return np.full(len(table), layout == "mcore")


def _last(model: Model, table: Strategies, table_of: FloatArray, rules: Splitting) -> Classes:
    """Final norm, head and MTP modules, which look tokens up in a copy of the embedding table on another stage."""
    last = _predicted(model, table, rules)
    embedding, head = embedding_parameters(model), head_parameters(model)
    head_split = np.where(whole_vocabulary(table, rules), 1, table.tp)
    if model.tied_embeddings:
        head = Shards(tp=embedding.tp)
    apart = table.dp * table.cp if is_glm(model, rules) else 1
    last["norms"] = last["norms"] + final_norm_parameters(model).replicated
    apart_from_table = np.where(table.pp > 1, 1.0, 0.0) if model.tied_embeddings else 1.0
    last["head"] = head.tp / head_split / apart * apart_from_table
    last["embedding"] = np.where((head_stage(table) > 0) & (model.mtp_layers > 0), table_of, 0.0)
    return last


def _table_split(model: Model, table: Strategies, rules: Splitting) -> IntArray:
    """Ranks over which the embedding table is split, shape (C,).

    Legacy networks of MindFormers split it over context-parallel ranks as well (``LlamaEmbedding.shard``), and not at
    all where the vocabulary cannot be divided so.  GLM networks do not split it; memory shares it over all ranks.
    """
    if rules.layout != "legacy":
        return table.tp
    if is_glm(model, rules):
        return np.ones_like(table.tp)
    over = table.tp * table.cp
    return np.where((model.vocab % over == 0) & ~whole_vocabulary(table, rules), over, 1)


def whole_vocabulary(table: Strategies, rules: Splitting) -> BoolArray:
    """Where every tensor-parallel rank holds the whole embedding table and output projection, shape (C,)."""
    return np.asarray((table.pp == 1) & (not rules.vocabulary_split))


def _predicted(model: Model, table: Strategies, rules: Splitting) -> dict[str, FloatArray]:
    """Parameters of one rank in all MTP modules.  MindFormers does not split their 2h x h projection over tp."""
    if not model.mtp_layers:
        return {"norms": np.zeros(len(table))}
    module = dict(layer_classes(model, table, model.layer_kinds[-1], rules))
    module["norms"] = module["norms"] + 3.0 * model.hidden * (2 if model.norm_bias else 1)
    joined = 2.0 * model.hidden * model.hidden
    name = "whole" if rules.sharded_weights else "split"
    module[name] = module[name] + (joined if rules.sharded_weights else joined / table.tp)
    return {name: model.mtp_layers * number for name, number in module.items()}
