"""Shapes from sizes: overrides of a base model, and sizes given one by one without a base."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from planner.errors import SpecError
from planner.model.fields import check_size
from planner.model.huggingface import sane
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe

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
    given = _checked(sizes, OVERRIDES)
    if not given:
        return replace(model, name=name) if name else model
    hidden = given.get("hidden", model.hidden)
    moe = _override_moe(model, given)
    kinds = _override_kinds(model, given, moe)
    changes: dict[str, Any] = {key: given[key] for key in _PLAIN if key in given}
    if model.learned_positions and "max_seq" in given:
        changes["learned_positions"] = given["max_seq"]
    if model.windowed_layers and len(kinds) != model.layers:  # the same share of layers keeps its window
        windowed = model.windowed_layers * len(kinds) // model.layers
        changes |= {"windowed_layers": windowed, "window": model.window if windowed else 0}
    listed = ", ".join(f"{key}={value}" for key, value in given.items())
    return sane(
        replace(
            model,
            name=name or f"{model.name}-modified",
            family=_family(model, moe),
            source=f"{model.source or model.name}; with {listed}",
            attention=_override_attention(model, given, hidden),
            layer_kinds=kinds,
            moe=moe,
            **changes,
        )
    )


def _checked(sizes: dict[str, int | bool | None], legal: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in sizes.items():
        if key not in legal:
            raise SpecError(f"'{key}' is not a size that can be given here; legal: {', '.join(legal)}.")
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

#: Families `from_sizes` builds: without and with experts.  The first is the default.
DENSE_FAMILIES: Final = ("llama", "qwen3", "gpt")
MOE_FAMILIES: Final = ("qwen3_moe",)

#: Names `from_sizes` accepts.
SIZES: Final = ("layers", "dense_layers", "hidden", "ffn", "vocab", "mtp_layers", "max_seq", "tied_embeddings", "heads",
                "kv_heads", "head_dim", *_MOE)  # fmt: skip
#: Rows of a learned position table when ``max_seq`` is not given (GPT-3).
_GPT_POSITIONS: Final = 2048


def from_sizes(*, family: str = "", name: str = "", **sizes: int | bool | None) -> Model:
    """Model from sizes alone, without a base.

    Parameters
    ----------
    family : {"", "llama", "qwen3", "gpt", "qwen3_moe"}
        Which network has these sizes: llama by default, qwen3_moe with experts.  gpt has a non-gated MLP, biases,
        norms with bias and a learned table of ``max_seq`` (default 2048) positions.
    **sizes : int or bool
        Any of `SIZES`.  Needed are ``layers``, ``hidden``, ``heads`` and ``vocab``; ``ffn`` for dense layers;
        ``experts``, ``topk`` and ``expert_ffn`` for MoE layers, which are all but the first ``dense_layers`` (0).
        ``kv_heads`` defaults to ``heads``, ``head_dim`` to hidden / heads.

    Raises
    ------
    SpecError
        A needed size is missing, a name is unknown, or sizes do not belong together.

    Examples
    --------
    >>> from_sizes(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000).attention.head_dim
    128
    """
    given = _checked(sizes, SIZES)
    sparse = any(given.get(key) for key in ("experts", "topk", "expert_ffn"))
    _all_there(given, sparse)
    families = MOE_FAMILIES if sparse else DENSE_FAMILIES
    family = family or families[0]
    if family not in families:
        experts = "with" if sparse else "without"
        raise SpecError(f"family={family!r} for a shape {experts} experts; legal: {', '.join(families)}.")
    gpt = family == "gpt"
    layers, length = given["layers"], given.get("max_seq") or (_GPT_POSITIONS if gpt else 0)
    return sane(
        Model(
            name=name or f"{family}-{layers}x{given['hidden']}",
            family=family,
            hidden=given["hidden"],
            ffn=given.get("ffn", 0),
            vocab=given["vocab"],
            attention=_plain_attention(given, family),
            layer_kinds=_front_dense(layers, given.get("dense_layers", 0)) if sparse else (DENSE,) * layers,
            moe=Moe(**{key: given[key] for key in _MOE if key in given}) if sparse else None,
            mtp_layers=given.get("mtp_layers", 0),
            gated_mlp=not gpt,
            mlp_bias=gpt,
            norm_bias=gpt,
            learned_positions=length if gpt else 0,
            tied_embeddings=given.get("tied_embeddings", False),
            max_seq=length,
            source="sizes: " + ", ".join(f"{key}={value}" for key, value in given.items()),
        )
    )


def _all_there(given: dict[str, Any], sparse: bool) -> None:
    needed = ["layers", "hidden", "heads", "vocab"]
    if not sparse or given.get("dense_layers"):
        needed.append("ffn")
    if sparse:
        needed += ["experts", "topk", "expert_ffn"]
    missing = [key for key in needed if not given.get(key)]
    if missing:
        raise SpecError(f"a shape without a base model lacks {', '.join(missing)}; give also those, or a base model.")
    if not sparse and (given.get("shared_ffn") or given.get("dense_layers")):
        raise SpecError("shared_ffn and dense_layers belong to a model with experts; give experts, topk, expert_ffn.")


def _plain_attention(given: dict[str, Any], family: str) -> Attention:
    width = given.get("head_dim") or _head_dim(given["hidden"], given["heads"])
    return Attention(
        heads=given["heads"],
        kv_heads=given.get("kv_heads", given["heads"]),
        head_dim=width,
        v_head_dim=width,
        qkv_bias=family == "gpt",
        output_bias=family == "gpt",
        qk_norm=family in ("qwen3", "qwen3_moe"),
    )
