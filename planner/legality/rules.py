"""Every rule a strategy must keep, in one place.

A rule is a record: a code, what it demands, a predicate over whole tables and a message for one strategy.  The search
applies predicates to thousands of rows and counts what each rule removed; commands print messages.  Which rules hold
depends on the framework that will run the job: MindSpore through MindFormers (graph mode: ``mindformers``,
``mindformers-legacy``; PyNative: ``mindformers-pynative``), MindSpeed-LLM (``mindspeed``) or Megatron (``megatron``).

Sources are the frameworks' own checks: MindFormers ``parallel_core/transformer_config.py``, ``LayerSetting``,
``core/parallel_config.py`` and ``pynative/distributed/parallel_dims.py``; MindSpore ``parallel.nn.Pipeline``;
Megatron-LM ``training/arguments.py``; HCCL's constraints page for groups on the 910A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from planner import frameworks
from planner.cluster.placement import legal_on_quads, place_on, strides
from planner.cluster.records import Cluster
from planner.cost.experts import legal_etp
from planner.cost.strategies import CP_ALGORITHMS, SCHEDULES, BoolArray, IntArray, Strategies, Strategy
from planner.frameworks import Framework
from planner.model.records import DENSE, Model, Workload

RING, ULYSSES, HYBRID = (CP_ALGORITHMS.index(name) for name in ("ring", "ulysses", "hybrid"))
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE_V, SEQPIPE = (
    SCHEDULES.index(name) for name in ("gpipe", "1f1b", "interleaved", "zero_bubble_v", "seqpipe")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a strategy is judged against.

    Attributes
    ----------
    tp_across_nodes : bool
        Tensor-parallel groups may span nodes; only when the user asks for it.
    """

    model: Model
    workload: Workload
    cluster: Cluster
    tp_across_nodes: bool = False

    @property
    def framework(self) -> str:
        """Framework whose checks apply."""
        return self.workload.framework

    @property
    def runs_on(self) -> Framework:
        """Its facts."""
        return self.workload.runs_on

    @property
    def node(self) -> int:
        """Devices of one node, or all of them when fewer."""
        return min(self.cluster.hardware.devices_per_node, self.cluster.devices)


@dataclass(frozen=True, slots=True)
class Rule:
    """One legality rule.

    Attributes
    ----------
    code : str
        Short name, used in counts and messages.
    demand : str
        What the rule asks for, one line.
    holds : callable
        (Context, Strategies) -> bool array (C,), True where the rule is kept.
    explain : callable
        (Context, Strategy that breaks it) -> message with value, legal values and next step.
    reads_layers : bool
        The predicate looks at layers or recompute per stage; the others may be applied before layouts are laid out.
    """

    code: str
    demand: str
    holds: Callable[[Context, Strategies], BoolArray]
    explain: Callable[[Context, Strategy], str]
    reads_layers: bool = False


def divisors(number: int) -> tuple[int, ...]:
    """Divisors in rising order.

    >>> divisors(28)
    (1, 2, 4, 7, 14, 28)
    """
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(low + [number // d for d in reversed(low) if d * d != number])


def _listed(values: Sequence[int], most: int = 12) -> str:
    shown = ", ".join(str(v) for v in values[:most])
    return shown + (", ..." if len(values) > most else "")


def _rows(table: Strategies, holds: ArrayLike) -> BoolArray:
    """Answer of a predicate as one boolean a row."""
    return np.broadcast_to(np.asarray(holds, bool), len(table))


# --- devices, batch -------------------------------------------------------------------------------------------------


def _devices_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, table.devices == context.cluster.devices)


def _devices_explain(context: Context, s: Strategy) -> str:
    cards, rest = context.cluster.devices, s.tp * s.pp * s.cp
    advice = (
        f"dp={cards // rest} makes it {cards}"
        if cards % rest == 0
        else f"tp x pp x cp={rest} does not divide {cards} cards; change one of them"
    )
    return (
        f"devices: dp={s.dp} x tp={s.tp} x pp={s.pp} x cp={s.cp} = {s.devices} devices, "
        f"the cluster has {cards}; {advice}."
    )


def _batch_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, table.dp * table.micro_batch_size * table.micro_batches == context.workload.global_batch)


