"""Child process of a DryRun: trains a MindFormers YAML for two simulated steps on one rank and reports its memory.

Executed by the interpreter that has MindSpore, never imported by the planner, and it imports nothing of the
planner: that interpreter need not have it. The only argument names a job file (JSON): ``yaml`` (the prepared
configuration), ``steps``, ``dataset`` (null, or the MindRecord file to write). The last line of standard output
that starts with ``PLANNER_DRYRUN`` is the report as JSON; ``error`` in it is the framework's own message.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

MARK = "PLANNER_DRYRUN "
_RANDOM = ("Normal", "TruncatedNormal", "Uniform", "XavierUniform", "HeUniform", "HeNormal", "XavierNormal")
_EXIT_S = 30.0
_STARTED = time.monotonic()


class _Done(BaseException):
    """The last simulated step has ended."""


def main() -> NoReturn:
    """Run the job and leave without interpreter shutdown (where the stand-in libraries would abort)."""
    _die_with_parent()
    report: dict[str, Any] = {}
    try:
        with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
            job = json.load(file)
        _run(job, report)
    except _Done:
        _finish(report, status=0)
    except BaseException as error:
        traceback.print_exc()
        report.setdefault("error", _message(error))
        _finish(report, status=1)
    report.setdefault("error", "training ended before the last simulated step")
    _finish(report, status=1)


def _die_with_parent() -> None:
    """Ask Linux to end this process when the one that started it ends, however it ends."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _run(job: dict[str, Any], report: dict[str, Any]) -> None:
    import mindspore
    from mindspore.train.callback import Callback

    _zero_initialisers()
    if job["dataset"]:
        _write_mindrecord(**job["dataset"])
    import mindformers
    from mindformers.core.context import build_context
    from mindformers.tools.register.config import MindFormerConfig
    from mindformers.trainer import Trainer

    _replace_dataset_helpers()
    _always_run_optimizer()
    report["mindspore"] = mindspore.__version__
    report["mindformers"] = mindformers.__version__

    class StopAfter(Callback):  # type: ignore[misc]
        """Reads the memory after each simulated step and leaves after the last."""

        steps = 0

        def on_train_begin(self, run_context: object) -> None:
            if not job["share_data"]:
                _read_data_apart()

        def on_train_step_end(self, run_context: object) -> None:
            self.steps += 1
            report["steps"] = self.steps
            if self.steps == 1:
                report["first_step_s"] = time.monotonic() - _STARTED
            if self.steps >= job["steps"]:
                report.update(_memory(mindspore))
                raise _Done

    config = MindFormerConfig(job["yaml"])
    build_context(config)
    Trainer(config, callbacks=[StopAfter()]).train()


def _memory(mindspore: Any) -> dict[str, Any]:
    """Bytes of this rank: peak of live tensors, what outlives a step, and the pool's blocks."""
    runtime = mindspore.runtime
    return {
        "peak_bytes": int(runtime.max_memory_allocated()),
        "static_bytes": int(runtime.memory_allocated()),
        "reserved_bytes": int(runtime.max_memory_reserved()),
    }


def _zero_initialisers() -> None:
    """Fill parameters with zeros: random numbers of real sizes on the host take longer than the compile."""
    import mindspore.common.initializer as initializer

    for name in _RANDOM:
        kind = getattr(initializer, name, None)
        if kind is not None:
            kind._initialize = _zero_fill


def _zero_fill(_: object, array: Any) -> None:
    array.fill(0)


def _always_run_optimizer() -> None:
    """Compile the step without its overflow branch.

    The optimizer stands behind ``if not overflow``, and a simulated device has no value for that flag: the branch
    is not taken, the optimizer never runs, and its moments (8 bytes a parameter) would be missing from the peak.
    """
    from mindspore import nn

    nn.TrainOneStepWithLossScaleCell.process_loss_scale = _no_overflow


def _read_data_apart() -> None:
    """Have each stage read its data: level 2 of 3 hands data on within a stage only."""
    from mindspore._c_expression import MSContext, ms_ctx_param

    MSContext.get_instance().set_param(ms_ctx_param.dataset_broadcast_opt_level, 2)


def _no_overflow(self: Any, overflow: Any) -> bool:
    """Stand in for ``process_loss_scale``; parsed by MindSpore's graph compiler, so a plain function in a file."""
    return False


def _replace_dataset_helpers() -> None:
    """Index Megatron samples in Python: MindFormers would compile C++ into its own folder (make, pybind11)."""
    import types

    import mindformers.dataset.blended_datasets as package
    import mindformers.dataset.dataloader.blended_megatron_dataloader as loader

    helpers = types.ModuleType(f"{package.__name__}.helpers")
    vars(helpers).update(build_sample_idx=_sample_index, build_blending_indices=_blend_one)
    sys.modules[helpers.__name__] = helpers
    vars(package)["helpers"] = helpers
    loader.compile_helpers = lambda: None


def _sample_index(sizes: Any, documents: Any, seq: int, epochs: int, epoch_tokens: int, _drop: bool, extra: int) -> Any:
    """(document, offset) where each sample of `seq` tokens starts in the concatenated documents."""
    import numpy as np

    ends = np.cumsum(sizes[documents].astype(np.int64))
    starts = np.arange((epochs * epoch_tokens - extra) // seq + 1, dtype=np.int64) * seq
    document = np.minimum(np.searchsorted(ends, starts, side="right"), len(ends) - 1)
    return np.stack([document, starts - (ends - sizes[documents])[document]], axis=1)


def _blend_one(dataset: Any, sample: Any, _weights: Any, _count: int, size: int, _verbose: bool) -> None:
    """Fill the indices of a blend of one data set."""
    dataset[:] = 0
    sample[:] = range(size)


def _write_mindrecord(path: str, samples: int, tokens: int, columns: tuple[str, ...] = ("input_ids",)) -> None:
    """Write `samples` rows of `tokens` token ids in each column, unless another run has."""
    import fcntl

    done = path + ".done"
    with open(path + ".lock", "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(done):  # noqa: PTH110
            _write_rows(path, samples, tokens, columns)
            open(done, "w").close()  # noqa: PTH123, SIM115


def _write_rows(path: str, samples: int, tokens: int, columns: tuple[str, ...]) -> None:
    import numpy as np
    from mindspore.mindrecord import FileWriter

    for stale in (path, path + ".db"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(stale)  # noqa: PTH107
    writer = FileWriter(path, 1)
    writer.add_schema({column: {"type": "int32", "shape": [-1]} for column in columns}, "synthetic tokens")
    row = (np.arange(tokens) % 1000).astype(np.int32)
    writer.write_raw_data([dict.fromkeys(columns, row) for _ in range(samples)])
    writer.commit()


def _message(error: BaseException) -> str:
    """The part of a framework's message a user can act on: its text up to the first separator of C++ traces."""
    text = str(error).split("\n\n---")[0].strip()
    return f"{type(error).__name__}: {text}"


def _finish(report: dict[str, Any], status: int) -> NoReturn:
    report["seconds"] = time.monotonic() - _STARTED
    sys.stdout.write(f"\n{MARK}{json.dumps(report)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)
    _leave_within(_EXIT_S)
    sys.exit(0)


def _leave_within(seconds: float) -> None:
    """Let the framework release its pool (it then prints the peak with fragments), but not for longer."""
    import threading

    watch = threading.Timer(seconds, os._exit, args=(0,))
    watch.daemon = True
    watch.start()


if __name__ == "__main__":
    main()
