"""One calibration from beginning to end: find the device, measure or import, fit, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planner.calibrate.device import DeviceFit, fit_device
from planner.calibrate.device_file import Origin, calibration_text, fallen_back, run_on
from planner.calibrate.imported import read_points, usable
from planner.calibrate.own_profile import profile_text
from planner.children.files import write_atomically
from planner.cluster import load
from planner.cluster.records import Calibration, Hardware
from planner.errors import CalibrationError, ProfileError
from planner.measure import raw, run, sweep
from planner.measure.raw import Facts, Row
from planner.measure.run import Bench, Ranks
from planner.observe.points import Point

#: Share of the time for what one process measures, where several ranks are measured, too.
OPERATORS_SHARE: Final = 0.65
#: Counted seconds of one task, and what it costs with its compilation on a CPU; sets how deep a sweep can be.
BUDGET_S: Final = 0.4
SHORT_BUDGET_S: Final = 0.2
#: Runs of fewer minutes take the short budget, so that more shapes fit.
SHORT_MINUTES: Final = 5.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure, and where to write.

    Attributes
    ----------
    device : {"auto", "CPU", "Ascend"}
    hardware : str or None
        Profile the constants are shares of; default: the device's own.
    ranks : int or None
        Processes whose collectives are measured; None: every card of the machine (the CPU: two).
    hosts : tuple of str
        Nodes of the run, the first one first; empty: this machine alone.
    node_rank, port : int
        Place of this machine among them, and the scheduler's port (0: a free one).
    minutes : float
        Time for everything.
    out : Path
        The calibration; its raw CSV stands beside it.
    sources : tuple of Path
        Import these instead of measuring.
    shapes : Shapes or None
        Layers to measure; default: those usual on the device.
    force : bool
        Replace the calibration and its raw CSV.
    """

    device: str = "auto"
    hardware: str | None = None
    ranks: int | None = None
    hosts: tuple[str, ...] = ()
    node_rank: int = 0
    port: int = 0
    minutes: float = 10.0
    out: Path = Path("mine.yaml")
    sources: tuple[Path, ...] = ()
    shapes: sweep.Shapes | None = None
    python: Path | None = None
    force: bool = False

    @property
    def csv(self) -> Path:
        """Raw measurements."""
        return self.out.with_suffix(".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A finished calibration.

    Attributes
    ----------
    fit : DeviceFit
    hardware : Hardware
    base : Calibration
        What holds where nothing was measured.
    unsupported : mapping of str to str
        Operations the device does not have, and its words.
    files : tuple of Path
        Written.
    remarks : tuple of str
        What went wrong without ending it.
    """

    fit: DeviceFit
    hardware: Hardware
    base: Calibration
    origin: Origin
    files: tuple[Path, ...]
    remarks: tuple[str, ...]

    @property
    def fallbacks(self) -> dict[str, str]:
        """Constants that were not measured, and what holds for them."""
        return fallen_back(self.fit, self.base)


def calibrate(settings: Settings, date: str, progress: Progress | None = None) -> Calibrated | None:
    """Measure or import, fit, write.

    Returns
    -------
    Calibrated or None
        None on the second and further machines of a run over several: the first one has the results.

    Raises
    ------
    CalibrationError
        Files exist or cannot be written, measurements of another device, numbers that cannot be measurements.
    ValidationError
        No MindSpore, or the benchmark program died.
    """
    check_files(settings)
    if settings.sources:
        return _imported(settings, date)
    remarks: list[str] = []
    rows = _measure(settings, progress or (lambda text, done, total: None), remarks)
    if settings.node_rank:
        return None
    if not rows:
        raise CalibrationError(f"nothing was measured in {settings.minutes:g} minutes; give it more with --minutes.")
    facts = rows[-1].facts
    points = raw.points(rows, settings.csv.name)
    hardware, made = _hardware_or_own(settings, facts, points)
    origin = Origin(
        name=settings.out.stem, date=date, device=facts.device_name or facts.device_target,
        software=f"MindSpore {facts.mindspore}", sources=(settings.csv.name,), unsupported=raw.unsupported(rows),
        notes=tuple(remarks),
    )  # fmt: skip
    return _written(settings, points, hardware, origin, (settings.csv, *made), tuple(remarks))


def check_files(settings: Settings) -> None:
    """Refuse, before anything is measured, what could not be written."""
    out = settings.out
    if out.suffix not in (".yaml", ".yml"):
        raise CalibrationError(f"--out {out} must end in .yaml.")
    if out.exists() and not settings.force:
        raise CalibrationError(f"{out} is there already; replace it with --force, or choose another --out.")
    folder = out.parent
    if folder.exists() and not folder.is_dir():
        raise CalibrationError(f"--out {out}: {folder} is not a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{out.name}.{os.getpid()}"
        probe.touch()
        probe.unlink()
        if settings.force and not settings.sources:
            settings.csv.unlink(missing_ok=True)
    except OSError as error:
        raise CalibrationError(f"--out {out} cannot be written: {error.strerror or error}.") from None


def _imported(settings: Settings, date: str) -> Calibrated:
    points, found, unsupported = read_points(settings.sources)
    if not points:
        raise CalibrationError(
            f"{', '.join(map(str, settings.sources))} holds no time of an operation; legal: raw CSVs of planner "
            "calibrate, tables of m, k, n and time, and what planner reads of runs (docs/calibrate.md)."
        )
    if found is None and settings.hardware is None:
        raise CalibrationError("the imported files do not name their device; say it with --hardware NAME.")
    hardware = _hardware(settings, found)
    origin = Origin(
        name=settings.out.stem, date=date, device=found.device_name if found else hardware.name,
        software=f"MindSpore {found.mindspore}" if found else "as the files say",
        sources=tuple(str(path.name) for path in settings.sources), unsupported=unsupported,
    )  # fmt: skip
    kept, remarks = usable(points, hardware)
    return _written(settings, kept, hardware, origin, (), remarks)


def _written(
    settings: Settings, points: Sequence[Point], hardware: Hardware, origin: Origin, files: tuple[Path, ...],
    remarks: tuple[str, ...],
) -> Calibrated:  # fmt: skip
    base = load.calibration(hardware, run_on(hardware)[0])
    fit = fit_device(points, hardware, base)
    try:
        write_atomically(settings.out, calibration_text(fit, hardware, base, origin).encode())
    except OSError as error:
        raise CalibrationError(f"{settings.out} cannot be written: {error.strerror or error}.") from None
    return Calibrated(
        fit=fit, hardware=hardware, base=base, origin=origin, files=(settings.out, *files), remarks=remarks
    )


def _hardware(settings: Settings, facts: Facts | None) -> Hardware:
    """The named profile, else the one of the device; a measured device must be the profile's."""
    if facts is None:
        return load.hardware(settings.hardware or load.DEFAULT_HARDWARE)
    own = "cpu" if facts.device_target == "CPU" else facts.device_name
    if settings.hardware is None:
        try:
            return load.hardware(own)
        except ProfileError:
            raise CalibrationError(
                f"no profile is named '{own}', what this device calls itself; name the nearest with --hardware "
                f"({', '.join(load.hardware_names())}), or a profile file of your own."
            ) from None
    named = load.hardware(settings.hardware)
    if (named.device.vendor == "cpu") != (facts.device_target == "CPU"):
        raise CalibrationError(
            f"the measurements are of '{own}', and --hardware {settings.hardware} is no such device."
        )
    return named


def _hardware_or_own(settings: Settings, facts: Facts, points: Sequence[Point]) -> tuple[Hardware, tuple[Path, ...]]:
    """The device's profile; where none is named so, one made from the points and written beside the calibration."""
    if settings.hardware is not None or facts.device_target == "CPU":
        return _hardware(settings, facts), ()
    try:
        return load.hardware(facts.device_name), ()
    except ProfileError:
        path = settings.out.with_name(f"{settings.out.stem}-hardware.yaml")
        write_atomically(path, profile_text(points, facts).encode())
        return load.hardware(path), (path,)


def _measure(settings: Settings, progress: Progress, remarks: list[str]) -> tuple[Row, ...]:
    device = run.find_device(settings.device)
    python = run.find_python(settings.python)
    budget = SHORT_BUDGET_S if settings.minutes < SHORT_MINUTES else BUDGET_S
    bench = Bench(python=python, device=device, csv=settings.csv, budget_s=budget, progress=progress)
    ranks = _ranks(settings, device)
    seconds = 60.0 * settings.minutes
    rows: tuple[Row, ...] = ()
    if settings.node_rank == 0:
        tasks = sweep.operator_tasks(settings.shapes or sweep.shapes_for(device), device)
        rows = run.measure(bench, tasks, seconds * (OPERATORS_SHARE if ranks else 1.0))
    if ranks is None:
        remarks.append("one process: collectives were not measured")
        return rows
    tasks = sweep.collective_tasks(device, ranks.ranks, ranks.nodes)
    return run.measure(bench, tasks, seconds * (1.0 - OPERATORS_SHARE), ranks)


def _ranks(settings: Settings, device: str) -> Ranks | None:
    """Processes of the second half; None: one process alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cards = min(2, cores) if device == "CPU" else len(list(Path("/dev").glob("davinci[0-9]*")))
    nodes = max(1, len(settings.hosts))
    ranks = settings.ranks if settings.ranks is not None else cards * nodes
    if ranks % nodes:
        raise CalibrationError(f"--ranks {ranks} do not spread over {nodes} hosts; legal: multiples of {nodes}.")
    if not 0 <= settings.node_rank < nodes:
        raise CalibrationError(f"--node-rank {settings.node_rank}: there are {nodes} hosts, 0 to {nodes - 1}.")
    if nodes > 1 and not settings.port:
        raise CalibrationError("several --hosts need a --port that all of them use, e.g. --port 8118.")
    if settings.port and settings.node_rank == 0:
        run.check_port(settings.port)
    if ranks < 2:
        return None
    return Ranks(ranks=ranks, hosts=settings.hosts, node_rank=settings.node_rank, port=settings.port)
