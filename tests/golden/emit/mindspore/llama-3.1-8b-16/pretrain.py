#!/usr/bin/env python
"""Llama-3.1-8B on 16 x 910B2.

Self-contained pre-training of a Llama-like decoder in plain MindSpore (2.9.0, 2.10.0), parallel as planned:
dp 2 x tp 4 x pp 2, 8 micro-batches of 1.

  Ascend      bash launch.sh NODE_RANK MASTER_ADDR         (msrun, one process for each device)
  DryRun      bash dryrun.sh STAGE                         (no devices: compiles and plans memory of one rank)
  CPU         python pretrain.py --device CPU --steps 20   (one process, or two with msrun; tiny sizes only)

Data: --data FILE, a flat file of int32 tokens; without it, a made-up sequence that can be learned.
"""
# Written by planner 0.1.0.

import argparse
import math
import os
import time
from pathlib import Path

if os.environ.get("PLANNER_CORES"):  # set by planner validate: a core each, before MindSpore starts its threads
    cores = os.environ["PLANNER_CORES"].split(",")
    os.sched_setaffinity(0, {int(cores[int(os.environ.get("MS_NODE_ID", "0")) % len(cores)])})

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, lazy_inline, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.ops.auto_generate import SiLU

PLAN = {
    "vocab": 128256,
    "hidden": 4096,
    "ffn": 14336,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "qkv_bias": False,
    "qk_norm": False,
    "norm_epsilon": 1e-05,
    "rotary_base": 500000.0,
    "seq": 4096,
    "batch": 16,
    "params": "float32",
    "compute": "bfloat16",
    "flash": True,
    "devices": 16,
    "dp": 2,
    "tp": 4,
    "pp": 2,
    "rows": 8,
    "micro_batches": 8,
    "interleave": False,
    "scheduler": "1f1b",
    "zero_level": 1,
    "shard_size": -1,
    "stage_of_layer": [0] * 16 + [1] * 16,
    "recompute_of_layer": ["full"] * 4 + [""] * 28,
    "memory": "58GB",
    "learning_rate": 0.0001,
    "steps": 10000,
    "data": "",
}


# --- the network ----------------------------------------------------------------------------------------------------


class Linear(nn.Cell):
    """x @ W.T; "column" splits the outputs over tensor-parallel ranks, "row" the inputs (and adds partial results up)."""

    def __init__(self, inputs, outputs, plan, split, bias=False):
        super().__init__()
        dp, tp, rows = plan["dp"], plan["tp"], plan["rows"]
        self.weight = Parameter(initializer(Normal(0.02), (outputs, inputs), plan["params"]), name="weight")
        self.bias = Parameter(initializer("zeros", (outputs,), plan["params"]), name="bias") if bias else None
        self.matmul, self.add, self.cast = ops.MatMul(transpose_b=True), ops.Add(), ops.Cast()
        self.compute, self.leave = plan["compute"], by_hand(Leave, plan) if split == "row" else None
        if plan["parallel"] and split == "column":
            self.matmul.shard(((dp, 1), (tp, 1)))
            self.add.shard(((dp, tp), (tp,)))
        elif plan["parallel"]:
            self.matmul.shard(((dp, tp), (1, tp)), out_strategy=((rows, 1),))
            self.add.shard(((rows, 1), (1,)))

    def construct(self, x):
        y = self.matmul(x, self.cast(self.weight, self.compute))
        if self.leave is not None:
            y = self.leave(y)
        return y if self.bias is None else self.add(y, self.cast(self.bias, self.compute))


