"""Tensors that MindFormers keeps in graph mode (MindSpore 2.9, MindFormers 1.9, ``jit_level: O0``).

Read from the life spans of all blocks in DryRuns (MindSpore's memory tracker, see ``docs/memory.md``): a tensor is
listed as kept when it is allocated in a micro-batch's forward pass and freed in its backward pass.  There are two
dialects: ``mcore`` (Qwen3, Qwen3-MoE, DeepSeek3) and ``legacy`` (Llama).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.cost.memory.rules import MemoryRules, bytes_of
from planner.cost.memory.tensors import EndTensors, LayerTensors, Split, Tensor
from planner.cost.parameters import is_glm
from planner.model.records import DENSE, LayerKind, Model, Workload

_FLOAT = 4.0
_STATISTICS = 8.0  # the fused attention operator returns maximum and sum with a trailing axis of 8
_INDEX = 8.0  # bytes of an int64
_ORDERS = 4.0  # expert of each routed token, its two sorting orders and their inverse
_ROUTED_GRADIENTS = 5.0  # zero-filled target, repeated gradient, its product with the scores, sent and received


def layer_tensors(model: Model, workload: Workload, kind: LayerKind, rules: MemoryRules) -> LayerTensors:
    """Kept and working tensors of one layer."""
    width, hidden = bytes_of(workload.compute_dtype), float(model.hidden)
    legacy = rules.layout == "legacy"
    narrow = legacy and not is_glm(model, rules)
    norms = (*_norm("attention", hidden, width, narrow), *_norm("mlp", hidden, width, narrow))
    fused = workload.flash_attention or not legacy  # mcore networks take the fused operator all the same
    attention = norms + _attention(model, width, rules, repeated=not workload.flash_attention)
    if not fused:
        attention = norms + _unfused(model, workload, width)
    if kind == DENSE:
        gathered = Tensor("mlp input", hidden, "whole", width)
        inner = _FLOAT if rules.float32_residual else width
        found = _found(legacy, rules.selective_legacy) if rules.selective_operators else (False, False)
        mlp = (gathered, *_columns("mlp", float(model.ffn), (inner, width), "tensor", found))
        forward = _forward(model, (inner, width), legacy)
        backward, rebuilt = _backward(model, (inner, width)), _rebuilt(model, (inner, width))
    else:
        mlp, forward, backward = _experts(model, width), (), _experts_backward(model, width)
        rebuilt = _experts_rebuilt(model, width)
    kept = attention + mlp
    again = _gathered(kept)
    return LayerTensors(
        kept=kept,
        saved=(*again, *(replace(tensor, width=-tensor.width, split="sequence") for tensor in again)),
        full=(Tensor("layer input", hidden, "sequence", width),),
        forward=forward,
        backward=backward,
        backward_first=_backward_first(model, width) if kind == DENSE else (),
        always=_received(model, width) if rules.ring_attention else _caches(model, width, rules),
        copied=(_compressed_mask(1.0, rules),) if rules.compressed_mask and not is_glm(model, rules) else (),
        begun=() if kind == DENSE else _experts_begun(model, width),
        rebuilt=(
            *rebuilt,
            Tensor("layer input, freed", -hidden, "sequence", width),
            *_rebuilt_norms(hidden, width, narrow),
            *_rebuilt_mask(workload, rules, fused=fused),
        ),
        rebuilt_next=() if kind == DENSE else _experts_rebuilt_next(model, width),
        **({} if fused else _scores(model, workload, mlp, width)),
    )


def _rebuilt_norms(hidden: float, width: float, narrow: bool) -> tuple[Tensor, ...]:
    """A legacy layer that is rebuilt holds the float32 casts of its norm inputs, which it does not keep otherwise."""
    return (Tensor("norm inputs in float32", 2.0 * hidden, "sequence", _FLOAT - width),) if narrow else ()


def _gathered(kept: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs of norms that tensor-parallel ranks gather."""
    return tuple(t for t in kept if t.name in ("attention input", "mlp input") and t.split == "whole")


