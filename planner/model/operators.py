"""Tensors and matrix products of a transformer: pure functions of a `Model`.

Counts are exact Python integers.  Formulas follow the tensor shapes of the published networks (Hugging Face
``transformers`` 4.57 ``modeling_*.py``; MTP: DeepSeek-V3 report, arXiv 2412.19437, section 2.2).

Symbols: h hidden, f MLP width, a heads, k key/value heads, d head width, v value-head width, V vocabulary,
E experts, fe expert width, r_q and r_kv the MLA ranks, n and p the MLA no-position and rotary widths (d = n + p).

======================  ============================================================================
grouped-query           ``h(a + 2k)d + a d h`` [+ ``(a + 2k)d`` qkv bias] [+ h output bias] [+ 2d q/k norm]
latent (MLA)            ``h r_q + r_q + r_q a d`` (or ``h a d`` without r_q) ``+ h(r_kv + p) + r_kv
                        + r_kv a(n + v) + a v h``
MLP                     ``3 h f`` gated, ``2 h f`` not [+ f per column bias + h]
MoE                     ``h E`` router ``+ E 3 h fe + 3 h f_shared`` [+ h shared gate]
layer norms             2h or 4h, twice that with a bias
embedding, head         ``V h`` each [+ ``P h`` learned positions]; no head tensor when tied
MTP module              one layer of the last kind ``+ 2h h + 3h``
======================  ============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from planner.errors import SpecError
from planner.model.records import DENSE, MOE, LayerKind, Model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: How a weight is split: over tp by output ("column") or input ("row") dim, not at all, or over ep and then so.
GemmShard = Literal["column", "row", "replicated", "expert_column", "expert_row"]

#: Backward does two products (gradients of input and of weight) for each one of forward.
FORWARD_AND_BACKWARD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Trainable parameters [count] by how their tensors are split.

    Attributes
    ----------
    tp : int
        Column- and row-parallel weights, column-parallel biases, vocabulary-parallel embedding and head.
    replicated : int
        Whole on every tensor-parallel rank: norms, router, row-parallel biases, MLA down projections, shared gate.
    expert : int
        Routed experts, split over expert-parallel ranks.

    Examples
    --------
    >>> Shards(tp=4, replicated=1) + 2 * Shards(expert=3)
    Shards(tp=4, replicated=1, expert=6)
    """

    tp: int = 0
    replicated: int = 0
    expert: int = 0

    @property
    def total(self) -> int:
        """Sum over all kinds [count]."""
        return self.tp + self.replicated + self.expert

    def __add__(self, other: Shards) -> Shards:
        return Shards(
            tp=self.tp + other.tp, replicated=self.replicated + other.replicated, expert=self.expert + other.expert
        )

    def __mul__(self, times: int) -> Shards:
        return Shards(tp=self.tp * times, replicated=self.replicated * times, expert=self.expert * times)

    __rmul__ = __mul__


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """One matrix product of a forward pass: ``(tokens x k) @ (k x n)``, before any split.

    Attributes
    ----------
    k, n : int
        Input and output width of the weight; fused weights (qkv, gate and up) count as one product.
    shard : str
        How the weight is split, see `GemmShard`.
    tokens_factor : int
        Rows per token of the sequence: topk for routed experts (spread over all of them), else 1.
    """

    name: str
    k: int
    n: int
    shard: GemmShard
    tokens_factor: int = 1

    @property
    def flop_per_token(self) -> int:
        """Forward multiply-adds as FLOP, ``2 k n tokens_factor``."""
        return 2 * self.k * self.n * self.tokens_factor


# --------------------------------------------------------------------------------------------------- parameters


def attention_parameters(model: Model) -> Shards:
    """Attention weights, biases and inner norms of one layer, layer norms excluded [count].

    MLA biases (``qkv_bias``) sit on the two down projections, as in DeepSeek's ``attention_bias``.
    """
    att, h = model.attention, model.hidden
    out = att.heads * att.v_head_dim * h
    replicated = h if att.output_bias else 0
    if att.kind == "gqa":
        qkv_width = (att.heads + 2 * att.kv_heads) * att.head_dim
        tp = h * qkv_width + (qkv_width if att.qkv_bias else 0) + out
        return Shards(tp=tp + (att.heads if att.sinks else 0), replicated=replicated + qk_norm_parameters(model))
    q_width = att.heads * att.head_dim
    kv_down = att.kv_lora_rank + att.qk_rope_dim
    tp = (att.q_lora_rank or h) * q_width + att.kv_lora_rank * att.heads * (att.qk_nope_dim + att.v_head_dim) + out
    replicated += h * att.q_lora_rank + att.q_lora_rank + h * kv_down + att.kv_lora_rank
    if att.qkv_bias:
        replicated += att.q_lora_rank + kv_down
    return Shards(tp=tp, replicated=replicated + _indexer(model))


