"""Read a MindSpeed-LLM or Megatron launch script back: model, workload and strategy from its flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from planner.cost.strategies import Strategy
from planner.dialects.graph.read import ReadResult
from planner.dialects.mindspeed.flags import FLAGS, SWITCH, real_names
from planner.dialects.mindspeed.recompute import Nodes
from planner.dialects.text.shell_read import Word, words
from planner.errors import SpecError
from planner.frameworks import NO_TP_OVERLAP
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe, Workload

_CP: Final = {"megatron_cp_algo": "ring", "ulysses_cp_algo": "ulysses", "hybrid_cp_algo": "hybrid",
              "hybrid_adaptive_cp_algo": "hybrid", "kvallgather_cp_algo": "ring"}  # fmt: skip
#: Flags that decide neither memory nor time here, beside those that are read.
_IGNORED: Final = frozenset(
    f"--{name}"
    for name in (
        "max-position-embeddings make-vocab-size-divisible-by norm-epsilon init-method-std attention-dropout "
        "hidden-dropout rotary-base use-rotary-position-embeddings moe-grouped-gemm moe-token-dispatcher-type "
        "moe-aux-loss-coeff moe-router-load-balancing-type moe-layer-freq norm-topk-prob "
        "moe-router-score-function moe-router-bias-update-rate moe-router-topk-scaling-factor "
        "moe-router-num-groups moe-router-group-topk mtp-loss-scaling-factor use-mcore-models "
        "no-masked-softmax-fusion attention-softmax-in-fp32 no-gradient-accumulation-fusion use-fused-rmsnorm "
        "use-fused-swiglu use-fused-rotary-pos-emb train-iters lr-warmup-iters save-interval log-interval "
        "eval-interval eval-iters seed lr min-lr weight-decay clip-grad adam-beta1 adam-beta2 "
        "lr-warmup-fraction lr-decay-style save load tokenizer-name-or-path split distributed-backend "
        "tokenizer-type data-path no-load-optim no-load-rng overlap-grad-reduce overlap-param-gather "
        "attention-mask-type use-cp-send-recv-overlap normalization position-embedding-type optimizer "
        "moe-permutation-async-comm"
    ).split()
)
_LAUNCHER: Final = ("--nproc_per_node", "--nproc-per-node", "--nnodes", "--node_rank", "--node-rank", "--master_addr",
                    "--master-addr", "--master_port", "--master-port")  # fmt: skip


#: Numbers of each node: ``name=(8 8 4 4)``, used as ``${name[node_rank]}``.
_ARRAY: Final = re.compile(r"(?m)^[ \t]*([A-Za-z_]\w*)=\(([0-9]{1,6}(?: [0-9]{1,6})*)\)")
_ARRAY_LIMIT: Final = 100_000
_OF_NODE: Final = re.compile(r"\$\{(\w+)\[\$?(?:node_rank|NODE_RANK)\]\}")
_LITERAL: Final = re.compile(r"[0-9.]+|true|false|True|False|yes|no|on|off")


class Flags:
    """Flags of a script with their values; remembers which were read.

    Attributes
    ----------
    values : dict
        Value of each flag that is known; None for a switch.
    strange : list of (flag, line)
        Flags that are not in the table.
    stray : list of (flag, value, line)
        Values behind switches.
    again : list of (flag, line)
        Flags given again with another value.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.values: dict[str, str | None] = {}
        self.lines: dict[str, int] = {}
        self.read: set[str] = set()
        self.strange: list[tuple[str, int]] = []
        self.stray: list[tuple[str, str, int]] = []
        self.again: list[tuple[str, int]] = []
        self.arrays = {
            name: tuple(map(int, numbers.split()))
            for name, numbers in _ARRAY.findall(text)
            if len(numbers) < _ARRAY_LIMIT
        }
        self._collect(words(text))

    def _collect(self, found: list[Word]) -> None:
        for i, word in enumerate(found):
            if not word.text.startswith("--") or len(word.text) < 4:
                continue
            name, _, inline = word.text.partition("=")
            if name not in FLAGS and name not in _LAUNCHER:
                self.strange.append((name, word.line))
                continue
            following = found[i + 1].text if i + 1 < len(found) else ""
            switch = name in FLAGS and FLAGS[name].kind == SWITCH
            if switch and (inline or _LITERAL.fullmatch(following)):
                self.stray.append((name, inline or following, word.line))
            value = None if switch else (inline or following)
            if self.values.get(name, value) != value and name in FLAGS:
                self.again.append((name, word.line))
            self.values[name] = value
            self.lines[name] = word.line

    def where(self, name: str) -> str:
        """File, line and name of a flag, for messages."""
        return f"{self.source}, line {self.lines.get(name, 1)}: {name}"

    def has(self, name: str) -> bool:
        """Whether a switch or a flag is given."""
        self.read.add(name)
        return name in self.values

    def text(self, name: str, default: str | None = None) -> str:
        """Value of a flag; checked against its choices."""
        self.read.add(name)
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise SpecError(f"{self.source}: {name} is missing; add it.")
            return default
        choices = FLAGS[name].choices if name in FLAGS else ()
        if choices and value not in choices:
            raise SpecError(f"{self.where(name)} {value}: legal: {', '.join(choices)}.")
        return value

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Whole number of a flag."""
        value = self.text(name, None if default is None else str(default))
        try:
            number = int(value)
        except ValueError:
            raise SpecError(f"{self.where(name)} {value} is no whole number.") from None
        if number < least:
            raise SpecError(f"{self.where(name)} {number} must be at least {least}.")
        return number

    def per_stage(self, name: str, stages: int, default: int, least: int = 0) -> tuple[int, ...]:
        """Whole number of a flag for each pipeline stage; a number for each node is dealt to the stages on it."""
        found = _OF_NODE.fullmatch(self.values.get(name) or "")
        if not found:
            return (self.integer(name, default, least),) * stages
        self.read.add(name)
        numbers, local = self.arrays.get(found[1], ()), self.launched("--nproc_per_node", "--nproc-per-node")
        if not numbers or not local or len(numbers) != (self.launched("--nnodes") or 1):
            raise SpecError(
                f"{self.where(name)}: {found[0]} needs an array {found[1]}=(...) with a number for each node."
            )
        return Nodes(len(numbers), local, stages).counts(numbers)

    def launched(self, *names: str) -> int | None:
        """Number behind an option of torchrun, where the script says it."""
        found = [self.values.get(name) for name in names]
        return next((int(value) for value in found if value and value.isdigit() and int(value) > 0), None)

    def unread(self) -> list[str]:
        """Flags that were given and neither read nor harmless."""
        left = [n for n in self.values if n not in self.read and n not in _IGNORED and n not in _LAUNCHER]
        real = real_names()
        strange = [
            f"{name} (line {line}): {'not modelled' if name in real else 'not a flag that is known here'}"
            for name, line in self.strange
        ]
        return [f"{name} (line {self.lines[name]}): not modelled" for name in left] + strange

    @property
    def unknown(self) -> list[str]:
        """Names of the flags that are not in the table."""
        return [name for name, _ in self.strange]

    def devices(self) -> int | None:
        """World size, where the script says it."""
        local = self.launched("--nproc_per_node", "--nproc-per-node")
        return None if local is None else local * (self.launched("--nnodes") or 1)


def is_script(text: str) -> bool:
    """Whether a text looks like a Megatron launch script."""
    plain = text.replace("_", "-")  # a flag spelled with underscores is for the check to find
    return "--num-layers" in plain and "--hidden-size" in plain


def read_mindspeed(text: str, *, source: str = "script", devices: int | None = None) -> ReadResult:
    """Model, workload and strategy of a launch script.

    Parameters
    ----------
    text : str
    source : str
        File name, for messages.
    devices : int, optional
        Number of devices, where the script does not say how many there are.

    Raises
    ------
    SpecError
    """
    flags = Flags(text, source)
    unread: list[str] = []
    placement = _placement(flags)
    model = _model(flags, sum(map(sum, placement)), source)
    strategy = _strategy(flags, placement, devices, unread)
    compute = next((d for f, d in (("--bf16", "bfloat16"), ("--fp16", "float16")) if flags.has(f)), "float32")
    workload = Workload(
        seq=flags.integer("--seq-length"),
        global_batch=strategy.dp * strategy.micro_batch_size * strategy.micro_batches,
        params_dtype=compute,
        compute_dtype=compute,
        master_weights=compute != "float32",
        framework="mindspeed",
        flash_attention=flags.has("--use-flash-attn"),
        switches=_switches(flags),
    )
    return ReadResult(
        model=model,
        workload=workload,
        strategy=strategy,
        unread=tuple(unread + flags.unread()),
        dialect="mindspeed",
    )


def _switches(flags: Flags) -> tuple[str, ...]:
    """Settings that differ from the planner's own files (``planner.cost.memory.rules.SWITCHES``)."""
    overlaps = flags.has("--use-ascend-mc2") or flags.has("--use-ascend-coc")
    overlapping = flags.integer("--tensor-model-parallel-size", 1) > 1 and not flags.has("--num-experts")
    found = {
        "reuse-fp32-param": flags.has("--reuse-fp32-param"),
        NO_TP_OVERLAP: overlapping and not overlaps,
    }
    return tuple(name for name, on in found.items() if on)


