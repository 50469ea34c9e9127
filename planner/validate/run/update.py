"""What was measured, folded into the user's calibration: refitted to all validations, with their history.

Beside ``mine.yaml`` stands ``mine.validations.jsonl``: first the constants before any validation, then one line for
each.  The constants in ``mine.yaml`` are always the fit of the same base to all lines, so the order of validations does
not matter and a line taken out is forgotten.  A sentence for every update is added to ``sources``.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from planner import plan as plans
from planner.calibrate.fit import Fit, TimeCase, fit
from planner.calibrate.intervals import interval
from planner.cluster.load import hardware
from planner.cluster.records import Calibration, Cluster, Constant
from planner.cost.strategies import Strategies
from planner.cost.time.setting import default_execution
from planner.errors import CalibrationError, PlannerError
from planner.plan import Plan
from planner.validate.run.run import Validation

#: Constants that a validation may move.
KEYS: Final = (
    "matmul_efficiency", "attention_efficiency", "vector_efficiency", "hbm_efficiency", "tp_exposed", "dp_exposed",
    "launch_s", "step_fixed_s",
)  # fmt: skip
#: A constant moves within this factor of its value before any validation (80 %): one machine's best times scattered by
#: 1.3 between minutes under other load (docs/validate.md).
SPREAD: Final = 1.5
#: From so many validations on their own left-out errors make the interval of a prediction.
ENOUGH: Final = 3


def fold(found: Sequence[Validation], path: Path, today: datetime.date | None = None) -> tuple[str, ...]:
    """Add validations to a calibration file and its history; both files are replaced at once, or neither.

    Parameters
    ----------
    found : sequence of Validation
        On one device with one framework.
    path : Path
        Calibration file; made from the constants of the prediction where there is none.
    today : date, optional

    Returns
    -------
    tuple of str
        What changed, one sentence a constant.

    Raises
    ------
    CalibrationError
        Validations of several devices, a file that cannot be read or written, a history of another device.
    """
    day = (today or datetime.datetime.now(tz=datetime.timezone.utc).date()).isoformat()
    before = found[0].calibration
    if len({one.machine.hardware.name for one in found}) > 1:
        raise CalibrationError("validations of several devices cannot be folded into one calibration.")
    ledger = path.with_suffix(".validations.jsonl")
    base, base_rows, lines = _history(ledger, before)
    lines = [*lines, *(_line(one, day) for one in found)]
    fitted = _fit(lines, base, before)
    changes = _changes(before, fitted)
    said = f"{day}: {len(found)} validated, {len(lines)} in all; {'; '.join(changes) or 'no constant moved'}"
    text = _calibration_text(path, before, fitted, said, base_rows, len(lines), day)
    first = {"base": _constants(base), "rows": base_rows}
    history = "".join(json.dumps(line) + "\n" for line in (first, *lines))
    _write({path: text, ledger: history})
    return (f"{path}: fitted to {len(lines)} validations, history in {ledger.name}", *changes)


def _history(ledger: Path, before: Calibration) -> tuple[dict[str, Constant], int, list[dict[str, Any]]]:
    """Constants and rows before any validation, and the validations so far."""
    if not ledger.exists():
        return dict(before.constants), before.rows, []
    try:
        first, *rest = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines() if line.strip()]
        base, rows = {name: Constant(**values) for name, values in first["base"].items()}, int(first["rows"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError(
            f"{ledger} cannot be read as a history of validations ({error}); move it away to begin a new one."
        ) from error
    other = next((row["hardware"] for row in rest if row.get("hardware") != before.device), None)
    if other is not None:
        raise CalibrationError(f"{ledger} is the history of {other}, not of {before.device}; name another file.")
    return base, rows, rest


def _constants(base: dict[str, Constant]) -> dict[str, Any]:
    return {name: dataclasses.asdict(constant) for name, constant in base.items()}


def _line(one: Validation, day: str) -> dict[str, Any]:
    run = one.shrunk
    plan = Plan(
        model=run.model,
        workload=run.workload,
        hardware=one.machine.hardware.name,
        devices=run.strategy.devices,
        strategy=run.strategy,
    )
    return {
        "date": day,
        "plan": json.loads(plans.dumps(plan)),
        "hardware": one.machine.hardware.name,
        "mindspore": one.mindspore,
        "measured_s": one.observed.step_s,
        "predicted_s": one.estimate.step_s,
        "from": one.planned.name,
    }


def case_of(line: dict[str, Any], tables: Any) -> TimeCase:
    """A validation as a row to fit to."""
    plan = plans.loads(json.dumps(line["plan"]), source="history of validations")
    return TimeCase(
        case_id=str(line["from"]),
        model=plan.model,
        workload=plan.workload,
        cluster=Cluster(hardware=hardware(line["hardware"]), devices=plan.devices),
        table=Strategies.of([plan.strategy]),
        run=default_execution(plan.workload),
        measured_s=float(line["measured_s"]),
        release=f"MindSpore {line['mindspore']}",
        generation=str(line["mindspore"]),
        tables=tables,
    )


def _fit(lines: Sequence[dict[str, Any]], base: dict[str, Constant], before: Calibration) -> Fit:
    try:
        cases = [case_of(line, before.measured) for line in lines]
    except (KeyError, TypeError, ValueError, PlannerError) as error:
        raise CalibrationError(f"a line of the history of validations is damaged: {error}") from error
    movable = {key: widened(base[key]) for key in KEYS if key in base and base[key].value > 0.0}
    return fit(cases, dict(base) | movable, tuple(movable))


def widened(constant: Constant) -> Constant:
    """A constant whose interval is at least `SPREAD` wide either way.

    Shares of a peak stay at most 1, also where a machine larger than its profile has more already.
    """
    share = constant.value <= 1.0 and constant.high <= 1.0
    low = constant.value / SPREAD if constant.low <= 0.0 else min(constant.low, constant.value / SPREAD)
    high = max(constant.high, constant.value * SPREAD)
    return dataclasses.replace(constant, low=low, high=min(high, 1.0) if share else high)


def _changes(before: Calibration, fitted: Fit) -> list[str]:
    moved = []
    for key in fitted.keys:
        old, new = before.constants[key].value, fitted.constants[key].value
        if abs(new / old - 1.0) >= 0.005:
            moved.append(f"{key} {old:.4g} -> {new:.4g}")
    return moved


def _calibration_text(
    path: Path, before: Calibration, fitted: Fit, said: str, before_rows: int, rows: int, day: str
) -> str:
    """The calibration file with its constants, interval, date and sources brought up to date; the rest as it was."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width, yaml.allow_unicode = 4096, True
    yaml.representer.add_representer(float, _float)
    content = yaml.load(path.read_text(encoding="utf-8")) if path.is_file() else _new_file(before)
    constants = content["constants"]
    for key in fitted.keys:
        c = fitted.constants[key]
        entry = {"value": _digits(c.value), "low": _digits(c.low), "high": _digits(c.high)}
        entry["low"], entry["high"] = min(entry["low"], entry["value"]), max(entry["high"], entry["value"])
        constants[key] = {
            **entry,
            "kind": "calibrated",
            "source": f"fit to {rows} validations, before them {_prior(fitted, key)}",
        }
    if rows >= ENOUGH:
        low, high = interval(-fitted.left_out(lambda case: id(case)))
        content["residual_log_p10"], content["residual_log_p90"] = round(low, 4), round(high, 4)
    content["rows"], content["date"] = before_rows + rows, day
    content["sources"] = [*(content.get("sources") or []), said]
    stream = io.StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def _prior(fitted: Fit, key: str) -> str:
    return f"{fitted.priors[key].value:.4g}"