def qk_norm_parameters(model: Model) -> int:
    """Norms of queries and keys of one grouped-query layer [count]: as wide as a head, or as all heads together."""
    att = model.attention
    return (att.heads + att.kv_heads if att.norm_whole else 2) * att.head_dim if att.qk_norm else 0


def _indexer(model: Model) -> int:
    """Sparse indexer of DeepSeek-V3.2: queries of its heads, one key with a LayerNorm, a weight per head [count]."""
    att, h = model.attention, model.hidden
    queries = att.q_lora_rank * att.index_heads * att.index_dim
    return queries + h * att.index_dim + 2 * att.index_dim + h * att.index_heads if att.index_heads else 0


def _mlp(model: Model, width: int, bias: bool | None = None) -> Shards:
    columns = 2 * width if model.gated_mlp else width
    bias = model.mlp_bias if bias is None else bias
    return Shards(
        tp=model.hidden * (columns + width) + (columns if bias else 0), replicated=model.hidden if bias else 0
    )


def mlp_parameters(model: Model, kind: LayerKind) -> Shards:
    """Weights of one layer's MLP, or of its router, experts and shared experts [count].

    The router's selection bias is not trained by gradients and not counted; see `router_bias_count`.
    """
    _check_kind(model, kind)
    if kind == DENSE:
        return _mlp(model, model.ffn)
    assert model.moe is not None
    moe = model.moe
    shared = _mlp(model, moe.shared_ffn) if moe.shared_ffn else Shards()
    router = model.hidden * moe.experts + (model.hidden if moe.shared_gate else 0)
    router += moe.experts if moe.expert_bias else 0
    return shared + Shards(replicated=router, expert=moe.experts * expert_parameters(model))


def expert_parameters(model: Model) -> int:
    """One routed expert [count]; 0 without experts."""
    if model.moe is None:
        return 0
    return _mlp(model, model.moe.expert_ffn, model.mlp_bias or model.moe.expert_bias).total


def _norm(model: Model) -> int:
    return model.hidden * (2 if model.norm_bias else 1)


@lru_cache(maxsize=256)
def layer_parameters(model: Model, kind: LayerKind) -> Shards:
    """Trainable parameters of one decoder layer [count]: attention, MLP or MoE, norms."""
    norms = Shards(replicated=model.norms_per_layer * _norm(model))
    return attention_parameters(model) + mlp_parameters(model, kind) + norms


def embedding_parameters(model: Model) -> Shards:
    """Token table and, if positions are learned, position table (replicated) [count]."""
    norm = _norm(model) if model.embedding_norm else 0
    return Shards(tp=model.vocab * model.hidden, replicated=model.learned_positions * model.hidden + norm)


def head_parameters(model: Model) -> Shards:
    """Output projection [count]; nothing when it shares the embedding's tensor.

    With more than one pipeline stage a tied table exists twice, on the first and on the last stage; the memory
    model charges that copy, it is no parameter of its own.
    """
    return Shards() if model.tied_embeddings else Shards(tp=model.vocab * model.hidden)


def final_norm_parameters(model: Model) -> Shards:
    """Norm before the head [count]."""
    return Shards(replicated=_norm(model))


def mtp_parameters(model: Model) -> Shards:
    """All MTP modules [count]: a layer of the last kind, the 2h x h projection, three norms; tables are shared."""
    if not model.mtp_layers:
        return Shards()
    joint = Shards(tp=2 * model.hidden * model.hidden, replicated=3 * _norm(model))
    return model.mtp_layers * (layer_parameters(model, model.layer_kinds[-1]) + joint)


def parameter_shards(model: Model, *, include_mtp: bool = True) -> Shards:
    """Trainable parameters of the whole model by how they are split [count]."""
    total = embedding_parameters(model) + head_parameters(model) + final_norm_parameters(model)
    for kind in model.kinds:
        total += model.layer_kinds.count(kind) * layer_parameters(model, kind)
    return total + mtp_parameters(model) if include_mtp else total


def parameter_count(model: Model, *, trainable: bool = True, include_mtp: bool = True) -> int:
    """Parameters to the unit [count].

    Parameters
    ----------
    trainable : bool
        False adds the routers' selection biases (`router_bias_count`), which no gradient updates.
    include_mtp : bool
        False leaves MTP modules out, as published totals usually do.
    """
    trained = parameter_shards(model, include_mtp=include_mtp).total
    return trained if trainable else trained + router_bias_count(model, include_mtp=include_mtp)


