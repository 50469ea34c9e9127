"""Words and tables shared by all reports: plain text, at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from planner.cluster.records import Calibration
from planner.cost.estimate import Estimate
from planner.cost.strategies import Strategy
from planner.model.records import Model
from planner.search.explain import TIME_WORDS
from planner.search.suggest import Request
from planner.units import GIB, format_count

WIDTH: Final = 80

#: Names of memory terms in tables, in `planner.cost.memory.peak.TERMS` order, short enough for a column.
MEMORY_WORDS: Final = {
    "parameters": "param",
    "gradients": "grad",
    "optimizer_states": "optim",
    "gathered_parameters": "gather",
    "activations": "activ",
    "moe_dispatch": "moe",
    "recompute_working": "rework",
    "logits_loss": "logits",
    "temporaries": "temp",
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (), gap: int = 2) -> list[str]:
    """Lines of a table: columns ``gap`` spaces apart, numbers to the right, ``left`` columns to the left.

    >>> table(("tp", "note"), [("8", "a"), ("16", "bc")], left=(1,))
    ['tp  note', ' 8  a', '16  bc']
    """
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return [
        (" " * gap)
        .join(cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(line))
        .rstrip()
        for line in lines
    ]


def narrow_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> list[str]:
    """Table that gives up one of its two spaces between columns where 80 columns need it."""
    roomy = table(heads, rows, left=left)
    return roomy if max(map(len, roomy)) <= WIDTH else table(heads, rows, left=left, gap=1)


def gib(size_bytes: float) -> str:
    """Number of GiB with one decimal.

    >>> gib(58 * 2**30)
    '58.0'
    """
    return f"{size_bytes / GIB:.1f}"


def number(value: float) -> str:
    """Three digits or more, as a person writes it.

    >>> number(0.1234), number(9.876), number(97.25), number(1234.5)
    ('0.123', '9.88', '97.2', '1234')
    """
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Share as whole per cent, or a dash."""
    return "-" if share is None else f"{100 * share:.0f}%"


def runs(values: Sequence[int]) -> str:
    """A list of whole numbers, long runs shortened.

    >>> runs((3, 3, 3, 3, 2)), runs((10, 8, 6))
    ('3 x4, 2', '10, 8, 6')
    """
    parts: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end] == values[start]:
            continue
        length = end - start
        parts += [f"{values[start]} x{length}"] if length > 2 else [str(values[start])] * length
        start = end
    return ", ".join(parts)


def joined(numbers: Sequence[int]) -> str:
    """Ranks as ranges.

    >>> joined([1, 2, 3, 5])
    '1-3, 5'
    """
    parts: list[list[int]] = []
    for value in numbers:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def wrapped(text: str, indent: str = "") -> list[str]:
    """Text in lines of at most 80 columns, later ones indented."""
    import textwrap

    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def model_line(model: Model) -> str:
    """Which shape the figures are for."""
    from planner.model.operators import active_parameter_count, parameter_count

    total, active = parameter_count(model), active_parameter_count(model)
    sparse = f" ({format_count(active)} active)" if model.moe else ""
    return f"{model.name}: {total:,} parameters{sparse}, {model.layers} layers, hidden {model.hidden}"


def job_lines(request: Request) -> list[str]:
    """Model, cluster, workload, and what was assumed."""
    model, workload, cluster = request.model, request.workload, request.cluster
    hardware = cluster.hardware
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    lines = wrapped(f"Model     {model_line(model)}", " " * 10)
    if model.source:
        lines += wrapped(f"          from {model.source}", " " * 10)
    if model.note:
        lines += wrapped(f"Note      {model.note}", " " * 10)
    lines += wrapped(
        f"Cluster   {cluster.devices} x {hardware.name} on {nodes}; {gib(request.limit)} GiB usable of "
        f"{gib(hardware.device.hbm_bytes)} a card",
        " " * 10,
    )
    lines += wrapped(
        f"Workload  sequence {workload.seq}, global batch {workload.global_batch} "
        f"({format_count(workload.seq * workload.global_batch)} tokens a step), {workload.framework}",
        " " * 10,
    )
    if workload.notes:
        lines += wrapped(f"Default   {', '.join(workload.notes)}", " " * 10)
    return lines