def _batch_explain(context: Context, s: Strategy) -> str:
    batch, unit = context.workload.global_batch, s.dp * s.micro_batch_size
    lower, upper = batch // unit * unit, -(-batch // unit) * unit
    if lower == upper:
        advice = f"micro_batches={batch // unit} makes it {batch}"
    else:
        near = f"{lower} or {upper}" if lower else f"{upper}"
        advice = f"dp x micro_batch_size={unit} does not divide {batch}; nearest legal global batches: {near}"
    return (
        f"global-batch: dp={s.dp} x micro_batch_size={s.micro_batch_size} x micro_batches={s.micro_batches} = "
        f"{s.dp * s.micro_batch_size * s.micro_batches}, asked is {batch}; {advice}."
    )


# --- numbers that must divide ---------------------------------------------------------------------------------------


def _tp_choices(context: Context, *sizes: int) -> tuple[int, ...]:
    common = int(np.gcd.reduce([size for size in sizes if size] or [1]))
    return divisors(common)


def _tp_advice(context: Context, legal: Sequence[int]) -> str:
    node = context.cluster.hardware.devices_per_node
    inside = [tp for tp in legal if tp <= node and node % tp == 0]
    text = f"legal tp: {_listed(legal)}"
    if tuple(inside) != tuple(legal):
        text += f" (inside a node of {node}: {_listed(inside)})"
    return f"{text}. Try tp={inside[-1]}."


def _divides_tp(code: str, what: str, size: Callable[[Model], int]) -> Rule:
    """Rule: tp divides a size of the model (0: the model has no such part)."""

    def holds(context: Context, table: Strategies) -> BoolArray:
        return _rows(table, size(context.model) % table.tp == 0)

    def explain(context: Context, s: Strategy) -> str:
        number = size(context.model)
        padding = ""
        if code == "vocab":
            padding = f"Or pad the vocabulary to {-(-number // s.tp) * s.tp} in the model and pay its memory: "
        advice = _tp_advice(context, divisors(number))
        return f"{code}: tp={s.tp} does not divide {number} {what}. {padding}{advice}"

    return Rule(code, f"tp divides the {what}", holds, explain)


def _kv_heads(model: Model) -> int:
    return model.attention.kv_heads if model.attention.kind == "gqa" else 0


def _dense_ffn(model: Model) -> int:
    return model.ffn if DENSE in model.layer_kinds else 0


def _shared_ffn(model: Model) -> int:
    return model.moe.shared_ffn if model.moe else 0


def _heads_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, context.model.attention.heads % (table.tp * table.ulysses_degree) == 0)


def _heads_explain(context: Context, s: Strategy) -> str:
    heads, kv = context.model.attention.heads, _kv_heads(context.model)
    legal = divisors(heads)
    if s.ulysses_degree > 1:
        return (
            f"heads: tp={s.tp} x ulysses_degree={s.ulysses_degree} = {s.tp * s.ulysses_degree} does not divide {heads} "
            f"attention heads; legal products: {_listed(legal)}. Lower either, or use cp_algorithm=ring."
        )
    advice = _tp_advice(context, _tp_choices(context, heads, kv) if kv else legal)
    return f"heads: tp={s.tp} does not divide {heads} attention heads; legal here: {_listed(legal)}. {advice}"


# --- sequence -------------------------------------------------------------------------------------------------------


def _tokens_holds(context: Context, table: Strategies) -> BoolArray:
    ring = (table.cp > 1) & (table.cp_algorithm != ULYSSES)
    return _rows(table, context.workload.seq % np.where(ring, 2 * table.cp, table.cp) == 0)


def _tokens_explain(context: Context, s: Strategy) -> str:
    seq, unit = context.workload.seq, s.cp if s.cp_algorithm == "ulysses" else 2 * s.cp
    why = "cp" if s.cp_algorithm == "ulysses" else "2 x cp (ring halves every part for the causal balance)"
    return (
        f"cp-sequence: sequence {seq} is not divisible by {why} = {unit}; legal cp: "
        f"{_listed([cp for cp in divisors(seq) if s.cp_algorithm == 'ulysses' or cp == 1 or seq % (2 * cp) == 0])}; "
        f"or pad the sequence to {-(-seq // unit) * unit}."
    )


