"""Shapes without a config: sizes given one by one, overrides of a base, and the shape of a parameter count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from planner.errors import SpecError
from planner.model.catalogue import catalogue
from planner.model.fields import LIMITS, check_size
from planner.model.operators import layer_parameters, parameter_count
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe
from planner.units import format_count

#: A catalogued shape stands for a parameter count within this relative distance.
CATALOGUE_TOLERANCE: Final = 0.15
#: Families of dense models with the tensors of Llama, save biases and q/k norms.
_SIMILAR: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Counts outside are refused: below, tables outweigh layers; above, nothing has been proposed.
MIN_PARAMETERS: Final = 10**6
MAX_PARAMETERS: Final = 10**14

_ATTENTION: Final = ("heads", "kv_heads", "head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_dim",
                     "qk_rope_dim")  # fmt: skip
_MOE: Final = ("experts", "topk", "expert_ffn", "shared_ffn")
_PLAIN: Final = ("hidden", "ffn", "vocab", "mtp_layers", "max_seq", "tied_embeddings")

#: Names `with_overrides` accepts.
OVERRIDES: Final = ("layers", "dense_layers", *_PLAIN, *_ATTENTION, *_MOE)

#: Sizes that may be zero.
_ZERO: Final = frozenset({"dense_layers", "experts", "shared_ffn", "mtp_layers", "max_seq", "q_lora_rank", "ffn"})
_LIMIT_OF: Final = {"dense_layers": "layers", "v_head_dim": "head_dim", "qk_nope_dim": "head_dim",
                    "qk_rope_dim": "head_dim"}  # fmt: skip
#: Families of the same tensors with and without experts.
_MOE_TWIN: Final = {"llama": "mixtral", "mistral": "mixtral", "qwen2": "qwen2_moe", "qwen3": "qwen3_moe"}
_DENSE_TWIN: Final = {"mixtral": "mistral", "qwen2_moe": "qwen2", "qwen3_moe": "qwen3"}


# --------------------------------------------------------------------------------------------------- overrides


def with_overrides(model: Model, *, name: str = "", **sizes: int | bool | None) -> Model:
    """The model with some sizes replaced; ``None`` means unchanged.

    Only what is named changes, except for what a config derives: ``head_dim`` stays hidden / heads and ``kv_heads``
    stays equal to ``heads`` where the base has it so, and learned positions follow ``max_seq``.  The number of dense
    layers in front stays; a pattern behind it is continued or cut.

    Parameters
    ----------
    model : Model
    name : str
        New name; the base's with "-modified" if empty and something changes.
    **sizes : int or bool
        Any of `OVERRIDES`.  ``experts=0`` makes every layer dense; ``experts``, ``topk`` and ``expert_ffn`` together
        turn a dense model into one with experts.

    Raises
    ------
    SpecError
        Unknown name, illegal value, or sizes that do not belong together.

    Examples
    --------
    >>> from planner.model.load import find
    >>> small = with_overrides(find("llama-3.1-8b"), layers=4)
    >>> small.layers, small.name
    (4, 'Llama-3.1-8B-modified')
    """
    given = _checked(sizes)
    if not given:
        return replace(model, name=name) if name else model
    hidden = given.get("hidden", model.hidden)
    moe = _override_moe(model, given)
    kinds = _override_kinds(model, given, moe)
    changes: dict[str, Any] = {key: given[key] for key in _PLAIN if key in given}
    if model.learned_positions and "max_seq" in given:
        changes["learned_positions"] = given["max_seq"]
    listed = ", ".join(f"{key}={value}" for key, value in given.items())
    return replace(
        model,
        name=name or f"{model.name}-modified",
        family=_family(model, moe),
        source=f"{model.source or model.name}; with {listed}",
        attention=_override_attention(model, given, hidden),
        layer_kinds=kinds,
        moe=moe,
        **changes,
    )


def _checked(sizes: dict[str, int | bool | None]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in sizes.items():
        if key not in OVERRIDES:
            raise SpecError(f"'{key}' is not a size of a model; legal: {', '.join(OVERRIDES)}.")
        if value is None:
            continue
        if key == "tied_embeddings":
            if not isinstance(value, bool):
                raise SpecError(f"tied_embeddings is {value!r}; legal: true, false.")
            given[key] = value
        else:
            given[key] = check_size(value, _LIMIT_OF.get(key, key), key, minimum=0 if key in _ZERO else 1)
    return given


def _family(model: Model, moe: Moe | None) -> str:
    if moe is not None and model.moe is None:
        return _MOE_TWIN.get(model.family, model.family)
    if moe is None and model.moe is not None:
        return _DENSE_TWIN.get(model.family, model.family)
    return model.family


def _override_attention(model: Model, given: dict[str, Any], hidden: int) -> Attention:
    base = model.attention
    heads = given.get("heads", base.heads)
    if base.kind == "mla":
        return _override_latent(base, given, heads)
    for key in ("v_head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_dim", "qk_rope_dim"):
        if key in given:
            raise SpecError(f"{key} belongs to latent attention (MLA), which {model.name} does not have.")
    kv_heads = given.get("kv_heads", heads if base.kv_heads == base.heads else base.kv_heads)
    head_dim = given.get("head_dim", base.head_dim)
    derived = base.heads * base.head_dim == model.hidden and "head_dim" not in given
    if derived and heads * head_dim != hidden:
        head_dim = _head_dim(hidden, heads)
    return replace(base, heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def _override_latent(base: Attention, given: dict[str, Any], heads: int) -> Attention:
    if "head_dim" in given:
        raise SpecError("head_dim of latent attention is qk_nope_dim + qk_rope_dim; give those.")
    if given.get("kv_heads", heads) != heads:
        raise SpecError(f"kv_heads={given['kv_heads']} with latent attention; legal: {heads} (one per head).")
    nope, rope = given.get("qk_nope_dim", base.qk_nope_dim), given.get("qk_rope_dim", base.qk_rope_dim)
    return replace(
        base,
        heads=heads,
        kv_heads=heads,
        head_dim=nope + rope,
        qk_nope_dim=nope,
        qk_rope_dim=rope,
        v_head_dim=given.get("v_head_dim", base.v_head_dim),
        q_lora_rank=given.get("q_lora_rank", base.q_lora_rank),
        kv_lora_rank=given.get("kv_lora_rank", base.kv_lora_rank),
    )


def _head_dim(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise SpecError(
            f"hidden={hidden} is not a multiple of heads={heads}; give head_dim, or heads that divide "
            f"(nearest: {_nearest_divisors(hidden, heads)})."
        )
    return hidden // heads


def _nearest_divisors(number: int, wanted: int) -> str:
    below = next(d for d in range(min(wanted, number), 0, -1) if number % d == 0)
    above = next((d for d in range(wanted, number + 1) if number % d == 0), number)
    return f"{below}, {above}"


def _override_moe(model: Model, given: dict[str, Any]) -> Moe | None:
    named = {key: given[key] for key in _MOE if key in given}
    if not named:
        return model.moe
    if named.get("experts") == 0:
        if len(named) > 1:
            raise SpecError(
                f"experts=0 makes the model dense; leave out {', '.join(k for k in named if k != 'experts')}."
            )
        return None
    if model.moe is not None:
        return replace(model.moe, **named)
    missing = [key for key in ("experts", "topk", "expert_ffn") if key not in named]
    if missing:
        raise SpecError(f"{model.name} has no experts; to add them give also {', '.join(missing)}.")
    return Moe(**named)


def _override_kinds(model: Model, given: dict[str, Any], moe: Moe | None) -> tuple[LayerKind, ...]:
    layers: int = given.get("layers", model.layers)
    if moe is None:
        if given.get("dense_layers", layers) != layers:
            raise SpecError(f"dense_layers={given['dense_layers']} but {model.name} has no experts: all are dense.")
        return (DENSE,) * layers
    if "dense_layers" in given or model.moe is None:
        return _front_dense(layers, given.get("dense_layers", 0))
    front = model.layer_kinds.index(MOE)
    rest = model.layer_kinds[front:]
    period = next(p for p in range(1, len(rest) + 1) if all(rest[i] == rest[i % p] for i in range(len(rest))))
    kinds = (DENSE,) * front + tuple(rest[i % period] for i in range(max(0, layers - front)))
    if layers <= front:
        raise SpecError(
            f"layers={layers} leaves no MoE layer, as the first {front} of {model.name} are dense; "
            f"give more layers, dense_layers below {layers}, or experts=0."
        )
    return kinds


def _front_dense(layers: int, dense_layers: int) -> tuple[LayerKind, ...]:
    if dense_layers >= layers:
        raise SpecError(
            f"dense_layers={dense_layers} of {layers} layers leaves none for experts; legal: 0 to {layers - 1}."
        )
    return (DENSE,) * dense_layers + (MOE,) * (layers - dense_layers)


# ----------------------------------------------------------------------------------------------- explicit sizes


def from_sizes(
    *,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocab: int | None = None,
    ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    experts: int | None = None,
    topk: int | None = None,
    expert_ffn: int | None = None,
    shared_ffn: int | None = None,
    dense_layers: int | None = None,
    tied_embeddings: bool = False,
    max_seq: int | None = None,
    family: Literal["", "llama", "qwen3", "gpt", "qwen3_moe"] = "",
    name: str = "",
) -> Model:
    """Model from sizes alone, without a base.

    ``layers``, ``hidden``, ``heads`` and ``vocab`` are needed, and ``ffn`` or the three expert sizes (both when
    ``dense_layers`` > 0).  The rest follows the family: llama for dense and qwen3_moe for experts unless named;
    ``kv_heads`` defaults to ``heads``, ``head_dim`` to hidden / heads, ``max_seq`` of gpt (a table) to 2048.

    Examples
    --------
    >>> from_sizes(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000).attention.head_dim
    128
    """
    sparse = any(value for value in (experts, topk, expert_ffn))
    needed: dict[str, int | None] = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab}
    if not sparse or dense_layers:
        needed["ffn"] = ffn
    if sparse:
        needed |= {"experts": experts, "topk": topk, "expert_ffn": expert_ffn}
    missing = [key for key, value in needed.items() if value is None]
    if missing:
        raise SpecError(
            f"a shape without a base model lacks {', '.join(missing)}; give them, or a base model to change."
        )
    given = _checked(
        needed
        | {"ffn": ffn, "kv_heads": kv_heads, "head_dim": head_dim, "shared_ffn": shared_ffn, "max_seq": max_seq}
        | {"dense_layers": dense_layers}
    )
    family = family or ("qwen3_moe" if sparse else "llama")
    gpt = family == "gpt"
    if family not in ("llama", "qwen3", "gpt", "qwen3_moe") or sparse != (family == "qwen3_moe"):
        legal = "qwen3_moe" if sparse else "llama, qwen3, gpt"
        raise SpecError(f"family={family!r} for a shape {'with' if sparse else 'without'} experts; legal: {legal}.")
    if not sparse and (shared_ffn or dense_layers):
        raise SpecError("shared_ffn and dense_layers belong to a model with experts; give experts, topk, expert_ffn.")
    width = given.get("head_dim") or _head_dim(given["hidden"], given["heads"])
    kinds = _front_dense(given["layers"], given.get("dense_layers", 0)) if sparse else (DENSE,) * given["layers"]
    length = given.get("max_seq") or (2048 if gpt else 0)
    return Model(
        name=name or f"{family}-{given['layers']}x{given['hidden']}",
        family=family,
        hidden=given["hidden"],
        ffn=given.get("ffn", 0),
        vocab=given["vocab"],
        attention=Attention(
            heads=given["heads"],
            kv_heads=given.get("kv_heads", given["heads"]),
            head_dim=width,
            v_head_dim=width,
            qkv_bias=gpt,
            output_bias=gpt,
            qk_norm=family.startswith("qwen3"),
        ),
        layer_kinds=kinds,
        moe=Moe(**{key: given[key] for key in _MOE if key in given}) if sparse else None,
        gated_mlp=not gpt,
        mlp_bias=gpt,
        norm_bias=gpt,
        learned_positions=length if gpt else 0,
        tied_embeddings=tied_embeddings,
        max_seq=length,
        source="sizes: " + ", ".join(f"{key}={value}" for key, value in given.items()),
    )


# --------------------------------------------------------------------------------------------- parameter counts


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
    Hidden is chosen first for the nearest count, then layers, then the MLP width takes up what is left, so that the
    count is within 5 % of the one asked for (2 % from 20M on); from 5B on that keeps 90 to 130 of hidden per layer and an MLP of
    3.2 to 3.9 hidden.
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
