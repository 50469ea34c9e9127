"""Cells that the benchmarks compile: the operations of a transformer's training step, written as networks write them.

``OPERATIONS`` maps the name of an operation to a builder ``(sizes, dtype) -> (cell, shapes of its inputs)``.  An
operation with a backward pass exists twice, ``NAME`` and ``NAME_backward``; the latter runs forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

Sizes = Mapping[str, int]
Built = tuple[nn.Cell, Sequence[Any]]


class Copies(nn.Cell):  # type: ignore[misc]
    """So many copies of a cell as there are sets of inputs, in one graph."""

    def __init__(self, cell: nn.Cell, arity: int) -> None:
        super().__init__()
        self.cell, self.arity = cell, arity

    def construct(self, *inputs: Tensor) -> Any:
        out: Any = ()
        for start in range(0, len(inputs), self.arity):
            out = (*out, self.cell(*inputs[start : start + self.arity]))
        return out


class Chain(nn.Cell):  # type: ignore[misc]
    """Additions that wait for each other."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.add, self.length = ops.Add(), length

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(self.length):
            x = self.add(x, y)
        return x


class Backward(nn.Cell):  # type: ignore[misc]
    """Forward and backward of a cell; behind its inputs stand the gradients of its outputs."""

    def __init__(self, cell: nn.Cell, arity: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.arity, self.several = cell, arity, outputs > 1
        self.gradient = ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, *inputs: Tensor) -> Any:
        values = inputs[: self.arity]
        behind = inputs[self.arity :] if self.several else inputs[self.arity]
        return self.cell(*values), self.gradient(self.cell)(*values, behind)


class MatMul(nn.Cell):  # type: ignore[misc]
    """x W^T, as a linear layer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, w: Tensor) -> Tensor:
        return self.matmul(x, w)


class MatMulGradients(nn.Cell):  # type: ignore[misc]
    """The two products of its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.of_weight = ops.MatMul(), ops.MatMul(transpose_a=True)

    def construct(self, x: Tensor, w: Tensor, dy: Tensor) -> Any:
        return self.of_input(dy, w), self.of_weight(dy, x)


