"""The strategies a search looks at, as tables of legal rows with counts of what the rules removed.

Degrees, batch sizes, schedules and sharding form a full grid; scalar rules thin it; the survivors meet the layouts of
their pp and vpp.  Nothing here makes a Python object per candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.experts import usual_etp
from planner.cost.rows import distinct
from planner.cost.strategies import CP_ALGORITHMS, SCHEDULES, IntArray, Strategies
from planner.errors import SpecError
from planner.legality.apply import SCALAR_RULES, Context, apply_rules
from planner.legality.context import divisors
from planner.search.layouts import layouts

#: Values looked at where neither pins nor the request decide.
MICRO_BATCH_SIZES: Final = (1, 2, 4, 8)
VIRTUAL_STAGES: Final = (1, 2, 3, 4, 5, 6)
#: Context parallelism is looked at while a rank keeps this many tokens of a sample.
LEAST_TOKENS_PER_CP_RANK: Final = 4096

#: Dimensions that can be pinned, and what a pin holds.
PINS: Final = (
    "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "micro_batches", "ulysses_degree", "zero_level",
    "optimizer_shard", "cp_algorithm", "schedule", "sequence_parallel", "swap_optimizer", "selective",
)  # fmt: skip

Pins = Mapping[str, Collection[int | str | bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Legal rows of one chunk of the space.

    Attributes
    ----------
    table : Strategies
        Legal candidates of one pp; no recompute yet, or selective recompute on every layer.
    examined : int
        Candidates looked at to find them, layouts multiplied out.
    removed : dict of str to int
        Of those, how many each rule removed; ``len(table) + sum(removed.values()) == examined``.
    """

    table: Strategies
    examined: int
    removed: dict[str, int] = field(default_factory=dict)


def check_pins(pins: Pins) -> None:
    """Raise `SpecError` for a pin that is not a dimension, has no value or holds an impossible one."""
    for name, values in pins.items():
        if name not in PINS:
            raise SpecError(f"'{name}' cannot be pinned; legal: {', '.join(PINS)}.")
        if isinstance(values, str) or not isinstance(values, Collection) or not values:
            raise SpecError(f"pin {name}={values!r} must be a set of at least one value.")
        legal = {"cp_algorithm": CP_ALGORITHMS, "schedule": SCHEDULES}.get(name)
        for value in values:
            if legal is not None and value not in legal:
                raise SpecError(f"pin {name}={value!r} is not known; legal: {', '.join(legal)}.")
            flag = isinstance(value, bool) and not _may_be_zero(name)
            if legal is None and (flag or not isinstance(value, int) or value < (0 if _may_be_zero(name) else 1)):
                raise SpecError(f"pin {name}={value!r} must be a positive whole number.")


def _may_be_zero(name: str) -> bool:
    return name in ("zero_level", "sequence_parallel", "swap_optimizer", "selective")


def batches(context: Context, pins: Pins | None = None, rows: int = 16_384, cells: int = 2**16) -> Iterator[Batch]:
    """All candidates of a request, one pp after the other.

    Parameters
    ----------
    rows, cells : int
        Most rows, and most rows times stages, of one batch: keeps memory bounded and columns inside the caches.
    """
    pins = pins or {}
    check_pins(pins)
    grid = _degrees(context, pins)
    for pp in _values(grid["pp"]):
        group = _grow(context, pins, {name: column[grid["pp"] == pp] for name, column in grid.items()})
        yield from _with_layouts(context, group, rows, cells)


def bare_rows(context: Context, pins: Pins | None = None) -> Iterator[Strategies]:
    """Every candidate before any rule, without layers; one table for each pp."""
    pins = pins or {}
    grid = _degrees(context, pins)
    for pp in _values(grid["pp"]):
        group = _grow(context, pins, {name: column[grid["pp"] == pp] for name, column in grid.items()})
        if len(group["pp"]):
            yield _table(group, np.zeros((len(group["pp"]), int(group["vpp"].max()), int(pp)), np.int64))


# --- the grid -------------------------------------------------------------------------------------------------------

Columns = dict[str, IntArray]


def _choice(pins: Pins, name: str, default: Collection[int]) -> IntArray:
    return np.array(sorted(int(v) for v in pins.get(name, default)), np.int64)


