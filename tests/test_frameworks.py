"""One record of facts a framework, and no comparison of frameworks' names beside it."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from planner import frameworks, inputs
from planner.cluster.load import calibration, hardware
from planner.cost.memory.kept import layer_tensors
from planner.cost.memory.rules import rules_for
from planner.cost.strategies import SCHEDULES, Strategy
from planner.cost.time.groups import groups
from planner.cost.time.setting import default_execution
from planner.dialects import families
from planner.errors import SpecError
from planner.model.records import DENSE, Workload

ROOT = Path(__file__).parents[1] / "planner"

# One line a fact, in the order of frameworks.NAMES; numbers are those of the sources that the module names.
FACTS = {
    "name": ("mindformers", "mindformers-legacy", "mindformers-pynative", "mindspeed", "megatron"),
    "family": ("mindformers", "mindformers", "mindformers", "mindspeed", "megatron"),
    "dialect": ("mcore", "legacy", "pynative", "megatron", "megatron"),
    "targets": (
        ("mindformers",), ("mindformers", "mindspore"), ("mindformers-pynative",), ("mindspeed",), ("mindspeed",),
    ),
    "ascend": (True, True, True, True, False),
    "graph": (True, True, False, False, False),
    "schedules": (
        ("gpipe", "1f1b", "interleaved", "zero_bubble_v"), ("gpipe", "1f1b", "interleaved", "seqpipe"),
        ("gpipe", "1f1b", "interleaved"), ("1f1b", "interleaved"), ("1f1b", "interleaved"),
    ),
    "zero_levels": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 3), (0, 1), (0, 1, 2, 3)),
    "tensors": ("mcore", "legacy", "pynative", "mindspeed", "megatron"),
    "memory_compared": (True, True, False, True, True),
    "sharded_weights": (True, True, False, False, False),
    "master_copies": (False, False, False, True, True),
    "expert_parts": ("whole", "tp", "whole", "any", "any"),
    "fused_loss": (False, False, False, False, True),
    "transformer_engine": (False, False, False, False, True),
    "least_compressed_seq": (2048, 2048, 2048, 0, 0),
    "sends_parts": (False, False, False, True, True),
    "dense_needs_sp": (False, False, True, False, False),
    "exchanges_heads": (False, True, True, True, True),
    "vocab_multiple": (0, 0, 0, 128, 128),
    "experts_over_cp": (False, True, True, True, True),
    "nested_experts": (False, False, True, False, False),
    "moe_needs_sp": (True, False, True, True, True),
    "most_local_experts": (0, 0, 0, 128, 0),
    "swap_level": (0, 0, 0, 1, 1),
    "swaps_in_pipeline": (True, True, False, True, True),
    "fills_pipeline": (True, True, True, False, False),
    "interleaves_rounds": (False, False, False, True, True),
    "spare_chunks": (None, None, None, 2, 2),
    "most_mtp": (1, 1, 1, None, None),
}  # fmt: skip


@pytest.mark.parametrize("fact", FACTS)
def test_table_of_facts(fact: str) -> None:
    assert tuple(getattr(framework, fact) for framework in frameworks.ALL) == FACTS[fact]


def test_the_table_has_every_fact() -> None:
    assert {field.name for field in fields(frameworks.Framework)} == {*FACTS, "releases"}


def test_releases_are_mindformers_alone() -> None:
    paired = dict(frameworks.of("mindformers").releases)
    assert paired["1.9.0"] == "2.9.0"
    assert [dict(own.releases) for own in frameworks.ALL] == [paired, paired, paired, {}, {}]


def test_one_vocabulary() -> None:
    assert set(frameworks.NAMES) == set(get_args(frameworks.FrameworkName))
    assert {target for own in frameworks.ALL for target in own.targets} == set(frameworks.TARGETS)
    assert {schedule for own in frameworks.ALL for schedule in own.schedules} == set(SCHEDULES)
    assert {own.dialect for own in frameworks.ALL} == set(get_args(frameworks.Dialect))
    by_switch = {"fsdp", "native-cpu"}
    assert {own.tensors for own in frameworks.ALL} | by_switch == set(get_args(frameworks.TensorLayout))


@pytest.mark.parametrize("name", frameworks.NAMES)
def test_every_name_a_user_may_give_is_known_everywhere(name: str) -> None:
    profile = "910b3" if frameworks.of(name).ascend else "h100"
    request = inputs.request_for("8B", 16, profile, framework=name)
    workload = request.workload
    assert workload.runs_on is frameworks.of(name)
    assert workload.runs_on.name == name
    assert inputs.target_of_framework(name) in frameworks.TARGETS
    rules = rules_for(workload)
    assert rules.layout == workload.runs_on.tensors
    assert layer_tensors(request.model, workload, DENSE, rules).kept
    assert default_execution(workload).eager is not workload.runs_on.graph
    plan = Strategy(dp=16, tp=1, pp=1, layers=((32,),), recompute_full=(0,), recompute_selective=(0,), micro_batches=1)
    assert groups(plan, workload.framework, experts=False)[0].ranks == tuple(range(16))


def test_unknown_names_are_refused_with_the_legal_ones() -> None:
    legal = "legal: mindformers, mindformers-legacy, mindformers-pynative, mindspeed, megatron."
    with pytest.raises(SpecError, match=f"framework 'torchtitan' is not known; {legal}"):
        frameworks.of("torchtitan")
    with pytest.raises(SpecError, match="legal: mindformers, mindformers-pynative, mindspeed, mindspore."):
        frameworks.of_target("torchtitan", legacy=False)
    with pytest.raises(SpecError, match=legal):
        _ = Workload(seq=4096, global_batch=8, framework="torchtitan").runs_on  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "family", "name"),
    [
        ("mindformers", "qwen3", "mindformers"),
        ("mindformers", "llama", "mindformers-legacy"),
        ("mindformers", "glm4", "mindformers-legacy"),
        ("mindformers-pynative", "qwen3", "mindformers-pynative"),
        ("mindspeed", "qwen3", "mindspeed"),
        ("mindspeed", "llama", "mindspeed"),
        ("mindspore", "qwen3", "mindformers-legacy"),
        ("mindspore", "llama", "mindformers-legacy"),
    ],
)
def test_framework_of_a_targets_files(target: str, family: str, name: str) -> None:
    assert frameworks.of_target(target, legacy=family in families.LEGACY).name == name


def test_family_lends_its_calibration() -> None:
    device = hardware("910b3")
    assert frameworks.families(ascend=True) == {
        "mindformers": ("mindformers", "mindformers-legacy", "mindformers-pynative"), "mindspeed": ("mindspeed",),
    }  # fmt: skip
    with pytest.raises(SpecError, match="framework 'torchtitan' is not known"):
        calibration(device, "torchtitan")


# --- no comparison of frameworks' names -------------------------------------------------------------------------------

#: Words that are no framework there: names of targets, packages and of where a flag was read, free text of rows.
_OTHER_WORDS = {
    ("dialects/families.py", "_HELD"),  # by target
    ("inputs.py", "default_framework"),  # target
    ("dialects/mindspeed/flags.py", "STATED"),
    ("dialects/mindspeed/weights.py", "WEIGHTS"),  # one flag is called --ai-framework
    ("observe/published.py", "_framework"),
    ("observe/published.py", "_tied"),
}
#: Facts whose values are spelt like frameworks.
_FACTS_SPELT_ALIKE = {"layout", "dialect", "tensors", "family"}


def _names_in(node: ast.AST) -> set[str]:
    found = {own.value for own in ast.walk(node) if isinstance(own, ast.Constant) and isinstance(own.value, str)}
    return found & {*frameworks.NAMES}


def _is_choice(node: ast.AST) -> bool:
    """Whether a node chooses by the name of a framework."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return bool(_names_in(node)) and not any(
            isinstance(side, ast.Attribute) and side.attr in _FACTS_SPELT_ALIKE for side in sides
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        by_text = node.func.attr in ("startswith", "endswith", "split", "partition", "removeprefix")
        of_framework = "framework" in ast.unparse(node.func.value).split(".")[-1] and "_text" not in ast.unparse(node)
        return by_text and (of_framework or any(_names_in(argument) for argument in node.args))
    if isinstance(node, ast.Dict):
        return len({name for key in node.keys if key is not None for name in _names_in(key)}) > 1
    if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
        return len(_names_in(node)) > 1
    return isinstance(node, ast.MatchValue) and bool(_names_in(node))