class Norm(nn.Cell):
    """Root-mean-square norm over the last axis, in float32."""

    def __init__(self, size, plan, strategy):
        super().__init__()
        self.weight = Parameter(initializer("ones", (size,), plan["params"]), name="weight")
        self.square, self.mean, self.rsqrt = ops.Square(), ops.ReduceMean(keep_dims=True), ops.Rsqrt()
        self.add, self.scale, self.weigh, self.cast = ops.Add(), ops.Mul(), ops.Mul(), ops.Cast()
        self.epsilon, self.compute = plan["norm_epsilon"], plan["compute"]
        self.enter = by_hand(Enter, plan) if len(strategy) == 4 else None  # sees the heads of its rank only
        if plan["parallel"]:
            self.square.shard((strategy,))
            self.mean.shard((strategy,))
            self.add.shard((strategy, ()))
            self.rsqrt.shard((strategy,))
            self.scale.shard((strategy, strategy[:-1] + (1,)))
            self.weigh.shard((strategy, (1,)))

    def construct(self, x):
        wide = self.cast(x, ms.float32)
        wide = self.scale(wide, self.rsqrt(self.add(self.mean(self.square(wide), -1), self.epsilon)))
        weight = self.cast(self.weight, ms.float32)
        return self.cast(self.weigh(wide, weight if self.enter is None else self.enter(weight)), self.compute)


class Rotary(nn.Cell):
    """Rotary positions on (batch, heads, sequence, width)."""

    def __init__(self, plan):
        super().__init__()
        width, seq = plan["head_dim"], plan["seq"]
        angles = np.outer(np.arange(seq), plan["rotary_base"] ** (-np.arange(0, width, 2) / width))
        angles = np.concatenate([angles, angles], axis=1)
        self.cos, self.sin = Tensor(np.cos(angles), plan["compute"]), Tensor(np.sin(angles), plan["compute"])
        self.halves, self.negative, self.join = ops.Split(3, 2), ops.Neg(), ops.Concat(3)
        self.by_cos, self.by_sin, self.add = ops.Mul(), ops.Mul(), ops.Add()
        if plan["parallel"]:
            whole = (plan["dp"], plan["tp"], 1, 1)
            self.halves.shard((whole,))
            self.negative.shard((whole,))
            self.join.shard((whole, whole))
            self.by_cos.shard((whole, (1, 1)))
            self.by_sin.shard((whole, (1, 1)))
            self.add.shard((whole, whole))

    def construct(self, x):
        left, right = self.halves(x)
        turned = self.join((self.negative(right), left))
        return self.add(self.by_cos(x, self.cos), self.by_sin(turned, self.sin))


class Attention(nn.Cell):
    """Grouped-query attention, causal."""

    def __init__(self, plan):
        super().__init__()
        hidden, width = plan["hidden"], plan["head_dim"]
        self.heads, self.kv_heads, self.width, self.seq = plan["heads"], plan["kv_heads"], width, plan["seq"]
        self.q = Linear(hidden, self.heads * width, plan, "column", plan["qkv_bias"])
        self.k = Linear(hidden, self.kv_heads * width, plan, "column", plan["qkv_bias"])
        self.v = Linear(hidden, self.kv_heads * width, plan, "column", plan["qkv_bias"])
        self.out = Linear(self.heads * width, hidden, plan, "row")
        whole = (plan["dp"], plan["tp"], 1, 1)
        self.q_norm = Norm(width, plan, whole) if plan["qk_norm"] else None
        self.k_norm = Norm(width, plan, whole) if plan["qk_norm"] else None
        self.rotary = Rotary(plan)
        self.reshape, self.to_heads, self.from_heads = ops.Reshape(), ops.Transpose(), ops.Transpose()
        self.core = FlashAttention(plan) if plan["flash"] else PlainAttention(plan)
        if plan["parallel"]:
            self.to_heads.shard(((plan["dp"], 1, plan["tp"], 1),))
            self.from_heads.shard((whole,))

    def split(self, x, heads):
        return self.to_heads(self.reshape(x, (-1, self.seq, heads, self.width)), (0, 2, 1, 3))

    def construct(self, x):
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(x), self.kv_heads), self.split(self.v(x), self.kv_heads)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        y = self.core(self.rotary(q), self.rotary(k), v)
        return self.out(self.reshape(self.from_heads(y, (0, 2, 1, 3)), (-1, self.heads * self.width)))


