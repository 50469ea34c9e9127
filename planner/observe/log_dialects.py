r"""How training logs write a step, one record a program.

Every field is searched on its own in a step's line, so order, missing fields and odd spellings do not matter.

Sources, read per release: mindspore-ai/mindformers (tags 0.3 to 1.9, core/callback/callback.py; the documentation's own
samples, which write ``global_norm [10.5]`` and ``global_norm: [1 31049]``); MindSpore 2.9, train/callback; NVIDIA
Megatron-LM, training.py; Ascend/MindSpeed-LLM (FSDP2 back end: its GB is 2^30); pytorch/torchtitan,
components/metrics.py; NeMo 1 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NUMBER: Final = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf)"
COMMAS: Final = rb"[\d,]+(?:\.\d+)?"
STAMP: Final = rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?"


@dataclass(frozen=True, slots=True)
class Field:
    """One number of a line.

    Attributes
    ----------
    column : str
        Array of `planner.observe.records.Run`, or a name that the reader uses itself (``total``, ``epoch``, ...).
    before, value, after : bytes
        Patterns: what stands before the value, the value, and what must follow.
    scale : float
        Into the unit of the column.
    """

    column: str
    before: bytes
    value: bytes = NUMBER
    after: bytes = b""
    scale: float = 1.0

    def pattern(self) -> re.Pattern[bytes]:
        """The field alone, the value as its group."""
        return re.compile(self.before + b"(" + self.value + b")" + self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One program's log.

    Attributes
    ----------
    framework : str
    marks : tuple of bytes
        A file that holds one of them is of this program; the first is in every step's line.
    fields : tuple of Field
    needed : frozenset of str
        A step's line has one of these columns.
    follow : tuple of (bytes, tuple of Field)
        Lines that belong to the step before them: a word in them, and their fields.
    since : tuple of (bytes, tuple of Field)
        Lines that speak for all steps since the last such line (a mean over an epoch).
    generation : callable
        Releases from a step's line.
    is_callbacks : bool
        Lines of callbacks that may each be missing: one mark is enough, and a line that follows no step, or the second
        that follows the same, is a step of its own.
    is_always_timed : bool
        Every step's line has its time; one without was cut.
    zero_is_unknown : bool
        A loss of 0 on all steps is a rank that does not know it.
    """

    framework: str
    marks: tuple[bytes, ...]
    fields: tuple[Field, ...]
    needed: frozenset[str] = frozenset(("step_s", "loss"))
    follow: tuple[tuple[bytes, tuple[Field, ...]], ...] = ()
    since: tuple[tuple[bytes, tuple[Field, ...]], ...] = ()
    generation: Callable[[bytes], str] = lambda _: ""
    is_callbacks: bool = False
    is_always_timed: bool = False
    zero_is_unknown: bool = False


def _mindformers(line: bytes) -> str:
    """Releases of MindFormers that write such a line."""
    if b"Epoch:[" not in line:
        return "1.9 PyNative"
    if b"per_step_time" not in line:
        return "0.3-0.6"
    if b"train_throughput_per_npu" in line:
        decimals = re.search(rb"\bloss:\s*\[?\d+\.(\d+)", line)
        return "1.9" if decimals and len(decimals[1]) >= 6 else "1.4-1.8"
    return "1.3-1.9" if b"global_norm" in line else "1.0-1.2"


_STAMP: Final = Field("time_s", b"", STAMP)

MINDFORMERS: Final = Dialect(
    framework="MindFormers",
    marks=(b"step:[",),
    fields=(
        _STAMP,
        Field("epoch", rb"Epoch:\[\s*", rb"\d+"),
        Field("epochs", rb"Epoch:\[\s*\d+/\s*", rb"\d+"),
        Field("step", rb"step:\[\s*", rb"\d+"),
        Field("total", rb"step:\[\s*\d+/\s*", rb"\d+"),
        Field("loss", rb"\bloss:\s*\[?\s*"),
        Field("step_s", rb"(?:per_step_time|\btime):\s*", rb"[\d.]+", rb"\s*ms", 1e-3),
        Field("learning_rate", rb"\blr:\s*"),
        Field("skipped", rb"overflow cond:\s*", rb"\w+"),
        Field("loss_scale", rb"loss_scale:\s*"),
        Field("grad_norm", rb"(?:global_norm|\bgrad_norm)\b:?\s*\[?\s*", rb"[-+.\dnia][^\],}]*"),
        Field("flop_per_s", rb"\b(?:train_throughput_per_npu|throughput):\s*", rb"[\d.]+", b"T", 1e12),
    ),
    follow=(
        (b" samples/s/p", (Field("samples_per_s", b"", rb"[\d.]+", rb" samples/s/p"),)),
        (b"is_skip: [", (Field("skipped", rb"is_skip: \[\s*", rb"\w+"),)),
    ),
    generation=_mindformers,
    is_always_timed=True,
    zero_is_unknown=True,
)

