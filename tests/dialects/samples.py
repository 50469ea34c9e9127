"""Plans that the emission tests share: every family, layouts with each feature, real sizes."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.strategies import Strategy
from planner.model.load import find
from planner.model.records import DENSE, MOE, Attention, Model, Moe, Workload
from planner.plan import Plan


def even_layers(layers: int, pp: int, vpp: int = 1) -> tuple[tuple[int, ...], ...]:
    """Layers dealt to chunks as evenly as can be, the rest to the first."""
    share, rest = divmod(layers, pp * vpp)
    flat = [share + (i < rest) for i in range(pp * vpp)]
    return tuple(tuple(flat[chunk * pp : (chunk + 1) * pp]) for chunk in range(vpp))


def plan(
    model: Model,
    *,
    full: int | tuple[int, ...] = 0,
    selective: int | tuple[int, ...] = 0,
    layers: tuple[tuple[int, ...], ...] | None = None,
    seq: int = 4096,
    workload: Workload | None = None,
    **degrees: object,
) -> Plan:
    """Plan with whatever is not given filled in."""
    values: dict[str, object] = {"dp": 1, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "micro_batches": 8, **degrees}
    pp, vpp, tp, cp, dp = (int(values[key]) for key in ("pp", "vpp", "tp", "cp", "dp"))  # type: ignore[call-overload]
    values.setdefault("sequence_parallel", tp > 1)
    values.setdefault("schedule", "interleaved" if vpp > 1 else "1f1b")
    values.setdefault("optimizer_shard", dp * cp if values.get("zero_level", 1) else 1)
    placed = layers or even_layers(model.layers, pp, vpp)
    strategy = Strategy(
        layers=placed,
        recompute_full=full if isinstance(full, tuple) else (full,) * pp,
        recompute_selective=selective if isinstance(selective, tuple) else (selective,) * pp,
        **values,  # type: ignore[arg-type]
    )
    batch = dp * strategy.micro_batch_size * strategy.micro_batches
    base = workload or Workload(seq=seq, global_batch=batch)
    return Plan(
        model=model,
        workload=replace(base, global_batch=batch),
        hardware="910B2",
        devices=strategy.devices,
        strategy=strategy,
    )


def small(family: str, **changes: object) -> Model:
    """A small member of a family, whose network builds in seconds."""
    att = Attention(heads=16, kv_heads=8, head_dim=64, v_head_dim=64, qk_norm=family.startswith("qwen3"))
    base = Model(
        name=f"small-{family}", family=family, hidden=1024, ffn=3072, vocab=32000, layer_kinds=(DENSE,) * 8,
        attention=att,
    )  # fmt: skip
    if family == "qwen3_moe":
        moe = Moe(experts=16, topk=4, expert_ffn=512)
        base = replace(base, layer_kinds=(MOE,) * 8, moe=moe)
    if family == "deepseek_v3":
        latent = Attention(
            kind="mla", heads=16, kv_heads=16, head_dim=96, v_head_dim=64, q_lora_rank=256, kv_lora_rank=128,
            qk_nope_dim=64, qk_rope_dim=32,
        )  # fmt: skip
        moe = Moe(experts=16, topk=4, expert_ffn=512, shared_ffn=512, router_bias=True)
        base = replace(
            base, attention=latent, layer_kinds=(DENSE,) + (MOE,) * 7, moe=moe, mtp_layers=1
        )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def wide_values(model: Model) -> Model:
    """Value heads as wide as query heads, which head exchange in MindFormers needs."""
    return replace(model, attention=replace(model.attention, v_head_dim=model.attention.head_dim))


def telechat3() -> Model:
    """TeleChat3-36B (the sizes of MindFormers' own pretrain_telechat3_36b.yaml)."""
    att = Attention(heads=48, kv_heads=8, head_dim=128, v_head_dim=128)
    return Model(
        name="TeleChat3-36B", family="telechat3", hidden=6144, ffn=24576, vocab=131072, layer_kinds=(DENSE,) * 64,
        attention=att, max_seq=8192,
    )  # fmt: skip


def golden() -> dict[str, Plan]:
    """Plans whose files are kept and reviewed."""
    return {
        "llama-3.1-70b-64": plan(
            find("Llama-3.1-70B"), dp=2, tp=8, pp=4, micro_batches=16, full=(10, 8, 6, 4)
        ),
        "qwen3-32b-64": plan(
            find("Qwen3-32B"), dp=4, tp=4, pp=4, micro_batches=16, layers=((15, 16, 17, 16),), full=(8, 4, 0, 0),
            selective=(2, 2, 2, 0), optimizer_shard=2,
        ),
        "qwen3-30b-a3b-16": plan(find("Qwen3-30B-A3B"), dp=2, tp=2, pp=4, ep=4, micro_batches=16, full=6),
        "deepseek-v3-1024": plan(
            find("DeepSeek-V3"), dp=16, tp=8, pp=8, vpp=2, ep=64, micro_batches=32,
            layers=((4,) * 8, (4,) * 7 + (1,)), full=(8, 8, 8, 8, 8, 8, 8, 5), swap_optimizer=True,
        ),
    }  # fmt: skip


def golden_native() -> dict[str, Plan]:
    """Plans whose MindSpore scripts are kept and reviewed."""
    return {"llama-3.1-8b-16": plan(find("Llama-3.1-8B"), dp=2, tp=4, pp=2, micro_batches=8, full=(4, 0))}


def golden_mindspeed() -> dict[str, Plan]:
    """Plans whose MindSpeed-LLM scripts are kept and reviewed."""
    work = Workload(seq=8192, global_batch=1, params_dtype="bfloat16", master_weights=True, framework="mindspeed")
    return {
        "qwen2.5-72b-64": plan(find("Qwen2.5-72B"), dp=2, tp=8, pp=4, micro_batches=32, full=6, workload=work),
        "deepseek-v3-1024": plan(
            find("DeepSeek-V3"), dp=16, tp=8, pp=8, vpp=2, ep=64, micro_batches=32,
            layers=((4,) * 8, (4,) * 7 + (1,)), full=5, swap_optimizer=True, workload=work,
        ),
    }  # fmt: skip


def golden_pynative() -> dict[str, Plan]:
    """Plans whose PyNative files are kept and reviewed."""
    work = Workload(seq=4096, global_batch=1, params_dtype="bfloat16", framework="mindformers-pynative")
    return {
        "qwen3-32b-64": plan(find("Qwen3-32B"), dp=8, tp=4, pp=2, zero_level=3, full=8, workload=work),
        "deepseek-v3-512": plan(
            find("DeepSeek-V3"), dp=16, tp=4, pp=8, vpp=2, ep=32, zero_level=3, full=2,
            layers=((4,) * 8, (4,) * 7 + (1,)), workload=work,
        ),
    }  # fmt: skip


def matrix() -> dict[str, Plan]:
    """Plans that MindFormers itself must load and build exactly: families x layouts."""
    llama, qwen, moe, latent = (small(name) for name in ("llama", "qwen3", "qwen3_moe", "deepseek_v3"))
    eleven = (DENSE,) * 11
    return {
        **golden(),
        "telechat3-vpp": plan(telechat3(), dp=1, tp=8, pp=2, vpp=2, micro_batches=4, full=28),
        "llama-1": plan(llama),
        "llama-dp-zero0": plan(llama, dp=8, zero_level=0),
        "llama-uneven": plan(
            replace(llama, layer_kinds=eleven), dp=2, tp=2, pp=4, layers=((2, 3, 4, 2),), full=(2, 1, 0, 0)
        ),
        "llama-vpp": plan(llama, dp=2, tp=2, pp=2, vpp=2, full=(3, 1), selective=(1, 2)),
        "llama-hybrid-cp": plan(llama, tp=2, cp=4, pp=2, cp_algorithm="hybrid", ulysses_degree=2),
        "llama-ulysses": plan(llama, tp=2, cp=2, pp=2, cp_algorithm="ulysses", ulysses_degree=2),
        "llama-tied": plan(replace(llama, tied_embeddings=True), dp=4, tp=2),
        "qwen3-tied": plan(replace(qwen, tied_embeddings=True), dp=4, tp=2, zero_level=2),
        "qwen3-ring": plan(qwen, dp=2, tp=2, pp=2, cp=2, seq=8192),
        "latent-ulysses": plan(
            wide_values(latent), tp=2, cp=4, pp=2, ep=2, cp_algorithm="ulysses", ulysses_degree=4, seq=32768
        ),
        "latent-hybrid-cp": plan(wide_values(latent), tp=2, cp=4, pp=2, ep=2, cp_algorithm="hybrid", ulysses_degree=2),
        "qwen3-zbv": plan(
            qwen, dp=2, tp=2, pp=2, vpp=2, schedule="zero_bubble_v", layers=((3, 2), (1, 2)), full=(3, 1)
        ),
        "qwen3-gpipe": plan(qwen, dp=2, pp=4, schedule="gpipe", micro_batch_size=2),
        "qwen3-vpp4-uneven": plan(
            replace(qwen, layer_kinds=eleven), dp=2, pp=2, vpp=4, layers=((2, 1), (2, 1), (1, 2), (1, 1)), full=(5, 0)
        ),
        "qwen3-zero3": plan(qwen, dp=8, tp=2, zero_level=3),
        "qwen3-bf16-params": plan(
            qwen, dp=2, workload=Workload(seq=4096, global_batch=1, params_dtype="bfloat16", grads_dtype="bfloat16")
        ),
        "qwen3-muon": plan(qwen, dp=2, tp=2, workload=Workload(seq=4096, global_batch=1, optimizer="Muon", moments=1)),
        "moe-ep-over-tp": plan(moe, dp=2, tp=4, pp=2, ep=8, full=4),
        "moe-vpp": plan(moe, dp=4, tp=2, pp=2, vpp=2, ep=4, full=(1, 2), selective=(3, 0)),
        "latent-mtp": plan(latent, dp=4, tp=2, pp=2, ep=4, layers=((5, 3),)),
        "latent-no-mtp": plan(replace(latent, mtp_layers=0), dp=4, tp=2, pp=2, ep=2),
        "latent-direct-queries": plan(
            replace(latent, attention=replace(latent.attention, q_lora_rank=0)), dp=2, tp=2, pp=2, ep=2
        ),
        "llama-no-sp": plan(llama, dp=2, tp=4, sequence_parallel=False, micro_batch_size=2),
        "llama-seqpipe": plan(llama, dp=2, tp=2, pp=2, vpp=2, schedule="seqpipe"),
        "llama-zero3-swap": plan(llama, dp=4, tp=2, zero_level=3, swap_optimizer=True, full=8),
        "llama-fp16": plan(
            llama, dp=2, pp=2,
            workload=Workload(seq=2048, global_batch=1, params_dtype="float16", compute_dtype="float16"),
        ),
        "mistral": plan(replace(llama, family="mistral"), dp=2, tp=2, pp=2, selective=(2, 0)),
        "qwen3-pp3": plan(replace(qwen, layer_kinds=(DENSE,) * 10), tp=2, pp=3, layers=((3, 4, 3),), full=(1, 0, 0)),
        "qwen3-bias-wide-heads": plan(
            replace(qwen, attention=replace(qwen.attention, head_dim=128, v_head_dim=128, qkv_bias=True)), dp=2, tp=4
        ),
        "qwen3-shard-group": plan(qwen, dp=8, pp=2, optimizer_shard=4, micro_batch_size=4, seq=16384),
        "telechat3-uneven": plan(
            replace(llama, family="telechat3", layer_kinds=eleven), dp=2, tp=2, pp=2, layers=((6, 5),), selective=(6, 2)
        ),
        "moe-tp1": plan(moe, dp=8, ep=8, micro_batches=2),
        "moe-tied-swap": plan(replace(moe, tied_embeddings=True), dp=2, tp=2, ep=4, swap_optimizer=True),
        "latent-one-stage": plan(latent, dp=4, tp=2, ep=8, full=8),
        "latent-uneven-vpp": plan(
            replace(latent, layer_kinds=(DENSE, DENSE) + (MOE,) * 7), dp=2, tp=2, pp=2, vpp=2, ep=4,
            layers=((3, 2), (2, 2)), full=(3, 1),
        ),
        "latent-vpp": plan(latent, dp=2, tp=2, pp=2, vpp=2, ep=4, layers=((2, 2), (2, 2)), full=(4, 2)),
        "moe-uneven-ring": plan(
            replace(moe, layer_kinds=(MOE,) * 7), tp=2, cp=2, pp=2, ep=2, layers=((4, 3),), full=(3, 0), seq=8192
        ),
        "moe-zbv": plan(moe, dp=2, tp=2, pp=2, vpp=2, ep=4, schedule="zero_bubble_v", full=(2, 3)),
        "latent-ring": plan(latent, tp=2, cp=2, pp=2, ep=2, selective=(2, 4), seq=8192),
        "telechat3-ring-list": plan(replace(llama, family="telechat3"), tp=2, cp=2, pp=2, full=(3, 1), seq=8192),
        **_telechat3_moe(latent),
        **_glm(llama),
    }  # fmt: skip


def _telechat3_moe(latent: Model) -> dict[str, Plan]:
    """Latent attention and experts under their second name, whose converter drops the widths of heads."""
    moe = replace(latent, family="telechat3_moe")
    return {
        "telechat3-105b-256": plan(find("TeleChat3-105B-A4B"), dp=4, tp=8, pp=8, layers=((5, 6, 6, 6, 6, 6, 6, 4),)),
        "telechat3-moe-uneven-vpp": plan(
            replace(moe, layer_kinds=(DENSE, DENSE) + (MOE,) * 7), dp=2, tp=2, pp=2, vpp=2, ep=4,
            layers=((3, 2), (2, 2)), full=(3, 1),
        ),
        "telechat3-moe-ring": plan(replace(moe, mtp_layers=0), tp=2, cp=2, pp=2, ep=2, selective=(4, 1), seq=8192),
    }  # fmt: skip


def _glm(llama: Model) -> dict[str, Plan]:
    """The GLM network: two norms a layer, four, and ChatGLM."""
    att = replace(llama.attention, kv_heads=2, qkv_bias=True)
    small_glm = replace(llama, family="glm", attention=att, layer_kinds=(DENSE,) * 9)
    return {
        "glm-4-9b-16": plan(find("GLM-4-9B"), dp=4, tp=2, pp=2, layers=((21, 19),), full=(8, 4)),
        "glm-4-32b-0414": plan(find("GLM-4-32B-0414"), dp=2, tp=2, pp=4, layers=((15, 16, 16, 14),), full=(9, 6, 3, 0)),
        "chatglm3-6b-ring": plan(find("ChatGLM3-6B"), dp=2, tp=2, cp=2, pp=2, full=14),
        "glm-uneven-vpp-select": plan(
            small_glm, dp=2, tp=2, pp=2, vpp=2, layers=((3, 2), (2, 2)), full=(3, 1), selective=(1, 2)
        ),
        "glm4-biases": plan(
            replace(
                small_glm, family="glm4", norms_per_layer=4, mlp_bias=True, attention=replace(att, output_bias=True)
            ), dp=4, tp=2, zero_level=2, selective=3,
        ),
    }  # fmt: skip
