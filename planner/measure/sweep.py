"""Which operations are measured, at which sizes, in which order.

A sweep is a list of tasks: what every constant needs first, then more shapes as time allows.  A run that is cut short
has measured the head of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from planner.errors import CalibrationError
from planner.model.operators import gemms
from planner.model.records import Model

#: Sizes of messages [bytes]: both sides of HCCL's algorithm switches (64 KiB, 256 KiB, 1 MiB, 16 MiB) and beyond.
MESSAGES: Final = tuple(2**power for power in (10, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28))
#: Largest message of a CPU sweep: a second and more beyond [bytes].
CPU_MESSAGE: Final = 2**24
COLLECTIVES: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One point to measure; fields as in ``planner.observe.points.Point``."""

    kind: str
    op: str
    dtype: str = "float32"
    mode: str = "graph"
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The task in words, equal for equal tasks."""
        sizes = " ".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        return " ".join(word for word in (self.mode, self.op, self.dtype, sizes) if word)

    def to_dict(self) -> dict[str, Any]:
        """The task as a child program reads it."""
        return {
            "id": self.key, "kind": self.kind, "op": self.op, "dtype": self.dtype, "mode": self.mode,
            "sizes": dict(self.sizes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Layers whose operations are measured.

    Attributes
    ----------
    layers : tuple of (tokens, hidden, ffn)
        Tokens of a micro-batch on one rank and widths as one tensor-parallel rank has them, most usual first.
    head_dim, seq, vocab : int
        Width of a head, length of a sample, vocabulary of the loss.
    dtypes : tuple of str
        Types of matmuls, the one that networks compute in first.
    matmuls : tuple of (m, k, n)
        Further shapes.
    """

    layers: tuple[tuple[int, int, int], ...]
    head_dim: int
    seq: int
    vocab: int
    dtypes: tuple[str, ...]
    matmuls: tuple[tuple[int, int, int], ...] = ()


#: Decoders of 0.5 to 20 million parameters a layer, as a CPU trains them in tests.
CPU: Final = Shapes(
    layers=(
        (512, 256, 704), (1024, 512, 1408), (256, 256, 704), (512, 128, 352), (512, 384, 1024), (2048, 256, 704),
        (256, 512, 1408), (128, 256, 704), (1024, 128, 352), (1024, 768, 2048),
    ),
    head_dim=32, seq=128, vocab=2048, dtypes=("float32", "float16", "bfloat16"),
)  # fmt: skip

#: Layers of 7B to 70B decoders under tp 1 to 8, micro-batches of 4096 and 8192 tokens.
ASCEND: Final = Shapes(
    layers=(
        (4096, 4096, 11008), (4096, 5120, 13824), (8192, 4096, 14336), (4096, 8192, 28672), (4096, 5120, 25600),
        (8192, 2048, 5504), (4096, 2560, 9728), (16384, 4096, 11008),
    ),
    head_dim=128, seq=4096, vocab=32768, dtypes=("bfloat16", "float16", "float32"),
)  # fmt: skip
TP: Final = (1, 8, 2, 4)


def shapes_for(device: str) -> Shapes:
    """Usual layers of a kind of device."""
    return CPU if device == "CPU" else ASCEND


