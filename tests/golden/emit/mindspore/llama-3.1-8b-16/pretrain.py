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
import os
import time
from pathlib import Path

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
        self.compute = plan["compute"]
        if plan["parallel"] and split == "column":
            self.matmul.shard(((dp, 1), (tp, 1)))
            self.add.shard(((dp, tp), (tp,)))
        elif plan["parallel"]:
            self.matmul.shard(((dp, tp), (1, tp)), out_strategy=((rows, 1),))
            self.add.shard(((rows, 1), (1,)))

    def construct(self, x):
        y = self.matmul(x, self.cast(self.weight, self.compute))
        return y if self.bias is None else self.add(y, self.cast(self.bias, self.compute))


class Norm(nn.Cell):
    """Root-mean-square norm over the last axis, in float32."""

    def __init__(self, size, plan, strategy):
        super().__init__()
        self.weight = Parameter(initializer("ones", (size,), plan["params"]), name="weight")
        self.square, self.mean, self.rsqrt = ops.Square(), ops.ReduceMean(keep_dims=True), ops.Rsqrt()
        self.add, self.scale, self.weigh, self.cast = ops.Add(), ops.Mul(), ops.Mul(), ops.Cast()
        self.epsilon, self.compute = plan["norm_epsilon"], plan["compute"]
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
        return self.cast(self.weigh(wide, self.cast(self.weight, ms.float32)), self.compute)


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
        self.add_attention, self.add_mlp = ops.Add(), ops.Add()
        if plan["parallel"]:
            self.add_attention.shard((rows, rows))
            self.add_mlp.shard((rows, rows))

    def construct(self, x):
        x = self.add_attention(x, self.attention(self.attention_norm(x)))
        return self.add_mlp(x, self.mlp(self.mlp_norm(x)))


class Embedding(nn.Cell):
    """Token vectors; the vocabulary is split over tensor-parallel ranks."""

    def __init__(self, plan):
        super().__init__()
        self.weight = Parameter(initializer(Normal(0.02), (plan["vocab"], plan["hidden"]), plan["params"]), name="weight")
        self.gather, self.cast, self.reshape = ops.Gather(), ops.Cast(), ops.Reshape()
        self.hidden, self.compute = plan["hidden"], plan["compute"]
        if plan["parallel"]:
            self.gather.shard(((plan["tp"], 1), (plan["dp"], 1)))

    def construct(self, ids):
        return self.reshape(self.cast(self.gather(self.weight, ids, 0), self.compute), (-1, self.hidden))


class Loss(nn.Cell):
    """Mean cross entropy in float32 of logits that are split over the vocabulary."""

    def __init__(self, plan):
        super().__init__()
        self.top, self.total, self.picked = ops.ReduceMax(keep_dims=True), ops.ReduceSum(keep_dims=True), ops.ReduceSum()
        self.shift, self.exp, self.log, self.hot, self.pick = ops.Sub(), ops.Exp(), ops.Log(), ops.OneHot(), ops.Mul()
        self.difference, self.mean, self.cast, self.reshape = ops.Sub(), ops.ReduceMean(), ops.Cast(), ops.Reshape()
        self.on, self.off, self.vocab = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32), plan["vocab"]
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
        shifted = self.shift(wide, ops.stop_gradient(self.top(wide, -1)))
        total = self.reshape(self.log(self.total(self.exp(shifted), -1)), (-1,))
        hot = self.hot(self.reshape(labels, (-1,)), self.vocab, self.on, self.off)
        return self.mean(self.difference(total, self.picked(self.pick(shifted, hot), -1)))


