"""Read a MindSpeed-LLM or Megatron launch script back: model, workload and strategy from its flags."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from planner import frameworks
from planner.cost.strategies import Strategy
from planner.dialects.graph.read import ReadResult
from planner.dialects.mindspeed.given import Flags
from planner.dialects.mindspeed.placement import placement
from planner.dialects.weights import Unread
from planner.errors import SpecError
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe, Workload

_CP: Final = {"megatron_cp_algo": "ring", "ulysses_cp_algo": "ulysses", "hybrid_cp_algo": "hybrid",
              "hybrid_adaptive_cp_algo": "hybrid", "kvallgather_cp_algo": "ring", "adaptive_cp_algo": "ring",
              "mamba_cp_algo": "ring"}  # fmt: skip
#: Sizes of latent attention.
_LATENT: Final = ("--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim")
#: Flags that make the MLP a gated one (MindSpeed-LLM ``core/transformer/mlp.py``).
_GATED: Final = ("--swiglu", "--geglu", "--gelu-tanh")
_MOST_LAYERS: Final = 10_000


def read_mindspeed(
    text: str, *, source: str = "script", devices: int | None = None, vocab: int | None = None
) -> ReadResult:
    """Model, workload and strategy of a launch script.

    Parameters
    ----------
    text : str
    source : str
        File name, for messages.
    devices : int, optional
        Number of devices, where the script does not say how many there are.
    vocab : int, optional
        Tokens of the tokenizer, where the script leaves the vocabulary to it.

    Raises
    ------
    SpecError
    """
    flags = Flags(text, source)
    unread = Unread()
    layers = placement(flags)
    model = _model(flags, sum(map(sum, layers)), source, vocab)
    strategy = _strategy(flags, layers, devices, unread)
    compute = next((d for f, d in (("--bf16", "bfloat16"), ("--fp16", "float16")) if flags.has(f)), "float32")
    workload = Workload(
        seq=flags.integer("--seq-length"),
        global_batch=strategy.dp * strategy.micro_batch_size * strategy.micro_batches,
        params_dtype=compute,
        compute_dtype=compute,
        master_weights=compute != "float32",
        framework="mindspeed",
        flash_attention=_fused(flags),
        switches=_switches(flags),
    )
    flags.weigh(unread)
    return ReadResult(
        model=model,
        workload=workload,
        strategy=strategy,
        unread=unread.notes,
        unreliable=unread.reasons,
        dialect="mindspeed",
        per_node=flags.launched("--nproc_per_node", "--nproc-per-node") or 0,
    )


def _fused(flags: Flags) -> bool:
    """Whether attention runs as one operator: as asked for by name, or because Transformer Engine's own does.

    Megatron-LM's ``--attention-backend`` names it (``auto`` takes the fastest there is, ``unfused`` and ``local`` make
    the scores); without it ``--use-flash-attn`` asks for it, and Transformer Engine fuses by default.
    """
    asked, engine = flags.has("--use-flash-attn"), flags.text("--transformer-impl", "") == "transformer_engine"
    backend = flags.text("--attention-backend", "")
    return backend not in ("unfused", "local") if backend else asked or engine


def _switches(flags: Flags) -> tuple[str, ...]:
    """Settings that change memory and differ from the planner's own files (``planner.cost.memory.rules.SWITCHES``)."""
    found = {"reuse-fp32-param": flags.has("--reuse-fp32-param")}
    return tuple(name for name, on in found.items() if on)


def _strategy(flags: Flags, layers: tuple[tuple[int, ...], ...], devices: int | None, unread: Unread) -> Strategy:
    tp, cp = flags.integer("--tensor-model-parallel-size", 1), flags.integer("--context-parallel-size", 1)
    pp, vpp = len(layers[0]), len(layers)
    dp = _data_parallel(flags, tp * pp * cp, devices)
    size = flags.integer("--micro-batch-size", 1)
    batch = flags.integer("--global-batch-size", size * dp)
    if batch % (size * dp):
        raise SpecError(
            f"{flags.source}: --global-batch-size {batch} does not divide by --micro-batch-size {size} x dp {dp} "
            f"= {size * dp}."
        )
    full, selective = _recompute(flags, layers, unread)
    ep, etp = _experts(flags, tp)
    sharded = flags.has("--use-distributed-optimizer")
    algorithm = _CP[flags.text("--context-parallel-algo", "megatron_cp_algo")]
    name = algorithm if cp > 1 else "ring"
    degree = {"ring": 1, "ulysses": cp}.get(name) or flags.integer("--ulysses-degree-in-cp", 1)
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=etp,
        layers=layers,
        recompute_full=full,
        recompute_selective=selective,
        micro_batches=batch // (size * dp),
        micro_batch_size=size,
        cp_algorithm=name,
        ulysses_degree=degree,
        sequence_parallel=flags.has("--sequence-parallel") and tp > 1,
        zero_level=int(sharded),
        optimizer_shard=dp * cp if sharded else 1,
        swap_optimizer=flags.has("--swap-optimizer"),
        schedule="interleaved" if vpp > 1 else "1f1b",
    )


