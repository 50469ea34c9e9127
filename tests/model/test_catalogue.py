"""The catalogue against what was published, and how names are found."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.model.catalogue import normalised
from planner.model.load import catalogue, find, find_entry
from planner.model.operators import active_parameter_count, parameter_count
from planner.units import parse_count

ENTRIES = pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)


def test_size_of_the_catalogue():
    assert len(catalogue()) >= 30
    assert len({entry.model.family for entry in catalogue()}) >= 15
    assert sum(bool(entry.exact) for entry in catalogue()) >= 60


@ENTRIES
def test_published_total(entry):
    """Within half a unit of the last printed digit, or 1 %: some publishers count without embeddings or with MTP."""
    counts = [parameter_count(entry.model, include_mtp=with_mtp) for with_mtp in (False, True)]
    digits = Decimal(entry.published[:-1])
    half = 0.5 * 10.0 ** int(digits.as_tuple().exponent) * parse_count("1" + entry.published[-1])
    published = parse_count(entry.published)
    assert min(abs(count - published) for count in counts) <= max(half, 0.01 * published)


@ENTRIES
def test_exact_total(entry):
    if entry.exact:
        assert parameter_count(entry.model, include_mtp=False) == entry.exact
    if entry.checkpoint:
        model = entry.model
        copies = 2 * model.vocab * model.hidden * model.mtp_layers
        assert parameter_count(model, trainable=False) + copies == entry.checkpoint


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Mixtral-8x7B", 12.9),
        ("Mixtral-8x22B", 39),
        ("Qwen3-30B-A3B", 3.3),
        ("Qwen3-235B-A22B", 22),
        ("Qwen3-Coder-480B-A35B", 35),
        ("Qwen1.5-MoE-A2.7B", 2.7),
        ("Qwen2-57B-A14B", 14),
        ("DeepSeek-MoE-16B", 2.8),
        ("DeepSeek-V2", 21),
        ("DeepSeek-V3", 37),
        ("Kimi-K2", 32),
        ("TeleChat3-105B-A4B", 4.7),
    ],
)
def test_published_active_parameters(name, billions):
    active = active_parameter_count(find(name), include_mtp=False) / 1e9
    assert active == pytest.approx(billions, abs=1.0 if billions > 10 else 0.06)


def test_a_trillion_parameters():
    model = find("kimi-k2")
    assert parameter_count(model) == 1_026_408_209_408
    assert (model.layers, model.moe.experts, model.moe.topk, model.layer_kinds[0]) == (61, 384, 8, "dense")


@ENTRIES
def test_entries_name_their_source(entry):
    assert any(kind in entry.source for kind in ("config.json", "arXiv", "MindFormers 1.9.0 configs/"))
    assert entry.source in entry.model.source
    assert entry.model.max_seq >= 1024


def test_no_two_entries_share_a_name():
    names = [(normalised(name), entry.name) for entry in catalogue() for name in (entry.name, *entry.aliases)]
    assert len({key for key, _ in names}) == len(names)


@ENTRIES
@pytest.mark.parametrize(
    "change", [str.lower, str.upper, lambda name: name.replace("-", "_"), lambda name: f" {name} "]
)
def test_every_entry_is_found_by_variants_of_its_name(entry, change):
    for name in (entry.name, *entry.aliases):
        assert find(change(name)) is entry.model


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "Llama-3.1-70B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("llama3_1_8b", "Llama-3.1-8B"),
        ("LLaMA2-7B", "Llama-2-7B"),
        ("llama2_70b", "Llama-2-70B"),
        ("llama-30b", "Llama-33B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("qwen2-57b", "Qwen2-57B-A14B"),
        ("Qwen3-235B-A22B-Thinking-2507", "Qwen3-235B-A22B"),
        ("deepseek-ai/DeepSeek-V3-Base", "DeepSeek-V3"),
        ("deepseek3-671b", "DeepSeek-V3"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("codellama_34b", "CodeLlama-34B"),
        ("yi_34b", "Yi-34B"),
        ("glm4-9b", "GLM-4-9B"),
        ("internlm2-20b", "InternLM2-20B"),
        ("GPT3-175B", "GPT-3-175B"),
        ("gpt2", "GPT-2"),
        ("moonshotai/Kimi-K2-Instruct", "Kimi-K2"),
    ],
)
def test_names_as_people_write_them(asked, name):
    assert find(asked).name == name
    assert find_entry(asked).name == name


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("lama-3.1-70b", r"model 'lama-3.1-70b' is not in the catalogue; did you mean Llama-3.1-70B"),
        ("llama-3.1-71b", "did you mean .*Llama-3.1-70B"),
        ("qwen3-30b-a4b", "did you mean .*Qwen3-30B-A3B"),
        ("deepseek", "did you mean DeepSeek-"),
        ("70b", "give --params 70B"),
        ("zzz", r"model 'zzz' is not in the catalogue; `planner models` lists all \d+"),
        ("", "model '' is not in the catalogue"),
        ("instruct", "model 'instruct' is not in the catalogue"),
    ],
)
def test_unknown_names(asked, message):
    with pytest.raises(SpecError, match=message):
        find(asked)


@given(st.text(max_size=30))
def test_any_text_is_found_or_refused(text):
    try:
        model = find(text)
    except SpecError:
        return
    assert normalised(text) in {normalised(n) for e in catalogue() for n in (e.name, *e.aliases) if e.model is model}


def test_finding_a_model_loads_no_arrays():
    code = (
        "import sys; from planner.model.load import find, closest; find('llama-3.1-70b'); closest(7e10);"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy', 'yaml', 'difflib', 'ortools')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
