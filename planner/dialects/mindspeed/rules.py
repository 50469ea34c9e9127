"""Rules that Megatron-LM and MindSpeed put on their arguments, checked on the arguments alone.

The same rules judge a script that is written and one that is checked.  Sources: ``__post_init__`` of the configuration
classes and ``schedules.py`` of megatron-core 0.12.1; the argument checks of Megatron-LM core_v0.12.1 and of the feature
modules of MindSpeed and MindSpeed-LLM 26.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from planner.dialects.mindspeed.flags import FLAGS, SWITCH

_RING: Final = ("megatron_cp_algo", "hybrid_cp_algo")
#: Whole numbers that must be at least 1.
_POSITIVE: Final = frozenset(
    f"--{name}"
    for name in (
        "tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size "
        "num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank micro-batch-size "
        "global-batch-size num-layers hidden-size num-attention-heads seq-length num-experts ulysses-degree-in-cp"
    ).split()
)
_MODULES: Final = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One broken rule."""

    flag: str
    rule: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.flag}: {self.why} {self.fix}"


class _UnknownError(Exception):
    """A value that only the shell knows; rules that need it are silent."""


class Arguments:
    """Flags with their values; None is the value of a switch."""

    def __init__(self, values: Mapping[str, str | None], devices: int | None) -> None:
        self.values, self.devices = values, devices

    def has(self, *names: str) -> bool:
        """Whether any of the flags is given."""
        return any(name in self.values for name in names)

    def text(self, name: str, default: str = "") -> str:
        """Value of a flag."""
        value = self.values.get(name)
        if value is not None and "$" in value:
            raise _UnknownError
        return default if value is None else value

    def number(self, name: str, default: int = 1) -> int:
        """Whole number of a flag."""
        value = self.text(name, str(default))
        if not value.isdecimal() or not value.isascii() or int(value) < 1:
            raise _UnknownError  # said by the rule about values
        return int(value)

    def real(self, name: str) -> float:
        """Number of a flag."""
        try:
            return float(self.text(name))
        except ValueError:
            raise _UnknownError from None  # said by the rule about values

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.number("--tensor-model-parallel-size")

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.number("--pipeline-model-parallel-size")

    @property
    def cp(self) -> int:
        """Context-parallel degree."""
        return self.number("--context-parallel-size")

    @property
    def ep(self) -> int:
        """Expert-parallel degree."""
        return self.number("--expert-model-parallel-size")

    @property
    def chunked(self) -> bool:
        """Whether a stage holds several chunks."""
        return self.has("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")

    @property
    def dualpipe(self) -> bool:
        """Whether the schedule is DualPipeV."""
        return self.has("--schedules-method") and self.text("--schedules-method") == "dualpipev"

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of a step, when the number of devices is known and everything divides."""
        share = self.tp * self.pp * self.cp
        if self.devices is None or self.devices % share or not self.has("--global-batch-size"):
            return None
        return (
            self.number("--global-batch-size") // (self.number("--micro-batch-size") * (self.devices // share)) or None
        )


def broken_rules(values: Mapping[str, str | None], devices: int | None = None) -> Iterator[Broken]:
    """Every rule that a set of arguments breaks.

    Parameters
    ----------
    values : mapping of str to str or None
        Flags with their values; None for a switch.  A value with ``$`` in it is unknown.
    devices : int, optional
        World size.

    >>> [str(b) for b in broken_rules({"--recompute-granularity": "selective", "--recompute-num-layers": "2"})]
    ['--recompute-num-layers: is refused with --recompute-granularity selective. Remove it.']
    """
    arguments = Arguments(values, devices)
    for rule in RULES:
        try:
            yield from rule(arguments)
        except _UnknownError:
            continue


def _broken(flag: str, rule: str, why: str, fix: str) -> Broken:
    return Broken(flag=flag, rule=rule, why=why, fix=fix)


def _conflict(flag: str, why: str, fix: str = "Remove one.") -> Broken:
    return _broken(flag, "flag-conflict", f"{why}.", fix)


def _values(a: Arguments) -> Iterator[Broken]:
    for name, value in a.values.items():
        spec = FLAGS.get(name)
        if spec is None or spec.kind == SWITCH or value is None or "$" in value:
            continue
        legal = _legal(spec.kind, spec.choices, value)
        if not legal and name in _POSITIVE and int(value) < 1:
            legal = "whole numbers of at least 1"
        if legal:
            yield _broken(name, "flag-value", f"{value!r} is refused.", f"Legal: {legal}.")


def _legal(kind: str, choices: tuple[str, ...], value: str) -> str:
    """What is legal in place of a value that is not; empty when it is."""
    if choices:
        return "" if value in choices else ", ".join(choices)
    if kind in ("str", "words") and value.startswith("--"):
        return "a value"
    if kind == "int" and not (value.lstrip("+-").isdecimal() and value.isascii()):
        return "whole numbers"
    if kind == "float":
        try:
            float(value)
        except ValueError:
            return "numbers"
    return ""


def _tensor(a: Arguments) -> Iterator[Broken]:
    tp = a.tp
    if a.has("--sequence-parallel") and tp == 1:
        yield _broken(
            "--sequence-parallel", "sequence-parallel", "is switched off without tensor parallelism.", "Remove it."
        )
    if a.has("--num-attention-heads") and a.number("--num-attention-heads") % tp:
        yield _broken(
            "--tensor-model-parallel-size",
            "heads",
            f"{tp} does not divide {a.number('--num-attention-heads')} heads.",
            "Use a divisor.",
        )
    if a.has("--group-query-attention") and a.number("--num-query-groups") % tp:
        yield _broken(
            "--tensor-model-parallel-size",
            "kv-heads",
            f"{tp} does not divide {a.number('--num-query-groups')} key/value heads.",
            "Use a divisor.",
        )
    if a.has("--use-ascend-mc2") and tp == 1:
        yield _conflict("--use-ascend-mc2", "needs tensor parallelism", "Remove it.")
    if a.has("--use-ascend-mc2") and a.has("--use-ascend-coc"):
        yield _conflict("--use-ascend-mc2", "and --use-ascend-coc exclude each other", "Keep one.")
    if a.has("--tp-2d") and a.has("--num-experts"):
        yield _conflict("--tp-2d", "is refused with experts")


def _world(a: Arguments) -> Iterator[Broken]:
    share = a.tp * a.pp * a.cp
    if a.devices is not None and a.devices % share:
        yield _broken(
            "--tensor-model-parallel-size",
            "device-product",
            f"tp x pp x cp = {share} does not divide {a.devices} devices.",
            "Lower one.",
        )
    elif a.devices is not None and a.has("--global-batch-size"):
        step = a.number("--micro-batch-size") * (a.devices // share)
        batch = a.number("--global-batch-size")
        if batch % step:
            yield _broken(
                "--global-batch-size",
                "batch-remainder",
                f"{batch} does not divide by --micro-batch-size x dp = {step}.",
                f"Use a multiple of {step}.",
            )


def _pipeline(a: Arguments) -> Iterator[Broken]:
    pp, layers = a.pp, a.number("--num-layers", 0) if a.has("--num-layers") else None
    per_chunk, stages = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
    if a.has(per_chunk) and a.has(stages):
        yield _conflict(stages, f"and {per_chunk} exclude each other", "Keep one.")
    given = per_chunk if a.has(per_chunk) else stages
    if a.chunked and pp < (3 if a.has("--no-overlap-p2p-communication") else 2):
        least = "3 stages with --no-overlap-p2p-communication" if pp == 2 else "a pipeline"
        yield _conflict(given, f"needs {least}", "Remove it.")
    count = a.micro_batches
    if a.chunked and pp > 1 and count is not None and count % pp:
        yield _broken(
            "--global-batch-size",
            "micro-batches-below-stages",
            f"{count} micro-batches are no multiple of {pp} stages, which the interleaved schedule refuses.",
            f"Make it a multiple of {pp}.",
        )
    if layers is None:
        return
    uneven = (
        "--num-layer-list",
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
        "--pipeline-num-transformer-layers",
        "--pipeline-model-parallel-layout",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
    )
    if not a.has(*uneven):
        if layers % pp:
            yield _broken(
                "--num-layers",
                "layers-dropped",
                f"{layers} layers do not divide into {pp} stages.",
                "Use --num-layer-list, or pad with --noop-layers.",
            )
        elif a.chunked and layers // pp % a.number(given):
            yield _broken(
                given,
                "layers-dropped",
                f"{layers // pp} layers of a stage do not divide by {a.number(given)}.",
                "Use a divisor.",
            )
    yield from _lists(a, layers)


def _lists(a: Arguments, layers: int) -> Iterator[Broken]:
    if a.has("--num-layer-list"):
        parts = a.text("--num-layer-list").split(",")
        if not all(part.isdecimal() for part in parts) or len(parts) != a.pp or sum(map(int, parts)) != layers:
            yield _broken(
                "--num-layer-list",
                "layers-dropped",
                f"{a.text('--num-layer-list')!r} is no list of {a.pp} numbers that add up to {layers}.",
                "One number a stage, with commas.",
            )
        if a.chunked:
            yield _conflict("--num-layer-list", "is refused with a virtual pipeline")
    if a.has("--noop-layers"):
        parts = a.text("--noop-layers").split(",")
        if not all(part.isdecimal() and int(part) < layers for part in parts):
            yield _broken(
                "--noop-layers",
                "layers-dropped",
                f"{a.text('--noop-layers')!r} must name layers below {layers}.",
                "Numbers from 0, with commas.",
            )


def _context(a: Arguments) -> Iterator[Broken]:
    cp, name = a.cp, a.text("--context-parallel-algo", "megatron_cp_algo")
    if cp == 1:
        return
    degree = {"ulysses_cp_algo": cp, "hybrid_cp_algo": 0, "hybrid_adaptive_cp_algo": 0}.get(name, 1)
    if degree == 0:
        if not a.has("--ulysses-degree-in-cp"):
            yield _broken(
                "--context-parallel-algo", "context-parallel", f"{name} needs --ulysses-degree-in-cp.", "Add it."
            )
            return
        degree = a.number("--ulysses-degree-in-cp")
        if cp % degree:
            yield _broken(
                "--ulysses-degree-in-cp",
                "context-parallel",
                f"{degree} does not divide --context-parallel-size {cp}.",
                "Use a divisor.",
            )
    unit = 2 * cp if name in _RING else cp
    if a.has("--seq-length") and a.number("--seq-length") % unit:
        yield _broken(
            "--seq-length",
            "sequence-length",
            f"{a.number('--seq-length')} tokens do not divide by {unit} ({name}, cp {cp}).",
            f"Use a multiple of {unit}.",
        )
    heads = a.number("--num-attention-heads", 0) if a.has("--num-attention-heads") else 0
    if heads and heads % a.tp == 0 and heads % (a.tp * degree):
        yield _broken(
            "--context-parallel-algo",
            "ulysses-heads",
            f"tp {a.tp} x Ulysses degree {degree} does not divide {heads} heads.",
            "Lower one.",
        )


def _experts(a: Arguments) -> Iterator[Broken]:
    ep, tp, flag = a.ep, a.tp, "--expert-model-parallel-size"
    if not a.has("--num-experts"):
        if ep > 1:
            yield _broken(flag, "expert-parallel", f"{ep}, but the model has no experts.", "Remove it.")
        return
    experts, extended = a.number("--num-experts"), a.has("--moe-tp-extend-ep")
    spread = ep * tp if extended else ep
    if experts % spread:
        why = f"{'tp x ' if extended else ''}ep = {spread} does not divide {experts} experts."
        yield _broken(flag, "expert-parallel", why, "Use a divisor.")
    expert_tp = 1 if extended else a.number("--expert-tensor-parallel-size", tp)
    if a.devices is not None and a.devices % (expert_tp * spread * a.pp):
        yield _broken(
            flag,
            "expert-parallel",
            f"expert tp {expert_tp} x ep {spread} x pp {a.pp} does not divide {a.devices} devices.",
            "Lower one.",
        )
    if ep > 1 and tp > 1 and not a.has("--sequence-parallel"):
        yield _broken(
            flag, "sequence-parallel", "expert and tensor parallelism together need --sequence-parallel.", "Add it."
        )
    if a.has("--moe-alltoall-overlap-comm") and ep == 1:
        yield _conflict("--moe-alltoall-overlap-comm", "needs expert parallelism", "Remove it.")
    yield from _routing(a, experts, expert_tp)


def _dispatcher(a: Arguments, dispatcher: str, expert_tp: int) -> Iterator[Broken]:
    """``alltoall_seq`` takes experts split over tp, or whole ones of --moe-tp-extend-ep, which takes nothing else.

    MindSpeed ``features_manager/moe/tp_extend_ep.py``.
    """
    flag = "--moe-token-dispatcher-type"
    if a.has("--moe-tp-extend-ep"):
        if dispatcher != "alltoall_seq":
            fix = "Use alltoall_seq, or --expert-tensor-parallel-size 1."
            yield _conflict(flag, f"{dispatcher} is refused with --moe-tp-extend-ep", fix)
    elif dispatcher == "alltoall_seq" and expert_tp != a.tp:
        yield _conflict(flag, "alltoall_seq needs experts split like the dense layers", "Use alltoall.")


def _routing(a: Arguments, experts: int, expert_tp: int) -> Iterator[Broken]:
    dispatcher = a.text("--moe-token-dispatcher-type", "allgather")
    if not a.has("--disable-bias-linear"):
        yield _conflict("--num-experts", "needs --disable-bias-linear: experts have no bias", "Add it.")
    yield from _dispatcher(a, dispatcher, expert_tp)
    yield from _capacity(a, dispatcher)
    if a.has("--moe-router-group-topk"):
        groups = a.number("--moe-router-num-groups")
        if experts % groups or a.number("--moe-router-group-topk") > groups:
            yield _conflict(
                "--moe-router-group-topk",
                f"needs --moe-router-num-groups that divides {experts} experts and is not smaller",
                "Set it.",
            )
    if a.has("--moe-fb-overlap"):
        if a.pp > 1 and not a.chunked and not a.dualpipe:
            yield _conflict("--moe-fb-overlap", "needs no pipeline, a virtual pipeline or dualpipev", "Remove it.")
        if dispatcher == "alltoall_seq":
            yield _conflict("--moe-fb-overlap", "is refused with alltoall_seq", "Use alltoall.")


def _capacity(a: Arguments, dispatcher: str) -> Iterator[Broken]:
    """Places for tokens at each expert (``TransformerConfig.__post_init__``); a negative factor switches them off."""
    flag = "--moe-expert-capacity-factor"
    if a.has("--moe-pad-expert-input-to-capacity") and not a.has(flag):
        yield _conflict("--moe-pad-expert-input-to-capacity", f"needs {flag}", "Set it.")
    if not a.has(flag) or a.real(flag) < 0:
        return
    if dispatcher == "allgather":
        default = "" if a.has("--moe-token-dispatcher-type") else ", the default"
        yield _conflict(flag, f"is refused with --moe-token-dispatcher-type {dispatcher}{default}", "Use alltoall.")
    balancing = a.text("--moe-router-load-balancing-type", "aux_loss")
    if balancing not in ("aux_loss", "seq_aux_loss", "none"):
        yield _conflict(flag, f"is refused with --moe-router-load-balancing-type {balancing}", "Use aux_loss or none.")


def _recompute(a: Arguments) -> Iterator[Broken]:
    granularity = a.text("--recompute-granularity")
    for name in ("--recompute-method", "--recompute-num-layers"):
        if granularity == "selective" and a.has(name):
            yield _conflict(name, "is refused with --recompute-granularity selective", "Remove it.")
        if granularity == "full" and not a.has(name):
            yield _conflict("--recompute-granularity", f"full needs {name}", "Add it.")
        if not granularity and a.has(name):
            yield _conflict(name, "has no effect without --recompute-granularity full", "Add that, or remove it.")
    if granularity == "selective" and a.has("--recompute-modules") and a.text("--recompute-modules") not in _MODULES:
        yield _broken(
            "--recompute-modules",
            "flag-value",
            f"{a.text('--recompute-modules')!r} is refused.",
            f"Legal: {', '.join(_MODULES)}.",
        )
    for name in ("--recompute-in-bubble", "--recompute-in-advance"):
        if a.has(name) and not a.chunked:
            yield _conflict(name, "needs a virtual pipeline", "Remove it.")


def _optimizer(a: Arguments) -> Iterator[Broken]:
    for name in ("--swap-optimizer", "--overlap-param-gather"):
        if a.has(name) and not a.has("--use-distributed-optimizer"):
            yield _conflict(name, "needs --use-distributed-optimizer", "Add it.")
    if a.has("--swap-optimizer-times") and not a.has("--swap-optimizer"):
        yield _conflict("--swap-optimizer-times", "has no effect without --swap-optimizer", "Add that, or remove it.")
    if a.has("--overlap-param-gather") and not a.has("--overlap-grad-reduce"):
        yield _conflict("--overlap-param-gather", "needs --overlap-grad-reduce", "Add it.")
    legacy = a.has("--use-legacy-models") or not a.has("--use-mcore-models")
    if legacy and a.has("--reuse-fp32-param") and a.has("--overlap-param-gather"):
        yield _conflict(
            "--reuse-fp32-param",
            "and --overlap-param-gather exclude each other in legacy models",
            "Remove one, or add --use-mcore-models.",
        )
    if a.has("--bf16") and a.has("--fp16"):
        yield _conflict("--fp16", "and --bf16 exclude each other", "Keep one.")


def _sizes(a: Arguments) -> Iterator[Broken]:
    """Pairs that ``validate_args`` of Megatron-LM compares."""
    positions, seq = "--max-position-embeddings", "--seq-length"
    if a.has(positions) and a.has(seq) and a.number(positions) < a.number(seq):
        why = f"{a.number(positions)} is below --seq-length {a.number(seq)}."
        yield _broken(positions, "sequence-length", why, f"At least {a.number(seq)}.")
    if a.has("--lr") and a.has("--min-lr") and a.real("--min-lr") > a.real("--lr"):
        why = f"{a.text('--min-lr')} is above --lr {a.text('--lr')}."
        yield _broken("--min-lr", "learning-rate", why, "At most --lr.")


def _swap(a: Arguments) -> Iterator[Broken]:
    if not a.has("--swap-attention"):
        return
    for name, what in (
        ("--adaptive-recompute-device-swap", "adaptive recompute"),
        ("--lora-r", "LoRA"),
        ("--recompute-in-bubble", "--recompute-in-bubble"),
    ):
        if a.has(name):
            yield _conflict("--swap-attention", f"is refused with {what}")
    if a.dualpipe:
        yield _conflict("--swap-attention", "is refused with dualpipev")


def _dualpipe(a: Arguments) -> Iterator[Broken]:
    if not a.dualpipe:
        return
    pp, layers, count = a.pp, a.number("--num-layers", 10**9), a.micro_batches
    for wrong, what in (
        (pp == 1, "needs a pipeline"),
        (a.chunked, "is refused with a virtual pipeline"),
        (a.cp > 1, "is refused with context parallelism"),
        (a.has("--overlap-grad-reduce"), "is refused with --overlap-grad-reduce"),
        (not a.has("--untie-embeddings-and-output-weights"), "needs --untie-embeddings-and-output-weights"),
        (a.has("--num-layer-list"), "is refused with --num-layer-list"),
        (layers < 2 * pp, f"needs {2 * pp} layers, twice the stages; given {layers}"),
        (count is not None and count < 2 * pp - 1, f"needs {2 * pp - 1} micro-batches at least; given {count}"),
    ):
        if wrong:
            yield _conflict("--schedules-method", f"dualpipev {what}", "Change one.")


RULES: Final[tuple[Callable[[Arguments], Iterator[Broken]], ...]] = (
    _values,
    _tensor,
    _world,
    _pipeline,
    _context,
    _experts,
    _recompute,
    _optimizer,
    _sizes,
    _swap,
    _dualpipe,
)