def _sp_tokens_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, ~table.sequence_parallel | (context.workload.seq % (table.cp * table.tp) == 0))


def _sp_tokens_explain(context: Context, s: Strategy) -> str:
    seq = context.workload.seq
    unit = s.cp * s.tp
    return (
        f"sp-sequence: with sequence_parallel the {seq} tokens are split over cp={s.cp} x tp={s.tp} = {unit}, which "
        f"does not divide them; legal tp: {_listed([tp for tp in divisors(seq) if seq % (tp * s.cp) == 0])}; or a "
        f"sequence of {max(seq // unit, 1) * unit} or {(seq // unit + 1) * unit}."
    )


def _sp_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, ~table.sequence_parallel | (table.tp > 1))


def _sp_explain(context: Context, s: Strategy) -> str:
    return f"sp-needs-tp: sequence_parallel needs tp > 1, tp={s.tp}; switch sequence_parallel off."


def _moe_sp_holds(context: Context, table: Strategies) -> BoolArray:
    runs_on = context.runs_on
    if not (runs_on.moe_needs_sp if context.model.moe else runs_on.dense_needs_sp):
        return _rows(table, True)
    return _rows(table, table.sequence_parallel | (table.tp == 1))


def _moe_sp_explain(context: Context, s: Strategy) -> str:
    who = "MoE layers need" if context.model.moe else "PyNative mode needs"
    return f"tp-needs-sp: {who} sequence_parallel when tp > 1, tp={s.tp}; switch sequence_parallel on, or use tp=1."


# --- context parallel -----------------------------------------------------------------------------------------------


def exchanges_heads(model: Model) -> bool:
    """Whether MindFormers' mcore attention of `model` compiles with head exchange (tried under DryRun, 1.9.0)."""
    return model.attention.kind == "mla" and model.attention.v_head_dim == model.attention.head_dim


def _exchange_holds(context: Context, table: Strategies) -> BoolArray:
    able = context.runs_on.exchanges_heads or exchanges_heads(context.model)
    return _rows(table, (table.cp == 1) | (table.cp_algorithm == RING) | able)


def _exchange_explain(context: Context, s: Strategy) -> str:
    return (
        f"head-exchange: cp_algorithm={s.cp_algorithm} does not compile in MindFormers' mcore attention, except latent "
        "attention with value heads as wide as query heads; legal: ring, or --framework mindspeed."
    )


def _ulysses_holds(context: Context, table: Strategies) -> BoolArray:
    cp, degree, kind = table.cp, table.ulysses_degree, table.cp_algorithm
    hybrid = (degree > 1) & (degree < cp) & (cp % degree == 0)
    split = np.select([kind == RING, kind == ULYSSES], [degree == 1, degree == cp], hybrid)
    return _rows(table, np.where(cp == 1, (degree == 1) & (kind == RING), split))


def _ulysses_explain(context: Context, s: Strategy) -> str:
    if s.cp == 1:
        return (
            f"ulysses-degree: cp=1 has no context-parallel algorithm; given cp_algorithm={s.cp_algorithm}, "
            f"ulysses_degree={s.ulysses_degree}; legal: ring and 1."
        )
    legal = {"ring": (1,), "ulysses": (s.cp,)}.get(s.cp_algorithm, tuple(d for d in divisors(s.cp) if 1 < d < s.cp))
    return (
        f"ulysses-degree: ulysses_degree={s.ulysses_degree} does not fit cp={s.cp} with cp_algorithm="
        f"{s.cp_algorithm}; legal: {_listed(legal) or 'none (use ring or ulysses)'}."
    )


def _flash_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, (table.cp == 1) | context.workload.flash_attention)


def _flash_explain(context: Context, s: Strategy) -> str:
    return f"cp-needs-flash: cp={s.cp} > 1 needs flash attention; switch flash_attention on, or use cp=1."


# --- experts --------------------------------------------------------------------------------------------------------


def expert_ranks(framework: str, dp: IntArray, tp: IntArray, cp: IntArray) -> IntArray:
    """Ranks of a stage that may hold different experts: dp x tp in MindFormers' mcore models, elsewhere times cp."""
    return dp * tp * cp if frameworks.of(framework).experts_over_cp else dp * tp


