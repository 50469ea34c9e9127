"""What links really carry: shares of their peak, start-up times, and the hops built from them.

Profiles hold data-sheet peaks; the constants here say how much of a peak a collective reaches and what a call costs
before the first byte.  A calibration overrides any of them under the same key.

Keys (all positive)
-------------------
``link_frac_allgather``, ``link_frac_reducescatter``, ``link_frac_alltoall``, ``link_frac_sendrecv``
    Share of the peak of a link inside a node or superpod.  An all-reduce is a reduce-scatter and an all-gather, except
    on GPUs (``link_frac_allreduce``).
``nic_frac``, ``nic_frac_sendrecv``
    Share of the peak of a network port: in collectives, in single transfers.
``bridge_frac``
    Share of the peak of the bridge between the quads of a 910A node.
``start_s_OP`` [s]
    Fixed time of one call beside its steps: host launch, synchronisation; from the measured time of a tiny message.
    ``start_s_allreduce`` holds for one-shot all-reduces, ``start_s_allreduce_large`` for all others.
``step_s_link``, ``step_s_net`` [s]
    Work per step of an algorithm beside the profile's latency: notify, SDMA or RDMA set-up.
``reduce_s_per_byte`` [s/byte]
    Local reduction where it is not done by the link itself.
``selector_step_s`` [s]
    Time per step that HCCL's own selector assumes when it compares algorithms.
``alltoall_width_slope``, ``alltoall_peer_s``
    A3: growth of all-to-all time per doubling of the group beyond 8, and time per peer [s].
``nccl_...``
    Base and hop latencies of NCCL's protocols [s], bandwidth shares of LL and tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from planner.cluster.algorithms import Hop, Op
from planner.cluster.records import Constant, Hardware
from planner.errors import ProfileError

Wiring = Literal["a2", "910a", "a3", "pcie", "gpu"]
Level = Literal["node", "bridge", "pod", "net"]

_ASTRA: Final = "zzudongxiang/astrasim:docs/HELP.md, 8 x 910B, one node"
_HIXL2: Final = "xiaojia151/Hixl:benchmarks/A2_benchmark_performance.md"
_HIXL3: Final = "xiaojia151/Hixl:benchmarks/A3_benchmark_performance.md"
_TASKS: Final = "yzh1703456/cann-hccl task_profiling.h (910A era)"
_MSPROF: Final = "msprof link-rate constants"
_DEEPEP: Final = "sgl-project/sgl-kernel-npu README (DeepEP-Ascend)"
_TUNING: Final = "NVIDIA/nccl:src/graph/tuning.cc"
_STAS: Final = "stas00/ml-engineering:network/README.md"
_LIMULIDAE: Final = "gameofdimension/limulidae:README"


def _constant(value: float, low: float, high: float, kind: Literal["measured", "prior"], source: str) -> Constant:
    return Constant(value=value, low=low, high=high, kind=kind, source=source)


_A2: Final[Mapping[str, Constant]] = {
    "link_frac_allgather": _constant(18.2 / 28, 16 / 28, 19 / 28, "measured", f"{_ASTRA}, 2 GiB: 18.2 GB/s a link"),
    "link_frac_reducescatter": _constant(17.0 / 28, 15 / 28, 18 / 28, "measured", f"{_ASTRA}, 2 GiB: 17.0 GB/s a link"),
    "link_frac_alltoall": _constant(15.1 / 28, 13.5 / 28, 17 / 28, "measured", f"{_ASTRA}, 2 GiB: 15.1 GB/s a link"),
    "link_frac_sendrecv": _constant(18.9 / 28, 18.5 / 28, 26 / 28, "measured", f"{_ASTRA}, 1 GB: 18.9 GB/s"),
    "nic_frac": _constant(22.6 / 25 * 0.85, 0.7, 0.9, "prior", f"{_HIXL2}: 22.6 of 25 GB/s, x 0.85 (0.8-0.9 assumed)"),
    "nic_frac_sendrecv": _constant(22.6 / 25, 0.76, 0.91, "measured", f"{_HIXL2}: RDMA device to device"),
    "bridge_frac": _constant(0.8, 0.6, 1.0, "prior", f"{_MSPROF}: a link below 0.8 of its peak counts as slow"),
    "start_s_allgather": _constant(54.8e-6, 20e-6, 80e-6, "measured", f"{_ASTRA}: 57.8 us less a step"),
    "start_s_reducescatter": _constant(56.9e-6, 20e-6, 80e-6, "measured", f"{_ASTRA}: 59.9 us less a step"),
    "start_s_allreduce": _constant(41.1e-6, 20e-6, 60e-6, "measured", f"{_ASTRA}, small messages"),
    "start_s_allreduce_large": _constant(76.2e-6, 40e-6, 120e-6, "prior", "two one-shots of 41.1 us less two steps"),
    "start_s_alltoall": _constant(113.9e-6, 40e-6, 150e-6, "measured", f"{_ASTRA}: 116.9 us less a step"),
    "start_s_broadcast": _constant(76.2e-6, 40e-6, 120e-6, "prior", "as a two-step all-reduce"),
    "start_s_sendrecv": _constant(
        32.8e-6, 10e-6, 40e-6, "measured", f"{_ASTRA}: 33.3 us for 8 bytes, less the latency"
    ),
    "step_s_link": _constant(2.5e-6, 1.6e-6, 10e-6, "prior", f"{_TASKS}: SDMA 1.5 us, notify 1 us"),
    "step_s_net": _constant(8e-6, 8e-6, 60e-6, "prior", f"{_TASKS}: RDMA 7 us, notify 1 us; the selector takes 60 us"),
    "reduce_s_per_byte": _constant(1 / 483e9, 0.0, 1 / 100e9, "prior", "hicann/hccl cost_model.cc, local reduce (950)"),
    "selector_step_s": _constant(60e-6, 60e-6, 60e-6, "measured", "yzh1703456/cann-hccl coll_alg_operator.cc"),
    "alltoall_width_slope": _constant(0.0, 0.0, 0.24, "prior", "every pair has its own link"),
    "alltoall_peer_s": _constant(0.0, 0.0, 2e-6, "prior", "one step on a mesh"),
}

_910A: Final[Mapping[str, Constant]] = {
    **_A2,
    "link_frac_allgather": _constant(18 / 30, 0.5, 19.3 / 30, "prior", f"{_MSPROF}: 18; {_TASKS}: 19.3 of 30 GB/s"),
    "link_frac_reducescatter": _constant(16.8 / 30, 0.45, 0.65, "prior", "all-gather x 17.0/18.2, the ratio of 910B"),
    "link_frac_alltoall": _constant(15 / 30, 0.4, 0.65, "prior", "all-gather x 15.1/18.2, the ratio of 910B"),
    "link_frac_sendrecv": _constant(18 / 30, 0.5, 19.3 / 30, "prior", f"{_MSPROF}: 18 GB/s"),
    "nic_frac": _constant(12 / 12.5 * 0.85, 0.7, 0.96, "prior", f"{_TASKS}: 12 of 12.5 GB/s, x 0.85"),
    "nic_frac_sendrecv": _constant(12 / 12.5, 0.8, 1.0, "prior", f"{_TASKS}: 12 GB/s"),
    "step_s_link": _constant(1e-6, 1e-6, 10e-6, "prior", f"{_TASKS}: notify 1 us"),
    "reduce_s_per_byte": _constant(1 / 10e9 / 32, 0.0, 1 / 10e9, "prior", f"{_TASKS}: 10 GB/s a cube, 32 cubes"),
}

_A3: Final[Mapping[str, Constant]] = {
    **_A2,
    "link_frac_allgather": _constant(126 / 196, 0.5, 0.78, "prior", f"{_HIXL3}: writes reach 126 of 196 GB/s"),
    "link_frac_reducescatter": _constant(117.7 / 196, 0.45, 0.75, "prior", "all-gather x 17.0/18.2, the ratio of 910B"),
    "link_frac_alltoall": _constant(135 / 196, 0.5, 0.75, "measured", f"{_DEEPEP}: EP8, mean of dispatch and combine"),
    "link_frac_sendrecv": _constant(126 / 196, 0.6, 0.78, "measured", f"{_HIXL3}: writes"),
    "nic_frac": _constant(22.65 / 25 * 0.85, 0.7, 0.9, "prior", f"{_HIXL3}: 22.65 of 25 GB/s, x 0.85"),
    "nic_frac_sendrecv": _constant(22.65 / 25, 0.8, 0.91, "measured", f"{_HIXL3}: RDMA"),
    "step_s_link": _constant(1e-6, 0.5e-6, 5e-6, "prior", f"{_TASKS}: notify 1 us"),
    "alltoall_width_slope": _constant(0.24, 0.1, 0.35, "measured", f"{_DEEPEP}: EP8 to EP128, within 10 %"),
    "alltoall_peer_s": _constant(0.87e-6, 0.3e-6, 1.5e-6, "measured", f"{_DEEPEP}: low-latency mode, EP8 to EP32"),
}

_PCIE: Final[Mapping[str, Constant]] = {
    **_A2,
    "link_frac_allgather": _constant(24.8 / 32, 0.5, 0.85, "prior", "ascend-dmi 6.0 notes: 24.8 of 32 GB/s"),
    "link_frac_reducescatter": _constant(24.8 / 32, 0.5, 0.85, "prior", "ascend-dmi 6.0 notes: 24.8 of 32 GB/s"),
    "link_frac_alltoall": _constant(24.8 / 32, 0.5, 0.85, "prior", "ascend-dmi 6.0 notes: 24.8 of 32 GB/s"),
    "link_frac_sendrecv": _constant(24.8 / 32, 0.5, 0.85, "prior", "ascend-dmi 6.0 notes: 24.8 of 32 GB/s"),
}

_GPU: Final[Mapping[str, Constant]] = {
    "link_frac_allreduce": _constant(0.79, 0.66, 0.83, "measured", f"{_STAS}: A100 235 of 300, H100 370 of 450 GB/s"),
    "link_frac_allgather": _constant(0.75, 0.6, 0.82, "measured", f"{_LIMULIDAE}: A800 0.71-0.76 on 4 and 8 GPUs"),
    "link_frac_reducescatter": _constant(0.75, 0.6, 0.82, "prior", "as all-gather"),
    "link_frac_alltoall": _constant(0.75, 0.5, 0.82, "prior", "as all-gather"),
    "link_frac_sendrecv": _constant(0.75, 0.5, 0.9, "prior", "as all-gather"),
    "nic_frac": _constant(0.9, 0.77, 0.98, "measured", f"{_STAS}; nccl-tests issues 119 (0.85), 267 (0.92-0.98)"),
    "nic_frac_sendrecv": _constant(0.85, 0.77, 0.95, "measured", "FlagPerf: 19.33 of 25 GB/s; nccl-tests issue 267"),
    "nccl_base_ll_s": _constant(6.6e-6, 5e-6, 15e-6, "prior", f"{_TUNING}: base latency, ring, LL"),
    "nccl_base_simple_s": _constant(8.4e-6, 5e-6, 20e-6, "prior", f"{_TUNING}: base latency, ring, Simple"),
    "nccl_hop_simple_s": _constant(3.4e-6, 2e-6, 6e-6, "prior", f"{_TUNING}: NVLink hop, ring, Simple"),
    "nccl_net_hop_simple_s": _constant(14e-6, 8e-6, 25e-6, "prior", f"{_TUNING}: network hop, Simple"),
    "nccl_ll_frac": _constant(0.5, 0.25, 0.5, "prior", f"{_TUNING}: LL carries half data, half flags"),
    "nccl_tree_frac": _constant(0.92, 0.85, 1.0, "prior", f"{_TUNING}: tree"),
}

#: Constants used where a calibration does not say otherwise, by wiring.
DEFAULTS: Final[Mapping[Wiring, Mapping[str, Constant]]] = {
    "a2": _A2,
    "910a": _910A,
    "a3": _A3,
    "pcie": _PCIE,
    "gpu": _GPU,
}


def wiring(hardware: Hardware) -> Wiring:
    """How devices are wired, which decides library and algorithms.

    A mesh is an A2 (910B) node, quads a 910A, a switch with superpods an A3, a plain switch PCIe cards; NVIDIA devices
    use NCCL's algorithms whatever their links.
    """
    if hardware.device.vendor == "nvidia":
        return "gpu"
    if hardware.superpod is not None:
        return "a3"
    return {"mesh": "a2", "quads": "910a", "switch": "pcie"}[hardware.node.kind]  # type: ignore[return-value]


def defaults(hardware: Hardware) -> Mapping[str, Constant]:
    """Default constants of a device's links, with interval and source."""
    return DEFAULTS[wiring(hardware)]


