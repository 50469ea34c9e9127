"""Models and clusters that the search tests share, written out so that no data file decides a test."""

from __future__ import annotations

from planner.cluster.records import Cluster, Device, Fabric, Hardware
from planner.legality.apply import Context
from planner.model.records import Attention, Model, Moe, Workload
from planner.units import GIB


def gqa(heads: int, kv_heads: int, head_dim: int = 128) -> Attention:
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def dense(layers: int = 8, hidden: int = 1024, heads: int = 8, kv_heads: int = 8, **sizes: object) -> Model:
    values = {"ffn": 4096, "vocab": 32_000, "name": f"dense-{layers}", "family": "llama"} | sizes
    attention = gqa(heads, kv_heads)
    return Model(hidden=hidden, attention=attention, layer_kinds=("dense",) * layers, **values)  # type: ignore[arg-type]


def moe(layers: int = 8, experts: int = 16, dense_layers: int = 0, **sizes: object) -> Model:
    values = {"ffn": 4096, "vocab": 32_000, "name": f"moe-{layers}x{experts}", "family": "qwen3_moe"} | sizes
    mixture = Moe(experts=experts, topk=min(4, experts), expert_ffn=1024)
    kinds = ("dense",) * dense_layers + ("moe",) * (layers - dense_layers)
    return Model(hidden=1024, attention=gqa(8, 8), layer_kinds=kinds, moe=mixture, **values)  # type: ignore[arg-type]


#: Llama-3.1-70B: 80 layers, hidden 8192, 64 heads of 128, 8 key/value heads, 70 553 706 496 parameters.
LLAMA_70B = dense(80, 8192, 64, 8, ffn=28_672, vocab=128_256, name="llama-3.1-70b")

#: DeepSeek-V3: 61 layers, 3 dense, 256 experts top-8 with one shared, MLA, one MTP module.
DEEPSEEK_V3 = Model(
    name="deepseek-v3",
    family="deepseek_v3",
    hidden=7168,
    ffn=18_432,
    vocab=129_280,
    attention=Attention(
        kind="mla",
        heads=128,
        kv_heads=128,
        head_dim=192,
        v_head_dim=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_dim=128,
        qk_rope_dim=64,
    ),
    layer_kinds=("dense",) * 3 + ("moe",) * 58,
    moe=Moe(experts=256, topk=8, expert_ffn=2048, shared_ffn=2048, router_bias=True),
    mtp_layers=1,
)

DEVICE_910B = Device(
    name="Ascend 910B2",
    vendor="ascend",
    peak_flop_per_s={"bfloat16": 353.9e12, "float16": 376e12, "float32": 99.5e12},
    vector_flop_per_s=22e12,
    hbm_bytes=64 * GIB,
    visible_bytes=61 * GIB,
    usable_bytes=58 * GIB,
    hbm_bytes_per_s=1.76e12,
    host_bytes_per_s=20e9,
)

NODE_910B = Hardware(
    name="910b2",
    aliases=(),
    description="8 devices in a full mesh",
    device=DEVICE_910B,
    devices_per_node=8,
    node=Fabric(kind="mesh", devices=8, link_bytes_per_s=28e9, latency_s=1e-6),
    superpod=None,
    nic_bytes_per_s=22.6e9,
    nic_latency_s=5e-6,
)

NODE_910A = Hardware(
    name="910a",
    aliases=(),
    description="8 devices in two quads",
    device=Device(
        name="Ascend 910A",
        vendor="ascend",
        peak_flop_per_s={"float16": 256e12},
        vector_flop_per_s=16e12,
        hbm_bytes=32 * GIB,
        visible_bytes=31 * GIB,
        usable_bytes=29 * GIB,
        hbm_bytes_per_s=1.2e12,
        host_bytes_per_s=12e9,
    ),
    devices_per_node=8,
    node=Fabric(kind="quads", devices=8, link_bytes_per_s=30e9, latency_s=1e-6, quad_size=4, bridge_bytes_per_s=16e9),
    superpod=None,
    nic_bytes_per_s=12e9,
    nic_latency_s=5e-6,
)


def context(
    model: Model = LLAMA_70B,
    cards: int = 64,
    seq: int = 4096,
    batch: int = 64,
    hardware: Hardware = NODE_910B,
    tp_across_nodes: bool = False,
    **workload: object,
) -> Context:
    return Context(
        model=model,
        workload=Workload(seq=seq, global_batch=batch, **workload),  # type: ignore[arg-type]
        cluster=Cluster(hardware=hardware, devices=cards),
        tp_across_nodes=tp_across_nodes,
    )
