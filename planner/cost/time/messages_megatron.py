"""What Megatron sends, and with it MindSpeed and other code that names its collectives by hand.

Sources: Megatron-LM ``core/tensor_parallel/{layers,mappings,cross_entropy}.py``, ``core/distributed`` and
``core/distributed/finalize_model_grads.py``; arXiv 2205.05198, section 4.2.  The functions are those of
`planner.cost.time.messages_mindformers`; all arrays are (C,).
"""

from __future__ import annotations

import numpy as np

from planner.cost.parameters import whole_shared
from planner.cost.strategies import FloatArray
from planner.cost.time.message import GroupName, Groups, Held, Message, activation_bytes
from planner.cost.time.pieces import dense_pieces, expert_pieces
from planner.cost.time.setting import Number, Setting
from planner.model.records import DTYPE_BYTES, MOE, LayerKind, Model

#: Bytes a token of each reduction in the loss over a split vocabulary: float32.
_SCALAR = 4.0


def tp_messages(setting: Setting, kind: LayerKind) -> tuple[Message, ...]:
    """Tensor-parallel collectives of one layer.

    With sequence parallelism each of attention and MLP gathers its input and scatters its output; backward gathers the
    gradient of the output, scatters that of the input and gathers the saved input once more.  With tokens x h
    everywhere that is 2 + 2 forward and 4 + 2 backward.  Without it each all-reduces its output forward and the
    gradient of its input backward.  What latent attention (MLA) gathers is narrower, see `latent_widths`.  Routed
    experts exchange tokens instead, which `planner.cost.time.messages.ep_messages` counts; shared experts still gather
    and scatter.  A recomputed layer repeats all of its forward pass.
    """
    items: tuple[Message, ...] = ()
    for width, inputs, outputs in regions(setting, kind):
        items += exchanges(setting, width, inputs=inputs, outputs=outputs, gathered_again=inputs, repeated=outputs)
    return items


def regions(setting: Setting, kind: LayerKind) -> tuple[tuple[float, Number, Number], ...]:
    """Width, number of inputs and number of outputs of a layer's tensor-parallel regions."""
    model = setting.model
    mlp = split_mlp(setting, kind)
    if model.attention.kind != "mla":
        return ((model.hidden, 1.0 + mlp, 1.0 + mlp),)
    return ((model.hidden, mlp, 1.0 + mlp), *((width, 1.0, 0.0) for width in latent_widths(model)))


def split_mlp(setting: Setting, kind: LayerKind) -> Number:
    """1 where a layer's MLP, or the shared experts of one with routed experts, is split over tp, else 0."""
    if kind != MOE or setting.model.moe is None:
        return 1.0
    whole = whole_shared(setting.table, setting.workload.runs_on.tensors)
    return np.where(whole, 0.0, 1.0) if setting.model.moe.shared_ffn else 0.0


def latent_widths(model: Model) -> tuple[int, ...]:
    """Widths of what latent attention gathers, as its down projections work on a rank's own tokens [elements].

    The latents of queries (hidden states without them) and of keys and values, and the rotary part of the key.
    """
    att = model.attention
    return (att.q_lora_rank or model.hidden), att.kv_lora_rank, att.qk_rope_dim


def exchanges(
    setting: Setting, width: float, *, inputs: Number, outputs: Number, gathered_again: Number, repeated: Number
) -> tuple[Message, ...]:
    """Collectives of tensor-parallel regions with so many inputs and outputs of tokens x width.

    Parameters
    ----------
    gathered_again : float or ndarray
        Inputs that are gathered once more for the backward pass.
    repeated : float or ndarray
        Outputs that full recompute reduces again.
    """
    size = activation_bytes(setting) * setting.share.tokens * width
    sequence = setting.share.sp > 1
    into, out, more, back = (np.where(sequence, n, 0.0) for n in (inputs, outputs, gathered_again, repeated))
    whole_into, whole_out, whole_back = (np.where(sequence, 0.0, n) for n in (inputs, outputs, repeated))
    return (
        Message(group="tp", op="allgather", size_bytes=size, forward=into, backward=out + more),
        Message(group="tp", op="reducescatter", size_bytes=size, forward=out, backward=into, again=back),
        Message(group="tp", op="allreduce", size_bytes=size, forward=whole_out, backward=whole_into, again=whole_back),
    )


def embedding_messages(setting: Setting) -> tuple[Message, ...]:
    """Adding up the parts of one look-up in a table split over the vocabulary, and spreading the gradient."""
    size = activation_bytes(setting) * setting.share.tokens * setting.model.hidden
    sequence = np.where(setting.share.sp > 1, 1.0, 0.0)
    none = setting.zero
    return (
        Message(group="vocabulary", op="reducescatter", size_bytes=size, forward=sequence, backward=none),
        Message(group="vocabulary", op="allgather", size_bytes=size, forward=none, backward=sequence),
        Message(group="vocabulary", op="allreduce", size_bytes=size, forward=1.0 - sequence, backward=none),
    )


