"""JSON documents: what ``--json`` prints.  Layout and versions are described in docs/json.md."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.cluster.records import Calibration, Hardware
from planner.cost.estimate import Estimate
from planner.cost.strategies import Strategy
from planner.dialects.records import EmitResult
from planner.dialects.weights import Reason
from planner.measured import Measured
from planner.model.load import Entry
from planner.model.operators import active_parameter_count, parameter_count
from planner.model.records import Model
from planner.model.serial import plain
from planner.report.memory_notes import memory_kind, memory_notes
from planner.search.cards import Fewest
from planner.search.explain import Explanation
from planner.search.suggest import Request, Result
from planner.units import GIB
from planner.version import __version__

#: Version of each document; raised when a field changes its meaning or goes away, not when one is added.
SCHEMAS: Final = {
    "suggest": "planner/suggest/1",
    "estimate": "planner/estimate/1",
    "cards": "planner/cards/1",
    "explain": "planner/explain/1",
    "models": "planner/models/1",
    "hardware": "planner/hardware/1",
    "emit": "planner/emit/1",
    "check": "planner/check/1",
    "improve": "planner/improve/1",
    "dryrun": "planner/dryrun/1",
    "validate": "planner/validate/1",
    "accuracy-time": "planner/accuracy-time/1",
    "accuracy-memory": "planner/accuracy-memory/1",
    "monitor": "planner/monitor/1",
    "diagnose": "planner/diagnose/1",
    "collective": "planner/collective/1",
    "fit": "planner/fit/1",
    "calibrate": "planner/calibrate/1",
    "calibrate-show": "planner/calibrate-show/1",
    "goodput": "planner/goodput/1",
    "scaling": "planner/scaling/1",
    "compare": "planner/compare/1",
    "levers": "planner/levers/1",
    "schedule": "planner/schedule/1",
}


def dumps(document: Mapping[str, Any]) -> str:
    """Document as text: sorted as built, no NaN."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def head(kind: str) -> dict[str, Any]:
    """What every document starts with."""
    return {"schema": SCHEMAS[kind], "planner": __version__}


def suggest_document(result: Result, rows: Sequence[Estimate], written: Sequence[EmitResult] = ()) -> dict[str, Any]:
    """Answer of `planner suggest`."""
    ranks = [[row + 1 for row in group if row < len(rows)] for group in result.ties]
    return {
        **head("suggest"),
        **job(result.request),
        "objective": result.request.objective,
        "pins": {name: list(values) for name, values in result.request.pins.items()},
        "examined": result.examined,
        "fitting": result.fitting,
        "removed": result.removed,
        "ties": [group for group in ranks if group],
        "plans": [{"rank": rank, **estimate_fields(row, result.request)} for rank, row in enumerate(rows, 1)],
        "emitted": [emit_fields(each) for each in written],
    }


def estimate_document(
    request: Request, answer: Estimate, unread: Sequence[str] = (), measured: Measured | None = None
) -> dict[str, Any]:
    """Answer of `planner estimate`."""
    return {
        **head("estimate"),
        **job(request),
        **estimate_fields(answer, request),
        "memory_notes": list(memory_notes(request.workload, answer)),
        "measured": None if measured is None else measured_fields(measured),
        **unread_fields(unread),
    }


def unread_fields(unread: Sequence[str]) -> dict[str, list[str]]:
    """What of a file was not read, and what of it decides the answer."""
    decisive = [str(line) for line in unread if isinstance(line, Reason)]
    return {"unread": [line for line in unread if not isinstance(line, Reason)], "unreliable": decisive}


def measured_fields(measured: Measured) -> dict[str, Any]:
    """The measurement, its place, and what could explain it."""
    return {
        "step_s": measured.step_s,
        "mfu": measured.mfu,
        "ratio": measured.ratio,
        "verdict": measured.verdict,
        "explanations": list(measured.explanations),
        "kind": "measured",
    }


def cards_document(result: Result, fewest: Fewest, best: Estimate) -> dict[str, Any]:
    """Answer of `planner cards`."""
    return {
        **head("cards"),
        **job(result.request),
        "cards": fewest.devices,
        "floor": fewest.floor,
        "plan": estimate_fields(best, result.request),
    }


def explain_document(request: Request, verdict: Explanation, unread: Sequence[str] = ()) -> dict[str, Any]:
    """Answer of `planner explain`."""
    change = verdict.change
    return {
        **head("explain"),
        **job(request),
        "verdict": verdict.verdict,
        "reasons": list(verdict.reasons),
        "rules": [violation.code for violation in verdict.violations],
        "strategy": strategy_fields(verdict.strategy),
        "estimate": None if verdict.estimate is None else estimate_fields(verdict.estimate, request),
        "over_gib": gib(verdict.over_bytes),
        "stage": verdict.stage,
        "change": None
        if change is None
        else {
            "what": change.what,
            "options": change.options,
            "tied": change.tied,
            **estimate_fields(change.estimate, request),
        },
        "unread": list(unread),
    }


def emit_document(results: Sequence[EmitResult]) -> dict[str, Any]:
    """Answer of `planner emit`."""
    return {**head("emit"), "plans": [emit_fields(result) for result in results]}


