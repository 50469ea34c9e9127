"""Prediction beside MindSpore's DryRun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.cost.estimate import Estimate
from planner.report.documents import gib as exact_gib
from planner.report.documents import head, job, strategy_fields
from planner.report.text import degrees, job_lines, layers_line, recompute_line, table, wrapped
from planner.search.suggest import Request
from planner.units import GIB, MIB
from planner.validate.compiler.dryrun import DryRunReport, StageResult, default_stages
from planner.validate.traffic.comparison import COUNTED, VolumeRow

#: Words for a part of memory: the planner's terms, the DryRun's terms.
PARTS: Final = (
    ("parameters", ("parameters",), ("parameters",)),
    ("gradients", ("gradients",), ("gradient_accumulation",)),
    ("optimizer states", ("optimizer_states",), ("moments",)),
    ("gathered parameters", ("gathered_parameters",), ("gathered_parameters",)),
    ("activations", ("activations", "moe_dispatch"), ("activations",)),
    ("backward, recompute", ("recompute_working",), ("recomputed", "backward")),
    ("head and loss", ("logits_loss",), ("head_and_loss",)),
    ("masks, temporaries", ("temporaries",), ("constants", "optimizer", "other")),
)


#: Compared collectives of each stage.
Volumes = Mapping[int, tuple[VolumeRow, ...]]
GROUP_WORDS: Final = {"other": "rest"}


def comparison_lines(
    request: Request, answer: Estimate, report: DryRunReport, volumes: Volumes | None = None
) -> list[str]:
    """Predicted and DryRun peak of each stage, the difference by term, and collectives where they were compared."""
    s = answer.strategy
    indent = " " * 10
    lines = [*job_lines(request), *wrapped(f"Strategy  {degrees(s)}", indent)]
    lines += wrapped(f"Layers    {layers_line(s)}", indent)
    lines += wrapped(f"Recompute {recompute_line(s)}", indent)
    lines += ["", "Peak of each stage, GiB"]
    rows = [_stage_row(answer, stage) for stage in report.stages]
    lines += table(("stage", "predicted", "DryRun", "difference", "of DryRun"), rows)
    lines += ["", *wrapped(verdict(request, report), "  "), *wrapped(not_run(answer, report), "  ")]
    lines += ["", "The same by term, GiB (predicted, DryRun)"]
    heads = ["", *(f"stage {stage.stage}" for stage in report.stages)]
    lines += table(heads, [_part_row(answer, report, part) for part in PARTS], left=(0,))
    for stage in report.stages:
        if volumes:
            lines += ["", *volume_lines(stage, volumes[stage.stage])]
    lines.append("")
    for note in (*report.notes, versions(report)):
        lines += wrapped(f"- {note}", "  ")
    return [*lines, "", trained(report)]


def over(request: Request, report: DryRunReport) -> list[StageResult]:
    """Stages whose DryRun peak is over the limit of the job."""
    return [stage for stage in report.stages if stage.peak_bytes > request.limit]


def verdict(request: Request, report: DryRunReport) -> str:
    """Whether the stages fit, by the compiler's peak."""
    limit, stages = f"{request.limit / GIB:.2f} GiB", over(request, report)
    if not stages:
        return f"Every stage that was run stays below the limit of {limit}."
    needs = ", ".join(f"stage {stage.stage} by {(stage.peak_bytes - request.limit) / GIB:.2f} GiB" for stage in stages)
    return f"Over the limit of {limit}: {needs}. The job would run out of memory."


def missing_stages(answer: Estimate, report: DryRunReport) -> list[int]:
    """Stages of the plan that were not run."""
    return sorted(set(range(answer.strategy.pp)) - {stage.stage for stage in report.stages})


def not_run(answer: Estimate, report: DryRunReport) -> str:
    """Which stages were not run, and what the heaviest of them is predicted to need; empty where all were."""
    missing = missing_stages(answer, report)
    if not missing:
        return ""
    worst = max(missing, key=lambda stage: answer.stage_peak_bytes[stage])
    peak = answer.stage_peak_bytes[worst] / GIB
    if len(missing) == 1:
        return f"Not run: stage {worst}, predicted {peak:.2f} GiB."
    return f"Not run: stages {listed(missing)}; stage {worst} is predicted to need most of them, {peak:.2f} GiB."


def trained(report: DryRunReport) -> str:
    """Which stages were trained, and for how many simulated steps."""
    last = report.layout.pipeline_stages - 1
    numbers = [stage.stage for stage in report.stages]
    steps = min(stage.steps for stage in report.stages)
    if last == 0:
        which = "the only stage"
    elif numbers == list(default_stages(last + 1)):
        which = "first, middle and last stage" if last > 1 else "first and last stage"
    else:
        which = f"stage{'s' if len(numbers) > 1 else ''} {listed(numbers)}"
    return f"DryRun: {which} trained {steps} simulated steps"