class FlashAttention(nn.Cell):
    """The fused kernel of Ascend with a compressed causal mask."""

    def __init__(self, plan):
        super().__init__()
        from mindspore.ops.operations.nn_ops import FlashAttentionScore

        scale = plan["head_dim"] ** -0.5
        self.kernel = FlashAttentionScore(head_num=plan["heads"], scale_value=scale, input_layout="BNSD", sparse_mode=2)
        self.mask = Tensor(np.triu(np.ones((2048, 2048), np.uint8), k=1))
        if plan["parallel"]:
            whole = (plan["dp"], plan["tp"], 1, 1)
            self.kernel.shard((whole, whole, whole, (1, 1)))

    def construct(self, q, k, v):
        return self.kernel(q, k, v, None, None, None, self.mask, None)[3]


class PlainAttention(nn.Cell):
    """Scores, softmax, values, for devices without the fused kernel."""

    def __init__(self, plan):
        super().__init__()
        self.scale, self.repeat = plan["head_dim"] ** -0.5, plan["heads"] // plan["kv_heads"]
        self.blocked = Tensor(np.triu(np.full((plan["seq"], plan["seq"]), -1e9, np.float32), k=1))

    def construct(self, q, k, v):
        if self.repeat > 1:
            k, v = ops.repeat_interleave(k, self.repeat, 1), ops.repeat_interleave(v, self.repeat, 1)
        scores = ops.cast(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), ms.float32) * self.scale
        return ops.matmul(ops.cast(ops.softmax(scores + self.blocked, -1), v.dtype), v)


class Mlp(nn.Cell):
    """Gated MLP: down(silu(gate(x)) * up(x))."""

    def __init__(self, plan):
        super().__init__()
        self.gate = Linear(plan["hidden"], plan["ffn"], plan, "column")
        self.up = Linear(plan["hidden"], plan["ffn"], plan, "column")
        self.down = Linear(plan["ffn"], plan["hidden"], plan, "row")
        self.activation = Gate(plan)

    def construct(self, x):
        return self.down(self.activation(self.gate(x), self.up(x)))


class Gate(nn.Cell):
    """silu(gate) * up; a cell of its own, so that it can be recomputed alone."""

    def __init__(self, plan):
        super().__init__()
        self.silu, self.mul = SiLU(), ops.Mul()
        if plan["parallel"]:
            both = (plan["dp"], plan["tp"])
            self.silu.shard((both,))
            self.mul.shard((both, both))

    def construct(self, gate, up):
        return self.mul(self.silu(gate), up)


class Layer(nn.Cell):
    """One decoder layer on (tokens, hidden); norms and residuals are split over all ranks with sequence parallelism."""

    def __init__(self, plan):
        super().__init__()
        rows = (plan["rows"], 1)
        self.attention_norm, self.attention = Norm(plan["hidden"], plan, rows), Attention(plan)
        self.mlp_norm, self.mlp = Norm(plan["hidden"], plan, rows), Mlp(plan)
        self.add_attention, self.add_mlp, self.enter = ops.Add(), ops.Add(), by_hand(Enter, plan)
        if plan["parallel"]:
            self.add_attention.shard((rows, rows))
            self.add_mlp.shard((rows, rows))

    def construct(self, x):
        x = self.add_attention(x, self.attention(self.inputs(self.attention_norm(x))))
        return self.add_mlp(x, self.mlp(self.inputs(self.mlp_norm(x))))

    def inputs(self, x):
        return x if self.enter is None else self.enter(x)


