"""Lists of known models and hardware."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster.records import Fabric, Hardware
from planner.model.load import Entry
from planner.model.operators import active_parameter_count, parameter_count
from planner.report.text import gib, table, wrapped
from planner.units import format_count


def model_lines(entries: Sequence[Entry]) -> list[str]:
    """One line a model."""
    rows = []
    for entry in entries:
        model = entry.model
        active = format_count(active_parameter_count(model)) if model.moe else ""
        rows.append(
            [entry.name, model.family, f"{parameter_count(model):,}", active, str(model.layers), str(model.hidden)]
        )
    return table(("name", "family", "parameters", "active", "layers", "hidden"), rows, left=(0, 1))


def hardware_lines(profiles: Sequence[Hardware]) -> list[str]:
    """One line a profile."""
    rows = []
    for profile in profiles:
        device = profile.device
        peak = max(device.peak_flop_per_s.get(name, 0.0) for name in ("bfloat16", "float16"))
        rows.append(
            [
                profile.name,
                f"{peak / 1e12:.0f}" if peak >= 1e12 else f"{peak / 1e12:.2g}",
                gib(device.hbm_bytes),
                gib(device.usable_bytes),
                f"{device.hbm_bytes_per_s / 1e9:.0f}",
                str(profile.devices_per_node),
                profile.node.kind,
                f"{profile.nic_bytes_per_s / 1e9:.1f}",
            ]
        )
    heads = ("name", "TFLOP/s", "GiB", "usable", "GB/s", "a node", "links", "NIC GB/s")
    return table(heads, rows, left=(0, 6))


def profile_lines(profile: Hardware) -> list[str]:
    """One profile: figures, then where each comes from."""
    device = profile.device
    lines = wrapped(f"{profile.name}: {profile.description}")
    if profile.aliases:
        lines += wrapped(f"Also      {', '.join(profile.aliases)}", " " * 10)
    peaks = ", ".join(f"{name} {value / 1e12:.1f}" for name, value in device.peak_flop_per_s.items())
    lines += wrapped(f"Peak      {peaks} TFLOP/s", " " * 10)
    lines += wrapped(
        f"Memory    {gib(device.hbm_bytes)} GiB, {gib(device.visible_bytes)} visible, {gib(device.usable_bytes)} "
        f"usable; {device.hbm_bytes_per_s / 1e9:.0f} GB/s; host {device.host_bytes_per_s / 1e9:.1f} GB/s",
        " " * 10,
    )
    lines += wrapped(f"Node      {profile.devices_per_node} devices, {fabric_words(profile.node)}", " " * 10)
    if profile.superpod:
        lines += wrapped(f"Superpod  {profile.superpod.devices} devices, {fabric_words(profile.superpod)}", " " * 10)
    lines += wrapped(
        f"Network   {profile.nic_bytes_per_s / 1e9:.1f} GB/s a device, {profile.nic_latency_s * 1e6:.1f} us", " " * 10
    )
    lines += ["", "Sources"]
    for key, source in profile.sources.items():
        lines += wrapped(f"  {key}: {source}", "    ")
    return lines


def fabric_words(fabric: Fabric) -> str:
    """Links of one domain, one direction."""
    link = f"{fabric.link_bytes_per_s / 1e9:.1f} GB/s"
    if fabric.kind == "mesh":
        return f"full mesh, {link} a pair"
    if fabric.kind == "quads":
        bridge = f"{fabric.bridge_bytes_per_s / 1e9:.1f} GB/s"
        return f"meshes of {fabric.quad_size}, {link} a pair; bridge {bridge} a device"
    return f"switch, {link} a device"