def _dense_ep_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, (table.ep * table.etp == 1) | (context.model.moe is not None))


def _dense_ep_explain(context: Context, s: Strategy) -> str:
    return f"ep-needs-moe: ep={s.ep}, etp={s.etp} but {context.model.name} has no experts; legal ep and etp: 1."


def _experts(context: Context) -> int:
    return context.model.moe.experts if context.model.moe else 0


def _experts_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, _experts(context) % table.ep == 0)


def _experts_explain(context: Context, s: Strategy) -> str:
    return f"experts: ep={s.ep} does not divide {_experts(context)} experts; legal ep: " + (
        f"{_listed(divisors(_experts(context)))}."
    )


def _ep_ranks_holds(context: Context, table: Strategies) -> BoolArray:
    parts = table.ep * table.etp
    whole = expert_ranks(context.framework, table.dp, table.tp, table.cp) % parts == 0
    if context.runs_on.nested_experts:  # the mesh cuts tp, then cp x tp, before it cuts dp
        inner = np.where(parts <= table.tp, table.tp, table.cp * table.tp)
        whole = whole & ((parts > inner) | (inner % parts == 0))
    return _rows(table, whole)


def _ep_ranks_explain(context: Context, s: Strategy) -> str:
    over_cp = context.runs_on.experts_over_cp
    ranks = s.dp * s.tp * (s.cp if over_cp else 1)
    product = f"dp={s.dp} x tp={s.tp}" + (f" x cp={s.cp}" if over_cp else "")
    legal = [ep for ep in divisors(int(np.gcd(ranks, _experts(context) or 1))) if _fits_ranks(context, s, ep, s.etp)]
    advice = f"legal ep: {_listed(legal) or 'none'}"
    others = [etp for etp in _etp_choices(context, s.tp) if etp != s.etp and _fits_ranks(context, s, s.ep, etp)]
    if s.etp > 1 and others:
        advice += f", or etp: {_listed(others)}"
    spread, parts = f"ep={s.ep}", s.ep * s.etp
    whole = spread
    if s.etp > 1:
        spread = f"{spread} x etp={s.etp}"
        whole = f"{spread} = {parts}"
    side = f"pp={s.pp} x {spread} = {s.pp * parts} of {s.devices} devices on the expert side"
    where = f"the {ranks} ranks of a stage that share experts ({product}; {side})"
    return f"ep-ranks: {whole} does not divide {where}; {advice}."


def _fits_ranks(context: Context, s: Strategy, ep: int, etp: int) -> bool:
    return bool(_ep_ranks_holds(context, Strategies.of([replace(s, ep=ep, etp=etp)]))[0])


def _etp_choices(context: Context, tp: int) -> tuple[int, ...]:
    moe = context.model.moe
    return legal_etp(context.framework, experts=moe is not None, tp=tp, width=moe.expert_ffn if moe else 1)


def _etp_holds(context: Context, table: Strategies) -> BoolArray:
    moe = context.model.moe
    if moe is None:
        return _rows(table, True)  # said by ep-needs-moe
    legal = {
        "whole": table.etp == 1,
        "tp": (table.etp == 1) | (table.etp == table.tp),
        "any": moe.expert_ffn % table.etp == 0,
    }
    return _rows(table, legal[context.runs_on.expert_parts])


def _etp_explain(context: Context, s: Strategy) -> str:
    legal = _etp_choices(context, s.tp)
    return f"expert-tp: {context.framework} does not split experts over etp={s.etp} ranks; legal: {_listed(legal)}."


def _fused_holds(context: Context, table: Strategies) -> BoolArray:
    most = context.runs_on.most_local_experts
    return _rows(table, not most or _experts(context) <= most * table.ep)


def _fused_explain(context: Context, s: Strategy) -> str:
    experts, most = _experts(context), context.runs_on.most_local_experts
    legal = [ep for ep in divisors(experts) if experts <= most * ep]
    return (
        f"fused-experts: ep={s.ep} leaves {experts / s.ep:g} experts on a rank, the fused NPU operators take "
        f"{most}; legal ep: {_listed(legal)}."
    )


# --- optimizer sharding ---------------------------------------------------------------------------------------------


