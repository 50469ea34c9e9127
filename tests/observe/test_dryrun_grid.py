"""The DryRun grid: both ways of reading a point agree, and no axis that it shall cover is missing."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from planner import MemoryEstimator, api
from planner.accuracy.memory import score
from planner.cost.memory.peak import memory
from planner.cost.strategies import Strategies
from planner.dialects.read import read_text_as
from planner.observe.dryrun_grid import GridPoint, read_grid
from tests.cli.runner import run

FOLDER = Path(__file__).parents[2] / "calibration" / "dryrun"
GRID = FOLDER / "grid.csv"
Row = Mapping[str, str]


def load(name: str) -> ModuleType:
    """A module of the grid's folder, under the name its siblings import it by."""
    if name == "points":
        load("configs")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with GRID.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def points() -> list[GridPoint]:
    return read_grid(GRID)


def typed(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def as_yaml(row: Row) -> str:
    """The MindFormers file that the point was run with."""
    configs = load("configs")
    point = configs.Point(**{f.name: typed(row[f.name]) for f in fields(configs.Point) if row.get(f.name)})
    return yaml.safe_dump(configs.config(point), sort_keys=False)


def peaks(found: Any) -> list[float]:
    """Peak of every stage [bytes]."""
    return memory(found.model, found.workload, Strategies.of([found.strategy])).peak_bytes_CS[0].tolist()


# ------------------------------------------------------------------------------------------------- one point, two ways


def test_every_point_read_from_its_yaml_is_predicted_as_the_accuracy_table_does(
    rows: list[dict[str, str]], points: list[GridPoint]
):
    """To the byte, for all stages; and nothing of the file is left unread that memory depends on."""
    assert len(rows) == len(points) >= 100
    for row, point in zip(rows, points, strict=True):
        found = read_text_as(Path(f"{row['id']}.yaml"), as_yaml(row))
        assert (row["id"], peaks(found)) == (point.point_id, peaks(point))
        assert [line for line in found.unread if "memory counts" not in line] == [], row["id"]


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "deepseek3"])
def test_estimate_of_a_yaml_is_what_the_accuracy_table_holds(family: str, rows: list[dict[str, str]], tmp_path: Path):
    """`planner estimate --from`, `MemoryEstimator` and `planner accuracy memory` give one number, terms its sum."""
    table = {row.case_id: row.predicted_bytes for row in score(GRID).group(f"DryRun {family}").rows}
    row = next(row for row in rows if row["family"] == family and row["stage"] != "0")
    stage, path = int(row["stage"]), tmp_path / "pretrain.yaml"
    path.write_text(as_yaml(row))
    answer = run(f"estimate --from {path} --json").document["stages"][stage]
    assert answer["peak_gib"] * 2**30 == table[row["id"]]
    assert sum(answer["terms_gib"].values()) == pytest.approx(answer["peak_gib"])
    estimator = MemoryEstimator.from_mindformers(path)
    assert estimator.peak(stage=stage) == table[row["id"]]
    assert api.estimate_of(estimator.request, estimator.strategy).stage_peak_bytes[stage] == table[row["id"]]


# -------------------------------------------------------------------------------- stages that are not in the grid

DEEP = {"pp": 4, "micro_batches": 4, "seq": 2048}
UNEVEN = {**DEEP, "layers": 6, "offset": [0, 1, 1, 0]}
CHUNKS = {"vpp": 2, "micro_batches": 4, "seq": 2048}
WHOLE = {"layers": 2, "pp": 1, "micro_batches": 1, "vocab_emb_dp": True}

#: Network, what differs from its base in points.py, and the peak that MindSpore 2.9 reports [bytes].  No term comes
#: from these, but the whole vocabulary (WHOLE) and what selective recompute drops in dense layers of DeepSeek3.
MEASURED: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("LLAMA", {**DEEP, "layers": 7, "offset": [0, 1, 1, 1], "recompute": [1, 1, 0, 0], "stage": 1}, 351_913_984),
    ("MOE", {**UNEVEN, "recompute": [0, 1, 0, 0], "stage": 1}, 477_067_264),
    ("DEEPSEEK", {**UNEVEN, "recompute": [0, 0, 1, 0], "stage": 2}, 441_042_944),
    ("DEEPSEEK", {**UNEVEN, "stage": 3}, 1_547_466_752),
    ("QWEN3", {**CHUNKS, "layers": 6, "offset": [[1, 0], [0, 1]], "recompute": [[1, 0], [0, 0]]}, 821_746_688),
    ("MOE", {**CHUNKS, "layers": 6, "offset": [[1, 0], [0, 1]], "param_dtype": "bfloat16", "select_recompute": True,
             "stage": 1}, 1_174_848_000),
    ("DEEPSEEK", {**CHUNKS, "layers": 4}, 728_007_168),
    ("DEEPSEEK", {**CHUNKS, "layers": 4, "stage": 1}, 1_826_345_472),
    ("DEEPSEEK", {**CHUNKS, "layers": 4, "first_dense": 0}, 831_178_240),
    ("DEEPSEEK", {"layers": 2, "first_dense": 0, "cp": 2, "mtp": 0, "stage": 1}, 1_272_683_520),
    ("MOE", {"layers": 2, "cp": 2, "dp": 2, "stage": 1}, 1_310_996_992),
    ("DEEPSEEK", {"layers": 2, "pp": 1, "seq": 2048}, 1_646_923_776),
    ("DEEPSEEK", {"layers": 2, "first_dense": 0, "seq": 32768, "recompute": True, "mtp": 0}, 2_213_529_088),
    ("DEEPSEEK", {"first_dense": 2}, 743_186_432),
    ("DEEPSEEK", {"first_dense": 2, "select_recompute": True}, 692_852_736),
    ("LLAMA", {"layers": 8, "sequence_parallel": False, "recompute": True, "slice_activation": True}, 873_739_264),
    ("LLAMA", WHOLE, 2_110_276_608),
    ("LLAMA", {**WHOLE, "micro_batches": 2}, 2_325_444_608),
    ("LLAMA", {**WHOLE, "tp": 4}, 1_668_940_800),
    ("LLAMA", {**WHOLE, "cp": 2}, 1_380_572_672),
)  # fmt: skip