def _choices(source: str) -> set[str]:
    """Functions and constants of a module in which something is chosen by the name of a framework."""
    found = set()
    for top in ast.parse(source).body:
        for node in ast.walk(top):
            if _is_choice(node):
                targets = getattr(top, "targets", [getattr(top, "target", None)])
                found.add(getattr(top, "name", None) or ast.unparse(targets[0]))
    return found


@pytest.mark.parametrize(
    "source",
    [
        'def f(w): return w.framework == "mindspeed"',
        'def f(w): return w.framework in {"megatron", "mindspeed"}',
        'def f(w): return w.framework.startswith("mindformers")',
        'def f(w): return w.framework.split("-")[0]',
        'f = {"mindformers": 1, "mindspeed": 2}',
        'f = ("mindformers", "mindformers-legacy")',
        'def f(w):\n    match w:\n        case "megatron":\n            return 1',
    ],
)
def test_the_reader_sees_such_a_choice(source: str) -> None:
    assert _choices(source) == {"f"}


def test_the_reader_lets_facts_and_assignments_be() -> None:
    assert _choices('def f(r): return r.layout != "megatron"') == set()
    assert _choices('def f(): return g(framework="mindspeed")') == set()


def test_no_room_chooses_by_the_name_of_a_framework() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), where)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "frameworks.py"
        for where in _choices(path.read_text(encoding="utf-8"))
    }
    assert found == _OTHER_WORDS