def _shard_holds(context: Context, table: Strategies) -> BoolArray:
    ranks = table.dp * table.cp  # context-parallel ranks hold the same parameters, so they share the optimizer too
    return _rows(table, np.where(table.zero_level == 0, table.optimizer_shard == 1, ranks % table.optimizer_shard == 0))


def _shard_explain(context: Context, s: Strategy) -> str:
    if s.zero_level == 0:
        return f"optimizer-shard: zero_level=0 shards nothing; optimizer_shard={s.optimizer_shard}, legal: 1."
    return (
        f"optimizer-shard: optimizer_shard={s.optimizer_shard} does not divide dp={s.dp} x cp={s.cp} = {s.dp * s.cp}; "
        f"legal: {_listed(divisors(s.dp * s.cp))}."
    )


def _zero_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, np.isin(table.zero_level, context.runs_on.zero_levels))


def _zero_explain(context: Context, s: Strategy) -> str:
    legal = context.runs_on.zero_levels
    return f"zero-level: zero_level={s.zero_level} does not exist in {context.framework}; legal: {_listed(legal)}."


def _muon_holds(context: Context, table: Strategies) -> BoolArray:
    if context.workload.optimizer.lower() != "muon" or not context.runs_on.graph:
        return _rows(table, True)
    return _rows(table, _experts(context) % (table.optimizer_shard * table.ep) == 0)


def _muon_explain(context: Context, s: Strategy) -> str:
    legal = divisors(_experts(context) // int(np.gcd(_experts(context), s.ep)))
    return (
        f"muon-experts: Muon needs optimizer_shard={s.optimizer_shard} x ep={s.ep} to divide {_experts(context)} "
        f"experts; legal optimizer_shard: {_listed(legal)}."
    )


def _swap_holds(context: Context, table: Strategies) -> BoolArray:
    if not context.runs_on.swaps_in_pipeline:
        return _rows(table, ~table.swap_optimizer | (table.pp == 1))
    return _rows(table, ~table.swap_optimizer | (table.zero_level >= context.runs_on.swap_level))


def _swap_explain(context: Context, s: Strategy) -> str:
    if not context.runs_on.swaps_in_pipeline:
        return f"swap: PyNative mode refuses swapping with pp={s.pp}; legal: pp=1, or swap_optimizer off."
    return f"swap: swap_optimizer needs the distributed optimizer, zero_level={s.zero_level}; legal: 1."


# --- pipeline -------------------------------------------------------------------------------------------------------


def _fill_holds(context: Context, table: Strategies) -> BoolArray:
    if not context.runs_on.fills_pipeline:
        return _rows(table, True)
    return _rows(table, table.micro_batches >= table.pp)


def _fill_explain(context: Context, s: Strategy) -> str:
    most = context.workload.global_batch // (s.dp * s.micro_batch_size)
    return (
        f"fill-pipeline: MindSpore needs at least as many micro-batches as stages, micro_batches={s.micro_batches} < "
        f"pp={s.pp}; use pp <= {s.micro_batches}, a smaller dp or micro_batch_size, or a global batch of at least "
        f"{s.dp * s.micro_batch_size * s.pp} (now {context.workload.global_batch}, {most} micro-batches)."
    )


def _schedule_holds(context: Context, table: Strategies) -> BoolArray:
    legal = [SCHEDULES.index(name) for name in context.runs_on.schedules]
    return _rows(table, np.isin(table.schedule, legal))


def _schedule_explain(context: Context, s: Strategy) -> str:
    legal = ", ".join(context.runs_on.schedules)
    return f"schedule: {context.framework} has no schedule '{s.schedule}'; legal: {legal}."


def _vpp_holds(context: Context, table: Strategies) -> BoolArray:
    plain = (table.schedule == ONE_F_ONE_B) | (table.schedule == GPIPE)
    return _rows(table, np.where(plain, table.vpp == 1, (table.vpp > 1) & (table.pp > 1)))


def _vpp_explain(context: Context, s: Strategy) -> str:
    if s.pp == 1 and s.vpp > 1:
        return f"vpp-schedule: vpp={s.vpp} needs pp >= 2; given pp=1. Use vpp=1, or more stages."
    if s.schedule in ("1f1b", "gpipe"):
        return (
            f"vpp-schedule: vpp={s.vpp} needs an interleaving schedule in both the model and the pipeline settings; "
            f"schedule={s.schedule} takes vpp=1. Use schedule=interleaved."
        )
    return (
        f"vpp-schedule: schedule={s.schedule} needs vpp >= 2 and pp >= 2; given vpp={s.vpp}, pp={s.pp}. "
        "Use schedule=1f1b with vpp=1."
    )


def _interleave_holds(context: Context, table: Strategies) -> BoolArray:
    if not context.runs_on.interleaves_rounds:
        return _rows(table, True)
    return _rows(table, (table.vpp == 1) | (table.micro_batches % table.pp == 0))


def _interleave_explain(context: Context, s: Strategy) -> str:
    lower, upper = s.micro_batches // s.pp * s.pp, -(-s.micro_batches // s.pp) * s.pp
    return (
        f"interleave-batches: interleaving needs micro_batches divisible by pp, {s.micro_batches} % {s.pp} != 0; "
        f"nearest legal: {lower or upper} or {upper}, or vpp=1."
    )


def _chunks_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, table.pp * table.vpp <= context.model.layers + _spare_chunks(context))


