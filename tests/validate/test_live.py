"""DryRuns of real MindFormers networks: the recorded grid can be remade, and what it says of memory holds.

Six networks, dense and MoE, each with a pipeline. They fail where MindSpore is missing, unless PLANNER_NO_MINDSPORE=1
says that this is meant. PLANNER_MINDSPORE_PYTHON names another interpreter that has it.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from planner import inputs
from planner.cost.memory.peak import memory
from planner.cost.strategies import Strategies
from planner.cost.time.groups import groups
from planner.cost.time.volumes import setting_of
from planner.errors import ValidationError
from planner.observe.dryrun_grid import read_grid
from planner.validate.compiler.dryrun import DryRunReport, DryRunSettings, dryrun
from planner.validate.compiler.prepare import read_layout
from planner.validate.traffic.comparison import compare
from planner.validate.traffic.volumes import read_collectives, volumes

pytestmark = [
    pytest.mark.dryrun,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("PLANNER_NO_MINDSPORE") == "1", reason="PLANNER_NO_MINDSPORE=1"),
]

GRID = Path(__file__).parents[2] / "calibration/dryrun"
NAMES = ("llama-first", "llama-last", "qwen3-first", "qwen3-last-recompute", "qwen3_moe-first", "deepseek3-last")


def load(name: str) -> ModuleType:
    """A module of the grid's folder, under the name its siblings import it by."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, GRID / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


configs, points = load("configs"), load("points")
POINTS = dict(zip(NAMES, points.ci_points(), strict=True))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DryRunSettings:
    """A cache of this module's own: stand-ins are built, nothing is taken from earlier runs."""
    return DryRunSettings(cache=tmp_path_factory.mktemp("cache"), timeout_s=600.0, exact=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the compiled graphs."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def reports(settings: DryRunSettings, kept: Path) -> dict[str, DryRunReport]:
    """All six, two at a time."""

    def run(name: str) -> DryRunReport:
        point = POINTS[name]
        own = replace(settings, keep=kept / name, graphs=True)
        return dryrun(configs.config(point), [point.stage], own)

    run(NAMES[0])  # builds the stand-ins
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(NAMES, pool.map(run, NAMES), strict=True))


