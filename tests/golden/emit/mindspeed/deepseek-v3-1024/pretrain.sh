#!/usr/bin/env bash
# DeepSeek-V3: pre-training on 1024 x 910B2, sequence 8192, global batch 512
# dp 16 x tp 8 x pp 8 x cp 1 = 1024 devices; ep 64, vpp 2, 32 micro-batches of 1
# Written by planner 0.1.0.
# MindSpeed-LLM 26.0 (Megatron-LM core_v0.12.1).  Run from its root, or name it in MINDSPEED_LLM.
# Usage: bash pretrain.sh on every node, with NODE_RANK set (0 is the master)
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# MB; one micro-batch of hidden states; each communicator takes 2 x 112 MB outside the pool
export HCCL_BUFFSIZE="${HCCL_BUFFSIZE:-112}"
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
  || (( 10#$node_rank >= 128 )); then
  echo "pretrain.sh: set NODE_RANK (0 to 127) and MASTER_ADDR (address of node 0)" >&2; exit 2
fi
node_rank=$(( 10#$node_rank ))
nodes=(--nproc_per_node 8 --nnodes 128 --node_rank "$node_rank"
  --master_addr "$master_addr" --master_port "${MASTER_PORT:-8118}")

default=/path/to/dataset  # <-- PLACEHOLDER
data_path="${DATA_PATH:-$default}"
default=/path/to/tokenizer  # <-- PLACEHOLDER
tokenizer="${TOKENIZER_PATH:-$default}"

parallel=(
  --tensor-model-parallel-size 8  # 16 attention heads on a device
  --pipeline-model-parallel-size 8  # 1024 devices leave dp 16
  --num-layers-per-virtual-pipeline-stage 4  # 2 chunks a stage
  --noop-layers "61,62,63"  # 64 layers, 3 of them do nothing
  --sequence-parallel  # norms and residuals are split over the tensor-parallel ranks
  --expert-model-parallel-size 64  # 4 experts on a device
  --expert-tensor-parallel-size 1  # experts stay whole
  --use-distributed-optimizer  # optimizer states sharded over 16 ranks
  --overlap-grad-reduce  # gradients travel behind the backward pass
  --overlap-param-gather  # parameters travel behind the forward pass
  --swap-optimizer  # optimizer states wait in host memory between steps
  --micro-batch-size 1
  --global-batch-size 512  # 1 x dp 16 x 32 micro-batches
)

recompute=(
  --recompute-granularity full
  --recompute-method block  # the first of a stage
  --recompute-num-layers 5  # layers of each stage
  --enable-recompute-layers-per-pp-rank  # counted over all chunks of a stage
)

model=(
  --num-layers 64  # 61 and those that do nothing
  --hidden-size 7168
  --ffn-hidden-size 18432
  --num-attention-heads 128
  --seq-length 8192
  --max-position-embeddings 163840
  --padded-vocab-size 129280
  --make-vocab-size-divisible-by 1
  --normalization RMSNorm
  --norm-epsilon 1e-06  # from published deepseek_v3 configurations
  --init-method-std 0.02
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --position-embedding-type rope
  --rotary-base 10000  # from published deepseek_v3 configurations
  --use-rotary-position-embeddings
  --multi-latent-attention
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --kv-lora-rank 512
  --v-head-dim 128
  --q-lora-rank 1536
  --qk-layernorm
  --swiglu
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --num-experts 256
  --moe-router-topk 8
  --moe-ffn-hidden-size 2048
  --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall
  --moe-router-load-balancing-type seq_aux_loss
  --moe-aux-loss-coeff 0.0001
  --first-k-dense-replace 3  # dense layers in front
  --moe-layer-freq 1
  --n-shared-experts 1
  --norm-topk-prob
  --moe-router-score-function sigmoid
  --moe-router-enable-expert-bias
  --moe-router-bias-update-rate 0.001
  --moe-router-topk-scaling-factor 2.5
  --moe-router-num-groups 8
  --moe-router-group-topk 4
  --mtp-num-layers 1
  --mtp-loss-scaling-factor 0.3
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
