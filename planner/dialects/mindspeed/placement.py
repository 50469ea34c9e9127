"""Which layers lie on which stage of a launch script: even, listed, with shorter ends, or laid out in a text."""

from __future__ import annotations

import re
from typing import Final

from planner.dialects.mindspeed.given import Flags
from planner.errors import SpecError

_LAYOUT: Final = "--pipeline-model-parallel-layout"
#: One letter or one group that is repeated, in a layout.
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([A-Za-z|]))\*([0-9]{1,4})")
_MOST_LETTERS: Final = 20_000


def placement(flags: Flags) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk of each stage, without those that do nothing.

    Raises
    ------
    SpecError
        The layers do not divide, or a list does not add up to them.
    """
    layers, pp = flags.integer("--num-layers"), flags.integer("--pipeline-model-parallel-size", 1)
    first, last = (flags.integer(f"--decoder-{end}-pipeline-num-layers", 0, 0) for end in ("first", "last"))
    if first or last:
        return _in_chunks(flags, _ends(flags, layers, pp, first, last))
    if flags.has(_LAYOUT):
        return _laid_out(flags, layers, pp)
    ends = [flags.has(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if any(ends):
        return _accounted(flags, layers, pp, *ends)
    vpp = _chunks(flags, layers, pp)
    if flags.has("--num-layer-list"):
        listed = tuple(int(part) for part in flags.text("--num-layer-list").split(",") if part.strip().isdigit())
        if len(listed) != pp or sum(listed) != layers or vpp > 1:
            raise SpecError(
                f"{flags.where('--num-layer-list')} needs {pp} numbers that add up to {layers}, and no "
                f"virtual pipeline; given {flags.text('--num-layer-list')}."
            )
        return (listed,)
    if layers % (pp * vpp):
        raise SpecError(
            f"{flags.source}: --num-layers {layers} does not divide into {pp} stages x {vpp} chunks; Megatron would "
            "drop layers. Use --num-layer-list, or --noop-layers with a padded number."
        )
    idle = _idle(flags, layers)
    size = layers // (pp * vpp)
    rows = [
        tuple(sum(i not in idle for i in range((c * pp + s) * size, (c * pp + s + 1) * size)) for s in range(pp))
        for c in range(vpp)
    ]
    return tuple(rows)


def _chunks(flags: Flags, layers: int, pp: int) -> int:
    if flags.has("--num-virtual-stages-per-pipeline-rank"):
        return flags.integer("--num-virtual-stages-per-pipeline-rank")
    if not flags.has("--num-layers-per-virtual-pipeline-stage"):
        return 1
    size = flags.integer("--num-layers-per-virtual-pipeline-stage")
    if layers % (pp * size):
        raise SpecError(
            f"{flags.where('--num-layers-per-virtual-pipeline-stage')}: {layers} layers do not divide into chunks of "
            f"{size} on {pp} stages."
        )
    return layers // (pp * size)


def _idle(flags: Flags, layers: int) -> set[int]:
    if not flags.has("--noop-layers"):
        return set()
    parts = flags.text("--noop-layers").split(",")
    if not all(part.strip().isdigit() and int(part) < layers for part in parts):
        raise SpecError(
            f"{flags.where('--noop-layers')} needs layer numbers below {layers}, "
            f"separated by commas; given {flags.text('--noop-layers')}."
        )
    return {int(part) for part in parts}


def _in_chunks(flags: Flags, stages: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Stages of different length in chunks: each stage's layers divide by the number of its chunks."""
    if flags.has("--num-layers-per-virtual-pipeline-stage"):
        raise SpecError(
            f"{flags.where('--num-layers-per-virtual-pipeline-stage')} does not fit stages of different length; use "
            "--num-virtual-stages-per-pipeline-rank."
        )
    vpp = flags.integer("--num-virtual-stages-per-pipeline-rank", 1)
    if any(count % vpp for count in stages):
        raise SpecError(
            f"{flags.source}: stages of {', '.join(map(str, stages))} layers do not divide into {vpp} chunks each."
        )
    return (tuple(count // vpp for count in stages),) * vpp


def _ends(flags: Flags, layers: int, pp: int, first: int, last: int) -> tuple[int, ...]:
    middle = pp - bool(first) - bool(last)
    rest = layers - first - last
    if middle < 1 or rest < middle or rest % middle:
        raise SpecError(
            f"{flags.source}: {layers} layers less {first} on the first and {last} on the last stage do not divide "
            f"into {middle} stages between."
        )
    inner = (rest // middle,) * middle
    return (*((first,) if first else ()), *inner, *((last,) if last else ()))


def _accounted(flags: Flags, layers: int, pp: int, embedding: bool, loss: bool) -> tuple[tuple[int, ...], ...]:
    """Embedding and loss count as a layer each, so the first and the last chunk hold one layer less."""
    vpp = _chunks(flags, layers + embedding + loss, pp)
    size, rest = divmod(layers + embedding + loss, pp * vpp)
    if rest:
        raise SpecError(
            f"{flags.source}: {layers} layers with embedding and loss counted as layers are {size * pp * vpp + rest}, "
            f"which {pp} stages x {vpp} chunks do not divide."
        )
    counts = [size] * (pp * vpp)
    counts[0] -= embedding
    counts[-1] -= loss
    return tuple(tuple(counts[chunk * pp : (chunk + 1) * pp]) for chunk in range(vpp))


def _laid_out(flags: Flags, layers: int, pp: int) -> tuple[tuple[int, ...], ...]:
    """Layers of a layout text: stages between bars, ``t`` a layer, ``E`` the embedding, ``L`` the loss, ``m`` MTP.

    Megatron-LM ``pipeline_parallel_layer_layout.py``: letters and groups may be repeated, ``Et*3|(tt|)*29,L``.
    """
    text = flags.text(_LAYOUT).strip("'\"").replace(",", "").replace(" ", "")
    spelled = text
    while _REPEATED.search(spelled) and len(spelled) < _MOST_LETTERS:
        spelled = _REPEATED.sub(lambda found: (found[1] if found[1] is not None else found[2]) * int(found[3]), spelled)
    counts = [part.count("t") for part in spelled.split("|")]
    if set(spelled) - set("EtLm|") or len(counts) % pp or sum(counts) != layers:
        raise SpecError(
            f"{flags.where(_LAYOUT)} {text}: {sum(counts)} layers in {len(counts)} parts; it needs {layers} layers (t) "
            f"in a multiple of {pp} parts between bars."
        )
    return tuple(tuple(counts[row : row + pp]) for row in range(0, len(counts), pp))
