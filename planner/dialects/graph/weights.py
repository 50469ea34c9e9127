"""What keys of graph-mode files do to memory and time when they are not read.

Names as in MindFormers 1.5.0 to 2.1.0 and MindSpore's ``set_auto_parallel_context``.  A legacy configuration class
ignores keys it does not know, so those change nothing; `check` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from planner.dialects.findings import known_keys
from planner.dialects.graph.read_model import COMPARED
from planner.dialects.text.fields import Section
from planner.dialects.text.yaml_read import Document
from planner.dialects.weights import Unread, Weights

_EIGHT: Final = "types of 8 bits or less"
_HOST: Final = "what lies on the host"
_SPARSE: Final = "sparse attention with an indexer"
_WINDOW: Final = "attention within a window is counted over the whole sequence, so a step is faster"
_ORDER: Final = "it orders or hides communication (time)"
_PLACES: Final = "places for tokens at each expert: counted as even, without dropped or padded ones"

WEIGHTS: Final = Weights(
    answer={
        "pet_config": "only adapters are trained", "quantization_config": _EIGHT, "quantization": _EIGHT,
        "quant_config": _EIGHT, "quant": _EIGHT, "cpu_offloading*": _HOST, "layer_swap": _HOST, "op_swap": _HOST,
        "dsa_*": _SPARSE, "index_*": _SPARSE, "share_attention": "layers that share attention",
        "share_ffn": "layers that share an MLP", "experimental_attention_variant": "another kind of attention",
        "embed_layernorm": "a norm behind the embedding", "sandwich_norm": "norms behind attention and MLP",
        "gated_linear_unit": "an MLP without gate", "no_recompute_layers": "layers without recompute",
        "nope_layer_interval": "layers without positions", "num_encoder_layers": "another network",
        "use_alibi_mask": "a mask of biases", "use_hash_router": "experts chosen by hashing",
    },
    time={
        "sliding_window": _WINDOW, "window_size": _WINDOW, "window_attn_skip_freq": _WINDOW,
        "use_eod_reset": "packed samples: attention is counted over the whole sequence, so a step is faster",
        "enable_fa_var_len": "packed samples: attention is counted over the whole sequence, so a step is faster",
        "capacity_factor": _PLACES, "moe_expert_capacity_factor": _PLACES, "enable_sdrop": _PLACES,
        "enable_gmm_safe_tokens": _PLACES, "comp_comm_parallel*": _ORDER, "group_wise_a2a": _ORDER,
        "moe_shared_expert_overlap": _ORDER, "enable_deredundency": _ORDER, "attn_all*": _ORDER, "ffn_*": _ORDER,
        "attn_reduce_scatter": _ORDER, "enable_expert_relocation": "it says how even experts are loaded (time)",
        "enable_cold_hot_expert": "it says how even experts are loaded (time)", "use_allgather_dispatcher": _ORDER,
        "mlp_bias": "biases of the MLP are not counted", "add_mlp_fc*": "biases of the MLP are not counted",
        "num_labels": "a head of classes is not counted",
    },
    harmless=tuple(
        (
            "calculate_per_token_loss chunk_prefill is_sample_acceleration llm_backend mindformers_version "
            "return_* print_* monitor_config dataset_config moe_router_* moe_permute_fusion moe_apply_* callback_* "
            "activation_func masked_softmax_fusion mask_func_type fp16_lm_* fused_norm flash_attn normalization rope_* "
            "rotary_* partial_rotary_factor softmax_scale sparse_mode track_* training_seqlen base_seqlen "
            "pretrain_seqlen use_rope_scaling use_fused_* init_method* output_layer_init_method param_init_std_rules "
            "disable_lazy_inline slow_but_exact skip_bias_* pre_process post_process unk_token_id input_layout logn "
            "*_parallel_size sequence_parallel recompute_slice_activation mem_coeff optimizer_shard coeff "
            "model_architecture cp_comm_type hierarchical_context_parallel_sizes default_prefetch use_alltoall "
            "use_attention_mask use_interleaved_weight_layout_mlp pretraining_tp expert_relocation_* n_inner "
            "aux_loss_* balance_via_topk_bias topk_bias_update_rate update_step cur_layer routing_policy topk_method "
            "n_group topk_group norm_topk_prob routed_scaling_factor use_gating_sigmoid z_loss_factor max_router_load "
            "router_dense_type save_token_distribution ep_extend_tp expert_group_size npu_nums_per_device "
            "hot_expert_num cold_token_percent moe_module_name use_fused_ops_* dispatch_global_max_bs "
            "expert_model_parallel expert_num num_experts_chosen shared_expert_num use_shared_expert_gating use_gmm "
            "auto_register *_dropout_prob *_dropout emb_dropout_prob has_bias qkv_concat ffn_concat sigma mean "
            "use_past* alpha beta"
        ).split()
    ),
)  # fmt: skip
#: Plain values of keys that say something else with any other.
_PLAIN: Final[dict[str, tuple[Any, ...]]] = {
    "gated_linear_unit": (True,), "embed_layernorm": (False,), "share_attention": (False,), "share_ffn": (False,),
    "sandwich_norm": (False,), "mlp_bias": (False,), "use_alibi_mask": (False,), "cpu_offloading": (False,),
    "enable_sdrop": (False,), "group_wise_a2a": (False,), "comp_comm_parallel": (False,), "quant": ("",),
    "moe_shared_expert_overlap": (False,), "enable_deredundency": (False,), "use_allgather_dispatcher": (False,),
    "enable_cold_hot_expert": (False,), "enable_gmm_safe_tokens": (False,), "use_eod_reset": (False,),
    "comp_comm_parallel_degree": (1, 2), "capacity_factor": (1.0,), "enable_fa_var_len": (False,),
}  # fmt: skip
#: Spellings of the mode in which the file's degrees are the layout.
_SEMI_AUTO: Final = (1, "1", "semi_auto_parallel", "SEMI_AUTO_PARALLEL")
_AUTO: Final = (2, "2", "auto_parallel", "AUTO_PARALLEL")


def weigh(document: Document, section: Section, *, legacy: bool, ignored: frozenset[str]) -> Unread:
    """Everything of a file that was not read, by what it does to the answer.

    Parameters
    ----------
    document : Document
    section : Section
        The model section, after it was read.
    legacy : bool
    ignored : frozenset of str
        Keys of the model section that change nothing.
    """
    unread = Unread()
    known = known_keys()["legacy"] if legacy else section.values.keys()
    given = [
        key
        for key, value in section.values.items()
        if key in known and key not in section.read and (key not in ignored or key in _PLAIN) and _set(key, value)
    ]
    unread.weigh(WEIGHTS, ((key, _shown(document, (*section.path, key))) for key in given))
    if legacy:
        moe = Section(document, "moe_config")
        if moe.values.get("expert_num", 1) != 1:
            keys = [key for key, value in moe.values.items() if _set(key, value)]
            unread.weigh(WEIGHTS, ((key, _shown(document, ("moe_config", key))) for key in keys))
        strange = section.values.get("type")
        if strange not in COMPARED:
            unread.note(f"{strange} is read as the network it is built from; its own was not compared")
    for why, path in _settings(document, section):
        unread.reason(why, _shown(document, path))
    if section.values.get("use_sliding_window") is True and section.values.get("sliding_window"):
        unread.note(_WINDOW, _shown(document, (*section.path, "sliding_window")))
    return unread


def _set(key: str, value: Any) -> bool:
    """Whether a value says something."""
    if value is None or (value is False and key not in _PLAIN):
        return False
    return value not in _PLAIN.get(key, ())


def _shown(document: Document, path: tuple[str, ...]) -> str:
    return f"{'.'.join(path)} (line {document.line(*path)})"


def _settings(document: Document, section: Section) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Settings outside and inside the model section that decide the answer by their value."""
    parallel = Section(document, "parallel").values
    mode = parallel.get("parallel_mode", 1)
    if mode in _AUTO and not isinstance(mode, bool):
        yield "MindSpore searches the layout itself; the degrees are only hints", ("parallel", "parallel_mode")
    elif mode not in _SEMI_AUTO:
        yield "not the mode in which the degrees are the layout", ("parallel", "parallel_mode")
    if parallel.get("auto_pipeline") is True:
        yield "MindSpore places the layers itself", ("parallel", "auto_pipeline")
    if Section(document, "swap_config").values.get("swap"):
        yield "activations on the host", ("swap_config", "swap")
    if "base_config" in document.root:
        yield "another file holds the rest", ("base_config",)
    layers = section.values.get("layer_types")
    if isinstance(layers, list) and set(map(str, layers)) - {"full_attention", "sliding_attention"}:
        yield "layers of other attention", (*section.path, "layer_types")
    for key, plain in (("decoder_sparse_step", (None, 1)), ("mlp_only_layers", (None, []))):
        if section.values.get(key) not in plain:
            yield "which layers have experts", (*section.path, key)