class Embedding(nn.Cell):
    """Token vectors; the vocabulary is split over tensor-parallel ranks."""

    def __init__(self, plan):
        super().__init__()
        self.weight = Parameter(initializer(Normal(0.02), (plan["words"], plan["hidden"]), plan["params"]), name="weight")
        self.gather, self.cast, self.reshape = ops.Gather(), ops.Cast(), ops.Reshape()
        self.hidden, self.compute, self.leave = plan["hidden"], plan["compute"], by_hand(Leave, plan)
        self.first_word, self.words = plan["first_word"], plan["words"]
        if plan["parallel"]:
            self.gather.shard(((plan["tp"], 1), (plan["dp"], 1)))

    def construct(self, ids):
        if self.leave is not None:  # the ranks that do not hold a word add zeros
            ids = ids - self.first_word
            held = self.cast(ops.logical_and(ids >= 0, ids < self.words), self.compute)
            rows = self.cast(self.gather(self.weight, ops.clamp(ids, 0, self.words - 1), 0), self.compute)
            return self.reshape(self.leave(rows * ops.expand_dims(held, -1)), (-1, self.hidden))
        return self.reshape(self.cast(self.gather(self.weight, ids, 0), self.compute), (-1, self.hidden))


class Loss(nn.Cell):
    """Mean cross entropy in float32 of logits that are split over the vocabulary."""

    def __init__(self, plan):
        super().__init__()
        self.top, self.total, self.picked = ops.ReduceMax(keep_dims=True), ops.ReduceSum(keep_dims=True), ops.ReduceSum()
        self.shift, self.exp, self.log, self.hot, self.pick = ops.Sub(), ops.Exp(), ops.Log(), ops.OneHot(), ops.Mul()
        self.difference, self.mean, self.cast, self.reshape = ops.Sub(), ops.ReduceMean(), ops.Cast(), ops.Reshape()
        self.on, self.off, self.vocab = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32), plan["words"]
        self.first_word, self.leave, self.highest = plan["first_word"], by_hand(Leave, plan), by_hand(Highest, plan)
        if plan["parallel"]:
            both, rows = (plan["dp"], plan["tp"]), (plan["dp"], 1)
            for op in (self.top, self.total, self.picked, self.exp):
                op.shard((both,))
            self.shift.shard((both, rows))
            self.hot.shard((both, (), ()))
            self.pick.shard((both, both))
            self.log.shard((rows,))
            self.difference.shard(((plan["dp"],), (plan["dp"],)))
            self.mean.shard(((plan["dp"],),))

    def construct(self, logits, labels):
        wide = self.cast(logits, ms.float32)
        top, labels = ops.stop_gradient(self.top(wide, -1)), self.reshape(labels, (-1,))
        if self.leave is not None:
            top, labels = ops.stop_gradient(self.highest(top)), labels - self.first_word
        shifted = self.shift(wide, top)
        total = self.total(self.exp(shifted), -1)
        picked = self.picked(self.pick(shifted, self.hot(labels, self.vocab, self.on, self.off)), -1)
        if self.leave is not None:
            total, picked = self.leave(total), self.leave(picked)
        return self.mean(self.difference(self.reshape(self.log(total), (-1,)), picked))


class Decoder(nn.Cell):
    """Embedding, layers, head and loss; every cell on its pipeline stage, recomputed as planned."""

    def __init__(self, plan):
        super().__init__()
        self.embedding = Embedding(plan)
        self.layers = nn.CellList([Layer(plan) for _ in plan["stage_of_layer"]])
        self.norm = Norm(plan["hidden"], plan, (plan["rows"], 1))
        self.head = Linear(plan["hidden"], plan["words"], plan, "column")
        self.loss, self.enter = Loss(plan), by_hand(Enter, plan)
        last = plan["pp"] - 1
        places = [(self.embedding, 0), *zip(self.layers, plan["stage_of_layer"]), (self.norm, last), (self.head, last)]
        for cell, stage in [*places, (self.loss, last)]:
            if plan["parallel"] and plan["pp"] > 1:
                cell.pipeline_stage = stage
        for layer, how in zip(self.layers, plan["recompute_of_layer"]):
            if how == "full":
                layer.recompute()
            elif how == "selective":
                layer.mlp.activation.recompute()

    def construct(self, ids, labels):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.loss(self.head(x if self.enter is None else self.enter(x)), labels)


