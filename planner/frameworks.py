"""What the planner knows of each framework that may run a job, once: one record a framework.

MindSpore runs jobs through MindFormers: in graph mode with its mcore networks (``mindformers``) or its legacy ones
(``mindformers-legacy``, whose facts also hold for the self-contained script of target ``mindspore``), or operator by
operator (``mindformers-pynative``).  PyTorch runs them through MindSpeed-LLM on Ascend (``mindspeed``) and through
Megatron-LM on NVIDIA devices (``megatron``).

Everywhere else a fact is asked for by its name, ``workload.runs_on.graph``, never by comparing names of frameworks.
Sources are the frameworks' own code: MindFormers 1.9.0 ``parallel_core/transformer_config.py``, ``LayerSetting``,
``core/parallel_config.py``, ``mask_generate.py`` and, in 2.x, ``pynative/distributed/parallel_dims.py``; MindSpore
``parallel.nn.Pipeline``; Megatron-LM ``training/arguments.py``; MindSpeed 2.x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from planner.errors import SpecError

FrameworkName = Literal["mindformers", "mindformers-legacy", "mindformers-pynative", "mindspeed", "megatron"]
Dialect = Literal["mcore", "legacy", "pynative", "megatron"]
#: Lists of kept tensors; ``fsdp`` and ``native-cpu`` are switches of a run, not the habit of a framework here.
TensorLayout = Literal["mcore", "legacy", "pynative", "megatron", "mindspeed", "fsdp", "native-cpu"]

#: The entry of ``Workload.switches`` that leaves out the overlap of tensor-parallel traffic.
NO_TP_OVERLAP: Final = "no-tp-overlap"

#: Sets of files that can be written, best first.
TARGETS: Final = ("mindformers", "mindformers-pynative", "mindspeed", "mindspore")

#: Shorter sequences are refused with a compressed attention mask (MindFormers ``mask_generate.py``, legacy
#: ``transformer.py``) [tokens].
LEAST_COMPRESSED_SEQ: Final = 2048

#: MindFormers release -> the MindSpore it is released for (VERSION_MAP.json of MindFormers).
_RELEASES: Final = (
    ("1.7.0", "2.7.1"),
    ("1.8.0", "2.7.2"),
    ("1.9.0", "2.9.0"),
    ("2.0.0", "2.10.0"),
    ("2.1.0", "2.11.0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Facts of one framework.

    Attributes
    ----------
    name : {"mindformers", "mindformers-legacy", "mindformers-pynative", "mindspeed", "megatron"}
        As users and ``Workload.framework`` spell it.
    family : {"mindformers", "mindspeed", "megatron"}
        Whose calibrations hold for it where it has none of its own.
    dialect : {"mcore", "legacy", "pynative", "megatron"}
        Of the files it reads, and whose communicators it makes: MindFormers' mcore or legacy ones, else PyTorch's.
    targets : tuple of str
        Sets of files it runs, the usual one first; see `TARGETS`.
    releases : tuple of (str, str)
        Releases, and the MindSpore each one is made for.
    ascend : bool
        Runs on Ascend devices; False: on NVIDIA ones.
    graph : bool
        Compiled graphs (MindSpore graph mode), whose compiler inserts the collectives: ranks gather keys and values
        of the whole sequence instead of passing blocks around, and Muon's experts are cut over the optimizer's ranks.
        False: the host launches operators one by one.
    schedules : tuple of str
        Pipeline schedules it can run.
    zero_levels : tuple of int
        Optimizer sharding levels it can run (MindSpeed-LLM: the distributed optimizer is level 1).
    written_levels : tuple of int
        Of those, what its files can say, and what a search looks at unless others are pinned; empty: all.
    tensors : {"mcore", "legacy", "pynative", "megatron", "mindspeed"}
        Which list of kept tensors is its own, see ``planner.cost.memory.kept``.
    memory_compared : bool
        Predicted memory has been compared with runs, or with the compiler's own plan.
    sharded_weights : bool
        MindSpore's optimizer parallelism, see ``planner.cost.memory.rules``.
    master_copies : bool
        Keeps 16-bit parameters beside float32 copies unless told otherwise; False: float32 parameters alone.
    expert_parts : {"whole", "tp", "any"}
        How an expert may be split: not at all; over tp, or not at all; over any number of ranks that divides its
        width.  Where it may be, it is split over tp unless told otherwise.
    fused_loss : bool
        Loss and its gradient are one kernel in place of the logits.
    overlaps_tp : bool
        Pipelines tensor-parallel traffic of networks without experts with their matmuls unless told otherwise
        (MindSpeed's MC2, which its parser refuses without tp and its documentation for experts); see ``NO_TP_OVERLAP``.
    fused_accumulation : bool
        The product that makes a weight's gradient adds it to the accumulated one (Megatron
        ``gradient_accumulation_fusion``; MindSpeed-LLM's scripts turn it off); False: an operator of its own does.
    transformer_engine : bool
        Layers are NVIDIA's Transformer Engine.
    least_compressed_seq : int
        Shorter sequences have no compressed attention mask [tokens]; 0: all have one.
    sends_parts : bool
        Each rank of tp sends its part of the activations between stages and the receivers gather, with sequence
        parallelism or without (arXiv 2104.04473, section 4.1).
    moe_needs_sp, dense_needs_sp : bool
        Networks with and without experts need sequence parallelism with tp > 1.
    exchanges_heads : bool
        Attention of every kind compiles with head exchange (Ulysses); False: only some latent attention.
    experts_over_cp : bool
        Experts may be spread over dp x tp x cp ranks of a stage; False: over dp x tp.
    nested_experts : bool
        Ranks that hold different experts are a part of tp, else of cp x tp, else a multiple of cp x tp.
    most_local_experts : int
        Experts a rank may hold; 0: any number.
    swap_level : int
        Least sharding level with which optimizer states can be swapped out.
    swaps_in_pipeline : bool
        Optimizer states can be swapped out with more than one stage.
    fills_pipeline : bool
        Needs as many micro-batches as stages at least.
    interleaves_rounds : bool
        Interleaving needs micro-batches divisible by the stages.
    spare_chunks : int or None
        Chunks of a pipeline that may be without a layer; None: as many as there are MTP modules, which count as layers.
    vocab_multiple : int
        A vocabulary is padded up to a multiple of this x tp (Megatron-LM ``--make-vocab-size-divisible-by``, its
        default); 0: taken as it is written.
    most_mtp : int or None
        Multi-token-prediction modules it trains; None: any number.
    checkpoint_monitor : bool
        MindFormers' ``CheckpointMonitor`` saves: every rank writes what it holds, copies among them unless
        ``remove_redundancy`` is set.  False: one writer for each distinct part.
    """

    name: FrameworkName
    family: str
    dialect: Dialect
    targets: tuple[str, ...]
    releases: tuple[tuple[str, str], ...] = ()
    ascend: bool = True
    graph: bool
    schedules: tuple[str, ...]
    zero_levels: tuple[int, ...]
    written_levels: tuple[int, ...] = ()
    tensors: TensorLayout
    memory_compared: bool = True

    @property
    def pool_limited(self) -> bool:
        """The pool has a configured limit (MindSpore's ``max_device_memory``); False: it grows to the card's end."""
        return self.tensors in {"mcore", "legacy", "pynative"}

    sharded_weights: bool = False
    master_copies: bool
    expert_parts: Literal["whole", "tp", "any"] = "whole"
    fused_loss: bool = False
    overlaps_tp: bool = False
    fused_accumulation: bool = False
    transformer_engine: bool = False
    least_compressed_seq: int
    sends_parts: bool
    moe_needs_sp: bool = True
    dense_needs_sp: bool = False
    exchanges_heads: bool = True
    experts_over_cp: bool
    nested_experts: bool = False
    most_local_experts: int = 0
    swap_level: int
    swaps_in_pipeline: bool = True
    fills_pipeline: bool
    interleaves_rounds: bool
    spare_chunks: int | None
    vocab_multiple: int = 0
    most_mtp: int | None
    checkpoint_monitor: bool = False

    @property
    def searched_levels(self) -> tuple[int, ...]:
        """Sharding levels that a search looks at unless others are pinned."""
        return self.written_levels or self.zero_levels


