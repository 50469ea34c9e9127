"""Faults of the parallel layout in MindFormers graph-mode files: stages, chunks, heads, context, experts, recompute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from planner.dialects.findings import Finding
from planner.dialects.graph import layout
from planner.dialects.graph.view import View, count, divisors
from planner.errors import PlannerError

_LATENT: Final = ("deepseek_v3", "telechat3_moe")
_SCHEDULERS: Final = ("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v")


def _placement(v: View) -> Iterator[Finding]:
    layers = v.size("num_hidden_layers", "num_layers") + (v.size("mtp_depth") if v.legacy else 0)
    path = ("model", "model_config", "offset")
    if not layers:
        return
    if layers + v.size("num_nextn_predict_layers", "mtp_num_layers") < v.pp * v.vpp:
        why = f"{layers} layers are fewer than {v.pp} stages x {v.vpp} chunks."
        yield v.finding(
            ("parallel_config", "pipeline_stage"), "layers-below-stages", why, f"Use at most {layers} chunks."
        )
        return
    try:
        counts = layout.layers_from_offset(v.model.get("offset", 0), layers, v.pp, v.vpp)
    except PlannerError as error:
        yield v.finding(
            path, "offset-sum", f"{str(error)[0].upper()}{str(error)[1:]}", _offset_advice(layers, v.pp, v.vpp)
        )
        return
    flat = [n for row in counts for n in row]
    if any(n < 1 for n in flat[1:-1]):
        yield v.finding(
            path, "empty-stage", "a stage between the first and the last holds no layer.", "Move a layer there."
        )
    if (
        v.model.get("offset")
        and isinstance(v.model["offset"], list)
        and v.vpp > 1
        and isinstance(v.model["offset"][0], int)
    ):
        why = "a flat offset is used for every chunk, after its sum was checked once."
        yield v.finding(path, "offset-nesting", why, f"Write {v.vpp} lists of {v.pp} numbers.")


def _offset_advice(layers: int, pp: int, vpp: int) -> str:
    rest = layers % (pp * vpp)
    flat = [int(i < rest) for i in range(pp * vpp)]
    rows = [flat[c * pp : (c + 1) * pp] for c in range(vpp)]
    return f"For instance {rows if vpp > 1 else rows[0]}." if rest else "Write 0."


def _interleave(v: View) -> Iterator[Finding]:
    path = ("parallel", "pipeline_config")
    if v.vpp_written > 1 and not v.interleave:
        why = f"pp_interleave_num {v.vpp_written} has no effect without pipeline_config.pipeline_interleave: True."
        yield v.finding(("model", "model_config", "pp_interleave_num"), "interleave-one-place", why, "Set both.")
    plain = v.pipeline.get("pipeline_scheduler", "1f1b") == "1f1b"
    chunked = any(key in v.model for key in ("pp_interleave_num", "virtual_pipeline_model_parallel_size"))
    if v.pp > 1 and v.interleave and plain and not chunked:
        why = "pipeline_interleave: True has no effect without model_config.pp_interleave_num."
        yield v.finding((*path, "pipeline_interleave"), "interleave-one-place", why, "Set both, or write False.")
    if v.vpp_written > 1 and v.pp == 1:
        why = "chunks of a stage need a pipeline."
        yield v.finding(("model", "model_config", "pp_interleave_num"), "interleave-one-place", why, "Write 1.")
    if not v.pipeline:
        return
    for key in ("pipeline_interleave", "pipeline_scheduler"):
        if key not in v.pipeline:
            yield v.finding(
                path, "pipeline-config", f"{key} is missing; MindSpore stops with a KeyError.", f"Add {key}."
            )
    scheduler = v.pipeline.get("pipeline_scheduler", "1f1b")
    if scheduler not in _SCHEDULERS:
        why = f"pipeline_scheduler {scheduler!r} does not exist."
        yield v.finding((*path, "pipeline_scheduler"), "pipeline-scheduler", why, f"Legal: {', '.join(_SCHEDULERS)}.")
    elif scheduler != "1f1b" and not v.interleave:
        why = f"pipeline_scheduler {scheduler} is refused unless pipeline_interleave is True."
        yield v.finding((*path, "pipeline_scheduler"), "pipeline-config", why, "Write pipeline_interleave: True.")
    if scheduler == "zero_bubble_v":
        yield from _zero_bubble(v)


def _zero_bubble(v: View) -> Iterator[Finding]:
    path = ("parallel", "pipeline_config", "pipeline_scheduler")
    if v.legacy:
        why = "legacy networks do not lay their chunks out in a V, which zero_bubble_v needs."
        yield v.finding(path, "zero-bubble-v", why, "Write 1f1b.")
    if v.vpp_written != 2 or v.pp < 2:
        yield v.finding(
            path, "zero-bubble-v", "zero_bubble_v needs pp_interleave_num 2 and two stages at least.", "Set both."
        )
    if v.micro_batches < 2 * v.pp:
        why = f"zero_bubble_v needs {2 * v.pp} micro-batches, twice the stages; given {v.micro_batches}."
        yield v.finding(path, "zero-bubble-v", why, f"Use micro_batch_num {2 * v.pp}.")
    value = v.recompute.get("recompute")
    if isinstance(value, list) and not all(isinstance(row, list) for row in value):
        yield v.finding(
            ("recompute_config", "recompute"), "zero-bubble-v", "recompute lists must be nested here.", "One a chunk."
        )


def _tensor(v: View) -> Iterator[Finding]:
    heads, kv = (
        v.size("num_attention_heads", "num_heads"),
        v.size("num_key_value_heads", "num_query_groups", "n_kv_heads"),
    )
    latent = v.model.get("multi_latent_attention") is True or v.model.get("model_type") in (
        "deepseek_v3",
        "telechat3_moe",
    )
    path = ("parallel_config", "model_parallel")
    if heads and heads % v.tp:
        why = f"model_parallel {v.tp} does not divide {heads} attention heads."
        yield v.finding(path, "heads", why, f"Legal: {divisors(heads)}.")
    elif kv and not latent and kv % v.tp:
        why = f"model_parallel {v.tp} does not divide {kv} key/value heads; only building the network refuses it."
        yield v.finding(path, "kv-heads", why, f"Legal: {divisors(kv)}.")
    sequence = v.degrees.get("use_seq_parallel") is True
    if sequence and v.tp == 1 and not v.legacy:
        why = "sequence parallelism without tensor parallelism is refused."
        yield v.finding(("parallel_config", "use_seq_parallel"), "sequence-parallel", why, "Write False.")
    if v.tp > 1 and not sequence and _experts(v) > 1 and not v.legacy:
        why = "experts with tensor parallelism need sequence parallelism; only building the network refuses it."
        yield v.finding(
            ("parallel_config", "model_parallel"), "sequence-parallel", why, "Write use_seq_parallel: True."
        )
    seq = v.size("seq_length")
    if seq and sequence and seq % (v.tp * v.cp):
        why = f"{seq} tokens do not divide by tp {v.tp} x cp {v.cp}."
        yield v.finding(
            ("model", "model_config", "seq_length"), "sequence-length", why, f"Use a multiple of {v.tp * v.cp}."
        )


def _exchanges_heads(v: View) -> bool:
    """Whether the attention compiles with Ulysses context parallelism in MindFormers 1.9.0 and 2.0.0."""
    widths = [v.size(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    return v.model.get("model_type") in _LATENT and (not all(widths) or widths[0] + widths[1] == widths[2])


def _context(v: View) -> Iterator[Finding]:
    name = v.degrees.get("context_parallel_algo", "colossalai_cp")
    degree = count(v.degrees.get("ulysses_degree_in_cp"), 1)
    path = ("parallel_config", "context_parallel_algo")
    if name not in ("colossalai_cp", "ulysses_cp", "hybrid_cp"):
        why = f"context_parallel_algo {name!r} does not exist."
        yield v.finding(path, "context-parallel", why, "Legal: colossalai_cp (ring), ulysses_cp, hybrid_cp.")
        return
    if v.cp == 1:
        return
    if v.cp % degree:
        why = f"ulysses_degree_in_cp {degree} does not divide context_parallel {v.cp}."
        yield v.finding(
            ("parallel_config", "ulysses_degree_in_cp"), "context-parallel", why, f"Legal: {divisors(v.cp)}."
        )
    if name == "ulysses_cp" and degree == 1 and not v.legacy:
        why = "mcore reads the Ulysses degree from ulysses_degree_in_cp only, so this runs without head exchange."
        yield v.finding(path, "ulysses-degree", why, f"Add ulysses_degree_in_cp: {v.cp}.")
    if name == "hybrid_cp" and not v.legacy:
        why = "mcore of MindFormers 1.9.0 refuses the name hybrid_cp."
        yield v.finding(path, "context-parallel", why, "Write colossalai_cp and keep ulysses_degree_in_cp.")
    if (degree > 1 or name != "colossalai_cp") and not v.legacy and not _exchanges_heads(v):
        why = "head exchange in mcore compiles only for latent attention with value heads as wide as query heads."
        yield v.finding(path, "ulysses-broken", why, "Use colossalai_cp with ulysses_degree_in_cp 1.")
    used = v.cp if v.legacy and name == "ulysses_cp" else degree
    heads = v.size("num_attention_heads", "num_heads")
    if heads and used > 1 and heads % (v.tp * used):
        why = f"tp {v.tp} x Ulysses degree {used} does not divide {heads} attention heads."
        yield v.finding(path, "ulysses-heads", why, "Lower one of them.")
    if v.model.get("use_flash_attention") is False:
        yield v.finding(
            ("model", "model_config", "use_flash_attention"),
            "context-parallel",
            "context parallelism needs flash attention.",
            "Write use_flash_attention: True.",
        )


def _experts(v: View) -> int:
    listed = v.size("n_routed_experts", "num_experts", "num_moe_experts")
    if v.legacy:
        return count(v.section("moe_config").get("expert_num"), 1)
    return listed or (256 if v.model.get("model_type") == "deepseek_v3" else 0)


def _expert_parallel(v: View) -> Iterator[Finding]:
    path, experts = ("parallel_config", "expert_parallel"), _experts(v)
    elsewhere = bool(v.document.root.get("pretrained_model_dir")) and not experts
    if v.ep > 1 and experts <= 1 and not elsewhere:
        yield v.finding(path, "expert-parallel", f"expert_parallel {v.ep}, but the model has no experts.", "Write 1.")
    elif v.ep > 1 and experts and experts % v.ep:
        why = f"expert_parallel {v.ep} does not divide {experts} experts; only building the network refuses it."
        yield v.finding(path, "expert-parallel", why, f"Legal: {divisors(experts)}.")
    ranks, product = _expert_ranks(v)
    if v.ep > 1 and ranks % v.ep:
        why = f"expert_parallel {v.ep} does not divide {product}; experts are spread over those ranks."
        yield v.finding(path, "expert-parallel", why, f"Legal: {divisors(ranks)}.")
    if v.size("num_nextn_predict_layers", "mtp_num_layers") > 1:
        yield v.finding(
            ("model", "model_config", "num_nextn_predict_layers"),
            "mtp-modules",
            "more than one is refused.",
            "Write 1.",
        )


def _expert_ranks(v: View) -> tuple[int, str]:
    """Ranks that hold different experts, and their product in words.

    Legacy networks spread them over dp x cp and split each over tp, unless told to keep them whole; grouped products
    and mcore networks keep them whole and spread them over dp x tp.
    """
    moe = v.section("moe_config")
    if not v.legacy or moe.get("use_gmm") is True:
        return v.dp * v.tp, f"dp {v.dp} x tp {v.tp}"
    if moe.get("expert_model_parallel") == 1:
        return v.dp * v.cp * v.tp, f"dp {v.dp} x cp {v.cp} x tp {v.tp}"
    return v.dp * v.cp, f"dp {v.dp} x cp {v.cp}"


def _recompute(v: View) -> Iterator[Finding]:
    layers = v.size("num_hidden_layers", "num_layers")
    for key in ("recompute", "select_recompute", "select_comm_recompute"):
        value = v.recompute.get(key)
        if value is None or isinstance(value, (bool, dict)):
            continue
        if key != "recompute" and isinstance(value, list) and all(isinstance(item, str) for item in value):
            continue
        try:
            counts = layout.layers_from_offset(v.model.get("offset", 0), layers or v.pp * v.vpp, v.pp, v.vpp)
            layout.chunk_counts(value, counts, key)
        except PlannerError as error:
            if "offset" not in str(error):
                why = f"{error} The loader accepts any value here."
                yield v.finding(("recompute_config", key), "recompute-form", why, "See the message.")
    if v.recompute.get("recompute_slice_activation") is True and not v.legacy:
        yield v.finding(
            ("recompute_config", "recompute_slice_activation"), "slice-activation", "mcore refuses it.", "Write False."
        )


LAYOUT_RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    _placement,
    _interleave,
    _tensor,
    _context,
    _expert_parallel,
    _recompute,
)