def head_messages(setting: Setting) -> tuple[Message, ...]:
    """Input of one output projection and its gradient, as a layer's region without output, and the loss."""
    width = setting.model.hidden
    items = exchanges(setting, width, inputs=1.0, outputs=0.0, gathered_again=1.0, repeated=0.0)
    return *items, loss_message(setting)


def loss_message(setting: Setting) -> Message:
    """Largest logit, logit of the label and sum of exponentials of each token, over the parts of the vocabulary."""
    thrice = np.full_like(setting.zero, 3.0)
    size = _SCALAR * setting.share.tokens
    return Message(group="tp", op="allreduce", size_bytes=size, forward=thrice, backward=setting.zero)


def routing_messages(setting: Setting, kind: LayerKind) -> tuple[Message, ...]:
    """Nothing beside the tokens: the counts of tokens an expert gets are a few bytes."""
    del setting, kind
    return ()


def borrowed_messages(setting: Setting, groups: Groups) -> tuple[Message, ...]:
    """Adding up the gradients of an embedding that first and last stage hold, once a step."""
    del groups
    if not borrows(setting.model):
        return ()
    width = float(DTYPE_BYTES[setting.workload.grads_dtype])
    size = width * setting.model.vocab * setting.model.hidden / setting.share.tp
    once = np.ones_like(size)
    return (Message(group="ends", op="allreduce", size_bytes=size, forward=setting.zero, backward=once),)


def borrows(model: Model) -> bool:
    """Whether the last stage of a pipeline works with the embedding of the first."""
    return model.tied_embeddings or model.mtp_layers > 0


def gradient_messages(setting: Setting, groups: Groups, held: Held) -> tuple[Message, ...]:
    """Reducing the gradients of a stage, those of one step.

    Sharded over a group of s with r copies of that group: reduce-scatter over s, all-reduce of the shard over r; s = 1
    is the plain all-reduce.  Experts do the same among the ranks that hold them.  From zero level 2 on gradients, whose
    sum is kept sharded, are reduced in every micro-batch, else once.
    """
    width = float(DTYPE_BYTES[setting.workload.grads_dtype])
    return (
        *reductions(setting, groups, width, held.dense),
        *expert_reductions(setting, width, held.expert),
    )


def reductions(setting: Setting, groups: Groups, width: float, parameters: FloatArray) -> tuple[Message, ...]:
    """Reducing the sharded gradients of so many parameters outside experts, of ``width`` bytes each."""
    size, times, pieces = width * parameters, reduction_times(setting), dense_pieces(setting, parameters)
    return (
        _backward("shard", "reducescatter", size, times, pieces),
        _backward("replica", "allreduce", size / groups.shard.size, times, pieces),
    )


def expert_reductions(setting: Setting, width: float, parameters: FloatArray) -> tuple[Message, ...]:
    """Reducing gradients of experts: scattered, and gathered again where nothing is sharded."""
    size, times, pieces = width * parameters, reduction_times(setting), expert_pieces(setting, parameters)
    plain = np.where(setting.table.zero_level > 0, 0.0, times)
    return (
        _backward("expert_shard", "reducescatter", size, times, pieces),
        _backward("expert_shard", "allgather", size, plain, pieces),
    )


def reduction_times(setting: Setting) -> FloatArray:
    """How often gradients are reduced in a step."""
    table = setting.table
    return np.where(table.zero_level >= 2, table.micro_batches, 1).astype(np.float64)


def _backward(group: GroupName, op: str, size: FloatArray, times: FloatArray, pieces: FloatArray) -> Message:
    none = np.zeros_like(times)
    return Message(group=group, op=op, size_bytes=size, forward=none, backward=times, pieces=pieces)


def parameter_messages(setting: Setting, held: Held) -> tuple[Message, ...]:
    """Gathering the sharded parameters of a stage in the compute type, in one step; see `gathers`."""
    width = float(DTYPE_BYTES[setting.workload.compute_dtype])
    return gathers(setting, held, width * held.dense, width * held.expert)


def gathers(setting: Setting, held: Held, dense: FloatArray, expert: FloatArray) -> tuple[Message, ...]:
    """Gathering sharded parameters of so many bytes.

    Once a step; at zero level 3 for the forward and the backward pass of every micro-batch.
    """
    table = setting.table
    every = table.zero_level == 3
    sharded: Number = np.where(table.zero_level > 0, 1.0, 0.0)
    forward = sharded * np.where(every, table.micro_batches, 1)
    backward = sharded * np.where(every, table.micro_batches, 0)

    def gather(group: GroupName, size: FloatArray, pieces: FloatArray) -> Message:
        return Message(group=group, op="allgather", size_bytes=size, forward=forward, backward=backward, pieces=pieces)

    return (
        gather("shard", dense, dense_pieces(setting, held.dense)),
        gather("expert_shard", expert, expert_pieces(setting, held.expert)),
    )
