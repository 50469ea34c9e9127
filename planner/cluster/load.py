"""Hardware profiles and calibrations from disk.

Both ship with the package: as ``planner/_data`` in an installed wheel, beside the package in a source tree.  A user's
own profile or calibration works by path.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from planner import frameworks
from planner.cluster.records import Calibration, Hardware
from planner.cluster.schema import calibration_from, hardware_from
from planner.errors import CalibrationError, PlannerError, ProfileError

#: Profile used when none is named: Atlas 800T A2.
DEFAULT_HARDWARE: Final = "910B3"

#: Files of more bytes than this are not profiles.
MAX_FILE_BYTES: Final = 2**20

_PRIORS: Final = {"ascend": "priors-ascend", "nvidia": "priors-gpu", "cpu": "priors-cpu"}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def hardware(name_or_path: str | Path = DEFAULT_HARDWARE) -> Hardware:
    """Hardware by profile name, product name or path of a profile.

    Parameters
    ----------
    name_or_path : str or Path
        A name or alias in any spelling (``910B3``, ``atlas-800t-a2``, ``A3``), or a path: anything that ends in
        ``.yaml`` or ``.yml``, or holds a path separator and is no alias.

    Raises
    ------
    ProfileError
        Unknown name (lists the nearest), unreadable or wrong file (names file, key and rule).

    Examples
    --------
    >>> hardware("Atlas 800T A2").name, hardware("a3").devices_per_node
    ('910B3', 16)
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")):
        return _own(text)
    stem = _plain(text)
    for path in _files("hardware_profiles"):
        if _plain(path.stem) == stem:
            return _shipped(path)
    for path in _files("hardware_profiles"):
        if stem in map(_plain, _names(path)):
            return _shipped(path)
    if "/" in text or "\\" in text:
        return _own(text)
    raise ProfileError(_unknown(text))


def machine_of(per_node: int) -> str:
    """Name of the profile for a script that starts so many processes a node; the usual one where any holds them.

    >>> machine_of(8), machine_of(16), machine_of(12)
    ('910B3', '910C', '910B3')
    """
    usual = hardware(DEFAULT_HARDWARE)
    if per_node <= usual.devices_per_node:
        return usual.name
    known = (hardware(name) for name in hardware_names())
    same = (p.name for p in known if p.device.vendor == usual.device.vendor and p.devices_per_node == per_node)
    return next(same, usual.name)


def hardware_names() -> tuple[str, ...]:
    """Names of the shipped profiles, Ascend first."""
    return tuple(_names(path)[0] for path in _files("hardware_profiles"))


def calibration(hardware: Hardware, framework: str, generation: str | None = None) -> Calibration:
    """Constants for a device and a framework.

    Among the calibration files that list this device and this framework the newest generation is taken, or the named
    one.  ``mindformers-legacy`` and the like fall back on ``mindformers``.  Constants that the file leaves out come
    from the priors of the vendor, and without any file the priors stand alone (generation ``prior``).

    Parameters
    ----------
    hardware : Hardware
    framework : str
        As in `planner.model.records.Workload`.
    generation : str, optional
        A generation of the framework; default: the newest.

    Raises
    ------
    CalibrationError
        No file and no priors, a generation that does not exist (lists the legal ones), a file that cannot be read.
    SpecError
        A framework that no file lists and the planner does not know.
    """
    found = _matching(hardware, framework) or _matching(hardware, frameworks.of(framework).family)
    if generation is not None and generation != "prior":
        named = [record for record in found if record.generation.lower() == generation.lower()]
        if not named:
            legal = ", ".join([*dict.fromkeys(record.generation for record in found), "prior"])
            raise CalibrationError(
                f"no calibration of generation '{generation}' for {hardware.name} with {framework}; legal: {legal}."
            )
        return _completed(named[-1], hardware, framework)
    if found and generation is None:
        return _completed(found[-1], hardware, framework)
    priors = _priors(hardware)
    if priors is None:
        raise CalibrationError(
            f"no calibration for {hardware.name} with {framework}, and no priors for {hardware.device.vendor} devices."
        )
    return replace(priors, device=hardware.name, framework=framework, generation="prior")


def generations(hardware: Hardware, framework: str) -> tuple[str, ...]:
    """Generations calibrated for a device and a framework, oldest first."""
    found = _matching(hardware, framework) or _matching(hardware, frameworks.of(framework).family)
    return tuple(record.generation for record in found)


def calibration_file(path: str | Path, hardware: Hardware, framework: str) -> Calibration:
    """Constants of a user's own file; what it leaves out comes from the shipped calibration, else from the priors.

    Raises
    ------
    CalibrationError
        The file cannot be read, or lists neither this device nor this framework.
    """
    data = _read(Path(path), CalibrationError, "calibration")
    record, devices, listed = calibration_from(data, str(path))
    if not _lists(devices, hardware):
        raise CalibrationError(f"calibration {path} is for {', '.join(devices)}, not for {hardware.name}.")
    if not {framework, frameworks.of(framework).family} & set(listed):
        raise CalibrationError(f"calibration {path} is for {', '.join(listed)}, not for {framework}.")
    shipped = calibration(hardware, framework)
    constants = {**shipped.constants, **record.constants}
    return replace(record, device=hardware.name, framework=framework, constants=constants)