def emit_fields(result: EmitResult) -> dict[str, Any]:
    """Files, notes and placeholders of one plan."""
    return {
        "files": [str(path) for path in result.files],
        "placeholders": [{"file": p.file, "where": p.where, "what": p.what} for p in result.placeholders],
        "notes": list(result.notes),
    }


def job(request: Request) -> dict[str, Any]:
    """Model, cluster, workload and calibration of a request."""
    workload = {
        field.name: getattr(request.workload, field.name)
        for field in dataclasses.fields(request.workload)
        if field.name != "notes"
    }
    return {
        "model": model_fields(request.model),
        "cluster": {
            "hardware": request.cluster.hardware.name,
            "cards": request.cluster.devices,
            "nodes": request.cluster.nodes,
            "usable_gib": gib(request.limit),
            "purpose": request.cluster.hardware.purpose,
        },
        "workload": workload,
        "defaults": list(request.workload.notes),
        "calibration": calibration_fields(request.calibration),
    }


def model_fields(model: Model) -> dict[str, Any]:
    """Shape and parameter counts."""
    return {
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "parameters": parameter_count(model),
        "active_parameters": active_parameter_count(model),
        "layers": model.layers,
        "moe_layers": model.layer_kinds.count("moe"),
        "mtp_layers": model.mtp_layers,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "vocab": model.vocab,
        "attention": plain(model.attention),
        **({"note": model.note} if model.note else {}),
        "moe": plain(model.moe) if model.moe else None,
    }


def calibration_fields(calibration: Calibration) -> dict[str, Any]:
    """Which constants, from how many rows, and their 80 % interval as factors of the step."""
    return {
        "name": calibration.name,
        "framework": calibration.framework,
        "generation": calibration.generation,
        "date": calibration.date,
        "rows": calibration.rows,
        "interval": [math.exp(calibration.residual_log_p10), math.exp(calibration.residual_log_p90)],
        "constants": dict(Counter(constant.kind for constant in calibration.constants.values())),
    }


def strategy_fields(strategy: Strategy) -> dict[str, Any]:
    """The strategy, field by field."""
    body = dataclasses.asdict(strategy)
    body["layers_per_stage"] = strategy.layers_per_stage
    return {key: _lists(value) for key, value in body.items()}


def estimate_fields(answer: Estimate, request: Request) -> dict[str, Any]:
    """Strategy, memory and speed of one estimate; ``speed`` is null where it does not fit."""
    return {
        "strategy": strategy_fields(answer.strategy),
        "fits": answer.fits,
        "peak_gib": gib(answer.peak_bytes),
        "limit_gib": gib(answer.limit_bytes),
        "fit_probability": round(request.room.probability(answer.peak_bytes), 3),
        "heaviest_stage": answer.stage_peak_bytes.index(max(answer.stage_peak_bytes)),
        "stages": [_stage(answer, stage) for stage in range(len(answer.stage_peak_bytes))],
        "speed": _speed(answer) if answer.fits else None,
        "kinds": {"memory": memory_kind(request.workload), "speed": answer.kind},
    }


def _stage(answer: Estimate, stage: int) -> dict[str, Any]:
    s = answer.strategy
    return {
        "stage": stage,
        "layers": s.layers_per_stage[stage],
        "recompute_full": s.recompute_full[stage],
        "recompute_selective": s.recompute_selective[stage],
        "peak_gib": gib(answer.stage_peak_bytes[stage]),
        "static_gib": gib(answer.stage_static_bytes[stage]),
        "terms_gib": {name: gib(values[stage]) for name, values in answer.memory_bytes.items()},
        "micro_batch_s": None if answer.stage_s is None else answer.stage_s[stage],
    }


def _speed(answer: Estimate) -> dict[str, Any]:
    return {
        "step_s": answer.step_s,
        "step_low_s": answer.step_low_s,
        "step_high_s": answer.step_high_s,
        "interval": 0.8,
        "tokens_per_s_per_card": answer.tokens_per_s_per_device,
        "mfu": answer.mfu,
        "hfu": answer.hfu,
        "bubble_share": answer.bubble_share,
        "communication_exposed_share": answer.exposed_share,
        "communication_hidden_share": answer.hidden_share,
        "card_hours": answer.card_hours,
        "days": answer.days,
        "terms_s": dict(answer.time_s or {}),
    }


def models_document(entries: Sequence[Entry]) -> dict[str, Any]:
    """Answer of `planner models`."""
    return {
        **head("models"),
        "models": [
            {**model_fields(entry.model), "name": entry.name, "aliases": list(entry.aliases)} for entry in entries
        ],
    }


def hardware_document(profiles: Sequence[Hardware]) -> dict[str, Any]:
    """Answer of `planner hardware`."""
    return {**head("hardware"), "hardware": [hardware_fields(profile) for profile in profiles]}


def hardware_fields(profile: Hardware) -> dict[str, Any]:
    """One profile with its sources."""
    body: dict[str, Any] = _lists(dataclasses.asdict(dataclasses.replace(profile, sources={})))
    return body | {"sources": dict(profile.sources)}


def gib(size_bytes: float) -> float:
    """Bytes as GiB, to the byte."""
    return float(size_bytes) / GIB


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, tuple | list) else value
