"""The shape that stands for a parameter count: a catalogued one near it, else one scaled by fixed rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.errors import SpecError
from planner.model.catalogue import catalogue
from planner.model.fields import LIMITS
from planner.model.huggingface import MAX_PARAMETERS
from planner.model.operators import layer_parameters, parameter_count
from planner.model.records import DENSE, Attention, Model
from planner.units import format_count

#: A catalogued shape stands for a parameter count within this relative distance.
CATALOGUE_TOLERANCE: Final = 0.15
#: Families of dense models with the tensors of Llama, save biases and q/k norms.
_SIMILAR: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Smaller counts are refused: tables would outweigh layers.
MIN_PARAMETERS: Final = 10**6


def closest(parameters: int | float) -> Model:
    """The shape that stands for a parameter count.

    1. Among the reference ladder of the catalogue (dense Llama 2 to 3.2, Qwen 2.5 and 3), the nearest count within
       15 %; the first in the catalogue among equals.
    2. Else among all catalogued dense Llama, Mistral and Qwen models, likewise.
    3. Else `scaled`.

    Examples
    --------
    >>> closest(70e9).name, closest(8e9).name
    ('Llama-3.1-70B', 'Llama-3.1-8B')
    """
    target = _legal_count(parameters)
    entries = catalogue()
    ladder = [entry.model for entry in entries if entry.reference]
    similar = [entry.model for entry in entries if entry.model.family in _SIMILAR]
    for models in (ladder, similar):
        best = min(models, key=lambda model: abs(parameter_count(model) - target))
        if abs(parameter_count(best) - target) <= CATALOGUE_TOLERANCE * target:
            return best
    return scaled(target)


def _legal_count(parameters: int | float) -> int:
    if isinstance(parameters, bool) or not isinstance(parameters, (int, float)) or parameters != parameters:
        raise SpecError(f"parameters={parameters!r} is not a count; legal: 1M to 100T.")
    if not MIN_PARAMETERS <= parameters <= MAX_PARAMETERS:
        raise SpecError(f"{format_count(parameters)} parameters ({parameters}) is out of range; legal: 1M to 100T.")
    return int(parameters)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Rules of `scaled` from one parameter count on."""

    from_parameters: int
    head_dim: int
    heads_multiple: int
    layers_multiple: int
    ffn_multiple: int
    vocab: int


_RULES: Final = (
    _Rule(10**9, 128, 8, 4, 256, 128256),
    _Rule(3 * 10**8, 64, 4, 2, 64, 128256),
    _Rule(2 * 10**7, 64, 4, 2, 64, 32000),
    _Rule(0, 64, 1, 1, 64, 4096),
)

#: hidden / layers of scaled shapes: Llama 2 and 3 have 102 (70B) to 130 (405B).
_HIDDEN_PER_LAYER: Final = 112
#: MLP width / hidden of scaled shapes, as Llama 3 has it.
_FFN_PER_HIDDEN: Final = 3.5
#: Below this count the head shares the embedding's tensor (Llama 3.2, Qwen 3).
_UNTIED_FROM: Final = 4 * 10**9


def scaled(parameters: int | float) -> Model:
    """A Llama-like shape of about this many parameters, by fixed rules.

    ==================  =========  =========  ========  ========
    parameters          from 1B    from 300M  from 20M  below
    head width          128        64         64        64
    heads multiple of   8          4          4         1
    layers multiple of  4          2          2         1
    MLP multiple of     256        64         64        64
    vocabulary          128256     128256     32000     4096
    ==================  =========  =========  ========  ========

    Hidden is heads x head width, about 112 per layer (Llama 2 and 3: 102 to 130); key/value heads are 8 or the
    largest divisor of the heads below; the MLP is 3.5 hidden wide (Llama 3); tied below 4B (Llama 3.2, Qwen 3).
    Hidden is chosen first for the nearest count, then layers, then the MLP width takes up what is left: the count is
    within 5 % of the one asked for (2 % from 20M on).  From 5B on hidden / layers stays within 90 and 130 and the
    MLP within 3.2 and 3.8 hidden.
    """
    target = _legal_count(parameters)
    rule = next(rule for rule in _RULES if target >= rule.from_parameters)
    hidden = _nearest_hidden(target, rule)
    base = _count(target, rule, hidden, 0)
    per_layer = _count(target, rule, hidden, 1) - base
    layers = rule.layers_multiple * max(1, round((target - base) / per_layer / rule.layers_multiple))
    ffn = _default_ffn(rule, hidden)
    left = target - _count(target, rule, hidden, layers)
    steps = round(left / (3 * hidden * layers * rule.ffn_multiple))
    return _llama_like(target, rule, hidden, layers, max(rule.ffn_multiple, ffn + rule.ffn_multiple * steps))


def _nearest_hidden(target: int, rule: _Rule) -> int:
    """Width whose depth-by-rule shape has the count nearest to the target; counts grow with width."""
    unit = rule.head_dim * rule.heads_multiple
    low, high = 1, LIMITS["hidden"] // unit
    while low < high:  # the smallest width that reaches the target
        middle = (low + high) // 2
        if _by_rule(target, rule, unit * middle) < target:
            low = middle + 1
        else:
            high = middle
    widths = (unit * max(low - 1, 1), unit * low)
    return min(widths, key=lambda hidden: abs(_by_rule(target, rule, hidden) - target))


def _by_rule(target: int, rule: _Rule, hidden: int) -> float:
    base = _count(target, rule, hidden, 0)
    return base + max(1.0, hidden / _HIDDEN_PER_LAYER) * (_count(target, rule, hidden, 1) - base)


def _count(target: int, rule: _Rule, hidden: int, layers: int) -> int:
    one = _llama_like(target, rule, hidden, 1, _default_ffn(rule, hidden))
    whole = parameter_count(one)
    return whole + (layers - 1) * layer_parameters(one, DENSE).total


def _default_ffn(rule: _Rule, hidden: int) -> int:
    return rule.ffn_multiple * max(1, round(_FFN_PER_HIDDEN * hidden / rule.ffn_multiple))


def _llama_like(target: int, rule: _Rule, hidden: int, layers: int, ffn: int) -> Model:
    heads = hidden // rule.head_dim
    kv_heads = next(k for k in range(8, 0, -1) if heads % k == 0)
    size = format_count(target)
    return Model(
        name=f"Llama-like-{size}",
        family="llama",
        hidden=hidden,
        ffn=ffn,
        vocab=rule.vocab,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=rule.head_dim, v_head_dim=rule.head_dim),
        layer_kinds=(DENSE,) * layers,
        tied_embeddings=target < _UNTIED_FROM,
        max_seq=8192,
        source=f"scaled: Llama-like shape for {size} parameters; no catalogued Llama, Mistral or Qwen within 15 %",
    )
