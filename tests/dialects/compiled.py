"""Small plans whose emitted files are compiled and trained by MindSpore's DryRun: families x layouts.

Few layers, so that a stage compiles in about half a minute; every layout feature appears once.
"""

from __future__ import annotations

from dataclasses import replace

from planner.model.records import DENSE, MOE, Attention, Model, Moe, Workload
from planner.plan import Plan
from tests.dialects.samples import plan


def tiny(family: str, layers: int, **changes: object) -> Model:
    """Model of a family with hidden size 1024, 16 heads and a vocabulary of 32000."""
    att = Attention(heads=16, kv_heads=8, head_dim=64, v_head_dim=64, qk_norm=family.startswith("qwen3"))
    base = Model(
        name=f"tiny-{family}", family=family, hidden=1024, ffn=3072, vocab=32000, layer_kinds=(DENSE,) * layers,
        attention=att,
    )  # fmt: skip
    if family == "qwen3_moe":
        base = replace(base, layer_kinds=(MOE,) * layers, moe=Moe(experts=8, topk=2, expert_ffn=512))
    if family == "deepseek_v3":
        latent = Attention(
            kind="mla", heads=16, kv_heads=16, head_dim=96, v_head_dim=64, q_lora_rank=512, kv_lora_rank=256,
            qk_nope_dim=64, qk_rope_dim=32,
        )  # fmt: skip
        moe = Moe(experts=8, topk=2, expert_ffn=512, shared_ffn=512, router_bias=True)
        base = replace(base, attention=latent, layer_kinds=(DENSE,) + (MOE,) * (layers - 1), moe=moe, mtp_layers=1)
    return replace(base, **changes)  # type: ignore[arg-type]


def glm(layers: int) -> Model:
    """GLM: biases in queries, keys and values, two key/value heads."""
    base = tiny("llama", layers)
    attention = replace(base.attention, kv_heads=2, qkv_bias=True)
    return replace(base, name="tiny-glm", family="glm", attention=attention)


def legacy(**changes: object) -> Workload:
    """Workload of the legacy dialect."""
    return Workload(seq=4096, global_batch=1, framework="mindformers-legacy", **changes)  # type: ignore[arg-type]


def compiled() -> dict[str, Plan]:
    """Plans by name."""
    return {
        "llama-uneven-list": plan(
            tiny("llama", 5), dp=2, tp=2, pp=2, micro_batches=2, layers=((3, 2),), full=(2, 0), workload=legacy()
        ),
        "llama-vpp-select": plan(
            tiny("llama", 6), tp=2, pp=2, vpp=2, micro_batches=4, layers=((2, 1), (1, 2)), full=(1, 0),
            selective=(1, 2), workload=legacy(),
        ),
        "qwen3-ring": plan(tiny("qwen3", 4), tp=2, pp=2, cp=2, micro_batches=2, seq=4096),
        "qwen3-zbv": plan(
            tiny("qwen3", 5), tp=2, pp=2, vpp=2, micro_batches=4, schedule="zero_bubble_v", layers=((1, 1), (1, 2)),
            seq=4096,
        ),
        "qwen3-tied-zero0": plan(
            tiny("qwen3", 4, tied_embeddings=True), dp=2, tp=2, pp=2, micro_batches=2, zero_level=0, seq=4096
        ),
        "moe-ep-list": plan(
            tiny("qwen3_moe", 4), dp=2, tp=2, pp=2, ep=4, micro_batches=2, full=(1, 2), seq=4096
        ),
        "latent-mtp-uneven": plan(
            tiny("deepseek_v3", 4), dp=2, tp=2, pp=2, ep=2, micro_batches=2, layers=((3, 1),), full=(3, 0), seq=4096
        ),
        "telechat3-full": plan(tiny("telechat3", 4), dp=2, tp=2, pp=2, micro_batches=2, full=2, seq=4096),
        "glm-uneven-list": plan(
            glm(5), dp=2, tp=2, pp=2, micro_batches=2, layers=((3, 2),), full=(2, 0), workload=legacy()
        ),
    }  # fmt: skip