def degrees(strategy: Strategy) -> str:
    """Degrees in one phrase, ones left out.

    >>> degrees(Strategy(dp=2, tp=8, pp=1, layers=((4,),), recompute_full=(0,), recompute_selective=(0,),
    ...                  micro_batches=4))
    'dp 2, tp 8, micro-batch 1 x 4'
    """
    names = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp")
    parts = [f"{name} {getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]
    if strategy.cp > 1:
        parts.append(f"cp by {strategy.cp_algorithm}")
    return ", ".join([*parts, f"micro-batch {strategy.micro_batch_size} x {strategy.micro_batches}"])


def extras(strategy: Strategy) -> str:
    """Sharding, sequence parallelism, schedule, swap."""
    parts = []
    if strategy.zero_level and strategy.optimizer_shard > 1:
        parts.append(f"optimizer sharded over {strategy.optimizer_shard} (level {strategy.zero_level})")
    else:
        parts.append("optimizer not sharded")
    if strategy.tp > 1:
        parts.append("sequence parallel" if strategy.sequence_parallel else "no sequence parallel")
        parts += ["whole experts"] if strategy.ep > 1 and strategy.etp == 1 else []
    if strategy.pp > 1:
        parts.append(f"{strategy.schedule} schedule")
    if strategy.swap_optimizer:
        parts.append("optimizer states on the host")
    return ", ".join(parts)


def recompute_word(strategy: Strategy) -> str:
    """Recomputed layers: full ones, then selective ones with an s.

    >>> recompute_word(Strategy(dp=1, tp=1, pp=2, layers=((4, 4),), recompute_full=(3, 0),
    ...                         recompute_selective=(1, 0), micro_batches=4))
    '3+1s'
    """
    return recompute_count(sum(strategy.recompute_full), sum(strategy.recompute_selective))


def recompute_count(full: int, selective: int) -> str:
    """Recomputed layers in a table cell.

    >>> recompute_count(0, 0), recompute_count(5, 0), recompute_count(0, 15), recompute_count(5, 11)
    ('0', '5', '15s', '5+11s')
    """
    parts = ([str(full)] if full else []) + ([f"{selective}s"] if selective else [])
    return "+".join(parts) or "0"


def recompute_line(strategy: Strategy) -> str:
    """Recompute of each stage in words."""
    if not sum(strategy.recompute_full) and not sum(strategy.recompute_selective):
        return "none"
    parts = []
    if sum(strategy.recompute_full):
        parts.append(f"full on {runs(strategy.recompute_full)}")
    if sum(strategy.recompute_selective):
        parts.append(f"selective on {runs(strategy.recompute_selective)}")
    return "; ".join(parts)


def layers_line(strategy: Strategy) -> str:
    """Layers of each stage, chunk by chunk when interleaved."""
    return " | ".join(runs(chunk) for chunk in strategy.layers)


def constant_words(calibration: Calibration) -> str:
    """Which constants of a device that was measured are its own; empty where no micro-benchmark went in.

    A constant that was not measured is named with its kind, because it may be another device's.
    """
    kinds: dict[str, list[str]] = {}
    for key, constant in sorted(calibration.constants.items()):
        if not key.startswith("residual_"):
            kinds.setdefault(constant.kind, []).append(key)
    measured = len(kinds.pop("measured", ()))
    if not measured:
        return ""
    rest = "; ".join(f"{kind}: {', '.join(keys)}" for kind, keys in sorted(kinds.items()))
    return f"{measured} constants measured" + (f"; {rest}" if rest else "")


def shares_line(estimate: Estimate) -> str:
    """Where the step goes, largest first, above one per cent."""
    time: Mapping[str, float] = estimate.time_s or {}
    step = estimate.step_s or 1.0
    parts = sorted(((time.get(name, 0.0) / step, word) for name, word in TIME_WORDS.items()), reverse=True)
    return ", ".join(f"{word} {percent(share)}" for share, word in parts if share >= 0.01)
