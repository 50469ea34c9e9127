"""Record the figures of twelve jobs: ``python tests/golden/answers/remake.py``, then review what moved and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

#: File name -> arguments of ``planner``; dense, mixtures, long, small, four frameworks, GPUs, one that does not fit.
JOBS = {
    "70b-64": "suggest --params 70B --cards 64 --top 2",
    "70b-64-8k": "suggest --params 70B --cards 64 --seq 8192 --global-batch 256 --top 2",
    "deepseek-v3-1024": "suggest --model deepseek-v3 --cards 1024 --top 2",
    "qwen3-30b-a3b-32": "suggest --model qwen3-30b-a3b --cards 32 --top 2",
    "qwen3-8b-16-128k": "suggest --model qwen3-8b --cards 16 --seq 128k --global-batch 64 --top 2",
    "qwen3-235b-a22b-256": "suggest --model qwen3-235b-a22b --cards 256 --top 2",
    "7b-8-a3": "suggest --params 7B --cards 8 --hardware 910c --top 2",
    "13b-16-mindspeed": "suggest --params 13B --cards 16 --framework mindspeed --top 2",
    "8b-16-pynative": "suggest --model llama-3.1-8b --cards 16 --framework mindformers-pynative --top 2",
    "70b-estimate": "estimate --params 70B --tp 8 --pp 4 --dp 2 --global-batch 128",
    "70b-over": "estimate --params 70B --tp 8 --pp 2 --dp 1 --global-batch 64 --recompute none",
    "70b-128-h100": "suggest --params 70B --cards 128 --hardware h100 --top 2",
}


def answer_of(job: str) -> dict[str, Any]:
    """Document of one job, without what differs from machine to machine."""
    from tests.cli.runner import run

    document = run(f"{JOBS[job]} --json").document
    document.pop("planner", None)
    return document


def main() -> None:
    """Write all, or nothing."""
    sys.path.insert(0, str(FOLDER.parents[2]))
    answers = {job: json.dumps(answer_of(job), indent=1) + "\n" for job in JOBS}
    for job, text in answers.items():
        (FOLDER / f"{job}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
