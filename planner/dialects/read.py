"""Read what a team already has: plan.json, MindFormers YAML, MindSpeed-LLM scripts, emitted MindSpore scripts."""

from __future__ import annotations

import re
from pathlib import Path

from planner import plan as plans
from planner.dialects.graph.read import ReadResult, read_graph
from planner.dialects.mindspeed.given import is_script
from planner.dialects.mindspeed.read import read_mindspeed
from planner.dialects.native.read import read_native
from planner.dialects.pynative.read import read_pynative
from planner.dialects.text.yaml_read import Document, loads, read_text
from planner.errors import SpecError

__all__ = ["ReadResult", "read"]


def read(path: str | Path, devices: int | None = None, vocab: int | None = None) -> ReadResult:
    """Model, workload and strategy of a file, and what of it could not be read.

    Parameters
    ----------
    path : str or Path
        A plan.json, a MindFormers YAML (graph mode of either dialect, PyNative), a MindSpeed-LLM or Megatron launch
        script, a MindSpore script of the planner's own, or a directory that holds a plan.json.
    devices : int, optional
        Number of devices, for a launch script or a PyNative file that does not say it.
    vocab : int, optional
        Tokens of the tokenizer, for a launch script that leaves the vocabulary to it.

    Raises
    ------
    SpecError
        The file is missing, too large, not UTF-8, damaged, or not of a kind that is read.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "plan.json"
    text = read_text(path)
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return _read_plan(path)
    return read_text_as(path, text, devices, vocab)


def read_text_as(path: Path, text: str, devices: int | None = None, vocab: int | None = None) -> ReadResult:
    """Read `text` as if it were the file `path`.

    Raises
    ------
    SpecError
    """
    if path.suffix == ".py":
        return read_native(text, source=str(path))
    if path.suffix == ".sh" or text.startswith("#!"):
        return _read_script(path, text, devices, vocab)
    if vocab is not None:
        raise SpecError(f"--vocab is for launch scripts that leave the vocabulary to the tokenizer; {path} is none.")
    document = loads(text, source=str(path))
    kind = dialect(document)
    if kind == "graph":
        return read_graph(document)
    if kind == "pynative":
        return read_pynative(document, devices=devices or workers_beside(path))
    raise SpecError(
        f"{path} is no MindFormers file: it has none of the sections parallel_config, trainer (graph mode), training "
        "or parallelism (PyNative)."
    )


def workers_beside(path: Path) -> int | None:
    """Number of workers in a launch.sh that lies beside a file."""
    script = path.parent / "launch.sh"
    if not script.is_file():
        return None
    found = re.search(r"--worker_num=([0-9]{1,7})\b", read_text(script))
    return int(found[1]) if found else None


def _read_script(path: Path, text: str, devices: int | None, vocab: int | None) -> ReadResult:
    if not is_script(text):
        raise SpecError(
            f"{path} is no MindSpeed-LLM or Megatron launch script: it has no --num-layers and --hidden-size. "
            "Name the YAML that the script starts, if there is one."
        )
    return read_mindspeed(text, source=str(path), devices=devices, vocab=vocab)


def dialect(document: Document) -> str:
    """Which kind of configuration a YAML document is: ``graph``, ``pynative`` or empty."""
    keys = set(document.root)
    if keys & {"parallelism", "training"} and not keys & {"parallel_config", "runner_config"}:
        return "pynative"
    if keys & {"parallel_config", "trainer", "use_legacy", "runner_config", "parallel"}:
        return "graph"
    return ""


def _read_plan(path: Path) -> ReadResult:
    plan = plans.load(path)
    return ReadResult(
        model=plan.model,
        workload=plan.workload,
        strategy=plan.strategy,
        dialect="plan",
        memory_limit_bytes=plan.memory_limit_bytes,
        hardware=plan.hardware,
        calibration=plan.calibration,
    )
