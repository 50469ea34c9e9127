"""The MindSpore and MindFormers a DryRun runs with: where they are, which versions, whether they belong together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from planner import frameworks
from planner.errors import ValidationError

VERSION_PAIRS = dict(frameworks.of("mindformers").releases)
"""MindFormers version -> the MindSpore it is released for."""

PROVEN_PAIR = ("2.9.0", "1.9.0")
"""MindSpore and MindFormers that the recorded grid and the tests run with."""

_ADVICE = f"Install the proven pair: pip install mindspore=={PROVEN_PAIR[0]} mindformers=={PROVEN_PAIR[1]}"
_PROBE_S = 120
_PROBE = """
import importlib.metadata, importlib.util, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
spec = importlib.util.find_spec("mindspore")
home = list(spec.submodule_search_locations)[0] if spec else None
print(json.dumps({"home": home, "mindspore": version("mindspore"), "mindformers": version("mindformers")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An interpreter with MindSpore and MindFormers."""

    python: Path
    home: Path
    """Folder of the mindspore package."""
    mindspore: str
    mindformers: str


def find_framework(python: Path | None = None) -> Framework:
    """Look up both frameworks in an interpreter, without importing them.

    Without `python` it is the one that PLANNER_MINDSPORE_PYTHON names, else the running one.
    """
    interpreter = python or _default_interpreter()
    found = _probe(interpreter)
    for name in ("mindspore", "mindformers"):
        if not found.get(name) or not found.get("home"):
            raise ValidationError(
                f"{interpreter} has no {name}, which DryRun runs. {_ADVICE}, or name another interpreter."
            )
    check_pair(found["mindspore"], found["mindformers"])
    return Framework(
        python=interpreter, home=Path(found["home"]), mindspore=found["mindspore"], mindformers=found["mindformers"]
    )


def find_mindspore(python: Path | None = None) -> tuple[Path, str]:
    """Interpreter that has MindSpore, and its version; chosen as in `find_framework`."""
    interpreter = python or _default_interpreter()
    found = _probe(interpreter)
    if not found.get("mindspore") or not found.get("home"):
        raise ValidationError(
            f"{interpreter} has no mindspore, which a validating run trains with. Install it: pip install "
            f"mindspore=={PROVEN_PAIR[0]}, or name another interpreter with --python."
        )
    return interpreter, found["mindspore"]


def _default_interpreter() -> Path:
    return Path(os.environ.get("PLANNER_MINDSPORE_PYTHON") or sys.executable)


def _probe(interpreter: Path) -> dict[str, str]:
    """Folder of mindspore and versions of both; absent ones are None."""
    failed = f"Cannot ask the interpreter {interpreter} for its packages"
    try:
        answer = subprocess.run(
            [str(interpreter), "-c", _PROBE], capture_output=True, text=True, errors="replace", timeout=_PROBE_S
        )
    except OSError as error:
        raise ValidationError(f"{failed}: {error.strerror}. Name a Python interpreter.") from error
    except subprocess.TimeoutExpired as error:
        raise ValidationError(f"{failed}: no answer in {_PROBE_S} s.") from error
    try:
        found: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        words = (answer.stderr.strip().splitlines() or [f"exit status {answer.returncode} without an answer"])[-1]
        raise ValidationError(f"{failed}: {words}. Name a Python interpreter.") from error
    return found


def check_pair(mindspore: str, mindformers: str) -> None:
    """Refuse a MindFormers that was released for another MindSpore."""
    wanted = VERSION_PAIRS.get(mindformers)
    if wanted is None or wanted == mindspore:
        return
    belongs = next((ours for ours, theirs in VERSION_PAIRS.items() if theirs == mindspore), None)
    other = f" mindspore {mindspore} goes with mindformers {belongs}." if belongs else ""
    raise ValidationError(
        f"mindformers {mindformers} was released for mindspore {wanted}, but {mindspore} is installed.{other} {_ADVICE}"
    )