def router_bias_count(model: Model, *, include_mtp: bool = True) -> int:
    """Selection biases of the routers [count], one per expert and MoE layer (DeepSeek-V3, GLM-4.5)."""
    if model.moe is None or not model.moe.router_bias:
        return 0
    layers = model.layer_kinds.count(MOE)
    if include_mtp and model.layer_kinds[-1] == MOE:
        layers += model.mtp_layers
    return layers * model.moe.experts


def active_parameter_count(model: Model, *, trainable: bool = True, include_mtp: bool = True) -> int:
    """Parameters one token passes through [count]: of the routed experts only ``topk`` count.

    Embedding and head are included, as in the published "3.3B activated" of Qwen3-30B-A3B.  The flags are those of
    `parameter_count`.
    """
    total = parameter_count(model, trainable=trainable, include_mtp=include_mtp)
    if model.moe is None:
        return total
    layers = model.layer_kinds.count(MOE)
    if include_mtp and model.layer_kinds[-1] == MOE:
        layers += model.mtp_layers
    idle = model.moe.experts - model.moe.topk
    return total - layers * idle * expert_parameters(model)


# ----------------------------------------------------------------------------------------------- matrix products


def _attention_gemms(model: Model) -> tuple[Gemm, ...]:
    att, h = model.attention, model.hidden
    out = Gemm(name="attention_out", k=att.heads * att.v_head_dim, n=h, shard="row")
    if att.kind == "gqa":
        return Gemm(name="qkv", k=h, n=(att.heads + 2 * att.kv_heads) * att.head_dim, shard="column"), out
    q_width = att.heads * att.head_dim
    queries: tuple[Gemm, ...] = (Gemm(name="q", k=h, n=q_width, shard="column"),)
    if att.q_lora_rank:
        queries = (
            Gemm(name="q_down", k=h, n=att.q_lora_rank, shard="replicated"),
            Gemm(name="q_up", k=att.q_lora_rank, n=q_width, shard="column"),
        )
    kv_up = att.heads * (att.qk_nope_dim + att.v_head_dim)
    return (
        *queries,
        Gemm(name="kv_down", k=h, n=att.kv_lora_rank + att.qk_rope_dim, shard="replicated"),
        Gemm(name="kv_up", k=att.kv_lora_rank, n=kv_up, shard="column"),
        *_indexer_gemms(model),
        out,
    )


def _indexer_gemms(model: Model) -> tuple[Gemm, ...]:
    att = model.attention
    if not att.index_heads:
        return ()
    return (
        Gemm(name="index_q", k=att.q_lora_rank, n=att.index_heads * att.index_dim, shard="replicated"),
        Gemm(name="index_k", k=model.hidden, n=att.index_dim, shard="replicated"),
        Gemm(name="index_weights", k=model.hidden, n=att.index_heads, shard="replicated"),
    )


def _mlp_gemms(model: Model, kind: LayerKind) -> tuple[Gemm, ...]:
    h, columns = model.hidden, 2 if model.gated_mlp else 1
    if kind == DENSE:
        return (
            Gemm(name="mlp_up", k=h, n=columns * model.ffn, shard="column"),
            Gemm(name="mlp_down", k=model.ffn, n=h, shard="row"),
        )
    assert model.moe is not None
    moe = model.moe
    routed = (
        Gemm(name="router", k=h, n=moe.experts, shard="replicated"),
        Gemm(name="expert_up", k=h, n=columns * moe.expert_ffn, shard="expert_column", tokens_factor=moe.topk),
        Gemm(name="expert_down", k=moe.expert_ffn, n=h, shard="expert_row", tokens_factor=moe.topk),
    )
    if not moe.shared_ffn:
        return routed
    shared = (
        Gemm(name="shared_up", k=h, n=columns * moe.shared_ffn, shard="column"),
        Gemm(name="shared_down", k=moe.shared_ffn, n=h, shard="row"),
    )
    gate = (Gemm(name="shared_gate", k=h, n=1, shard="replicated"),) if moe.shared_gate else ()
    return routed + shared + gate


@lru_cache(maxsize=256)
def gemms(model: Model, kind: LayerKind) -> tuple[Gemm, ...]:
    """Weight products of one layer's forward pass, in order; attention scores are `attention_flop_per_token`."""
    _check_kind(model, kind)
    return _attention_gemms(model) + _mlp_gemms(model, kind)


def head_gemms(model: Model) -> tuple[Gemm, ...]:
    """The output projection; it runs whether or not its tensor is tied."""
    return (Gemm(name="head", k=model.hidden, n=model.vocab, shard="column"),)


