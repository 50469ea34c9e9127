"""What flags do to memory and time when they are not read.

Names and meanings from the argument modules of Megatron-LM core_r0.8.0 to main of 2026-08, MindSpeed and MindSpeed-LLM
1.0.0 to 26.1.0 and their main branches of 2026-07 and 2026-08 (``names.json`` lists every name they define).
"""

from __future__ import annotations

from typing import Final

from planner.dialects.weights import Weights

#: Layer modules of MindSpeed-LLM (``--spec``) whose layers are what the other flags say: one attention, one MLP or MoE.
PLAIN_SPECS: Final = frozenset(
    f"{name}_spec" for name in "qwen3 qwen2_moe deepseek bailing phi35_moe minimax plm hunyuan".split()
)

_LINEAR = "layers of linear attention"
_SPARSE = "sparse attention with an indexer"
_EIGHT = "types of 8 bits or less"
_ADAPTERS = "only adapters are trained"
_SWAP = "what lies on the host"
_DATA = "what the ranks of data parallelism keep"
_LAYERS = "how layers are placed on stages"
_OTHER = "another network than layers of one attention and one MLP"
_KEPT = "what is kept for the backward pass"

WEIGHTS: Final = Weights(
    answer={
        # the network
        "full-attention-interval": _LINEAR, "linear-*": _LINEAR, "mamba*": _LINEAR, "gdn-*": _LINEAR,
        "hybrid-*": _LINEAR, "is-hybrid-model": _LINEAR, "experimental-attention-variant": _LINEAR,
        "enable-dsa-indexer": _SPARSE, "index-*": _SPARSE, "indexer-*": _SPARSE, "use-sparse-flash-attn": _SPARSE,
        "use-dsa-absorb": _SPARSE, "use-moba-attn": _SPARSE, "moba-*": _SPARSE, "compress-ratios": _SPARSE,
        "kv-compress": _SPARSE, "o-groups": "low-rank output projections", "o-lora-rank": "low-rank output projections",
        "num-zero-experts": "experts that pass tokens through", "zero-expert-*": "experts that pass tokens through",
        "n-hash-layers": "experts chosen by hashing", "enable-mhc": "several residual streams",
        "hc-*": "several residual streams", "share-kvstates": "keys and values shared between layers",
        "cla-share-factor": "keys and values shared between layers", "expert-interval": "which layers have experts",
        "attention-output-gate": "a gate behind attention",
        "spec": "layers of a module of its own",
        "heterogeneous-layers-*": _OTHER, "retro-*": _OTHER, "vision-*": _OTHER, "encoder-num-layers": _OTHER,
        "decoder-num-layers": _OTHER, "apply-residual-connection-post-layernorm": _OTHER,
        # what is trained, and how
        "lora-r": _ADAPTERS, "lora-target-modules": _ADAPTERS, "qlora*": _ADAPTERS, "lu-lora-*": _ADAPTERS,
        "freeze-*": "frozen weights", "stage": "another kind of training than the next token",
        "dpo-*": "a reference model beside the trained one", "ref-model": "a reference model beside the trained one",
        "reward-model": "a reward model beside the trained one", "perform-rl-step": "reinforcement learning",
        "rl-*": "reinforcement learning",
        "qad-enable": "a teacher model beside it",
        "num-classes": _OTHER, "fp32-residual-connection": "a residual stream in float32",
        "fp8-*": _EIGHT, "fp4-*": _EIGHT, "qat-*": _EIGHT, "quant-*": _EIGHT, "first-last-layers-bf16": _EIGHT,
        "te-precision-config-file": _EIGHT, "o2-optimizer": "optimizer states of 16 bits",
        "o2-gradient": "gradients of 16 bits", "grad-reduce-in-bf16": "gradients of 16 bits",
        "use-precision-aware-optimizer": "types of gradients and states", "main-grads-dtype": "types of gradients",
        "main-params-dtype": "types of the states", "exp-avg-dtype": "types of the states",
        "exp-avg-sq-dtype": "types of the states", "use-ema": "a second copy of the weights",
        # where memory lies
        "swap-attention": _SWAP, "swap-modules": _SWAP, "smart-swap": _SWAP, "swap-layer-input": _SWAP,
        "adaptive-recompute-*": _SWAP, "adaptive-memory-optimization": _SWAP, "mla-swap-core-attn-out": _SWAP,
        "optimizer-cpu-offload": _SWAP, "optimizer-offload-fraction": _SWAP, "fine-grained-activation-*": _SWAP,
        "use-nanopipe*": _SWAP, "compress-*": _KEPT, "distribute-saved-activations": _KEPT,
        "checkpoint-activations": _KEPT, "recompute-activations": _KEPT, "ampipe-degree": _KEPT,
        "use-torch-fsdp2": _DATA, "use-megatron-fsdp": _DATA, "use-custom-fsdp": _DATA, "layerzero*": _DATA,
        "enable-zero3": _DATA, "data-parallel-sharding-strategy": _DATA, "num-distributed-optimizer-instances": _DATA,
        "distributed-optimizer-no-replica": _DATA, "virtual-data-parallel-size": _DATA, "virtual-optimizer": _DATA,
        "tp-2d": "tensor parallelism in two dimensions", "auto-parallel*": "the layout is searched when it starts",
        "pipeline-num-transformer-layers": _LAYERS,
        "automated-pipeline*": _LAYERS, "pp-schedule-list": _LAYERS,
        "standalone-embedding-stage": _LAYERS, "layerwise-disaggregated-training": _LAYERS,
        "enable-seq1f1b": "sequences cut into slices", "seq1f1b-*": "sequences cut into slices",
        "encoder-*-parallel-size": _LAYERS, "rampup-batch-size": "a batch that grows",
        "moe-expert-capacity-factor": "places for tokens at each expert",
        "moe-pad-expert-input-to-capacity": "places for tokens at each expert", "moe-dynamic-padding": _KEPT,
    },
    time={
        **dict.fromkeys(("add-output-layer-bias", "input-embeds-norm", "embed-layernorm"),
                        "a vector of parameters beside the head or the embedding that is not counted"),
        **dict.fromkeys(("interleave-sliding-window", "sliding-window*", "window-size", "window-attn-skip-freq"),
                        "attention within a window is counted over the whole sequence, so a step is faster"),
        **dict.fromkeys(("reset-attention-mask", "neat-pack", "pack", "w-pack", "padded-samples",
                         "dataloader-inter-document-masking"),
                        "packed samples: attention is counted over the whole sequence, so a step is faster"),
        **dict.fromkeys(("no-pad-to-seq-lengths", "variable-seq-lengths", "pad-to-multiple-of"),
                        "samples shorter than --seq-length: a step is faster, memory is that of the longest"),
        **dict.fromkeys(("use-ascend-mc2", "use-ascend-coc", "coc-*", "tp-comm-overlap*", "async-log-allreduce",
                         "moe-alltoall-overlap-comm", "moe-allgather-overlap-comm", "moe-fb-overlap", "use-mc2",
                         "moe-shared-expert-overlap", "dualpipev-dw-detach", "moe-*-mc2", "comm-overlap-type",
                         "enable-*overlap-*", "overlap-*", "ampipe-tp-sp-comm-overlap", "mla-up-proj-tp-overlap",
                         "use-pipe-experts", "pipe-experts-*", "moe-experts-pipeline-degree"),
                        "it hides communication behind computation"),
        **dict.fromkeys(("moe-enable-deepep", "moe-hierarchical-alltoallv", "moe-permute-fusion", "moe-zerc",
                         "enable-a2avc", "moe-deepep-num-sms"), "it exchanges tokens in another way (time)"),
        **dict.fromkeys(("recompute-in-advance", "recompute-in-bubble", "schedules-method", "optimize-*-comm",
                         "no-overlap-p2p-communication", "microbatch-group-size-per-virtual-pipeline-stage"),
                        "it orders the work of the pipeline (time)"),
        **dict.fromkeys(("cp-window-size", "cp-attention-mask-type", "adaptive-cp-*", "megatron-cp-in-bnsd",
                         "context-parallel-kv-cache-policy", "context-parallel-cache-interval",
                         "use-ulysses-allgather-kv"), "it says how blocks of the sequence go around (time)"),
        **dict.fromkeys(("recompute-norm", "recompute-norm-num-layers", "recompute-mla-up-proj", "recompute-mtp-*",
                         "moe-layer-recompute", "moe-zero-memory*", "mla-zero-memory", "moe-unperm2-mem-optim*",
                         "mtp-mem-efficient-logits", "loss-chunk-size", "output-layer-slice-num",
                         "moe-adaptive-recompute-*", "memory-fragmentation", "enable-share-memory"),
                        "less is kept than counted, so memory is at most this"),
        **dict.fromkeys(("moe-router-force-load-balancing", "fix-router", "balanced-moe-*", "print-expert-load"),
                        "it says how even experts are loaded (time)"),
        **dict.fromkeys(("cp-comm-type", "hierarchical-context-parallel-sizes"),
                        "it says how keys and values go around (time)"),
        **dict.fromkeys(("cuda-graph*", "enable-cuda-graph", "external-cuda-graph", "jit-compile", "*-deterministic",
                         "deterministic-mode", "use-deter-comp", "npu-deterministic"),
                        "it says how operators are launched (time)"),
    },
    harmless=tuple(
        (
            # numbers of the model that change no size
            "max-position-embeddings make-vocab-size-divisible-by norm-epsilon init-method* attention-dropout "
            "hidden-dropout rotary-* use-rotary-position-embeddings position-embedding-type normalization "
            "rope-* no-rope-* apply-rope-* use-rope-* use-glm-rope yarn-* beta-fast beta-slow mscale* long-* short-* "
            "longrope-* high-freq-factor low-freq-factor original-max-position-embeddings partial-rotary-factor "
            "mrope-section no-yarn-* query-pre-attn-scalar attn-logit-softcapping output-logit-softcapping "
            "scale-emb dim-model-base scale-depth *-multiplier-scale apply-layernorm-1p add-rmsnorm-offset "
            "rmsnorm-weight-in-fp32 init-norm-weight-in-fp32 input-layernorm-in-fp32 gelu-tanh geglu openai-gelu "
            "squared-relu quick-geglu compress-rope-theta swiglu-limit square-alibi-mask fill-neg-inf "
            "enable-mla-scale-* qk-l2-norm apply-query-key-layer-scaling "
            "fp16-lm-cross-entropy attention-softmax-in-fp32 softmax-type "
            # routing
            "moe-router-topk-scaling-factor moe-router-num-groups moe-router-group-topk moe-router-dtype "
            "moe-router-score-function moe-router-bias-update-rate moe-router-load-balancing-type moe-*-aux-loss-coeff "
            "moe-router-pre-softmax moe-aux-loss-coeff moe-z-loss-coeff moe-input-jitter-eps norm-topk-prob seq-aux "
            "topk-softmax-in-fp32 router-gating-in-fp32 moe-revert-type-after-topk noisy-gate-policy input-jitter "
            "moe-grouped-gemm moe-use-legacy-grouped-gemm moe-per-layer-logging moe-token-drop-policy moe-no-drop "
            "use-global-aux-loss moe-apply-probs-on-input moe-router-padding-for-fp8 mtp-loss-* topk-group n-group "
            "routed-scaling-factor moe-use-sinkhorn scoring-func moe-permutation-async-comm moe-token-dispatcher-type "
            # kernels and how they are chosen
            "use-mcore-models transformer-impl attention-backend no-masked-softmax-fusion no-*-fusion "
            "gemm-gradient-accumulation-fusion use-fused-* use-fusion-attn-v2 use-triton-* shape-order sparse-mode "
            "attention-mask-type attention-mask-on-cpu no-create-attention-mask-in-dataloader pre-tockens next-tockens "
            "mla-fa-* mla-mm-split enable-mla-absorb mla-down-proj-fusion no-enable-linear-qkv cross-entropy-* "
            "loss-compute-mode no-persist-layer-norm use-cp-send-recv-overlap optimization-level use-nd-matmul "
            "no-async-tensor-model-parallel-allreduce accumulate-allreduce-grads-in-fp32 no-use-sparse-c8-indexer "
            "no-use-gmm-fp8 use-torch-optimizer-* te-rng-tracker te-comparison-* te-gmm-mode ai-framework "
            "no-clone-scatter-output-in-embedding no-scatter-gather-tensors-in-pipeline disable-gloo-* "
            "use-cpu-initialization create-all-gather-group use-tp-pp-dp-mapping init-model-with-meta-device "
            "use-nccl-ub nccl-* hccl-* high-priority-stream-groups lazy-mpu-init distributed-* ddp-* "
            "no-align-* no-delay-grad-reduce delay-param-gather overlap-grad-reduce overlap-param-gather "
            "no-gradient-reduce-div-fusion swap-optimizer-times "
            # training
            "train-iters train-samples lr* min-lr weight-decay* *-weight-decay clip-grad adam-* sgd-* muon-* lion-* "
            "decoupled-* head-lr-mult optimizer optimizer-selection seed skip-train eval-* exit-* iterations-to-skip "
            "initial-loss-scale loss-scale* min-loss-scale hysteresis calculate-per-token-loss finetune "
            "override-opt_param-scheduler use-checkpoint-* no-initialization start-weight-decay "
            "check-for-* no-check-for-* rerun-mode error-injection-* empty-unused-memory-level manual-gc* "
            "no-manual-gc-eval decrease-batch-size-if-needed lora-alpha lora-fusion lora-ckpt-filter lora-load "
            "lora-modules-to-save lora-register-forward-hook apply-wd-to-qk-layernorm no-barrier-* "
            # files, data, logs
            "load* save* no-load-* no-save-* ckpt-* auto-detect-ckpt-format dist-ckpt-* async-save no-ckpt-* "
            "use-dist-ckpt use-persistent-ckpt-worker non-persistent-* persistent-* pretrained-checkpoint "
            "exit-on-missing-checkpoint enable-hf2mg-convert enable-mg2hf-convert hf-* model-type-hf mg-* "
            "use-mp-args-from-checkpoint-args convert-* no-shared-storage merge-file vocab-file "
            "data-path data-* train-data-path valid-data-path test-data-path *-data-path mock-data split num-workers "
            "dataloader-* no-data-sharding no-mmap-bin-files mid-level-dataset-surplus num-dataset-builder-threads "
            "tokenizer-* tiktoken-* trust-remote-code handler-name workers prompt-type* enable-thinking "
            "is-instruction-dataset is-pairwise-dataset no-shuffle shuffle-* streaming cutoff-len max-samples "
            "reset-position-ids eod-mask-loss append-eod fim-* history-turns cut-max-seqlen dataset* instruction-* "
            "map-keys json-keys overwrite-cache interleave-probs mix-strategy packing-* full-shuffle-* "
            "placeholder-token "
            "no-chat-template chat-template apply-chat-template reasoning-effort drop-thinking script-data-dir "
            "log-* no-log-* timing-* tensorboard-* wandb-* use-wandb one-logger-* no-one-logger logging-level profile* "
            "use-pytorch-profiler record-memory-history memory-snapshot-path straggler-* log-straggler otel-* "
            "disable-straggler-* enable-high-availability enable-*-repair enable-worker-reboot enable-elastic-training "
            "enable-optimizer-state-local-copy inprocess-* enable-ft-package calc-ft-timeouts ttp-* aiqos* "
            "auto-tuning* "
            "use-rules yaml-cfg adlr-* app-tag-* config-logger-dir local-rank local_rank master-* ft-* enable-msc "
            "disable-msc no-use-* npu-datadump enable-experimental mtp-after-norm "
            "skip-bias-add use-legacy-models expert-placement-* enable-*expert-placement inference-*"
        ).split()
    ),
)  # fmt: skip
