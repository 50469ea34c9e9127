"""Training logs of any length: from a file to a `Run`, with what had to be derived, corrected or doubted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import SpecError
from planner.observe.log_dialects import DIALECTS, Dialect
from planner.observe.log_rows import Rows, has_step
from planner.observe.records import Observation
from planner.observe.run import FloatArray, Run
from planner.observe.sanity import FASTEST_FLOP_PER_S
from planner.observe.text import File

_ANSI: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_JSON: Final = re.compile(r"\s*[\[{]\s*[\"{]")
#: Columns of a run, beside step and skipped.
_COLUMNS: Final = (
    "step_s", "loss", "grad_norm", "loss_scale", "learning_rate", "tokens_per_s", "samples_per_s", "flop_per_s", "mfu",
    "memory_bytes", "data_s", "tokens", "time_s",
)  # fmt: skip
#: Printed PyNative throughput of MindFormers 1.9 is FLOP/(ms 1e12 world): a thousandth of TFLOP/s.
PYNATIVE_SCALE: Final = 1e3


def dialect_of(file: File) -> Dialect | None:
    """The program that wrote a log: the first one whose words are there and one of whose steps can be read.

    Words alone count where no step can be read, so that a log without a whole step is named after its program.
    """
    candidate = None
    for block in file.blocks():
        for dialect in DIALECTS:
            enough = any if dialect.is_callbacks else all
            if enough(mark in block for mark in dialect.marks):
                if dialect.is_callbacks or has_step(dialect, _plain(block)):
                    return dialect
                candidate = candidate or dialect
    return candidate


def is_training_log(file: File) -> bool:
    """Whether any line of a text is a step of a known program."""
    return not _JSON.match(file.head) and dialect_of(file) is not None


def read_training_log(file: File) -> Observation:
    """The steps of one log as a run.

    Raises
    ------
    SpecError
        No step's line in it.
    """
    dialect = dialect_of(file)
    if dialect is None:
        raise SpecError(f"{file.path}: no step's line of a known program.")
    rows = Rows(dialect)
    for block in file.blocks():
        rows.read(_plain(block), ended=block.endswith((b"\n", b"\r")))
    return _finished(rows, file)


def _plain(block: bytes) -> bytes:
    """A block without colours."""
    return _ANSI.sub(b"", block) if b"\x1b" in block else block


def _finished(rows: Rows, file: File) -> Observation:
    """The run, with what had to be derived, corrected or doubted."""
    columns = rows.take()
    if not columns:
        raise SpecError(f"{file.path}: {rows.dialect.framework} wrote it, but no step's line is whole.")
    step, total = _global_steps(columns)
    notes = _counted(rows, len(step))
    values = {name: columns[name] for name in _COLUMNS}
    values["tokens"] = _per_step(columns["consumed_tokens"], step)
    notes += _corrected(values, rows, step)
    run = Run(
        framework=rows.dialect.framework, generation=rows.generation, source=str(file.path), rank=_rank(file),
        step=step, skipped=(np.nan_to_num(columns["skipped"]) + np.nan_to_num(columns["nan"])) > 0,
        total_steps=total, global_batch=_last_whole(columns["global_batch"]), seq=_seq(columns),
        peak_bytes=rows.events.peak_bytes, events=tuple(rows.events.kept), left_out=rows.left_out,
        **values,  # type: ignore[arg-type]
    )  # fmt: skip
    missing = () if np.isfinite(run.step_s).any() else (f"{file.path.name}: no step times, and no clock stamps.",)
    return Observation(
        kind="training log", source=file.path, format=f"{run.framework} log", runs=(run,), notes=tuple(notes),
        missing=missing,
    )  # fmt: skip


def _counted(rows: Rows, kept: int) -> list[str]:
    """What was read but not kept."""
    notes = [f"{rows.cut} step line(s) that were cut short were left out."] if rows.cut else []
    if rows.left_out:
        notes.append(f"only the newest {kept} of {kept + rows.left_out} steps are kept.")
    return notes


def _global_steps(columns: Mapping[str, FloatArray]) -> tuple[NDArray[np.int64], int | None]:
    """Steps counted over epochs, where the log counts within them; and how many there will be."""
    step, epoch, per_epoch = columns["step"], columns["epoch"], _last_whole(columns["total"])
    step = np.where(np.isfinite(step), step, np.arange(1, len(step) + 1))
    if per_epoch and np.isfinite(epoch).any():
        step = step + (np.nan_to_num(epoch, nan=1.0) - 1.0) * per_epoch
    whole = per_epoch * (_last_whole(columns["epochs"]) or 1) if per_epoch else None
    return step.astype(np.int64), whole


def _corrected(values: dict[str, FloatArray], rows: Rows, step: NDArray[np.int64]) -> list[str]:
    """Times from stamps, PyNative throughput, losses of inner stages: changes ``values``, says what it did."""
    notes = []
    stamps = np.diff(values["time_s"])
    if (back := int((stamps < 0.0).sum())) > 0:
        notes.append(f"the clock steps back {back} times.")
    if not np.isfinite(values["step_s"]).any() and np.isfinite(stamps).any():
        ahead = np.diff(step)
        usable = (stamps > 0.0) & (ahead > 0)
        derived = np.divide(stamps, ahead, out=np.full(len(stamps), np.nan), where=usable)
        values["step_s"] = np.concatenate(([np.nan], derived))
        notes.append("the log prints no step time: it is the distance of clock stamps.")
    if rows.generation.endswith("PyNative"):
        scaled = values["flop_per_s"] * PYNATIVE_SCALE
        if np.isfinite(scaled).any() and np.nanmedian(scaled) < FASTEST_FLOP_PER_S / 4.0:
            values["flop_per_s"] = scaled
            notes.append("MindFormers 1.9 PyNative prints throughput 1000x too small; corrected.")
    loss = values["loss"][np.isfinite(values["loss"])]
    if len(loss) and rows.dialect.zero_is_unknown and not loss.any():
        values["loss"] = np.full(len(step), np.nan)
        notes.append("loss is 0.000 on every step: not the last pipeline stage, which alone knows it; left out.")
    if (restarts := int((np.diff(step) <= 0).sum())) > 0:
        notes.append(f"step numbers fall back {restarts} times: restarts, or two jobs in one file.")
    return notes


def _per_step(consumed: FloatArray, step: NDArray[np.int64]) -> FloatArray:
    """Growth of a running sum a step; NaN where it falls back."""
    ahead = np.diff(step, prepend=step[:1] - 1)
    grown = np.diff(consumed, prepend=0.0 if len(step) and step[0] == 1 else np.nan)
    out: FloatArray = np.full(len(consumed), np.nan)
    np.divide(grown, ahead, out=out, where=(ahead > 0) & (grown > 0))
    return out


def _seq(columns: Mapping[str, FloatArray]) -> int | None:
    """Tokens a sample, when it is the same on every line."""
    tokens, samples = columns["consumed_tokens"], columns["consumed_samples"]
    known = np.isfinite(tokens) & np.isfinite(samples) & (samples > 0)
    ratios = np.unique(tokens[known] / samples[known]) if known.any() else np.array([])
    return int(ratios[0]) if len(ratios) == 1 and ratios[0] == int(ratios[0]) else None


def _last_whole(values: FloatArray) -> int | None:
    known = values[np.isfinite(values)]
    return int(known[-1]) if len(known) else None


def _rank(file: File) -> int | None:
    """Rank from names such as worker_3.log, rank_3/info.log, log_3.txt."""
    for part in (file.path.stem, file.path.parent.name):
        if found := re.search(r"(?:worker|rank|device)[_-]?(\d+)", part.lower()):
            return int(found[1])
    return file.rank
