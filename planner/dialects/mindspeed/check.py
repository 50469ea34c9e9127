"""Faults of launch scripts: MindSpeed / Megatron flags, msrun commands, variables that nobody reads."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from typing import Final

from planner.dialects.findings import Finding, NotUnderstoodError, nearest
from planner.dialects.launch.variables import VARIABLES, environment
from planner.dialects.mindspeed.flags import real_names
from planner.dialects.mindspeed.given import Flags, is_script
from planner.dialects.mindspeed.read import read_mindspeed
from planner.dialects.mindspeed.rules import broken_rules
from planner.dialects.text.shell_read import Word, words
from planner.errors import PlannerError

MSRUN_OPTIONS: Final = frozenset(
    "--worker_num --local_worker_num --master_addr --master_port --node_rank --log_dir --join --cluster_time_out "
    "--bind_core --bind_numa --sim_level --sim_rank_id --rank_table_file --worker_log_name --tail_worker_log "
    "--help".split()
)
#: Programs and scripts of MindFormers and of the planner's own folders that start jobs.
_STARTS: Final = frozenset("msrun msrun_launcher.sh run_mindformer.py launch.sh".split())
#: What msrun's parser takes for options with a choice.
_CHOICES: Final = {"--join": ("True", "False"), "--sim_level": ("0", "1", "2", "3")}
_LAUNCHER_ARGUMENTS: Final = (1, 2, 6, 9)
_TYPO_LETTERS: Final = 2
_PROGRAM: Final = re.compile(r"\.py$")


def check_shell(text: str, source: str, devices: int | None = None) -> list[Finding]:
    """Faults of a shell script.

    Raises
    ------
    NotUnderstoodError
        No fault is found, and nothing that starts a job was understood either.
    """
    found = words(text)
    result = list(environment(found, source))
    if "\r\n" in text:
        line = text.count("\n", 0, text.index("\r\n")) + 1
        why = "the lines end as on Windows; bash takes the carriage return as part of the last word."
        result.append(Finding(file=source, line=line, rule="line-ends", why=why, fix="Convert it with dos2unix."))
    if is_script(text):
        result += _megatron(text, source, devices)
    if any(word.text.rsplit("/", 1)[-1] == "msrun" for word in found):
        result += [*_msrun(found, source), *_simulated(found, source)]
    result += _launcher(text, source)
    if not result and not _understood(text, found):
        raise NotUnderstoodError(
            f"{source} is not understood: no Megatron flags (--num-layers, --hidden-size), no msrun and no variable "
            "that is known here. Name the file that holds the configuration."
        )
    return sorted(result)


def _understood(text: str, found: list[Word]) -> bool:
    """Whether a script starts a job in a way that is known, or is a list of variables of which some are known."""
    names = {word.text.rsplit("/", 1)[-1] for word in found}
    if is_script(text) or names & _STARTS:
        return True
    plain = all("=" in word.text or word.text in ("export", "set", "source", "-e") for word in found)
    return plain and any(word.text.partition("=")[0] in VARIABLES for word in found)


def _simulated(found: list[Word], source: str) -> Iterator[Finding]:
    """A simulation level left in a script that trains; scripts that say so by their name are left alone."""
    if re.search(r"dry|sim", source.rsplit("/", 1)[-1].lower()):
        return
    for word in found:
        if re.fullmatch(r"MS_SIMULATION_LEVEL=[0-3]", word.text):
            why = "with MS_SIMULATION_LEVEL the job compiles and simulates, but trains nothing."
            fix = "Remove it, or name the script a dry run."
            yield Finding(file=source, line=word.line, rule="simulation", why=why, fix=fix)


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
        yield from _msrun_value(word, source)
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


def _msrun_value(word: Word, source: str) -> Iterator[Finding]:
    name, _, value = word.text.partition("=")
    if not value or "$" in value:
        return
    legal = _CHOICES.get(name)
    if legal and value not in legal:
        why = f"msrun refuses {name} {value}."
        yield Finding(file=source, line=word.line, rule="msrun-option", why=why, fix=f"Legal: {', '.join(legal)}.")
    bound = name in ("--bind_core", "--bind_numa")
    if bound and value.lower() not in ("true", "false") and not re.search(r"^\{|\.json$", value):
        why = f"msrun refuses {name} {value}."
        yield Finding(file=source, line=word.line, rule="msrun-option", why=why, fix="Write True, False or a JSON map.")


def _launcher(text: str, source: str) -> Iterator[Finding]:
    """Calls of MindFormers' own ``scripts/msrun_launcher.sh``, which takes 1, 2, 6 or 9 arguments."""
    joined = re.sub(r"\\\n", lambda _: " \0", text)  # a continued line stays one line, and its breaks can be counted
    line = 1
    for row in joined.split("\n"):
        found = re.search(r"(?:^|[\s/])msrun_launcher\.sh\s+(?P<rest>[^|;&#>]*)", row)
        arguments = _split(found["rest"].replace("\0", "")) if found and not row.lstrip().startswith("#") else None
        if arguments is not None and not any("@" in word for word in arguments):
            if len(arguments) not in _LAUNCHER_ARGUMENTS:
                why = f"msrun_launcher.sh takes 1, 2, 6 or 9 arguments, not {len(arguments)}."
                yield Finding(file=source, line=line, rule="msrun-launcher", why=why, fix="Quote the task as one.")
            yield from _task(arguments, source, line)
        line += 1 + row.count("\0")


