"""The recorded DryRun grid: one point is one stage of one small network (``calibration/dryrun/grid.csv``)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.cost.strategies import Strategy
from planner.errors import CalibrationError, PlannerError
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe, Workload

#: Columns by which the table is known.
MARKS: Final = frozenset({"id", "dialect", "peak_bytes", "static_bytes", "stage", "recompute", "micro_batches"})

_ULYSSES: Final = {"ulysses_cp": True, "colossalai_cp": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One point: what was run and what MindSpore reported for one stage [bytes]."""

    point_id: str
    family: str
    model: Model
    workload: Workload
    strategy: Strategy
    stage: int
    peak_bytes: float
    static_bytes: float


def read_grid(path: str | Path) -> list[GridPoint]:
    """Points of a recorded grid.

    Raises
    ------
    CalibrationError
        The file cannot be read, lacks columns, or a row holds what no point has.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            absent = MARKS - set(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CalibrationError(f"{path}: cannot be read as CSV ({error}).") from error
    if absent:
        raise CalibrationError(f"{path}: no DryRun grid, column(s) {', '.join(sorted(absent))} are missing.")
    return [_read_point(path, number, row) for number, row in enumerate(rows, 2)]


def _read_point(path: str | Path, line: int, row: Mapping[str, str | None]) -> GridPoint:
    where = f"{path}, line {line} ({row.get('id')})"
    try:
        point = _point({key: _value(text or "") for key, text in row.items() if key})
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError, PlannerError) as error:
        raise CalibrationError(
            f"{where}: no point of a DryRun grid ({error}); see calibration/dryrun/grid.csv."
        ) from error
    if not (point.peak_bytes > 0 and point.static_bytes > 0 and 0 <= point.stage < point.strategy.pp):
        raise CalibrationError(f"{where}: peak_bytes and static_bytes must be above 0, stage one of the pipeline's.")
    return point


def _value(text: str) -> Any:
    if text in {"True", "False"}:
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        return text


def _point(row: Mapping[str, Any]) -> GridPoint:
    layers = _layers(row)
    return GridPoint(
        point_id=str(row["id"]), family=str(row["family"]), model=_model(row), workload=_workload(row),
        strategy=_strategy(row, layers), stage=int(row["stage"]), peak_bytes=float(row["peak_bytes"]),
        static_bytes=float(row["static_bytes"]),
    )  # fmt: skip


def _model(row: Mapping[str, Any]) -> Model:
    legacy, layers = row["dialect"] == "legacy", int(row["layers"])
    moe = None
    if row["experts"]:
        moe = Moe(
            experts=row["experts"], topk=row["topk"], expert_ffn=row["moe_ffn"],
            shared_ffn=row["shared"] * row["moe_ffn"], router_bias=row["family"] == "deepseek3",
        )  # fmt: skip
    dense = min(row["first_dense"], layers) if moe else layers
    kinds: tuple[LayerKind, ...] = (DENSE,) * dense + (MOE,) * (layers - dense)
    return Model(
        name=str(row["id"]), family=str(row["family"]), hidden=row["hidden"], ffn=row["ffn"], vocab=row["vocab"],
        attention=_attention(row, legacy), layer_kinds=kinds, moe=moe if MOE in kinds else None,
        mtp_layers=row["mtp"], source="DryRun grid",
    )  # fmt: skip


def _attention(row: Mapping[str, Any], legacy: bool) -> Attention:
    if row["family"] == "deepseek3":
        return Attention(
            kind="mla", heads=row["heads"], kv_heads=row["heads"], head_dim=row["qk_nope"] + row["qk_rope"],
            v_head_dim=row["v_dim"], q_lora_rank=row["q_lora"], kv_lora_rank=row["kv_lora"],
            qk_nope_dim=row["qk_nope"], qk_rope_dim=row["qk_rope"],
        )  # fmt: skip
    dim = row["hidden"] // row["heads"] if legacy else row["head_dim"]
    return Attention(heads=row["heads"], kv_heads=row["kv_heads"], head_dim=dim, v_head_dim=dim, qk_norm=not legacy)


def _workload(row: Mapping[str, Any]) -> Workload:
    parts, pieces = row.get("interleave") or 1, row.get("seq_split") or 1
    switches = {
        f"batch-parts={parts}": parts > 1,
        f"sequence-pieces={pieces}": pieces > 1,
        "ring-attention": row.get("ring"),
        "full-attention-mask": not row.get("ring")
        and not (row.get("mask_compression") or row["family"] == "deepseek3"),
        "float32-residual": row["fp32_residual"],
        "whole-vocabulary": row["dialect"] == "legacy" and row.get("vocab_emb_dp"),
        **_gathers(row),
    }
    return Workload(
        seq=row["seq"], global_batch=row["dp"] * row["mbs"] * parts * row["micro_batches"],
        params_dtype=row["param_dtype"], compute_dtype=row["compute_dtype"],
        switches=tuple(name for name, on in switches.items() if on),
        framework="mindformers-legacy" if row["dialect"] == "legacy" else "mindformers",
        flash_attention=row.get("flash", True) is not False,
    )  # fmt: skip


def _gathers(row: Mapping[str, Any]) -> dict[str, bool]:
    """Switches of repeated gathers, which legacy networks compile without effect."""
    again = bool(row.get("select_comm")) and row["dialect"] != "legacy"
    layers = _layers(row)
    counts = _counts(
        row.get("select_comm") or False, tuple(sum(chunk[s] for chunk in layers) for s in range(row["pp"]))
    )
    return {
        "gathers-alone": again and not row["select_recompute"],
        "gathers=" + ",".join(map(str, counts)): again,
    }


def _layers(row: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    pp, vpp, offset = row["pp"], row["vpp"], row["offset"]
    base = row["layers"] // (pp * vpp)
    if offset == 0:
        offset = [0] * pp
    nested = offset if isinstance(offset[0], list) else [offset] * vpp
    return tuple(tuple(base + shift for shift in chunk) for chunk in nested)


def _strategy(row: Mapping[str, Any], layers: tuple[tuple[int, ...], ...]) -> Strategy:
    pp, vpp, cp, ranks = row["pp"], row["vpp"], row["cp"], row["dp"] * row["cp"]
    stages = tuple(sum(chunk[stage] for chunk in layers) for stage in range(pp))
    full = _counts(row["recompute"], stages)
    some = _counts(row["select_recompute"] or row.get("select_comm") or False, stages)
    shard = row["optimizer_shard"]
    ulysses = cp if _ULYSSES.get(row["cp_algo"]) else 1
    return Strategy(
        dp=row["dp"], tp=row["tp"], pp=pp, vpp=vpp, cp=cp, ep=row["ep"],
        micro_batch_size=row["mbs"] * (row.get("interleave") or 1),
        micro_batches=row["micro_batches"], ulysses_degree=ulysses,
        cp_algorithm="ulysses" if ulysses > 1 else "ring", sequence_parallel=row["sequence_parallel"],
        swap_optimizer=bool(row.get("swap_optimizer")),
        zero_level=(2 if row["grad_accum_shard"] else 1) if shard else 0, optimizer_shard=ranks if shard else 1,
        schedule="interleaved" if vpp > 1 else "1f1b", layers=layers, recompute_full=full,
        recompute_selective=tuple(max(0, min(s, n - f)) for s, n, f in zip(some, stages, full, strict=True)),
    )  # fmt: skip


def _counts(setting: Any, stages: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(setting, bool):
        return stages if setting else (0,) * len(stages)
    return tuple(min(int(count), layers) for count, layers in zip(setting, stages, strict=True))
