"""Changes asked for in words, ``recompute=none``, applied to a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from planner.checked import checked
from planner.cost.memory.peak import least_recompute
from planner.cost.strategies import Strategies, Strategy
from planner.errors import SpecError
from planner.search.request import Request
from planner.study.jobs import Job, changed

_DEGREES: Final = ("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch_size", "zero_level", "optimizer_shard")
_SWITCHES: Final = ("sequence_parallel", "swap_optimizer")
_WORDS: Final = ("schedule", "cp_algorithm")
_BATCH: Final = ("global_batch", "seq")
NAMES: Final = (*_DEGREES, *_SWITCHES, *_WORDS, *_BATCH, "recompute")


def apply(job: Job, texts: Sequence[str]) -> Job:
    """The job with changes ``name=value``; dp gives way to tp, pp and cp unless it is changed itself.

    Raises
    ------
    SpecError
        An unknown name, a value of another type.
    """
    wanted: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = {"micro_batch": "micro_batch_size"}.get(name.strip().replace("-", "_"), name.strip().replace("-", "_"))
        if not sign or name not in NAMES:
            raise SpecError(f"--set '{text}' is no change; write name=value, legal names: {', '.join(NAMES)}.")
        wanted[name] = _value(name, value.strip(), text)
    batch = {name: wanted.pop(name) for name in _BATCH if name in wanted}
    request = replace(job.request, workload=replace(job.request.workload, **batch))
    how = wanted.pop("recompute", None)
    request, fields = _spread(replace(job, request=request), wanted)
    job = Job(request=request, strategy=changed(request, job.strategy, fields))
    return job if how is None else replace(job, strategy=_recompute(job, how))


def _value(name: str, value: str, text: str) -> Any:
    if name in _SWITCHES:
        known = {"true": True, "false": False, "on": True, "off": False}
        if value.lower() not in known:
            raise SpecError(f"--set '{text}': {name} is true or false.")
        return known[value.lower()]
    if name in _WORDS:
        return checked(**{name: value})[name]
    if name == "recompute" and not value[:1].isdigit():
        return value
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        raise SpecError(f"--set '{text}': '{value}' is not a whole number.") from None
    if name == "recompute":
        return checked(recompute=numbers)[name]
    if len(numbers) > 1:
        raise SpecError(f"--set '{text}': {name} takes one number.")
    return checked(**{name: numbers[0]})[name]


def _spread(job: Job, wanted: dict[str, Any]) -> tuple[Request, dict[str, Any]]:
    """Fields with dp, interleaving and head exchange that follow, and the request on their devices."""
    s, fields = job.strategy, dict(wanted)
    degrees = {name: fields.get(name, getattr(s, name)) for name in ("dp", "tp", "pp", "cp")}
    rest = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if "dp" not in fields and set(fields) & {"tp", "pp", "cp"}:
        if s.devices % rest:
            raise SpecError(f"--set: tp x pp x cp = {rest} does not divide {s.devices} cards; give dp, too.")
        degrees["dp"] = fields["dp"] = s.devices // rest
    if "vpp" in fields and "schedule" not in fields:
        fields["schedule"] = "interleaved" if fields["vpp"] > 1 else "1f1b"
    if fields.get("zero_level") == 0:
        fields["optimizer_shard"] = 1
    if set(fields) & {"cp", "cp_algorithm"}:
        way = fields.get("cp_algorithm", s.cp_algorithm)
        fields["ulysses_degree"] = degrees["cp"] if way == "ulysses" else 1
    return job.request.on(degrees["dp"] * rest), fields


def _recompute(job: Job, how: Any) -> Strategy:
    s = job.strategy
    zeros = (0,) * s.pp
    bare = replace(s, recompute_full=zeros, recompute_selective=zeros)
    if how == "none":
        return bare
    if how == "full":
        return replace(bare, recompute_full=s.layers_per_stage)
    if how == "selective":
        return replace(bare, recompute_selective=s.layers_per_stage)
    if how == "auto":
        table = Strategies.of([bare])
        return least_recompute(job.request.model, job.request.workload, table, job.request.limit)[0].row(0)
    if isinstance(how, str):
        raise SpecError(f"--set recompute={how} is not known; legal: auto, none, selective, full, or numbers by stage.")
    if len(how) != s.pp or any(number > most for number, most in zip(how, s.layers_per_stage, strict=False)):
        raise SpecError(f"--set recompute needs {s.pp} numbers of at most {s.layers_per_stage}; given {tuple(how)}.")
    return replace(bare, recompute_full=tuple(how))