class SharedDecoder(Decoder):
    """The same as one graph for all micro-batches, which interleaved pipelines and sharded gradients need."""

    @lazy_inline
    def __init__(self, plan):
        super().__init__(plan)


# --- tensor parallelism by hand, for devices without automatic parallelism ------------------------------------------


class Leave(nn.Cell):
    """Partial results added up over tensor-parallel ranks; gradients pass unchanged."""

    def __init__(self, plan):
        super().__init__()
        self.sum = ops.AllReduce(group=plan["tp_group"])

    def construct(self, x):
        return self.sum(x)

    def bprop(self, x, out, gradient):
        return (gradient,)


class Enter(nn.Cell):
    """What all tensor-parallel ranks read, unchanged; their gradients are added up."""

    def __init__(self, plan):
        super().__init__()
        self.sum = ops.AllReduce(group=plan["tp_group"])

    def construct(self, x):
        return x

    def bprop(self, x, out, gradient):
        return (self.sum(gradient),)


class Highest(nn.Cell):
    """Largest value over tensor-parallel ranks, of a column; sums are all that the CPU's groups can do."""

    def __init__(self, plan):
        super().__init__()
        self.sum, self.own = ops.AllReduce(group=plan["tp_group"]), Tensor(np.eye(plan["tp"], dtype=np.float32))
        self.rank = plan["rank"] % plan["tp"]

    def construct(self, x):
        return ops.amax(self.sum(x * self.own[self.rank]), -1, True)


def by_hand(kind, plan):
    """Cell of that kind where ranks split layers without automatic parallelism, else None."""
    return kind(plan) if plan["tp_group"] else None


# --- one step -------------------------------------------------------------------------------------------------------


clear = ops.MultitypeFuncGraph("clear")


@clear.register("Tensor", "Tensor")
def _clear(accumulated, gradient):
    """Zero an accumulated gradient once the update has used it."""
    accumulated = ops.depend(accumulated, gradient)
    return ops.assign(accumulated, ops.zeros_like(accumulated))


class TrainStep(nn.Cell):
    """Loss, gradients, update.

    Over micro-batches MindSpore adds gradients up in parameters named accu_grads, which it finds by that name. With a
    sharded optimizer the gradients of the last micro-batch arrive already summed; without, the sums are in accu_grads.
    """

    def __init__(self, network, optimizer, micro_batches=1, sharded=False, average=None):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.average, self.sharded = network, optimizer, average, sharded
        self.network.set_grad()
        self.weights = optimizer.parameters
        self.gradient = ops.value_and_grad(network, None, self.weights)
        self.accumulates, self.every = micro_batches > 1, ops.HyperMap()
        self.accu_grads = self.weights.clone(prefix="accu_grads", init="zeros") if self.accumulates else ()

    def construct(self, ids, labels):
        loss, gradients = self.gradient(ids, labels)
        if self.average is not None:
            gradients = self.average(gradients)
        if not self.accumulates:
            return ops.depend(loss, self.optimizer(gradients))
        sums = ops.depend(self.accu_grads, gradients)
        updated = self.optimizer(gradients) if self.sharded else self.optimizer(sums)
        loss = ops.depend(loss, updated)
        return ops.depend(loss, self.every(clear, ops.depend(sums, updated), gradients))


add = ops.MultitypeFuncGraph("add")


@add.register("Tensor", "Tensor")
def _add(accumulated, gradient):
    """Add a micro-batch's gradient up."""
    return ops.assign_add(accumulated, gradient)


