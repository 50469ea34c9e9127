"""A profile of an unknown device holds what was reached on it, and says what was not measured."""

import dataclasses

import pytest

from planner.calibrate.own_profile import profile_text
from planner.cluster.load import hardware
from planner.errors import CalibrationError
from planner.measure.raw import Facts
from planner.observe.points import Point

FACTS = Facts(device_target="Ascend", device_name="Ascend999", mindspore="2.9.0", host="here", memory_bytes=64 * 2**30)


def point(kind, op, seconds, dtype="bfloat16", **sizes):
    return Point(kind=kind, op=op, dtype=dtype, mode="graph", sizes=sizes, best_s=seconds, median_s=seconds)


POINTS = (
    point("matmul", "matmul", 2.0 * 4096**3 / 250e12, m=4096, k=4096, n=4096),
    point("matmul", "matmul", 2.0 * 1024**3 / 90e12, m=1024, k=1024, n=1024),
    point("vector", "add", 6.0 * 2**26 / 1.2e12, elements=2**26),
    point("host_copy", "host_to_device", 2**24 / 20e9, dtype="float32", bytes=2**24),
    point("collective", "allgather", 7 / 8 * 2**28 / 100e9, dtype="float32", bytes=2**28, ranks=8, nodes=1),
    point("collective", "allreduce", 20e-6, dtype="float32", bytes=2**10, ranks=8, nodes=1),
)


def test_rates_are_the_best_reached(tmp_path):
    (tmp_path / "own.yaml").write_text(profile_text(POINTS, FACTS))
    own = hardware(tmp_path / "own.yaml")
    assert own.device.peak("bfloat16") == pytest.approx(250e12)
    assert own.device.hbm_bytes_per_s == pytest.approx(1.2e12)
    assert own.device.host_bytes_per_s == pytest.approx(20e9)
    assert (own.name, own.device.hbm_bytes, own.devices_per_node) == ("Ascend999", 64 * 2**30, 8)
    assert own.node.link_bytes_per_s == pytest.approx(100e9)
    assert own.node.latency_s == pytest.approx(20e-6)
    assert "not measured" in own.sources["network.port"]


@pytest.mark.parametrize(
    ("kept", "words"),
    [(POINTS[2:], "a matmul"), (POINTS[:4], "a collective"), ((*POINTS[:2], *POINTS[3:]), "a stream")],
)
def test_no_profile_is_made_up(kept, words):
    with pytest.raises(CalibrationError, match=f"without {words}"):
        profile_text(kept, FACTS)
    with pytest.raises(CalibrationError, match="the size of its memory"):
        profile_text(POINTS, dataclasses.replace(FACTS, memory_bytes=0))
