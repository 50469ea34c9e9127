"""Files in the memory tracker's format, and signals as in a terminal, for the tests of this folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HEAD = (
    "start_time_stamp,end_time_stamp,device_addr,stream_id,pool_type,size,actual_used_memory,actual_peak_memory,file_name,"
    "line_num,type,producer_task,task_name,node_name,graph_name,user_tasks,last_user_task,python_stack,is_persistent,is_small,"
)
SCOPE = "Default/network-MFPipelineWithLossScaleCell/_backbone-PipelineCell/network-DataOrderWrapperCell/network-Net/"


def line(start: int, end: int, size: int, kind: str, node: str) -> str:
    """One row of memory_block.csv."""
    return f"{start},{end},0x1,0,Pool,{size},0,0,f.cc,1,{kind},0,task,{node},graph,{{}},,stack,0,0,"


def write_tracker_files(folder: Path) -> None:
    """A step that keeps a weight, its moment, two activations and, for a moment, a gradient."""
    forever = 9223372036854775807
    rows = [
        line(1, forever, 100, "Weight", "layers.0.weight"),
        line(2, forever, 100, "Weight", "adam_m.layers.0.weight"),
        line(3, forever, 200, "Weight", "accu_grads.layers.0.weight"),
        line(4, 20, 50, "Kernel", "Default/AllGather-op3"),
        line(5, 15, 1000, "Kernel", f"{SCOPE}mlp/Mul-op1"),
        line(6, 12, 1000, "Kernel", f"{SCOPE}mlp/Mul-op2"),
        line(10, 12, 500, "Kernel", f"Gradients/{SCOPE}mlp/Grad_Mul/Mul-op0"),
        line(12, 14, 1200, "Kernel", f"{SCOPE}loss-CrossEntropyLoss/Neg-op0"),
    ]
    (folder / "rank_0").mkdir()
    (folder / "rank_0/memory_block.csv").write_text("\n".join([HEAD, *rows]))
    graph = "(%5) = Mul-op1(%4), task_info: 5, attrs {}\n    (BFloat16:[4, 125]) <- (Float32:[1])\n"
    (folder / "rank_0/tracker_graph.ir").write_text(graph)


@pytest.fixture
def tracker_files() -> Callable[[Path], None]:
    """Writer of `rank_0/` into a folder."""
    return write_tracker_files


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Signals as in a terminal, for the test and what it starts; what runs behind `nohup` or `&` ignores some."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
