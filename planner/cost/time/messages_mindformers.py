"""What MindSpore's compiler sends for MindFormers' networks in graph mode.

Read in compiled graphs (mindspore 2.9.0, mindformers 1.9.0; docs/dryrun.md compares number and bytes stage by stage).
The functions are those of `planner.cost.time.messages_megatron`, whose regions and shards hold here too; what differs:

* gathered inputs are kept for the backward pass instead of being gathered again;
* recompute of a dense layer ends before its last reduction;
* the embedding is looked up in the type it is stored in, by legacy networks for whole sequences;
* the input of the head is gathered once, in float32 by legacy networks;
* a routing map travels beside the tokens of experts;
* parameters below 64 KiB are not sharded, and the embedding travels as it is stored (legacy: is not sharded).
"""

from __future__ import annotations

import numpy as np

from planner.cost.strategies import FloatArray
from planner.cost.time import messages_megatron as megatron
from planner.cost.time.message import Groups, Held, Message, activation_bytes
from planner.cost.time.setting import Setting
from planner.model.records import DTYPE_BYTES, MOE, LayerKind

_FLOAT32 = 4.0


def tp_messages(setting: Setting, kind: LayerKind) -> tuple[Message, ...]:
    """Tensor-parallel collectives of one layer."""
    items: tuple[Message, ...] = ()
    last = 0.0 if kind == MOE else 1.0
    for width, inputs, outputs in megatron.regions(setting, kind):
        kept = np.maximum(outputs - last, 0.0)
        items += megatron.exchanges(setting, width, inputs=inputs, outputs=outputs, gathered_again=0.0, repeated=kept)
    return items


def embedding_messages(setting: Setting) -> tuple[Message, ...]:
    """Partial sums of one look-up in the stored type, and their gradient.

    mcore networks with sequence parallelism scatter them; all others add them up, legacy networks for whole sequences.
    """
    legacy = _legacy(setting)
    tokens = setting.share.tokens * (setting.share.cp if legacy else 1.0)
    size = float(DTYPE_BYTES[setting.workload.params_dtype]) * tokens * setting.model.hidden
    scattered = np.where((setting.share.sp > 1) & (not legacy), 1.0, 0.0)
    none, whole = setting.zero, 1.0 - scattered
    return (
        Message(group="vocabulary", op="reducescatter", size_bytes=size, forward=scattered, backward=none),
        Message(group="vocabulary", op="allgather", size_bytes=size, forward=none, backward=scattered),
        Message(group="vocabulary", op="allreduce", size_bytes=size, forward=whole, backward=whole),
    )


def head_messages(setting: Setting) -> tuple[Message, ...]:
    """Input of one output projection and its gradient, and the loss.

    Without sequence parallelism the gradient is summed behind the last layer, where the layer's own would be.
    """
    width = _FLOAT32 if _legacy(setting) else activation_bytes(setting)
    size = width * setting.share.tokens * setting.model.hidden
    once, none = np.where(setting.share.sp > 1, 1.0, 0.0), setting.zero
    return (
        Message(group="tp", op="allgather", size_bytes=size, forward=once, backward=none),
        Message(group="tp", op="reducescatter", size_bytes=size, forward=none, backward=once),
        megatron.loss_message(setting),
    )


def routing_messages(setting: Setting, kind: LayerKind) -> tuple[Message, ...]:
    """Which expert each copy of a token goes to, four bytes each, beside the tokens of the forward pass."""
    moe, share = setting.model.moe, setting.share
    if kind != MOE or moe is None:
        return ()
    size = _FLOAT32 * share.tokens / share.tp * moe.topk
    return (Message(group="ep", op="alltoall", size_bytes=size, forward=np.ones_like(size), backward=setting.zero),)


def borrowed_messages(setting: Setting, groups: Groups) -> tuple[Message, ...]:
    """The embedding on its way to the last stage, tied or for multi-token prediction, and its gradient back."""
    if not megatron.borrows(setting.model):
        return ()
    stored = float(DTYPE_BYTES[setting.workload.params_dtype])
    size = stored * setting.model.vocab * setting.model.hidden / setting.share.tp / groups.shard.size
    return (Message(group="ends", op="sendrecv", size_bytes=size, forward=np.ones_like(size), backward=setting.zero),)


def gradient_messages(setting: Setting, groups: Groups, held: Held) -> tuple[Message, ...]:
    """Reducing the gradients of a stage; what is not sharded is reduced whole, once at every level."""
    width = float(DTYPE_BYTES[setting.workload.grads_dtype])
    small = Message(
        group="replicas",
        op="allreduce",
        size_bytes=width * held.small,
        forward=setting.zero,
        backward=np.ones_like(setting.zero),
    )
    return (
        *megatron.reductions(setting, groups, width, held.dense - held.small),
        small,
        *megatron.expert_reductions(setting, width, held.expert),
    )


def parameter_messages(setting: Setting, held: Held) -> tuple[Message, ...]:
    """Gathering the sharded parameters of a stage: weights in the compute type, the embedding as it is stored."""
    width = float(DTYPE_BYTES[setting.workload.compute_dtype])
    stored = 0.0 if _legacy(setting) else float(DTYPE_BYTES[setting.workload.params_dtype])
    dense: FloatArray = width * (held.dense - held.small - held.table) + stored * held.table
    return megatron.gathers(setting, held, dense, width * held.expert)


def _legacy(setting: Setting) -> bool:
    return setting.workload.runs_on.tensors == "legacy"
