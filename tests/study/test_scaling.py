"""Curves over cards, and measured points beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InfeasibleError, SpecError
from planner.inputs import request_for
from planner.search.suggest import search
from planner.study.runs import read_runs
from planner.study.scaling import Curve, Measured, fit, scale
from tests.cli.runner import run

REQUEST = request_for("13B", 16, seq=4096, global_batch=128, tokens="100B")
SIZES = (8, 16, 64, 256)


@pytest.fixture(scope="module")
def curves() -> dict[str, Curve]:
    return {mode: scale(REQUEST, SIZES, mode) for mode in ("weak", "strong")}


def test_every_size_is_the_answer_of_a_search(curves: dict[str, Curve]) -> None:
    point = curves["strong"].points[2]
    best = search(replace(REQUEST.on(64), top=1)).estimates.row(0)
    assert point.estimate == best
    assert [p.global_batch for p in curves["strong"].points] == [128] * 4
    assert [p.global_batch for p in curves["weak"].points] == [64, 128, 512, 2048]


def test_retention_and_speedup_are_of_the_smallest_size_that_fits(curves: dict[str, Curve]) -> None:
    for curve in curves.values():
        first = curve.fitting[0]
        for point in curve.fitting:
            assert point.estimate is not None
            assert first.estimate is not None
            speed = point.estimate.tokens_per_s_per_device / first.estimate.tokens_per_s_per_device
            assert point.retention == pytest.approx(speed)
            whole = point.devices * point.estimate.tokens_per_s_per_device
            assert point.speedup == pytest.approx(whole / (first.devices * first.estimate.tokens_per_s_per_device))
            step = point.global_batch * 4096 / whole
            assert point.estimate.step_s == pytest.approx(step)
            assert point.estimate.days == pytest.approx(100e9 / whole / 86400)
            assert point.estimate.card_hours == pytest.approx(point.estimate.days * 24 * point.devices)
        assert (first.retention, first.speedup, first.blame) == (1.0, 1.0, None)


def test_strong_scaling_keeps_less_than_weak_and_blames_what_grew(curves: dict[str, Curve]) -> None:
    weak, strong = (curves[mode].points[-1] for mode in ("weak", "strong"))
    assert (strong.retention or 0) < (weak.retention or 0)
    first = curves["strong"].fitting[0]
    cost = {}
    for point in (first, strong):
        assert point.estimate is not None
        scale_to_token = point.devices / point.global_batch
        cost[point.devices] = {k: v * scale_to_token for k, v in (point.estimate.time_s or {}).items()}
    grown = {name: cost[256][name] - cost[first.devices][name] for name in cost[256] if not name.endswith("_hidden_s")}
    assert strong.blame == max(grown, key=lambda name: grown[name])
    assert 0 < (strong.blame_share or 0) <= 1


def test_a_size_without_a_layout_says_why() -> None:
    curve = scale(request_for("70B", 64, seq=4096, global_batch=128), (8, 64), "strong")
    assert curve.points[0].estimate is None
    assert "70B" in curve.points[0].why
    assert curve.fitting[0].devices == 64
    with pytest.raises(InfeasibleError):
        scale(request_for("70B", 8, seq=4096, global_batch=128), (8,), "weak")


def test_fit_finds_the_law_that_made_the_points(curves: dict[str, Curve]) -> None:
    predicted = {p.devices: p.estimate.tokens_per_s_per_device for p in curves["weak"].fitting if p.estimate}
    least = min(predicted)
    made = [
        Measured(devices=n, tokens_per_s_per_device=0.9 * 0.97 ** ((n // least).bit_length() - 1) * value)
        for n, value in predicted.items()
    ]
    found = fit([curves["weak"], curves["strong"]], made)
    assert found.level == pytest.approx(0.9, rel=1e-6)
    assert found.growth == pytest.approx(0.97, rel=1e-6)
    assert found.spread < 1e-9
    assert fit([curves["weak"]], made[:1]).growth is None
    with pytest.raises(SpecError, match="256 cards with a global batch of 7 is no point"):
        fit(list(curves.values()), [Measured(devices=256, tokens_per_s_per_device=1.0, global_batch=7)])


def test_files_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xef\xbb\xbfcards, global_batch, step_s\r\n16,128,8.192\r\n")
    assert read_runs(str(path), 4096) == (Measured(devices=16, tokens_per_s_per_device=4000.0, global_batch=128),)
    path.write_text("cards,tokens_per_s\n8,4000\n", encoding="utf-8")
    assert read_runs(str(path), 4096)[0].tokens_per_s_per_device == 500.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns none; needed: cards and one of"),
        ("cards,speed\n8,1\n", "needed: cards and one of"),
        ("cards,step_s\n8,1.0\n", "runs.csv:2: step_s says a throughput only with global_batch"),
        ("cards,tokens_per_s\n8,fast\n", "runs.csv:2: tokens_per_s 'fast' is not a positive number"),
        ("cards,tokens_per_s\n8,nan\n", "is not a positive number"),
        ("cards,tokens_per_s\n8.5,100\n", "must be whole numbers"),
        ("cards,tokens_per_s\n", "has no runs"),
    ],
)
def test_bad_files_of_runs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=message):
        read_runs(str(path), 4096)


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("cards,tokens_per_s_per_card\n8,2000\n16,1900\n", encoding="utf-8")
    command = f"scaling --params 8B --cards 8,16 --global-batch 64 --mode weak --tokens 1T --measured {path}"
    answer = run(command)
    assert answer.code == 0
    assert max(map(len, answer.lines)) <= 80
    body = run(f"{command} --json").document
    assert body["measured"]["points"][1]["ratio"] == pytest.approx(
        1900 / body["curves"][0]["points"][1]["plan"]["speed"]["tokens_per_s_per_card"]
    )
    assert run("scaling --params 8B").err.startswith("Error: how many cards?")
    assert run("scaling --params 8B --cards 8 --mode fast").code == 2
