"""Model shape from ``model.model_config`` of a MindFormers graph-mode file, both dialects.

A key that is absent takes the default of the family's configuration class (MindFormers 1.9.0, ``configuration_*.py``,
``llama_config.py``), as the framework does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from planner.dialects.text.fields import Section
from planner.dialects.text.yaml_read import Document, loads, read_text
from planner.errors import SpecError
from planner.model.records import DENSE, MOE, Attention, LayerKind, Model, Moe

#: Keys of a model section that change neither memory nor time in this planner's model.
IGNORED: Final = frozenset(
    "architectures auto_map bos_token_id eos_token_id pad_token_id ignore_token_id hidden_act hidden_dropout "
    "attention_dropout initializer_range init_method_std rms_norm_eps rope_theta theta rotary_base "
    "rope_scaling position_embedding_type extend_method scaling_factor rotary_scaling_factor beta_fast "
    "beta_slow mscale mscale_all_dim add_bias_linear use_cache use_past is_dynamic checkpoint_name_or_path "
    "_name_or_path tokenizer_class torch_dtype transformers_version input_sliced_sig qkv_concat "
    "use_contiguous_weight_layout_attention mla_qkv_concat qk_layernorm layernorm_compute_dtype "
    "layernorm_compute_type softmax_compute_dtype softmax_compute_type rotary_dtype router_dense_type "
    "moe_router_dtype multiple_of ffn_dim_multiplier max_position_embeddings max_position_embedding "
    "untie_embeddings_and_output_weights gated_linear_unit moe_grouped_gemm norm_topk_prob "
    "moe_router_pre_softmax moe_token_drop_policy routed_scaling_factor router_aux_loss_coef "
    "moe_aux_loss_coeff moe_router_load_balancing_type moe_token_dispatcher_type scoring_func n_group "
    "topk_group topk_method moe_router_enable_expert_bias moe_router_bias_update_rate use_fused_ops_topkrouter "
    "use_pad_tokens mtp_loss_factor mtp_loss_scaling_factor apply_rope_fusion bias_swiglu_fusion "
    "moe_z_loss_coeff moe_router_force_expert_balance npu_nums_per_device ep_size "
    "moe_shared_expert_intermediate_size repetition_penalty max_decode_length top_k top_p do_sample "
    "temperature attn_implementation sliding_window use_sliding_window max_window_layers fine_grain_interleave "
    "batch_size use_rope_slice use_attn_mask_compression use_eod_attn_mask_compression decoder_sparse_step "
    "output_router_logits rl_config layer_types pp_interleave_num offset model_type type mlp_only_layers "
    "moe_layer_freq use_ring_attention attn_proj_has_bias fused_rms_norm rmsnorm_compute_2d "
    "embedding_init_type residual_dtype parallel_optimizer fp32_residual_connection is_encoder_decoder "
    "num_blocks block_size multi_latent_attention rmsnorm layernorm_epsilon rope_ratio post_layer_norm mlp_concat "
    "apply_residual_connection_post_layernorm use_rearrange_rope bias_dropout_fusion apply_query_key_layer_scaling "
    "attention_softmax_in_fp32 quantization_bit pre_seq_len prefix_projection gmask_token_id enable_high_performance "
    "mask_generate".split()
)

_DEEPSEEK: Final = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "num_attention_heads": 128, "n_shared_experts": 1,
    "n_routed_experts": 256, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "max_position_embeddings": 4096,
}  # fmt: skip
_DEFAULTS: Final[Mapping[str, Mapping[str, int]]] = {
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
    },
    "qwen3_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "num_experts": 128, "max_position_embeddings": 32768,
    },
    "telechat3": {
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
    },
    "deepseek_v3": _DEEPSEEK,
    "telechat3_moe": {
        **{key: value for key, value in _DEEPSEEK.items() if key not in ("qk_nope_head_dim", "qk_rope_head_dim")},
        "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "vocab_size": 131072, "hidden_size": 2560,
        "intermediate_size": 7680, "moe_intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 32,
        "n_routed_experts": 192,
    },
}  # fmt: skip
#: Legacy configuration classes whose network is Llama's, with defaults of their own (MindFormers 1.5.0,
#: ``llama_config``, ``research/``: ``telechat_config``, ``internlm2_config``).
LLAMA_CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "LlamaConfig": {},
    "TelechatConfig": {"out_proj_has_bias": True, "res_dtype": "float32"},
    "InternLM2Config": {"n_kv_heads": 8, "intermediate_size": 14336, "vocab_size": 92544},
}
#: And those whose network is GLM's (``glm2_config``, ``research/yizhao/yizhao_config``).
GLM_CLASSES: Final = ("ChatGLM2Config", "YiZhaoConfig")
#: Classes that MindFormers itself ships and the planner's figures were compared with.
COMPARED: Final = ("LlamaConfig", "ChatGLM2Config")
_MODEL_TYPES: Final = {"deepseekv3": "deepseek_v3", "deepseek3": "deepseek_v3"}


def mcore_section(document: Document) -> tuple[Section, str]:
    """Model section of an mcore file with the class defaults filled in, and its family.

    Raises
    ------
    SpecError
        Not a family with a training class, or a shape that lies in another file which is not there.
    """
    section = Section(document, "model", "model_config")
    folder = document.root.get("pretrained_model_dir") or _nested(document, "model", "pretrained_model_dir")
    if folder:
        _merge_pretrained(section, str(folder))
    if not section.values:
        raise SpecError(f"{document.source}: section model.model_config is missing; it holds the model's shape.")
    return section, with_defaults(section)


def with_defaults(section: Section) -> str:
    """Fill in the defaults of the configuration class; the family.

    Raises
    ------
    SpecError
        Not a family with a training class.
    """
    kind = section.text("model_type")
    family = _MODEL_TYPES.get(kind, kind)
    if family not in _DEFAULTS:
        raise SpecError(
            f"{section.where('model_type')} is {kind!r}; MindFormers trains {', '.join(_DEFAULTS)} in this dialect."
        )
    for key, value in _DEFAULTS[family].items():
        section.values.setdefault(key, value)
        section.read.add(key)
    return family


def _nested(document: Document, *path: str) -> Any:
    node: Any = document.root
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _merge_pretrained(section: Section, folder: str) -> None:
    """Values of the Hugging Face config.json behind those of the file, as MindFormers merges them."""
    path = Path(section.document.source).parent / folder / "config.json"
    if not path.is_file():
        shape = {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_layers"} & set(section.values)
        if len(shape) < 3 or "model_type" not in section.values:
            raise SpecError(
                f"{section.document.source}: the model's shape lies in pretrained_model_dir {folder!r}, where no "
                "config.json is found; put it there, or write the sizes into model.model_config."
            )
        return
    own = loads(read_text(path), source=str(path)).root
    for key, value in own.items():
        section.values.setdefault(key, value)
        section.read.add(key)


def mcore_model(section: Section, family: str, name: str, source: str) -> Model:
    """Model of an mcore section."""
    hidden = section.integer("hidden_size", least=1)
    layers = section.integer("num_hidden_layers", "num_layers", least=1)
    heads = section.integer("num_attention_heads", "num_heads", least=1)
    latent = family in ("deepseek_v3", "telechat3_moe")
    attention = _latent(section, family, heads) if latent else _grouped(section, family, hidden, heads)
    moe = _moe(section, family)
    ffn = section.integer("intermediate_size", "ffn_hidden_size", least=1)
    mtp = section.integer("num_nextn_predict_layers", "mtp_num_layers", default=0) if latent else 0
    kinds = _kinds(section, layers, moe)
    return Model(
        name=name,
        family=family,
        hidden=hidden,
        ffn=ffn,
        vocab=section.integer("vocab_size", least=1),
        attention=attention,
        layer_kinds=kinds,
        moe=moe,
        mtp_layers=mtp,
        tied_embeddings=section.flag("tie_word_embeddings", default=False),
        max_seq=section.integer("max_position_embeddings", default=0),
        source=source,
    )


def _grouped(section: Section, family: str, hidden: int, heads: int) -> Attention:
    head_dim = section.integer("head_dim", "kv_channels", default=hidden // heads, least=1)
    normed = family.startswith("qwen3") or section.flag("qk_layernorm", default=False)
    return Attention(
        heads=heads,
        kv_heads=section.integer("num_key_value_heads", "num_query_groups", default=heads, least=1),
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=section.flag("attention_bias", "add_qkv_bias", default=False),
        qk_norm=normed,
    )


def _latent(section: Section, family: str, heads: int) -> Attention:
    known = () if family == "telechat3_moe" else ("qk_nope_head_dim",)  # its converter drops the Hugging Face names
    nope = section.integer(*known, "qk_head_dim", least=1)
    known = () if family == "telechat3_moe" else ("qk_rope_head_dim",)
    rope = section.integer(*known, "qk_pos_emb_head_dim", least=1)
    section.any("num_key_value_heads", "num_query_groups", "head_dim")
    explicit_null = "q_lora_rank" in section and section.values["q_lora_rank"] is None
    return Attention(
        kind="mla",
        heads=heads,
        kv_heads=heads,
        head_dim=nope + rope,
        v_head_dim=section.integer("v_head_dim", least=1),
        qkv_bias=section.flag("attention_bias", "add_qkv_bias", default=False),
        q_lora_rank=0 if explicit_null else section.integer("q_lora_rank", least=1),
        kv_lora_rank=section.integer("kv_lora_rank", least=1),
        qk_nope_dim=nope,
        qk_rope_dim=rope,
    )


def _moe(section: Section, family: str) -> Moe | None:
    if family not in ("qwen3_moe", "deepseek_v3", "telechat3_moe"):
        return None
    width = section.integer("moe_intermediate_size", "moe_ffn_hidden_size", least=1)
    shared = section.integer("n_shared_experts", "shared_expert_num", default=0) * width
    return Moe(
        experts=section.integer("n_routed_experts", "num_experts", "num_moe_experts", least=1),
        topk=section.integer("num_experts_per_tok", "moe_router_topk", least=1),
        expert_ffn=width,
        shared_ffn=shared,
        router_bias=family != "qwen3_moe",
    )


def _kinds(section: Section, layers: int, moe: Moe | None) -> tuple[LayerKind, ...]:
    if moe is None:
        return (DENSE,) * layers
    dense = section.integer("first_k_dense_replace", default=0)
    frequency = section.any("moe_layer_freq", default=1)
    if isinstance(frequency, list) and len(frequency) == layers:
        return tuple(MOE if item else DENSE for item in frequency)
    if dense > layers:
        raise SpecError(f"{section.where('first_k_dense_replace')} is {dense}, more than the {layers} layers.")
    if isinstance(frequency, int) and not isinstance(frequency, bool) and frequency > 1:
        return tuple(MOE if i % frequency == 0 else DENSE for i in range(layers))
    return (DENSE,) * dense + (MOE,) * (layers - dense)


def legacy_model(document: Document, name: str, source: str) -> tuple[Section, Model]:
    """Model of a legacy file of one of `LLAMA_CLASSES` or `GLM_CLASSES`.

    Raises
    ------
    SpecError
        Another configuration class.
    """
    section = Section(document, "model", "model_config")
    kind = section.text("type")
    if kind in GLM_CLASSES:
        return section, _glm(section, name, source)
    if kind not in LLAMA_CLASSES:
        legal = ", ".join((*LLAMA_CLASSES, *GLM_CLASSES))
        raise SpecError(f"{section.where('type')} is {kind!r}; the legacy dialect is read for {legal}.")
    for key, value in LLAMA_CLASSES[kind].items():
        if section.values.get(key) is None:
            section.values[key] = value
        section.read.add(key)
    hidden = section.integer("hidden_size", default=4096, least=1)
    heads = section.integer("num_heads", default=32, least=1)
    layers = section.integer("num_layers", default=32, least=1)
    experts = Section(document, "moe_config")
    moe = _legacy_moe(experts, _llama_ffn(section, hidden))
    return section, Model(
        name=name,
        family="mixtral" if moe else "llama",
        hidden=hidden,
        ffn=0 if moe else _llama_ffn(section, hidden),
        vocab=section.integer("vocab_size", default=32000, least=1),
        attention=Attention(
            heads=heads,
            kv_heads=section.integer("n_kv_heads", default=heads, least=1),
            head_dim=hidden // heads,
            v_head_dim=hidden // heads,
            qkv_bias=section.flag("qkv_has_bias", default=False),
            output_bias=section.flag("attn_proj_has_bias", "out_proj_has_bias", default=False),
        ),
        layer_kinds=((MOE if moe else DENSE),) * layers,
        moe=moe,
        tied_embeddings=section.flag("tie_word_embeddings", default=False),
        max_seq=section.integer("max_position_embedding", default=0),
        source=source,
    )


def _glm(section: Section, name: str, source: str) -> Model:
    """Model of a ``ChatGLM2Config`` with the defaults of its class (``glm2_config.py``)."""
    heads = section.integer("num_attention_heads", default=32, least=1)
    head_dim = section.integer("kv_channels", default=128, least=1)
    groups = section.integer("multi_query_group_num", default=2, least=1)
    everywhere = section.flag("add_bias_linear", default=False)
    after = [section.flag(key, default=False) for key in ("post_self_attn_layernorm", "post_mlp_layernorm")]
    if after[0] != after[1]:
        raise SpecError(f"{section.where('post_mlp_layernorm')}: one norm behind attention and MLP, or none, is read.")
    return Model(
        name=name,
        family="glm4" if after[0] else "glm",
        hidden=section.integer("hidden_size", default=4096, least=1),
        ffn=section.integer("ffn_hidden_size", default=13696, least=1),
        vocab=section.integer("padded_vocab_size", default=65024, least=1),
        attention=Attention(
            heads=heads,
            kv_heads=groups if section.flag("multi_query_attention", default=True) else heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            qkv_bias=section.flag("add_qkv_bias", default=True) or everywhere,
            output_bias=everywhere,
        ),
        layer_kinds=(DENSE,) * section.integer("num_layers", default=28, least=1),
        mlp_bias=everywhere,
        norms_per_layer=4 if after[0] else 2,
        source=source,
    )


def _legacy_moe(section: Section, width: int) -> Moe | None:
    experts = section.integer("expert_num", default=1, least=1)
    if experts == 1:
        return None
    return Moe(
        experts=experts,
        topk=section.integer("num_experts_chosen", default=1, least=1),
        expert_ffn=width,
        shared_ffn=round(section.number("shared_expert_num", default=0) * width),  # shipped files write 8.0
        shared_gate=section.flag("use_shared_expert_gating", default=False),
    )


def _llama_ffn(section: Section, hidden: int) -> int:
    """Width of the MLP as LlamaFeedForward computes it (``llama_layer.py``)."""
    given = section.integer("intermediate_size", default=0)
    if given:
        return given
    width = 4 * hidden
    factor = section.any("ffn_dim_multiplier")
    if factor is not None:
        width = int((section.number("ffn_dim_multiplier") + 0.01) * width)
    multiple = section.integer("multiple_of", default=256, least=1)
    width = 2 * width // 3
    return multiple * (-(-width // multiple))
