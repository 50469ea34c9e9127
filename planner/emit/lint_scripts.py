"""Faults of launch scripts and Python programs: MindSpeed / Megatron flags, msrun commands, names that do not exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from planner.emit.findings import UNREAL_NAMES, Finding, nearest
from planner.emit.megatron_flags import FLAGS
from planner.emit.read_mindspeed import Flags, is_script, read_mindspeed
from planner.emit.shellwords import Word, words
from planner.errors import PlannerError

MSRUN_OPTIONS: Final = frozenset(
    "--worker_num --local_worker_num --master_addr --master_port --node_rank --log_dir --join --cluster_time_out "
    "--bind_core --bind_numa --sim_level --sim_rank_id --rank_table_file --worker_log_name --tail_worker_log "
    "--help".split()
)
_PROGRAM: Final = re.compile(r"\.py$")


def check_shell(text: str, source: str, devices: int | None = None) -> list[Finding]:
    """Faults of a shell script."""
    found = words(text)
    result = list(_environment(found, source))
    if is_script(text):
        result += _megatron(text, source, devices)
    if any(word.text.rsplit("/", 1)[-1] == "msrun" for word in found):
        result += _msrun(found, source)
    return sorted(result)


def _environment(found: list[Word], source: str) -> Iterator[Finding]:
    mindspore = any(w.text.rsplit("/", 1)[-1] in ("msrun", "run_mindformer.py") for w in found)
    for word in found:
        if mindspore and word.text.startswith("PYTORCH_NPU_ALLOC_CONF="):
            yield Finding(
                file=source,
                line=word.line,
                rule="torch-variable",
                why="PYTORCH_NPU_ALLOC_CONF belongs to torch_npu; MindSpore does not read it.",
                fix="Use MS_ALLOC_CONF, for instance enable_vmm:true.",
            )
        if word.text.startswith("HCCL_BUFFSIZE="):
            value = word.text.partition("=")[2]
            if value.isdigit() and int(value) < 1:
                yield Finding(
                    file=source,
                    line=word.line,
                    rule="hccl-buffer",
                    why="HCCL_BUFFSIZE is in MB, at least 1.",
                    fix="Use 200.",
                )


def _msrun(found: list[Word], source: str) -> Iterator[Finding]:
    start = next(i for i, word in enumerate(found) if word.text.rsplit("/", 1)[-1] == "msrun")
    numbers: dict[str, int] = {}
    for word in found[start + 1 :]:
        if not word.text.startswith("--"):
            break
        name, _, value = word.text.partition("=")
        if name not in MSRUN_OPTIONS:
            why = f"msrun has no option {name}."
            yield Finding(file=source, line=word.line, rule="msrun-option", why=why, fix=nearest(name, MSRUN_OPTIONS))
        if value.isdigit():
            numbers[name] = int(value)
    total, local = numbers.get("--worker_num", 8), numbers.get("--local_worker_num", 8)
    if local < 1 or total % local:
        yield Finding(
            file=source,
            line=found[start].line,
            rule="msrun-workers",
            why=f"{total} workers are no whole number of nodes with {local} each; msrun waits for the rest.",
            fix="Make worker_num a multiple of local_worker_num.",
        )
    port = numbers.get("--master_port", 8118)
    if not 1024 <= port <= 65535:
        yield Finding(
            file=source,
            line=found[start].line,
            rule="msrun-option",
            why=f"master_port {port} is refused.",
            fix="1024 to 65535.",
        )


def _megatron(text: str, source: str, devices: int | None) -> Iterator[Finding]:
    flags = Flags(text, source)
    for name, value in flags.values.items():
        spec = FLAGS.get(name)
        if spec and spec.choices and value not in spec.choices and not str(value).startswith("$"):
            yield _flag(flags, name, "flag-value", f"{name} {value} is refused.", f"Legal: {', '.join(spec.choices)}.")
    try:
        read_mindspeed(text, source=source, devices=devices)
    except PlannerError as error:
        dropped = "drop layers" in str(error) or "do not divide into chunks" in str(error)
        rule = "layers-dropped" if dropped else "layout"
        line = next((n for f, n in flags.lines.items() if f in str(error)), 1)
        message = re.sub(r"^[^:]*(, line [0-9]+)?: ", "", str(error))
        if "number of devices is not in the script" not in message:
            yield Finding(file=source, line=line, rule=rule, why=message, fix="See the message.")
    yield from _megatron_rules(flags)


def _flag(flags: Flags, name: str, rule: str, why: str, fix: str) -> Finding:
    return Finding(file=flags.source, line=flags.lines.get(name, 1), rule=rule, why=why, fix=fix)


def _megatron_rules(flags: Flags) -> Iterator[Finding]:
    """Rules of argument checks in Megatron-LM and MindSpeed that need no layout."""

    def number(name: str) -> int:
        value = flags.values.get(name)
        return int(value) if value and value.isdigit() and int(value) > 0 else 1

    given = flags.values
    tp, cp, seq, heads = (
        number(f"--{n}")
        for n in ("tensor-model-parallel-size", "context-parallel-size", "seq-length", "num-attention-heads")
    )
    rules = (
        ("--swap-optimizer", "--use-distributed-optimizer" not in given, "needs the distributed optimizer", "Add it."),
        (
            "--overlap-param-gather",
            "--use-distributed-optimizer" not in given,
            "needs the distributed optimizer",
            "Add it.",
        ),
        (
            "--recompute-method",
            given.get("--recompute-granularity") == "selective",
            "is refused with selective",
            "Remove it.",
        ),
        (
            "--num-virtual-stages-per-pipeline-rank",
            "--num-layers-per-virtual-pipeline-stage" in given,
            "is exclusive",
            "Keep one.",
        ),
        ("--use-ascend-mc2", "--use-ascend-coc" in given, "and --use-ascend-coc exclude each other", "Keep one."),
        ("--use-ascend-mc2", tp == 1, "needs tensor parallelism", "Remove it."),
        ("--sequence-parallel", tp == 1, "is switched off at tensor parallelism 1", "Remove it."),
        ("--schedules-method", cp > 1, "dualpipev is refused with context parallelism", "Remove one."),
        (
            "--schedules-method",
            "--overlap-grad-reduce" in given,
            "dualpipev is refused with --overlap-grad-reduce",
            "Remove one.",
        ),
    )
    for name, wrong, why, fix in rules:
        if name in given and wrong:
            yield _flag(flags, name, "flag-conflict", f"{name} {why}.", fix)
    algorithm = given.get("--context-parallel-algo") or "megatron_cp_algo"
    if cp > 1 and algorithm in ("megatron_cp_algo", "hybrid_cp_algo") and seq % (2 * cp):
        yield _flag(
            flags,
            "--seq-length",
            "sequence-length",
            f"{seq} tokens do not divide by 2 x cp = {2 * cp}.",
            "Use a multiple.",
        )
    if cp > 1 and algorithm == "ulysses_cp_algo" and heads % (cp * tp):
        yield _flag(
            flags,
            "--context-parallel-algo",
            "ulysses-heads",
            f"cp {cp} x tp {tp} does not divide {heads} heads.",
            "Lower one.",
        )
    if heads % tp:
        yield _flag(
            flags, "--tensor-model-parallel-size", "heads", f"{tp} does not divide {heads} heads.", "Use a divisor."
        )
    experts, ep = given.get("--num-experts"), number("--expert-model-parallel-size")
    if experts and experts.isdigit() and int(experts) % ep:
        yield _flag(
            flags,
            "--expert-model-parallel-size",
            "expert-parallel",
            f"{ep} does not divide {experts} experts.",
            "Use a divisor.",
        )


def check_python(text: str, source: str) -> list[Finding]:
    """Names in a Python program that exist in neither MindSpore nor MindFormers."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1) or 1
        return [Finding(file=source, line=line, rule="python-syntax", why=f"{error}.", fix="Mend it.")]
    found: set[Finding] = set()
    for node in ast.walk(tree):
        for name, line in _names(node):
            if name in UNREAL_NAMES:
                why = f"{name} exists in neither MindSpore nor MindFormers."
                found.add(
                    Finding(file=source, line=line, rule="unreal-name", why=why, fix=f"Instead: {UNREAL_NAMES[name]}.")
                )
    return sorted(found)


def _names(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Attribute):
        yield node.attr, node.lineno
    elif isinstance(node, ast.Name):
        yield node.id, node.lineno
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value.lineno
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.name.rsplit(".", 1)[-1], node.lineno


def is_python(path: str) -> bool:
    """Whether a file is a Python program by its name."""
    return bool(_PROGRAM.search(path))