class Grouped(nn.Cell):  # type: ignore[misc]
    """Matmuls of the experts of one rank in one kernel."""

    def __init__(self, groups: int, rows: int) -> None:
        super().__init__()
        from mindspore.ops.auto_generate import GroupedMatmul

        self.matmul = GroupedMatmul(split_item=3, group_type=0)
        self.ends = Tensor(np.arange(1, groups + 1) * (rows // groups), ms.int64)

    def construct(self, x: Tensor, w: Tensor) -> Tensor:
        return self.matmul([x], [w], None, None, None, None, None, self.ends)[0]


class Flash(nn.Cell):  # type: ignore[misc]
    """Ascend's fused attention with a compressed causal mask."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        from mindspore.ops.operations.nn_ops import FlashAttentionScore

        self.kernel = FlashAttentionScore(head_num=heads, scale_value=width**-0.5, input_layout="BNSD", sparse_mode=2)
        self.mask = Tensor(np.triu(np.ones((2048, 2048), np.uint8), k=1))

    def construct(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.kernel(q, k, v, None, None, None, self.mask, None)[3]


class ScoreMatMuls(nn.Cell):  # type: ignore[misc]
    """The two batched products of unfused attention."""

    def construct(self, q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Any:
        return ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), ops.matmul(p, v)


class Scores(nn.Cell):  # type: ignore[misc]
    """Scale, mask and softmax of materialised scores, in float32."""

    def __init__(self, seq: int, width: int) -> None:
        super().__init__()
        self.scale = width**-0.5
        self.blocked = Tensor(np.triu(np.full((seq, seq), -1e9, np.float32), k=1))

    def construct(self, scores: Tensor) -> Tensor:
        return ops.cast(ops.softmax(ops.cast(scores, ms.float32) * self.scale + self.blocked, -1), scores.dtype)


class Norm(nn.Cell):  # type: ignore[misc]
    """Residual addition and root-mean-square norm in float32; the sum goes on beside the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.mean, self.rsqrt = ops.Square(), ops.ReduceMean(keep_dims=True), ops.Rsqrt()
        self.add, self.mul, self.cast = ops.Add(), ops.Mul(), ops.Cast()

    def construct(self, x: Tensor, y: Tensor, w: Tensor) -> Any:
        total = self.add(x, y)
        wide = self.cast(total, ms.float32)
        wide = self.mul(wide, self.rsqrt(self.add(self.mean(self.square(wide), -1), 1e-5)))
        return self.cast(self.mul(wide, w), x.dtype), total


class FusedNorm(nn.Cell):  # type: ignore[misc]
    """The same with the fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.add = ops.RmsNorm(1e-5), ops.Add()

    def construct(self, x: Tensor, y: Tensor, w: Tensor) -> Any:
        total = self.add(x, y)
        return self.norm(total, ops.cast(w, x.dtype))[0], total


class Rotary(nn.Cell):  # type: ignore[misc]
    """Queries: heads out of the hidden width and rotary positions; beside them values, which are only transposed."""

    def __init__(self, batch: int, seq: int, heads: int, width: int) -> None:
        super().__init__()
        self.shape = (batch, seq, heads, width)
        angles = np.outer(np.arange(seq), 1e4 ** (-np.arange(0, width, 2) / width))
        angles = np.concatenate([angles, angles], axis=1)
        self.cos, self.sin = Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32)
        self.halves, self.join = ops.Split(3, 2), ops.Concat(3)
        self.transpose = ops.Transpose()

    def construct(self, x: Tensor, v: Tensor) -> Any:
        x = self.transpose(ops.reshape(x, self.shape), (0, 2, 1, 3))
        v = self.transpose(ops.reshape(v, self.shape), (0, 2, 1, 3))
        left, right = self.halves(x)
        turned = self.join((-right, left))
        return x * ops.cast(self.cos, x.dtype) + turned * ops.cast(self.sin, x.dtype), v


class Gate(nn.Cell):  # type: ignore[misc]
    """silu(gate) * up."""

    def __init__(self) -> None:
        super().__init__()
        from mindspore.ops.auto_generate import SiLU

        self.silu, self.mul = SiLU(), ops.Mul()

    def construct(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.mul(self.silu(gate), up)


class FusedGate(nn.Cell):  # type: ignore[misc]
    """The same with the fused kernel, on gate and up in one tensor."""

    def construct(self, both: Tensor) -> Tensor:
        return ops.swiglu(both, -1)


class Loss(nn.Cell):  # type: ignore[misc]
    """Mean cross entropy in float32, written out."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.hot = vocab, ops.OneHot()
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        self.top, self.total, self.picked = (
            ops.ReduceMax(keep_dims=True),
            ops.ReduceSum(keep_dims=True),
            ops.ReduceSum(),
        )

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        wide = ops.cast(logits, ms.float32)
        shifted = wide - ops.stop_gradient(self.top(wide, -1))
        total = ops.reshape(ops.log(self.total(ops.exp(shifted), -1)), (-1,))
        hot = self.hot(labels, self.vocab, self.on, self.off)
        return ops.ReduceMean()(total - self.picked(shifted * hot, -1))


class LossGradient(nn.Cell):  # type: ignore[misc]
    """Cross entropy and its gradient with respect to the logits."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.gradient = ops.GradOperation()
        self.loss = Loss(vocab)

    def construct(self, logits: Tensor, labels: Tensor) -> Any:
        return self.loss(logits, labels), self.gradient(self.loss)(logits, labels)


class Gather(nn.Cell):  # type: ignore[misc]
    """Rows of an embedding table."""

    def construct(self, table: Tensor, ids: Tensor) -> Tensor:
        return ops.gather(table, ids, 0)


class Add(nn.Cell):  # type: ignore[misc]
    """Two inputs, one output: the plainest element-wise work."""

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.add(x, y)


class Copy(nn.Cell):  # type: ignore[misc]
    """One input, one output."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.neg(x)


class Cast(nn.Cell):  # type: ignore[misc]
    """float32 to the compute type."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.kind = getattr(ms, dtype)

    def construct(self, x: Tensor) -> Tensor:
        return ops.cast(x, self.kind)


def _matmul(s: Sizes, dtype: str) -> Built:
    return MatMul(), [(s["m"], s["k"]), (s["n"], s["k"])]


def _matmul_backward(s: Sizes, dtype: str) -> Built:
    return MatMulGradients(), [(s["m"], s["k"]), (s["n"], s["k"]), (s["m"], s["n"])]


def _grouped(s: Sizes, dtype: str) -> Built:
    return Grouped(s["groups"], s["m"]), [(s["m"], s["k"]), (s["groups"], s["k"], s["n"])]


def _heads(s: Sizes) -> tuple[int, int, int, int]:
    return s["batch"], s["heads"], s["seq"], s["head_dim"]


def _flash(s: Sizes, dtype: str) -> Built:
    return Flash(s["heads"], s["head_dim"]), [_heads(s)] * 3


def _batched_matmul(s: Sizes, dtype: str) -> Built:
    scores = (s["batch"], s["heads"], s["seq"], s["seq"])
    return ScoreMatMuls(), [*[_heads(s)] * 3, scores]


def _scores(s: Sizes, dtype: str) -> Built:
    return Scores(s["seq"], s["head_dim"]), [(s["batch"], s["heads"], s["seq"], s["seq"])]


def _norm(s: Sizes, dtype: str) -> Built:
    return Norm(), [*[(s["rows"], s["columns"])] * 2, ((s["columns"],), "float32", 0)]


def _rms_norm(s: Sizes, dtype: str) -> Built:
    return FusedNorm(), [*[(s["rows"], s["columns"])] * 2, ((s["columns"],), "float32", 0)]


def _rotary(s: Sizes, dtype: str) -> Built:
    batch, heads, seq, width = _heads(s)
    return Rotary(batch, seq, heads, width), [(batch * seq, heads * width)] * 2


def _gate(s: Sizes, dtype: str) -> Built:
    return Gate(), [(s["rows"], s["columns"])] * 2


def _swiglu(s: Sizes, dtype: str) -> Built:
    return FusedGate(), [(s["rows"], 2 * s["columns"])]


def _cross_entropy(s: Sizes, dtype: str) -> Built:
    return LossGradient(s["vocab"]), [(s["rows"], s["vocab"]), ((s["rows"],), "int32", s["vocab"])]


def _embedding(s: Sizes, dtype: str) -> Built:
    return Gather(), [((s["vocab"], s["columns"]), "float32", 0), ((s["rows"],), "int32", s["vocab"])]


def _elementwise(cell: Callable[[str], nn.Cell], inputs: int) -> Callable[[Sizes, str], Built]:
    def build(s: Sizes, dtype: str) -> Built:
        return cell(dtype), [(s["elements"],)] * inputs

    return build


def _cast(s: Sizes, dtype: str) -> Built:
    return Cast(dtype), [((s["elements"],), "float32", 0)]


def _with_backward(
    build: Callable[[Sizes, str], Built], output: Callable[[Sizes], Any], outputs: int = 1
) -> Callable[[Sizes, str], Built]:
    def both(s: Sizes, dtype: str) -> Built:
        cell, shapes = build(s, dtype)
        return Backward(cell, len(shapes), outputs), [*shapes, *[output(s)] * outputs]

    return both


def _rows(s: Sizes) -> tuple[int, int]:
    return s["rows"], s["columns"]


def _all_scores(s: Sizes) -> tuple[int, int, int, int]:
    return s["batch"], s["heads"], s["seq"], s["seq"]


OPERATIONS: dict[str, Callable[[Sizes, str], Built]] = {
    "matmul": _matmul,
    "matmul_backward": _matmul_backward,
    "grouped_matmul": _grouped,
    "flash": _flash,
    "flash_backward": _with_backward(_flash, _heads),
    "batched_matmul": _batched_matmul,
    "scores": _scores,
    "scores_backward": _with_backward(_scores, _all_scores),
    "norm": _norm,
    "norm_backward": _with_backward(_norm, _rows, 2),
    "rms_norm": _rms_norm,
    "rms_norm_backward": _with_backward(_rms_norm, _rows, 2),
    "rotary": _rotary,
    "rotary_backward": _with_backward(_rotary, _heads, 2),
    "gate": _gate,
    "gate_backward": _with_backward(_gate, _rows),
    "swiglu": _swiglu,
    "swiglu_backward": _with_backward(_swiglu, _rows),
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "embedding_backward": _with_backward(_embedding, _rows),
    "add": _elementwise(lambda dtype: Add(), 2),
    "copy": _elementwise(lambda dtype: Copy(), 1),
    "cast": _cast,
}
