#!/usr/bin/env bash
# MindSpore DryRun of pipeline stages, one process each: bash dryrun.sh [STAGE ...], 0 to 1
# Needs CANN and the training data; `planner dryrun` needs neither.
# Written by planner 0.1.0.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# compile for a rank of a cluster that need not exist, and count operator inputs and outputs
export MS_SIMULATION_LEVEL=1
export RANK_SIZE=16
# info level: the memory lines are printed there
export GLOG_v=1
# MindFormers networks do not compile under DryRun with runtime inlining
export MS_DEV_RUNTIME_CONF="inline:false"
task=("$here"/pretrain.py)

log_dir="${LOG_DIR:-$here/dryrun}"
mkdir -p -- "$log_dir"
stages=("$@")
if (( ${#stages[@]} == 0 )); then stages=(0 1); fi
for stage in "${stages[@]}"; do
  if [[ ! "$stage" =~ ^[0-9]+$ ]] || (( 10#$stage >= 2 )); then
    echo "dryrun.sh: there is no stage $stage; legal: 0 to 1" >&2; exit 2
  fi
  # 8 ranks hold one stage; its first rank stands for them
  export RANK_ID=$(( 10#$stage * 8 ))
  log="$log_dir/stage_$stage.log"
  if ! "${PYTHON:-python}" "${task[@]}" --steps 2 >"$log" 2>&1; then
    echo "stage $stage failed; see $log" >&2; exit 1
  fi
  echo "stage $stage (rank $RANK_ID):"
  grep -E "peak memory usage|MOC memory size" -- "$log" || true
done
