"""What there is to run on: the kind of device, how many, their memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from planner.cluster import load as clusters
from planner.cluster.records import Hardware
from planner.errors import SpecError, ValidationError
from planner.units import KIB

DeviceKind = Literal["CPU", "Ascend"]
DEVICES: Final = ("auto", "CPU", "Ascend")
CPU_PROFILE: Final = "cpu"

#: Share of the free memory of a machine that its processes may fill together; the rest stays for the interpreters.
_CPU_SHARE: Final = 0.7
#: Memory of an interpreter that has imported MindSpore, and of its thread pools: 398 MB measured at import.
_INTERPRETER_BYTES: Final = 512 * KIB * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cards a validation may use.

    Attributes
    ----------
    device : {"CPU", "Ascend"}
    cards : int
        Cards there are; on the CPU processes, one for each core.
    hardware : Hardware
        Profile by which the shrunk plan is predicted.
    limit_bytes : float
        Memory that one card may use [bytes].
    """

    device: DeviceKind
    cards: int
    hardware: Hardware
    limit_bytes: float


def find_machine(planned: Hardware, device: str = "auto", cards: int | None = None, *, most: int = 1) -> Machine:
    """The cards of this machine.

    Parameters
    ----------
    planned : Hardware
        Profile of the plan; an Ascend machine is taken to be of this kind.
    device : {"auto", "CPU", "Ascend"}
        ``auto``: Ascend where the driver shows cards, else the CPU.
    cards : int, optional
        Use so many; default: as many as there are, at most ``most``.
    most : int
        Devices of the plan.

    Raises
    ------
    SpecError
        Unknown device, or more cards asked for than there are.
    ValidationError
        Ascend without cards.
    """
    if device not in DEVICES:
        raise SpecError(f"--device '{device}' is not known; legal: {', '.join(DEVICES)}.")
    npus = ascend_cards()
    if device == "Ascend" and not npus:
        raise ValidationError("--device Ascend: the driver shows no card (/dev/davinci0); use --device CPU.")
    kind: DeviceKind = "Ascend" if npus and device != "CPU" else "CPU"
    there = npus if kind == "Ascend" else os.cpu_count() or 1
    if cards is not None and cards > there:
        what = "cards" if kind == "Ascend" else "cores, and more processes than cores measure nothing"
        raise SpecError(f"--cards {cards}: this machine has {there} {what}.")
    used = cards or max(1, min(there, most))
    if kind == "Ascend":
        return Machine(device=kind, cards=used, hardware=planned, limit_bytes=float(planned.device.usable_bytes))
    hardware = planned if planned.device.vendor == "cpu" else clusters.hardware(CPU_PROFILE)
    limit = _CPU_SHARE * free_bytes() / used - _INTERPRETER_BYTES
    return Machine(device=kind, cards=used, hardware=hardware, limit_bytes=max(limit, 0.0))


def ascend_cards(devices: Path = Path("/dev")) -> int:
    """Ascend cards that the driver shows."""
    return sum(1 for path in devices.glob("davinci*") if re.fullmatch(r"davinci\d+", path.name))


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Memory that processes can still take [bytes]; the physical memory where Linux does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return float(found[1]) * KIB
    return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
