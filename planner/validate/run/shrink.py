"""A plan made small enough for the cards there are: what is kept, what is cut, how the result scales.

Kept first is what sets the time of one layer and micro-batch on one card: widths, sequence, micro-batch size, tensor
parallelism.  Cut are context parallelism, which the script does not have, replicas, then pipeline stages; then layers
of a stage until it fits into memory; micro-batches beyond those that fill the pipeline.  On the CPU the types become
float32, attention is unfused, and what its backend lacks (send and receive, reduce-scatter) goes: pipelines, sequence
parallelism and sharded optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from planner.cost.memory.peak import memory
from planner.cost.memory.rules import NATIVE_CPU
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError, ValidationError
from planner.model.records import Model, Workload
from planner.units import GIB
from planner.validate.run.machine import Machine

#: Micro-batches that are run at most where no pipeline asks for more.
MICRO_BATCHES: Final = 4
#: Schedules that the script does not have, which a plain pipeline stands for.
_UNKNOWN_SCHEDULES: Final = ("zero_bubble_v", "seqpipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What is run instead of the plan.

    Attributes
    ----------
    model, workload, strategy
        As run.
    notes : tuple of str
        What was kept and cut, one sentence each; empty where the plan itself is run.
    """

    model: Model
    workload: Workload
    strategy: Strategy
    notes: tuple[str, ...]


def shrink(
    model: Model, workload: Workload, strategy: Strategy, machine: Machine, *, layers_per_stage: int | None = None
) -> Shrunk:
    """The largest part of a plan that the machine can run.

    Parameters
    ----------
    layers_per_stage : int, optional
        Decoder layers of each stage; default: the plan's, or as many as fit.

    Raises
    ------
    SpecError
        More layers asked for than a stage has.
    ValidationError
        Not a dense model, or one layer does not fit.
    """
    if model.kinds != ("dense",):
        raise ValidationError(
            f"{model.name} has layers of kind {', '.join(model.kinds)}; validate runs dense models only so far."
        )
    cut = _on_fewer_cards(strategy, machine)
    per_stage = max(strategy.layers_per_stage)
    if layers_per_stage is not None and layers_per_stage > per_stage:
        raise SpecError(f"--layers-per-stage {layers_per_stage}: the plan's stages have at most {per_stage}.")
    run_as = _workload(workload, cut, machine)

    def made(layers: int) -> tuple[Model, Strategy]:
        return _model(model, layers * cut.pp), _with_layers(cut, strategy, layers)

    wanted = layers_per_stage or per_stage
    fitting = _most(wanted, lambda layers: _fits(*made(layers), run_as, machine))
    if fitting == 0 or (layers_per_stage is not None and fitting < wanted):
        least = 1 if layers_per_stage is None else wanted
        raise ValidationError(
            f"{least} layer{'s' if least > 1 else ''} a stage of {model.name} needs "
            f"{_peak(*made(least), run_as) / GIB:.1f} GiB a card; {machine.limit_bytes / GIB:.1f} GiB are free on this "
            f"machine. Validate with fewer layers, shorter sequences, or on a larger machine."
        )
    small, chosen = made(fitting)
    notes = _notes(model, workload, strategy, small, run_as, chosen)
    return Shrunk(model=small, workload=run_as, strategy=chosen, notes=notes)


