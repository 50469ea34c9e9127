"""Shapes without a config: sizes given one by one, overrides of a base, and the shape of a parameter count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from planner.errors import SpecError
from planner.model.catalogue import catalogue
from planner.model.fields import check_size
from planner.model.operators import parameter_count
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe
from planner.units import format_count

#: A catalogued shape stands for a parameter count within this relative distance.
CATALOGUE_TOLERANCE: Final = 0.15
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
    layers = given.get("layers", model.layers)
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
    2. Else among all catalogued dense models of the same tensors (gated MLP, rotary positions), likewise.
    3. Else `scaled`.

    Examples
    --------
    >>> closest(70e9).name, closest(8e9).name
    ('Llama-3.1-70B', 'Llama-3.1-8B')
    """
    target = _legal_count(parameters)
    entries = catalogue()
    ladder = [entry.model for entry in entries if entry.reference]
    similar = [entry.model for entry in entries if entry.model.moe is None and entry.model.gated_mlp]
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


def scaled(parameters: int | float) -> Model:
    """A Llama-like shape of about this many parameters, by fixed rules.

    * heads are 128 wide (64 below 1B) and ``hidden`` is heads x width, so a multiple of it;
    * about hidden / 112 layers (Llama 2 and 3: 102 to 130), at least 2;
    * 8 key/value heads, or the largest divisor of the heads below;
    * MLP width 3.5 hidden (Llama 3), rounded to 256 (64 below 1B);
    * vocabulary 128256 from 300M on, 32000 from 20M on, 4096 below; tied below 4B (Llama 3.2, Qwen 3).

    Hidden is chosen first for the nearest count, then layers, then the MLP width for what is left.
    Measured over the whole range: within 1 % of the count asked for (promised: 5 %).
    """
    target = _legal_count(parameters)
    unit = 128 if target >= 10**9 else 64
    low, high = 1, 2**20 // unit
    while low < high:  # smallest hidden whose count reaches the target; counts grow with hidden
        middle = (low + high) // 2
        if parameter_count(_llama_like(target, unit * middle)) < target:
            low = middle + 1
        else:
            high = middle
    heads = min((max(low - 1, 1), low), key=lambda n: abs(parameter_count(_llama_like(target, unit * n)) - target))
    hidden = unit * heads
    rough = _llama_like(target, hidden)
    per_layer = parameter_count(_llama_like(target, hidden, layers=2)) - parameter_count(
        _llama_like(target, hidden, layers=1)
    )
    layers = max(1, rough.layers + round((target - parameter_count(rough)) / per_layer))
    step = 256 if unit == 128 else 64
    left = target - parameter_count(_llama_like(target, hidden, layers=layers))
    ffn = max(step, rough.ffn + step * round(left / (3 * hidden * layers * step)))
    return _llama_like(target, hidden, layers=layers, ffn=ffn)


def _llama_like(target: int, hidden: int, layers: int = 0, ffn: int = 0) -> Model:
    unit, step = (128, 256) if target >= 10**9 else (64, 64)
    heads = hidden // unit
    vocab = 128256 if target >= 3 * 10**8 else 32000 if target >= 2 * 10**7 else 4096
    return Model(
        name=f"Llama-like-{format_count(target)}",
        family="llama",
        hidden=hidden,
        ffn=ffn or step * round(3.5 * hidden / step),
        vocab=vocab,
        attention=Attention(
            heads=heads,
            kv_heads=next(k for k in range(8, 0, -1) if heads % k == 0),
            head_dim=unit,
            v_head_dim=unit,
        ),
        layer_kinds=(DENSE,) * (layers or max(2, round(hidden / 112))),
        tied_embeddings=target < 4 * 10**9,
        max_seq=8192,
        source=f"scaled: Llama-like shape for {format_count(target)} parameters; none catalogued within 15 %",
    )
