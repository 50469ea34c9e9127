"""Names in a Python program that exist in neither MindSpore nor MindFormers, and settings that MindSpore does not read.

Only what stands in a MindSpore context is judged: members of its modules, keys of its context functions, methods that
circulate in articles.  A program that imports neither framework, and names of the program's own, are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from planner.dialects.findings import UNREAL_MEMBERS, UNREAL_METHODS, UNREAL_NAMES, Finding

_FRAMEWORKS: Final = ("mindspore", "mindformers")
_SCHEDULERS: Final = ("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v")
#: Functions whose keyword arguments are settings of MindSpore.
_CONTEXTS: Final = ("set_auto_parallel_context", "set_context", "AutoParallel", "build_context")
_TORCH_VARIABLE: Final = "PYTORCH_NPU_ALLOC_CONF"

Found = tuple[str, str, str, int]


def check_python(text: str, source: str) -> list[Finding]:
    """Faults of a Python program."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", 1) or 1
        return [Finding(file=source, line=line, rule="python-syntax", why=f"{error}.", fix="Mend it.")]
    imported = dict(_imports(tree))
    if not any(_framework(name) for name in imported.values()):
        return []
    found = {item for node in ast.walk(tree) for item in _judge(node, imported)}
    return sorted(Finding(file=source, line=line, rule=rule, why=why, fix=fix) for rule, why, fix, line in found)


def _framework(name: str) -> bool:
    return name.split(".", 1)[0] in _FRAMEWORKS


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of the program and what they stand for: ``ms`` is ``mindspore``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.split(".", 1)[0],
                    alias.name if alias.asname else alias.name.split(".")[0],
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST, imported: dict[str, str]) -> str:
    """Full name of ``ms.nn.Cell``; empty for what is no plain name, or a name of the program's own."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    root = imported.get(node.id, "") if isinstance(node, ast.Name) else ""
    return ".".join([root, *reversed(parts)]) if root else ""


def _judge(node: ast.AST, imported: dict[str, str]) -> Iterator[Found]:
    if isinstance(node, ast.Attribute):
        yield from _member(_dotted(node, imported), node.lineno)
        yield from _method(node, imported)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            yield from _member(f"{node.module}.{alias.name}", node.lineno)
    elif isinstance(node, ast.Call):
        yield from _call(node, imported)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "pipeline_scheduler":
                yield from _scheduler(value)
    elif isinstance(node, ast.Constant) and node.value == _TORCH_VARIABLE and "torch" not in imported.values():
        yield (
            "torch-variable",
            f"{_TORCH_VARIABLE} belongs to torch_npu; MindSpore does not read it.",
            "Use MS_ALLOC_CONF, for instance enable_vmm:true.",
            node.lineno,
        )


def _unreal(name: str, advice: str, line: int) -> Found:
    return "unreal-name", f"{name} exists in neither MindSpore nor MindFormers.", f"Instead: {advice}.", line


def _member(full: str, line: int) -> Iterator[Found]:
    if not _framework(full):
        return
    last = full.rsplit(".", 1)[-1]
    if last in UNREAL_NAMES:
        yield _unreal(last, UNREAL_NAMES[last], line)
    advice = UNREAL_MEMBERS.get(full)
    if advice:
        yield _unreal(full, advice, line)


def _method(node: ast.Attribute, imported: dict[str, str]) -> Iterator[Found]:
    if node.attr in UNREAL_METHODS and not _dotted(node, imported):
        yield _unreal(node.attr, UNREAL_METHODS[node.attr], node.lineno)
    made_by = node.value.func if isinstance(node.value, ast.Call) else None
    maker = made_by.attr if isinstance(made_by, ast.Attribute) else getattr(made_by, "id", "")
    if node.attr == "prefetch" and str(maker).endswith("Dataset"):
        yield _unreal("prefetch", "use mindspore.dataset.config.set_prefetch_size", node.lineno)


def _call(node: ast.Call, imported: dict[str, str]) -> Iterator[Found]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    settings = name in _CONTEXTS
    for keyword in node.keywords:
        if settings and keyword.arg in UNREAL_NAMES:
            yield _unreal(str(keyword.arg), UNREAL_NAMES[str(keyword.arg)], keyword.value.lineno)
        if name == "set_auto_parallel_context" and keyword.arg == "pipeline_interleave":
            advice = "it stands in pipeline_config={'pipeline_interleave': True, 'pipeline_scheduler': '1f1b'}"
            yield _unreal("pipeline_interleave outside pipeline_config", advice, keyword.value.lineno)
        if settings and keyword.arg == "parallel_mode" and _text(keyword.value) == "pipeline_parallel":
            yield _unreal("parallel_mode pipeline_parallel", "semi_auto_parallel with pipeline stages", node.lineno)
        if keyword.arg == "pipeline_scheduler" or (keyword.arg == "scheduler" and name == "pipeline"):
            yield from _scheduler(keyword.value)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _scheduler(node: ast.expr) -> Iterator[Found]:
    name = _text(node)
    if name and name not in _SCHEDULERS:
        yield (
            "pipeline-scheduler",
            f"scheduler {name!r} does not exist.",
            f"Legal: {', '.join(_SCHEDULERS)}.",
            node.lineno,
        )
