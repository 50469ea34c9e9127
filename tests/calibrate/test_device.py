"""A device's constants from points made with known ones; files that say what they are made of."""

import numpy as np
import pytest

from planner.calibrate.device import fit_device
from planner.calibrate.device_file import Origin, calibration_text, fallen_back
from planner.cluster.load import calibration, calibration_file, hardware
from planner.errors import CalibrationError
from planner.observe.points import Point

CPU = hardware("cpu")
BASE = calibration(CPU, "mindformers-legacy")
RATE, STREAM, LAUNCH = 0.5 * 104e9, 0.6 * 20e9, 2e-6
ORIGIN = Origin(
    name="made", date="2026-12-01", device="a made-up core", software="MindSpore 2.9.0", sources=("made.csv",),
    unsupported={"graph flash float32": "no kernel"},
)  # fmt: skip


def point(kind, op, seconds, mode="graph", **sizes):
    return Point(kind=kind, op=op, dtype="float32", mode=mode, sizes=sizes, best_s=seconds, median_s=seconds)


def made():
    """Points of a device whose constants are known: see `test_constants_are_recovered`."""
    out = []
    for m, k, n in ((512, 256, 256), (512, 256, 704), (1024, 512, 512), (256, 512, 1408), (2048, 256, 256)):
        out.append(point("matmul", "matmul", 2.0 * m * k * n / RATE, m=m, k=k, n=n))
        out.append(point("matmul", "matmul_backward", 4.4 * m * k * n / RATE, m=m, k=k, n=n))
    out.append(point("matmul", "matmul", 1.3 * 2.0 * 512 * 256 * 256 / RATE, m=512, k=256, n=256, ranks=4))
    out += [point("vector", "add", 12.0 * 2**p / STREAM, elements=2**p) for p in (20, 22)]
    out += [point("copy", "copy", 8.0 * 2**p / STREAM, elements=2**p) for p in (20, 22)]
    out += [point("launch", "tiny", LAUNCH), point("launch", "tiny", 5 * LAUNCH, mode="pynative")]
    out += [point("launch", "step", 3e-4, rows=4, columns=128)]
    norm = 3.0 * 14.0 * 512 * 256 / STREAM
    out += [point("vector", "norm", norm + 7 * LAUNCH, rows=512, columns=256)]
    out += [point("vector", "norm_backward", 3.5 * norm + 20 * LAUNCH, rows=512, columns=256)]
    out += [point("loss", "cross_entropy", 60.0 * 512 * 2048 / STREAM + 16 * LAUNCH, rows=512, vocab=2048)]
    out += [point("optimizer", "adamw", 1.5 * 28.0 * 2**22 / STREAM, parameters=2**22)]
    return out


def test_constants_are_recovered():
    found = {key: constant.value for key, constant in fit_device(made(), CPU, BASE).constants.items()}
    expected = {
        "matmul_efficiency": 0.5, "matmul_backward": 2.2, "vector_efficiency": 0.6, "hbm_efficiency": 0.6,
        "launch_s": 2e-6, "host_launch_s": 1e-5, "step_fixed_s": 3e-4, "norm_slowdown": 3.0, "norm_backward": 2.5,
        "loss_bytes": 60.0, "optimizer_slowdown": 1.5, "crowding": 0.1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=0.03)
    assert set(found) == set(expected) | {"matmul_k0"}


def test_what_is_not_measured_is_left_out_and_named():
    fit = fit_device([p for p in made() if p.kind == "matmul"], CPU, BASE)
    assert set(fit.constants) == {"matmul_efficiency", "matmul_k0", "matmul_backward", "crowding"}
    assert fallen_back(fit, BASE)["launch_s"] == "prior"


def test_points_that_say_nothing():
    with pytest.raises(CalibrationError, match="none of the 1 points"):
        fit_device([point("embedding", "embedding", 1e-3, rows=1, vocab=1, columns=1)], CPU, BASE)


def test_a_file_gives_its_constants_and_tables_back(tmp_path):
    fit = fit_device(made(), CPU, BASE)
    (tmp_path / "made.yaml").write_text(calibration_text(fit, CPU, BASE, ORIGIN))
    again = calibration_file(tmp_path / "made.yaml", CPU, "mindformers-legacy")
    for key, constant in fit.constants.items():
        assert again[key] == pytest.approx(constant.value, rel=1e-4), key
    assert (again.measured.dtype, again.rows, again.name) == ("float32", len(made()), "made")
    assert "no kernel" not in (tmp_path / "made.yaml").read_text()
    assert "# Not on this device: graph flash float32." in (tmp_path / "made.yaml").read_text()


def test_a_calibration_of_another_device_is_refused(tmp_path):
    (tmp_path / "made.yaml").write_text(calibration_text(fit_device(made(), CPU, BASE), CPU, BASE, ORIGIN))
    with pytest.raises(CalibrationError, match="is for cpu, not for 910B3"):
        calibration_file(tmp_path / "made.yaml", hardware("910B3"), "mindformers")


def test_marks_are_counted():
    from dataclasses import replace

    points = made()
    points[0] = replace(points[0], mark="noisy")
    assert fit_device(points, CPU, BASE).marks == {"noisy": 1}


def test_doubtful_points_count_only_where_there_are_no_others():
    from dataclasses import replace

    calm = made()
    slow = [
        replace(p, best_s=9 * p.best_s, median_s=9 * p.median_s, mark="loaded", load=0.5) for p in calm if p.op == "add"
    ]
    assert fit_device(calm + slow, CPU, BASE).constants["vector_efficiency"].value == pytest.approx(0.6)
    alone = fit_device([p for p in calm if p.op != "add"] + slow, CPU, BASE).constants["vector_efficiency"]
    assert alone.source == "2 points, all doubtful"
    assert alone.high / alone.low > 3.0


def test_the_type_that_networks_compute_in_is_fitted():
    from dataclasses import replace

    profile = hardware("910B3")
    base = calibration(profile, "mindformers")
    both = [p for p in made() if p.op == "matmul"]
    both += [replace(p, dtype="bfloat16", best_s=p.best_s / 1e3, median_s=p.median_s / 1e3) for p in both]
    fit = fit_device(both, profile, base)
    assert fit.measured.dtype == "bfloat16"
    assert np.median(fit.held_out("matmul")) < 0.05
