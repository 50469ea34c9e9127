"""Tensors that MindFormers keeps in PyNative mode: modelled from its source, not compared with a run.

Read from MindFormers 1.9.0 (``pynative/layers``, ``transformers``, ``base_models/gpt``, ``loss``), whose operators run
one by one, so autograd keeps what each operator's gradient takes: a norm the float32 cast of its input; a product its
input and the cast of its weight, anew for every micro-batch; fused attention its inputs, its output, maximum and sum;
the activation and the product of both halves of a gated MLP what they take.  How parameters are gathered and gradients
are reduced lies in a package that is not published (``hyper_parallel``); both are taken as PyTorch's FSDP does them.
"""

from __future__ import annotations

from planner.cost.memory import kept_megatron, kept_mindformers
from planner.cost.memory.rules import MemoryRules, bytes_of
from planner.cost.memory.tensors import EndTensors, LayerTensors, Tensor
from planner.model.records import DENSE, LayerKind, Model, Workload

_FLOAT = 4.0


def layer_tensors(model: Model, workload: Workload, kind: LayerKind, rules: MemoryRules) -> LayerTensors:
    """Kept and working tensors of one layer."""
    width, hidden = bytes_of(workload.compute_dtype), float(model.hidden)
    graph = kept_mindformers.layer_tensors(model, workload, kind, rules)
    eager = kept_megatron.layer_tensors(model, workload, kind, rules)
    kept = graph.kept if kind == DENSE else (*_without_copies(graph.kept), *_expert_product(model, width))
    return LayerTensors(
        kept=kept,
        full=(Tensor("layer input", hidden, "sequence", width),),
        backward=eager.backward,
        rebuilt=(*eager.backward, Tensor("layer input, kept already", -hidden, "sequence", width)),
    )


def _without_copies(kept: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies of experts' weights are counted with the casts of all weights (`planner.cost.memory.static`)."""
    return tuple(tensor for tensor in kept if tensor.split != "expert")


def _expert_product(model: Model, width: float) -> tuple[Tensor, ...]:
    """Nothing recomputes the activation of experts by itself, as the compiled graph does."""
    assert model.moe is not None
    return (Tensor("expert product", float(model.moe.expert_ffn), "routed", width, selective=False, dispatch=True),)


def end_tensors(model: Model, workload: Workload, rules: MemoryRules) -> EndTensors:
    """What the first and last stage keep and need beside their layers.

    The loss keeps the logits in float32 and their negative log-softmax, and makes the softmax, its copy with the
    labels taken off and the gradient; the 16-bit logits are an output of the network (``loss.py``, ``gpt_model.py``).
    """
    width, hidden, vocab = bytes_of(workload.compute_dtype), float(model.hidden), float(model.vocab)
    return EndTensors(
        constant=(Tensor("compressed mask", 2048.0 * 2048.0, "once", 1.0),),
        stage=(Tensor("cosine and sine", 2.0 * float(model.attention.qk_rope_dim or model.attention.head_dim), "whole",
                      _FLOAT),),
        last=(
            Tensor("final norm input in float32", hidden, "sequence", _FLOAT),
            Tensor("head input", hidden, "whole", width),
        ),
        loss=(
            Tensor("logits as made and by sample", 2.0 * vocab, "tensor", width),
            Tensor("float32 logits, log-softmax and three tensors of their gradient", 5.0 * vocab, "tensor", _FLOAT),
        ),
    )  # fmt: skip