def _received(model: Model, width: float) -> tuple[Tensor, ...]:
    """Ring attention: a constant for every layer in the shape of the keys and values that a rank receives."""
    att = model.attention
    return (Tensor("shape of keys and values received", 2.0 * att.kv_heads * att.head_dim, "tensor", width),)


def _caches(model: Model, width: float, rules: MemoryRules) -> tuple[Tensor, ...]:
    """Sequences in pieces: parameters that hold keys, values and their gradients between pieces, and a constant."""
    if rules.sequence_pieces == 1:
        return ()
    keys = float(model.attention.kv_heads * model.attention.head_dim)
    return (Tensor("keys and values of all pieces, their gradients and zeros", 5.0 * keys, "context", width),)


def _rebuilt_mask(workload: Workload, rules: MemoryRules, *, fused: bool) -> tuple[Tensor, ...]:
    """With ``use_flash_attention: False`` a rebuilt mcore layer casts the mask for itself."""
    if workload.flash_attention or rules.compressed_mask or not fused:
        return ()
    return (Tensor("attention mask, cast again", float(workload.seq), "rows", 1.0),)


def _compressed_mask(number: float, rules: MemoryRules) -> Tensor:
    """Masks of 2048 x 2048: a stage holds a constant for every layer of the model, and one for recomputing each.

    Ring attention has two: it attends to keys of its own, and to those of other ranks.
    """
    side = 2048.0
    return Tensor("compressed masks", (2.0 if rules.ring_attention else 1.0) * number * side * side, "once", 1.0)


def _norm(name: str, hidden: float, width: float, legacy: bool) -> tuple[Tensor, ...]:
    """Input of a layer norm; mcore casts it to float32."""
    return (
        Tensor(f"{name} norm input", hidden, "sequence", width if legacy else _FLOAT),
        Tensor(f"{name} norm statistics", 1.0, "sequence", _FLOAT),
    )


def _attention(model: Model, width: float, rules: MemoryRules, *, repeated: bool) -> tuple[Tensor, ...]:
    """Inputs of the projections and of attention, as rotated and laid out by heads; its output before and after.

    ``repeated``: keys and values are repeated for every head, which mcore networks do with ``use_flash_attention:
    False`` before they hand them to the same fused operator.  Ring attention keeps those that it
    receives, too.
    """
    att = model.attention
    kv_heads = att.heads if att.kind == "mla" or repeated else att.kv_heads
    queries, keys = float(att.heads * att.head_dim), float(kv_heads * att.head_dim)
    out = float(att.heads * att.v_head_dim)
    core = (
        Tensor("query", queries, "tensor", width),
        Tensor("key", keys, "context", width),
        Tensor("value", float(kv_heads * att.v_head_dim), "context", width),
        Tensor("attention output", out, "tensor", width),
        Tensor("attention output by token", out, "alone", width),
        Tensor("softmax maximum and sum", 2.0 * _STATISTICS * att.heads, "tensor", _FLOAT),
    )
    if att.kind == "mla":
        return _latents(model, width) + core
    gathered = Tensor("attention input", float(model.hidden), "whole", width)
    if rules.layout == "legacy" or not att.qk_norm:
        return (gathered, *core)
    return (
        gathered,
        Tensor("query norm input in float32", queries, "tensor", _FLOAT),
        Tensor("key norm input in float32", float(att.kv_heads * att.head_dim), "tensor", _FLOAT),
        Tensor("query and key norm statistics", float(att.heads + att.kv_heads), "tensor", _FLOAT),
        *core,
    )


def _unfused(model: Model, workload: Workload, width: float) -> tuple[Tensor, ...]:
    """What attention of a legacy network keeps without the fused operator: the softmax in float32, and its cast.

    Keys and values are repeated for every head.  Selective recompute names these operators one by one
    (``llama_transformer.py``), and the compiled graph does rebuild them.
    """
    att = model.attention
    queries, seq = float(att.heads * att.head_dim), float(workload.seq)
    return (
        Tensor("attention input", float(model.hidden), "whole", width),
        Tensor("query", queries, "tensor", width),
        Tensor("key of every head", queries, "tensor", width, selective=False),
        Tensor("value of every head", queries, "tensor", width, selective=False),
        Tensor("softmax", att.heads * seq, "tensor", _FLOAT, selective=False),
        Tensor("scores in the compute type", att.heads * seq, "tensor", width, selective=False),
        Tensor("attention output by token", queries, "tensor", width),
    )