def _on_fewer_cards(s: Strategy, machine: Machine) -> Strategy:
    """Degrees that fill at most the machine's cards, layers untouched."""
    cpu, cards = machine.device == "CPU", machine.cards
    tp = _share(s.tp, cards)
    pp = 1 if cpu else min(s.pp, cards // tp)
    dp = _share(s.dp, cards // (tp * pp))
    micro = min(s.micro_batches, max(MICRO_BATCHES, 2 * pp))
    zero = 0 if cpu or dp == 1 else s.zero_level
    if pp == 1 and micro > 1:  # the script shards no gradients that it adds up without a pipeline
        zero = min(zero, 1)
    whole = (tp, pp, 1, dp) == (s.tp, s.pp, s.cp, s.dp) and s.schedule not in _UNKNOWN_SCHEDULES
    return replace(
        s,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=1,
        cp_algorithm="ring",
        ulysses_degree=1,
        vpp=s.vpp if whole else 1,
        schedule=s.schedule if whole else "1f1b",
        layers=s.layers if whole else ((0,) * pp,),
        recompute_full=s.recompute_full if whole else (0,) * pp,
        recompute_selective=s.recompute_selective if whole else (0,) * pp,
        micro_batches=micro,
        sequence_parallel=s.sequence_parallel and tp > 1 and not cpu and s.micro_batch_size == 1,
        zero_level=zero,
        optimizer_shard=1 if zero == 0 else math.gcd(s.optimizer_shard, dp),
        swap_optimizer=False,
    )


def _share(degree: int, most: int) -> int:
    """Largest divisor of a degree that is at most ``most``.

    >>> _share(8, 2), _share(6, 4), _share(5, 2)
    (2, 3, 1)
    """
    return max(n for n in range(1, min(degree, max(most, 1)) + 1) if degree % n == 0)


def _workload(workload: Workload, cut: Strategy, machine: Machine) -> Workload:
    batch = cut.dp * cut.micro_batch_size * cut.micro_batches
    if machine.device != "CPU":
        return replace(workload, global_batch=batch)
    return replace(
        workload,
        global_batch=batch,
        params_dtype="float32",
        compute_dtype="float32",
        states_dtype="float32",
        grads_dtype="float32",
        master_weights=False,
        flash_attention=False,
        framework="mindformers-legacy",
        switches=(NATIVE_CPU,),
    )


def _model(model: Model, layers: int) -> Model:
    return model if layers == model.layers else replace(model, layer_kinds=model.layer_kinds[:layers], mtp_layers=0)


def _with_layers(cut: Strategy, plan: Strategy, layers: int) -> Strategy:
    """So many layers a stage, recomputed in the share of the plan's fullest stage."""
    if cut.layers == plan.layers and layers == max(plan.layers_per_stage):
        return cut
    fullest = max(range(plan.pp), key=lambda stage: plan.layers_per_stage[stage])
    share = layers / plan.layers_per_stage[fullest]
    full = min(layers, math.ceil(plan.recompute_full[fullest] * share))
    some = min(layers - full, math.ceil(plan.recompute_selective[fullest] * share))
    return replace(
        cut,
        vpp=1,
        schedule="1f1b" if cut.schedule != "gpipe" else "gpipe",
        layers=((layers,) * cut.pp,),
        recompute_full=(full,) * cut.pp,
        recompute_selective=(some,) * cut.pp,
    )


def _most(wanted: int, fits: Callable[[int], bool]) -> int:
    """Largest number up to ``wanted`` that fits; 0 for none.  What fits with n layers fits with fewer."""
    if fits(wanted):
        return wanted
    low, high = 0, wanted - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _peak(model: Model, strategy: Strategy, workload: Workload) -> float:
    return float(memory(model, workload, Strategies.of([strategy])).peak_bytes[0])


def _fits(model: Model, strategy: Strategy, workload: Workload, machine: Machine) -> bool:
    return _peak(model, strategy, workload) <= machine.limit_bytes


def _notes(
    model: Model, workload: Workload, plan: Strategy, small: Model, run_as: Workload, run: Strategy
) -> tuple[str, ...]:
    """Sentences on what differs from the plan."""
    notes = []
    names = ("dp", "tp", "pp", "cp", "vpp", "micro_batches", "zero_level", "swap_optimizer", "schedule")
    changed = [
        f"{name.replace('_', ' ')} {getattr(plan, name)} -> {getattr(run, name)}"
        for name in names
        if getattr(plan, name) != getattr(run, name)
    ]
    if plan.sequence_parallel and not run.sequence_parallel and run.tp > 1:
        changed.append("sequence parallel off")
    if small.layers != model.layers:
        changed.append(f"layers {model.layers} -> {small.layers}")
    if changed:
        kept = f"micro-batch size {run.micro_batch_size}, sequence {workload.seq}, all widths"
        notes.append(f"Cut: {', '.join(changed)}. Kept: {kept}.")
    if run_as.compute_dtype != workload.compute_dtype or run_as.flash_attention != workload.flash_attention:
        notes.append("On the CPU: float32, attention that is not fused, AdamW states whole on every rank.")
    return tuple(notes)
