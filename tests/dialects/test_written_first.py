"""No answer is led by a plan that the product then refuses to write; and a GPU's answer says what it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import api, inputs
from planner.dialects.records import Settings
from planner.dialects.write import render
from planner.search.suggest import search
from tests.cli.runner import run


@pytest.mark.parametrize("hardware", ["a100-80g", "h100", "910b3"])
@pytest.mark.parametrize(
    ("model", "cards"), [("llama-3.1-70b", 64), ("llama-3.1-8b", 16), ("qwen3-30b-a3b", 32), ("deepseek-v3", 1024)]
)
def test_every_row_can_be_written(hardware: str, model: str, cards: int) -> None:
    request = inputs.request_for(model, cards, hardware)
    result = search(replace(request, top=5))
    target = inputs.target_of_framework(request.workload.framework)
    for row in range(len(result.estimates)):
        assert render(api.plan_of(request, result.estimates.row(row)), target, Settings())


@pytest.mark.parametrize(
    "command",
    [
        "suggest --params 8B --cards 16 --global-batch 128 --top 1",
        "estimate --params 8B --tp 4 --dp 2 --global-batch 128",
        "cards --params 8B --global-batch 128",
        "explain --params 8B --tp 4 --cards 16 --global-batch 128",
    ],
)
def test_an_answer_for_a_gpu_says_what_its_profile_is_for(command: str) -> None:
    said = "GPU profiles check the formulas against published GPU runs"
    gpu, npu = (run(f"{command} --hardware {name}") for name in ("a100-80g", "910b3"))
    assert gpu.code == npu.code == 0
    assert said in " ".join(gpu.out.split())
    assert said not in " ".join(npu.out.split())
    assert said in run(f"{command} --hardware a100-80g --json").document["cluster"]["purpose"]