@dataclass(frozen=True, slots=True)
class Rates:
    """Constants in force on one hardware: defaults under the caller's own."""

    hardware: Hardware
    wiring: Wiring
    constants: Mapping[str, float]

    @classmethod
    def of(cls, hardware: Hardware, constants: Mapping[str, float] | None = None) -> Rates:
        """Rates of a hardware; keys of ``constants`` that concern no link are ignored."""
        kind = wiring(hardware)
        own = constants or {}
        return cls(hardware, kind, {key: own.get(key, default.value) for key, default in DEFAULTS[kind].items()})

    def __getitem__(self, key: str) -> float:
        return self.constants[key]

    def link_bytes_per_s(self, level: Level, op: Op) -> float:
        """What one link, or one device's way into a switch, or one port carries in ``op`` [bytes/s]."""
        if level == "net":
            share = self["nic_frac_sendrecv"] if op == "sendrecv" else self["nic_frac"]
            return self.hardware.nic_bytes_per_s * share
        if level == "bridge":
            return self.hardware.node.bridge_bytes_per_s * self["bridge_frac"]
        fabric = self.hardware.superpod if level == "pod" else self.hardware.node
        if fabric is None:
            raise ProfileError(f"{self.hardware.name} has no superpod links.")
        if op in ("allreduce", "broadcast") and "link_frac_allreduce" not in self.constants:
            scatter, gather = self["link_frac_reducescatter"], self["link_frac_allgather"]
            return fabric.link_bytes_per_s * (2 * scatter * gather / (scatter + gather))
        key = "link_frac_allgather" if op == "broadcast" else f"link_frac_{op}"
        return fabric.link_bytes_per_s * self[key]

    def hop(self, level: Level, op: Op) -> Hop:
        """Alpha, beta, gamma of one step at a level.

        A mesh reduces inside the link (SDMA inline reduce), so its gamma is 0; all-reduce inside a node takes the mean
        of reduce-scatter and all-gather.  A single transfer has no per-step work beyond the latency.
        """
        hardware = self.hardware
        latency = {
            "node": hardware.node.latency_s,
            "bridge": hardware.node.latency_s,
            "pod": hardware.superpod.latency_s if hardware.superpod else 0.0,
            "net": hardware.nic_latency_s,
        }[level]
        step = 0.0 if op == "sendrecv" else self["step_s_net" if level == "net" else "step_s_link"]
        gamma = 0.0 if level == "node" and self.wiring == "a2" else self["reduce_s_per_byte"]
        return Hop(latency + step, 1 / self.link_bytes_per_s(level, op), gamma)
