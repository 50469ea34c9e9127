"""What a rank holds: laws over every framework and kind of network, and that memory and time count the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Cluster
from planner.cost.experts import default_etp, legal_etp, usual_etp
from planner.cost.memory.peak import memory
from planner.cost.memory.rules import bytes_of, rules_for
from planner.cost.parameters import rank_parameters
from planner.cost.strategies import Strategies, Strategy
from planner.cost.time.setting import default_execution, setting
from planner.cost.time.stages import held_CS, layer_counts
from planner.inputs import workload_for
from planner.legality.apply import violations
from planner.legality.context import Context
from planner.model.load import find, from_config
from planner.model.operators import parameter_count, parameter_shards
from planner.model.records import Model, Workload

#: Every kind of network: dense, tied, four norms, latent attention, shared experts, gated ones, MTP.
MODELS = ("llama-3.1-8b", "qwen2.5-0.5b", "glm-4-9b", "glm-4-9b-0414", "mixtral-8x7b", "qwen2-57b-a14b",
          "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3")  # fmt: skip
#: Kinds of layers that only newer families have: sinks and biases of experts, norms of whole queries, sparse indexers,
#: one norm a layer, a norm of the embedding, dense layers between MoE layers; from published.json.
NEWER = ("gpt-oss-20b", "MiniMax-M2", "DeepSeek-V3.2", "OLMo-2-7B", "Command-R7B", "BLOOM-7B1", "Llama-4-Maverick text")
PUBLISHED = {
    row["name"]: row["config"]
    for row in json.loads((Path(__file__).parents[1] / "model" / "published.json").read_text(encoding="utf-8"))
}
FRAMEWORKS = ("mindformers", "mindformers-legacy", "mindformers-pynative", "mindspeed", "megatron")


def workload_of(framework: str, model: Model) -> Workload:
    work = workload_for(model, 8, seq=4096, global_batch=64, framework=framework)  # type: ignore[arg-type]
    return replace(work, moments=2)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Model, Workload, Strategy]:
    """A legal strategy of any framework."""
    name, framework = draw(st.sampled_from((*MODELS, *NEWER))), draw(st.sampled_from(FRAMEWORKS))
    model = find(name) if name in MODELS else from_config(PUBLISHED[name], name=name)
    tp, cp, dp, pp = (draw(st.sampled_from(choices)) for choices in ((1, 2, 4), (1, 2), (1, 2, 4, 8), (1, 2, 4)))
    experts = model.moe.experts if model.moe else 1
    ep = draw(st.sampled_from([d for d in (1, 2, 4, 8, 16) if experts % d == 0]))
    width = model.moe.expert_ffn if model.moe else 1
    etp = draw(st.sampled_from(legal_etp(framework, experts=model.moe is not None, tp=tp, width=width)[:4]))
    level = draw(st.sampled_from({"mindformers-pynative": (0, 3), "mindspeed": (0, 1)}.get(framework, (0, 1, 2, 3))))
    layers = tuple(model.layers // pp + (stage < model.layers % pp) for stage in range(pp))
    micro = 64 // dp
    strategy = Strategy(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, layers=(layers,), recompute_full=(0,) * pp,
        recompute_selective=(0,) * pp, micro_batches=micro, sequence_parallel=tp > 1, zero_level=level,
        optimizer_shard=dp * cp if level else 1,
    )  # fmt: skip
    work = workload_of(framework, model)
    context = Context(
        model=model, workload=work, cluster=Cluster(hardware=hardware("910b3"), devices=dp * tp * cp * pp)
    )
    assume(not [v for v in violations(context, strategy) if v.code not in ("mtp", "fused-experts")])
    return model, work, strategy


def parameters(model: Model, work: Workload, strategy: Strategy):  # type: ignore[no-untyped-def]
    table = Strategies.of([strategy])
    given_ = time_setting(model, work, strategy)
    numbers = {kind: count.all for kind, count in layer_counts(given_).items()}
    return rank_parameters(model, table, numbers, rules_for(work))


def time_setting(model: Model, work: Workload, strategy: Strategy):  # type: ignore[no-untyped-def]
    profile = hardware("910b3")
    constants = {key: constant.value for key, constant in calibration(profile, work.framework).constants.items()}
    cluster = Cluster(hardware=profile, devices=strategy.devices)
    return setting(model, work, cluster, constants, Strategies.of([strategy]), default_execution(work))


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_experts_of_all_ranks_are_the_models_times_their_copies(layout: tuple[Model, Workload, Strategy]) -> None:
    model, work, s = layout
    ranks, copies = s.dp * s.cp * s.tp, s.dp * s.cp * s.tp / (s.ep * s.etp)
    held = parameters(model, work, s).experts_CS()[0]
    assert float(held.sum()) * ranks == parameter_shards(model).expert * copies
    assert copies == int(copies)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_ranks_hold_at_least_the_model(layout: tuple[Model, Workload, Strategy]) -> None:
    """Nothing vanishes: tp x ep x etp ranks with one copy of each part hold every parameter once or more."""
    model, work, s = layout
    found = parameters(model, work, s)
    dense, expert = found.dense_CS()[0].sum(), found.experts_CS()[0].sum()
    apart = s.dp * s.cp if model.family.startswith("glm") and work.framework == "mindformers-legacy" else 1
    apart = apart * (s.cp if work.framework == "mindformers-legacy" else 1)  # tables are split over cp as well
    assert dense * s.tp * apart + expert * s.ep * s.etp >= parameter_count(model) * (1 - 1e-12)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_static_bytes_of_all_ranks_reach_the_floor_of_the_frameworks_table(
    layout: tuple[Model, Workload, Strategy],
) -> None:
    """Every parameter is stored, has its moments, and its gradient where gradients have a place, at least once."""
    model, work, s = layout
    rules = rules_for(work)
    each = bytes_of(work.params_dtype) + work.moments * bytes_of(work.states_dtype)
    each += 4.0 * work.master_weights
    if rules.sharded_weights:
        each += bytes_of(work.params_dtype) * (s.pp > 1 or s.micro_batches > 1)
    else:
        each += bytes_of(work.grads_dtype)
    static = memory(model, work, Strategies.of([s])).static_bytes_CS[0].sum() * s.dp * s.cp * s.tp
    assert static >= parameter_count(model) * each * (1 - 1e-9)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_memory_and_time_count_the_same_parameters(layout: tuple[Model, Workload, Strategy]) -> None:
    """Parameters without any sharding, in bytes of memory, are the number that time reduces and updates."""
    model, work, s = layout
    plain = replace(s, zero_level=0, optimizer_shard=1)
    given_ = time_setting(model, work, plain)
    held = held_CS(given_, layer_counts(given_))
    stored = memory(model, work, Strategies.of([plain])).terms["parameters"][0] / bytes_of(work.params_dtype)
    np.testing.assert_allclose((held.dense + held.expert)[0], stored, rtol=1e-12)


@pytest.mark.parametrize(
    ("framework", "name", "stage", "expected"),
    [
        # 256 experts on 8 ranks of 58 layers; shared experts whole in mcore networks, split over tp 4 elsewhere
        ("mindformers", "deepseek-v3", 1, 29 * (256 * 44_040_192 / 8 + 44_040_192)),
        ("mindspeed", "deepseek-v3", 1, 29 * (256 * 44_040_192 / 8 + 44_040_192 / 4)),
    ],
)
def test_shared_experts_of_a_stage(framework: str, name: str, stage: int, expected: float) -> None:
    """Stage 1 of DeepSeek-V3 on tp 4, pp 2, ep 8: routed and shared experts of its 29 decoder layers."""
    model = replace(find(name), mtp_layers=0)
    work = workload_of(framework, model)
    s = Strategy(
        dp=8, tp=4, pp=2, ep=8, layers=((32, 29),), recompute_full=(0, 0), recompute_selective=(0, 0), micro_batches=8,
        optimizer_shard=8,
    )  # fmt: skip
    bare = replace(model, moe=replace(model.moe, shared_ffn=0))  # type: ignore[type-var]
    with_shared, without = parameters(model, work, s), parameters(bare, work, s)
    extra = (with_shared.dense_CS() - without.dense_CS())[0, stage]
    assert with_shared.experts_CS()[0, stage] + extra == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("framework", "default", "usual", "legal"),
    [
        ("mindformers", 1, (1,), (1,)),
        ("mindformers-pynative", 1, (1,), (1,)),
        ("mindformers-legacy", 4, (1, 4), (1, 4)),
        ("mindspeed", 4, (1, 4), (1, 2, 4, 8)),
        ("megatron", 4, (1, 4), (1, 2, 4, 8)),
    ],
)
def test_expert_degrees_of_each_framework(
    framework: str, default: int, usual: tuple[int, ...], legal: tuple[int, ...]
) -> None:
    assert default_etp(framework, experts=True, tp=4) == default
    assert default_etp(framework, experts=False, tp=4) == 1
    assert usual_etp(framework, experts=True, tp=4) == usual
    assert legal_etp(framework, experts=True, tp=4, width=8) == legal
    assert legal_etp(framework, experts=False, tp=4, width=1) == (1,)
