"""What is trained: a transformer's shape and the workload put on it.

Frozen records without I/O; ``planner.model.load`` builds them from files, names and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from planner import frameworks
from planner.errors import SpecError
from planner.frameworks import FrameworkName

DENSE: Final[Literal["dense"]] = "dense"
MOE: Final[Literal["moe"]] = "moe"
LayerKind = Literal["dense", "moe"]

#: Bytes of one element of each data type.
DTYPE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of every layer: multi-head, grouped-query (``gqa``) or multi-head latent (``mla``).

    ``head_dim`` is the width of a query or key head; for MLA it is ``qk_nope_dim + qk_rope_dim``.
    ``v_head_dim`` is the width of a value head and equals ``head_dim`` except for MLA.
    """

    kind: Literal["gqa", "mla"] = "gqa"
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    q_lora_rank: int = 0  # 0: queries are projected directly
    kv_lora_rank: int = 0
    qk_nope_dim: int = 0
    qk_rope_dim: int = 0
    norm_whole: bool = False  # q/k norms (``qk_norm``) are as wide as all heads together (MiniMax-M2, OLMo 2)
    sinks: bool = False  # one learned logit per head (gpt-oss)
    index_heads: int = 0  # sparse indexer (DeepSeek-V3.2): heads, their width, keys a token attends to; 0: none
    index_dim: int = 0
    index_topk: int = 0

    def __post_init__(self) -> None:
        _positive(
            "attention",
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
        )
        if self.kind not in ("gqa", "mla"):
            raise SpecError(f"attention: kind={self.kind!r}; legal: gqa, mla.")
        if self.kind == "mla":
            _positive("latent attention", kv_lora_rank=self.kv_lora_rank)
            _natural("latent attention", q_lora_rank=self.q_lora_rank, qk_nope_dim=self.qk_nope_dim)
            if self.head_dim != self.qk_nope_dim + self.qk_rope_dim:
                raise SpecError(
                    f"latent attention: head_dim={self.head_dim} must be qk_nope_dim + qk_rope_dim = "
                    f"{self.qk_nope_dim} + {self.qk_rope_dim}."
                )
        elif self.index_heads:
            raise SpecError("attention: a sparse indexer (index_heads) belongs to latent attention (kind mla).")
        elif self.v_head_dim != self.head_dim:
            raise SpecError(f"attention: v_head_dim={self.v_head_dim} must equal head_dim={self.head_dim}.")
        _natural("sparse indexer", index_heads=self.index_heads, index_dim=self.index_dim, index_topk=self.index_topk)
        if self.index_heads:
            _positive(
                "sparse indexer", index_dim=self.index_dim, index_topk=self.index_topk, q_lora_rank=self.q_lora_rank
            )
        if self.heads % self.kv_heads:
            raise SpecError(
                f"{self.kv_heads} key/value heads do not divide {self.heads} attention heads; "
                f"legal: {_divisors(self.heads)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts of one MoE layer.  ``shared_ffn`` is the total width of the shared experts (0: none)."""

    experts: int
    topk: int
    expert_ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False  # a non-trainable selection bias per expert (DeepSeek-V3, GLM-4.5)
    expert_bias: bool = False  # trained biases on the router and on every expert's projections (gpt-oss)

    def __post_init__(self) -> None:
        _positive("mixture of experts", experts=self.experts, topk=self.topk, expert_ffn=self.expert_ffn)
        _natural("mixture of experts", shared_ffn=self.shared_ffn)
        if self.topk > self.experts:
            raise SpecError(f"topk={self.topk} is more than the {self.experts} experts.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    Attributes
    ----------
    layer_kinds : tuple of {"dense", "moe"}
        Kind of each decoder layer in order; MTP modules are not among them.
    mtp_layers : int
        Multi-token-prediction modules behind the last layer; each holds one layer of the last kind, a 2h x h
        projection and three norms, and shares embedding and head.
    norms_per_layer : int
        1 (attention and MLP side by side, Command-R), 2 (pre-norm) or 4 (with post-norms, GLM-4-0414, Gemma 2).
    learned_positions : int
        Rows of a learned position table (GPT), 0 for rotary positions.
    embedding_norm : bool
        A norm behind the token table (BLOOM).
    window, windowed_layers : int
        Keys a token sees in that many of the layers [tokens, count]; the others see the whole sequence.
    chunked_windows : bool
        The window is a chunk of the sequence that starts anew (Llama 4), not the last ``window`` tokens.
    note : str
        What of the given config is not part of this shape, in sentences; shown with every answer.
    source : str
        Where the shape comes from (config path, catalogue entry, scaling rule).
    """

    name: str
    family: str
    hidden: int
    ffn: int
    vocab: int
    attention: Attention
    layer_kinds: tuple[LayerKind, ...]
    moe: Moe | None = None
    mtp_layers: int = 0
    gated_mlp: bool = True
    mlp_bias: bool = False
    norms_per_layer: int = 2
    norm_bias: bool = False
    tied_embeddings: bool = False
    learned_positions: int = 0
    max_seq: int = 0
    source: str = ""
    embedding_norm: bool = False
    window: int = 0
    windowed_layers: int = 0
    chunked_windows: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        _positive(f"model {self.name}", hidden=self.hidden, vocab=self.vocab, layers=len(self.layer_kinds))
        if DENSE in self.layer_kinds:
            _positive(f"model {self.name}", ffn=self.ffn)
        _natural(
            f"model {self.name}",
            ffn=self.ffn,
            mtp_layers=self.mtp_layers,
            learned_positions=self.learned_positions,
            max_seq=self.max_seq,
            window=self.window,
            windowed_layers=self.windowed_layers,
        )
        if self.windowed_layers > self.layers or bool(self.window) != bool(self.windowed_layers):
            raise SpecError(
                f"model {self.name}: window={self.window} in windowed_layers={self.windowed_layers} of {self.layers} "
                "layers; legal: both 0, or both positive and no more layers than there are."
            )
        if unknown := set(self.layer_kinds) - {DENSE, MOE}:
            raise SpecError(f"model {self.name}: layer kinds {sorted(unknown)} are not known; legal: {DENSE}, {MOE}.")
        if self.norms_per_layer not in (1, 2, 4):
            raise SpecError(f"model {self.name}: norms_per_layer={self.norms_per_layer}; legal: 1, 2, 4.")
        if (MOE in self.layer_kinds) != (self.moe is not None):
            raise SpecError(f"model {self.name}: MoE layers and expert sizes must be given together.")

    @property
    def layers(self) -> int:
        """Number of decoder layers without MTP modules."""
        return len(self.layer_kinds)

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Kinds that occur, dense before MoE."""
        return tuple(kind for kind in (DENSE, MOE) if kind in self.layer_kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one optimizer step does with the model.

    Attributes
    ----------
    seq : int
        Tokens of one sample.
    global_batch : int
        Samples of one optimizer step over all devices.
    params_dtype, compute_dtype, grads_dtype, states_dtype : str
        Types of the stored parameters, of matmul inputs and kept activations, of the accumulated gradients and of
        each optimizer moment.  MindFormers' pre-training files keep float32 parameters and compute in bfloat16.
    master_weights : bool
        A float32 copy beside 16-bit parameters (Megatron, MindSpeed); meaningless with float32 parameters.
    moments : int
        State tensors per parameter: 2 for AdamW, 1 for Muon, 0 for SGD.
    framework : str
        Whose memory layout and software efficiency is meant.
    flash_attention : bool
        False: the score matrix is materialised.
    tokens : int
        Training budget for card-hours and days, 0 when not asked.
    switches : tuple of str
        Settings of the framework that change memory, where they differ from the planner's own files; names and
        effects are listed in ``planner.cost.memory.rules.SWITCHES``.
    """

    seq: int
    global_batch: int
    params_dtype: str = "float32"
    compute_dtype: str = "bfloat16"
    grads_dtype: str = "float32"
    states_dtype: str = "float32"
    master_weights: bool = False
    optimizer: str = "AdamW"
    moments: int = 2
    framework: FrameworkName = "mindformers"
    flash_attention: bool = True
    tokens: int = 0
    switches: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        _positive("workload", seq=self.seq, global_batch=self.global_batch)
        for name in ("params_dtype", "compute_dtype", "grads_dtype", "states_dtype"):
            if getattr(self, name) not in DTYPE_BYTES:
                raise SpecError(f"{name}={getattr(self, name)!r} is not known; legal: {', '.join(DTYPE_BYTES)}.")

    @property
    def runs_on(self) -> frameworks.Framework:
        """Facts of the framework that runs it."""
        return frameworks.of(self.framework)


def _positive(what: str, **values: int) -> None:
    for name, value in values.items():
        if value <= 0:
            raise SpecError(f"{what}: {name}={value} must be a positive whole number.")


def _natural(what: str, **values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise SpecError(f"{what}: {name}={value} must not be negative.")


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
