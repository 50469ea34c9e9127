"""Bus bandwidth against size as a page for the browser; needs the plot extra."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planner.cluster.collectives import bus_bytes_per_s, by_algorithm
from planner.errors import SpecError
from planner.report.collectives import CURVE_BYTES, CollectivePoint, CollectiveQuestion


def write_page(question: CollectiveQuestion, points: list[CollectivePoint], path: str) -> None:
    """One curve for each algorithm and one for what is chosen, as a page that needs no network.

    Raises
    ------
    SpecError
        Plotly is not installed, or the file cannot be written.
    """
    try:
        from plotly import graph_objects
    except ImportError:
        raise SpecError(
            f"--html {path} needs plotly, which is not installed: pip install 'planner[plot]'; without it the terminal "
            "shows the curve."
        ) from None
    figure = graph_objects.Figure()
    for name, bus in bandwidths(question).items():
        figure.add_scatter(x=list(CURVE_BYTES), y=list(bus / 1e9), name=name, mode="lines", line={"dash": "dot"})
    chosen = points[:-1]
    figure.add_scatter(
        x=[point.size_bytes for point in chosen], y=[point.bus_bytes_per_s / 1e9 for point in chosen], name="chosen",
        text=[point.algorithm for point in chosen], mode="lines+markers",
    )  # fmt: skip
    title = f"{question.op}, {question.ranks} x {question.hardware.name}, stride {question.stride}"
    figure.update_layout(title=title, xaxis_title="size, bytes", yaxis_title="bus bandwidth, GB/s")
    figure.update_xaxes(type="log")
    try:
        Path(path).write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--html {path} cannot be written: {error.strerror or error}.") from error


def bandwidths(question: CollectiveQuestion) -> dict[str, np.ndarray]:
    """Bus bandwidth [bytes/s] of each algorithm over `CURVE_BYTES`."""
    sizes = np.array(CURVE_BYTES, np.float64)
    times = by_algorithm(question.op, sizes, question.group, question.hardware)
    return {name: bus_bytes_per_s(question.op, sizes, question.ranks, time) for name, time in times.items()}