def _new_file(before: Calibration) -> dict[str, Any]:
    """A file of one's own, from the constants that predicted."""
    return {
        "name": f"{before.device.lower()}-validated",
        "device": [before.device],
        "framework": [before.framework],
        "generation": before.generation,
        "date": before.date,
        "rows": before.rows,
        "residual_log_p10": before.residual_log_p10,
        "residual_log_p90": before.residual_log_p90,
        "constants": {name: dataclasses.asdict(constant) for name, constant in before.constants.items()},
        "sources": list(before.sources),
    }


def _float(representer: Any, value: float) -> Any:
    """A float as YAML 1.1 reads it: with a point, also before an exponent."""
    text = f"{value:.6g}"
    mantissa, e, exponent = text.partition("e")
    text = f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"
    return representer.represent_scalar("tag:yaml.org,2002:float", text)


def _digits(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def _write(texts: dict[Path, str]) -> None:
    """Replace files: all are written beside their places before the first is moved."""
    staged: list[tuple[str, Path]] = []
    try:
        for path, text in texts.items():
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent, text=True)
            staged.append((name, path))
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
        for name, path in staged:
            Path(name).replace(path)
    except OSError as error:
        raise CalibrationError(f"{next(iter(texts))} cannot be written: {error.strerror or error}.") from error
    finally:
        for name, _ in staged:
            Path(name).unlink(missing_ok=True)
