"""What a reader of predicted memory has to know: whether it was compared, and what it assumes of a setting."""

from __future__ import annotations

from planner.cost.estimate import Estimate
from planner.model.records import Workload
from planner.report.text import gib

_NOT_COMPARED = (
    "PyNative memory is modelled from MindFormers' source (1.9.0) and compared with no run; its gathering of "
    "parameters lies in a package that is not published."
)


def memory_kind(workload: Workload) -> str:
    """Where memory figures come from, in a word or three."""
    return "modelled" if workload.runs_on.memory_compared else "modelled, not compared"


def memory_notes(workload: Workload, answer: Estimate) -> tuple[str, ...]:
    """Notes on one estimate's memory, a sentence or two each; empty where there is nothing to say."""
    notes = [] if workload.runs_on.memory_compared else [_NOT_COMPARED]
    if answer.strategy.swap_optimizer and workload.runs_on.graph:
        states = max(answer.memory_bytes["optimizer_states"])
        notes.append(
            "optimizer.swap: MindSpore 2.9's own plan keeps a place for all optimizer states on the device and loads "
            f"them into a second one for the update, and so do these figures. A device that does as MindSpore's "
            f"documentation says (loaded when used) needs up to {gib(states)} GiB less in the passes."
        )
    return tuple(notes)
