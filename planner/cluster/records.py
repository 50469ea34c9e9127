"""What the model is trained on: device, node, links, and the constants calibrated for them.

Frozen records without I/O; ``planner.cluster.load`` builds them from ``hardware_profiles/*.yaml`` and
``calibration/*.yaml``.  Bandwidths are one direction per device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from planner.cluster.tables import NOTHING, Measured
from planner.errors import ProfileError, SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator as the framework sees it: a card, or a die of a 910C.

    Attributes
    ----------
    peak_flop_per_s : mapping of str to float
        Dense matmul peak by data type [FLOP/s].
    vector_flop_per_s : float
        Vector-unit peak for 16-bit types [FLOP/s].
    hbm_bytes : int
        Memory on the data sheet [bytes].
    visible_bytes : int
        What the framework can see of it [bytes].
    usable_bytes : int
        Recommended limit of the framework's memory pool [bytes].
    hbm_bytes_per_s : float
        Memory bandwidth on the data sheet [bytes/s].
    host_bytes_per_s : float
        Host to device copy, one direction [bytes/s].
    """

    name: str
    vendor: Literal["ascend", "nvidia", "cpu"]
    peak_flop_per_s: Mapping[str, float]
    vector_flop_per_s: float
    hbm_bytes: int
    visible_bytes: int
    usable_bytes: int
    hbm_bytes_per_s: float
    host_bytes_per_s: float

    def peak(self, dtype: str) -> float:
        """Dense matmul peak of a data type [FLOP/s].

        Raises
        ------
        ProfileError
            The device does not compute in this type (910A: bfloat16), or its profile does not say.
        """
        if dtype not in self.peak_flop_per_s:
            legal = ", ".join(self.peak_flop_per_s)
            raise ProfileError(f"{self.name} has no matmul peak for {dtype}; legal compute types: {legal}.")
        return self.peak_flop_per_s[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Links inside one domain (a node, a superpod).

    ``kind`` decides how a group's bandwidth follows from its size:

    * ``mesh``: every pair of the domain has its own link of ``link_bytes_per_s``; a group of n uses n - 1 of them.
    * ``quads``: full meshes of ``quad_size`` devices, joined by a slower bridge of ``bridge_bytes_per_s`` a device.
    * ``switch``: every device has ``link_bytes_per_s`` into a non-blocking switch, whatever the group size.
    """

    kind: Literal["mesh", "quads", "switch"]
    devices: int
    link_bytes_per_s: float
    latency_s: float
    quad_size: int = 0
    bridge_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One hardware profile: a device and how devices are wired.

    Attributes
    ----------
    node : Fabric
        Links inside one server.
    superpod : Fabric or None
        Links between servers of one superpod (A3); None where servers meet over the network only.
    nic_bytes_per_s : float
        Network port of one device [bytes/s].
    nic_latency_s : float
        Start-up of one network step [s].
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    device: Device
    devices_per_node: int
    node: Fabric
    superpod: Fabric | None
    nic_bytes_per_s: float
    nic_latency_s: float
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A number of devices of one kind."""

    hardware: Hardware
    devices: int

    def __post_init__(self) -> None:
        per_node = self.hardware.devices_per_node
        if isinstance(self.devices, bool) or not isinstance(self.devices, Integral) or self.devices < 1:
            raise SpecError(f"cards={self.devices!r} must be a positive whole number.")
        if self.devices > per_node and self.devices % per_node:
            lower = self.devices // per_node * per_node
            raise SpecError(
                f"{self.devices} cards do not fill whole nodes of {per_node} ({self.hardware.name}); "
                f"nearest legal: {lower} or {lower + per_node}, or up to {per_node} inside one node."
            )

    @property
    def nodes(self) -> int:
        """Servers used."""
        return -(-self.devices // self.hardware.devices_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted or assumed constant: value, 80 % interval, and where it comes from."""

    value: float
    low: float
    high: float
    kind: Literal["datasheet", "measured", "calibrated", "prior"]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of the time model for one device and one framework generation.

    Attributes
    ----------
    constants : mapping of str to Constant
        Keys are listed and explained in ``planner.cost.time.step``.
    residual_log_p10, residual_log_p90 : float
        10th and 90th percentile of log(measured / predicted) on left-out rows: the 80 % interval of an estimate.
    measured : Measured
        Tables of micro-benchmarks, which correct the constants where something was measured.
    """

    name: str
    device: str
    framework: str
    generation: str
    date: str
    constants: Mapping[str, Constant]
    residual_log_p10: float
    residual_log_p90: float
    rows: int
    sources: tuple[str, ...]
    measured: Measured = NOTHING

    def __getitem__(self, key: str) -> float:
        return self.constants[key].value