def data_directory(name: str) -> Path:
    """Folder of shipped files, in an installed wheel or a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def _files(folder: str) -> tuple[Path, ...]:
    return tuple(sorted(data_directory(folder).glob("*.yaml"), key=lambda path: path.stem))


def _own(path: str) -> Hardware:
    return hardware_from(_read(Path(path), ProfileError, "hardware profile"), path)


@lru_cache(maxsize=64)
def _shipped(path: Path) -> Hardware:
    return hardware_from(_read(path, ProfileError, "hardware profile"), path.name)


@lru_cache(maxsize=64)
def _names(path: Path) -> tuple[str, ...]:
    """Name and aliases, from the head of a shipped file (they stand before ``vendor:``), without parsing the rest."""
    head = yaml.load(path.read_text(encoding="utf-8").partition("\nvendor:")[0], Loader=_Loader)  # noqa: S506
    return (head["name"], *head.get("aliases", ()))


@lru_cache(maxsize=64)
def _calibration(path: Path) -> tuple[Calibration, tuple[str, ...], tuple[str, ...]]:
    return calibration_from(_read(path, CalibrationError, "calibration"), path.name)


def _matching(hardware: Hardware, framework: str) -> list[Calibration]:
    """Calibrations of this device and framework, oldest first."""
    found = [
        record
        for path in _files("calibration")
        if not path.stem.startswith("priors-")
        for record, devices, listed in [_calibration(path)]
        if framework in listed and _lists(devices, hardware)
    ]
    return sorted(found, key=lambda record: (record.date, _natural(record.generation)))


def _priors(hardware: Hardware) -> Calibration | None:
    path = data_directory("calibration") / f"{_PRIORS[hardware.device.vendor]}.yaml"
    return _calibration(path)[0] if path.is_file() else None


def _completed(record: Calibration, hardware: Hardware, framework: str) -> Calibration:
    priors = _priors(hardware)
    constants = {**(priors.constants if priors else {}), **record.constants}
    return replace(record, device=hardware.name, framework=framework, constants=constants)


def _lists(devices: tuple[str, ...], hardware: Hardware) -> bool:
    return not {_plain(d) for d in devices}.isdisjoint({_plain(hardware.name), *map(_plain, hardware.aliases)})


def _read(path: Path, error: type[PlannerError], what: str) -> Any:
    """Parsed YAML of a file, or one clear complaint."""
    try:
        if path.is_dir():
            raise error(f"{what} {path} is a folder; name a .yaml file.")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise error(f"{what} {path} has {path.stat().st_size} bytes; legal: at most {MAX_FILE_BYTES}.")
        text = path.read_text(encoding="utf-8-sig")
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
        twice = next(_duplicates(yaml.compose(text, Loader=_Loader)), None)
    except OSError as problem:
        raise error(f"{what} {path} cannot be read: {problem.strerror or problem}.") from None
    except UnicodeDecodeError as problem:
        raise error(f"{what} {path} is not UTF-8 text (byte {problem.start}); save it as UTF-8.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as problem:
        raise error(f"{what} {path} is not readable YAML: {_yaml_problem(problem)}.") from None
    if twice is not None:
        raise error(f"{what} {path}: key '{twice.value}' stands twice, line {twice.start_mark.line + 1}.")
    if data is None:
        raise error(f"{what} {path} is empty.")
    return data


def _duplicates(node: Any, depth: int = 0) -> Iterator[Any]:
    """Keys that stand twice in one mapping; YAML itself would silently keep the last."""
    if not isinstance(node, yaml.MappingNode) or depth > 4:
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            yield key
        seen.add(str(key.value))
        yield from _duplicates(value, depth + 1)


def _yaml_problem(problem: Exception) -> str:
    mark = getattr(problem, "problem_mark", None)
    words = getattr(problem, "problem", None) or str(problem).partition("\n")[0]
    return f"line {mark.line + 1}: {words}" if mark else words


def _unknown(text: str) -> str:
    names = {name: _names(path) for path in _files("hardware_profiles") for name in [_names(path)[0]]}
    plain = {_plain(alias): name for name, aliases in names.items() for alias in aliases}
    within = [name for key, name in plain.items() if len(_plain(text)) > 2 and key.startswith(_plain(text))]
    close = within or [plain[key] for key in difflib.get_close_matches(_plain(text), plain, 3, 0.6)]
    hint = f" Nearest: {', '.join(dict.fromkeys(close))}." if close else ""
    return f"hardware '{text}' is not known.{hint} Legal: {', '.join(names)}, or the path of a .yaml profile."


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts release 10 behind release 9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text))