class Decoder(nn.Cell):
    """Embedding, layers, head and loss; every cell on its pipeline stage, recomputed as planned."""

    def __init__(self, plan):
        super().__init__()
        self.embedding = Embedding(plan)
        self.layers = nn.CellList([Layer(plan) for _ in plan["stage_of_layer"]])
        self.norm = Norm(plan["hidden"], plan, (plan["rows"], 1))
        self.head = Linear(plan["hidden"], plan["vocab"], plan, "column")
        self.loss = Loss(plan)
        last = plan["pp"] - 1
        places = [(self.embedding, 0), *zip(self.layers, plan["stage_of_layer"]), (self.norm, last), (self.head, last)]
        for cell, stage in [*places, (self.loss, last)]:
            if plan["parallel"] and plan["pp"] > 1:
                cell.pipeline_stage = stage
        for layer, how in zip(self.layers, plan["recompute_of_layer"]):
            if plan["parallel"] and how == "full":
                layer.recompute()
            elif plan["parallel"] and how == "selective":
                layer.mlp.activation.recompute()

    def construct(self, ids, labels):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(self.norm(x)), labels)


class SharedDecoder(Decoder):
    """The same as one graph for all micro-batches, which interleaved pipelines and sharded gradients need."""

    @lazy_inline
    def __init__(self, plan):
        super().__init__(plan)


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


class MeanOverProcesses(nn.Cell):
    """Gradients averaged over processes, for devices without automatic parallelism."""

    def __init__(self, processes):
        super().__init__()
        self.sum, self.processes = ops.AllReduce(), processes

    def construct(self, gradients):
        return tuple(self.sum(gradient) / self.processes for gradient in gradients)


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
        average = MeanOverProcesses(plan["processes"]) if plan["processes"] > 1 else None
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
        print(f"step {step} loss {float(loss):.4f} {seconds:.3f} s {tokens:.0f} tokens/s/device", flush=True)


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
    if not plan["parallel"]:
        return plan["rank"], plan["processes"]
    in_stage = plan["rank"] % (plan["dp"] * plan["tp"])  # ranks of a stage follow each other
    return in_stage // plan["tp"], plan["dp"]  # and in it the ranks of a tensor-parallel group


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
    if not plan["parallel"]:
        plan["dp"] = plan["tp"] = plan["pp"] = plan["rows"] = 1
    plan["replica"], plan["replicas"] = replica(plan)
    return plan


def main():
    parser = argparse.ArgumentParser(description="Pre-train the plan written into this file.")
    parser.add_argument("--device", choices=("Ascend", "CPU"), default="Ascend")
    parser.add_argument("--steps", type=int, default=PLAN["steps"])
    parser.add_argument("--learning-rate", type=float, default=PLAN["learning_rate"])
    parser.add_argument("--data", default=PLAN["data"], help="flat file of int32 tokens")
    parser.add_argument("--save", default="./output/checkpoint", help="folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints; 0: none")
    arguments = parser.parse_args()
    plan = {**prepare(arguments), "learning_rate": arguments.learning_rate}
    ms.set_seed(42)
    step, network = build(plan)
    samples = plan["batch"] // plan["dp"] if plan["parallel"] else max(plan["batch"] // plan["processes"], 1)
    print(f"{sum(int(np.prod(p.shape)) for p in network.trainable_params())} parameters", flush=True)
    monitor, source = Monitor(), batches(plan, arguments.data, samples)
    for number in range(1, arguments.steps + 1):
        ids, labels = next(source)
        begin = time.time()
        loss = step(ids, labels)
        monitor.step_end(number, loss.asnumpy(), time.time() - begin, plan)
        if arguments.save_every and number % arguments.save_every == 0:
            folder = Path(arguments.save) / f"rank_{plan['rank']}"
            folder.mkdir(parents=True, exist_ok=True)
            ms.save_checkpoint(network, str(folder / f"step_{number}"), format="safetensors")
    if os.environ.get("MS_SIMULATION_LEVEL"):
        print(f"peak {ms.runtime.max_memory_allocated() / 2**30:.3f} GiB", flush=True)
        os._exit(0)  # stand-in libraries abort when the interpreter ends


if __name__ == "__main__":
    main()