_MCORE: Final = Framework(
    name="mindformers",
    family="mindformers",
    dialect="mcore",
    targets=("mindformers",),
    releases=_RELEASES,
    graph=True,
    schedules=("gpipe", "1f1b", "interleaved", "zero_bubble_v"),
    zero_levels=(0, 1, 2, 3),
    tensors="mcore",
    sharded_weights=True,
    master_copies=False,
    least_compressed_seq=LEAST_COMPRESSED_SEQ,
    sends_parts=False,
    exchanges_heads=False,
    experts_over_cp=False,
    swap_level=0,
    fills_pipeline=True,
    interleaves_rounds=False,
    spare_chunks=None,
    most_mtp=1,
    checkpoint_monitor=True,
)

_LEGACY: Final = replace(
    _MCORE,
    name="mindformers-legacy",
    dialect="legacy",
    targets=("mindformers", "mindspore"),
    schedules=("gpipe", "1f1b", "interleaved", "seqpipe"),
    tensors="legacy",
    expert_parts="tp",
    moe_needs_sp=False,
    exchanges_heads=True,
    experts_over_cp=True,
)

_PYNATIVE: Final = replace(
    _MCORE,
    name="mindformers-pynative",
    dialect="pynative",
    targets=("mindformers-pynative",),
    graph=False,
    schedules=("gpipe", "1f1b", "interleaved"),
    zero_levels=(0, 3),
    tensors="pynative",
    memory_compared=False,
    sharded_weights=False,
    dense_needs_sp=True,
    exchanges_heads=True,
    experts_over_cp=True,
    nested_experts=True,
    swaps_in_pipeline=False,
)

