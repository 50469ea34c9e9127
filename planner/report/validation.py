"""A short real run beside its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.model.operators import parameter_count
from planner.report.documents import head, strategy_fields
from planner.report.text import degrees, model_line, table, wrapped
from planner.units import format_bytes, format_seconds
from planner.validate.compared import Compared
from planner.validate.run.run import Validation

INDENT = " " * 10


def validation_lines(found: Sequence[Validation], changes: Sequence[str] = ()) -> list[str]:
    """Every plan validated; with several, their order by what was measured; what an update changed."""
    lines: list[str] = []
    for one in found:
        lines += [*_one(one), ""]
    if len(found) > 1:
        lines += [*ranking_lines(found), ""]
    for change in changes:
        lines += wrapped(f"- {change}", "  ")
    return lines[:-1] if lines and not lines[-1] else lines


def _one(one: Validation) -> list[str]:
    s, machine = one.shrunk.strategy, one.machine
    ranks = f"{s.devices} process{'es' if s.devices > 1 else ''}" if machine.device == "CPU" else f"{s.devices} cards"
    lines = [
        *wrapped(f"Plan      {one.planned.name}: {degrees(one.planned.strategy)}", INDENT),
        *wrapped(f"Model     {model_line(one.shrunk.model)}", INDENT),
        *wrapped(f"Run       {degrees(s)}; {ranks} on {machine.device}, MindSpore {one.mindspore}", INDENT),
        *wrapped(f"Predicted {one.calibration.name}, {one.estimate.kind}", INDENT),
        "",
    ]
    heads = ("", "predicted", "80 % interval", "observed", "ratio")
    lines += table(heads, [_row(row) for row in one.rows], left=(0,))
    lines += ["", *wrapped(one.verdict)]
    if one.scaled_s is not None and one.shrunk.notes:
        lines += wrapped(f"The whole plan, were it off by as much: {format_seconds(one.scaled_s)} a step.")
    notes = (*one.shrunk.notes, *_cautions(one), *(f"{row.term}: {row.why}" for row in one.rows if row.why))
    for note in notes:
        lines += wrapped(f"- {note}", "  ")
    return lines


def _cautions(one: Validation) -> tuple[str, ...]:
    """What the figures do not say."""
    said = []
    if one.machine.hardware.name != one.planned.hardware.name:
        said.append(
            f"Planned for {one.planned.hardware.name}, run on {one.machine.hardware.name}: ratios between plans and "
            f"memory say how good the model is; the time says nothing of {one.planned.hardware.name}."
        )
    if one.observed.scattered:
        said.append(
            f"The steps scatter (usual {format_seconds(one.observed.step_s)}, best "
            f"{format_seconds(one.observed.best_s)}): other work on this machine; run again when it is quiet."
        )
    return tuple(said)


def _row(row: Compared) -> list[str]:
    between = "" if row.low is None or row.high is None else f"{_figure(row.low, row)} - {_figure(row.high, row)}"
    ratio = row.ratio
    return [
        row.term,
        _figure(row.predicted, row),
        between,
        _figure(row.observed, row),
        "-" if ratio is None else f"{ratio:.2f}",
    ]


def _figure(value: float | None, row: Compared) -> str:
    if value is None:
        return "-"
    return format_seconds(value) if row.unit == "s" else format_bytes(value)


def ranking_lines(found: Sequence[Validation]) -> list[str]:
    """Plans by measured time of a sample, beside the predicted order."""
    rows = [
        [str(place), one.planned.name, format_seconds(one.observed.step_s), f"{one.ratio:.2f}", str(was)]
        for place, (was, one) in enumerate(ranked(found), 1)
    ]
    return ["By measured time of a sample", *table(("", "plan", "step", "observed/predicted", "was"), rows, left=(1,))]


def ranked(found: Sequence[Validation]) -> list[tuple[int, Validation]]:
    """Place by prediction, and validation, in the order of what was measured.

    Plans of one search share their batch; shrunk ones may not, so times are compared for one sample.
    """
    numbered = list(enumerate(found, 1))
    return sorted(numbered, key=lambda pair: pair[1].observed.step_s / pair[1].shrunk.workload.global_batch)


def validation_document(found: Sequence[Validation], changes: Sequence[str] = ()) -> dict[str, Any]:
    """Answer of `planner validate`."""
    return {
        **head("validate"),
        "plans": [_fields(one) for one in found],
        "order": [was for was, _ in ranked(found)],
        "changes": list(changes),
    }


def _fields(one: Validation) -> dict[str, Any]:
    return {
        "plan": one.planned.name,
        "planned": strategy_fields(one.planned.strategy),
        "device": one.machine.device,
        "hardware": one.machine.hardware.name,
        "mindspore": one.mindspore,
        "model": {
            "name": one.shrunk.model.name,
            "layers": one.shrunk.model.layers,
            "parameters": parameter_count(one.shrunk.model),
        },
        "strategy": strategy_fields(one.shrunk.strategy),
        "global_batch": one.shrunk.workload.global_batch,
        "notes": [*one.shrunk.notes, *_cautions(one)],
        "calibration": one.calibration.name,
        "kind": one.estimate.kind,
        "steps": one.observed.steps,
        "loss": one.observed.loss,
        "rows": [_row_fields(row) for row in one.rows],
        "verdict": one.verdict,
        "scaled_step_s": one.scaled_s,
        "run_s": round(one.seconds, 3),
    }


def _row_fields(row: Compared) -> Mapping[str, Any]:
    return {
        "term": row.term,
        "unit": row.unit,
        "predicted": row.predicted,
        "low": row.low,
        "high": row.high,
        "observed": row.observed,
        "ratio": row.ratio,
        "why": row.why,
    }
