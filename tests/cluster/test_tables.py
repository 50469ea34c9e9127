"""Tables of measured shapes and sizes: they hold at their points, fade away from them, and are read back as written."""

import dataclasses

import numpy as np
import pytest

from planner.cluster.load import calibration, calibration_file, hardware
from planner.cluster.records import Cluster
from planner.cluster.schema_tables import tables_from, tables_to_dict
from planner.cluster.tables import Measured, ShapeTable, SizeTable, shape_factor, size_seconds
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.step import step_time
from planner.errors import CalibrationError
from planner.model.load import find
from planner.model.records import Workload

SHAPES = ShapeTable(
    shapes=((256.0, 256.0, 256.0), (4096.0, 4096.0, 512.0)), log_ratio=(0.3, -0.2), width=1.0, noise=1e-4
)
SIZES = SizeTable(op="allreduce", ranks=8, nodes=1, size_bytes=(2.0**10, 2.0**20), seconds=(1e-4, 1e-3))
TABLES = Measured(dtype="bfloat16", matmul=SHAPES, collectives=(SIZES,))


def fail(words):
    raise CalibrationError(words)


def test_a_table_holds_at_its_shapes_and_fades_far_from_them():
    assert shape_factor(SHAPES, 256, 256, 256) == pytest.approx(np.exp(0.3), rel=1e-6)
    assert shape_factor(SHAPES, 4096, 4096, 512) == pytest.approx(np.exp(-0.2), rel=1e-6)
    assert shape_factor(SHAPES, 2**16, 2**16, 2**16) == pytest.approx(1.0, abs=1e-9)
    assert shape_factor(None, 1, 1, 1) == 1.0


def test_a_shape_costs_the_same_alone_and_among_others():
    m = np.array([128.0, 256.0, 300.0, 4096.0, 128.0])
    together = shape_factor(SHAPES, m, 512.0, 512.0)
    assert together.tolist() == [float(shape_factor(SHAPES, each, 512.0, 512.0)) for each in m]


def test_sizes_between_samples_and_beyond():
    sizes = [1.0, 2.0**10, 2.0**15, 2.0**20, 2.0**24]
    found = size_seconds(SIZES, sizes)
    assert found == pytest.approx([1e-4, 1e-4, 10**-3.5, 1e-3, 1.6e-2])


@pytest.mark.parametrize(
    "changes",
    [
        {"size_bytes": (2.0**20, 2.0**10)},
        {"seconds": (1e-4,)},
        {"seconds": (0.0, 1e-3)},
        {"size_bytes": (), "seconds": ()},
    ],
)
def test_impossible_size_tables(changes):
    with pytest.raises(CalibrationError):
        dataclasses.replace(SIZES, **changes)


@pytest.mark.parametrize(
    "changes", [{"log_ratio": (0.1,)}, {"width": 0.0}, {"shapes": ((0.0, 1.0, 1.0), (1.0, 1.0, 1.0))}]
)
def test_impossible_shape_tables(changes):
    with pytest.raises(CalibrationError):
        dataclasses.replace(SHAPES, **changes)


def test_a_section_is_read_back_as_written():
    assert tables_from(tables_to_dict(TABLES), fail) == TABLES


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ([], "must be a mapping"),
        ({"shapes": []}, "unknown key 'measured.shapes'"),
        ({"matmul": [[1, 2, 3]], "width": 1, "noise": 0.1}, "list of numbers"),
        ({"matmul": [[1, 2, 3, float("nan")]], "width": 1, "noise": 0.1}, "finite number"),
        ({"matmul": [[1, 2, 3, 0.1]]}, "'measured.width' holds None"),
        ({"collectives": [{"op": "sum", "ranks": 2, "nodes": 1, "bytes": [1], "seconds": [1]}]}, "legal: allreduce"),
        ({"collectives": [{"op": "allreduce", "ranks": 2, "nodes": 3, "bytes": [1], "seconds": [1]}]}, "on 3 nodes"),
        (
            {"collectives": [{"op": "allreduce", "ranks": 2, "nodes": 1, "bytes": [2, 1], "seconds": [1, 1]}]},
            "must rise",
        ),
    ],
)
def test_damaged_sections_are_refused_with_their_place(section, words):
    with pytest.raises(CalibrationError, match=words):
        tables_from(section, fail)


def test_a_plan_keeps_the_tables_it_was_priced_with():
    from planner.cluster.kept import from_dict, to_dict

    profile = hardware("910B3")
    record = dataclasses.replace(calibration(profile, "mindformers"), measured=TABLES)
    again, remark = from_dict(to_dict(record, profile, "mindformers"), profile, "mindformers")
    assert (again.measured, remark) == (TABLES, "")


def layers(tp, measured, dtype="bfloat16"):
    model, profile = find("llama2-7b"), hardware("910B3")
    record = dataclasses.replace(calibration(profile, "mindformers"), measured=measured)
    strategy = Strategy(
        dp=8 // tp, tp=tp, pp=1, micro_batches=tp, layers=((32,),), recompute_full=(0,), recompute_selective=(0,)
    )
    work = Workload(seq=4096, global_batch=8, compute_dtype=dtype)
    return step_time(model, work, Cluster(hardware=profile, devices=8), record, Strategies.of([strategy]))


def test_measured_groups_replace_the_library_and_measured_shapes_correct_the_law():
    slow = SizeTable(op="allgather", ranks=8, nodes=1, size_bytes=(1.0, 1e9), seconds=(0.5, 0.5))
    plain = layers(8, Measured())
    assert (layers(8, Measured(collectives=(slow,))).tp_exposed_s / 32).item() > 1.0 > plain.tp_exposed_s.item() / 32
    other = dataclasses.replace(slow, ranks=4)
    assert layers(8, Measured(collectives=(other,))).step_s.item() == plain.step_s.item()
    everywhere = ShapeTable(shapes=((4096.0, 4096.0, 4096.0),), log_ratio=(np.log(2.0),), width=50.0, noise=1e-4)
    twice = Measured(dtype="bfloat16", matmul=everywhere)
    assert layers(1, twice).compute_s.item() == pytest.approx(layers(1, Measured()).compute_s.item() * 4 / 3, rel=0.01)
    assert layers(1, twice, "float16").compute_s.item() == layers(1, Measured(), "float16").compute_s.item()


def test_what_a_file_leaves_out_comes_from_the_shipped_calibration(tmp_path):
    profile = hardware("910B3")
    shipped = calibration(profile, "mindformers")
    (tmp_path / "mine.yaml").write_text(
        "name: mine\ndevice: [910B3]\nframework: [mindformers]\ngeneration: measured\ndate: 2026-12-01\nrows: 3\n"
        "residual_log_p10: -0.1\nresidual_log_p90: 0.1\nconstants:\n"
        "  launch_s: {value: 1.0e-06, low: 1.0e-06, high: 1.0e-06, kind: measured, source: 3 points}\n"
    )
    own = calibration_file(tmp_path / "mine.yaml", profile, "mindformers")
    assert own["launch_s"] == 1e-6
    assert own["matmul_efficiency"] == shipped["matmul_efficiency"]
    assert shipped.constants["matmul_efficiency"].kind == "calibrated"
