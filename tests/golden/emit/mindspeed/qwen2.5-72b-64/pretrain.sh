#!/usr/bin/env bash
# Qwen2.5-72B: pre-training on 64 x 910B2, sequence 8192, global batch 64
# dp 2 x tp 8 x pp 4 x cp 1 = 64 devices; ep 1, vpp 1, 32 micro-batches of 1
# Written by planner 0.1.0.
# MindSpeed-LLM 26.0 (Megatron-LM core_v0.12.1).  Run from its root, or name it in MINDSPEED_LLM.
# Usage: bash pretrain.sh on every node, with NODE_RANK set (0 is the master)
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# MB; one micro-batch of hidden states; each communicator takes 2 x 128 MB outside the pool
export HCCL_BUFFSIZE="${HCCL_BUFFSIZE:-128}"
# s; ranks compile for different times before they meet (default 120)
export HCCL_CONNECT_TIMEOUT="${HCCL_CONNECT_TIMEOUT:-7200}"
# s; a slow checkpoint must not end the job (default 1836); a dead rank is still found
export HCCL_EXEC_TIMEOUT="${HCCL_EXEC_TIMEOUT:-7200}"
# kernels start in the order in which they were queued, which Megatron's overlap relies on
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
# torch_npu's pool grows its segments, so that it does not fragment
export PYTORCH_NPU_ALLOC_CONF="${PYTORCH_NPU_ALLOC_CONF:-expandable_segments:True}"

master_addr="${MASTER_ADDR:-}"
node_rank="${NODE_RANK:-}"
if [[ ! "$master_addr" =~ ^[A-Za-z0-9][A-Za-z0-9.:-]*$ || ! "$node_rank" =~ ^[0-9]+$ ]] \
  || (( 10#$node_rank >= 8 )); then
  echo "pretrain.sh: set NODE_RANK (0 to 7) and MASTER_ADDR (address of node 0)" >&2; exit 2
fi
node_rank=$(( 10#$node_rank ))
nodes=(--nproc_per_node 8 --nnodes 8 --node_rank "$node_rank"
  --master_addr "$master_addr" --master_port "${MASTER_PORT:-8118}")

default=/path/to/dataset  # <-- PLACEHOLDER
data_path="${DATA_PATH:-$default}"
default=/path/to/tokenizer  # <-- PLACEHOLDER
tokenizer="${TOKENIZER_PATH:-$default}"

parallel=(
  --tensor-model-parallel-size 8  # 8 attention heads on a device
  --pipeline-model-parallel-size 4  # 64 devices leave dp 2
  --sequence-parallel  # norms and residuals are split over the tensor-parallel ranks
  --use-ascend-mc2  # tensor-parallel traffic travels beside the matmuls
  --use-distributed-optimizer  # optimizer states sharded over 2 ranks
  --overlap-grad-reduce  # gradients travel behind the backward pass
  --overlap-param-gather  # parameters travel behind the forward pass
  --micro-batch-size 1
  --global-batch-size 64  # 1 x dp 2 x 32 micro-batches
)

recompute=(
  --recompute-granularity full
  --recompute-method block  # the first of a stage
  --recompute-num-layers 6  # layers of each stage
)

model=(
  --num-layers 80
  --hidden-size 8192
  --ffn-hidden-size 29568
  --num-attention-heads 64
  --seq-length 8192
  --max-position-embeddings 131072
  --padded-vocab-size 152064
  --make-vocab-size-divisible-by 1
  --normalization RMSNorm
  --norm-epsilon 1e-06  # from published qwen2 configurations
  --init-method-std 0.02
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --position-embedding-type rope
  --rotary-base 1000000  # from published qwen2 configurations
  --use-rotary-position-embeddings
  --group-query-attention
  --num-query-groups 8  # key/value heads
  --add-qkv-bias
  --swiglu
  --untie-embeddings-and-output-weights
  --disable-bias-linear
)

kernels=(
  --use-mcore-models
  --no-masked-softmax-fusion
  --attention-softmax-in-fp32
  --no-gradient-accumulation-fusion
  --bf16  # parameters, with float32 copies in the optimizer
  --use-flash-attn
  --use-fused-rmsnorm
  --use-fused-swiglu
  --use-fused-rotary-pos-emb
)

training=(
  --train-iters 10000
  --lr 0.0001
  --min-lr 1e-05
  --lr-decay-style cosine
  --lr-warmup-fraction 0.01
  --weight-decay 0.1
  --clip-grad 1.0
  --adam-beta1 0.9
  --adam-beta2 0.95
  --seed 42
  --split "100,0,0"
  --log-interval 1
  --save-interval 1000
  --eval-interval 1000
  --eval-iters 0
)

exec torchrun "${nodes[@]}" "${MINDSPEED_LLM:-.}/pretrain_gpt.py" \
  "${parallel[@]}" "${recompute[@]}" "${model[@]}" "${kernels[@]}" "${training[@]}" \
  --data-path "$data_path" --tokenizer-type PretrainedFromHF --tokenizer-name-or-path "$tokenizer" \
  --save "${SAVE_DIR:-$here/checkpoints}" --distributed-backend nccl "$@"