def shapes_of(model: Model, seq: int, tp: Sequence[int], base: Shapes) -> Shapes:
    """Layers of one model first: every matmul of its layers under the given tensor-parallel degrees.

    Raises
    ------
    CalibrationError
        A degree does not divide the model's heads.
    """
    wrong = [each for each in tp if model.attention.heads % each]
    if wrong:
        raise CalibrationError(f"--tp {wrong[0]} does not divide the {model.attention.heads} heads of {model.name}.")
    matmuls = []
    for each in tp:
        for gemm in gemms(model, model.layer_kinds[-1]):
            if gemm.shard.startswith("expert"):
                continue
            width = gemm.n // each if gemm.shard == "column" else gemm.n
            depth = gemm.k // each if gemm.shard == "row" else gemm.k
            matmuls.append((seq, depth, width))
    own = (seq, model.hidden, model.ffn // tp[0])
    return Shapes(
        layers=(own, *base.layers), head_dim=model.attention.head_dim, seq=seq, vocab=model.vocab, dtypes=base.dtypes,
        matmuls=tuple(dict.fromkeys(matmuls)),
    )  # fmt: skip


def operator_tasks(shapes: Shapes, device: str) -> tuple[Task, ...]:
    """Everything one process can measure, most needed first, nothing twice."""
    dtype = shapes.dtypes[0]
    tasks = [*_starts(shapes, dtype), *_layer(shapes, shapes.layers[0], dtype)]
    tasks += _matmuls(matmul_shapes(shapes, device)[:12], dtype)
    tasks += [*_loss(shapes, dtype), *_optimizer(device), *_streams(device)]
    for layer in shapes.layers[1:3]:
        tasks += _layer(shapes, layer, dtype)
    tasks += _matmuls(matmul_shapes(shapes, device), dtype)
    tasks += _more(shapes, device)
    return tuple({task.key: task for task in tasks}.values())


def matmul_shapes(shapes: Shapes, device: str) -> list[tuple[int, int, int]]:
    """Products of the layers, the head, and their shards, spread so that any head of the list covers the range."""
    found = list(shapes.matmuls)
    degrees = (1,) if device == "CPU" else TP
    for tp in degrees:
        for tokens, hidden, ffn in shapes.layers:
            found += [(tokens, hidden, ffn // tp), (tokens, ffn // tp, hidden), (tokens, hidden, hidden // tp)]
    found += [(tokens, hidden, shapes.vocab) for tokens, hidden, _ in shapes.layers[:4]]
    unique = list(dict.fromkeys(found))
    own = len(shapes.matmuls)
    return unique[:own] + _spread(unique[own:])


def _spread(items: list[Any]) -> list[Any]:
    """Items in an order whose every prefix is spread over the list: by the reversed binary digits of their place."""
    bits = max(1, (len(items) - 1).bit_length())
    return [items[i] for i in sorted(range(len(items)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))]


def _starts(shapes: Shapes, dtype: str) -> Iterable[Task]:
    yield Task(kind="launch", op="tiny")
    yield Task(kind="launch", op="tiny", mode="pynative")
    yield Task(kind="launch", op="step", sizes={"rows": 4, "columns": shapes.seq})
    for elements in (2**18, 2**20, 2**22):
        yield Task(kind="vector", op="add", dtype=dtype, sizes={"elements": elements})


def _layer(shapes: Shapes, layer: tuple[int, int, int], dtype: str) -> Iterable[Task]:
    tokens, hidden, ffn = layer
    seq = min(shapes.seq, tokens)
    heads = {
        "batch": max(1, tokens // seq), "heads": max(1, hidden // shapes.head_dim), "seq": seq,
        "head_dim": shapes.head_dim,
    }  # fmt: skip
    yield from _matmuls([(tokens, hidden, ffn), (tokens, ffn, hidden), (tokens, hidden, hidden)], dtype)
    for op in ("batched_matmul", "flash", "flash_backward"):
        yield Task(kind="attention", op=op, dtype=dtype, sizes=heads)
    for name in ("scores", "rotary"):
        for op in (name, f"{name}_backward"):
            yield Task(kind="vector", op=op, dtype=dtype, sizes=heads)
    for name, columns in (("norm", hidden), ("rms_norm", hidden), ("gate", ffn), ("swiglu", ffn)):
        for op in (name, f"{name}_backward"):
            yield Task(kind="vector", op=op, dtype=dtype, sizes={"rows": tokens, "columns": columns})


def _matmuls(shapes: Iterable[tuple[int, int, int]], dtype: str) -> Iterable[Task]:
    for m, k, n in shapes:
        for op in ("matmul", "matmul_backward"):
            yield Task(kind="matmul", op=op, dtype=dtype, sizes={"m": m, "k": k, "n": n})


def _loss(shapes: Shapes, dtype: str) -> Iterable[Task]:
    for tokens, hidden, _ in shapes.layers[:2]:
        yield Task(kind="loss", op="cross_entropy", dtype=dtype, sizes={"rows": tokens, "vocab": shapes.vocab})
        for op in ("embedding", "embedding_backward"):
            sizes = {"rows": tokens, "vocab": shapes.vocab, "columns": hidden}
            yield Task(kind="embedding", op=op, sizes=sizes)


def _optimizer(device: str) -> Iterable[Task]:
    for power in (16, 18, 20, 22) if device == "CPU" else (20, 22, 24, 26):
        yield Task(kind="optimizer", op="adamw", sizes={"parameters": 2**power})


def _streams(device: str) -> Iterable[Task]:
    powers = (20, 22, 24) if device == "CPU" else (24, 26, 28)
    for power in powers:
        yield Task(kind="copy", op="copy", sizes={"elements": 2**power})
    for op in ("host_to_device", "device_to_host"):
        yield Task(kind="host_copy", op=op, sizes={"bytes": 2**24})


def _more(shapes: Shapes, device: str) -> Iterable[Task]:
    """Other types, grouped products of experts, operators one by one."""
    tokens, hidden, ffn = shapes.layers[0]
    for dtype in shapes.dtypes[1:]:
        yield Task(kind="matmul", op="matmul", dtype=dtype, sizes={"m": tokens, "k": hidden, "n": ffn})
        yield Task(kind="copy", op="cast", dtype=dtype, sizes={"elements": 2**22})
    for groups, width in ((4, 4), (8, 8)):
        sizes = {"m": tokens, "k": hidden, "n": max(1, ffn // width), "groups": groups}
        yield Task(kind="grouped_matmul", op="grouped_matmul", dtype=shapes.dtypes[0], sizes=sizes)
    for task in _layer(shapes, shapes.layers[0], shapes.dtypes[0]):
        if task.op in ("matmul", "norm", "gate"):
            yield Task(kind=task.kind, op=task.op, dtype=task.dtype, mode="pynative", sizes=task.sizes)


def collective_tasks(device: str, ranks: int, nodes: int) -> tuple[Task, ...]:
    """Collectives of every group size, whole groups first, and matmuls that all ranks do at the same time."""
    per_node = ranks // nodes
    groups = [(ranks, nodes)]
    groups += [(size, 1) for size in (8, 4, 2) if size < ranks and size <= per_node]
    groups += [(2 * nodes, nodes)] if nodes > 1 and per_node > 2 else []
    sizes = [size for size in MESSAGES if device != "CPU" or size <= CPU_MESSAGE]
    tasks = []
    for size, across in groups:
        for op in COLLECTIVES:
            if op == "sendrecv" and size != groups[0][0]:
                continue
            members, span = (2, min(across, 2)) if op == "sendrecv" else (size, across)
            for count in _spread(sizes):
                where = {"bytes": count, "ranks": members, "nodes": span}
                tasks.append(Task(kind="collective", op=op, sizes=where))
    shapes = shapes_for(device)
    crowd = [(tokens, hidden, ffn) for tokens, hidden, ffn in shapes.layers[:2]]
    for m, k, n in crowd:
        tasks.append(
            Task(kind="matmul", op="matmul", dtype=shapes.dtypes[0], sizes={"m": m, "k": k, "n": n, "ranks": per_node})
        )
    return tuple(tasks[-len(crowd) :] + tasks[: -len(crowd)])