class MeanOverReplicas(nn.Cell):
    """Gradients averaged over micro-batches and data-parallel ranks, for devices without automatic parallelism."""

    def __init__(self, plan):
        super().__init__()
        self.parts = float(plan["dp"] * plan["micro_batches"])
        self.sum = ops.AllReduce(group=plan["dp_group"]) if plan["dp"] > 1 else None

    def construct(self, gradients):
        if self.sum is not None:
            gradients = tuple(self.sum(gradient) for gradient in gradients)
        return tuple(gradient / self.parts for gradient in gradients)


class Accumulate(nn.Cell):
    """Loss of one micro-batch; its gradients are added to the sums."""

    def __init__(self, network, weights, sums):
        super().__init__(auto_prefix=False)
        self.network, self.sums, self.every = network, sums, ops.HyperMap()
        self.network.set_grad()
        self.gradient = ops.value_and_grad(network, None, weights)

    def construct(self, ids, labels):
        loss, gradients = self.gradient(ids, labels)
        return ops.depend(loss, self.every(add, self.sums, gradients))


class Update(nn.Cell):
    """Optimizer step from the sums, which it clears."""

    def __init__(self, optimizer, sums, average):
        super().__init__(auto_prefix=False)
        self.optimizer, self.sums, self.average, self.every = optimizer, sums, average, ops.HyperMap()

    def construct(self, loss):
        updated = self.optimizer(self.average(self.sums))
        return ops.depend(loss, self.every(clear, ops.depend(self.sums, updated), self.sums))


class StepByHand:
    """Micro-batches one after the other, then the update, for devices without automatic parallelism."""

    def __init__(self, network, optimizer, plan):
        self.micro_batches, weights = plan["micro_batches"], optimizer.parameters
        self.sums = weights.clone(prefix="accu_grads", init="zeros")
        self.accumulate = Accumulate(network, weights, self.sums).set_train()
        self.update = Update(optimizer, self.sums, MeanOverReplicas(plan)).set_train()

    def __call__(self, ids, labels):
        rows = [np.split(tensor.asnumpy(), self.micro_batches) for tensor in (ids, labels)]
        losses = [self.accumulate(Tensor(a), Tensor(b)) for a, b in zip(*rows)]
        return self.update(Tensor(np.mean([loss.asnumpy() for loss in losses])))

    def get_parameters(self):
        """Parameters, optimizer states and sums of gradients."""
        return [*self.update.get_parameters(), *self.accumulate.get_parameters()]


def build(plan):
    """Training step, parallel as planned on Ascend."""
    from mindspore.nn.utils import no_init_parameters
    from mindspore.parallel.auto_parallel import AutoParallel
    from mindspore.parallel.nn import GradAccumulation, Pipeline

    def parts():
        network = SharedDecoder(plan) if plan["pp"] > 1 else Decoder(plan)
        return network, nn.AdamWeightDecay(network.trainable_params(), plan["learning_rate"], 0.9, 0.95, 1e-8, 0.1)

    if not plan["parallel"]:
        network, optimizer = parts()
        if plan["micro_batches"] > 1:
            return StepByHand(network, optimizer, plan), network
        average = MeanOverReplicas(plan) if plan["dp"] > 1 else None
        return TrainStep(network, optimizer, average=average).set_train(), network
    with no_init_parameters():  # parameters are made on the devices, each its own slice
        network, optimizer = parts()
        body, micro_batches = network, plan["micro_batches"]
        if plan["pp"] > 1:
            body = Pipeline(network, micro_batches)
        elif micro_batches > 1:
            body = GradAccumulation(network, micro_batches)
        step = TrainStep(body, optimizer, micro_batches, sharded=plan["zero_level"] > 0).set_train()
    step = AutoParallel(step, parallel_mode="semi_auto")
    step.dataset_strategy(((plan["dp"], 1), (plan["dp"], 1)))
    if plan["pp"] > 1:
        step.pipeline(stages=plan["pp"], interleave=plan["interleave"], scheduler=plan["scheduler"])
    if plan["zero_level"]:
        step.hsdp(shard_size=plan["shard_size"], threshold=64, optimizer_level=f"level{plan['zero_level']}")
    return step, network


