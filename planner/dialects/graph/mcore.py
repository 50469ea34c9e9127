"""MindFormers graph mode, mcore dialect (``use_legacy: False``): model section and data set of each family.

Names are those of the Hugging Face configuration, as MindFormers 1.9.0 converts them
(``parallel_core/config_converter.py`` and the family's ``config_converter_*.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from planner.dialects import families, traits
from planner.dialects.graph import layout
from planner.dialects.graph.sections import DATA_PLACEHOLDER, samples
from planner.dialects.records import Settings
from planner.dialects.text.yaml_write import Alias, Entry, Items
from planner.dialects.traits import Traits
from planner.errors import EmitError
from planner.frameworks import LEAST_COMPRESSED_SEQ
from planner.model.records import DENSE, Model
from planner.plan import Plan

TARGET: Final = "mindformers"
COLUMNS: Final = ["input_ids", "labels", "loss_mask", "position_ids"]


def check(model: Model) -> None:
    """Refuse shapes that the family's training class cannot hold.

    Raises
    ------
    EmitError
    """
    for wrong, what in _limits(model):
        if wrong:
            raise families.refuse(model, TARGET, what)


def _limits(model: Model) -> list[tuple[bool, str]]:
    att, family = model.attention, model.family
    mla = family in families.LATENT
    return [
        (model.norms_per_layer != 2, f"its {family} class has two norms a layer, not {model.norms_per_layer}"),
        (not model.gated_mlp, f"its {family} class has a gated MLP"),
        (model.mlp_bias or att.output_bias or model.norm_bias, f"its {family} class has no MLP, output or norm bias"),
        (model.learned_positions > 0, "it has rotary positions only"),
        (
            mla != (att.kind == "mla"),
            f"its {family} class has {'multi-head latent' if mla else 'grouped-query'} attention",
        ),
        (model.tied_embeddings and family not in ("qwen3", "qwen3_moe"), "it keeps embedding and head apart"),
        (model.mtp_layers > (1 if mla else 0), f"its {family} class takes at most {int(mla)} MTP module"),
        (family.startswith("qwen3") and not att.qk_norm, "its qwen3 classes always normalise queries and keys"),
        (
            bool(model.moe) != (family in ("qwen3_moe", *families.LATENT)),
            f"its {family} class and experts do not go together",
        ),
        (family == "qwen3_moe" and DENSE in model.layer_kinds, "its qwen3_moe class has experts in every layer"),
        (bool(model.moe and model.moe.shared_gate), "it has no gate on the shared expert"),
        (bool(model.moe and model.moe.shared_ffn and not mla), f"its {family} class has no shared experts"),
        (bool(model.moe and model.moe.shared_ffn % model.moe.expert_ffn), "shared experts must be whole experts wide"),
        (mla and bool(model.moe and not model.moe.router_bias), "its router always has a selection bias"),
    ]


def model_section(plan: Plan) -> Entry:
    """``model``: shape, types, pipeline layout."""
    return Entry("model", [Entry("model_config", model_config(plan))], above=f"Model (shape: {plan.model.name})")


def model_config(plan: Plan) -> list[Entry]:
    """Keys of ``model.model_config``."""
    own = traits.of(plan.model)
    makers: dict[str, Callable[[Plan, Traits], list[Entry]]] = {
        "qwen3": _grouped_query,
        "telechat3": _grouped_query,
        "qwen3_moe": _qwen3_moe,
        "deepseek_v3": _deepseek_v3,
        "telechat3_moe": _deepseek_v3,
    }
    model_type, architecture = families.MCORE[plan.model.family]
    return [
        Entry("model_type", model_type),
        Entry("architectures", [architecture]),
        *_pipeline_layout(plan),
        *_shape(plan, own),
        *makers[plan.model.family](plan, own),
        *_types(plan),
    ]


def _pipeline_layout(plan: Plan) -> list[Entry]:
    s = plan.strategy
    why = "layers of each stage minus the even share" + ("; one row a chunk" if s.vpp > 1 else "")
    entries = [Entry("offset", layout.offset(s), why)]
    if layout.pipeline_config(s) is not None:
        entries.append(Entry("pp_interleave_num", s.vpp, "chunks a stage; needs pipeline_interleave too"))
    return entries


def _shape(plan: Plan, own: Traits) -> list[Entry]:
    model, seq = plan.model, plan.workload.seq
    return [
        Entry("vocab_size", model.vocab),
        Entry("hidden_size", model.hidden),
        Entry(
            "intermediate_size", model.ffn or model.hidden * 4, "" if model.ffn else "of dense layers; there are none"
        ),
        Entry("num_hidden_layers", model.layers),
        Entry("num_attention_heads", model.attention.heads),
        Entry("seq_length", seq),
        Entry("max_position_embeddings", max(seq, model.max_seq)),
        Entry("rms_norm_eps", own.norm_epsilon, f"from {own.source}"),
        Entry("initializer_range", own.initializer_range),
        Entry("position_embedding_type", "rope"),
        Entry("rope_theta", own.rotary_base, f"from {own.source}"),
        Entry("tie_word_embeddings", model.tied_embeddings),
        Entry("untie_embeddings_and_output_weights", not model.tied_embeddings),
        Entry("add_bias_linear", False),
        Entry("attention_dropout", 0.0),
        Entry("hidden_dropout", 0.0),
        Entry("use_flash_attention", plan.workload.flash_attention),
        *_mask(plan),
        Entry("input_sliced_sig", True, "the data loader already shifts labels"),
    ]


def _mask(plan: Plan) -> list[Entry]:
    if not plan.workload.flash_attention or plan.workload.seq < LEAST_COMPRESSED_SEQ:
        return []
    return [Entry("use_attn_mask_compression", True, "a 2048 x 2048 causal mask instead of sequence x sequence")]


def _types(plan: Plan) -> list[Entry]:
    return [
        Entry("params_dtype", plan.workload.params_dtype),
        Entry("compute_dtype", plan.workload.compute_dtype),
        Entry("layernorm_compute_dtype", "float32"),
        Entry("softmax_compute_dtype", "float32"),
        Entry("rotary_dtype", "float32"),
        Entry("fp32_residual_connection", False, "residuals in the compute type"),
    ]


def _grouped_query(plan: Plan, own: Traits, hidden_act: str = "swiglu") -> list[Entry]:
    att = plan.model.attention
    return [
        Entry("num_key_value_heads", att.kv_heads),
        Entry("head_dim", att.head_dim),
        Entry("attention_bias", att.qkv_bias),
        Entry("qk_layernorm", att.qk_norm),
        Entry("hidden_act", hidden_act),
        Entry("use_contiguous_weight_layout_attention", False),
    ]


def _qwen3_moe(plan: Plan, own: Traits) -> list[Entry]:
    return [*_grouped_query(plan, own, "silu"), *_experts(plan, own, "num_experts", "gbs_aux_loss"),
            Entry("moe_router_pre_softmax", True),
            Entry("moe_token_drop_policy", "probs")]  # fmt: skip


def _deepseek_v3(plan: Plan, own: Traits) -> list[Entry]:
    model, att = plan.model, plan.model.attention
    if model.moe is None:
        raise EmitError(f"{TARGET} cannot hold {model.name}: its {model.family} class needs experts.")
    groups = [Entry("n_group", own.groups), Entry("topk_group", own.groups_chosen)]
    return [
        Entry("multi_latent_attention", True),
        Entry("mla_qkv_concat", False),
        Entry("num_key_value_heads", att.heads),
        Entry(
            "q_lora_rank", att.q_lora_rank or None, "" if att.q_lora_rank else "null: queries are projected directly"
        ),
        Entry("kv_lora_rank", att.kv_lora_rank),
        *_latent_widths(model),
        Entry("v_head_dim", att.v_head_dim),
        Entry("qk_layernorm", True),
        Entry("attention_bias", att.qkv_bias),
        Entry("apply_rope_fusion", False),
        Entry("hidden_act", "silu"),
        Entry("bias_swiglu_fusion", False),
        Entry("num_nextn_predict_layers", model.mtp_layers, "multi-token prediction, on the last stage"),
        *([Entry("mtp_loss_factor", 0.3)] if model.mtp_layers else []),
        Entry(
            "first_k_dense_replace", families.leading_dense(model, TARGET), "dense layers before the first MoE layer"
        ),
        Entry("n_shared_experts", model.moe.shared_ffn // model.moe.expert_ffn),
        *_experts(plan, own, "n_routed_experts", "seq_aux_loss"),
        Entry("scoring_func", own.score_function),
        *(groups if own.groups else [Entry("n_group", None), Entry("topk_group", None)]),
        Entry("moe_router_enable_expert_bias", True),
        Entry("moe_router_bias_update_rate", 0.001, "as DeepSeek-V3 was trained (arXiv 2412.19437, section 4.2)"),
        Entry("use_fused_ops_topkrouter", True),
        Entry("use_pad_tokens", False),
        Entry("moe_token_drop_policy", False),
    ]


def _latent_widths(model: Model) -> list[Entry]:
    """Query and key widths without and with rotary positions.

    The converter of telechat3_moe (1.9.0 to 2.1.0) drops the Hugging Face names and would build 128 and 64.
    """
    names = ("qk_head_dim", "qk_pos_emb_head_dim")
    why = "the Hugging Face name is ignored by this class"
    if model.family != "telechat3_moe":
        names, why = ("qk_nope_head_dim", "qk_rope_head_dim"), ""
    widths = (model.attention.qk_nope_dim, model.attention.qk_rope_dim)
    return [Entry(name, width, why) for name, width in zip(names, widths, strict=True)]


def _experts(plan: Plan, own: Traits, count_key: str, balancing: str) -> list[Entry]:
    moe = plan.model.moe
    if moe is None:
        return []
    return [
        Entry(count_key, moe.experts),
        Entry("num_experts_per_tok", moe.topk),
        Entry("moe_intermediate_size", moe.expert_ffn),
        Entry("norm_topk_prob", own.norm_topk_prob),
        Entry("routed_scaling_factor", own.routed_scaling),
        Entry("router_dense_type", "float32"),
        Entry("gated_linear_unit", True),
        Entry("moe_grouped_gemm", True),
        Entry("moe_token_dispatcher_type", "alltoall"),
        Entry("moe_router_load_balancing_type", balancing),
        Entry("moe_aux_loss_coeff", own.aux_loss),
    ]


def dataset(plan: Plan, settings: Settings) -> list[Entry]:
    """Megatron .bin/.idx data through MindFormers' own loader."""
    config: list[Any] = [
        Entry("seed", 1234),
        Entry("split", "1, 0, 0"),
        Entry("seq_length", plan.workload.seq),
        Entry("eod_mask_loss", False),
        Entry("reset_position_ids", False),
        Entry("create_attention_mask", False, "the network makes the causal mask"),
        Entry("reset_attention_mask", False),
        Entry("create_compressed_eod_mask", False),
        Entry("eod_pad_length", 128),
        Entry("eod", 0, "unused while the four flags above are False"),
        Entry("pad", -1),
        Entry("data_path", Items(("1", settings.data_path or DATA_PLACEHOLDER)), _data_note(settings)),
    ]
    loader = [
        Entry("type", "BlendedMegatronDatasetDataLoader"),
        Entry("datasets_type", "GPTDataset"),
        Entry("sizes", [samples(plan), 0, 0], "samples to train on"),
        Entry("config", config),
    ]
    entries = [
        Entry("data_loader", loader),
        Entry("input_columns", COLUMNS),
        Entry("construct_args_key", COLUMNS),
        Entry("num_parallel_workers", 8),
        Entry("python_multiprocessing", False),
        Entry("drop_remainder", True),
        Entry("numa_enable", False),
        Entry("prefetch_size", 1),
        Entry("seed", 1234),
    ]
    task = [Entry("type", "CausalLanguageModelDataset"), Entry("dataset_config", Alias("train_dataset"))]
    return [
        Entry("train_dataset", entries, anchor="train_dataset", above="Data"),
        Entry("train_dataset_task", task),
    ]


def _data_note(settings: Settings) -> str:
    return "weight, then prefix of a .bin/.idx pair" + ("" if settings.data_path else "  <-- PLACEHOLDER")
