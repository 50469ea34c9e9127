"""The log of the emitted MindSpore script."""

from __future__ import annotations

import math

import pytest

from planner.errors import CalibrationError
from planner.observe.native_log import read_native_log

LOG = """[WARNING] ME(12:34): something
rank 1 of 2, process 4711
4262144 parameters
step 1 loss 7.6246 3.905218 s 131 tokens/s/device
step 2 loss 7.5732 0.242792 s 1054 tokens/s/device
parameters and states 25586696 bytes
"""


def test_figures_of_a_rank():
    log = read_native_log(LOG)
    assert (log.rank, log.ranks, log.process, log.parameters) == (1, 2, 4711, 4262144)
    assert [(s.number, s.loss, s.seconds) for s in log.steps] == [(1, 7.6246, 3.905218), (2, 7.5732, 0.242792)]
    assert (log.held_bytes, log.peak_bytes) == (25586696, None)


def test_counters_of_a_device():
    log = read_native_log(LOG.replace("parameters and states 25586696 bytes", "peak 1.500000 GiB"))
    assert (log.held_bytes, log.peak_bytes) == (None, 3 * 2**29)


def test_a_cut_log_gives_what_it_holds():
    log = read_native_log(LOG[: LOG.index("step 2") + 9])
    assert (len(log.steps), log.held_bytes) == (1, None)
    assert read_native_log("").steps == ()


def test_a_loss_that_is_no_number():
    assert math.isnan(read_native_log(LOG.replace("7.5732", "nan")).steps[1].loss)
    assert math.isnan(read_native_log(LOG.replace("7.5732", "??")).steps[1].loss)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step 2", "step 1", "step 1 follows step 1; give the log of one run"),
        ("step 1", "step 7", "step 7 follows step 0"),
        ("0.242792 s", "0.000000 s", "step 2 took 0 s; the clock stepped back"),
    ],
)
def test_two_runs_or_a_bad_clock(old, new, message):
    with pytest.raises(CalibrationError, match=f"worker_1.log: {message}"):
        read_native_log(LOG.replace(old, new), source="worker_1.log")
