"""A measured throughput beside the prediction."""

from __future__ import annotations

import pytest

from planner import api, completion, inputs
from planner.errors import SpecError
from planner.measured import compare, measured_step_s, utilisation
from planner.model.load import find
from planner.model.operators import flop_per_token
from planner.search.suggest import Request


@pytest.fixture(scope="module")
def request_70b() -> Request:
    """mindformers llama2_70b on 32 cards: dp 1, mp 4, pp 8, 256 micro-batches, sequence 4096."""
    return inputs.request_for("llama-2-70b", 32, "910b2", seq=4096, global_batch=256)


@pytest.mark.parametrize(
    ("text", "step_s"),
    [
        ("337 tokens/s/card", 97.2),  # user-cases R04: 256 x 4096 / (32 x 337) = 97 s
        ("337 tokens/s/p", 97.2),
        ("97.2 s", 97.2),
        ("97200 ms", 97.2),
        ("2.634 samples/s", 97.2),
        ("337 tok/s/NPU", 97.2),
        ("337 tokens/sec/device", 97.2),
        ("337 tokens per second per GPU", 97.2),
        ("337 tokens/card/s", 97.2),
        ("337 TGS", 97.2),
        ("10,788 tokens/s", 97.2),
        ("0.0823 samples/s/card", 97.2),
        ("1.62 min", 97.2),
        ("97.2 sec/step", 97.2),
        ("97.2 s/it", 97.2),
        ("0.010288 steps/s", 97.2),
    ],
)
def test_units(request_70b: Request, text: str, step_s: float) -> None:
    assert measured_step_s(text, request_70b) == pytest.approx(step_s, rel=1e-3)


def test_utilisation_by_hand(request_70b: Request) -> None:
    """FLOP a token x tokens / (97.2 s x 32 cards x 353.9 TFLOP/s)."""
    flop = flop_per_token(find("llama-2-70b"), 4096) * 256 * 4096
    assert utilisation(97.2, request_70b) == pytest.approx(flop / (97.2 * 32 * 353.8944e12), rel=1e-12)
    assert measured_step_s("40% MFU", request_70b) == pytest.approx(measured_step_s("0.4 MFU", request_70b), rel=1e-12)
    assert utilisation(measured_step_s("40% MFU", request_70b), request_70b) == pytest.approx(0.4, rel=1e-12)


def test_flop_rates(request_70b: Request) -> None:
    """Model FLOP of a step over 97.2 s and 32 cards."""
    flop = flop_per_token(find("llama-2-70b"), 4096) * 256 * 4096 / (97.2 * 32)
    for unit in ("TFLOPS", "TFLOPs/card", "TFLOP/s/GPU", "teraflops/npu"):
        assert measured_step_s(f"{flop / 1e12:.6f} {unit}", request_70b) == pytest.approx(97.2, rel=1e-5)
    assert measured_step_s("40%", request_70b) == measured_step_s("40 % MFU", request_70b)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("337", "unknown unit"),
        ("337 tokens", "unknown unit"),
        ("337 furlongs/s", "unknown unit"),
        ("tokens 337", "not a positive number"),
        ("-3 s", "not a positive number"),
        ("0 s", "not a positive number"),
        ("nan s", "not a positive number"),
        ("1e400 s", "not a positive number"),
        ("1e9 h", "makes a step of 3.6e\\+12 s"),
        ("400 TFLOPS", "113% of the card's peak"),
    ],
)
def test_figures_that_say_nothing_are_refused(request_70b: Request, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        measured_step_s(text, request_70b)


def test_impossible_figures_are_refused() -> None:
    """user-cases R21: Qwen2-72B, 32k, 64 cards: 2026 tokens/s/card is above the card's peak."""
    request = inputs.request_for("qwen2-72b", 64, "910b2", seq=32768, global_batch=128)
    with pytest.raises(SpecError, match="of the card's peak, which no run can reach"):
        measured_step_s("2026 tokens/s/card", request)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "as predicted"), (1.04, "as predicted"), (3.0, "slower"), (0.75, "faster")]
)
def test_verdicts(request_70b: Request, factor: float, verdict: str) -> None:
    answer = api.estimate_of(request_70b, completion.complete(request_70b, tp=4, pp=8))
    assert answer.step_s is not None
    found = compare(factor * answer.step_s, request_70b, answer)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor, rel=1e-12)
    assert bool(found.explanations) == (verdict != "as predicted")


def test_explanations_fill_the_gap(request_70b: Request) -> None:
    """Each names what one term would have to be: its own seconds and the whole gap."""
    answer = api.estimate_of(request_70b, completion.complete(request_70b, tp=4, pp=8))
    assert answer.step_s is not None
    assert answer.time_s is not None
    gap = 2.0 * answer.step_s
    found = compare(answer.step_s + gap, request_70b, answer)
    assert len(found.explanations) == 4
    worst = max(
        (s, n) for n, s in answer.time_s.items() if n in ("tp_exposed_s", "vector_s", "bubble_s", "recompute_s")
    )
    assert any(f"{worst[0] + gap:.0f} s instead of" in words for words in found.explanations)


def test_no_comparison_with_a_job_that_does_not_fit() -> None:
    request = inputs.request_for("70B", 8, seq=4096, global_batch=64)
    answer = api.estimate_of(request, completion.complete(request, tp=8))
    with pytest.raises(SpecError, match="predicted not to fit"):
        compare(100.0, request, answer)
