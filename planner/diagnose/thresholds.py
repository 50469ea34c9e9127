"""Numbers that decide whether something is worth a finding, each with who published it."""

from __future__ import annotations

from typing import Final

from planner.diagnose.records import Threshold

_ADVISOR: Final = "msprof-analyze advisor"

#: Findings that would gain less of a step are left out.
WORTH: Final = Threshold(value=0.03, source=f"{_ADVISOR}: medium priority from 3 % of the time")
#: Communication of one kind of group that nothing hides.
EXPOSED_KIND: Final = Threshold(value=0.05, source=f"{_ADVISOR}: high priority from 5 % of the time")
#: All communication that nothing hides, pipeline waiting apart.
EXPOSED: Final = Threshold(value=0.30, source="communication above 30 % of the step limits it (tuning articles)")
#: What exposed communication may keep.
EXPOSED_FINE: Final = Threshold(
    value=0.10, source="MindSpeed-LLM tuning guide: exposed communication up to 10 % is fine"
)
#: Waiting for other stages.
BUBBLE: Final = Threshold(
    value=0.10, source="(p - 1)/(m + p - 1) of a balanced pipeline with m = 9 (p - 1) micro-batches"
)
#: Difference of compute time between ranks that do the same work, and between stages, over the mean.
SPREAD: Final = Threshold(value=0.05, source=f"{_ADVISOR}: slow rank when (max - min) / mean is above 0.05")
STAGES: Final = Threshold(value=0.20, source="MindInsight proposer: relative deviation between devices above 0.2")
#: Bandwidth of a link below that of its equals.
LINK: Final = Threshold(value=0.80, source=f"{_ADVISOR}: bandwidth contention below 0.8 of the usual rate")
#: The tenth of a step that is neither compute nor communication in a healthy mix.
FREE: Final = Threshold(
    value=0.10, source="compute : communication : rest = 7 : 2 : 1 of a healthy run (tuning articles)"
)
DATA: Final = Threshold(
    value=0.10, source="compute : communication : data = 7 : 2 : 1 of a healthy run (tuning articles)"
)
#: Batches that found the queue empty.
QUEUE: Final = Threshold(value=0.30, source="MindInsight: queue empty for more than 30 % of the batches")
#: Share of small packets, by time of their operators.
PACKETS: Final = Threshold(
    value=0.20, source=f"{_ADVISOR}: packets below 16 MB (SDMA) or 1 MB (RDMA) above a share of 0.2"
)
#: Checkpoints over the whole time of a run.
CHECKPOINT: Final = Threshold(
    value=0.05, source="evaluation and checkpoints up to 5 % of the training time (tuning articles)"
)
#: Recomputation over the step.
RECOMPUTE: Final = Threshold(value=0.05, source=f"{_ADVISOR}: high priority from 5 % of the time")
