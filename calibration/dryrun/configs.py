"""MindFormers configurations of the grid: one small YAML mapping for a point, in the family's own dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FAMILIES = ("llama", "qwen3", "qwen3_moe", "deepseek3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One layout of one small network, and the stage whose memory is asked for."""

    family: str
    hidden: int = 1024
    layers: int = 4
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 64
    ffn: int = 3072
    vocab: int = 32000
    experts: int = 0
    topk: int = 0
    moe_ffn: int = 0
    shared: int = 0
    first_dense: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    qk_nope: int = 0
    qk_rope: int = 0
    v_dim: int = 0
    mtp: int = 0
    seq: int = 4096
    tp: int = 2
    pp: int = 2
    vpp: int = 1
    dp: int = 2
    cp: int = 1
    cp_algo: str = "colossalai_cp"
    ep: int = 1
    mbs: int = 1
    micro_batches: int = 2
    sequence_parallel: bool = True
    recompute: Any = False
    select_recompute: Any = False
    comm_recompute: bool = True
    """mp_comm_recompute."""
    optimizer_shard: bool = True
    optimizer_comm_recompute: bool = False
    """parallel_optimizer_comm_recompute."""
    grad_accum_shard: bool = False
    slice_activation: bool = False
    vocab_emb_dp: bool = False
    offset: Any = 0
    param_dtype: str = "float32"
    compute_dtype: str = "bfloat16"
    fp32_residual: bool = False
    clip_grad: bool = True
    mask_compression: bool = False
    """use_attn_mask_compression; deepseek3 always has it."""
    flash: bool = True
    """use_flash_attention."""
    ring: bool = False
    """use_ring_attention."""
    interleave: int = 1
    """micro_batch_interleave_num."""
    seq_split: int = 1
    """seq_split_num, with the seqpipe schedule."""
    swap_optimizer: bool = False
    """optimizer.swap."""
    select_comm: Any = False
    """select_comm_recompute."""
    stage: int = 0

    @property
    def dialect(self) -> str:
        """Legacy or mcore."""
        return "legacy" if self.family == "llama" else "mcore"

    @property
    def is_moe(self) -> bool:
        """Whether layers hold experts."""
        return self.experts > 0


def config(point: Point) -> dict[str, Any]:
    """Parsed YAML of a point."""
    return {
        "seed": 0,
        "output_dir": "./output",
        "use_legacy": point.dialect == "legacy",
        "run_mode": "train",
        "use_parallel": True,
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "grid"},
        "runner_config": {"epochs": 1, "batch_size": point.mbs, "sink_mode": True, "sink_size": 1,
                          "gradient_accumulation_steps": 1 if point.pp > 1 else point.micro_batches},
        "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0,
                      **({"swap": True} if point.swap_optimizer else {})},
        "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": 1e-6, "warmup_ratio": 0, "total_steps": -1},
        "train_dataset": _dataset(point),
        "context": {"mode": 0, "device_target": "Ascend", "max_call_depth": 10000, "memory_optimize_level": "O0",
                    "jit_config": {"jit_level": "O0"}},
        "parallel_config": _parallel_config(point),
        "micro_batch_interleave_num": point.interleave,
        "parallel": _parallel(point),
        "recompute_config": _recompute(point),
        "runner_wrapper": {"type": "MFTrainOneStepCell", "scale_sense": 1.0, "use_clip_grad": point.clip_grad},
        "callbacks": [{"type": "MFLossMonitor"}],
        "model": _model(point),
    }  # fmt: skip


