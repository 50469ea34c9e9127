"""Pictures of a step: the trace keeps the rules of trace events and adds up, the others show what it shows."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from typing import Any

import pytest

from planner.api import estimate_of
from planner.cost.strategies import Strategy
from planner.report.svg import step_svg
from planner.report.timeline import letters, timeline_lines
from planner.report.trace import trace_text
from planner.search.request import Request
from planner.timeline.drawing import Drawing, drawing
from tests.timeline.test_estimate import CASES

US = 1e6


def drawn(asked: Request, strategy: Strategy, *, every: bool = False) -> Drawing:
    job = (asked.model, asked.workload, asked.cluster, asked.calibration)
    return drawing(*job, strategy, limit_bytes=asked.limit, every=every)


def events_of(step: Drawing) -> list[dict[str, Any]]:
    document = json.loads(trace_text(step, 'a "title" <&'))
    assert document["otherData"]["title"] == 'a "title" <&'
    return list(document["traceEvents"])


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_trace_keeps_the_rules_of_trace_events(asked: Request, strategy: Strategy) -> None:
    step = drawn(asked, strategy)
    events = events_of(step)
    shown = [event for event in events if event["ph"] != "M"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f", "C"}
    assert [event["ts"] for event in shown] == sorted(event["ts"] for event in shown)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in shown)
    # slices of one thread nest: each lies inside the open one or behind it
    open_slices: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in shown:
        if event["ph"] != "X":
            continue
        stack, end = open_slices[event["pid"], event["tid"]], event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"] + 1e-3:
            stack.pop()
        assert not stack or end <= stack[-1] + 1e-3
        stack.append(end)
    # every arrow has one beginning before its one end, on another stage, each inside a slice
    starts = {event["id"]: event for event in shown if event["ph"] == "s"}
    ends = {event["id"]: event for event in shown if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * step.line.micro_batches * (strategy.pp * strategy.vpp - 1) - _inside(strategy, step)
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        assert start["pid"] != ends[number]["pid"]
        assert ends[number]["bp"] == "e"


def _inside(strategy: Strategy, step: Drawing) -> int:
    """Hand-overs that stay on a stage: the turn of a V."""
    return 2 * step.line.micro_batches if strategy.schedule == "zero_bubble_v" else 0


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_totals_of_the_whole_trace_equal_the_estimate(asked: Request, strategy: Strategy) -> None:
    step = drawn(asked, strategy, every=True)
    found = estimate_of(asked, strategy)
    assert found.step_s is not None
    assert found.time_s is not None
    slices = [event for event in events_of(step) if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) / US == pytest.approx(found.step_s, rel=1e-6)
    by_kind: dict[tuple[int, str], float] = defaultdict(float)
    for event in slices:
        by_kind[event["pid"], event["cat"]] += event["dur"] / US
    for stage, seconds in enumerate(found.stage_s or ()):
        work = sum(by_kind[stage, kind] for kind in ("forward", "backward", "weights", "tp", "cp", "ep", "pp"))
        assert work == pytest.approx(strategy.micro_batches * seconds, rel=1e-6)
        pipeline = work + by_kind[stage, "bubble"]
        assert pipeline == pytest.approx(step.line.makespan_s, rel=1e-6)
        assert by_kind[stage, "optimizer"] == pytest.approx(found.time_s["optimizer_s"], rel=1e-6)


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_letters_show_who_works(asked: Request, strategy: Strategy) -> None:
    step = drawn(asked, strategy)
    lines = timeline_lines(step)
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if "|" in line]
    assert len(rows) == strategy.pp
    assert rows[0].split("|")[1].startswith("F")  # the first stage starts at once
    assert letters(step, strategy.pp - 1, 200)[:2] == ".."  # the last one waits for it
    assert f"of {strategy.micro_batches} micro-batches" in " ".join(lines)


@pytest.mark.parametrize(("asked", "strategy"), CASES)
def test_svg_is_one_well_formed_file_with_a_bar_for_each_pass(asked: Request, strategy: Strategy) -> None:
    step = drawn(asked, strategy)
    text = step_svg(step, "<script>alert(1)</script> & co")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    bars = [node for group in root.iter(f"{space}g") for node in group.iter(f"{space}rect")]
    assert len([bar for bar in bars if bar.get("class") != "recompute"]) == len(step.line)
    assert len([path for path in root.iter(f"{space}path")]) == strategy.pp
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "<script>" not in text
