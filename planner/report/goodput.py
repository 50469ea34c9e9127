"""What `goodput` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.cost.estimate import Estimate
from planner.model.operators import parameter_count
from planner.report.documents import gib, head, job, strategy_fields, unread_fields
from planner.report.text import degrees, job_lines, number, table, wrapped
from planner.search.request import Request
from planner.study.failures import RESTART_S, RESTART_SOURCE, SNAPSHOT_BYTES_PER_S, SNAPSHOT_SOURCE, SPARE_SHARES
from planner.study.failures import STORAGE_SOURCE as _STORAGE
from planner.study.goodput import Goodput, Saving
from planner.units import GB, format_bytes, format_seconds

_INDENT = " " * 10


def time_words(time_s: float) -> str:
    """A long time as people say it.

    >>> time_words(20), time_words(1115.7), time_words(11124), time_words(4121280)
    ('20.0 s', '18.6 min', '3.09 h', '47.7 d')
    """
    for unit, scale in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if time_s >= 2 * scale:
            return f"{number(time_s / scale)} {unit}"
    return format_seconds(time_s)


def goodput_lines(request: Request, estimate: Estimate, answer: Goodput, unread: Sequence[str] = ()) -> list[str]:
    """Sizes, times, intervals and their goodput, spares, and the section of the configuration."""
    sizes, lines = answer.sizes, [*job_lines(request), ""]
    step_s = estimate.step_s or 0.0
    lines += wrapped(f"Plan      {degrees(estimate.strategy)}; {number(step_s)} s a step", _INDENT)
    lines += _size_lines(request, answer)
    lines += wrapped(
        f"Failures  every {time_words(answer.mean_s)} on {estimate.strategy.devices} cards: "
        f"{answer.conditions.failures.per_1000_device_days:.3g} per 1000 cards and day "
        f"({answer.conditions.failures.source})",
        _INDENT,
    )
    restart = f" ({RESTART_SOURCE})" if answer.conditions.restart_s == RESTART_S else ""
    lines += wrapped(f"Restart   {time_words(answer.conditions.restart_s)}{restart}", _INDENT)
    lines += [f"Written   {format_bytes(sizes.written)} in all, {format_bytes(sizes.rank)} by the heaviest rank"]
    lines += ["", *_table(answer), ""]
    for way in answer.ways:
        lines += wrapped(_formulas(way), _INDENT)
    best = answer.better
    lines += wrapped(
        f"Best      {best.way}, every {best.best.steps} steps ({time_words(best.best.interval_s)}): "
        f"{100 * best.best.goodput:.1f} % of the time is training"
        + (
            "" if best.best.days is None else f", {number(best.best.days)} days instead of {number(estimate.days or 0)}"
        ),
        _INDENT,
    )
    lines += wrapped(f"Spares    {_spares(request, answer)}", _INDENT)
    section = monitor_section(request, answer)
    if section:
        lines += ["", "callbacks:", *section]
    if unread:
        lines += ["", *wrapped(f"Not read: {'; '.join(unread)}", _INDENT)]
    return lines


def _size_lines(request: Request, answer: Goodput) -> list[str]:
    sizes = answer.sizes
    lines = wrapped(
        f"Size      {format_bytes(sizes.weights)} weights, {format_bytes(sizes.states)} with states "
        f"({sizes.per_parameter:g} bytes x {parameter_count(request.model):,} parameters)",
        _INDENT,
    )
    given = answer.conditions.storage_bytes_per_s is not None
    storage = f"{number(answer.storage_bytes_per_s / GB)} GB/s" + ("" if given else f" ({_STORAGE}, a card)")
    own = answer.conditions.snapshot_bytes_per_s == SNAPSHOT_BYTES_PER_S
    snapshot = f"{number(answer.conditions.snapshot_bytes_per_s / GB)} GB/s a card"
    lines += wrapped(f"Storage   {storage}", _INDENT)
    return lines + wrapped(f"Snapshot  {snapshot}{f' ({SNAPSHOT_SOURCE})' if own else ''}", _INDENT)


def _table(answer: Goodput) -> list[str]:
    rows = [
        (
            way.way,
            each.name,
            time_words(way.blocking_s),
            time_words(each.interval_s),
            str(each.steps),
            f"{100 * each.save_share:.2f}%",
            f"{100 * each.goodput:.1f}%",
            time_words(each.at_risk_s),
        )
        for way in answer.ways
        for each in way.spacings
    ]
    return table(("saving", "interval", "blocks", "every", "steps", "share", "goodput", "at risk"), rows, left=(0, 1))


def _formulas(way: Saving) -> str:
    bound = "; it may not be shorter than the background write" if way.bounded else ""
    behind = f", then {time_words(way.background_s)} behind the training" if way.background_s else ""
    return (
        f"{way.way.capitalize()}: blocks {time_words(way.blocking_s)}{behind}; best interval "
        f"{time_words(way.exact_s)} exact, {time_words(way.daly_s)} Daly, {time_words(way.young_s)} Young{bound}."
    )


def _spares(request: Request, answer: Goodput) -> str:
    nodes = request.cluster.nodes
    low, high = (max(round(share * nodes), 1) for share in SPARE_SHARES)
    rule = f"published runs keep 5 to 10 %: {low} to {high} of {nodes} nodes"
    if answer.spares is None:
        return f"{rule}; --repair 24h counts them"
    away = time_words(answer.conditions.repair_s or 0)
    return f"{answer.spares} nodes run out less than 1 % of the time when a failed one is away {away}; {rule}"


def monitor_section(request: Request, answer: Goodput) -> list[str]:
    """Lines of MindFormers' callbacks that save like the better way; empty for other frameworks."""
    if not request.workload.runs_on.checkpoint_monitor:
        return []
    way = answer.better
    return [
        "  - type: CheckpointMonitor",
        "    prefix: pretrain",
        f"    save_checkpoint_steps: {way.best.steps}",
        "    keep_checkpoint_max: 3",
        "    integrated_save: False",
        f"    async_save: {way.way == 'asynchronous'}",
        "    checkpoint_format: safetensors",
        f"    remove_redundancy: {answer.conditions.deduplicated}",
    ]


def goodput_document(
    request: Request, estimate: Estimate, answer: Goodput, unread: Sequence[str] = ()
) -> dict[str, Any]:
    """The same as JSON holds it."""
    sizes, conditions = answer.sizes, answer.conditions
    return {
        **head("goodput"),
        **job(request),
        "strategy": strategy_fields(estimate.strategy),
        "step_s": estimate.step_s,
        "ideal_days": estimate.days,
        "checkpoint": {
            "weights_gib": gib(sizes.weights),
            "states_gib": gib(sizes.states),
            "written_gib": gib(sizes.written),
            "rank_gib": gib(sizes.rank),
            "bytes_per_parameter": sizes.per_parameter,
        },
        "conditions": {
            "storage_bytes_per_s": answer.storage_bytes_per_s,
            "snapshot_bytes_per_s": conditions.snapshot_bytes_per_s,
            "restart_s": conditions.restart_s,
            "repair_s": conditions.repair_s,
            "remove_redundancy": conditions.deduplicated,
            "failures": asdict(conditions.failures),
            "mean_between_s": answer.mean_s,
        },
        "ways": [asdict(way) | {"spacings": [asdict(each) for each in way.spacings]} for way in answer.ways],
        "better": answer.better.way,
        "spare_nodes": answer.spares,
        "callbacks": monitor_section(request, answer),
        **unread_fields(unread),
    }
