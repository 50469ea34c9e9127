"""Which framework trains which family, and what to say when it does not.

Training classes were looked up in MindFormers 1.9.0 to 2.1.0 (``modeling_*_train*.py``, ``*_pynative.py``, legacy
Llama); MindSpeed-LLM builds every family here from Megatron arguments.
"""

from __future__ import annotations

from typing import Final

from planner import frameworks
from planner.cost.parameters import GLM_FAMILIES
from planner.errors import EmitError
from planner.frameworks import TARGETS, Framework
from planner.model.records import MOE, Model

#: Family -> Hugging Face names that MindFormers' mcore classes are registered under.
MCORE: Final = {
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "telechat3": ("telechat3", "TeleChat3ForCausalLM"),
    "telechat3_moe": ("telechat3_moe", "TeleChat3MoeForCausalLM"),
}
#: Families among them with latent attention, shared experts and MTP (one network, two names).
LATENT: Final = ("deepseek_v3", "telechat3_moe")
#: Families that MindFormers' legacy ChatGLM2ForConditionalGeneration holds exactly.
GLM: Final = GLM_FAMILIES
#: Families of the legacy dialect; the others are in LlamaForCausalLM.
LEGACY: Final = ("llama", "mistral", *GLM)
#: Families with a PyNative class in MindFormers 2.x.
PYNATIVE: Final = {
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3ForCausalLM"),
}
#: Families that the self-contained MindSpore script builds.
NATIVE: Final = ("llama", "mistral", "qwen2", "qwen3", "internlm2")
MINDSPEED: Final = (
    "llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3", "glm4",
    "glm4_moe", "internlm2", "gpt",
)  # fmt: skip

_HELD: Final = {
    "mindformers": (*MCORE, *LEGACY),
    "mindformers-pynative": tuple(PYNATIVE),
    "mindspeed": MINDSPEED,
    "mindspore": NATIVE,
}


def targets_for(model: Model) -> tuple[str, ...]:
    """Targets that train the family of `model`, best first."""
    return tuple(target for target in TARGETS if model.family in _HELD[target])


def framework_of(model: Model, target: str) -> Framework:
    """The framework whose memory and speed a target's files of `model` have."""
    return frameworks.of_target(target, legacy=model.family in LEGACY)


def check_family(model: Model, target: str) -> None:
    """Refuse a family that `target` has no training class for, naming the targets that do.

    Raises
    ------
    EmitError
    """
    if target not in TARGETS:
        raise EmitError(f"target {target!r} is not known; legal: {', '.join(TARGETS)}.")
    if model.family in _HELD[target]:
        return
    others = targets_for(model)
    advice = f"use --target {others[0]}" if others else "no target trains it"
    raise EmitError(
        f"{target} has no training class for family {model.family!r} ({model.name}); "
        f"it trains {', '.join(_HELD[target])}. {advice[0].upper()}{advice[1:]}."
    )


def check_windows(model: Model, target: str, seq: int) -> None:
    """Refuse layers whose window is shorter than the sequence: no target's files say it, all would see everything.

    Raises
    ------
    EmitError
    """
    if model.windowed_layers and model.window < seq:
        raise EmitError(
            f"{target} cannot hold {model.name}: {model.windowed_layers} layers see {model.window} tokens, and its "
            f"files would train them on all {seq}. Give --seq up to {model.window}, or drop the config's window."
        )


def refuse(model: Model, target: str, what: str) -> EmitError:
    """Error for one feature of a model that `target` cannot hold."""
    others = [name for name in targets_for(model) if name != target]
    return EmitError(f"{target} cannot hold {model.name}: {what}." + (f" Use --target {others[0]}." if others else ""))


def leading_dense(model: Model, target: str) -> int:
    """Dense layers before the first MoE layer.

    Raises
    ------
    EmitError
        Dense layers follow MoE layers.
    """
    first = model.layer_kinds.index(MOE) if MOE in model.layer_kinds else model.layers
    if any(kind != MOE for kind in model.layer_kinds[first:]):
        raise refuse(
            model, target, "dense layers stand behind MoE layers, and only a number of first dense layers can be given"
        )
    return first