_MEGATRON: Final = Framework(
    name="megatron",
    family="megatron",
    dialect="megatron",
    targets=("mindspeed",),
    ascend=False,
    graph=False,
    schedules=("1f1b", "interleaved"),
    zero_levels=(0, 1, 2, 3),
    written_levels=(0, 1),  # MindSpeed-LLM's scripts, which are the only ones for it; levels 2 and 3 are FSDP
    tensors="megatron",
    expert_parts="any",
    master_copies=True,
    fused_loss=True,
    fused_accumulation=True,
    transformer_engine=True,
    least_compressed_seq=0,
    sends_parts=True,
    experts_over_cp=True,
    swap_level=1,
    fills_pipeline=False,
    interleaves_rounds=True,
    spare_chunks=2,  # an empty first and an empty last one
    vocab_multiple=128,
    most_mtp=None,
)

_MINDSPEED: Final = replace(
    _MEGATRON,
    name="mindspeed",
    family="mindspeed",
    ascend=True,
    zero_levels=(0, 1),
    tensors="mindspeed",
    fused_loss=False,
    overlaps_tp=True,
    fused_accumulation=False,
    transformer_engine=False,
    most_local_experts=128,  # above it the fused NPU operators refuse (ms-swift, Qwen3-Next on NPU)
)

#: All of them, in the order messages list them.
ALL: Final = (_MCORE, _LEGACY, _PYNATIVE, _MINDSPEED, _MEGATRON)
NAMES: Final = tuple(framework.name for framework in ALL)

_BY_NAME: Final[dict[str, Framework]] = {framework.name: framework for framework in ALL}


def padded_vocab(framework: Framework, vocab: int, tp: int) -> int:
    """Rows of an embedding that `tp` ranks split: as many as the framework makes of `vocab` tokens.

    >>> padded_vocab(of("megatron"), 50257, 8), padded_vocab(of("megatron"), 128256, 8)
    (51200, 128256)
    >>> padded_vocab(of("mindformers"), 50257, 8)
    50257
    """
    if not framework.vocab_multiple or vocab % tp == 0:
        return vocab
    unit = framework.vocab_multiple * tp
    return -(-vocab // unit) * unit


def of(name: str) -> Framework:
    """Facts of a framework.

    Raises
    ------
    SpecError
        No framework has that name.

    >>> of("mindspeed").schedules
    ('1f1b', 'interleaved')
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise SpecError(f"framework {name!r} is not known; legal: {', '.join(NAMES)}.") from None


def of_target(target: str, *, legacy: bool) -> Framework:
    """The framework whose memory and speed a target's files have.

    Parameters
    ----------
    legacy : bool
        The model's family is one of MindFormers' legacy networks.

    Raises
    ------
    SpecError
        No target has that name.

    >>> of_target("mindformers", legacy=True).name, of_target("mindspore", legacy=False).name
    ('mindformers-legacy', 'mindformers-legacy')
    """
    able = [framework for framework in ALL if target in framework.targets]
    if not able:
        raise SpecError(f"target {target!r} is not known; legal: {', '.join(TARGETS)}.")
    return next((framework for framework in able if (framework.dialect == "legacy") is legacy), able[0])


def families(*, ascend: bool) -> dict[str, tuple[str, ...]]:
    """Names of the frameworks of each family, on Ascend or on NVIDIA devices.

    >>> families(ascend=False)
    {'megatron': ('megatron',)}
    """
    kept = [framework for framework in ALL if framework.ascend is ascend]
    return {own.family: tuple(f.name for f in kept if f.family == own.family) for own in kept}
