"""Record what commands print: ``python tests/golden/cli/remake.py``, then review the difference as text.

Also rewrites the output block of README.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
README = FOLDER.parents[2] / "README.md"

#: File name -> arguments of ``planner``.
COMMANDS = {
    "suggest-70b-64": "suggest --params 70B --cards 64",
    "suggest-70b-64-8k": "suggest --params 70B --cards 64 --seq 8192 --global-batch 256 --explain",
    "suggest-moe": "suggest --model qwen3-30b-a3b --cards 32 --tokens 1T --top 5",
    "suggest-long": "suggest --model qwen3-8b --cards 16 --seq 128k --global-batch 64 --top 5",
    "estimate-70b": "estimate --params 70B --tp 8 --pp 4 --dp 2 --global-batch 128",
    "estimate-over": "estimate --params 70B --tp 8 --pp 2 --dp 1 --global-batch 64 --recompute none",
    "estimate-measured": (
        "estimate --params 70B --tp 4 --pp 8 --dp 1 --global-batch 256 --hardware 910b2 --measured '337 tokens/s/card'"
    ),
    "estimate-deep": "estimate --model llama-3.1-405b --tp 8 --pp 32 --dp 2 --global-batch 512 --tokens 1T",
    "cards-70b": "cards --params 70B",
    "explain-memory": "explain --params 70B --cards 64 --tp 8 --pp 1 --recompute none",
    "explain-slower": "explain --params 70B --cards 64 --tp 8 --pp 8 --recompute full",
    "models-qwen3": "models qwen3",
    "collective": "collective --op allreduce --size 512MB --ranks 64",
    "hardware": "hardware",
    "hardware-910b3": "hardware 910b3",
}

_BLOCK = re.compile(r"```console\n\$ (planner [^\n]+)\n(.*?)```\n", re.DOTALL)


def readme_block(text: str) -> tuple[str, str]:
    """Command and output of README.md's console block."""
    match = _BLOCK.search(text)
    assert match is not None, "README.md has no console block"
    return match[1], match[2]


def main() -> None:
    """Run every command, then write; nothing is written when one of them fails."""
    sys.path.insert(0, str(FOLDER.parents[2]))
    from tests.cli.runner import run

    text = README.read_text(encoding="utf-8")
    command, _ = readme_block(text)
    answers = {name: run(arguments) for name, arguments in COMMANDS.items()}
    answers["README.md"] = run(command.removeprefix("planner "))
    failed = [f"{name}: {answer.err}" for name, answer in answers.items() if not answer.out]
    if failed:
        sys.exit("\n".join(failed))
    block = answers.pop("README.md").out
    README.write_text(_BLOCK.sub(lambda match: match[0].replace(match[2], block, 1), text, count=1), encoding="utf-8")
    for name, answer in answers.items():
        (FOLDER / f"{name}.txt").write_text(answer.out, encoding="utf-8")


if __name__ == "__main__":
    main()