def _experts(flags: Flags, tp: int) -> tuple[int, int]:
    """Ranks over which experts are spread, and over which each of them is split.

    Megatron splits them over tp unless told otherwise; ``--moe-tp-extend-ep`` spreads whole experts over tp as well.
    """
    ep = flags.integer("--expert-model-parallel-size", 1)
    etp = flags.integer("--expert-tensor-parallel-size", tp)
    if not flags.has("--num-experts"):
        return ep, 1
    return (ep * tp, 1) if flags.has("--moe-tp-extend-ep") else (ep, etp)


def _data_parallel(flags: Flags, rest: int, devices: int | None) -> int:
    if devices is None:
        devices = flags.devices()
        if devices is None:
            raise SpecError(f"{flags.source}: the number of devices is not in the script; give it with --cards.")
    if devices % rest:
        raise SpecError(
            f"{flags.source}: {devices} devices do not divide by tp x pp x cp = {rest}; legal: multiples of {rest}."
        )
    return devices // rest


def _recompute(
    flags: Flags, layers: tuple[tuple[int, ...], ...], unread: Unread
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pp, vpp = len(layers[0]), len(layers)
    totals = tuple(sum(row[s] for row in layers) for s in range(pp))
    full = (0,) * pp
    if flags.has("--recompute-granularity") and flags.text("--recompute-granularity") == "full":
        full = _full_recompute(flags, totals, vpp, unread)
    elif flags.has("--recompute-granularity"):
        unread.note("--recompute-granularity selective: recomputes core attention, which flash attention does anyway")
        flags.read |= {"--recompute-modules"}
    selective = (0,) * pp
    if flags.has("--recompute-activation-function"):
        most = flags.per_stage("--recompute-activation-function-num-layers", pp, max(totals))
        selective = tuple(min(m, total - f) for m, total, f in zip(most, totals, full, strict=True))
    return full, selective


def _full_recompute(flags: Flags, totals: tuple[int, ...], vpp: int, unread: Unread) -> tuple[int, ...]:
    method = flags.text("--recompute-method", "")
    if method == "uniform":
        count = flags.integer("--recompute-num-layers", 1)
        if count > 1:
            unread.note(f"--recompute-num-layers {count}: uniform groups are read as single layers")
        return totals
    if method != "block":
        raise SpecError(f"{flags.source}: full recompute needs --recompute-method uniform or block.")
    chunks = 1 if flags.has("--enable-recompute-layers-per-pp-rank") else vpp
    counts = flags.per_stage("--recompute-num-layers", len(totals), 1)
    return tuple(min(count * chunks, total) for count, total in zip(counts, totals, strict=True))


def _model(flags: Flags, layers: int, source: str, vocab: int | None) -> Model:
    hidden, heads = flags.integer("--hidden-size"), flags.integer("--num-attention-heads")
    gated = any([flags.has(name) for name in _GATED])
    ffn = _width(flags, hidden)
    moe = _moe(flags, ffn)
    bias = not flags.has("--disable-bias-linear")
    attention = _attention(flags, hidden, heads, bias=bias)
    learned = flags.text("--position-embedding-type", "learned_absolute") == "learned_absolute"
    norm_bias = flags.text("--normalization", "LayerNorm") == "LayerNorm"
    positions = flags.integer("--max-position-embeddings", flags.integer("--seq-length"))
    return Model(
        name=source.rsplit("/", 1)[-1].removesuffix(".sh"),
        family=_family(flags, attention, moe, learned=learned),
        hidden=hidden,
        ffn=ffn,
        vocab=_vocabulary(flags, vocab),
        attention=attention,
        layer_kinds=_kinds(flags, layers, moe),
        moe=moe,
        mtp_layers=flags.integer("--mtp-num-layers", 0, 0),
        gated_mlp=gated,
        mlp_bias=bias,
        norm_bias=norm_bias,
        norms_per_layer=4 if flags.has("--post-norm") else 2,
        tied_embeddings=not flags.has("--untie-embeddings-and-output-weights"),
        learned_positions=positions if learned else 0,
        max_seq=positions,
        source=source,
    )


def _width(flags: Flags, hidden: int) -> int:
    """Width of the MLP; Megatron's own default without --ffn-hidden-size (``validate_args``)."""
    return flags.integer("--ffn-hidden-size", 8 * hidden // 3 // 64 * 64 if flags.has("--swiglu") else 4 * hidden)


def _vocabulary(flags: Flags, vocab: int | None) -> int:
    """Rows of the embedding: as written, or those of the tokenizer padded as Megatron pads them.

    ``_vocab_size_with_padding``: up to a multiple of --make-vocab-size-divisible-by x tp.
    """
    if flags.has("--padded-vocab-size"):
        flags.has("--vocab-size")
        return flags.integer("--padded-vocab-size")
    given = vocab or (flags.integer("--vocab-size") if flags.has("--vocab-size") else 0)
    if not given:
        raise SpecError(
            f"{flags.source}: the vocabulary comes from the tokenizer; give its number of tokens with --vocab N, or "
            "add --padded-vocab-size N to the script."
        )
    unit = flags.integer("--make-vocab-size-divisible-by", frameworks.of("mindspeed").vocab_multiple)
    unit *= flags.integer("--tensor-model-parallel-size", 1)
    return -(-given // unit) * unit


def _attention(flags: Flags, hidden: int, heads: int, *, bias: bool) -> Attention:
    normed = flags.has("--qk-layernorm")
    added = flags.has("--add-qkv-bias")
    if flags.has("--multi-latent-attention"):
        flags.read |= {"--group-query-attention", "--num-query-groups", "--kv-channels"}  # say nothing here
        nope, rope = flags.integer("--qk-head-dim", 128), flags.integer("--qk-pos-emb-head-dim", 64)
        return Attention(
            kind="mla",
            heads=heads,
            kv_heads=heads,
            head_dim=nope + rope,
            v_head_dim=flags.integer("--v-head-dim", 128),
            q_lora_rank=flags.integer("--q-lora-rank", 0, 0),
            kv_lora_rank=flags.integer("--kv-lora-rank", 32),
            qk_nope_dim=nope,
            qk_rope_dim=rope,
        )
    grouped = flags.has("--group-query-attention")
    flags.read |= {"--num-query-groups", *_LATENT}  # without their switches they say nothing
    head_dim = flags.integer("--kv-channels", max(hidden // heads, 1))
    return Attention(
        heads=heads,
        kv_heads=flags.integer("--num-query-groups", 1 if grouped else heads) if grouped else heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=bias or added,
        output_bias=bias or flags.has("--add-dense-bias"),
        qk_norm=normed,
    )


def _moe(flags: Flags, ffn: int) -> Moe | None:
    if not flags.has("--num-experts"):
        return None
    width = flags.integer("--moe-ffn-hidden-size", 0, 0) or ffn
    shared = flags.integer("--n-shared-experts", 0, 0) * width
    return Moe(
        experts=flags.integer("--num-experts"),
        topk=flags.integer("--moe-router-topk", 2),
        expert_ffn=width,
        shared_ffn=flags.integer("--moe-shared-expert-intermediate-size", shared, 0),
        shared_gate=flags.has("--shared-expert-gate"),
        router_bias=flags.has("--moe-router-enable-expert-bias"),
    )


def _kinds(flags: Flags, layers: int, moe: Moe | None) -> tuple[LayerKind, ...]:
    """Which layers have experts.

    Megatron: --moe-layer-freq, every n-th or a pattern.  MindSpeed-LLM: none of the first --first-k-dense-replace, of
    the others every n-th; a negative number switches either off (``_transformer_block_build_layers``).
    """
    dense = flags.integer("--first-k-dense-replace", 0, -(10**6))
    frequency = flags.text("--moe-layer-freq", "1").replace(" ", "")
    if moe is None:
        return (DENSE,) * layers
    if frequency.lstrip("-").isdecimal():
        every = abs(int(frequency)) or 1
        return tuple(MOE if i >= dense and i % every == 0 else DENSE for i in range(layers))
    pattern = _pattern(frequency)
    if pattern is None or len(pattern) != layers:
        raise SpecError(
            f"{flags.where('--moe-layer-freq')} {frequency}: needs a number, or a list of {layers} zeros and ones such "
            "as ([0]*3+[1]*58)."
        )
    return tuple(MOE if one else DENSE for one in pattern)


def _pattern(text: str) -> list[int] | None:
    """Zeros and ones of a list written with + and *; None when it is no such list."""

    def value(node: ast.expr) -> list[int]:
        if isinstance(node, ast.List) and all(isinstance(one, ast.Constant) for one in node.elts):
            return [int(bool(one.value)) for one in node.elts if isinstance(one, ast.Constant)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return value(node.left) + value(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
            return value(node.left) * min(int(str(node.right.value)), _MOST_LAYERS)
        raise ValueError(text)

    try:
        return value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _family(flags: Flags, attention: Attention, moe: Moe | None, *, learned: bool) -> str:
    if learned:
        return "gpt"
    if attention.kind == "mla":
        return "deepseek_v3" if moe and moe.router_bias else "deepseek_v2"
    signs: Mapping[str, bool] = {
        "glm4_moe": bool(moe and moe.router_bias),
        "qwen2_moe": bool(moe and moe.shared_gate),
        "qwen3_moe": bool(moe and attention.qk_norm),
        "mixtral": moe is not None,
        "qwen3": attention.qk_norm,
        "qwen2": attention.qkv_bias and not attention.output_bias,
    }
    return next((family for family, sign in signs.items() if sign), "llama")