def _scores(
    model: Model, workload: Workload, mlp: tuple[Tensor, ...], width: float
) -> Mapping[str, tuple[Tensor, ...]]:
    """Alive where attention without the fused operator runs backward through its softmax."""
    att = model.attention
    queries, scores = float(att.heads * att.head_dim), float(att.heads * workload.seq)
    gradients = Tensor("gradients of softmax and of scores", 2.0 * scores, "tensor", _FLOAT)
    behind = (
        *(replace(tensor, width=-tensor.width) for tensor in mlp),
        Tensor("value and attention output, freed", -2.0 * queries, "tensor", width),
        Tensor("scores in the compute type, freed", -scores, "tensor", width),
    )
    received = Tensor("gradient received, output sent and its copy", 3.0 * model.hidden, "sequence", width)
    return {
        "backward_scores": (received, gradients, *behind),
        "backward_scores_selective": (
            received,
            *(replace(tensor, width=-tensor.width) for tensor in mlp if tensor.selective),
            Tensor("scores, softmax and a gradient, rebuilt", 3.0 * scores, "tensor", _FLOAT),
            Tensor("scores in the compute type", scores, "tensor", width),
        ),
        "rebuilt_scores": (received, gradients, *behind),
    }


def _latents(model: Model, width: float) -> tuple[Tensor, ...]:
    """Latent attention projects down on the sequence slice, normalises in float32 and gathers for the way up."""
    att = model.attention
    low = float(att.q_lora_rank + att.kv_lora_rank)
    return (
        Tensor("attention input", float(model.hidden), "sequence", width),
        Tensor("latent norm inputs in float32", low, "sequence", _FLOAT),
        Tensor("latents", low, "whole", width),
        *(() if att.q_lora_rank else (Tensor("query input", float(model.hidden), "whole", width),)),
    )


def _found(legacy: bool, selective_legacy: bool) -> tuple[bool, bool]:
    """Whether selective recompute drops the activation and the product of a dense layer's MLP.

    It names operators by their place.  In mcore networks it finds the activation, whose own cell holds the product; in
    legacy networks it marks both, and the compiled graph keeps them all the same.
    """
    return (selective_legacy, selective_legacy) if legacy else (True, False)


def _columns(
    name: str, ffn: float, widths: tuple[float, float], split: Split, found: tuple[bool, bool]
) -> tuple[Tensor, ...]:
    """A gated MLP: both halves of the first product, the activated half and the input of the second product.

    ``widths`` are bytes of an element inside the MLP and of its products, ``found`` what selective recompute drops.
    """
    inner, width = widths
    activation, product = found
    return (
        Tensor(f"{name} gate and up", 2.0 * ffn, split, inner),
        Tensor(f"{name} activation", ffn, split, inner, selective=not activation),
        Tensor(f"{name} product", ffn, split, width, selective=not product),
    )


def _experts(model: Model, width: float) -> tuple[Tensor, ...]:
    """Router, routed tokens and experts; the activation of the experts is always recomputed.

    Each micro-batch reshapes the experts' weights for the grouped product and keeps its own copy for the backward pass.
    """
    assert model.moe is not None
    moe, hidden = model.moe, float(model.hidden)
    routed = (
        Tensor("router input in float32", hidden, "sequence", _FLOAT),
        Tensor("router scores", float(moe.experts), "sequence", _FLOAT),
        Tensor("chosen experts", float(moe.topk), "sequence", _INDEX),
        Tensor("orders of routed tokens", _ORDERS, "routed", _INDEX),
        Tensor("sorted tokens", hidden, "received", width, dispatch=True),
        Tensor("expert gate and up", 2.0 * moe.expert_ffn, "columns", width, dispatch=True),
        Tensor("expert output", hidden, "received", width, dispatch=True),
        Tensor("expert weights as matrices", 3.0 * hidden * moe.expert_ffn * moe.experts, "expert", width),
    )
    if not moe.shared_ffn:
        return routed
    given = Tensor("shared expert input", hidden, "sequence", width)
    found = (True, True)  # selective recompute finds activation and product of shared experts
    return (
        *routed,
        given,
        *_columns("shared expert", float(moe.shared_ffn), (width, width), "sequence", found),
    )


