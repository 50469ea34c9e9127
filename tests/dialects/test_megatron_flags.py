"""The table of MindSpeed and Megatron flags against the pinned list that was extracted from published packages."""

from __future__ import annotations

import ast

import pytest

from planner.dialects.mindspeed.flags import FLAGS, STATED, pinned, real_names
from tests.dialects.extract_megatron_flags import entry, fields, kind_of

EXTRACTED = {**pinned()["fields"], **pinned()["arguments"]}


def test_every_flag_is_pinned_once_with_its_source():
    lists = [set(pinned()[name]) for name in ("arguments", "fields", "stated")]
    assert not lists[0] & lists[1]
    assert not (lists[0] | lists[1]) & lists[2]
    assert set(FLAGS) <= set.union(*lists)
    assert set(pinned()["stated"].values()) <= set(STATED.values())
    assert (len(lists[0]), len(lists[1])) == (120, 16)
    assert len(set(FLAGS) & set(EXTRACTED)) >= 85
    assert real_names() >= lists[0] | set(FLAGS)


@pytest.mark.parametrize("flag", sorted(set(FLAGS) & set(EXTRACTED)))
def test_the_table_agrees_with_the_packages(flag):
    assert FLAGS[flag].kind == EXTRACTED[flag]["kind"]
    if FLAGS[flag].choices:
        assert set(EXTRACTED[flag].get("choices", ())) <= set(FLAGS[flag].choices)


def test_sources_are_pinned_by_content():
    sources = pinned()["sources"]
    assert sources["arguments"]["package"] == "ms_swift-3.5.0"
    assert sources["fields"]["package"] == "megatron_core-0.12.1"
    hashes = [value for source in sources.values() for name, value in source.items() if name != "package"]
    assert len(hashes) == 5
    assert all(len(value) == 64 for value in hashes)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("bool", ("switch", [])),
        ("Optional[float]", ("float", [])),
        ("Literal['uniform', 'block']", ("str", ["uniform", "block"])),
        ("Optional[Literal['a']]", ("str", ["a"])),
        ("List[str]", ("words", [])),
        ("Optional[Union[dict, str]]", None),
        ("Callable", None),
        ("Tuple[int, int]", None),
    ],
)
def test_kinds_from_annotations(annotation, expected):
    assert kind_of(ast.parse(annotation, mode="eval").body) == expected


def test_fields_of_a_class():
    source = "class A:\n    num_layers: int = 1\n    other: dict = {}\n    def f(self): pass\nclass B:\n    x: bool"
    assert list(fields(source)) == [("--num-layers", "int", []), ("--x", "switch", [])]
    assert list(fields(source, "B")) == [("--x", "switch", [])]
    assert (entry("str", ["a"]), entry("int", [])) == ({"kind": "str", "choices": ["a"]}, {"kind": "int"})