_MEGATRON_FIELDS: Final = (
    _STAMP,
    Field("step", rb"\biteration\s+", rb"\d+", rb"\s*/"),
    Field("total", rb"\biteration\s+\d+\s*/\s*", rb"\d+"),
    Field("step_s", rb"elapsed time per iteration \(ms\):\s*", scale=1e-3),
    Field("flop_per_s", rb"throughput per GPU \(TFLOP/s/GPU\):\s*", scale=1e12),
    Field("learning_rate", rb"learning rate:\s*"),
    Field("global_batch", rb"global batch size:\s*", rb"\d+"),
    Field("loss", rb"\b(?:lm )?loss:\s*"),
    Field("loss_scale", rb"loss scale:\s*"),
    Field("grad_norm", rb"grad norm:\s*"),
    Field("skipped", rb"number of skipped iterations:\s*", rb"\d+"),
    Field("nan", rb"number of nan iterations:\s*", rb"\d+"),
    Field("memory_bytes", rb"max_memory_reserved\(GB\):\s*", scale=2.0**30),
    Field("tokens_per_s", rb"(?:tokens/s|tokens per sec(?:ond)?)[^:|]*:\s*"),
    Field("mfu", rb"\b[mM][fF][uU]\b[^:|]*:\s*"),
)

MINDSPEED_FSDP2: Final = Dialect(
    framework="MindSpeed FSDP2",
    marks=(b"elapsed time per iteration", b"max_memory_allocated(GB)"),
    fields=(
        *_MEGATRON_FIELDS,
        Field("consumed_samples", rb"consumed samples:\s*", rb"\d+"),
        Field("consumed_tokens", rb"consumed tokens:\s*", rb"\d+"),
    ),
)

MEGATRON: Final = Dialect(
    framework="Megatron",
    marks=(b"elapsed time per iteration",),
    fields=_MEGATRON_FIELDS,
    generation=lambda line: "2.x" if not re.search(STAMP, line) else "",
)

TORCHTITAN: Final = Dialect(
    framework="torchtitan",
    marks=(b"tps: ",),
    fields=(
        _STAMP,
        Field("step", rb"\bstep:\s*", rb"\d+"),
        Field("loss", rb"\bloss:\s*"),
        Field("grad_norm", rb"\bgrad_norm:\s*"),
        Field("memory_bytes", rb"\bmemory:\s*", rb"[\d.]+", rb"\s*GiB", 2.0**30),
        Field("tokens_per_s", rb"\btps:\s*", COMMAS),
        Field("flop_per_s", rb"\btflops:\s*", COMMAS, scale=1e12),
        Field("mfu", rb"\bmfu:\s*", rb"[\d.]+", rb"%", 0.01),
    ),
)

NEMO: Final = Dialect(
    framework="NeMo",
    marks=(b"train_step_timing in s",),
    fields=(
        _STAMP,
        Field("step", rb"\bglobal_step[:=]\s*"),
        Field("total", rb"\biteration\s+\d+/", rb"\d+"),
        Field("loss", rb"reduced_train_loss[:=]\s*"),
        Field("step_s", rb"train_step_timing in s[:=]\s*"),
        Field("learning_rate", rb"\blr[:=]\s*"),
        Field("global_batch", rb"\bglobal_batch_size[:=]\s*"),
        Field("grad_norm", rb"\bgrad_norm[:=]\s*"),
        Field("consumed_samples", rb"\bconsumed_samples[:=]\s*"),
    ),
    generation=lambda line: "2" if b"train_step_timing in s:" in line else "1",
)

_EPOCH: Final = (
    Field("step_s", rb"per step time:\s*", scale=1e-3, after=rb"\s*ms"),
    Field("data_s", rb"data time:\s*", scale=1e-3, after=rb"\s*ms"),
)
MINDSPORE: Final = Dialect(
    framework="MindSpore",
    marks=(b", loss is ", b", per step time: ", b"rain per step time: "),
    fields=(
        _STAMP,
        Field("epoch", rb"\bepoch:\s*", rb"\d+"),
        Field("step", rb"\bstep:\s*", rb"\d+"),
        Field("loss", rb"loss is \[?\s*"),
    ),
    follow=(
        (
            b"rain per step time: ",
            (Field("step_s", rb"per step time:\s*", scale=1e-3), Field("mfu", rb"mfu:\s*", after=b"%", scale=0.01)),
        ),
    ),
    since=((b"epoch time: ", _EPOCH),),
    is_callbacks=True,
)

#: In the order in which a file's words decide.
DIALECTS: Final = (MINDFORMERS, MINDSPEED_FSDP2, MEGATRON, NEMO, TORCHTITAN, MINDSPORE)
