"""Tensors that Megatron-LM keeps, with Transformer Engine (GPU) or on Ascend (MindSpeed).

Read from Megatron-LM core 0.14 (``core/transformer``, ``core/fusions``, ``core/tensor_parallel/layers.py``) and
Transformer Engine 2.x (``pytorch/module``): a linear layer saves its input, a normalising linear layer also its
normalised input, fused attention its inputs, its output and the log-sum-exp; the fused activation saves its input.
Checked against measured peaks of SimuMax's B200 runs, see ``docs/memory.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from planner.cost.memory.rules import MemoryRules, bytes_of
from planner.cost.memory.tensors import EndTensors, LayerTensors, Split, Tensor
from planner.model.operators import gemms
from planner.model.records import DENSE, LayerKind, Model, Workload

_FLOAT = 4.0

#: Saved by the usual operator-wise checkpoint of PyTorch trainers: block input, fused attention, every second product.
_SAVED = {
    "attention norm input",
    "query",
    "value",
    "attention output",
    "log-sum-exp",
    "mlp norm output",
    "mlp activation",
}

#: Routed-token buffers alive at once when backward leaves the experts: gradient of the combined output, of the
#: exchanged tokens, of the sorted tokens and of the experts' input.
_ROUTED_GRADIENTS = 4.0


@dataclass(frozen=True, slots=True)
class WeightShape:
    """Elements of a weight, unsplit; ``tp``, ``expert`` or ``whole``; kinds of layers that have it."""

    elements: int
    split: str
    kinds: frozenset[LayerKind]


def layer_tensors(model: Model, workload: Workload, kind: LayerKind, rules: MemoryRules) -> LayerTensors:
    """Kept and working tensors of one layer."""
    width, hidden = bytes_of(workload.compute_dtype), float(model.hidden)
    norms = _norms(model, width)
    if model.norm_bias:  # networks of GPT's kind train with dropout after attention and MLP, 8-bit masks
        norms = (*norms, Tensor("dropout masks", 2.0 * hidden, "sequence", 1.0))
    backward = _backward(model, width, kind)
    if not workload.flash_attention:
        scores = Tensor("gradients of scores", 2.0 * model.attention.heads * workload.seq, "tensor", width)
        backward = (*backward, scores)
    if rules.eager_norms:
        norms = (*norms, Tensor("norm inputs in float32", float(model.norms_per_layer) * hidden, "sequence", _FLOAT))
    kept = norms + _attention(model, workload) + _mlp(model, width, kind, rules)
    if rules.layout == "fsdp":
        kept = tuple(replace(tensor, selective=tensor.name in _SAVED) for tensor in kept)
    return LayerTensors(
        kept=kept,
        full=(Tensor("layer input", hidden, "sequence", width),),
        backward=backward,
        rebuilt=(*backward, Tensor("layer input, kept already", -hidden, "sequence", width)),
    )


def _norms(model: Model, width: float) -> tuple[Tensor, ...]:
    """Inputs and outputs of a layer's norms; those behind attention and MLP (4 a layer) keep their inputs only."""
    hidden = float(model.hidden)
    kept = [
        Tensor("attention norm input", hidden, "sequence", width),
        Tensor("attention norm output", hidden, "sequence", width),
    ]
    if model.norms_per_layer > 1:  # attention and MLP side by side share one
        kept.append(Tensor("mlp norm input", hidden, "sequence", width))
        kept.append(Tensor("mlp norm output", hidden, "sequence", width))
    if model.norms_per_layer > 2:
        kept.append(Tensor("attention post-norm input", hidden, "sequence", width))
        kept.append(Tensor("mlp post-norm input", hidden, "sequence", width))
    return (*kept, Tensor("norm statistics", float(model.norms_per_layer), "sequence", _FLOAT))


def _attention(model: Model, workload: Workload) -> tuple[Tensor, ...]:
    att, width = model.attention, bytes_of(workload.compute_dtype)
    kv_heads = att.heads if att.kind == "mla" else att.kv_heads
    out = float(att.heads * att.v_head_dim)
    tensors = [
        Tensor("query", float(att.heads * att.head_dim), "tensor", width),
        Tensor("key", float(kv_heads * att.head_dim), "tensor", width),
        Tensor("value", float(kv_heads * att.v_head_dim), "tensor", width),
        Tensor("attention output", out, "tensor", width),
        Tensor("attention output before exchange", out, "exchanged", width),
        Tensor("log-sum-exp", float(att.heads), "tensor", _FLOAT),
    ]
    if att.kind == "mla":
        latent = float(2 * att.q_lora_rank + 2 * att.kv_lora_rank + att.qk_rope_dim)
        tensors.append(Tensor("latents and their norms", latent, "sequence", width))
    if att.qk_norm:
        wide = float((att.heads + att.kv_heads) * att.head_dim)
        tensors.append(Tensor("query and key before norm", wide, "tensor", width))
    if not workload.flash_attention:
        # scores after softmax, after dropout (16 bit) and the dropout mask (8 bit): arXiv 2205.05198, section 4.1
        scores = 2.0 * width + 1.0
        tensors.append(Tensor("scores", float(att.heads * workload.seq), "tensor", scores, selective=False))
    return tuple(tensors)


