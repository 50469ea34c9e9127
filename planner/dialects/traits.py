"""What a training file must say about a model that changes no size: norm epsilon, rotary base, router behaviour.

A plan holds shapes only.  When the shape came from a config.json that is still there, its own values are taken;
otherwise those of the family's published configurations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from planner.model import configs
from planner.model.records import Model

_CONFIG_LIMIT_BYTES: Final = 1 << 20
#: Numbers of Llama 3.1's rotary scaling (config.json; MindFormers 1.9 ``modules/layers.py`` wants just these).
LLAMA3_SCALING: Final = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Values that go into emitted files beside the shape.

    Attributes
    ----------
    norm_epsilon, rotary_base, initializer_range : float
    norm_topk_prob : bool
        Routing weights of the chosen experts are scaled to add up to 1.
    score_function : {"softmax", "sigmoid"}
        Of the router.
    routed_scaling : float
        Factor on the routed experts' output.
    groups, groups_chosen : int
        Group-limited routing; 0: none.
    aux_loss : float
        Coefficient of the load-balancing loss.
    rotary_scaling : mapping
        ``rope_scaling`` of the config.json; empty when there is none.
    source : str
        Where the values come from, for the comment in the file.
    """

    norm_epsilon: float = 1e-6
    rotary_base: float = 10000.0
    initializer_range: float = 0.02
    norm_topk_prob: bool = True
    score_function: str = "softmax"
    routed_scaling: float = 1.0
    groups: int = 0
    groups_chosen: int = 0
    aux_loss: float = 0.001
    rotary_scaling: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def llama3_scaling(self) -> dict[str, Any]:
        """Rotary scaling of Llama 3.1, as its config.json and MindFormers name the numbers; empty for any other."""
        given = self.rotary_scaling
        kind = given.get("rope_type", given.get("type"))
        return (
            {name: given[name] for name in LLAMA3_SCALING}
            if kind == "llama3" and set(LLAMA3_SCALING) <= set(given)
            else {}
        )


#: Published config.json values of each family (the values of its largest or newest common members).
_FAMILIES: Final = {
    "llama": Traits(norm_epsilon=1e-5),
    "mistral": Traits(norm_epsilon=1e-5, rotary_base=1000000.0),
    "mixtral": Traits(norm_epsilon=1e-5, rotary_base=1000000.0),
    "qwen2": Traits(rotary_base=1000000.0),
    "qwen2_moe": Traits(rotary_base=1000000.0, norm_topk_prob=False),
    "qwen3": Traits(rotary_base=1000000.0),
    "qwen3_moe": Traits(rotary_base=1000000.0),
    "deepseek_v2": Traits(norm_topk_prob=False),
    "deepseek_v3": Traits(
        score_function="sigmoid", routed_scaling=2.5, groups=8, groups_chosen=4, aux_loss=0.0001
    ),
    "glm": Traits(norm_epsilon=1.5625e-07),
    "glm4": Traits(norm_epsilon=1e-5),
    "chatglm": Traits(norm_epsilon=1e-5),
    "glm4_moe": Traits(norm_epsilon=1e-5, rotary_base=1000000.0, score_function="sigmoid"),
    "internlm2": Traits(norm_epsilon=1e-5, rotary_base=1000000.0),
    "telechat3": Traits(norm_epsilon=1e-5),
    "telechat3_moe": Traits(
        norm_epsilon=1e-5, initializer_range=0.01, score_function="sigmoid", routed_scaling=2.8
    ),
    "gpt": Traits(norm_epsilon=1e-5),
}  # fmt: skip
_LLAMA3_VOCABULARY: Final = 128256

_CONFIG_KEYS: Final[Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    "rms_norm_eps": ("norm_epsilon", (int, float)),
    "layer_norm_epsilon": ("norm_epsilon", (int, float)),
    "rope_theta": ("rotary_base", (int, float)),
    "initializer_range": ("initializer_range", (int, float)),
    "norm_topk_prob": ("norm_topk_prob", bool),
    "scoring_func": ("score_function", str),
    "routed_scaling_factor": ("routed_scaling", (int, float)),
    "n_group": ("groups", int),
    "topk_group": ("groups_chosen", int),
    "router_aux_loss_coef": ("aux_loss", (int, float)),
    "aux_loss_alpha": ("aux_loss", (int, float)),
}


def of(model: Model) -> Traits:
    """Traits of `model`: of its own config.json when that can be read, else of its family."""
    base = _FAMILIES.get(model.family, Traits())
    if model.family == "llama" and model.vocab == _LLAMA3_VOCABULARY:
        base = replace(base, rotary_base=500000.0)
    base = replace(base, source=f"published {model.family} configurations")
    own = _config(model)
    if own:
        values = {
            field: type(getattr(base, field))(own[key])
            for key, (field, kinds) in _CONFIG_KEYS.items()
            if isinstance(own.get(key), kinds) and (kinds is bool or not isinstance(own[key], bool))
        }
        scaling = own.get("rope_scaling")
        base = replace(
            base,
            **values,
            rotary_scaling=scaling if isinstance(scaling, dict) else {},
            source=Path(model.source).name,
        )
    return _divisible(model, base)


def _divisible(model: Model, traits: Traits) -> Traits:
    """Group-limited routing only where the groups divide the experts and the chosen groups the chosen experts."""
    if traits.groups and (model.moe is None or model.moe.experts % traits.groups or traits.groups_chosen < 1):
        return replace(traits, groups=0, groups_chosen=0)
    if traits.groups and model.moe and model.moe.topk % traits.groups_chosen:
        return replace(traits, groups=0, groups_chosen=0)  # refused by MindFormers' transformer_config.py
    if traits.groups and model.moe and model.moe.topk > model.moe.experts // traits.groups * traits.groups_chosen:
        return replace(traits, groups=0, groups_chosen=0)
    return traits


def _config(model: Model) -> dict[str, Any]:
    path = Path(model.source) if model.source.endswith(".json") else None
    try:
        if path is None or not path.is_file() or path.stat().st_size > _CONFIG_LIMIT_BYTES:
            return {}
        body = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    body = dict(configs.text_part(body, str(path))[0]) if isinstance(body, dict) else body
    same = isinstance(body, dict) and body.get("hidden_size") == model.hidden and body.get("vocab_size") == model.vocab
    return body if same else {}
