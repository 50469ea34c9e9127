"""Hardware profiles and calibration files as mappings: checked, converted to inside units, made records.

A profile names every number as ``{value, unit, kind, source}``.  This module knows the legal keys and units; it does
no I/O and knows no path beyond the text used in messages.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from planner.cluster.records import Calibration, Constant, Device, Fabric, Hardware
from planner.cluster.schema_tables import tables_from
from planner.cluster.tables import NOTHING
from planner.errors import CalibrationError, PlannerError, ProfileError
from planner.units import GIB, KIB, MIB, TIB

KINDS: Final = ("datasheet", "measured", "derived")
CONSTANT_KINDS: Final = ("datasheet", "measured", "calibrated", "prior")
VENDORS: Final = ("ascend", "nvidia", "cpu")
FABRICS: Final = ("mesh", "quads", "switch")

#: Legal units of each quantity and their size in inside units (FLOP/s, bytes, bytes/s, s, devices).
UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "compute": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "size": {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB},
    "bandwidth": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gbit/s": 1.25e8},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "count": {"devices": 1},
}

#: Keys of each section and the quantity each holds; those of ``OPTIONAL`` may be left out.
SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "device": {
        "peak_bfloat16": "compute",
        "peak_float16": "compute",
        "peak_float32": "compute",
        "vector_float16": "compute",
        "memory": "size",
        "memory_visible": "size",
        "memory_usable": "size",
        "memory_bandwidth": "bandwidth",
        "host_bandwidth": "bandwidth",
    },
    "node": {"devices": "count", "link": "bandwidth", "latency": "time", "quad": "count", "bridge": "bandwidth"},
    "superpod": {"devices": "count", "link": "bandwidth", "latency": "time"},
    "network": {"port": "bandwidth", "latency": "time"},
}
OPTIONAL: Final = frozenset({"peak_bfloat16", "peak_float32", "quad", "bridge"})
_TOP: Final = ("name", "aliases", "vendor", "description", *SECTIONS)
_FACT: Final = ("value", "unit", "kind", "source")
_CALIBRATION: Final = (
    "name", "device", "framework", "generation", "date", "constants", "residual_log_p10", "residual_log_p90", "rows",
    "sources", "measured",
)  # fmt: skip
_CONSTANT: Final = ("value", "low", "high", "kind", "source")


@dataclass(slots=True)
class _Reader:
    """Checked access to one file's mapping; every complaint names the file."""

    file: str
    error: type[PlannerError]
    what: str
    sources: dict[str, str] = field(default_factory=dict)

    def fail(self, message: str) -> NoReturn:
        raise self.error(f"{self.what} {self.file}: {message}")

    def mapping(self, value: Any, key: str, legal: Iterable[str]) -> Mapping[str, Any]:
        """A mapping with no key outside ``legal``."""
        where = f"'{key}'" if key else "the file"
        if not isinstance(value, Mapping):
            self.fail(f"{where} must be a mapping of keys to values, not {_shown(value)}.")
        names = tuple(legal)
        for name in value:
            if name not in names:
                path = f"{key}.{name}" if key else str(name)
                self.fail(f"unknown key '{path}'{_nearest(str(name), names)}; legal in {where}: {', '.join(names)}.")
        return value

    def need(self, mapping: Mapping[str, Any], key: str, path: str, form: str) -> Any:
        """The value of a key that must stand."""
        if key not in mapping:
            self.fail(f"key '{path}' is missing; write {form}.")
        return mapping[key]

    def text(self, mapping: Mapping[str, Any], key: str, path: str = "") -> str:
        """A non-empty text."""
        value = self.need(mapping, key, path or key, f"{key}: text")
        if not isinstance(value, str) or not value.strip():
            self.fail(f"'{path or key}' must be a text, not {_shown(value)}; put it in quotes.")
        return value

    def one_of(self, mapping: Mapping[str, Any], key: str, path: str, legal: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self.need(mapping, key, path, f"{key}: one of {', '.join(legal)}")
        if value not in legal:
            self.fail(f"'{path}' is {_shown(value)}{_nearest(str(value), legal)}; legal: {', '.join(legal)}.")
        return str(value)

    def number(self, mapping: Mapping[str, Any], key: str, path: str) -> float:
        """A finite number."""
        value = self.need(mapping, key, path, f"{key}: a number")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.fail(f"'{path}' must be a number without unit, not {_shown(value)}.")
        return float(value)

    def fact(self, section: Mapping[str, Any], key: str, path: str, quantity: str) -> float:
        """A quantity with unit, kind and source, in inside units; notes its source."""
        units = UNITS[quantity]
        form = f"{key}: {{value: ..., unit: {'|'.join(units)}, kind: {'|'.join(KINDS)}, source: ...}}"
        entry = self.mapping(self.need(section, key, path, form), path, _FACT)
        value = self.number(entry, "value", f"{path}.value")
        unit = self.need(entry, "unit", f"{path}.unit", f"unit: one of {', '.join(units)}")
        if unit not in tuple(units):
            hint = " (GB is ambiguous for memory)" if quantity == "size" and unit in ("GB", "MB", "TB") else ""
            self.fail(f"'{path}.unit' is {_shown(unit)}{hint}; legal for a {quantity}: {', '.join(units)}.")
        kind = self.one_of(entry, "kind", f"{path}.kind", KINDS)
        self.sources[path] = f"{kind}: {self.text(entry, 'source', f'{path}.source')}"
        if value <= 0:
            self.fail(f"'{path}.value' is {value:g}; it must be above 0.")
        return value * units[unit]


def hardware_from(data: Any, file: str) -> Hardware:
    """Hardware of a parsed profile.

    Parameters
    ----------
    data : object
        What the YAML parser returned.
    file : str
        Name used in messages.

    Raises
    ------
    ProfileError
        Unknown or missing key, wrong unit, impossible number; names file, key, rule and the nearest legal key.
    """
    reader = _Reader(file, ProfileError, "hardware profile")
    top = reader.mapping(data, "", _TOP)
    facts = {name: _section(reader, top, name) for name in SECTIONS if name in top or name != "superpod"}
    fabric = reader.one_of(top["node"], "fabric", "node.fabric", FABRICS)
    _check_sizes(reader, facts, fabric)
    hardware_name = reader.text(top, "name")
    return Hardware(
        name=hardware_name,
        aliases=_texts(reader, top.get("aliases", []), "aliases"),
        description=reader.text(top, "description"),
        device=_device(facts["device"], hardware_name, reader.one_of(top, "vendor", "vendor", VENDORS)),
        devices_per_node=int(facts["node"]["devices"]),
        node=_fabric(facts["node"], fabric),
        superpod=_fabric(facts["superpod"], "switch") if "superpod" in facts else None,
        nic_bytes_per_s=facts["network"]["port"],
        nic_latency_s=facts["network"]["latency"],
        sources=reader.sources,
    )


def calibration_from(data: Any, file: str) -> tuple[Calibration, tuple[str, ...], tuple[str, ...]]:
    """Calibration of a parsed file, with the devices and frameworks it lists.

    The record's ``device`` and ``framework`` are the first ones listed.

    Raises
    ------
    CalibrationError
        Unknown or missing key, a number outside its own interval; names file, key and rule.
    """
    reader = _Reader(file, CalibrationError, "calibration")
    top = reader.mapping(data, "", _CALIBRATION)
    devices = _texts(reader, reader.need(top, "device", "device", "device: [profile names]"), "device")
    frameworks = _texts(reader, reader.need(top, "framework", "framework", "framework: text"), "framework")
    entries = reader.need(top, "constants", "constants", "constants: {name: {value, low, high, kind, source}}")
    if not isinstance(entries, Mapping):
        reader.fail(f"'constants' must be a mapping, not {_shown(entries)}.")
    rows = reader.number(top, "rows", "rows")
    if rows < 0 or rows != int(rows):
        reader.fail(f"'rows' is {rows:g}; it must be a whole number, 0 or more.")
    low, high = (reader.number(top, f"residual_log_{p}", f"residual_log_{p}") for p in ("p10", "p90"))
    if low > high:
        reader.fail(f"'residual_log_p10' {low:g} is above 'residual_log_p90' {high:g}.")
    record = Calibration(
        name=reader.text(top, "name"),
        device=devices[0],
        framework=frameworks[0],
        generation=reader.text(top, "generation"),
        date=str(reader.need(top, "date", "date", "date: YYYY-MM-DD")),
        constants={str(key): _constant(reader, value, f"constants.{key}") for key, value in entries.items()},
        residual_log_p10=low,
        residual_log_p90=high,
        rows=int(rows),
        sources=_texts(reader, top.get("sources", []), "sources"),
        measured=tables_from(top["measured"], reader.fail) if "measured" in top else NOTHING,
    )
    return record, devices, frameworks


def _section(reader: _Reader, top: Mapping[str, Any], name: str) -> dict[str, float]:
    keys = SECTIONS[name]
    legal = ("fabric", *keys) if name == "node" else tuple(keys)
    section = reader.mapping(reader.need(top, name, name, f"a section '{name}'"), name, legal)
    return {
        key: reader.fact(section, key, f"{name}.{key}", quantity)
        for key, quantity in keys.items()
        if key in section or key not in OPTIONAL
    }


def _check_sizes(reader: _Reader, facts: Mapping[str, Mapping[str, float]], fabric: str) -> None:
    device, node = facts["device"], facts["node"]
    for path in ("node.devices", "node.quad", "superpod.devices"):
        section, key = path.split(".")
        count = facts.get(section, {}).get(key, 1.0)
        if count != int(count):
            reader.fail(f"'{path}.value' is {count:g}; it must be a whole number.")
    if not device["memory_usable"] <= device["memory_visible"] <= device["memory"]:
        reader.fail("memory must hold memory_usable <= memory_visible <= memory.")
    for key in ("quad", "bridge"):
        if (key in node) != (fabric == "quads"):
            reader.fail(f"'node.{key}' belongs to fabric quads and only there; fabric here: {fabric}.")
    if fabric == "quads" and node["devices"] % node["quad"]:
        reader.fail(f"'node.quad' {node['quad']:g} does not divide 'node.devices' {node['devices']:g}.")
    pod = facts.get("superpod", node)["devices"]
    if pod % node["devices"]:
        reader.fail(f"'superpod.devices' {pod:g} is not a multiple of 'node.devices' {node['devices']:g}.")


def _device(facts: Mapping[str, float], name: str, vendor: str) -> Device:
    peaks = {key.removeprefix("peak_"): value for key, value in facts.items() if key.startswith("peak_")}
    return Device(
        name=name,
        vendor=vendor,  # type: ignore[arg-type]
        peak_flop_per_s=peaks,
        vector_flop_per_s=facts["vector_float16"],
        hbm_bytes=round(facts["memory"]),
        visible_bytes=round(facts["memory_visible"]),
        usable_bytes=round(facts["memory_usable"]),
        hbm_bytes_per_s=facts["memory_bandwidth"],
        host_bytes_per_s=facts["host_bandwidth"],
    )


def _fabric(facts: Mapping[str, float], kind: str) -> Fabric:
    return Fabric(
        kind=kind,  # type: ignore[arg-type]
        devices=int(facts["devices"]),
        link_bytes_per_s=facts["link"],
        latency_s=facts["latency"],
        quad_size=int(facts.get("quad", 0)),
        bridge_bytes_per_s=facts.get("bridge", 0.0),
    )


def _constant(reader: _Reader, value: Any, path: str) -> Constant:
    entry = reader.mapping(value, path, _CONSTANT)
    number, low, high = (reader.number(entry, key, f"{path}.{key}") for key in ("value", "low", "high"))
    if not low <= number <= high:
        reader.fail(f"'{path}' has value {number:g} outside its interval [{low:g}, {high:g}].")
    kind = reader.one_of(entry, "kind", f"{path}.kind", CONSTANT_KINDS)
    source = reader.text(entry, "source", f"{path}.source")
    return Constant(value=number, low=low, high=high, kind=kind, source=source)  # type: ignore[arg-type]


def _texts(reader: _Reader, value: Any, key: str) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item.strip() for item in items):
        reader.fail(f"'{key}' must be a list of texts, not {_shown(value)}; put each in quotes.")
    if key in ("device", "framework") and not items:
        reader.fail(f"'{key}' is empty; name at least one.")
    return tuple(items)


def _nearest(word: str, legal: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(legal), 1, 0.6)
    return f", did you mean '{close[0]}'?" if close else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
