"""A step as one SVG file: bars of passes over time, memory of each stage below its bars; light and dark, no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

import numpy as np

from planner.report.text import gib, number, percent
from planner.timeline.anatomy import memory_curve
from planner.timeline.drawing import Drawing
from planner.timeline.events import KINDS

WIDTH: Final = 1200.0
LEFT: Final = 74.0
RIGHT: Final = 118.0
TOP: Final = 58.0
BAR: Final = 20.0
CURVE: Final = 16.0
GAP: Final = 8.0
TICKS: Final = 8
#: Bars narrower than this carry no number.
LEGIBLE: Final = 15.0

STYLE: Final = """\
text{font:11px system-ui,sans-serif;fill:#222}.title{font-size:14px;font-weight:600}
.in{font-size:9px;text-anchor:middle}.end{text-anchor:end}
.forward{fill:#5b9bd5}.backward{fill:#f0a35e}.weights{fill:#8fbf7f}.recompute{fill:#d9705f}
.base{fill:#eee}.behind{fill:#bbb}.tick{stroke:#ddd}
.curve{fill:none;stroke:#666}.limit{stroke:#c33;stroke-dasharray:3 3}
svg{background:#fff}
@media(prefers-color-scheme:dark){svg{background:#1b1b1b}text{fill:#ddd}g .in{fill:#111}
.base{fill:#2b2b2b}.behind{fill:#666}.curve{stroke:#aaa}.tick{stroke:#3a3a3a}}"""


def step_svg(step: Drawing, title: str) -> str:
    """The file."""
    rows = step.line.stages
    height = TOP + rows * (BAR + CURVE + GAP) + 24.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-labelledby="title"><title id="title">{escape(_heading(step, title))}</title><style>{STYLE}</style>',
        f'<text class="title" x="{LEFT:g}" y="18">{escape(_heading(step, title))}</text>',
        *_legend(step),
        *_ticks(step, height),
    ]
    for stage in range(rows):
        parts += _row(step, stage, TOP + stage * (BAR + CURVE + GAP))
    return "\n".join([*parts, "</svg>", ""])


def _heading(step: Drawing, title: str) -> str:
    strategy, drawn = step.strategy, step.line.micro_batches
    count = f"{drawn} micro-batches" if step.whole else f"{drawn} of {strategy.micro_batches} micro-batches"
    return f"{title}: {strategy.schedule}, pp {strategy.pp}, vpp {strategy.vpp}, {count}, {number(step.step_s)} s"


def _x(step: Drawing, seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / step.step_s


def _legend(step: Drawing) -> Iterator[str]:
    kinds = [*dict.fromkeys(KINDS[kind] for kind in sorted(set(step.line.kind.tolist()))), "recompute", "behind"]
    words = {"weights": "gradients of weights", "behind": "gradients, optimizer, slowest rank"}
    x = LEFT
    for kind in kinds:
        text = words.get(kind, kind)
        yield f'<rect class="{kind}" x="{x:g}" y="28" width="11" height="11"/><text x="{x + 15:g}" y="38">{text}</text>'
        x += 34 + 6.2 * len(text)


def _ticks(step: Drawing, height: float) -> Iterator[str]:
    for at in np.linspace(0.0, step.step_s, TICKS + 1).tolist():
        x = _x(step, at)
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6:g}" y2="{height - 20:g}"/>'
        yield f'<text class="in" x="{x:.1f}" y="{height - 8:g}">{number(at) if at else 0} s</text>'


def _row(step: Drawing, stage: int, y: float) -> Iterator[str]:
    line, parts = step.line, step.parts
    right = _x(step, line.makespan_s)
    yield f'<text class="end" x="{LEFT - 8:g}" y="{y + 14:g}">stage {stage}</text>'
    yield f'<rect class="base" x="{LEFT:g}" y="{y:g}" width="{right - LEFT:.1f}" height="{BAR:g}"/>'
    for i in np.flatnonzero(line.stage == stage).tolist():
        kind, chunk, micro = KINDS[int(line.kind[i])], int(line.chunk[i]), int(line.micro_batch[i])
        start, end = float(line.start_s[i]), float(line.end_s[i])
        x, width = _x(step, start), _x(step, end) - _x(step, start)
        name = f"{kind} of micro-batch {micro}" + (f", chunk {chunk}" if line.chunks > 1 else "")
        seconds = f"{number(start)} to {number(end)} s"
        yield f'<g><title>{name}: {seconds}</title><rect class="{kind}" x="{x:.1f}" y="{y:g}" {_size(width, BAR)}/>'
        again = float(parts.recompute_VS[chunk, stage]) if kind == "backward" else 0.0
        if again > 0:
            short = _x(step, start + again) - x
            yield f'<rect class="recompute" x="{x:.1f}" y="{y + BAR - 5:g}" {_size(short, 5.0)}/>'
        if width >= LEGIBLE:
            yield f'<text class="in" x="{x + width / 2:.1f}" y="{y + 13:g}">{micro}</text>'
        yield "</g>"
    wide = _x(step, step.step_s) - right
    yield f'<rect class="behind" x="{right:.1f}" y="{y:g}" {_size(wide, BAR)}/>'
    busy = float(line.busy_S[stage]) / line.makespan_s
    yield f'<text x="{WIDTH - RIGHT + 8:g}" y="{y + 14:g}">{percent(busy)} busy</text>'
    yield from _curve(step, stage, y + BAR + 2.0)


def _size(width: float, height: float) -> str:
    return f'width="{max(width - 0.4, 0.3):.1f}" height="{height:g}"'


def _curve(step: Drawing, stage: int, y: float) -> Iterator[str]:
    """Memory as steps, the limit being the top of its band."""
    times, level = memory_curve(step.parts, step.line, stage)
    limit = step.estimate.limit_bytes
    top = max(limit, float(level.max()))
    xs, ys = [_x(step, at) for at in times.tolist()], [y + CURVE * (1.0 - size / top) for size in level.tolist()]
    path = f"M{xs[0]:.1f} {ys[0]:.1f}" + "".join(f"H{x:.1f}V{at:.1f}" for x, at in zip(xs[1:], ys[1:], strict=True))
    at = y + CURVE * (1.0 - limit / top)
    yield f'<path class="curve" d="{path}"><title>memory of stage {stage}</title></path>'
    yield f'<line class="limit" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{at:.1f}" y2="{at:.1f}"/>'
    yield f'<text x="{WIDTH - RIGHT + 8:g}" y="{y + 12:g}">{gib(float(level.max()))} of {gib(limit)} GiB</text>'