def _mlp(model: Model, width: float, kind: LayerKind, rules: MemoryRules) -> tuple[Tensor, ...]:
    if kind == DENSE:
        return _columns(model, float(model.ffn), width, "mlp", rules)
    assert model.moe is not None
    moe = model.moe
    up = 2.0 if model.gated_mlp else 1.0
    routed = (
        Tensor("router scores", float(2 * moe.experts), "sequence", _FLOAT),
        Tensor("permuted tokens", float(model.hidden), "received", width, dispatch=True),
        Tensor("expert up", up * moe.expert_ffn, "columns", width, dispatch=True),
        Tensor("expert product", float(moe.expert_ffn), "columns", width, selective=False, dispatch=True),
    )
    return routed + (_columns(model, float(moe.shared_ffn), width, "shared expert", rules) if moe.shared_ffn else ())


def _columns(model: Model, ffn: float, width: float, name: str, rules: MemoryRules) -> tuple[Tensor, ...]:
    """Input of the activation and of the second product; unfused also the activated half.

    What selective recompute drops differs: Megatron recomputes attention alone, MindSpeed's recompute of activation
    functions what they produced (arXiv 2205.05198; MindSpeed 2.x, ``recompute_activation_function``).
    """
    up = 2.0 if model.gated_mlp else 1.0
    dropped = rules.layout != "megatron"
    tensors = (
        Tensor(f"{name} up", up * ffn, "tensor", width),
        Tensor(f"{name} product", ffn, "tensor", width, selective=not dropped),
    )
    if rules.fused_swiglu or not model.gated_mlp:
        return tensors
    return (*tensors, Tensor(f"{name} activation", ffn, "tensor", width, selective=False))


def _backward(model: Model, width: float, kind: LayerKind) -> tuple[Tensor, ...]:
    """Alive besides what is kept where backward is widest: at the activation function, or leaving the experts."""
    up = 2.0 if model.gated_mlp else 1.0
    residual = Tensor("gradient of the residual", float(model.hidden), "sequence", width)
    if kind == DENSE:
        return residual, Tensor("gradient of mlp up", up * model.ffn, "tensor", width)
    assert model.moe is not None
    return (
        residual,
        Tensor("gradients of routed tokens", _ROUTED_GRADIENTS * model.hidden, "received", width),
        Tensor("gradients of expert columns", (up + 1.0) * model.moe.expert_ffn, "columns", width),
    )


def end_tensors(model: Model, workload: Workload, rules: MemoryRules) -> EndTensors:
    """What the first and last stage keep and need beside their layers."""
    width, hidden, vocab = bytes_of(workload.compute_dtype), float(model.hidden), float(model.vocab)
    norm = (
        Tensor("final norm input", hidden, "sequence", width),
        Tensor("final norm output", hidden, "sequence", width),
    )
    split: Split = "whole" if rules.gathered_logits else "tensor"
    logits = Tensor("logits", vocab, split, width)
    floats = Tensor("logits in float32 and their like", rules.loss_copies * vocab, split, _FLOAT)
    gradients = (
        Tensor("gathered head input", hidden, "whole", width),
        Tensor("gradient of head input", hidden, "whole", width),
    )
    return EndTensors(
        last=norm,
        loss=(logits,) if rules.fused_cross_entropy else (logits, floats),
        head_backward=(logits, *gradients),
    )


_ATTENTION_GEMMS = frozenset({"qkv", "q", "q_down", "q_up", "kv_down", "kv_up", "attention_out"})


@lru_cache(maxsize=64)
def weight_shapes(model: Model) -> tuple[WeightShape, ...]:
    """Distinct weight shapes of a model's layers.

    With gradients accumulated straight into the float32 buffer, Transformer Engine hands autograd an unused 16-bit
    tensor of each weight's shape and keeps it for reuse, so equal shapes cost once.
    """
    found: dict[tuple[int, int, str], set[LayerKind]] = {}
    for kind in model.kinds:
        for gemm in gemms(model, kind):
            if gemm.shard != "replicated" or gemm.name in _ATTENTION_GEMMS:
                split = "expert" if gemm.shard.startswith("expert") else "tp" if gemm.shard != "replicated" else "whole"
                found.setdefault((gemm.k, gemm.n, split), set()).add(kind)
    return tuple(WeightShape(k * n, split, frozenset(kinds)) for (k, n, split), kinds in found.items())