def _dataset(point: Point) -> dict[str, Any]:
    if point.dialect == "legacy":
        return {"input_columns": ["input_ids"]}
    columns = ["input_ids", "labels", "loss_mask", "position_ids"]
    flags = dict.fromkeys(
        (
            "eod_mask_loss",
            "reset_position_ids",
            "create_attention_mask",
            "reset_attention_mask",
            "create_compressed_eod_mask",
        ),
        False,
    )
    loader = {"type": "BlendedMegatronDatasetDataLoader", "datasets_type": "GPTDataset", "sizes": [8, 0, 0]}
    loader["config"] = {"seq_length": point.seq, "eod_pad_length": 128, "eod": 1, "pad": -1, **flags}
    return {"data_loader": loader, "input_columns": columns, "construct_args_key": columns}


def _parallel_config(point: Point) -> dict[str, Any]:
    section = {
        "data_parallel": point.dp, "model_parallel": point.tp, "pipeline_stage": point.pp,
        "context_parallel": point.cp, "context_parallel_algo": point.cp_algo,
        "micro_batch_num": point.micro_batches if point.pp > 1 else 1,
        "use_seq_parallel": point.sequence_parallel, "gradient_aggregation_group": 4,
    }  # fmt: skip
    if point.cp_algo == "ulysses_cp":
        section["ulysses_degree_in_cp"] = point.cp
    if point.seq_split > 1:
        section["seq_split_num"] = point.seq_split
    if point.dialect == "legacy":
        section["vocab_emb_dp"] = point.vocab_emb_dp
    if point.is_moe:
        section["expert_parallel"] = point.ep
    return section


def _parallel(point: Point) -> dict[str, Any]:
    section: dict[str, Any] = {
        "parallel_mode": 1, "gradients_mean": False, "enable_alltoall": point.dialect == "mcore",
        "full_batch": point.dialect == "legacy", "search_mode": "sharding_propagation",
        "enable_parallel_optimizer": point.optimizer_shard,
        "strategy_ckpt_config": {"save_file": "./ckpt_strategy.ckpt", "only_trainable_params": False},
        "parallel_optimizer_config": {
            "gradient_accumulation_shard": point.grad_accum_shard, "parallel_optimizer_threshold": 64,
        },
    }  # fmt: skip
    if point.dialect == "mcore":
        section["dataset_strategy"] = [[point.dp, 1]] * 4
    if point.seq_split > 1:
        section["pipeline_config"] = {"pipeline_interleave": True, "pipeline_scheduler": "seqpipe"}
    elif point.vpp > 1:
        section["pipeline_config"] = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    return section


def _recompute(point: Point) -> dict[str, Any]:
    return {
        "recompute": point.recompute, "select_recompute": point.select_recompute,
        **({"select_comm_recompute": point.select_comm} if point.select_comm else {}),
        "parallel_optimizer_comm_recompute": point.optimizer_comm_recompute, "mp_comm_recompute": point.comm_recompute,
        "recompute_slice_activation": point.slice_activation,
    }  # fmt: skip


def _model(point: Point) -> dict[str, Any]:
    makers = {"llama": _llama, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "deepseek3": _deepseek3}
    section = makers[point.family](point)
    if point.vpp > 1:
        section["model_config"]["pp_interleave_num"] = point.vpp
    return section


def _llama(point: Point) -> dict[str, Any]:
    model = {
        "type": "LlamaConfig", "batch_size": point.mbs, "seq_length": point.seq, "hidden_size": point.hidden,
        "num_layers": point.layers, "num_heads": point.heads, "n_kv_heads": point.kv_heads, "vocab_size": point.vocab,
        "intermediate_size": point.ffn, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "ignore_token_id": -100, "compute_dtype": point.compute_dtype, "layernorm_compute_type": "float32",
        "softmax_compute_type": "float32", "rotary_dtype": "float32", "param_init_type": point.param_dtype,
        "use_past": False, "scaling_factor": 1.0, "theta": 500000, "extend_method": "None",
        "use_attn_mask_compression": point.mask_compression,
        "use_flash_attention": point.flash, "use_ring_attention": point.ring, "offset": point.offset,
        "fine_grain_interleave": 1, "checkpoint_name_or_path": "",
    }  # fmt: skip
    return {"model_config": model, "arch": {"type": "LlamaForCausalLM"}}