def _spare_chunks(context: Context) -> int:
    """Chunks beyond one layer each: MTP modules (MindSpore counts them), empty first and last chunk elsewhere."""
    spare = context.runs_on.spare_chunks
    return context.model.mtp_layers if spare is None else spare


def _chunks_explain(context: Context, s: Strategy) -> str:
    most = context.model.layers + _spare_chunks(context)
    return (
        f"chunks: pp={s.pp} x vpp={s.vpp} = {s.pp * s.vpp} chunks are more than {context.model.layers} layers fill; "
        f"legal: pp x vpp <= {most}."
    )


def _zbv_holds(context: Context, table: Strategies) -> BoolArray:
    legal = (table.vpp == 2) & (table.pp >= 2) & (table.micro_batches >= 2 * table.pp)
    return _rows(table, (table.schedule != ZERO_BUBBLE_V) | legal)


def _zbv_explain(context: Context, s: Strategy) -> str:
    return (
        f"zero-bubble-v: needs vpp=2, pp >= 2 and micro_batches >= 2 x pp; given vpp={s.vpp}, pp={s.pp}, "
        f"micro_batches={s.micro_batches} (at least {2 * s.pp} for this pp)."
    )


def _seqpipe_holds(context: Context, table: Strategies) -> BoolArray:
    recomputed = (table.recompute_full_CS + table.recompute_selective_CS).any(axis=1)
    return _rows(table, (table.schedule != SEQPIPE) | ~recomputed)


def _seqpipe_explain(context: Context, s: Strategy) -> str:
    return (
        f"seqpipe: runs without recompute; given recompute_full={list(s.recompute_full)}, "
        f"recompute_selective={list(s.recompute_selective)}; legal: zeros."
    )


# --- layers and recompute per stage ---------------------------------------------------------------------------------


def _layer_sum_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, table.layers_CVS.sum(axis=(1, 2)) == context.model.layers)