def _biased(model: Model) -> bool:
    """Whether experts are chosen by biased scores, as in DeepSeek3 networks."""
    return model.moe is not None and model.moe.router_bias


def _experts_begun(model: Model, width: float) -> tuple[Tensor, ...]:
    """Targets that gathering tokens backwards fills in: there from the beginning, those of all layers.

    Of the two gathers of a layer (to the experts, and back) biased routing leaves both to the compiler's choice.
    """
    number = 2.0 if _biased(model) else 1.0
    return (Tensor("zero-filled targets of routed tokens", number * model.hidden, "routed", width),)


def _experts_backward(model: Model, width: float) -> tuple[Tensor, ...]:
    """Alive when the gradient of the combined output has been exchanged back to the experts."""
    hidden = float(model.hidden)
    # with biased routing both targets are made at the beginning, and the exchange comes after the product is freed
    routed = _ROUTED_GRADIENTS - 2.0 if _biased(model) else _ROUTED_GRADIENTS
    return (
        Tensor("gradient received", hidden, "sequence", width),
        Tensor("gradients of routed tokens", routed * hidden, "routed", width),
    )


def _forward(model: Model, widths: tuple[float, float], legacy: bool) -> tuple[Tensor, ...]:
    """Alive when the last projection of a layer has run and its output is reduced over tp.

    Inside a float32 MLP: when the input of the last projection is cast.
    """
    hidden, (inner, width) = float(model.hidden), widths
    if inner > width:
        return (
            Tensor("product in float32", float(model.ffn), "tensor", inner),
            Tensor("output sent and its copy", 2.0 * hidden, "sequence", width),
        )
    return (
        Tensor("output before reduction", hidden, "whole", width),
        Tensor("reduced output, output sent and its copy", 3.0 * hidden, "sequence", width),
        Tensor("residual", 0.0 if legacy else hidden, "sequence", width),
    )


def _backward(model: Model, widths: tuple[float, float]) -> tuple[Tensor, ...]:
    """Alive when backward has passed the last projection of a layer, whose input is free."""
    hidden, (inner, width) = float(model.hidden), widths
    return (
        Tensor("gradient received", hidden, "sequence", inner),
        Tensor("output sent and its copy", 2.0 * hidden, "sequence", width),
        Tensor("gradients of product and activation", 2.0 * model.ffn, "tensor", inner),
        Tensor("product, freed", -float(model.ffn), "tensor", width),
    )


def _backward_first(model: Model, width: float) -> tuple[Tensor, ...]:
    """Alive when the gradient of the last projection's weight is made."""
    hidden = float(model.hidden)
    return (
        Tensor("gradient received, output sent and its copy", 3.0 * hidden, "sequence", width),
        Tensor("gathered gradient", hidden, "whole", width),
        Tensor("gradient of the weight", hidden * model.ffn, "weights", width),
    )


def _rotated(model: Model) -> float:
    """Width of a head that is rotated by position."""
    return float(model.attention.qk_rope_dim or model.attention.head_dim)


def _own_rotation(model: Model) -> Tensor:
    """Cosine and sine that a recomputed layer makes for itself."""
    return Tensor("cosine and sine of its own", _rotated(model), "whole", _FLOAT)


def _rebuilt(model: Model, widths: tuple[float, float]) -> tuple[Tensor, ...]:
    """Alive where a recomputed layer has passed its activation: its product is not rebuilt yet, three gradients are."""
    hidden, (inner, width) = float(model.hidden), widths
    return (
        Tensor("gradient received", hidden, "sequence", inner),
        Tensor("output sent and its copy", 2.0 * hidden, "sequence", width),
        Tensor("gathered gradient", hidden, "whole", width),
        Tensor("gradients of product, activation and gate", 3.0 * model.ffn, "tensor", inner),
        Tensor("product, not rebuilt", -float(model.ffn), "tensor", width),
        _own_rotation(model),
    )


