"""A callback that writes a ledger: for MindSpore's Model.train, and for MindFormers by YAML.

It reads what the step left (loss, overflow, loss scale, learning rate, norm), the clock and the device's memory, and
adds a line to the ledger.  Whatever goes wrong in it, the training goes on: it says so once and stays silent.

MindFormers (graph mode) finds it by

    callbacks:
      - type: PlanMonitor
        auto_register: planner_monitor.PlanMonitor

with ``--register_path FOLDER``, where FOLDER/planner_monitor.py holds ``from planner.monitor import PlanMonitor``.
Trainers of MindFormers' PyNative mode call `on_step_begin` and `on_step_end`.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from mindspore import Callback

from planner.monitor.ledger import Ledger, Planned

#: What follows the loss in the outputs of a training step with loss scale (MindSpore, MindFormers).
_OUTPUTS: Final = ("skipped", "loss_scale", "learning_rate", "grad_norm")


def _harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook whose errors end the monitor, not the training."""

    @functools.wraps(hook)
    def call(self: PlanMonitor, *arguments: Any, **known: Any) -> None:
        if self.is_broken:
            return
        try:
            hook(self, *arguments, **known)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self.is_broken = True
            print(f"planner monitor stops: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201

    return call


class PlanMonitor(Callback):  # type: ignore[misc]
    """Write one line of a ledger for every step, or for every sink.

    Parameters
    ----------
    path : str
        The ledger; ``{rank}`` stands for the rank.
    plan : str or None
        plan.json: adds tokens/s and MFU.
    """

    def __init__(self, path: str = "./output/ledger/rank_{rank}.jsonl", plan: str | None = None) -> None:
        super().__init__()
        self.is_broken = False
        self._last_s = self._data_s = float("nan")
        self._last_step = 0
        self._memory = _memory_reader()
        self._open(path, plan)

    @_harmless
    def _open(self, path: str, plan: str | None) -> None:
        rank = int(os.environ.get("RANK_ID") or 0)
        self._ledger = Ledger(path.format(rank=rank), Planned.read(plan), rank=rank)

    @_harmless
    def on_train_begin(self, run_context: Any) -> None:
        """Start the clock."""
        self._last_s = time.perf_counter()
        self._last_step = int(getattr(run_context.original_args(), "cur_step_num", 0) or 0)

    @_harmless
    def on_train_step_begin(self, run_context: Any) -> None:
        """What passed since the last step ended was spent on getting the next batch."""
        del run_context
        self._data_s = time.perf_counter() - self._last_s

    @_harmless
    def on_train_step_end(self, run_context: Any) -> None:
        """Add the step, or the mean step of a sink."""
        seen = run_context.original_args()
        outputs = _outputs(seen.net_outputs)  # waits for the device
        now, step = time.perf_counter(), int(seen.cur_step_num)
        steps = max(1, step - self._last_step)
        data_s = None if getattr(seen, "dataset_sink_mode", False) else self._data_s
        if "learning_rate" not in outputs:
            outputs["learning_rate"] = _constant_rate(getattr(seen, "optimizer", None))
        self._add(step, (now - self._last_s) / steps, now, data_s=data_s, **outputs)

    @_harmless
    def on_train_end(self, run_context: Any) -> None:
        """Close the ledger."""
        del run_context
        self._ledger.close()

    @_harmless
    def on_step_begin(self, args: Any = None, state: Any = None, **kwargs: Any) -> None:
        """The same in trainers of MindFormers' PyNative mode."""
        del args, state, kwargs
        now = time.perf_counter()
        if self._last_s != self._last_s:
            self._last_s = now
        self._data_s = now - self._last_s

    @_harmless
    def on_step_end(self, args: Any = None, state: Any = None, **kwargs: Any) -> None:
        """The same in trainers of MindFormers' PyNative mode."""
        del args
        loss, norm = _number(kwargs.get("loss")), _number(kwargs.get("grad_norm"))
        now = time.perf_counter()
        self._add(
            int(getattr(state, "global_step", self._last_step + 1)), now - self._last_s, now, data_s=self._data_s,
            loss=loss, grad_norm=norm,
        )  # fmt: skip

    def _add(self, step: int, step_s: float, now: float, **known: float | None) -> None:
        self._last_s, self._last_step = now, step
        self._ledger.add(step=step, step_s=step_s, memory_bytes=self._memory(), stamp_s=time.time(), **known)


def _outputs(outputs: Any) -> dict[str, float | None]:
    """Loss, and what else a step gave."""
    if not isinstance(outputs, (tuple, list)):
        return {"loss": _number(outputs)}
    named = zip(("loss", *_OUTPUTS), outputs, strict=False)
    return {name: value for name, item in named if (value := _number(item)) is not None}


def _number(value: Any) -> float | None:
    """A tensor, array or number as a number, the mean of several; None for anything else."""
    if value is None:
        return None
    value = value.asnumpy() if hasattr(value, "asnumpy") else value
    try:
        return float(value.mean()) if hasattr(value, "mean") else float(value)
    except (TypeError, ValueError):
        return None


def _constant_rate(optimizer: Any) -> float | None:
    """Learning rate of an optimizer that keeps a constant one; schedules would have to be run."""
    if optimizer is None or getattr(optimizer, "dynamic_lr", True):
        return None
    return _number(getattr(optimizer, "learning_rate", None))


def _memory_reader() -> Callable[[], float | None]:
    """Peak reserved memory of this device [bytes]; nothing where the framework does not tell."""
    try:
        from mindspore import runtime

        float(runtime.max_memory_reserved())
    except Exception:  # noqa: BLE001 - older releases and CPUs raise different things
        return lambda: None
    return lambda: float(runtime.max_memory_reserved())