def test_stages_measured_beside_the_grid():
    """Read from their YAML: 1 % on average, 4 % at worst, at most 1 % too low."""
    errors = []
    for base, changes, peak_bytes in MEASURED:
        point = replace(getattr(load("points"), base), **changes)
        found = read_text_as(Path("pretrain.yaml"), yaml.safe_dump(load("configs").config(point), sort_keys=False))
        errors.append(100 * (peaks(found)[point.stage] / peak_bytes - 1))
    assert sum(map(abs, errors)) / len(errors) <= 1.0
    assert max(errors) <= 4.0
    assert min(errors) >= -1.0


# ------------------------------------------------------------------------------------------------------------ coverage


def place(row: Row) -> str:
    stage, pp = int(row["stage"]), int(row["pp"])
    return "only" if pp == 1 else "first" if stage == 0 else "last" if stage == pp - 1 else "middle"


def recomputed(row: Row) -> set[str]:
    """Kinds of recompute of a point."""
    full, some = typed(row["recompute"]), typed(row["select_recompute"])
    kinds = {"full"} if full is True else set()
    kinds |= {"selective"} if some else set()
    kinds |= {"per stage"} if isinstance(full, list) or isinstance(some, list) else set()
    return kinds or {"none"}


def value(name: str) -> Callable[[Row], set[Any]]:
    return lambda row: {typed(row[name])}


def context_parallel(row: Row) -> set[str]:
    return {row["cp_algo"]} if row["cp"] != "1" else set()


DENSE, EXPERTS = ("llama", "qwen3"), ("qwen3_moe", "deepseek3")
ALL = DENSE + EXPERTS

#: Axis, how it is read from a row, families, and values that every one of these families has to have.
COVERED: tuple[tuple[str, Callable[[Row], set[Any]], tuple[str, ...], set[Any]], ...] = (
    ("tp", value("tp"), ALL, {1, 2, 4}),
    ("pp, dense", value("pp"), DENSE, {1, 2, 4}),
    ("pp, experts", value("pp"), EXPERTS, {2}),
    ("vpp", value("vpp"), (*DENSE, "qwen3_moe"), {1, 2}),
    ("dp, dense", value("dp"), DENSE, {1, 2, 4}),
    ("dp, experts", value("dp"), EXPERTS, {2, 4, 8}),
    ("cp, dense", value("cp"), DENSE, {1, 2, 4}),
    ("cp, experts", value("cp"), EXPERTS, {1, 2}),
    ("ring", context_parallel, ALL, {"colossalai_cp"}),
    ("ulysses", context_parallel, ("llama",), {"ulysses_cp"}),
    ("ep", value("ep"), EXPERTS, {1, 2, 4}),
    ("micro-batch size", value("mbs"), ALL, {1, 2}),
    ("micro-batches", value("micro_batches"), DENSE, {1, 2, 4}),
    ("sequence", value("seq"), ALL, {2048, 4096, 8192}),
    ("long sequence", value("seq"), DENSE, {32768}),
    ("sequence parallel", value("sequence_parallel"), ALL, {True, False}),
    ("recompute", recomputed, ALL, {"none", "full", "selective"}),
    ("recompute per stage", recomputed, (*DENSE, "qwen3_moe"), {"per stage"}),
    ("optimizer sharding", value("optimizer_shard"), ALL, {True, False}),
    ("gradient sharding", value("grad_accum_shard"), (*DENSE, "qwen3_moe"), {True, False}),
    ("small vocabulary", value("vocab"), ALL, {8192, 32000}),
    ("large vocabulary", lambda row: {int(row["vocab"]) >= 128000}, (*DENSE, "qwen3_moe"), {True, False}),
    ("stage", lambda row: {place(row)}, ALL, {"first", "last"}),
    ("middle stage", lambda row: {place(row)}, DENSE, {"middle"}),
    ("parameters", value("param_dtype"), ALL, {"float32", "bfloat16"}),
    ("narrow parameters", value("param_dtype"), DENSE, {"float16"}),
    ("mask", value("mask_compression"), (*DENSE, "qwen3_moe"), {True, False}),
    ("MTP", value("mtp"), ("deepseek3",), {0, 1}),
    ("attention operator", value("flash"), (*DENSE, "qwen3_moe"), {True, False}),
    ("ring attention", value("ring"), ("llama",), {True, False}),
    ("parts of a batch", value("interleave"), ("llama",), {1, 2}),
    ("pieces of a sequence", value("seq_split"), ("llama",), {1, 2, 4}),
    ("swapped moments", value("swap_optimizer"), DENSE, {True, False}),
    ("gathers again", value("select_comm"), DENSE, {True, False}),
)  # fmt: skip


@pytest.mark.parametrize(("axis", "values", "families", "needed"), COVERED, ids=[each[0] for each in COVERED])
def test_the_grid_covers(
    axis: str,
    values: Callable[[Row], set[Any]],
    families: tuple[str, ...],
    needed: set[Any],
    rows: list[dict[str, str]],
):
    for family in families:
        found = set().union(*(values(row) for row in rows if row["family"] == family))
        assert needed <= found, f"{axis}: {family} lacks {needed - found}"