# --- running --------------------------------------------------------------------------------------------------------


class Monitor:
    """Called after every step; replace or extend it to send figures elsewhere."""

    def step_end(self, step, loss, seconds, plan):
        tokens = plan["seq"] * plan["batch"] / seconds / plan["processes"]
        print(f"step {step} loss {float(loss):.4f} {seconds:.6f} s {tokens:.0f} tokens/s/device", flush=True)


def batches(plan, path, samples):
    """Pairs of (ids, labels) of `samples` rows; without data, counting upwards from anywhere: easy to learn.

    Every data-parallel replica reads its own rows; the ranks of one replica (tp, pp) read the same ones.
    """
    seq, vocab = plan["seq"], plan["vocab"]
    tokens = np.memmap(path, np.int32, "r") if path else None
    row, places = plan["replica"] * samples, None if tokens is None else len(tokens) // (seq + 1)
    if places == 0:
        raise SystemExit(f"pretrain.py: {path} holds {len(tokens)} tokens, fewer than one sample of {seq + 1}")
    while True:
        if tokens is None:
            start = (np.arange(row, row + samples) * 7919) % vocab
            chosen = (start[:, None] + np.arange(seq + 1)) % min(vocab, 97)
        else:
            at = (np.arange(row, row + samples) % places)[:, None] * (seq + 1)
            chosen = tokens[at + np.arange(seq + 1)]
        row += samples * plan["replicas"]
        chosen = chosen.astype(np.int32)
        yield Tensor(chosen[:, :-1]), Tensor(chosen[:, 1:])


def replica(plan):
    """Data-parallel replica of this rank, and how many there are."""
    in_stage = plan["rank"] % (plan["dp"] * plan["tp"])  # ranks of a stage follow each other
    return in_stage // plan["tp"], plan["dp"]  # and in it the ranks of a tensor-parallel group


