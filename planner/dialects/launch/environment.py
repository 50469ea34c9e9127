"""Environment of a training job on Ascend: few variables, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner.dialects.text.shell_write import quoted
from planner.model.records import DTYPE_BYTES
from planner.plan import Plan
from planner.units import MIB

#: HCCL's own default buffer [MB]; two of them belong to every communicator, outside the memory pool.
HCCL_DEFAULT_MB: Final = 200
_HCCL_LEAST_MB: Final = 16
_TIMEOUT_S: Final = 7200


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One exported variable and why it is set."""

    name: str
    value: str
    reason: str


def hccl_buffer_mb(plan: Plan) -> int:
    """HCCL_BUFFSIZE [MB]: one micro-batch of hidden states, at most HCCL's default.

    The size that HCCL's user guide suggests for language models: micro-batch x sequence x hidden x bytes, rounded up
    to MB.
    """
    s, workload = plan.strategy, plan.workload
    tokens = s.micro_batch_size * workload.seq // s.cp
    wanted = math.ceil(tokens * plan.model.hidden * DTYPE_BYTES[workload.compute_dtype] / MIB)
    return min(max(wanted, _HCCL_LEAST_MB), HCCL_DEFAULT_MB)


def hccl(plan: Plan) -> tuple[Variable, ...]:
    """Variables of Huawei's collective library."""
    size = hccl_buffer_mb(plan)
    return (
        Variable(
            name="HCCL_BUFFSIZE",
            value=str(size),
            reason=f"MB; one micro-batch of hidden states; each communicator takes 2 x {size} MB outside the pool",
        ),
        Variable(
            name="HCCL_CONNECT_TIMEOUT",
            value=str(_TIMEOUT_S),
            reason="s; ranks compile for different times before they meet (default 120)",
        ),
        Variable(
            name="HCCL_EXEC_TIMEOUT",
            value=str(_TIMEOUT_S),
            reason="s; a slow checkpoint must not end the job (default 1836); a dead rank is still found",
        ),
    )


def mindspore(plan: Plan) -> tuple[Variable, ...]:
    """Variables of a MindSpore job."""
    swap = Variable(
        name="MS_DEV_RUNTIME_CONF",
        value="switch_inline:False",
        reason="optimizer states on the host need it (MindFormers AdamW, swap)",
    )
    return (
        *hccl(plan),
        *((swap,) if plan.strategy.swap_optimizer else ()),
        Variable(
            name="MS_ALLOC_CONF",
            value="enable_vmm:true",
            reason="the memory pool joins freed blocks by virtual memory, so that it does not fragment",
        ),
        Variable(name="GLOG_v", value="2", reason="warnings and errors only; 1 shows memory lines too"),
    )


def exports(variables: Sequence[Variable]) -> list[str]:
    """Shell lines; a value that the caller has set wins."""
    lines = []
    for variable in variables:
        lines.append(f"# {variable.reason}")
        lines.append(f'export {variable.name}="${{{variable.name}:-{_inner(variable.value)}}}"')
    return lines


def _inner(value: str) -> str:
    """Text that is inert inside double quotes and a parameter expansion; anything else would be our own mistake."""
    assert quoted(value) == value, value
    return value