def _layer_sum_explain(context: Context, s: Strategy) -> str:
    total, layers, chunks = sum(s.layers_per_stage), context.model.layers, s.pp * s.vpp
    even = [layers // chunks + (position < layers % chunks) for position in range(chunks)]
    return (
        f"layer-sum: layers per stage {list(s.layers_per_stage)} add up to {total}, {context.model.name} has {layers}; "
        f"{layers} layers over {chunks} chunks: {'/'.join(map(str, even))}."
    )


def _middle_holds(context: Context, table: Strategies) -> BoolArray:
    """Every chunk inside a candidate's own pp x vpp holds a layer, except the first and last in model order."""
    chunks, stages = table.layers_CVS.shape[1:]
    chunk, stage = np.arange(chunks)[None, :, None], np.arange(stages)[None, None, :]
    pp, vpp = table.pp[:, None, None], table.vpp[:, None, None]
    inside = (chunk < vpp) & (stage < pp)
    first = (chunk == 0) & (stage == 0)
    back = (table.schedule == ZERO_BUBBLE_V)[:, None, None]
    last = (chunk == vpp - 1) & (stage == np.where(back, 0, pp - 1))
    least = np.where(inside & ~first & ~last, 1, 0)
    good = (table.layers_CVS >= least) & (inside | (table.layers_CVS == 0))
    return _rows(table, good.all(axis=(1, 2)))


def _middle_explain(context: Context, s: Strategy) -> str:
    return (
        f"empty-stage: layers {[list(chunk) for chunk in s.layers]} leave a middle chunk empty; only the first and the "
        f"last chunk may hold no layer. Move layers there, or use pp x vpp <= {context.model.layers}."
    )


def _recompute_holds(context: Context, table: Strategies) -> BoolArray:
    full, selective = table.recompute_full_CS, table.recompute_selective_CS
    return _rows(table, ((full >= 0) & (selective >= 0) & (full + selective <= table.layers_CS)).all(axis=1))


def _recompute_explain(context: Context, s: Strategy) -> str:
    return (
        f"recompute: recompute_full={list(s.recompute_full)} + recompute_selective={list(s.recompute_selective)} must "
        f"lie between 0 and the layers of each stage, {list(s.layers_per_stage)}."
    )


def _mtp_holds(context: Context, table: Strategies) -> BoolArray:
    most = context.runs_on.most_mtp
    return _rows(table, most is None or context.model.mtp_layers <= most)


def _mtp_explain(context: Context, s: Strategy) -> str:
    return (
        f"mtp: MindFormers trains at most {context.runs_on.most_mtp} multi-token-prediction module, "
        f"{context.model.name} has {context.model.mtp_layers}; legal: 0, 1."
    )


# --- placement and device -------------------------------------------------------------------------------------------


def _node_holds(context: Context, table: Strategies) -> BoolArray:
    node = context.cluster.hardware.devices_per_node
    spans = (table.tp > node) & (table.tp % node == 0) & context.tp_across_nodes
    return _rows(table, (node % table.tp == 0) | spans)


def _node_explain(context: Context, s: Strategy) -> str:
    node = context.cluster.hardware.devices_per_node
    legal = f"tp-node: tp={s.tp} does not fit whole into a node of {node} devices; legal: {_listed(divisors(node))}"
    if s.tp > node:
        legal += f". A tensor-parallel group over several nodes (a multiple of {node}) has to be asked for"
    return legal + "."


def _quads_holds(context: Context, table: Strategies) -> BoolArray:
    fabric = context.cluster.hardware.node
    if fabric.kind != "quads":
        return _rows(table, True)
    kinds = strides(tp=table.tp, cp=table.cp, dp=table.dp, pp=table.pp, ep=table.ep, etp=table.etp,
                    ulysses=table.ulysses_degree)  # fmt: skip
    good = np.ones(len(table), bool)
    for name in ("tp", "cp", "dp", "dp_cp", "etp", "ep", "edp"):
        size, stride = kinds[name]
        good &= legal_on_quads(place_on(context.cluster, np.maximum(size, 1), stride), fabric.quad_size)
    return good


def _quads_explain(context: Context, s: Strategy) -> str:
    quad, name = context.cluster.hardware.node.quad_size, context.cluster.hardware.name
    return (
        f"quads: HCCL refuses groups of 2 or 4 devices that straddle the quads of {quad} on {name} "
        f"(tp={s.tp} stride 1, cp={s.cp} stride {s.tp}, dp={s.dp} stride {s.tp * s.cp}, ep={s.ep} stride {s.etp}); "
        f"legal inside one server: size x stride at most {quad}, or 8 members."
    )


def _dtype_holds(context: Context, table: Strategies) -> BoolArray:
    return _rows(table, context.workload.compute_dtype in context.cluster.hardware.device.peak_flop_per_s)


def _dtype_explain(context: Context, s: Strategy) -> str:
    legal = ", ".join(context.cluster.hardware.device.peak_flop_per_s)
    device = context.cluster.hardware.device.name
    return f"compute-type: {device} has no {context.workload.compute_dtype} matrix unit; legal: {legal}."


#: Every rule, cheap and frequent refusals first; the order decides which rule a removed candidate counts for.
RULES: Final[tuple[Rule, ...]] = (
    Rule("compute-type", "the device computes in the asked type", _dtype_holds, _dtype_explain),
    Rule("mtp", "at most one MTP module", _mtp_holds, _mtp_explain),
    Rule("devices", "dp x tp x pp x cp = devices", _devices_holds, _devices_explain),
    Rule("tp-node", "a tensor-parallel group fits a node", _node_holds, _node_explain),
    Rule("heads", "tp x ulysses degree divides the attention heads", _heads_holds, _heads_explain),
    _divides_tp("kv-heads", "key/value heads", _kv_heads),
    _divides_tp("hidden", "hidden size", lambda model: model.hidden),
    _divides_tp("ffn", "feed-forward width", _dense_ffn),
    _divides_tp("shared-ffn", "width of the shared experts", _shared_ffn),
    _divides_tp("vocab", "vocabulary", lambda model: model.vocab),
    Rule("sp-needs-tp", "sequence parallel only with tp > 1", _sp_holds, _sp_explain),
    Rule("tp-needs-sp", "MoE with tp > 1 uses sequence parallel", _moe_sp_holds, _moe_sp_explain),
    Rule("sp-sequence", "tp divides the tokens of a context-parallel rank", _sp_tokens_holds, _sp_tokens_explain),
    Rule("cp-needs-flash", "context parallel uses flash attention", _flash_holds, _flash_explain),
    Rule("ulysses-degree", "the degree fits the algorithm", _ulysses_holds, _ulysses_explain),
    Rule("head-exchange", "MindFormers mcore: ring, but for some latent attention", _exchange_holds, _exchange_explain),
    Rule("cp-sequence", "cp (ring: 2 x cp) divides the sequence", _tokens_holds, _tokens_explain),
    Rule("global-batch", "dp x micro-batch size x micro-batches = global batch", _batch_holds, _batch_explain),
    Rule("schedule", "the framework has the schedule", _schedule_holds, _schedule_explain),
    Rule("vpp-schedule", "vpp > 1 exactly with interleaving schedules", _vpp_holds, _vpp_explain),
    Rule("chunks", "pp x vpp at most the layers", _chunks_holds, _chunks_explain),
    Rule("fill-pipeline", "MindSpore: micro-batches >= stages", _fill_holds, _fill_explain),
    Rule("interleave-batches", "Megatron: micro-batches divisible by pp", _interleave_holds, _interleave_explain),
    Rule("zero-bubble-v", "vpp 2, pp >= 2, micro-batches >= 2 pp", _zbv_holds, _zbv_explain),
    Rule("ep-needs-moe", "ep 1 without experts", _dense_ep_holds, _dense_ep_explain),
    Rule("experts", "ep divides the experts", _experts_holds, _experts_explain),
    Rule("expert-tp", "the framework splits experts over so many ranks", _etp_holds, _etp_explain),
    Rule("ep-ranks", "ep x etp divides the ranks that share experts", _ep_ranks_holds, _ep_ranks_explain),
    Rule("fused-experts", "MindSpeed: at most 128 experts a rank", _fused_holds, _fused_explain),
    Rule("zero-level", "the framework has the sharding level", _zero_holds, _zero_explain),
    Rule("optimizer-shard", "divides dp x cp, 1 at level 0", _shard_holds, _shard_explain),
    Rule("muon-experts", "Muon: optimizer_shard x ep divides the experts", _muon_holds, _muon_explain),
    Rule("swap", "optimizer swap only where the framework allows it", _swap_holds, _swap_explain),
    Rule("quads", "910A: groups of 2 or 4 inside a quad", _quads_holds, _quads_explain),
    Rule("layer-sum", "layers per stage add up to the model", _layer_sum_holds, _layer_sum_explain, True),
    Rule("empty-stage", "every middle chunk holds a layer", _middle_holds, _middle_explain, True),
    Rule("recompute", "recomputed layers exist", _recompute_holds, _recompute_explain, True),
    Rule("seqpipe", "no recompute under seqpipe", _seqpipe_holds, _seqpipe_explain, True),
)

SCALAR_RULES: Final = tuple(rule for rule in RULES if not rule.reads_layers)
LAYER_RULES: Final = tuple(rule for rule in RULES if rule.reads_layers)
