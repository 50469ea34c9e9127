"""Every rule a strategy must keep, in the order in which they are asked.

A rule is a record: a code, what it demands, a predicate over whole tables and a message for one strategy.  The search
applies predicates to thousands of rows and counts what each rule removed; commands print messages.  Which rules hold
depends on the framework that will run the job: MindSpore through MindFormers (graph mode: ``mindformers``,
``mindformers-legacy``; PyNative: ``mindformers-pynative``), MindSpeed-LLM (``mindspeed``) or Megatron (``megatron``).

Sources are the frameworks' own checks: MindFormers ``parallel_core/transformer_config.py``, ``LayerSetting``,
``core/parallel_config.py`` and ``pynative/distributed/parallel_dims.py``; MindSpore ``parallel.nn.Pipeline``;
Megatron-LM ``training/arguments.py``; HCCL's constraints page for groups on the 910A.
"""

from __future__ import annotations

from typing import Final

from planner.legality import batch, device, experts, layers, pipeline, sequence, sharding, tensor
from planner.legality.context import Rule

#: In the order in which they are asked: a candidate is counted for the first that it breaks.
RULES: Final[tuple[Rule, ...]] = (
    device.COMPUTE_TYPE,
    layers.MTP,
    batch.DEVICES,
    device.TP_NODE,
    tensor.HEADS,
    tensor.KV_HEADS,
    tensor.HIDDEN,
    tensor.FFN,
    tensor.SHARED_FFN,
    tensor.VOCAB,
    sequence.SP_NEEDS_TP,
    sequence.TP_NEEDS_SP,
    sequence.SP_SEQUENCE,
    sequence.CP_NEEDS_FLASH,
    sequence.ULYSSES_DEGREE,
    sequence.HEAD_EXCHANGE,
    sequence.CP_SEQUENCE,
    batch.GLOBAL_BATCH,
    pipeline.SCHEDULE,
    pipeline.VPP_SCHEDULE,
    pipeline.CHUNKS,
    pipeline.FILL_PIPELINE,
    pipeline.INTERLEAVE_BATCHES,
    pipeline.V_SHAPE,
    experts.EP_NEEDS_MOE,
    experts.EXPERTS,
    experts.EXPERT_TP,
    experts.EP_RANKS,
    experts.FUSED_EXPERTS,
    sharding.ZERO_LEVEL,
    sharding.OPTIMIZER_SHARD,
    sharding.MUON_EXPERTS,
    sharding.SWAP,
    device.QUADS,
    layers.LAYER_SUM,
    layers.EMPTY_STAGE,
    layers.RECOMPUTE,
    pipeline.NO_RECOMPUTE,
)

SCALAR_RULES: Final = tuple(rule for rule in RULES if not rule.reads_layers)
LAYER_RULES: Final = tuple(rule for rule in RULES if rule.reads_layers)
