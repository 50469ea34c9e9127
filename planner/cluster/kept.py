"""A calibration as a plan keeps it: enough to find the same constants again, or the constants themselves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from planner.cluster.load import calibration
from planner.cluster.records import Calibration, Constant, Hardware
from planner.cluster.schema_tables import tables_from, tables_to_dict
from planner.cluster.tables import NOTHING
from planner.errors import CalibrationError, PlannerError

_WHOLE = ("constants", "residual_log_p10", "residual_log_p90", "rows", "sources", "device")


def digest(record: Calibration) -> str:
    """First 16 hexadecimal digits of SHA-256 over every number that changes an answer.

    >>> from planner.cluster.load import hardware
    >>> record = calibration(hardware("910b3"), "mindspeed")
    >>> digest(record) == digest(dataclasses.replace(record, date="another day"))
    True
    """
    numbers = {key: constant.value for key, constant in sorted(record.constants.items())}
    parts: list[Any] = [numbers, record.residual_log_p10, record.residual_log_p90]
    if record.measured != NOTHING:
        parts.append(dataclasses.asdict(record.measured))
    text = json.dumps(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_dict(record: Calibration, hardware: Hardware, framework: str) -> dict[str, Any]:
    """Name, generation and digest of a shipped calibration; of any other one all of it."""
    body: dict[str, Any] = {
        "name": record.name,
        "framework": record.framework,
        "generation": record.generation,
        "date": record.date,
        "digest": digest(record),
    }
    if body["digest"] != _shipped_digest(record, hardware, framework):
        whole = dataclasses.asdict(record)
        body |= {key: whole[key] for key in _WHOLE}
        if record.measured != NOTHING:
            body["measured"] = tables_to_dict(record.measured)
    return body


def from_dict(body: Mapping[str, Any], hardware: Hardware, framework: str) -> tuple[Calibration, str]:
    """The calibration of `to_dict`, and a remark where it is not the same any more.

    Raises
    ------
    CalibrationError
        Fields are missing or of the wrong kind.
    """
    try:
        if "constants" in body:
            return _whole(body), ""
        record = calibration(hardware, framework, body["generation"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CalibrationError(f"the plan's calibration is damaged ({error}); make the plan again.") from None
    except CalibrationError:
        newest = calibration(hardware, framework)
        return newest, (
            f"calibration: the plan was priced with {body['name']} ({body['generation']}), which this planner does not "
            f"have; {newest.name} is used, so seconds differ from the plan's"
        )
    if digest(record) == body["digest"]:
        return record, ""
    return record, (
        f"calibration: {record.name} has changed since the plan was made ({body['date']}), so seconds differ from the "
        "plan's"
    )


def _shipped_digest(record: Calibration, hardware: Hardware, framework: str) -> str:
    try:
        return digest(calibration(hardware, framework, record.generation))
    except PlannerError:
        return ""


def _whole(body: Mapping[str, Any]) -> Calibration:
    constants = {str(key): Constant(**value) for key, value in body["constants"].items()}
    return Calibration(
        **{key: str(body[key]) for key in ("name", "device", "framework", "generation", "date")},
        constants=constants,
        residual_log_p10=float(body["residual_log_p10"]),
        residual_log_p90=float(body["residual_log_p90"]),
        rows=int(body["rows"]),
        sources=tuple(map(str, body["sources"])),
        measured=tables_from(body["measured"], _damaged) if "measured" in body else NOTHING,
    )


def _damaged(words: str) -> NoReturn:
    raise CalibrationError(f"the plan's calibration is damaged ({words}); make the plan again.")