def _experts_rebuilt(model: Model, width: float) -> tuple[Tensor, ...]:
    """Alive where the backward pass of a recomputed MoE layer is widest.

    Otherwise that is behind the experts' activation, when their output is not rebuilt yet.  With biased routing the
    compiler first runs shared experts back, and rebuilds and exchanges the routed tokens side by side.
    """
    assert model.moe is not None
    moe, hidden = model.moe, float(model.hidden)
    own = _own_rotation(model)
    if _biased(model):
        shared = hidden + 4.0 * moe.shared_ffn if moe.shared_ffn else 0.0
        return (
            own,
            Tensor(
                "gradients of the layer's output, of routing and of shared experts", 3.0 * hidden, "sequence", width
            ),
            Tensor("shared experts, freed", -shared, "sequence", width),
            Tensor(
                "repeated gradient, two zero-filled targets, sent, received, second product",
                6.0 * hidden,
                "routed",
                width,
            ),
            Tensor("expert product", float(moe.expert_ffn), "columns", width),
        )
    return (
        own,
        Tensor("gradient received", hidden, "sequence", width),
        Tensor("repeated gradient and two zero-filled targets, no expert output", 2.0 * hidden, "routed", width),
        Tensor("gradients of expert product, gate and up", 3.0 * moe.expert_ffn, "columns", width),
    )


def _experts_rebuilt_next(model: Model, width: float) -> tuple[Tensor, ...]:
    """The same in a layer behind another recomputed one: its expert output is exchanged back beside all gradients."""
    assert model.moe is not None
    hidden = float(model.hidden)
    return (
        _own_rotation(model),
        Tensor(
            "repeated gradient and product, two zero-filled targets, output before exchange",
            5.0 * hidden,
            "routed",
            width,
        ),
        Tensor("expert product", float(model.moe.expert_ffn), "columns", width),
    )


def _exchange(vocab: float, width: float) -> tuple[Tensor, ...]:
    """Logits of mcore networks under context parallelism, where the gradient of the loss is exchanged.

    They are made by sequence slice and wanted by sample: exchanged, gathered and transposed, and so is their gradient.
    """
    return (
        Tensor("exchanged, gathered and transposed logits and gradients", 6.0 * vocab, "regrouped", width),
        Tensor("logits", vocab, "tensor", width),
        Tensor("one-hot labels", vocab, "tensor", _FLOAT),
    )


def _exchanged(vocab: float, width: float) -> tuple[Tensor, ...]:
    """What that exchange has left at the loss: logits as made and as taken apart, gathered and put in order."""
    return (
        Tensor("logits as made and as taken apart", 2.0 * vocab, "exchanging", width),
        Tensor("logits gathered and put in order", vocab, "left", width),
    )


def _whole_gradient(vocab: float, width: float) -> tuple[Tensor, ...]:
    """The loss is split over tp; where the output projection is not, the gradient of all logits is made, and cast."""
    return (Tensor("gradient of all logits and its cast", vocab, "unpiped", _FLOAT + width),)


def _looked_up(hidden: float, width: float) -> Mapping[str, tuple[Tensor, ...]]:
    """What legacy networks keep of the embedding beside the first layer's input: its float32 slice.

    A recomputed layer slices for itself, so all of the sequence is kept for it.
    """
    whole = (
        Tensor("embedding, not sliced", hidden, "global", width),
        Tensor("layer input, the same", -hidden, "sequence", width),
    )
    return {"first": (Tensor("embedding in float32", hidden, "sequence", _FLOAT - width),), "first_rebuilt": whole}


def _masks(workload: Workload, width: float, *, legacy: bool) -> tuple[tuple[Tensor, ...], ...]:
    """Masks of a micro-batch: kept always, where a layer is not recomputed, and where one is.

    A recomputed layer parts the mask of a context-parallel rank for itself, so all rows are kept for it.  Without the
    fused operator the mask is only added; what is kept is that of recomputed layers, before it is cast.
    """
    seq = float(workload.seq)
    cast = Tensor("attention mask", seq, "rows", 1.0)
    if not workload.flash_attention:
        return (), () if legacy else (cast,), (Tensor("attention mask, not cast", seq, "rows", width),)
    parted, unparted = (Tensor("attention mask of a rank", seq, split, 1.0) for split in ("parted", "unparted"))
    return (cast,), (parted,), (unparted,)