def recorded(point: Any) -> dict[str, str]:
    """Row of grid.csv for a point."""
    wanted = {name: getattr(point, name) for name in point.__dataclass_fields__}
    with (GRID / "grid.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if all(row[name] == str(value) for name, value in wanted.items()):
                return row
    pytest.fail(f"{point} is not in grid.csv: run calibration/dryrun/run_grid.py")


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_peak_can_be_remade(reports: dict[str, DryRunReport], name: str) -> None:
    row, stage = recorded(POINTS[name]), reports[name].stages[0]
    assert (stage.mindspore, stage.mindformers) == (row["mindspore"], row["mindformers"])
    assert stage.peak_bytes == int(row["peak_bytes"])
    assert stage.static_bytes == int(row["static_bytes"])


@pytest.mark.parametrize("name", NAMES)
def test_terms_add_up(reports: dict[str, DryRunReport], name: str) -> None:
    stage = reports[name].stages[0]
    assert sum(stage.terms.values()) == stage.peak_bytes
    assert stage.static_bytes < stage.peak_bytes <= stage.peak_with_fragments_bytes + (1 << 20)
    kept_always = sum(stage.terms[name] for name in ("parameters", "moments", "gradient_accumulation"))
    assert kept_always <= stage.static_bytes


def test_static_bytes_of_llama_by_hand(reports: dict[str, DryRunReport]) -> None:
    """One layer and the embedding, fp32, TP 2; matrices split over DP 2, the embedding and the two norms not.

    Ten parameters; each block is 512 bytes longer than its content.
    """
    matrices = 512 * 512 * 2 + 2 * 512 * 256 + 3 * 512 * 1536
    split, whole = matrices // 2 // 2, 8192 * 512 // 2 + 2 * 512
    terms = reports["llama-first"].stages[0].terms
    assert terms["moments"] == 8 * (split + whole) + 20 * 512
    assert terms["gradient_accumulation"] == 4 * (2 * split + whole) + 10 * 512


def test_loss_of_the_last_stage(reports: dict[str, DryRunReport]) -> None:
    """mcore: four tensors of 4 bytes, tokens x vocabulary / TP."""
    logits = 1024 * 8192 // 2 * 4
    assert reports["qwen3-last-recompute"].stages[0].terms["head_and_loss"] == pytest.approx(4 * logits, rel=0.05)


def test_collectives_of_a_dense_rank(reports: dict[str, DryRunReport], kept: Path) -> None:
    assert "qwen3-first" in reports
    layout = read_layout(configs.config(POINTS["qwen3-first"]))
    found = {(v.group, v.primitive): v for v in volumes(read_collectives(kept / "qwen3-first"), layout)}
    activation = 1024 * 512 * 2  # bf16 [seq, hidden]
    assert found["pp", "Send"].count == 2
    assert found["pp", "Send"].payload_bytes == 2 * activation // 2
    # one layer, two micro-batches: two gathers forward and two backward, and the embedding's gradient in fp32
    assert found["tp", "AllGather"].count == 2 * (4 + 1)
    assert found["tp", "AllGather"].payload_bytes == 2 * (4 * activation + 2 * activation)
    # once a step: qkv, proj, fc1, fc2 in bf16, the embedding in fp32, and the step's tokens
    layer = (1024 * 512 + 512 * 512 + 3072 * 512 + 512 * 1536) // 2 * 2
    assert found["dp", "AllGather"].count == 6
    assert found["dp", "AllGather"].payload_bytes == layer + 8192 * 512 // 2 * 4 + 2 * 2 * 1024 * 4


#: What is compiled exactly as it is priced, without a known difference.  Elsewhere the rules of docs/dryrun.md apply.
AGREED = {name: {("dp", "reduce")} for name in NAMES} | {
    "llama-first": {("dp", "reduce"), ("tp", "reducescatter")},
    "deepseek3-last": set(),
}


@pytest.mark.parametrize("name", NAMES)
def test_planned_collectives_are_those_of_the_compiler(
    reports: dict[str, DryRunReport], kept: Path, name: str, tmp_path: Path
) -> None:
    """By group and collective: planned plus the known differences of docs/dryrun.md, number and bytes, exactly."""
    assert name in reports
    point = POINTS[name]
    config = configs.config(point)
    source = tmp_path / "pretrain.yaml"
    source.write_text(yaml.safe_dump(config), encoding="utf-8")
    request, strategy, _ = inputs.read(source)
    given = setting_of(request.model, request.workload, request.cluster, request.calibration, strategy)
    rows = compare(given, point.stage, read_collectives(kept / name), read_layout(config))
    kinds = {"tp", "pp", "dp"} | ({"ep"} if point.is_moe else set())
    assert {row.group for row in rows if row.planned_count} == kinds
    assert {row.group for row in rows if row.compiled_count} - {"other"} == kinds
    counted = [row for row in rows if row.group != "other"]
    left = {(row.group, row.primitive): (row.unexplained_count, row.unexplained_bytes) for row in counted}
    assert left == dict.fromkeys(left, (0.0, 0.0))
    assert {(row.group, row.primitive) for row in counted if not row.known} == AGREED[name]
    rest = sum(row.compiled_bytes for row in rows if row.group == "other")
    assert rest < 0.005 * sum(row.compiled_bytes for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_communicators_are_the_predicted_ones(reports: dict[str, DryRunReport], kept: Path, name: str) -> None:
    """Groups of more than one rank that MindSpore logs, beside the world's."""
    point, stage = POINTS[name], reports[name].stages[0].stage
    log = (kept / name / f"stage-{stage}/run.log").read_text(errors="replace")
    made = re.findall(r"Create collective communication group: \S+ \[const vector\]\{([\d, ]+)\}", log)
    row = next(row for row in read_grid(GRID / "grid.csv") if row.point_id == recorded(point)["id"])
    wanted = groups(row.strategy, row.workload.framework, experts=point.is_moe, stage=stage)
    ranks = Counter(", ".join(map(str, group.ranks)) for group in wanted if group.name != "world")
    assert ranks == Counter(text for text in made if "," in text)


#: A small legacy mixture: 8 experts over ep 2, dp 2, tp 2, pp 2.
MIXTURE = """
run_mode: train
use_parallel: True
runner_config: {epochs: 1, batch_size: 1, sink_mode: True, sink_size: 1}
optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1.e-8}
train_dataset: &train_dataset
  data_loader: {type: MindDataset, dataset_dir: /data/train}
  input_columns: [input_ids]
  batch_size: 1
train_dataset_task: {type: CausalLanguageModelDataset, dataset_config: *train_dataset}
parallel:
  parallel_mode: 1
  full_batch: True
  enable_parallel_optimizer: True
  parallel_optimizer_config: {gradient_accumulation_shard: False, parallel_optimizer_threshold: 64}
parallel_config: {data_parallel: 2, model_parallel: 2, pipeline_stage: 2, expert_parallel: 2, micro_batch_num: 2,
                  use_seq_parallel: True, vocab_emb_dp: False, gradient_aggregation_group: 4}
micro_batch_interleave_num: 1
recompute_config: {recompute: True, parallel_optimizer_comm_recompute: False, mp_comm_recompute: True,
                   recompute_slice_activation: True}
context: {mode: 0, device_target: Ascend, max_device_memory: 58GB}
moe_config: {expert_num: 8, capacity_factor: 1.5, num_experts_chosen: 2, routing_policy: TopkRouterV2}
trainer: {type: CausalLanguageModelingTrainer}
model:
  arch: {type: LlamaForCausalLM}
  model_config: {type: LlamaConfig, batch_size: 1, seq_length: 2048, hidden_size: 1024, num_layers: 4, num_heads: 8,
                 n_kv_heads: 8, vocab_size: 32000, intermediate_size: 4096, rms_norm_eps: 1.0e-5,
                 compute_dtype: bfloat16, param_init_type: float32, layernorm_compute_type: float32,
                 softmax_compute_type: float32, rotary_dtype: float32, use_flash_attention: True}
"""


@pytest.mark.parametrize(("written", "etp"), [("", 2), (", expert_model_parallel: 1", 1)])
def test_a_legacy_mixture_splits_its_experts_as_predicted(
    settings: DryRunSettings, tmp_path: Path, written: str, etp: int
) -> None:
    """Over ep x tp, and over ep alone when told so: gradients of a stage are 0.26 and 0.45 GiB."""
    path = tmp_path / "mixture.yaml"
    path.write_text(MIXTURE.replace("TopkRouterV2}", f"TopkRouterV2{written}}}"))
    request, strategy, _ = inputs.read(path)[:3]
    assert strategy.etp == etp
    stage = dryrun(path, [0], settings).stages[0]
    predicted = memory(request.model, request.workload, Strategies.of([strategy]))
    assert stage.peak_bytes == pytest.approx(predicted.peak_bytes_CS[0, 0], rel=0.01)
    assert stage.terms["gradient_accumulation"] == pytest.approx(predicted.terms["gradients"][0, 0], rel=0.02)


def test_fewer_micro_batches_have_the_same_peak(settings: DryRunSettings) -> None:
    """The default run shrinks six micro-batches to three; the exact run has all six.

    With two, which just fill the pipeline, Qwen3's gathered embedding is freed before the peak: 12 % less.
    """
    config = configs.config(replace(POINTS["qwen3-first"], micro_batches=6))
    exact = dryrun(config, [0], settings)
    shrunk = dryrun(config, [0], replace(settings, exact=False))
    assert (exact.stages[0].micro_batches, shrunk.stages[0].micro_batches) == (6, 3)
    assert shrunk.stages[0].peak_bytes == pytest.approx(exact.stages[0].peak_bytes, rel=0.002)


def test_an_unknown_key_is_reported_in_the_framework_s_words(settings: DryRunSettings) -> None:
    config = configs.config(POINTS["qwen3-first"])
    config["parallel_config"]["tensor_parallel"] = 2
    with pytest.raises(ValidationError, match="KeyError: .*'parallel_config' gets an unexpected key: tensor_parallel"):
        dryrun(config, [0], settings)


def test_a_refused_file_is_reported_in_the_framework_s_words(settings: DryRunSettings) -> None:
    config = configs.config(replace(POINTS["qwen3-first"], heads=6, kv_heads=6, tp=4))
    with pytest.raises(
        ValidationError,
        match=r"stage 0 \(rank 0\) ended with exit status 1: .*num_attention_heads \(6\) must be a multiple",
    ):
        dryrun(config, [0], settings)
