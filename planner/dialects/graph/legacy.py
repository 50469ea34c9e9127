"""MindFormers graph mode, legacy dialect (``use_legacy: True``): Llama, the only home of Llama shapes there."""

from __future__ import annotations

from typing import Final

from planner.dialects import families, traits
from planner.dialects.graph import layout
from planner.dialects.graph.sections import DATA_PLACEHOLDER
from planner.dialects.records import Settings
from planner.dialects.text.yaml_write import Alias, Entry
from planner.frameworks import LEAST_COMPRESSED_SEQ
from planner.model.records import Model
from planner.plan import Plan

TARGET: Final = "mindformers"
_LLAMA3_VOCABULARY: Final = 128256


def check(model: Model) -> None:
    """Refuse shapes that LlamaForCausalLM cannot hold.

    Raises
    ------
    EmitError
    """
    att = model.attention
    for wrong, what in (
        (
            att.kind != "gqa" or att.qk_norm,
            "LlamaForCausalLM has plain grouped-query attention without query/key norms",
        ),
        (att.head_dim * att.heads != model.hidden, f"its heads are hidden / heads wide, not {att.head_dim}"),
        (model.moe is not None, "LlamaForCausalLM is written here for dense layers"),
        (model.mtp_layers > 0, "LlamaForCausalLM has no MTP modules"),
        (
            not model.gated_mlp or model.mlp_bias or model.norm_bias,
            "LlamaForCausalLM has a gated MLP and no biases there",
        ),
        (model.norms_per_layer != 2, "LlamaForCausalLM has two norms a layer"),
        (model.learned_positions > 0, "LlamaForCausalLM has rotary positions only"),
    ):
        if wrong:
            raise families.refuse(model, TARGET, what)


def model_section(plan: Plan) -> Entry:
    """``model``: LlamaConfig and its network class."""
    model, workload, own = plan.model, plan.workload, traits.of(plan.model)
    bos, eos, pad = (128000, 128001, 128002) if model.vocab == _LLAMA3_VOCABULARY else (1, 2, 0)
    entries = [
        Entry("type", "LlamaConfig"),
        *pipeline_layout(plan),
        Entry("batch_size", plan.strategy.micro_batch_size),
        Entry("seq_length", workload.seq),
        Entry("hidden_size", model.hidden),
        Entry("num_layers", model.layers),
        Entry("num_heads", model.attention.heads),
        Entry("n_kv_heads", model.attention.kv_heads),
        Entry("intermediate_size", model.ffn),
        Entry("vocab_size", model.vocab),
        Entry("max_position_embedding", max(workload.seq, model.max_seq)),
        Entry("qkv_has_bias", model.attention.qkv_bias),
        Entry("attn_proj_has_bias", model.attention.output_bias),
        Entry("tie_word_embeddings", model.tied_embeddings),
        Entry("rms_norm_eps", own.norm_epsilon, f"from {own.source}"),
        Entry("theta", own.rotary_base, f"rotary base, from {own.source}"),
        *_scaling(own),
        Entry("bos_token_id", bos),
        Entry("eos_token_id", eos),
        Entry("pad_token_id", pad),
        Entry("ignore_token_id", -100),
        Entry("param_init_type", workload.params_dtype),
        Entry("compute_dtype", workload.compute_dtype),
        Entry("layernorm_compute_type", "float32"),
        Entry("softmax_compute_type", "float32"),
        Entry("rotary_dtype", "float32"),
        Entry("use_past", False),
        Entry("use_flash_attention", workload.flash_attention),
        *_mask(plan),
        Entry("fine_grain_interleave", 1),
        Entry("checkpoint_name_or_path", ""),
    ]
    arch = [Entry("type", "LlamaForCausalLM")]
    return Entry("model", [Entry("model_config", entries), Entry("arch", arch)], above=f"Model (shape: {model.name})")


def pipeline_layout(plan: Plan) -> list[Entry]:
    """Layers of each stage and chunks, as both legacy networks write them."""
    s = plan.strategy
    why = "layers of each stage minus the even share" + ("; one row a chunk" if s.vpp > 1 else "")
    entries = [Entry("offset", layout.offset(s), why)]
    if layout.pipeline_config(s) is not None:
        entries.append(Entry("pp_interleave_num", s.vpp, "chunks a stage; needs pipeline_interleave too"))
    return entries


def _scaling(own: traits.Traits) -> list[Entry]:
    numbers = own.llama3_scaling
    if not numbers:
        return [Entry("scaling_factor", 1.0), Entry("extend_method", "None")]
    factor = [Entry(name, number) for name, number in numbers.items()]
    return [Entry("extend_method", "LLAMA3", f"rotary scaling, from {own.source}"), Entry("scaling_factor", factor)]


def _mask(plan: Plan) -> list[Entry]:
    if not plan.workload.flash_attention or plan.workload.seq < LEAST_COMPRESSED_SEQ:
        return []
    return [Entry("use_attn_mask_compression", True, "a 2048 x 2048 causal mask instead of sequence x sequence")]


def dataset(plan: Plan, settings: Settings) -> list[Entry]:
    """MindRecord files with one column ``input_ids`` of sequence + 1 tokens."""
    note = f"folder of MindRecord files, {plan.workload.seq + 1} tokens a row"
    note += "" if settings.data_path else "  <-- PLACEHOLDER"
    loader = [
        Entry("type", "MindDataset"),
        Entry("dataset_dir", settings.data_path or DATA_PLACEHOLDER, note),
        Entry("shuffle", True),
    ]
    entries = [
        Entry("data_loader", loader),
        Entry("input_columns", ["input_ids"]),
        *data_runtime(),
    ]
    task = [Entry("type", "CausalLanguageModelDataset"), Entry("dataset_config", Alias("train_dataset"))]
    return [
        Entry("train_dataset", entries, anchor="train_dataset", above="Data"),
        Entry("train_dataset_task", task),
    ]


def data_runtime() -> list[Entry]:
    """How a data set is read."""
    return [
        Entry("num_parallel_workers", 8),
        Entry("python_multiprocessing", False),
        Entry("drop_remainder", True),
        Entry("repeat", 1),
        Entry("numa_enable", False),
        Entry("prefetch_size", 1),
    ]
