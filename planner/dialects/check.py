"""Check configuration files and scripts for faults that the frameworks accept silently and that waste hours later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from planner import plan as plans
from planner.cluster import load as clusters
from planner.cluster.records import Cluster
from planner.dialects.findings import Finding, NotUnderstoodError
from planner.dialects.graph import check as lint_graph
from planner.dialects.mindspeed import check as lint_scripts
from planner.dialects.mindspeed.given import is_script
from planner.dialects.native import check as lint_python
from planner.dialects.pynative import check as lint_pynative
from planner.dialects.read import dialect, read, read_text_as, workers_beside
from planner.dialects.text.yaml_read import loads, read_text
from planner.errors import PlannerError, SpecError
from planner.legality.apply import Context, violations
from planner.plan import Plan

__all__ = ["Finding", "check", "not_judged"]

_NATIVE_START: Final = "#!/usr/bin/env python"
_SUFFIXES: Final = (".yaml", ".yml", ".sh", ".py", ".json")


def check(path: str | Path, devices: int | None = None) -> tuple[Finding, ...]:
    """Faults of a file, or of all files of a folder taken together.

    Parameters
    ----------
    path : str or Path
        MindFormers YAML (graph mode or PyNative), MindSpeed / Megatron or msrun script, Python program, plan.json, or a
        folder of these as ``planner emit`` writes it.
    devices : int, optional
        Devices of the job, when no launch script beside the file says it.

    Raises
    ------
    SpecError
        The path does not exist, or the file is not text or not YAML at all.
    """
    path = Path(path)
    if path.is_dir():
        return _check_folder(path, devices)
    return tuple(_check_file(path, devices))


def not_judged(path: str | Path, devices: int | None = None) -> tuple[str, ...]:
    """Settings of a file that say what the network is and are not read, so that their faults would not be found."""
    path = Path(path)
    if path.is_dir() or path.suffix in (".json", ".py"):
        return ()
    try:
        return read(path, devices).unreliable
    except PlannerError:
        return ()  # the check itself has said why


def _check_folder(folder: Path, devices: int | None) -> tuple[Finding, ...]:
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in _SUFFIXES)
    if not files:
        raise SpecError(f"{folder} holds no file to check ({', '.join(_SUFFIXES)}).")
    plan = plans.load(folder / "plan.json") if (folder / "plan.json").is_file() else None
    found = _started(folder, plan) if plan else []
    strange: list[NotUnderstoodError] = []
    for file in files:
        if file.suffix == ".json":
            continue
        try:
            found += _check_file(file, devices or (plan.devices if plan else None))
        except NotUnderstoodError as error:
            strange.append(error)
            continue
        if plan and file.name in ("pretrain.yaml", "pretrain.sh", "pretrain.py"):
            found += _against_plan(file, plan)
    if len(strange) == len(files):
        raise strange[0]
    return tuple(found)


def _started(folder: Path, plan: Plan) -> list[Finding]:
    """The launch script beside a plan.json starts as many workers as the plan has devices."""
    script = folder / "launch.sh"
    workers = workers_beside(script)
    if workers in (None, plan.devices):
        return []
    text = read_text(script)
    line = text.count("\n", 0, text.index(f"--worker_num={workers}")) + 1
    why = f"{workers} workers are started, but plan.json is for {plan.devices} devices."
    fix = f"Make worker_num {plan.devices}."
    return [Finding(file=str(script), line=line, rule="device-product", why=why, fix=fix)]


def _check_file(path: Path, devices: int | None) -> list[Finding]:
    if path.suffix == ".json":
        plans.load(path)
        return []
    text = read_text(path)
    if lint_scripts.is_python(path.name):
        return lint_python.check_python(text, str(path)) + _native(path, text, devices)
    if path.suffix == ".sh" or text.startswith("#!"):
        found = lint_scripts.check_shell(text, str(path), devices)
        return found or (_illegal(path, text, devices) if is_script(text) else [])
    document = loads(text, source=str(path))
    known = devices or workers_beside(path)
    kind = dialect(document)
    if kind == "pynative":
        return lint_pynative.check(document, known) or _unread(path, text, known)
    if kind == "graph":
        return lint_graph.check(document, known) or _unread(path, text, known)
    raise SpecError(f"{path} is no MindFormers configuration: no known section in it.")


def _unread(path: Path, text: str, devices: int | None) -> list[Finding]:
    """What reading refuses in a file of which no rule found a fault, and what its strategy breaks.

    Raises
    ------
    NotUnderstoodError
        The network is none that is understood.
    """
    document = loads(text, source=str(path))
    if document.root.get("run_mode", "train") not in ("train", "finetune"):
        return []
    try:
        return _illegal(path, text, devices)
    except PlannerError as error:
        place = re.match(rf"{re.escape(str(path))}(?:, line ([0-9]+))?: ", str(error))
        why = str(error)[place.end() :] if place else str(error)
        if any(sign in why for sign in _NOT_HERE):
            return []  # known when it runs
        if any(sign in why for sign in _NOT_UNDERSTOOD):
            raise NotUnderstoodError(f"{path} is not understood: {why}") from None
        line = int(place[1]) if place and place[1] else 1
        return [Finding(file=str(path), line=line, rule="layout", why=why, fix="See the message.")]


#: Parts of messages about what a file leaves to others.
_NOT_HERE: Final = ("no config.json is found", "number of devices")
#: And about networks that are not read.
_NOT_UNDERSTOOD: Final = ("the legacy dialect is read for", "MindFormers trains")


def _illegal(path: Path, text: str, devices: int | None) -> list[Finding]:
    """Rules that the strategy of a file breaks on its machine; those of a node only where it says how large one is."""
    try:
        found = read_text_as(path, text, devices)
    except PlannerError as error:
        if path.suffix == ".sh" or text.startswith("#!"):
            return []  # said by the check of scripts
        raise error from None
    profile = clusters.hardware(clusters.machine_of(found.per_node))
    cluster = Cluster(hardware=profile, devices=found.strategy.devices)
    context = Context(model=found.model, workload=found.workload, cluster=cluster, tp_across_nodes=not found.per_node)
    broken = violations(context, found.strategy)
    return [Finding(file=str(path), line=1, rule=one.code, why=one.message, fix="See the message.") for one in broken]


def _native(path: Path, text: str, devices: int | None) -> list[Finding]:
    """Faults of the dictionary of an emitted MindSpore script."""
    if not text.startswith(_NATIVE_START) or "\nPLAN = {" not in text:
        return []
    try:
        strategy = read_text_as(path, text).strategy
    except PlannerError as error:
        why = str(error).removeprefix(f"{path}: ")
        return [Finding(file=str(path), line=1, rule="layout", why=why, fix="See the message.")]
    known = devices or workers_beside(path)
    found = []
    if known is not None and known != strategy.devices:
        why = f"the script is for {strategy.devices} devices, but {known} are started."
        found.append(("device-product", why, f"Make the product of dp, tp and pp {known}."))
    if strategy.pp > 1 and strategy.micro_batches < strategy.pp:
        why = f"{strategy.micro_batches} micro-batches do not fill {strategy.pp} stages; MindSpore refuses that."
        found.append(("micro-batches-below-stages", why, f"Use at least {strategy.pp}."))
    if any(count < 1 for row in strategy.layers for count in row):
        found.append(("empty-stage", "a stage or chunk holds no layer.", "Move a layer there."))
    return [Finding(file=str(path), line=1, rule=rule, why=why, fix=fix) for rule, why, fix in found]


def _against_plan(path: Path, plan: Plan) -> list[Finding]:
    """The file beside a plan.json says the same as the plan."""
    try:
        result = read(path, plan.devices)
    except PlannerError:
        return []  # the file's own rules have said what is wrong with it
    changed = [
        name
        for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "micro_batches", "layers")
        if getattr(result.strategy, name) != getattr(plan.strategy, name)
    ]
    if not changed:
        return []
    values = ", ".join(
        f"{name} {getattr(result.strategy, name)} (plan: {getattr(plan.strategy, name)})" for name in changed
    )
    return [
        Finding(
            file=str(path),
            line=1,
            rule="plan-differs",
            why=f"the file differs from plan.json beside it: {values}.",
            fix="Emit the plan again, or remove plan.json.",
        )
    ]