def _task(arguments: list[str], source: str, line: int) -> Iterator[Finding]:
    words_of_task = _split(arguments[0]) if arguments else None
    if not words_of_task or "run_mindformer.py" not in words_of_task[0]:
        return
    flags = [word.split("=", 1)[0] for word in words_of_task if word.startswith("--")]
    pynative = re.search(r"--mode[ =]1\b", arguments[0])
    ignored = [flag for flag in flags if flag not in ("--mode", "--config")]
    if pynative and ignored:
        why = f"run_mindformer.py --mode 1 reads --config only; {', '.join(ignored)} is ignored."
        yield Finding(file=source, line=line, rule="flag-ignored", why=why, fix="Write it into the YAML.")


def _split(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _megatron(text: str, source: str, devices: int | None) -> Iterator[Finding]:
    flags = Flags(text, source)
    yield from _spelling(text, flags)
    started = flags.devices()
    if devices is not None and started is not None and started != devices:
        why = f"{started} processes are started, but the job has {devices} devices."
        yield _flag(flags, "--nproc_per_node", "device-product", why, f"Make nproc_per_node x nnodes {devices}.")
    broken = list(broken_rules(flags.values, devices or flags.devices()))
    for found in broken:
        yield _flag(flags, found.flag, found.rule, f"{found.flag} {found.why}", found.fix)
    try:
        read_mindspeed(text, source=source, devices=devices)
    except PlannerError as error:
        message = re.sub(r"^[^:]*(, line [0-9]+)?: ", "", str(error))
        later = ("$", "number of devices is not in the script", "vocabulary comes from the tokenizer")
        shell = any(sign in message for sign in later)  # known when it runs
        if not broken and not shell:
            line = next((n for f, n in flags.lines.items() if f in str(error)), 1)
            yield Finding(file=source, line=line, rule="layout", why=message, fix="See the message.")


def _flag(flags: Flags, name: str, rule: str, why: str, fix: str) -> Finding:
    return Finding(file=flags.source, line=flags.lines.get(name, 1), rule=rule, why=why, fix=fix)


def _spelling(text: str, flags: Flags) -> Iterator[Finding]:
    """Names that the parser refuses (it takes no abbreviations), values behind switches, flags given twice."""
    for name, line in flags.strange:
        meant = _meant(name)
        if meant:
            why = f"there is no {name}; the parser stops."
            yield Finding(file=flags.source, line=line, rule="unknown-flag", why=why, fix=f"Write {meant}.")
    for word in flags.idle:
        why = f"no command uses ${word.text}, so its flags do not take effect."
        yield Finding(file=flags.source, line=word.line, rule="unused-flags", why=why, fix="Add it to the command.")
    for name, value, line in flags.stray:
        why = f"{name} is a switch and takes no value; {value!r} is refused."
        yield Finding(file=flags.source, line=line, rule="flag-value", why=why, fix="Remove the value.")
    if re.search(r"(?m)^\s*(if|case|elif)\b", text):
        return  # one of several branches runs
    for name, line in flags.again:
        why = f"{name} is given twice with different values; the last one counts."
        yield Finding(file=flags.source, line=line, rule="duplicate-flag", why=why, fix="Remove one.")


def _meant(name: str) -> str:
    """A real flag that a name was meant to be: underscores for hyphens, or two letters off at most."""
    known = real_names()
    hyphens = name.replace("_", "-")
    if hyphens in known:
        return hyphens if hyphens != name else ""
    near = difflib.get_close_matches(hyphens, sorted(known), 1, 0.9)
    return near[0] if near and _letters_apart(hyphens, near[0]) <= _TYPO_LETTERS else ""


def _letters_apart(one: str, other: str) -> int:
    """Letters inserted, removed or replaced between two words."""
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return sum(max(a2 - a1, b2 - b1) for tag, a1, a2, b1, b2 in blocks if tag != "equal")


def is_python(path: str) -> bool:
    """Whether a file is a Python program by its name."""
    return bool(_PROGRAM.search(path))
