"""A step drawn with letters: one line a stage."""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.report.text import WIDTH, gib, number, percent, wrapped
from planner.timeline.anatomy import memory_curve
from planner.timeline.drawing import Drawing

#: Letter of each kind of pass, and of waiting.
LETTERS: Final = "FBW"
IDLE: Final = "."


def timeline_lines(step: Drawing) -> list[str]:
    """Heading, one line a stage with its busy share and its memory, and what the letters mean."""
    line, strategy = step.line, step.strategy
    count = f"{line.micro_batches} micro-batches"
    if not step.whole:
        count = f"{line.micro_batches} of {strategy.micro_batches} micro-batches"
    whole = "" if step.estimate.step_s is None else f" (the whole step: {number(step.estimate.step_s)} s)"
    chunks = f" of {strategy.vpp} chunks" if strategy.vpp > 1 else ""
    head = (
        f"Timeline  {strategy.schedule}, {strategy.pp} stage{'s' if strategy.pp > 1 else ''}{chunks}, {count}, "
        f"{number(step.step_s)} s{'' if step.whole else whole}"
    )
    tails = [_tail(step, stage) for stage in range(line.stages)]
    names = [str(stage).rjust(len(str(line.stages - 1))) for stage in range(line.stages)]
    columns = WIDTH - len(names[0]) - 3 - max(map(len, tails))
    rows = [
        f"{name} |{letters(step, stage, columns)}|{tail}"
        for stage, (name, tail) in enumerate(zip(names, tails, strict=True))
    ]
    legend = "F forward, B backward" + (", W gradients of weights" if (line.kind == 2).any() else "")
    behind = number(sum(step.behind.values()))
    return [
        *wrapped(head, " " * 10),
        "",
        *rows,
        "",
        *wrapped(f"Letters   {legend}, . waiting; then the busy share and the most memory of the stage", " " * 10),
        *wrapped(f"Behind    {behind} s of gradients, optimizer and waiting for the slowest rank", " " * 10),
    ]


def letters(step: Drawing, stage: int, columns: int) -> str:
    """The kind of pass that fills most of each column."""
    line = step.line
    edges = np.linspace(0.0, line.makespan_s, columns + 1)
    on = np.flatnonzero(line.stage == stage)
    share = np.zeros((len(LETTERS) + 1, columns))
    for kind in range(len(LETTERS)):
        mine = on[line.kind[on] == kind]
        cover = np.minimum(line.end_s[mine, None], edges[None, 1:]) - np.maximum(line.start_s[mine, None], edges[:-1])
        share[kind] = np.maximum(cover, 0.0).sum(axis=0)
    share[-1] = np.diff(edges) - share[:-1].sum(axis=0)
    return "".join((LETTERS + IDLE)[kind] for kind in share.argmax(axis=0))


def _tail(step: Drawing, stage: int) -> str:
    busy = float(step.line.busy_S[stage]) / step.line.makespan_s
    top = float(memory_curve(step.parts, step.line, stage)[1].max())
    return f" {percent(busy):>4} {gib(top):>5} GiB"