def _of_piece(model: Model, width: float) -> tuple[Tensor, ...]:
    """What a piece of a sequence keeps beside its layers: where its keys and values belong, cosine and sine."""
    keys = float(model.attention.kv_heads * model.attention.head_dim)
    return (
        Tensor("places of keys and values", keys, "context", width),
        Tensor("cosine and sine of a piece", 2.0 * _rotated(model), "whole", _FLOAT),
    )


def end_tensors(model: Model, workload: Workload, rules: MemoryRules) -> EndTensors:
    """What stages keep and need beside their layers."""
    hidden, vocab, seq = float(model.hidden), float(model.vocab), float(workload.seq)
    width = bytes_of(workload.compute_dtype)
    legacy = rules.layout == "legacy"
    constant: tuple[Tensor, ...] = ()
    per_chunk = [Tensor("cosine and sine", 2.0 * _rotated(model) * seq, "once", _FLOAT)]
    stage: tuple[Tensor, ...] = ()
    plain: tuple[Tensor, ...] = ()
    rebuilt: tuple[Tensor, ...] = ()
    refill: tuple[Tensor, ...] = ()
    start: tuple[Tensor, ...] = ()
    sent: tuple[Tensor, ...] = ()
    glm = is_glm(model, rules)
    if glm:
        constant = (Tensor("triangle and one mask for all batches", seq * seq, "once", 4.0 + 1.0),)
    elif rules.compressed_mask:
        constant = (_compressed_mask(float(model.layers) if rules.sequence_pieces == 1 else 1.0, rules),)
    else:
        per_chunk.append(Tensor("triangle", seq * seq, "once", width))
        refill = (Tensor("triangle of a batch", seq * seq, "once", width),)
        stage, plain, rebuilt = _masks(workload, width, legacy=legacy)
        start = (Tensor("masks of a batch while they are built", 2.0 * seq, "global", width),)
        sent = (Tensor("output sent and its copy", 2.0 * hidden, "sequence", width),)
    if rules.sequence_pieces > 1:
        stage = (*stage, *_of_piece(model, width))
    losses, parts = (1.0 + model.mtp_layers) * rules.sequence_pieces, float(rules.batch_parts)
    exchanged = () if legacy else _exchanged(vocab, width)
    return EndTensors(
        stage=stage,
        plain=plain,
        rebuilt=rebuilt,
        **(_looked_up(hidden, width) if legacy and not glm else {}),
        last=(
            Tensor("final norm input in float32", hidden, "sequence", _FLOAT),
            Tensor("head input", hidden, "whole", _FLOAT if legacy else width),
            Tensor("head inputs of MTP", model.mtp_layers * hidden, "whole", width),
        ),
        start=start,
        sent=sent,
        labels=(Tensor("one-hot labels", vocab, "tensor", _FLOAT),) if legacy else (),
        lookup=(Tensor("embedded tokens before and after reduction", 2.0 * hidden, "global", _FLOAT),)
        if legacy
        else (),
        predictor=(
            Tensor("norm inputs of MTP in float32", 3.0 * hidden, "sequence", _FLOAT),
            Tensor("joined input of MTP", 2.0 * hidden, "sequence", width),
        ),
        predictor_full=(Tensor("embedded tokens", hidden, "sequence", width),),
        constant=constant,
        chunk_constant=tuple(per_chunk),
        refill=refill,
        loss=(
            Tensor("shifted logits and one-hot labels of each loss", 2.0 * losses * vocab, "tensor", _FLOAT),
            Tensor("product and its negative of the last loss", 2.0 * vocab / parts, "tensor", _FLOAT),
            *exchanged,
        ),
        head_backward=() if rules.vocabulary_split else _whole_gradient(vocab, width),
        split_loss=(Tensor("labels in float32", vocab, "tensor", _FLOAT),),
        exchange=() if legacy else _exchange(vocab, width),
    )
