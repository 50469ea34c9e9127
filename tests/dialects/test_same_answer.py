"""What is written gets the answer of its plan: every family of every target, with experts whole and split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from planner import inputs
from planner.completion import complete
from planner.cost.estimate import Estimate
from planner.cost.experts import usual_etp
from planner.cost.strategies import Strategies, Strategy
from planner.dialects.families import targets_for
from planner.dialects.write import emit
from planner.errors import EmitError
from planner.legality.apply import violations
from planner.model.load import find
from planner.plan import Plan, load
from planner.search.request import Request
from planner.search.suggest import estimated

#: A model of each family, with the cards it is put on.
MODELS = {
    "llama-3.1-8b": 16, "mistral-7b": 16, "qwen2.5-7b": 16, "qwen2.5-0.5b": 16, "qwen3-8b": 16, "qwen3-0.6b": 16,
    "glm-4-9b": 16, "glm-4-9b-0414": 16, "chatglm3-6b": 16, "internlm2-7b": 16, "gpt-3-6.7b": 16, "mixtral-8x7b": 16,
    "qwen2-57b-a14b": 32, "qwen3-30b-a3b": 16, "deepseek-v2-lite": 16, "deepseek-v2": 128, "deepseek-v3": 512,
    "glm-4.5-air": 64,
}  # fmt: skip
CASES = [(name, target) for name in MODELS for target in targets_for(find(name))]
#: Degrees that are tried; those that a target has no layout or no file for are left out, never all of them.
DENSE: tuple[Mapping[str, object], ...] = (
    {}, {"tp": 2}, {"tp": 4, "pp": 2}, {"pp": 2, "vpp": 2}, {"tp": 2, "cp": 2}, {"cp": 2, "pp": 2},
)  # fmt: skip
MOE: tuple[Mapping[str, object], ...] = (
    {"ep": 8}, {"tp": 2, "ep": 4, "pp": 2}, {"tp": 4, "ep": 8, "pp": 2}, {"tp": 4, "ep": 2, "pp": 4},
    {"tp": 8, "pp": 8, "ep": 16}, {"tp": 4, "pp": 16, "ep": 8},
)  # fmt: skip
#: Left without a single file: what no flags of MindSpeed hold, and a vocabulary that tp does not divide.
REFUSED = {("glm-4-9b-0414", "mindspeed"), ("qwen2.5-0.5b", "mindspore"), ("qwen3-0.6b", "mindspore")}


#: The file of a target that says how it trains.
MAIN = {"mindformers": "pretrain.yaml", "mindformers-pynative": "pretrain.yaml", "mindspeed": "pretrain.sh",
        "mindspore": "pretrain.py"}  # fmt: skip


@pytest.mark.parametrize(("name", "target"), CASES)
def test_file_gets_the_answer_of_its_plan(name: str, target: str, tmp_path: Path) -> None:
    model = find(name)
    framework = inputs.framework_of_target(target, model)
    seq = min(4096, model.max_seq or 4096)
    request = inputs.request_for(model, MODELS[name], seq=seq, global_batch=1536, framework=framework)
    compared = set()
    for number, degrees in enumerate(MOE if model.moe else DENSE):
        tp = int(degrees.get("tp", 1))  # type: ignore[call-overload]
        if MODELS[name] % (tp * int(degrees.get("pp", 1))):  # type: ignore[call-overload]
            continue
        for etp in usual_etp(framework, experts=model.moe is not None, tp=tp):
            strategy = complete(request, etp=etp, **degrees)
            folder = tmp_path / f"{number}-{etp}"
            if not violations(request.context, strategy) and written(request, strategy, target, folder):
                compare(request, folder, MAIN[target])
                compared.add(etp > 1)
    assert bool(compared) != ((name, target) in REFUSED)
    assert compared >= ({False, True} if model.moe and target == "mindspeed" else set())


def written(request: Request, strategy: Strategy, target: str, folder: Path) -> bool:
    """Files of a strategy; False where the target cannot hold it."""
    estimate = estimated(request, Strategies.of([strategy])).row(0)
    plan = Plan(
        model=request.model, workload=request.workload, hardware=request.cluster.hardware.name,
        devices=strategy.devices, strategy=strategy, estimate=estimate.to_dict(), memory_limit_bytes=int(request.limit),
    )  # fmt: skip
    try:
        emit(plan, folder, target=target)
    except EmitError:
        return False
    return True


def compare(request: Request, folder: Path, name: str) -> None:
    """Peak, verdict and expert layout of the file that runs against those of plan.json beside it."""
    kept = load(folder / "plan.json")
    again, strategy, _ = inputs.read(folder / name, hardware=request.cluster.hardware, cards=kept.devices)
    planned, read_back = answer(request, kept.strategy), answer(again, strategy)
    assert (strategy.tp, strategy.ep, strategy.etp) == (kept.strategy.tp, kept.strategy.ep, kept.strategy.etp)
    assert read_back.stage_peak_bytes == pytest.approx(planned.stage_peak_bytes, rel=1e-12)
    assert read_back.fits == planned.fits
    assert read_back.limit_bytes == planned.limit_bytes


def answer(request: Request, strategy: Strategy) -> Estimate:
    return estimated(request, Strategies.of([strategy])).row(0)