def split_by_hand(plan):
    """Without automatic parallelism: tp as planned where every planned rank runs, all else replicas; sizes of a rank."""
    planned = plan["processes"] == plan["devices"] and plan["pp"] == 1
    plan["tp"] = plan["tp"] if planned else 1
    plan["dp"], plan["pp"], plan["rows"] = plan["processes"] // plan["tp"], 1, 1
    plan["micro_batches"] = math.gcd(plan["micro_batches"], max(plan["batch"] // plan["dp"], 1))
    plan["stage_of_layer"] = [0] * len(plan["stage_of_layer"])
    for name in ("heads", "kv_heads", "ffn", "vocab"):
        if plan[name] % plan["tp"]:
            raise SystemExit(f"pretrain.py: {name} {plan[name]} cannot be split over {plan['tp']} ranks")
    for name in ("heads", "kv_heads", "ffn", "words"):
        plan[name] //= plan["tp"]
    plan["first_word"] = plan["rank"] % plan["tp"] * plan["words"]


def groups_by_hand(plan):
    """Communication groups of this rank: those that split its layers, and those that hold the same part."""
    from mindspore.communication import create_group

    tp, rank = plan["tp"], plan["rank"]
    for name, size, ranks in (
        ("tp_group", tp, range(rank // tp * tp, rank // tp * tp + tp)),
        ("dp_group", plan["dp"], range(rank % tp, plan["processes"], tp)),
    ):
        if size > 1:
            plan[name] = f"{name}_{ranks[0]}"
            create_group(plan[name], list(ranks))


def prepare(arguments):
    """Context, communication, and the plan with what only the process knows."""
    plan = dict(PLAN)
    cpu = arguments.device == "CPU"
    if arguments.device == "Ascend":
        ms.set_context(mode=ms.GRAPH_MODE, jit_config={"jit_level": "O0"}, max_call_depth=10000)
        ms.set_device("Ascend")
        ms.runtime.set_memory(max_size=plan["memory"])
    else:
        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_device("CPU")
    plan["processes"] = int(os.environ.get("RANK_SIZE") or os.environ.get("MS_WORKER_NUM") or 1)
    plan["rank"] = 0
    if plan["processes"] > 1:
        from mindspore.communication import get_group_size, get_rank, init

        init()
        plan["processes"], plan["rank"] = get_group_size(), get_rank()
    if not cpu and plan["processes"] != plan["devices"]:
        raise SystemExit(f"pretrain.py: the plan needs {plan['devices']} processes, {plan['processes']} were started")
    plan["parallel"], plan["flash"] = not cpu and plan["devices"] > 1, plan["flash"] and not cpu
    plan["params"], plan["compute"] = getattr(ms, plan["params"]), ms.float32 if cpu else getattr(ms, plan["compute"])
    plan.update(words=plan["vocab"], first_word=0, tp_group="", dp_group="")
    if not plan["parallel"]:
        split_by_hand(plan)
        groups_by_hand(plan)
    plan["replica"], plan["replicas"] = replica(plan)
    return plan


def profiled(step, source, folder, device):
    """Two more steps under MindSpore Profiler: operators and, on the CPU, the bytes of the memory pool."""
    from mindspore.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.NPU] if device == "Ascend" else [])
    plan = schedule(wait=0, warmup=0, active=2, repeat=1, skip_first=0)
    with profile(
        activities=activities, schedule=plan, on_trace_ready=tensorboard_trace_handler(folder), profile_memory=True
    ) as record:
        for _ in range(2):
            step(*next(source)).asnumpy()
            record.step()


def report_memory(step, network):
    """Peak of the device's counters; where it has none, bytes of all parameters, which profiles leave out."""
    peak = ms.runtime.max_memory_allocated()
    if peak:
        print(f"peak {peak / 2**30:.6f} GiB", flush=True)
    else:
        held = {id(p): p for cell in (step, network) for p in cell.get_parameters()}
        print(f"parameters and states {sum(p.nbytes for p in held.values())} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Pre-train the plan written into this file.")
    parser.add_argument("--device", choices=("Ascend", "CPU"), default="Ascend")
    parser.add_argument("--steps", type=int, default=PLAN["steps"])
    parser.add_argument("--learning-rate", type=float, default=PLAN["learning_rate"])
    parser.add_argument("--data", default=PLAN["data"], help="flat file of int32 tokens")
    parser.add_argument("--save", default="./output/checkpoint", help="folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints; 0: none")
    parser.add_argument("--profile", help="folder for MindSpore Profiler, which records two more steps")
    arguments = parser.parse_args()
    plan = {**prepare(arguments), "learning_rate": arguments.learning_rate}
    ms.set_seed(42 + plan["rank"] % plan["tp"])  # the same in all replicas
    step, network = build(plan)
    samples = max(plan["batch"] // plan["dp"], 1)
    print(f"rank {plan['rank']} of {plan['processes']}, process {os.getpid()}", flush=True)
    print(f"{sum(int(np.prod(p.shape)) for p in network.trainable_params())} parameters", flush=True)
    monitor, source = Monitor(), batches(plan, arguments.data, samples)
    for number in range(1, arguments.steps + 1):
        ids, labels = next(source)
        begin = time.perf_counter()
        loss = step(ids, labels)
        monitor.step_end(number, loss.asnumpy(), time.perf_counter() - begin, plan)
        if arguments.save_every and number % arguments.save_every == 0:
            folder = Path(arguments.save) / f"rank_{plan['rank']}"
            folder.mkdir(parents=True, exist_ok=True)
            ms.save_checkpoint(network, str(folder / f"step_{number}"), format="safetensors")
    report_memory(step, network)
    if arguments.profile:
        profiled(step, source, arguments.profile, arguments.device)
    if os.environ.get("MS_SIMULATION_LEVEL"):
        os._exit(0)  # stand-in libraries abort when the interpreter ends


if __name__ == "__main__":
    main()