def _placement(flags: Flags) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk of each stage, without those that do nothing."""
    layers, pp = flags.integer("--num-layers"), flags.integer("--pipeline-model-parallel-size", 1)
    first, last = (flags.integer(f"--decoder-{end}-pipeline-num-layers", 0, 0) for end in ("first", "last"))
    if first or last:
        return _in_chunks(flags, _ends(flags, layers, pp, first, last))
    vpp = _chunks(flags, layers, pp)
    if flags.has("--num-layer-list"):
        listed = tuple(int(part) for part in flags.text("--num-layer-list").split(",") if part.strip().isdigit())
        if len(listed) != pp or sum(listed) != layers or vpp > 1:
            raise SpecError(
                f"{flags.where('--num-layer-list')} needs {pp} numbers that add up to {layers}, and no "
                f"virtual pipeline; given {flags.text('--num-layer-list')}."
            )
        return (listed,)
    if layers % (pp * vpp):
        raise SpecError(
            f"{flags.source}: --num-layers {layers} does not divide into {pp} stages x {vpp} chunks; Megatron would "
            "drop layers. Use --num-layer-list, or --noop-layers with a padded number."
        )
    idle = _idle(flags, layers)
    size = layers // (pp * vpp)
    rows = [
        tuple(sum(i not in idle for i in range((c * pp + s) * size, (c * pp + s + 1) * size)) for s in range(pp))
        for c in range(vpp)
    ]
    return tuple(rows)


def _chunks(flags: Flags, layers: int, pp: int) -> int:
    if flags.has("--num-virtual-stages-per-pipeline-rank"):
        return flags.integer("--num-virtual-stages-per-pipeline-rank")
    if not flags.has("--num-layers-per-virtual-pipeline-stage"):
        return 1
    size = flags.integer("--num-layers-per-virtual-pipeline-stage")
    if layers % (pp * size):
        raise SpecError(
            f"{flags.where('--num-layers-per-virtual-pipeline-stage')}: {layers} layers do not divide into chunks of "
            f"{size} on {pp} stages."
        )
    return layers // (pp * size)


def _idle(flags: Flags, layers: int) -> set[int]:
    if not flags.has("--noop-layers"):
        return set()
    parts = flags.text("--noop-layers").split(",")
    if not all(part.strip().isdigit() and int(part) < layers for part in parts):
        raise SpecError(
            f"{flags.where('--noop-layers')} needs layer numbers below {layers}, "
            f"separated by commas; given {flags.text('--noop-layers')}."
        )
    return {int(part) for part in parts}


def _in_chunks(flags: Flags, stages: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Stages of different length in chunks: each stage's layers divide by the number of its chunks."""
    if flags.has("--num-layers-per-virtual-pipeline-stage"):
        raise SpecError(
            f"{flags.where('--num-layers-per-virtual-pipeline-stage')} does not fit stages of different length; use "
            "--num-virtual-stages-per-pipeline-rank."
        )
    vpp = flags.integer("--num-virtual-stages-per-pipeline-rank", 1)
    if any(count % vpp for count in stages):
        raise SpecError(
            f"{flags.source}: stages of {', '.join(map(str, stages))} layers do not divide into {vpp} chunks each."
        )
    return (tuple(count // vpp for count in stages),) * vpp


def _ends(flags: Flags, layers: int, pp: int, first: int, last: int) -> tuple[int, ...]:
    middle = pp - bool(first) - bool(last)
    rest = layers - first - last
    if middle < 1 or rest < middle or rest % middle:
        raise SpecError(
            f"{flags.source}: {layers} layers less {first} on the first and {last} on the last stage do not divide "
            f"into {middle} stages between."
        )
    inner = (rest // middle,) * middle
    return (*((first,) if first else ()), *inner, *((last,) if last else ()))


def _strategy(flags: Flags, layers: tuple[tuple[int, ...], ...], devices: int | None, unread: list[str]) -> Strategy:
    tp, cp = flags.integer("--tensor-model-parallel-size", 1), flags.integer("--context-parallel-size", 1)
    pp, vpp = len(layers[0]), len(layers)
    dp = _data_parallel(flags, tp * pp * cp, devices)
    size = flags.integer("--micro-batch-size", 1)
    batch = flags.integer("--global-batch-size", size * dp)
    if batch % (size * dp):
        raise SpecError(
            f"{flags.source}: --global-batch-size {batch} does not divide by --micro-batch-size {size} x dp {dp} "
            f"= {size * dp}."
        )
    full, selective = _recompute(flags, layers, unread)
    ep, etp = _experts(flags, tp)
    sharded = flags.has("--use-distributed-optimizer")
    name = _CP[flags.text("--context-parallel-algo", "megatron_cp_algo")] if cp > 1 else "ring"
    degree = {"ring": 1, "ulysses": cp}.get(name) or flags.integer("--ulysses-degree-in-cp", 1)
    if flags.has("--schedules-method"):
        unread.append("--schedules-method dualpipev: read as its 1F1B or interleaved layout")
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=etp,
        layers=layers,
        recompute_full=full,
        recompute_selective=selective,
        micro_batches=batch // (size * dp),
        micro_batch_size=size,
        cp_algorithm=name,
        ulysses_degree=degree,
        sequence_parallel=flags.has("--sequence-parallel") and tp > 1,
        zero_level=int(sharded),
        optimizer_shard=dp * cp if sharded else 1,
        swap_optimizer=flags.has("--swap-optimizer"),
        schedule="interleaved" if vpp > 1 else "1f1b",
    )


def _experts(flags: Flags, tp: int) -> tuple[int, int]:
    """Ranks over which experts are spread, and over which each of them is split.

    Megatron splits them over tp unless told otherwise; ``--moe-tp-extend-ep`` spreads whole experts over tp as well.
    """
    ep = flags.integer("--expert-model-parallel-size", 1)
    etp = flags.integer("--expert-tensor-parallel-size", tp)
    if not flags.has("--num-experts"):
        return ep, 1
    return (ep * tp, 1) if flags.has("--moe-tp-extend-ep") else (ep, etp)


def _data_parallel(flags: Flags, rest: int, devices: int | None) -> int:
    if devices is None:
        devices = flags.devices()
        if devices is None:
            raise SpecError(f"{flags.source}: the number of devices is not in the script; give it with --cards.")
    if devices % rest:
        raise SpecError(
            f"{flags.source}: {devices} devices do not divide by tp x pp x cp = {rest}; legal: multiples of {rest}."
        )
    return devices // rest


def _recompute(
    flags: Flags, layers: tuple[tuple[int, ...], ...], unread: list[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pp, vpp = len(layers[0]), len(layers)
    totals = tuple(sum(row[s] for row in layers) for s in range(pp))
    full = (0,) * pp
    if flags.has("--recompute-granularity") and flags.text("--recompute-granularity") == "full":
        full = _full_recompute(flags, totals, vpp, unread)
    elif flags.has("--recompute-granularity"):
        unread.append("--recompute-granularity selective: recomputes core attention, which flash attention does anyway")
        flags.read |= {"--recompute-modules"}
    selective = (0,) * pp
    if flags.has("--recompute-activation-function"):
        most = flags.per_stage("--recompute-activation-function-num-layers", pp, max(totals))
        selective = tuple(min(m, total - f) for m, total, f in zip(most, totals, full, strict=True))
    return full, selective


def _full_recompute(flags: Flags, totals: tuple[int, ...], vpp: int, unread: list[str]) -> tuple[int, ...]:
    method = flags.text("--recompute-method", "")
    if method == "uniform":
        count = flags.integer("--recompute-num-layers", 1)
        if count > 1:
            unread.append(f"--recompute-num-layers {count}: uniform groups are read as single layers")
        return totals
    if method != "block":
        raise SpecError(f"{flags.source}: full recompute needs --recompute-method uniform or block.")
    chunks = 1 if flags.has("--enable-recompute-layers-per-pp-rank") else vpp
    counts = flags.per_stage("--recompute-num-layers", len(totals), 1)
    return tuple(min(count * chunks, total) for count, total in zip(counts, totals, strict=True))


def _model(flags: Flags, layers: int, source: str) -> Model:
    hidden, heads = flags.integer("--hidden-size"), flags.integer("--num-attention-heads")
    gated = flags.has("--swiglu")
    default_ffn = 8 * hidden // 3 // 64 * 64 if gated else 4 * hidden
    moe = _moe(flags)
    bias = not flags.has("--disable-bias-linear")
    attention = _attention(flags, hidden, heads, bias=bias)
    learned = flags.text("--position-embedding-type", "learned_absolute") == "learned_absolute"
    norm_bias = flags.text("--normalization", "LayerNorm") == "LayerNorm"
    positions = flags.integer("--max-position-embeddings", flags.integer("--seq-length"))
    return Model(
        name=source.rsplit("/", 1)[-1].removesuffix(".sh"),
        family=_family(flags, attention, moe, learned=learned),
        hidden=hidden,
        ffn=flags.integer("--ffn-hidden-size", default_ffn),
        vocab=_vocabulary(flags),
        attention=attention,
        layer_kinds=_kinds(flags, layers, moe),
        moe=moe,
        mtp_layers=flags.integer("--mtp-num-layers", 0, 0),
        gated_mlp=gated,
        mlp_bias=bias,
        norm_bias=norm_bias,
        tied_embeddings=not flags.has("--untie-embeddings-and-output-weights"),
        learned_positions=positions if learned else 0,
        max_seq=positions,
        source=source,
    )


def _vocabulary(flags: Flags) -> int:
    for name in ("--padded-vocab-size", "--vocab-size"):
        if flags.has(name):
            return flags.integer(name)
    raise SpecError(f"{flags.source}: the vocabulary comes from the tokenizer; add --padded-vocab-size N.")


def _attention(flags: Flags, hidden: int, heads: int, *, bias: bool) -> Attention:
    normed = flags.has("--qk-layernorm")
    added = flags.has("--add-qkv-bias")
    if flags.has("--multi-latent-attention"):
        nope, rope = flags.integer("--qk-head-dim", 128), flags.integer("--qk-pos-emb-head-dim", 64)
        return Attention(
            kind="mla",
            heads=heads,
            kv_heads=heads,
            head_dim=nope + rope,
            v_head_dim=flags.integer("--v-head-dim", 128),
            q_lora_rank=flags.integer("--q-lora-rank", 0, 0),
            kv_lora_rank=flags.integer("--kv-lora-rank", 32),
            qk_nope_dim=nope,
            qk_rope_dim=rope,
        )
    grouped = flags.has("--group-query-attention")
    head_dim = flags.integer("--kv-channels", max(hidden // heads, 1))
    return Attention(
        heads=heads,
        kv_heads=flags.integer("--num-query-groups", 1 if grouped else heads) if grouped else heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=bias or added,
        output_bias=bias,
        qk_norm=normed,
    )


def _moe(flags: Flags) -> Moe | None:
    if not flags.has("--num-experts"):
        return None
    width = flags.integer("--moe-ffn-hidden-size", 0, 0) or flags.integer("--ffn-hidden-size")
    shared = flags.integer("--n-shared-experts", 0, 0) * width
    return Moe(
        experts=flags.integer("--num-experts"),
        topk=flags.integer("--moe-router-topk", 2),
        expert_ffn=width,
        shared_ffn=flags.integer("--moe-shared-expert-intermediate-size", shared, 0),
        shared_gate=flags.has("--shared-expert-gate"),
        router_bias=flags.has("--moe-router-enable-expert-bias"),
    )


def _kinds(flags: Flags, layers: int, moe: Moe | None) -> tuple[LayerKind, ...]:
    dense = flags.integer("--first-k-dense-replace", 0, 0)
    if moe is None:
        return (DENSE,) * layers
    return (DENSE,) * min(dense, layers) + (MOE,) * max(layers - dense, 0)


def _family(flags: Flags, attention: Attention, moe: Moe | None, *, learned: bool) -> str:
    if learned:
        return "gpt"
    if attention.kind == "mla":
        return "deepseek_v3" if moe and moe.router_bias else "deepseek_v2"
    signs: Mapping[str, bool] = {
        "glm4_moe": bool(moe and moe.router_bias),
        "qwen2_moe": bool(moe and moe.shared_gate),
        "qwen3_moe": bool(moe and attention.qk_norm),
        "mixtral": moe is not None,
        "qwen3": attention.qk_norm,
        "qwen2": attention.qkv_bias and not attention.output_bias,
    }
    return next((family for family, sign in signs.items() if sign), "llama")
