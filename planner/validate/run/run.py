"""`validate`: a plan shrunk to this machine, predicted, trained for a few steps, compared."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from planner.children.process import Children, ending_by_exception
from planner.cluster import load as clusters
from planner.cluster.records import Calibration, Cluster, Hardware
from planner.cost.estimate import Estimate, evaluate
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError, ValidationError
from planner.model.records import Model, Workload
from planner.plan import Plan
from planner.validate.compared import Compared
from planner.validate.compiler.framework import find_mindspore
from planner.validate.run.compare import compare, verdict
from planner.validate.run.launch import RunSettings, launch
from planner.validate.run.machine import Machine, find_machine
from planner.validate.run.observe import DROPPED, Observed, observe
from planner.validate.run.shrink import Shrunk, shrink

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan to be validated: what any reader of plans gives.

    Attributes
    ----------
    name : str
        Where it comes from.
    step_s : float or None
        What its own device is predicted to take [s].
    """

    name: str
    model: Model
    workload: Workload
    strategy: Strategy
    hardware: Hardware
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to validate.

    Attributes
    ----------
    device : {"auto", "CPU", "Ascend"}
    cards, layers_per_stage : int, optional
        Fewer than there are, or than fit.
    python : Path, optional
        Interpreter that has MindSpore.
    calibration : Path, optional
        Calibration file of the machine that runs.
    keep : Path, optional
        Folder that keeps scripts, logs and profiles.
    run : RunSettings
    """

    device: str = "auto"
    cards: int | None = None
    layers_per_stage: int | None = None
    python: Path | None = None
    calibration: Path | None = None
    keep: Path | None = None
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        if self.run.steps <= DROPPED:
            raise SpecError(f"--steps {self.run.steps}: the first {DROPPED} are dropped; legal: from {DROPPED + 1}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One plan validated.

    Attributes
    ----------
    planned : Planned
    machine : Machine
    shrunk : Shrunk
    calibration : Calibration
        Constants of the prediction.
    estimate : Estimate
        Of what was run, on the machine that ran it.
    observed : Observed
    rows : tuple of Compared
    verdict : str
    mindspore : str
        Its version.
    seconds : float
        Wall time of the run [s].
    """

    planned: Planned
    machine: Machine
    shrunk: Shrunk
    calibration: Calibration
    estimate: Estimate
    observed: Observed
    rows: tuple[Compared, ...]
    verdict: str
    mindspore: str
    seconds: float

    @property
    def ratio(self) -> float:
        """Observed over predicted step time."""
        return self.observed.step_s / (self.estimate.step_s or self.observed.step_s)

    @property
    def scaled_s(self) -> float | None:
        """Step time of the whole plan were its prediction as wrong as that of what was run [s].

        None on another device than the plan's: the CPU says nothing of an Ascend card's speed.
        """
        if self.planned.step_s is None or self.machine.hardware.name != self.planned.hardware.name:
            return None
        return self.planned.step_s * self.ratio


def validate(plans: Sequence[Planned], settings: Settings, progress: Progress | None = None) -> tuple[Validation, ...]:
    """Validate plans one after the other, in the order given.

    Raises
    ------
    ValidationError
        No MindSpore, nothing fits, or a run failed (names the rank and its last error).
    EmitError
        The MindSpore script cannot hold a plan.
    """
    progress = progress or _silent
    python, version = find_mindspore(settings.python)
    with ending_by_exception(), Children() as children:
        return tuple(_one(planned, settings, python, version, children, progress) for planned in plans)


def _silent(_: str) -> None:
    return None


def _one(
    planned: Planned, settings: Settings, python: Path, version: str, children: Children, progress: Progress
) -> Validation:
    machine = find_machine(planned.hardware, settings.device, settings.cards, most=planned.strategy.devices)
    shrunk = shrink(
        planned.model, planned.workload, planned.strategy, machine, layers_per_stage=settings.layers_per_stage
    )
    constants = calibration_of(machine, shrunk.workload.framework, settings.calibration)
    estimate = predict(shrunk, machine, constants)
    ranks = shrunk.strategy.devices
    progress(f"{planned.name}: training {settings.run.steps} steps on {ranks} x {machine.device}")
    with _folder(settings.keep, planned.name) as folder:
        plan = _plan(shrunk, machine)
        ran = launch(plan, machine.device, python, folder, settings.run, children)
        observed = observe(ran)
    rows = compare(estimate, observed)
    return Validation(
        planned=planned,
        machine=machine,
        shrunk=shrunk,
        calibration=constants,
        estimate=estimate,
        observed=observed,
        rows=rows,
        verdict=verdict(rows),
        mindspore=version,
        seconds=ran.seconds,
    )


def calibration_of(machine: Machine, framework: str, path: Path | None) -> Calibration:
    """Constants for the machine: a file of the user's own, or the shipped ones."""
    if path is None:
        return clusters.calibration(machine.hardware, framework)
    return clusters.calibration_file(path, machine.hardware, framework)


def predict(shrunk: Shrunk, machine: Machine, constants: Calibration) -> Estimate:
    """Estimate of what is run on the machine that runs it."""
    return evaluate(
        shrunk.model,
        shrunk.workload,
        Cluster(hardware=machine.hardware, devices=shrunk.strategy.devices),
        constants,
        Strategies.of([shrunk.strategy]),
        limit_bytes=max(machine.limit_bytes, 1.0),
    ).row(0)


def _plan(shrunk: Shrunk, machine: Machine) -> Plan:
    return Plan(
        model=shrunk.model,
        workload=shrunk.workload,
        hardware=machine.hardware.name,
        devices=shrunk.strategy.devices,
        strategy=shrunk.strategy,
        devices_per_node=max(machine.cards, 1),
        memory_limit_bytes=max(int(machine.limit_bytes), 1),
    )


@contextmanager
def _folder(keep: Path | None, name: str) -> Iterator[Path]:
    """Folder of one run: kept where asked for, else gone afterwards."""
    try:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="planner-validate-", dir=keep))
    except OSError as error:
        where = keep or tempfile.gettempdir()
        raise ValidationError(
            f"{where} cannot be written: {error.strerror or error}; name another with --keep, or set TMPDIR."
        ) from error
    try:
        yield folder
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
