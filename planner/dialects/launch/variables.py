"""Environment variables that launch scripts set: names that nobody reads, values that are refused or wait for ever."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

from planner.dialects.findings import Finding, meant
from planner.dialects.text.shell_read import Word

#: Keys of MS_ALLOC_CONF in MindSpore's list of environment variables.
_ALLOCATOR: Final = (
    "enable_vmm", "vmm_align_size", "memory_tracker", "memory_tracker_path", "acl_allocator", "somas_whole_block",
    "simple_tracker",
)  # fmt: skip
#: Seconds that HCCL takes for HCCL_CONNECT_TIMEOUT.
_CONNECT_S: Final = (120, 7200)
#: Variables of HCCL, CANN, torch_npu, CUDA and NCCL that scripts of training jobs set (CANN's, PyTorch's and NVIDIA's
#: lists of environment variables); names of other families are not looked at.
VARIABLES: Final = frozenset(
    "HCCL_ALGO HCCL_BUFFSIZE HCCL_CONNECT_TIMEOUT HCCL_CONNECTION_TIMEOUT HCCL_DETERMINISTIC HCCL_DFS_CONFIG "
    "HCCL_DIAGNOSE_ENABLE HCCL_ENTRY_LOG_ENABLE HCCL_EXEC_TIMEOUT HCCL_IF_BASE_PORT HCCL_IF_IP HCCL_INTER_HCCS_DISABLE "
    "HCCL_INTRA_PCIE_ENABLE HCCL_INTRA_ROCE_ENABLE HCCL_LOGIC_SUPERPOD_ID HCCL_MULTI_QP_THRESHOLD "
    "HCCL_NPU_SOCKET_PORT_RANGE HCCL_HOST_SOCKET_PORT_RANGE HCCL_OP_BASE_FFTS_MODE_ENABLE HCCL_OP_EXPANSION_MODE "
    "HCCL_OP_RETRY_ENABLE HCCL_OP_RETRY_PARAMS HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT HCCL_RDMA_QP_PORT_CONFIG_PATH "
    "HCCL_RDMA_QPS_PER_CONNECTION HCCL_RDMA_RETRY_CNT HCCL_RDMA_SL HCCL_RDMA_TC HCCL_RDMA_TIMEOUT HCCL_SOCKET_FAMILY "
    "HCCL_SOCKET_IFNAME HCCL_WHITELIST_DISABLE HCCL_WHITELIST_FILE HCCL_ASYNC_ERROR_HANDLING HCCL_BLOCKING_WAIT "
    "HCCL_DESYNC_DEBUG HCCL_EVENT_TIMEOUT HCCL_AUTO_TUNE HCCL_STREAM_AMPLIFICATION "
    "CUDA_DEVICE_MAX_CONNECTIONS CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING CUDA_HOME CUDA_PATH CUDA_DEVICE_ORDER "
    "CUDA_CACHE_PATH CUDA_MODULE_LOADING "
    "ASCEND_RT_VISIBLE_DEVICES ASCEND_VISIBLE_DEVICES ASCEND_LAUNCH_BLOCKING ASCEND_GLOBAL_LOG_LEVEL "
    "ASCEND_SLOG_PRINT_TO_STDOUT ASCEND_GLOBAL_EVENT_ENABLE ASCEND_PROCESS_LOG_PATH ASCEND_HOME_PATH ASCEND_OPP_PATH "
    "ASCEND_TOOLKIT_HOME ASCEND_AICPU_PATH ASCEND_CUSTOM_OPP_PATH ASCEND_MAX_OP_CACHE_SIZE ASCEND_WORK_PATH "
    "ASCEND_CACHE_PATH ASCEND_HOST_LOG_FILE_NUM "
    "NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_TIMEOUT "
    "NCCL_IB_QPS_PER_CONNECTION "
    "NCCL_IB_TC NCCL_IB_SL NCCL_SOCKET_IFNAME NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_ALGO NCCL_PROTO "
    "NCCL_NVLS_ENABLE NCCL_CUMEM_ENABLE NCCL_NET_GDR_LEVEL NCCL_TIMEOUT NCCL_BUFFSIZE NCCL_MIN_NCHANNELS "
    "NCCL_MAX_NCHANNELS NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_IB_RETRY_CNT NCCL_CROSS_NIC NCCL_TOPO_FILE "
    "NCCL_NET NCCL_AVOID_RECORD_STREAMS NCCL_LAUNCH_MODE NCCL_PXN_DISABLE NCCL_IB_CUDA_SUPPORT".split()
)
_FAMILY: Final = re.compile(r"(H?C?CL|HCC|CUDA|CUAD|ASCEND|NCCL|NCL)[A-Z]*_[A-Z0-9_]*$|H[CL]{2,4}_")


def environment(found: list[Word], source: str) -> Iterator[Finding]:
    """Faults of the environment variables that a script sets."""
    mindspore = any(w.text.rsplit("/", 1)[-1] in ("msrun", "run_mindformer.py") for w in found)
    for word in found:
        if mindspore and word.text.startswith("PYTORCH_NPU_ALLOC_CONF="):
            yield Finding(
                file=source,
                line=word.line,
                rule="torch-variable",
                why="PYTORCH_NPU_ALLOC_CONF belongs to torch_npu; MindSpore does not read it.",
                fix="Use MS_ALLOC_CONF, for instance enable_vmm:true.",
            )
        yield from _variable(word, source)


def _variable(word: Word, source: str) -> Iterator[Finding]:
    """Values of environment variables, where the script says them."""
    name, _, value = word.text.partition("=")
    if not value or "$" in value:
        return
    for rule, why, fix in (*_hccl(name, value), *_allocator(name, value), *_names(name)):
        yield Finding(file=source, line=word.line, rule=rule, why=why, fix=fix)


def _hccl(name: str, value: str) -> Iterator[tuple[str, str, str]]:
    whole = value.isdecimal() and value.isascii()
    if name == "HCCL_BUFFSIZE" and not (whole and int(value) >= 1):
        yield "hccl-buffer", "HCCL_BUFFSIZE is a whole number of MB, at least 1.", "Use 200."
    if name not in ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"):
        return
    if not whole:
        yield "hccl-timeout", f"{name} {value} is no whole number of seconds.", "Write digits alone, e.g. 7200."
    elif name == "HCCL_EXEC_TIMEOUT" and int(value) == 0:
        why = "with HCCL_EXEC_TIMEOUT 0 the others wait for a dead rank without end."
        yield "hccl-timeout", why, "Write seconds, e.g. 7200."
    elif name == "HCCL_CONNECT_TIMEOUT" and not _CONNECT_S[0] <= int(value) <= _CONNECT_S[1]:
        why = f"HCCL_CONNECT_TIMEOUT {value} is out of range."
        yield "hccl-timeout", why, f"{_CONNECT_S[0]} to {_CONNECT_S[1]} seconds."


def _allocator(name: str, value: str) -> Iterator[tuple[str, str, str]]:
    if name != "MS_ALLOC_CONF":
        return
    for key in (part.partition(":")[0].strip() for part in value.split(",")):
        near = difflib.get_close_matches(key, _ALLOCATOR, 1, 0.8)
        if key not in _ALLOCATOR and near:
            yield "allocator", f"MS_ALLOC_CONF has no {key}.", f"Did you mean {near[0]}?"


def _names(name: str) -> Iterator[tuple[str, str, str]]:
    real = meant(name, VARIABLES) if _FAMILY.match(name) and name not in VARIABLES else ""
    if real:
        yield "variable-name", f"nothing reads a variable {name}.", f"Did you mean {real}?"