def mtp_gemms(model: Model) -> tuple[Gemm, ...]:
    """Weight products of one MTP module: joining projection, one layer of the last kind, the shared head."""
    if not model.mtp_layers:
        return ()
    joint = Gemm(name="mtp_join", k=2 * model.hidden, n=model.hidden, shard="column")
    return (joint, *gemms(model, model.layer_kinds[-1]), *head_gemms(model))


def attention_flop_per_token(model: Model, seq: int, causal: bool = True) -> float:
    """Forward FLOP per token of one layer's scores and their product with the values, the mean over all layers.

    ``2 s a (d + v)``; half of that for a causal mask, the usual convention of model FLOP (a token sees s/2 keys on
    average; the exact (s + 1)/2 differs by 1/s).  Layers with a sliding window or chunks see `keys_seen`; a sparse
    indexer scores all keys (``2 s a_i d_i``) and attends to the chosen ones.

    Examples
    --------
    >>> from planner.model.load import find
    >>> attention_flop_per_token(find("llama-3.1-8b"), seq=8192, causal=False) == 2 * 8192 * 32 * (128 + 128)
    True
    """
    att = model.attention
    whole, each = keys_seen(seq, causal=causal), 2.0 * att.heads * (att.head_dim + att.v_head_dim)
    if att.index_heads:
        chosen = keys_seen(seq, att.index_topk, causal=causal)
        return chosen * each + whole * 2.0 * att.index_heads * att.index_dim
    if not model.windowed_layers:
        return whole * each
    near = keys_seen(seq, model.window, chunked=model.chunked_windows, causal=causal)
    windowed = model.windowed_layers / model.layers
    return (windowed * near + (1.0 - windowed) * whole) * each


def keys_seen(seq: int, window: int = 0, *, chunked: bool = False, causal: bool = True) -> float:
    """Keys a token sees on average [count]: of the whole sequence, its last ``window`` tokens, or its own chunk.

    A causal token at place i sees ``min(i, window)``, on average ``w - w^2 / 2s``.

    >>> keys_seen(4096), keys_seen(4096, 1024), keys_seen(4096, 1024, chunked=True), keys_seen(512, 1024)
    (2048.0, 896.0, 512.0, 256.0)
    """
    width = min(window or seq, seq)
    if not causal:
        return float(width)
    return width / 2 if chunked else width - width * width / (2.0 * seq)


def layer_flop_per_token(model: Model, kind: LayerKind, seq: int, causal: bool = True) -> float:
    """Forward FLOP per token of one decoder layer: weight products and attention."""
    products = sum(gemm.flop_per_token for gemm in gemms(model, kind))
    return products + attention_flop_per_token(model, seq, causal)


def forward_flop_per_token(model: Model, seq: int, causal: bool = True) -> float:
    """Forward FLOP per token of the whole model: layers, head, MTP modules with their heads."""
    flop = float(sum(gemm.flop_per_token for gemm in head_gemms(model)))
    for kind in model.kinds:
        flop += model.layer_kinds.count(kind) * layer_flop_per_token(model, kind, seq, causal)
    if model.mtp_layers:
        module = sum(gemm.flop_per_token for gemm in mtp_gemms(model)) + attention_flop_per_token(model, seq, causal)
        flop += model.mtp_layers * module
    return flop


def flop_per_token(model: Model, seq: int, causal: bool = True) -> float:
    """Model FLOP per token of one training step, forward and backward, as MFU counts it.

    Three times `forward_flop_per_token`; recompute, norms, activation functions and embedding look-ups are not
    counted, of the routed experts only ``topk``.
    """
    return FORWARD_AND_BACKWARD * forward_flop_per_token(model, seq, causal)


# ------------------------------------------------------------------------------------------------------- layers


@lru_cache(maxsize=64)
def layer_kind_prefix(model: Model) -> dict[LayerKind, NDArray[np.int64]]:
    """Number of layers of each kind before each position, to count kinds of layer ranges without a loop.

    Returns
    -------
    dict of str to array, shape (L + 1,)
        For each kind that occurs: element i counts the layers of that kind among the first i, so the range
        [first, last) holds ``prefix[last] - prefix[first]`` of them.  Read-only.
    """
    import numpy as np  # kept out of the module's import: loading a model needs no arrays

    table: dict[LayerKind, NDArray[np.int64]] = {}
    for kind in model.kinds:
        prefix = np.concatenate(([0], np.cumsum([layer == kind for layer in model.layer_kinds]))).astype(np.int64)
        prefix.flags.writeable = False
        table[kind] = prefix
    return table


def _check_kind(model: Model, kind: LayerKind) -> None:
    if kind not in model.kinds:
        raise SpecError(f"model {model.name} has no {kind} layers; it has: {', '.join(model.kinds)}.")
