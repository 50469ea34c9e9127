"""Points of the DryRun grid: a few base networks, one thing varied at a time, then mixed points to hold out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any

from configs import Point

QWEN3 = Point(family="qwen3")
LLAMA = Point(family="llama")
MOE = Point(family="qwen3_moe", experts=16, topk=4, moe_ffn=512, dp=4, ep=4)
DEEPSEEK = Point(
    family="deepseek3", experts=16, topk=4, moe_ffn=512, shared=1, first_dense=1, dp=4, ep=4,
    q_lora=384, kv_lora=256, qk_nope=64, qk_rope=32, v_dim=64, mtp=1,
)  # fmt: skip


def ci_points() -> list[Point]:
    """Six small networks, dense and MoE, each with a pipeline: the tests run them again and compare with the record."""
    small = {"layers": 2, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1536, "vocab": 8192, "seq": 1024}
    experts = {"experts": 8, "topk": 2, "moe_ffn": 256, "dp": 2, "ep": 2}
    return [
        *_both_ends(replace(LLAMA, **small)),
        replace(QWEN3, **small),
        replace(QWEN3, **small, stage=1, recompute=True),
        replace(MOE, **small | experts),
        replace(DEEPSEEK, **small | experts | {"seq": 2048}, stage=1),
    ]


def all_points() -> list[Point]:
    """Every point once, in order of worth: the families take turns."""
    qwen3, moe, llama, deepseek = (replace(base, layers=2, first_dense=0) for base in (QWEN3, MOE, LLAMA, DEEPSEEK))
    lists = [
        [*_core(QWEN3), *_schedules(QWEN3), *_precision(qwen3), *_mixed_qwen3(), *_mixed_context(),
         *_dense_more(qwen3), *_long(qwen3), *_context_head(qwen3)],
        [*_moe_core(MOE), *_precision(moe), *_mixed_moe(), *_moe_more(moe), *_schedules(MOE), *_long(moe)],
        [*_core(LLAMA), *_precision(llama), *_mixed_llama(), *_mixed_parts(), *_dense_more(llama), *_schedules(LLAMA),
         *_long(llama)],
        [*_moe_core(DEEPSEEK), *_deepseek_only(DEEPSEEK), *_precision(deepseek), *_mixed_deepseek(),
         *_moe_more(deepseek), *_long(deepseek)],
    ]  # fmt: skip
    turns = chain.from_iterable(zip_longest(*lists))
    ordered = [*ci_points(), *_deep(), *_settings(), *(point for point in turns if point is not None)]
    return list({repr(point): point for point in ordered}.values())


def _both_ends(point: Point) -> Iterator[Point]:
    yield replace(point, stage=0)
    yield replace(point, stage=point.pp - 1)


def _variants(point: Point, changes: Iterable[dict[str, Any]]) -> Iterator[Point]:
    for change in changes:
        yield replace(point, **change)


def _core(base: Point) -> Iterator[Point]:
    """Differences every term of a dense model can be read from."""
    small = replace(base, layers=2)
    yield from _both_ends(base)
    yield from _both_ends(replace(base, recompute=True))
    yield replace(base, layers=8)
    yield from _both_ends(small)
    yield from _variants(small, [{"select_recompute": True}, {"mask_compression": True}, {"optimizer_shard": False}])
    yield from _variants(small, [{"sequence_parallel": False}, {"dp": 4}, {"dp": 1}])
    yield from _both_ends(replace(small, vocab=128256))
    yield from _both_ends(replace(small, tp=4))
    yield from _both_ends(replace(small, tp=1, sequence_parallel=False))
    yield from _variants(small, [{"pp": 1, "micro_batches": count} for count in (1, 2)])
    yield replace(base, recompute=[1, 0])
    yield from _variants(base, [{"pp": 4, "micro_batches": 4, "stage": stage} for stage in (0, 1, 3)])


def _moe_core(base: Point) -> Iterator[Point]:
    small = replace(base, layers=2, first_dense=0)
    yield from _both_ends(base)
    yield from _both_ends(replace(base, recompute=True))
    yield from _both_ends(small)
    yield from _variants(small, [{"ep": 1}, {"ep": 2}, {"topk": 2}, {"experts": 32}, {"moe_ffn": 1024}])
    yield from _variants(small, [{"recompute": True}, {"tp": 1, "sequence_parallel": False}, {"tp": 4}])
    yield from _variants(small, [{"optimizer_shard": False}, {"dp": 8}, {"select_recompute": True}])
    yield replace(base, layers=8)


def _dense_more(base: Point) -> Iterator[Point]:
    yield from _variants(
        base, [{"hidden": 2048, "heads": 32}, {"ffn": 6144}, {"kv_heads": 16}, {"mbs": 2}, {"seq": 8192}, {"seq": 2048}]
    )
    yield from _variants(
        base,
        [{"recompute": True}, {"recompute": [2, 1], "layers": 4}, {"recompute": [2, 1], "layers": 4, "stage": 1}],
    )
    yield from _variants(
        base, [{"recompute": True, "comm_recompute": False}, {"recompute": True, "optimizer_comm_recompute": True}]
    )
    yield from _variants(
        base, [{"grad_accum_shard": True}, {"clip_grad": False}, {"micro_batches": 4}, {"micro_batches": 8}]
    )
    yield from _variants(base, [{"cp": 2}, {"cp": 2, "stage": 1}, {"cp": 2, "cp_algo": "ulysses_cp"}])
    yield from _variants(base, [{"vocab": 128256, "tp": 4, "stage": 1}, {"vocab": 128256, "mbs": 2, "stage": 1}])
    yield from _variants(
        base, [{"pp": 1, "dp": 4}, {"pp": 1, "recompute": True}, {"pp": 1, "tp": 1, "sequence_parallel": False}]
    )


def _moe_more(base: Point) -> Iterator[Point]:
    yield from _variants(base, [{"seq": 8192}, {"mbs": 2}, {"hidden": 2048, "heads": 32}, {"select_recompute": True}])
    yield from _variants(
        base, [{"recompute": [1, 0]}, {"pp": 1}, {"pp": 4, "micro_batches": 4, "layers": 8, "stage": 1}]
    )
    yield from _variants(
        base, [{"grad_accum_shard": True}, {"vocab": 128256, "stage": 1}, {"recompute": True, "comm_recompute": False}]
    )
    yield from _variants(base, [{"sequence_parallel": True, "tp": 2, "ep": 8}, {"cp": 2}])


def _deepseek_only(base: Point) -> Iterator[Point]:
    small = replace(base, layers=2, first_dense=0)
    yield from _both_ends(replace(small, mtp=0))
    yield from _variants(small, [{"first_dense": 1}, {"shared": 0}, {"shared": 2}])
    yield from _variants(small, [{"q_lora": 768}, {"kv_lora": 512}, {"qk_rope": 64}, {"v_dim": 128, "qk_nope": 128}])
    yield from _variants(
        small, [{"q_lora": 0}, {"vocab": 129280, "stage": 1}, {"mtp": 0, "recompute": True, "stage": 1}]
    )


def _precision(base: Point) -> Iterator[Point]:
    yield from _both_ends(replace(base, param_dtype="bfloat16"))
    if base.family == "llama":
        yield replace(base, param_dtype="float16", compute_dtype="float16")
    if base.family == "qwen3":
        yield replace(base, fp32_residual=True)
        yield replace(base, param_dtype="bfloat16", optimizer_shard=False)


def _schedules(base: Point) -> Iterator[Point]:
    """More micro-batches than fill the pipeline, interleaved chunks, deeper pipelines, uneven layers."""
    yield from _variants(base, [{"micro_batches": 4}, {"vpp": 2, "micro_batches": 4}, {"vpp": 2, "micro_batches": 2}])
    yield replace(base, vpp=2, micro_batches=4, stage=1)
    if base.family != "qwen3":
        return
    yield from _both_ends(replace(base, layers=5, offset=[0, 1]))
    yield from _variants(base, [{"pp": 4, "micro_batches": 8, "stage": stage} for stage in (0, 2)])
    yield from _variants(base, [{"pp": 4, "vpp": 2, "micro_batches": count, "layers": 8} for count in (4, 8)])


def _long(base: Point) -> Iterator[Point]:
    if base.is_moe:
        yield replace(base, seq=16384, recompute=True)
        return
    yield from _both_ends(replace(base, seq=16384))
    yield from _both_ends(replace(base, seq=32768, cp=4, recompute=True))
    yield replace(base, seq=32768, recompute=True, mask_compression=True)


def _context_head(base: Point) -> Iterator[Point]:
    """Head and loss under context parallelism, where mcore networks exchange and gather the logits."""
    last = replace(base, cp=2, stage=1)
    yield from _variants(last, [{"cp": 4}, {"mbs": 2}, {"dp": 1}, {"tp": 4}, {"vocab": 128256}])


def _deep() -> Iterator[Point]:
    """Several layers a stage: what adds up over them, and what the compiler puts off until the last one is done."""
    wide = {"ffn": 3584, "kv_heads": 2, "mask_compression": True}
    alone = {"tp": 1, "sequence_parallel": False}
    mixed = {"recompute": [3, 2], "select_recompute": [4, 4]}
    yield replace(LLAMA, **wide, **alone, **mixed, dp=8, layers=8, grad_accum_shard=True)
    yield replace(LLAMA, **wide, **alone, select_recompute=True)
    yield replace(LLAMA, **wide, sequence_parallel=False, select_recompute=True)
    yield replace(LLAMA, **wide, select_recompute=True)
    yield replace(QWEN3, **wide, select_recompute=True)
    yield replace(LLAMA, **wide, layers=2, pp=1, micro_batches=1, select_recompute=True)
    short = {"seq": 2048, "mask_compression": True}
    for recompute in (False, True):
        yield replace(QWEN3, **short, ffn=3584, layers=8, grad_accum_shard=True, recompute=recompute)
    small = {**short, "vocab": 4000, "dp": 4, "pp": 1}
    yield replace(LLAMA, **small, layers=6, micro_batches=1)
    yield replace(LLAMA, **small, layers=6, grad_accum_shard=True)
    yield replace(MOE, **short, layers=6, grad_accum_shard=True)
    yield replace(LLAMA, **short, layers=8, vocab=4000, grad_accum_shard=True, stage=1)
    yield replace(MOE, **short, **alone, layers=6, grad_accum_shard=True, recompute=True)
    yield replace(LLAMA, **alone, cp=2, layers=8, mask_compression=True, grad_accum_shard=True, recompute=True)
    yield replace(DEEPSEEK, layers=6, first_dense=0, select_recompute=True)
    yield from _variants(replace(DEEPSEEK, first_dense=0, shared=0), [{}, {"recompute": True}])
    yield from _variants(replace(QWEN3, layers=2, dp=4, stage=1, vocab=16000), [{"cp": 2}, {"cp": 4}])
    interleaved = [{"micro_batches": count} for count in (4, 6, 8)]
    yield from _variants(replace(QWEN3, vpp=2, mask_compression=True), interleaved)
    yield from _variants(
        replace(QWEN3, layers=8, pp=4, vpp=2, mask_compression=True, micro_batches=8), [{}, {"micro_batches": 12}]
    )
    update = {"layers": 8, "seq": 512, "recompute": True}
    yield replace(LLAMA, **update, stage=1, vocab=2000)
    yield replace(LLAMA, **update, vocab=8000)
    yield replace(QWEN3, **update | {"layers": 16}, pp=4, micro_batches=4, stage=1)
    yield replace(LLAMA, **update | {"layers": 4}, pp=1, micro_batches=1, vocab=8000)
    narrow = {"param_dtype": "bfloat16", "seq": 1024, "vocab": 4000, "recompute": True}
    yield replace(LLAMA, **alone, **narrow, dp=8, layers=6, pp=1, micro_batches=1)


def _settings() -> Iterator[Point]:
    """What single settings of a file do: attention, masks, parts of a batch or a sequence, swapping, types."""
    llama, qwen3, moe = (replace(base, layers=2) for base in (LLAMA, QWEN3, MOE))
    yield from _both_ends(replace(llama, flash=False))
    yield from _variants(llama, [{"flash": False, "select_recompute": True}, {"swap_optimizer": True}])
    yield from _variants(
        LLAMA, [{"flash": False, "recompute": True}, {"flash": False, "seq": 2048, "tp": 4, "layers": 8}]
    )
    yield from _both_ends(replace(qwen3, flash=False))
    yield from (
        replace(QWEN3, flash=False, recompute=True),
        replace(moe, flash=False),
        replace(qwen3, swap_optimizer=True),
    )
    yield from _both_ends(replace(llama, cp=2, ring=True))
    yield from (
        replace(LLAMA, cp=2, ring=True, recompute=True, seq=16384),
        replace(LLAMA, cp=2, ring=True, layers=8, seq=8192),
    )
    yield from (replace(LLAMA, cp=4, ring=True, seq=16384), replace(qwen3, cp=2, ring=True))
    one = {"pp": 1, "micro_batches": 1, "interleave": 2}
    yield from _variants(llama, [one, {**one, "vocab": 128256}, {"interleave": 2}])
    yield replace(LLAMA, **one, recompute=True)
    pieces = replace(LLAMA, seq_split=2, mask_compression=True)
    yield from _both_ends(pieces)
    yield from _variants(pieces, [{"seq_split": 4}, {"mask_compression": False}])
    yield replace(pieces, pp=4, layers=8, micro_batches=4, dp=1)
    for base in (LLAMA, QWEN3):
        yield from _variants(base, [{"select_comm": True}, {"select_comm": True, "select_recompute": True}])
    half = replace(LLAMA, param_dtype="float16")
    alone = {"tp": 1, "sequence_parallel": False}
    narrow = {"seq": 1024, "vocab": 4000, "recompute": True, "layers": 6, "pp": 1, "micro_batches": 1}
    yield from _variants(half, [{}, {"recompute": True}, {"micro_batches": 4}, {"optimizer_shard": False}])
    yield from _variants(half, [{**narrow, **alone, "dp": 8}, {**narrow, "dp": 4}])
    yield from (
        replace(half, recompute=True, layers=8, vocab=4000),
        replace(QWEN3, **narrow, **alone, dp=8, param_dtype="float16"),
    )
    yield replace(llama, pp=1, micro_batches=1, dp=4, param_dtype="float16", recompute=True, **alone)
    swapped = {"layers": 8, "recompute": True, "seq": 512, "swap_optimizer": True}
    yield from (
        replace(LLAMA, **swapped),
        replace(QWEN3, **swapped),
        replace(llama, seq=512, swap_optimizer=True, stage=1),
    )


# Mixed points: several things changed at once. None of them is used to derive a term.
_WIDE = {"hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 8192, "vocab": 151936}


def _mixed_qwen3() -> Iterator[Point]:
    yield from _both_ends(replace(QWEN3, **_WIDE, tp=4, dp=2, mbs=2, recompute=[1, 1]))
    yield from _both_ends(replace(QWEN3, **_WIDE, tp=4, dp=4, select_recompute=True))
    deep = {"pp": 4, "layers": 8, "micro_batches": 4, "recompute": [2, 1, 1, 0]}
    yield replace(QWEN3, **_WIDE, tp=4, **deep, stage=2)


def _mixed_context() -> Iterator[Point]:
    """Long sequences cut over cp and recomputed, with the whole mask: both ends of the pipeline."""
    yield from _both_ends(replace(QWEN3, cp=2, seq=16384, recompute=True))
    last = replace(QWEN3, layers=2, seq=16384, stage=1)
    yield replace(QWEN3, layers=2, seq=32768, cp=4, recompute=True, stage=1)
    yield from _variants(last, [{"cp": 2, "dp": 4, "recompute": True}, {"cp": 4}, {"cp": 4, "dp": 4}])


def _mixed_parts() -> Iterator[Point]:
    """Batches in two parts with recompute and compressed masks."""
    both = replace(LLAMA, interleave=2, recompute=True, mask_compression=True, seq=8192)
    yield from _variants(both, [{"pp": 1, "micro_batches": 1}, {}])


def _mixed_llama() -> Iterator[Point]:
    wide = _WIDE | {"head_dim": 64, "vocab": 64000}
    yield from _both_ends(replace(LLAMA, **wide, tp=4, layers=6, recompute=[2, 1]))
    yield from _both_ends(replace(LLAMA, **wide, tp=4, pp=4, dp=1, layers=8, micro_batches=4, seq=2048, mbs=2))


def _mixed_moe() -> Iterator[Point]:
    wide = {**_WIDE, "experts": 32, "topk": 8, "moe_ffn": 768}
    yield from _both_ends(replace(MOE, **wide | {"ffn": 3072}, dp=8, ep=8, recompute=[1, 1]))
    yield from _both_ends(replace(MOE, **wide | {"ffn": 3072}, tp=4, layers=4, recompute=True))
    yield replace(MOE, **wide | {"ffn": 3072}, dp=8, ep=8, layers=4, recompute=True, mask_compression=True)
    yield replace(MOE, experts=32, topk=8, dp=8, ep=8, layers=8, recompute=[2, 2], mask_compression=True)
    yield replace(MOE, experts=32, topk=8, layers=16, recompute=True)


def _mixed_deepseek() -> Iterator[Point]:
    wide = {"hidden": 2048, "heads": 32, "experts": 32, "topk": 8, "moe_ffn": 768, "q_lora": 768, "kv_lora": 512,
            "qk_nope": 128, "qk_rope": 64, "v_dim": 128, "vocab": 129280, "ffn": 6144}  # fmt: skip
    yield from _both_ends(replace(DEEPSEEK, **wide, tp=4, ep=8, layers=5, offset=[1, 0], recompute=[1, 1]))
    yield from _both_ends(replace(DEEPSEEK, **wide, dp=8, ep=8, recompute=True))