def _mcore(point: Point) -> dict[str, Any]:
    return {
        "vocab_size": point.vocab, "hidden_size": point.hidden, "intermediate_size": point.ffn,
        "num_hidden_layers": point.layers, "num_attention_heads": point.heads, "max_position_embeddings": point.seq,
        "seq_length": point.seq, "rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": False,
        "use_flash_attention": point.flash, "add_bias_linear": False, "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "offset": point.offset, "params_dtype": point.param_dtype, "compute_dtype": point.compute_dtype,
        "layernorm_compute_dtype": "float32", "softmax_compute_dtype": "float32", "rotary_dtype": "float32",
        "fp32_residual_connection": point.fp32_residual,
        "use_attn_mask_compression": point.mask_compression or point.family == "deepseek3",
        **({"use_ring_attention": True} if point.ring else {}),
    }  # fmt: skip


def _qwen3(point: Point) -> dict[str, Any]:
    model = _mcore(point) | {
        "num_key_value_heads": point.kv_heads, "head_dim": point.head_dim, "hidden_act": "swiglu",
        "rope_theta": 1000000.0, "attention_bias": False, "input_sliced_sig": True,
        "untie_embeddings_and_output_weights": True, "position_embedding_type": "rope", "qk_layernorm": True,
        "use_contiguous_weight_layout_attention": False, "qkv_concat": True,
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
    }  # fmt: skip
    return {"model_config": model}


def _qwen3_moe(point: Point) -> dict[str, Any]:
    model = _mcore(point) | {
        "num_key_value_heads": point.kv_heads, "head_dim": point.head_dim, "hidden_act": "silu", "rope_theta": 1000000,
        "input_sliced_sig": True, "position_embedding_type": "rope", "use_contiguous_weight_layout_attention": False,
        "moe_grouped_gemm": True, "num_experts": point.experts, "num_experts_per_tok": point.topk,
        "moe_intermediate_size": point.moe_ffn, "router_dense_type": "float32", "gated_linear_unit": True,
        "norm_topk_prob": False, "moe_router_pre_softmax": True, "moe_token_drop_policy": "probs",
        "routed_scaling_factor": 1.5, "router_aux_loss_coef": 0.001, "moe_aux_loss_coeff": 0.001,
        "moe_router_load_balancing_type": "gbs_aux_loss", "moe_token_dispatcher_type": "alltoall",
        "model_type": "qwen3_moe", "architectures": "Qwen3MoeForCausalLM",
    }  # fmt: skip
    return {"model_config": model}


def _deepseek3(point: Point) -> dict[str, Any]:
    model = _mcore(point) | {
        "multi_latent_attention": True, "mla_qkv_concat": False, "qk_layernorm": True,
        "num_key_value_heads": point.heads, "q_lora_rank": point.q_lora or None, "kv_lora_rank": point.kv_lora,
        "qk_nope_head_dim": point.qk_nope, "qk_rope_head_dim": point.qk_rope, "v_head_dim": point.v_dim,
        "num_nextn_predict_layers": point.mtp, "mtp_loss_factor": 0.3, "apply_rope_fusion": False,
        "bias_swiglu_fusion": False, "router_dense_type": "float32", "gated_linear_unit": True,
        "moe_grouped_gemm": True, "use_fused_ops_topkrouter": True,
        "n_routed_experts": point.experts, "num_experts_per_tok": point.topk,
        "n_shared_experts": point.shared, "first_k_dense_replace": point.first_dense, "n_group": 4, "topk_group": 2,
        "use_pad_tokens": False, "moe_token_dispatcher_type": "alltoall", "moe_intermediate_size": point.moe_ffn,
        "moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.0001, "moe_token_drop_policy": False,
        "moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.0001,
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
    }  # fmt: skip
    return {"model_config": model}
