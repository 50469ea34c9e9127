"""Models, workloads and strategies of the memory tests."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.strategies import Strategy
from planner.model.records import Attention, LayerKind, Model, Moe, Workload

GIB = 2**30
MIB = 2**20


def dense(layers: int = 8, **changes: object) -> Model:
    """Dense network of the DryRun grid: h 1024, f 3072, 16 heads of 64, 8 key/value heads, vocabulary 32000."""
    attention = Attention(heads=16, kv_heads=8, head_dim=64, v_head_dim=64, qk_norm=True)
    kinds: tuple[LayerKind, ...] = ("dense",) * layers
    model = Model(
        name="dense", family="qwen3", hidden=1024, ffn=3072, vocab=32000, attention=attention, layer_kinds=kinds
    )  # fmt: skip
    return replace(model, **changes)  # type: ignore[arg-type]


def moe(layers: int = 4, dense_first: int = 0, **changes: object) -> Model:
    """The grid's Qwen3-MoE: 16 experts of width 512, 4 of them chosen."""
    kinds: tuple[LayerKind, ...] = ("dense",) * dense_first + ("moe",) * (layers - dense_first)
    return dense(layers, layer_kinds=kinds, moe=Moe(experts=16, topk=4, expert_ffn=512), **changes)


def llama2_7b(layers: int = 32) -> Model:
    """Llama-2-7B, cut to a number of layers."""
    attention = Attention(heads=32, kv_heads=32, head_dim=128, v_head_dim=128)
    return Model(
        name="llama-2-7b", family="llama", hidden=4096, ffn=11008, vocab=32000, attention=attention,
        layer_kinds=("dense",) * layers,
    )  # fmt: skip


def work(framework: str = "mindformers", **changes: object) -> Workload:
    """Sequence 4096; 16-bit parameters with a float32 copy outside MindFormers."""
    given: dict[str, object] = {"seq": 4096, "global_batch": 64, "framework": framework}
    if not framework.startswith("mindformers"):
        given |= {"params_dtype": "bfloat16", "master_weights": True}
    return Workload(**(given | changes))  # type: ignore[arg-type]


def plan(layers: tuple[tuple[int, ...], ...] = ((8,),), **changes: object) -> Strategy:
    """One strategy for the given layers of chunks and stages; nothing is recomputed."""
    pp = len(layers[0])
    given: dict[str, object] = {
        "dp": 1, "tp": 1, "pp": pp, "vpp": len(layers), "layers": layers, "recompute_full": (0,) * pp,
        "recompute_selective": (0,) * pp, "micro_batches": 4, "schedule": "interleaved" if len(layers) > 1 else "1f1b",
    }  # fmt: skip
    return Strategy(**(given | changes))  # type: ignore[arg-type]
