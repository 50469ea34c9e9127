"""Extract names and kinds of Megatron arguments from published packages: the pinned list behind ``megatron_flags``.

Megatron's own ``megatron/training/arguments.py`` is in no published package.  What is published and read here, by AST,
nothing imported:

* ms-swift 3.5.0, whose ``MegatronArguments`` become the argument vector of Megatron-LM core_r0.12 word by word (a field
  ``a_b`` is the flag ``--a-b``; true switches, lists and values as they are);
* megatron-core 0.12.1, whose configuration classes take the parsed arguments of the same names.

Flags that neither has (those of MindSpeed and MindSpeed-LLM for the most part) are listed as stated, with their source.

Usage::

    pip download --no-deps ms-swift==3.5.0 megatron-core==0.12.1
    python -m tests.dialects.extract_megatron_flags ms_swift-3.5.0-*.whl megatron_core-0.12.1-*.whl
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from planner.dialects.mindspeed.flags import FLAGS, STATED

TARGET = Path(__file__).parents[2] / "planner" / "dialects" / "mindspeed" / "flags.json"
SWIFT = "swift/megatron/argument/megatron_args.py"
CORE = (
    "megatron/core/model_parallel_config.py",
    "megatron/core/transformer/transformer_config.py",
    "megatron/core/optimizer/optimizer_config.py",
    "megatron/core/distributed/distributed_data_parallel_config.py",
)
#: Fields of MegatronArguments that steer ms-swift itself.
NOT_FLAGS = ("--extra-megatron-kwargs",)
KINDS = {"bool": "switch", "int": "int", "float": "float", "str": "str"}


def kind_of(annotation: ast.expr) -> tuple[str, list[str]] | None:
    """Kind of a flag and its choices, from a type annotation; None for types that no command line takes.

    >>> kind_of(ast.parse("Optional[int]", mode="eval").body), kind_of(ast.parse("Literal['a', 'b']", mode="eval").body)
    (('int', []), ('str', ['a', 'b']))
    """
    if isinstance(annotation, ast.Name):
        kind = KINDS.get(annotation.id)
        return (kind, []) if kind else None
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
        return None
    outer, inner = annotation.value.id, annotation.slice
    if outer == "Optional":
        return kind_of(inner)
    if outer == "Literal":
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return "str", [str(part.value) for part in parts if isinstance(part, ast.Constant)]
    if outer in ("List", "list"):
        found = kind_of(inner)
        return ("words", []) if found and found[0] == "str" else None
    return None


def fields(source: str, *classes: str) -> Iterator[tuple[str, str, list[str]]]:
    """Flag, kind and choices of each annotated field of the classes named (all when none is)."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or (classes and node.name not in classes):
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found = kind_of(item.annotation)
                if found:
                    yield f"--{item.target.id.replace('_', '-')}", *found


def entry(kind: str, choices: list[str]) -> dict[str, object]:
    """One flag as JSON holds it."""
    return {"kind": kind, "choices": choices} if choices else {"kind": kind}


def extract(swift: Path, core: Path) -> dict[str, object]:
    """The whole document."""
    with zipfile.ZipFile(swift) as archive:
        body = archive.read(SWIFT)
    sources = {"arguments": {"package": swift.name.split("-py3")[0], SWIFT: hashlib.sha256(body).hexdigest()}}
    arguments = {
        flag: entry(kind, choices)
        for flag, kind, choices in fields(body.decode(), "MegatronArguments")
        if flag not in NOT_FLAGS
    }
    sources["fields"] = {"package": "-".join(core.name.split("-")[:2])}
    configured: dict[str, dict[str, object]] = {}
    with zipfile.ZipFile(core) as archive:
        for name in CORE:
            body = archive.read(name)
            sources["fields"][name] = hashlib.sha256(body).hexdigest()
            configured |= {flag: entry(kind, choices) for flag, kind, choices in fields(body.decode()) if flag in FLAGS}
    configured = {flag: value for flag, value in configured.items() if flag not in arguments}
    stated = {flag: STATED[spec.origin] for flag, spec in FLAGS.items() if flag not in {**arguments, **configured}}
    return {
        "about": "Arguments of Megatron-LM core_r0.12, MindSpeed-LLM; by tests/dialects/extract_megatron_flags.py.",
        "sources": sources,
        "arguments": dict(sorted(arguments.items())),
        "fields": dict(sorted(configured.items())),
        "stated": dict(sorted(stated.items())),
    }


def main() -> None:
    """Write the pinned list."""
    parser = argparse.ArgumentParser(description="Extract Megatron arguments from two wheels.")
    parser.add_argument("swift", type=Path)
    parser.add_argument("core", type=Path)
    given = parser.parse_args()
    TARGET.write_text(json.dumps(extract(given.swift, given.core), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
