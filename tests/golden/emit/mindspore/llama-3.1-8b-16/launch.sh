#!/usr/bin/env bash
# Starts the 8 workers of one node; 16 devices, 2 nodes.  Usage: bash launch.sh NODE_RANK [MASTER_ADDR]
# Written by planner 0.1.0.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# MB; one micro-batch of hidden states; each communicator takes 2 x 32 MB outside the pool
export HCCL_BUFFSIZE="${HCCL_BUFFSIZE:-32}"
# s; ranks compile for different times before they meet (default 120)
export HCCL_CONNECT_TIMEOUT="${HCCL_CONNECT_TIMEOUT:-7200}"
# s; a slow checkpoint must not end the job (default 1836); a dead rank is still found
export HCCL_EXEC_TIMEOUT="${HCCL_EXEC_TIMEOUT:-7200}"
# the memory pool joins freed blocks by virtual memory, so that it does not fragment
export MS_ALLOC_CONF="${MS_ALLOC_CONF:-enable_vmm:true}"
# warnings and errors only; 1 shows memory lines too
export GLOG_v="${GLOG_v:-2}"

node_rank="${1:-${NODE_RANK:-}}"
master_addr="${2:-${MASTER_ADDR:-}}"
if [[ ! "$node_rank" =~ ^[0-9]+$ ]] || (( 10#$node_rank >= 2 )); then
  echo "launch.sh: give the node rank, 0 to 1" >&2; exit 2
fi
if [[ ! "$master_addr" =~ ^[A-Za-z0-9][A-Za-z0-9.:-]*$ ]]; then
  echo "launch.sh: set MASTER_ADDR to the address of node 0" >&2; exit 2
fi

task=("$here"/pretrain.py)

exec msrun \
  --worker_num=16 --local_worker_num=8 \
  --master_addr="$master_addr" --node_rank="$node_rank" \
  --master_port="${MASTER_PORT:-8118}" --log_dir="${LOG_DIR:-$here/log}" \
  --bind_core=True --join=True --cluster_time_out=7200 \
  "${task[@]}"