def _degrees(context: Context, pins: Pins) -> Columns:
    """dp, tp, pp, cp whose product is the number of devices; where no pinned ones are, those that miss it."""
    devices, seq = context.cluster.devices, context.workload.seq
    legal = divisors(devices)
    most_cp = max(seq // LEAST_TOKENS_PER_CP_RANK, 1)
    node = context.cluster.hardware.devices_per_node
    most_tp = devices if context.tp_across_nodes else node
    tp, pp, cp = (
        column.ravel()
        for column in np.meshgrid(
            _choice(pins, "tp", [d for d in legal if d <= most_tp]),
            _choice(pins, "pp", [d for d in legal if d <= context.model.layers + 2]),
            _choice(pins, "cp", [d for d in legal if d <= most_cp]),
            indexing="ij",
        )
    )
    product = tp * pp * cp
    exact = devices % product == 0
    dp = np.maximum(devices // product, 1)
    if "dp" in pins:
        asked = np.isin(dp, _choice(pins, "dp", ()))
        exact = exact & asked if (exact & asked).any() else exact & False
        if not exact.any():
            return _cross({"tp": tp, "pp": pp, "cp": cp}, {"dp": _choice(pins, "dp", ())})
    keep = exact if exact.any() else np.ones(len(tp), bool)
    return {"dp": dp[keep], "tp": tp[keep], "pp": pp[keep], "cp": cp[keep]}


def _values(column: IntArray) -> list[int]:
    """Distinct values in rising order."""
    return sorted(set(column.tolist()))


def _cross(columns: Columns, other: Columns) -> Columns:
    """Every row of one set of columns with every row of another."""
    n, k = (len(next(iter(part.values()))) for part in (columns, other))
    first = {name: np.repeat(column, k) for name, column in columns.items()}
    return first | {name: np.tile(column, n) for name, column in other.items()}


def _grow(context: Context, pins: Pins, columns: Columns) -> Columns:
    """The other dimensions, for the degrees of one pp."""
    pp = int(columns["pp"][0])
    columns = _cross(columns, _pipelines(context, pins, pp))
    columns = _cross(columns, {"micro_batch_size": _choice(pins, "micro_batch_size", MICRO_BATCH_SIZES)})
    columns = _cross(columns, {"selective": _choice(pins, "selective", (0, 1))})
    columns = _cross(columns, {"swap_optimizer": _choice(pins, "swap_optimizer", (0,))})
    experts = context.model.moe.experts if context.model.moe else 1
    columns = _cross(columns, {"ep": _choice(pins, "ep", divisors(experts))})
    columns = _each(columns, "cp", lambda cp: _context_parallel(pins, cp))
    columns["shards"] = columns["dp"] * columns["cp"]
    columns = _each(columns, "shards", lambda shards: _sharding(context, pins, shards))
    columns = _each(columns, "tp", lambda tp: {"sequence_parallel": _sequence_parallel(pins, tp)})
    columns = _each(columns, "tp", lambda tp: {"etp": _choice(pins, "etp", _expert_parts(context, tp))})
    batch = columns["dp"] * columns["micro_batch_size"]
    columns["micro_batches"] = np.maximum(context.workload.global_batch // batch, 1)
    keep = np.ones(len(batch), bool)
    for name in ("micro_batches", "ulysses_degree", "optimizer_shard"):
        if name in pins:
            keep &= np.isin(columns[name], _choice(pins, name, ()))
    return {name: column[keep] for name, column in columns.items()}


def _each(columns: Columns, by: str, choices: object) -> Columns:
    """Cross the rows of each value of one column with the choices for that value."""
    assert callable(choices)
    parts = []
    for value in _values(columns[by]):
        rows = columns[by] == value
        parts.append(_cross({name: column[rows] for name, column in columns.items()}, choices(int(value))))
    if not parts:
        return columns
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _pipelines(context: Context, pins: Pins, pp: int) -> Columns:
    """Pairs of schedule and vpp."""
    names = pins.get("schedule", [name for name in context.runs_on.schedules if name in _USUAL_SCHEDULES])
    most = context.model.layers + 2
    pairs: list[tuple[int, int]] = []
    for name in sorted(str(name) for name in names):
        plain, only_two = name in ("1f1b", "gpipe"), name == "zero_bubble_v"
        if pp == 1 and not plain and "schedule" not in pins:
            continue
        default = (1,) if plain else (2,) if only_two else [v for v in VIRTUAL_STAGES[1:] if v * pp <= most]
        asked = [int(v) for v in _choice(pins, "vpp", default)]
        fits = [v for v in asked if (v == 1) == plain and (v == 2 or not only_two)]
        pairs += [(SCHEDULES.index(name), v) for v in fits]
    if not pairs:  # nothing fits the pins: keep them, the rules will say why
        pairs = [(SCHEDULES.index(str(n)), int(v)) for n in sorted(map(str, names)) for v in _choice(pins, "vpp", (1,))]
    schedule, vpp = np.array(sorted(pairs), np.int64).T
    return {"schedule": schedule, "vpp": vpp}


_USUAL_SCHEDULES: Final = ("1f1b", "interleaved", "zero_bubble_v")


def _context_parallel(pins: Pins, cp: int) -> Columns:
    """Pairs of algorithm and Ulysses degree."""
    names = [str(name) for name in pins.get("cp_algorithm", CP_ALGORITHMS)]
    degrees = {"ring": [1], "ulysses": [cp], "hybrid": [d for d in divisors(cp) if 1 < d < cp]}
    pairs = [(CP_ALGORITHMS.index(name), d) for name in sorted(names) for d in degrees[name]]
    if cp == 1 or not pairs:
        pairs = [(0, 1)]
    algorithm, degree = np.array(sorted(pairs), np.int64).T
    return {"cp_algorithm": algorithm, "ulysses_degree": degree}


def _sharding(context: Context, pins: Pins, shards: int) -> Columns:
    """Pairs of level and group: the whole dp x cp group, and a node's share of it when pinned."""
    known = context.runs_on.zero_levels
    levels = [int(v) for v in pins.get("zero_level", [v for v in known if v > 0] if shards > 1 else (min(known),))]
    groups = [int(v) for v in pins.get("optimizer_shard", (shards,))]
    pairs = {(level, group if level else 1) for level in levels for group in groups}
    level, group = np.array(sorted(pairs), np.int64).T
    return {"zero_level": level, "optimizer_shard": group}


def _expert_parts(context: Context, tp: int) -> tuple[int, ...]:
    return usual_etp(context.framework, experts=context.model.moe is not None, tp=tp)


def _sequence_parallel(pins: Pins, tp: int) -> IntArray:
    return _choice(pins, "sequence_parallel", (1,)) if tp > 1 else np.array([0], np.int64)


# --- tables ---------------------------------------------------------------------------------------------------------


def _table(columns: Columns, layers_CVS: IntArray) -> Strategies:
    full = np.zeros((len(layers_CVS), layers_CVS.shape[2]), np.int64)
    selective = layers_CVS.sum(axis=1) * columns["selective"][:, None]
    names = (
        "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "micro_batches", "ulysses_degree",
        "zero_level", "optimizer_shard", "cp_algorithm", "schedule",
    )  # fmt: skip
    return Strategies(
        **{name: columns[name] for name in names},
        sequence_parallel=columns["sequence_parallel"].astype(bool),
        swap_optimizer=columns["swap_optimizer"].astype(bool),
        layers_CVS=layers_CVS,
        recompute_full_CS=full,
        recompute_selective_CS=selective,
    )


def _with_layouts(context: Context, columns: Columns, rows: int, cells: int) -> Iterator[Batch]:
    """Legal rows of one pp with their layouts, cut into batches."""
    if not len(columns["pp"]):
        return
    pp, (pairs, pair) = int(columns["pp"][0]), _pairs(columns["schedule"], columns["vpp"])
    splits = [_layouts_of(context, pp, int(vpp), int(schedule)) for schedule, vpp in pairs]
    counts = np.array([len(split) for split in splits])
    weights = np.maximum(counts, 1)[pair]
    bare = _table(columns, np.zeros((len(pair), 1, 1), np.int64))
    mask, removed = apply_rules(context, bare, SCALAR_RULES, weights)
    unfilled = mask & (counts[pair] == 0)
    removed["chunks"] = removed.get("chunks", 0) + int(weights[unfilled].sum())
    mask &= ~unfilled
    yield Batch(
        table=_table(_take(columns, mask & False), np.zeros((0, 1, pp), np.int64)),
        examined=int(weights[~mask].sum()),
        removed=removed,
    )
    pair, columns = pair[mask], _take(columns, mask)
    padded, start = _padded(splits, int(pairs[:, 1].max()), pp)
    row = np.repeat(np.arange(len(pair)), counts[pair])
    first = np.cumsum(counts[pair]) - counts[pair]
    layout = start[pair][row] + np.arange(len(row)) - first[row]
    size = max(min(rows, cells // pp), 1)
    for begin in range(0, len(row), size):
        part = slice(begin, begin + size)
        vpp = int(columns["vpp"][row[part]].max())
        table = _table(_take(columns, row[part]), padded[layout[part], :vpp])
        yield Batch(table=table, examined=len(table))


def _pairs(schedule: IntArray, vpp: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct (schedule, vpp), and which of them each row has."""
    rows, which = distinct(schedule * (1 << 20) + vpp)
    return np.stack([schedule[rows], vpp[rows]], axis=1), which


def _layouts_of(context: Context, pp: int, vpp: int, schedule: int) -> IntArray:
    v_shape = SCHEDULES[schedule] == "zero_bubble_v"
    return layouts(context.model.layers, context.model.mtp_layers, pp, vpp, v_shape)


def _take(columns: Columns, rows: NDArray[np.generic]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _padded(splits: list[IntArray], vpp: int, pp: int) -> tuple[IntArray, IntArray]:
    """All layouts in one array padded to the largest vpp, and where each pair's layouts begin."""
    counts = np.array([len(split) for split in splits])
    array = np.zeros((int(counts.sum()), vpp, pp), np.int64)
    start = np.cumsum(counts) - counts
    for begin, split in zip(start, splits, strict=True):
        array[begin : begin + len(split), : split.shape[1]] = split
    return array, start
