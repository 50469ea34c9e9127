"""MindFormers graph mode, legacy dialect: GLM in ``ChatGLM2ForConditionalGeneration`` (``models/glm2``).

One network for ChatGLM2/3, GLM-4 (two norms a layer) and GLM-4-0414 (four: ``post_self_attn_layernorm`` and
``post_mlp_layernorm``).  Queries and keys are rotated in the rearranged form and projections are kept apart, because
only those operators have sharding strategies in 1.9.0.
"""

from __future__ import annotations

from typing import Final

from planner.dialects import families, traits
from planner.dialects.graph import layout, legacy
from planner.dialects.graph.sections import DATA_PLACEHOLDER
from planner.dialects.records import Settings
from planner.dialects.text.yaml_write import Alias, Entry
from planner.model.records import Model
from planner.plan import Plan

TARGET: Final = "mindformers"
COLUMNS: Final = ["input_ids", "labels"]
#: Operators of an MLP that selective recompute means; the default patterns of MindFormers name Llama's.
SELECTED: Final = (r"mlp\.activation_func\.mul", r"mlp\.activation_func\.silu\.silu")
#: Rotary base that ``rope_ratio`` multiplies (``glm2.py``).
_ROTARY_BASE: Final = 10000.0


def check(model: Model) -> None:
    """Refuse shapes that the GLM class cannot hold.

    Raises
    ------
    EmitError
    """
    att = model.attention
    for wrong, what in (
        (att.kind != "gqa" or att.qk_norm, "its GLM class has grouped-query attention without query/key norms"),
        (model.moe is not None, "its GLM class has no experts"),
        (model.mtp_layers > 0, "its GLM class has no MTP modules"),
        (not model.gated_mlp or model.norm_bias, "its GLM class has a gated MLP and norms without bias"),
        (model.mlp_bias != att.output_bias, "its GLM class has biases in MLP and output projection together"),
        (model.mlp_bias and not att.qkv_bias, "its GLM class has linear biases everywhere or in queries, keys, values"),
        (model.tied_embeddings, "its GLM class keeps embedding and head apart"),
        (model.learned_positions > 0, "its GLM class has rotary positions only"),
    ):
        if wrong:
            raise families.refuse(model, TARGET, what)


def model_section(plan: Plan) -> Entry:
    """``model``: ChatGLM2Config and its network class."""
    model, workload, own = plan.model, plan.workload, traits.of(plan.model)
    att, four = model.attention, model.norms_per_layer == 4
    entries = [
        Entry("type", "ChatGLM2Config"),
        *legacy.pipeline_layout(plan),
        Entry("batch_size", plan.strategy.micro_batch_size),
        Entry("seq_length", workload.seq),
        Entry("hidden_size", model.hidden),
        Entry("num_layers", model.layers),
        Entry("num_attention_heads", att.heads),
        Entry("multi_query_attention", True),
        Entry("multi_query_group_num", att.kv_heads, "key/value heads"),
        Entry("kv_channels", att.head_dim, "width of a head"),
        Entry("ffn_hidden_size", model.ffn),
        Entry("padded_vocab_size", model.vocab),
        Entry("add_qkv_bias", att.qkv_bias),
        Entry("add_bias_linear", model.mlp_bias),
        Entry("qkv_concat", False, "apart, so that tensor parallelism splits each"),
        Entry("mlp_concat", False),
        Entry("rmsnorm", True),
        Entry("layernorm_epsilon", own.norm_epsilon, f"from {own.source}"),
        Entry("post_layer_norm", True, "the final norm"),
        Entry("post_self_attn_layernorm", four),
        Entry("post_mlp_layernorm", four),
        Entry("apply_residual_connection_post_layernorm", False),
        Entry("rope_ratio", own.rotary_base / _ROTARY_BASE, f"rotary base / 10000, from {own.source}"),
        Entry("use_rearrange_rope", True, "the other form runs unsharded"),
        Entry("hidden_dropout", 0.0),
        Entry("attention_dropout", 0.0),
        Entry("eos_token_id", 2),
        Entry("pad_token_id", 0),
        Entry("param_init_type", workload.params_dtype),
        Entry("compute_dtype", workload.compute_dtype),
        Entry("layernorm_compute_type", "float32"),
        Entry("residual_dtype", workload.compute_dtype),
        Entry("rotary_dtype", "float32"),
        Entry("use_past", False),
        Entry("use_flash_attention", workload.flash_attention),
        Entry("checkpoint_name_or_path", ""),
    ]
    arch = [Entry("type", "ChatGLM2ForConditionalGeneration")]
    return Entry("model", [Entry("model_config", entries), Entry("arch", arch)], above=f"Model (shape: {model.name})")


def select_recompute(plan: Plan) -> bool | list[Entry]:
    """``select_recompute`` with the operators named."""
    counts = layout.select_recompute(plan.strategy)
    return [Entry(name, counts) for name in SELECTED] if counts else False


def dataset(plan: Plan, settings: Settings) -> list[Entry]:
    """MindRecord files with columns ``input_ids`` and ``labels`` of one sequence each."""
    note = f"folder of MindRecord files, {plan.workload.seq} input_ids and as many labels (shifted by one) a row"
    note += "" if settings.data_path else "  <-- PLACEHOLDER"
    loader = [
        Entry("type", "MindDataset"),
        Entry("dataset_dir", settings.data_path or DATA_PLACEHOLDER, note),
        Entry("shuffle", True),
    ]
    entries = [
        Entry("data_loader", loader),
        Entry("input_columns", COLUMNS, "the network does not shift labels itself"),
        *legacy.data_runtime(),
    ]
    task = [Entry("type", "CausalLanguageModelDataset"), Entry("dataset_config", Alias("train_dataset"))]
    return [
        Entry("train_dataset", entries, anchor="train_dataset", above="Data"),
        Entry("train_dataset_task", task),
    ]
