"""Which measured rows belong together, what is fitted to them, and which rows are left out and why.

A set is one kind of hardware and work.  Sets of mixtures of experts and of long context start from the constants that
the dense rows of the same hardware gave, and fit only what those cannot show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from planner.calibrate.fit import DENSE_KEYS, Fit, TimeCase, default_priors, fit
from planner.cluster.rates import defaults
from planner.cluster.records import Constant

Work = Literal["dense", "moe", "cp"]
LeftOut = Literal["shape", "release", "source", "case"]

#: Complete rows that are not fitted, with the reason; reports show every figure with and without them.
EXCLUDED: Final[Mapping[str, str]] = {
    "MF-r1.3.0-gpt2_13b-2048-800TA2": (
        "2.1 times as fast as its exposed gradient and tensor-parallel traffic allow, and slower on the faster device"
    ),
    "MF-r1.3.0-gpt2_13b-2048-900A2": (
        "2.1 times as fast as its exposed gradient and tensor-parallel traffic allow, and slower on the faster device"
    ),
    "BK23-LLaMA-13B-pp8-8p": "recompute 'custom': its extent is not published; as fast as the row without recompute",
    "BK23-LLaMA-33B-32p": "recompute 'custom': its extent is not published",
    "ML3-LLaMA-33B-2k": "its value dates from 2023 while the script was rewritten; the row itself says so",
    "ML3-Gemma2-9B-8k": "Gemma 2 caps scores and logits with tanh and adds post-norms: not a shape the planner knows",
    "ML3-Gemma2-27B-8k": "Gemma 2 caps scores and logits with tanh and adds post-norms: not a shape the planner knows",
    "MF-r1.3.0-llama3_1_70b-8192-900A2": "same value and layout as llama3_70b: one measurement published twice",
}

#: Framework generations by the version a row names.
GENERATIONS: Final[Mapping[str, str]] = {
    "r0.8": "0.8", "r1.2.0": "1.3", "r1.3.0": "1.3", "r1.5.0": "1.5", "dev": "1.5", "2023": "0.2023",
    "1.0.RC1": "1.0.RC1", "1.0.RC2": "1.0.RC2", "1.0.RC3": "1.0.RC3", "1.0.0": "2", "2.0.0": "2", "2.3.0": "2",
}  # fmt: skip

#: Stacks on NVIDIA devices that are generations of their own, by the beginning of their release texts.
_GPU_GENERATIONS: Final[Mapping[str, str]] = {
    "torchtitan": "torchtitan", "Megatron-like": "sweeps-2023", "MosaicML": "fsdp", "InternEvo": "internevo",
}  # fmt: skip

_A2: Final = frozenset({"910B2", "910B3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSet:
    """Rows of one kind and what is fitted to them.

    Attributes
    ----------
    devices : frozenset of str
        Hardware profiles.
    releases : tuple of str
        Beginnings of the release texts that belong here; empty: all.
    keys : tuple of str
        Constants fitted.
    base : str
        Set whose fitted constants are taken over first; empty: priors only.
    left_out : tuple of {"shape", "release", "source", "case"}
        What is left out together in cross-validation.
    wider : mapping of str to (value, low, high)
        Priors of this set where the general ones do not hold, with ``reason``.
    """

    name: str
    devices: frozenset[str]
    work: Work
    keys: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    releases: tuple[str, ...] = ()
    base: str = ""
    wider: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    reason: str = ""

    def holds(self, case: TimeCase) -> bool:
        """Whether a case belongs to this set."""
        if case.cluster.hardware.name not in self.devices or work_of(case) != self.work:
            return False
        return not self.releases or case.release.startswith(self.releases)


def work_of(case: TimeCase) -> Work:
    """Dense, mixture of experts, or dense with context parallelism."""
    if case.model.moe is not None:
        return "moe"
    return "cp" if int(case.table.cp[0]) > 1 else "dense"


_GPU_DENSE: Final = ("matmul_efficiency", "attention_efficiency", "vector_efficiency", "launch_s")

SETS: Final = (
    TimeSet(name="Ascend A2 dense", devices=_A2, work="dense", keys=DENSE_KEYS, left_out=("shape", "release")),
    TimeSet(
        name="Ascend A2 MoE", devices=_A2, work="moe", keys=("expert_width0",), left_out=("case",),
        base="Ascend A2 dense",
    ),
    TimeSet(
        name="Ascend A2 context parallel", devices=_A2, work="cp", keys=("ring_slowdown",), left_out=("case",),
        base="Ascend A2 dense",
    ),
    TimeSet(
        name="Ascend 910A dense", devices=frozenset({"910A"}), work="dense", keys=("matmul_efficiency",),
        left_out=("case",), base="Ascend A2 dense",
    ),
    TimeSet(
        name="A100 Megatron dense", devices=frozenset({"A100-80G"}), work="dense", releases=("Megatron-LM",),
        keys=("matmul_efficiency", "vector_efficiency"), left_out=("shape",),
    ),
    TimeSet(
        name="A100 torchtitan dense", devices=frozenset({"A100-80G"}), work="dense", releases=("torchtitan",),
        keys=("matmul_efficiency", "attention_efficiency"), left_out=("shape",),
    ),
    TimeSet(
        name="A100 sweeps dense", devices=frozenset({"A100-80G"}), work="dense", releases=("Megatron-like",),
        keys=("matmul_efficiency", "attention_efficiency", "vector_efficiency", "nic_frac"), left_out=("source",),
        wider={"nic_frac": (0.5, 0.05, 0.98)},
        reason="the network of the sweeps' cluster is not published",
    ),
    TimeSet(
        name="A100 FSDP dense", devices=frozenset({"A100-80G"}), work="dense", releases=("MosaicML",),
        keys=("matmul_efficiency", "attention_efficiency"), left_out=("shape",),
    ),
    TimeSet(
        name="A100 InternEvo dense", devices=frozenset({"A100-80G"}), work="dense", releases=("InternEvo",),
        keys=("matmul_efficiency",), left_out=("case",),
    ),
    TimeSet(
        name="A100 PCIe dense", devices=frozenset({"A100-PCIE"}), work="dense", left_out=("shape",),
        keys=("matmul_efficiency", "link_frac_allgather", "link_frac_reducescatter"),
        wider={"link_frac_allgather": (0.5, 0.15, 0.9), "link_frac_reducescatter": (0.5, 0.15, 0.9)},
        reason="devices of one PCIe server share switches and the link between sockets",
    ),
    TimeSet(
        name="B200 dense", devices=frozenset({"B200"}), work="dense", keys=_GPU_DENSE, left_out=("shape",),
    ),
    TimeSet(
        name="B200 context parallel", devices=frozenset({"B200"}), work="cp", keys=("attention_efficiency",),
        left_out=("shape",), base="B200 dense",
    ),
    TimeSet(
        name="B200 MoE", devices=frozenset({"B200"}), work="moe", keys=("expert_width0",), left_out=("case",),
        base="B200 dense",
    ),
    TimeSet(
        name="H100 MoE", devices=frozenset({"H100"}), work="moe", keys=("expert_width0",),
        releases=("Megatron",), left_out=("shape",),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSet:
    """A set with its rows and constants; ``excluded`` are rows that belong to it but were not fitted."""

    spec: TimeSet
    fit: Fit
    excluded: tuple[TimeCase, ...]


def fit_sets(cases: Sequence[TimeCase]) -> dict[str, FittedSet]:
    """Fit every set that has rows, in order, so that bases come before what builds on them."""
    done: dict[str, FittedSet] = {}
    for spec in SETS:
        members = [case for case in cases if spec.holds(case)]
        kept = [case for case in members if case.case_id not in EXCLUDED]
        if not kept or (spec.base and spec.base not in done):
            continue
        priors = set_priors(spec, kept[0], done)
        left = tuple(case for case in members if case.case_id in EXCLUDED)
        done[spec.name] = FittedSet(spec=spec, fit=fit(kept, priors, spec.keys), excluded=left)
    return done


def set_priors(spec: TimeSet, case: TimeCase, done: Mapping[str, FittedSet]) -> dict[str, Constant]:
    """Priors of a set: of the vendor and its links, then fitted constants of its base, then its own."""
    general = {**defaults(case.cluster.hardware), **default_priors(case)}
    priors = dict(default_priors(case))
    if spec.base:
        fitted = done[spec.base].fit
        priors.update({key: fitted.constants[key] for key in fitted.keys})
    for key in spec.keys:
        if key not in priors or (spec.base and key in done[spec.base].fit.keys):
            priors[key] = general[key]
    for key, (value, low, high) in spec.wider.items():
        priors[key] = Constant(value=value, low=low, high=high, kind="prior", source=spec.reason)
    return priors


def generation_of(case: TimeCase) -> str:
    """Generation of the framework that a case ran on."""
    for beginning, generation in _GPU_GENERATIONS.items():
        if case.release.startswith(beginning):
            return generation
    if not case.workload.runs_on.ascend:
        return "core" if case.cluster.hardware.name != "A100-80G" or "Core" in case.release else "2022"
    return GENERATIONS.get(case.generation, case.generation or "unknown")


def family_of(case: TimeCase) -> str:
    """Framework whose generations are counted together: legacy and new MindFormers are one."""
    return case.workload.runs_on.family