def listed(numbers: Sequence[int]) -> str:
    """Numbers as a sentence lists them.

    >>> listed([0, 3, 7]), listed([4])
    ('0, 3 and 7', '4')
    """
    words = [str(number) for number in numbers]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def volume_lines(stage: StageResult, rows: tuple[VolumeRow, ...]) -> list[str]:
    """Collectives of one stage: planner and compiler, and what differs."""
    lines = [f"Collectives of stage {stage.stage}, one step of {stage.micro_batches} micro-batches, one rank"]
    heads = ("group", "collective", "planner", "MiB", "compiler", "MiB", "difference")
    lines += table(heads, [_volume_row(row) for row in rows], left=(0, 1))
    return lines


def _volume_row(row: VolumeRow) -> list[str]:
    counted = row.group in COUNTED
    return [
        GROUP_WORDS.get(row.group, row.group),
        row.primitive,
        f"{row.planned_count:g}" if counted else "",
        f"{row.planned_bytes / MIB:.2f}",
        f"{row.compiled_count}",
        f"{row.compiled_bytes / MIB:.2f}",
        f"{row.difference_bytes / MIB:+.2f}",
    ]


def versions(report: DryRunReport) -> str:
    """What ran."""
    first = report.stages[0]
    return (
        f"MindSpore {first.mindspore}, MindFormers {first.mindformers}; memory predicted: modelled; DryRun: compiled."
    )


def _stage_row(answer: Estimate, stage: StageResult) -> list[str]:
    predicted, found = answer.stage_peak_bytes[stage.stage], stage.peak_bytes
    gap = predicted - found
    return [
        str(stage.stage),
        f"{predicted / GIB:.2f}",
        f"{found / GIB:.2f}",
        f"{gap / GIB:+.2f}",
        f"{100 * gap / found:+.1f}%",
    ]


def _part_row(answer: Estimate, report: DryRunReport, part: tuple[str, tuple[str, ...], tuple[str, ...]]) -> list[str]:
    name, ours, theirs = part
    cells = []
    for stage in report.stages:
        predicted = sum(answer.memory_bytes[term][stage.stage] for term in ours)
        found = sum(stage.terms.get(term, 0) for term in theirs)
        cells.append(f"{predicted / GIB:.2f}  {found / GIB:.2f}")
    return [name, *cells]


def dryrun_document(
    request: Request, answer: Estimate, report: DryRunReport, volumes: Volumes | None = None
) -> dict[str, Any]:
    """Answer of `planner dryrun` as JSON holds it."""
    rows = volumes or {}
    return {
        **head("dryrun"),
        **job(request),
        "strategy": strategy_fields(answer.strategy),
        "limit_gib": exact_gib(request.limit),
        "fits": not over(request, report),
        "stages": [_stage_fields(answer, stage, rows.get(stage.stage, ())) for stage in report.stages],
        "not_run": missing_stages(answer, report),
        "notes": list(report.notes),
    }


def _stage_fields(answer: Estimate, stage: StageResult, volumes: tuple[VolumeRow, ...]) -> dict[str, Any]:
    predicted = answer.stage_peak_bytes[stage.stage]
    return {
        "stage": stage.stage,
        "rank": stage.rank,
        "predicted_gib": exact_gib(predicted),
        "dryrun_gib": exact_gib(stage.peak_bytes),
        "difference_percent": 100.0 * (predicted - stage.peak_bytes) / stage.peak_bytes,
        "predicted_static_gib": exact_gib(answer.stage_static_bytes[stage.stage]),
        "dryrun_static_gib": exact_gib(stage.static_bytes),
        "dryrun_with_fragments_gib": exact_gib(stage.peak_with_fragments_bytes),
        "predicted_terms_gib": {name: exact_gib(values[stage.stage]) for name, values in answer.memory_bytes.items()},
        "dryrun_terms_gib": {name: exact_gib(size) for name, size in stage.terms.items()},
        "volumes": [_volume_fields(row) for row in volumes],
        "micro_batches": stage.micro_batches,
        "steps": stage.steps,
        "seconds": stage.seconds,
        "cached": stage.cached,
        "mindspore": stage.mindspore,
        "mindformers": stage.mindformers,
        "real_cann": stage.real_cann,
    }


def _volume_fields(row: VolumeRow) -> dict[str, Any]:
    return {
        "group": row.group,
        "collective": row.primitive,
        "planned_count": row.planned_count,
        "planned_bytes": row.planned_bytes,
        "dryrun_count": row.compiled_count,
        "dryrun_bytes": row.compiled_bytes,
        "unexplained_count": row.unexplained_count,
        "unexplained_bytes": row.unexplained_bytes,
    }
