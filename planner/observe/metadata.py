"""What a profile says of itself: profiler_info_{rank}.json, profiler_metadata.json, flops_summary, communication_group.

Sources: torch_npu and MindSpore 2.9, profiler (both write parallel_group_info); Ascend/msprof-analyze
(communication_group.json); mindspore-ai/mindinsight (flops_summary: FLOPs in 1e6, FLOPS in 1e9 per second).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.errors import SpecError
from planner.observe.records import Layout, Observation
from planner.observe.text import File, whole

_DEGREES: Final = (
    ("tp", "tensor_model_parallel_size"), ("pp", "pipeline_model_parallel_size"), ("dp", "data_parallel_size"),
    ("cp", "context_parallel_size"), ("ep", "expert_model_parallel_size"),
)  # fmt: skip
_VERSIONS: Final = ("torch_npu_version", "ms_version", "cann_version", "jit_level")


def is_metadata(file: File) -> bool:
    """profiler_metadata.json."""
    return file.head.lstrip().startswith("{") and (
        '"parallel_group_info"' in file.head
        or '"distributed_args"' in file.head
        or file.name == "profiler_metadata.json"
    )


def is_communication_group(file: File) -> bool:
    """communication_group.json of msprof-analyze."""
    lists = all(re.search(rf'"{kind}"\s*:\s*\[', file.head) for kind in ("collective", "p2p"))
    return file.head.lstrip().startswith("{") and lists


def is_profiler_info(file: File) -> bool:
    """profiler_info_{rank}.json."""
    return file.head.lstrip().startswith("{") and file.name.startswith("profiler_info")


def is_flops_summary(file: File) -> bool:
    """flops_summary_{id}.json of MindSpore up to 2.4."""
    return file.head.lstrip().startswith("{") and '"FLOPS_Utilization"' in file.head


def read_metadata(file: File) -> Observation:
    """Layout and groups."""
    data = _mapping(file.json())
    arguments = _mapping(data.get("distributed_args"))
    degrees = {key: value for key, name in _DEGREES if (value := whole(arguments.get(name))) is not None}
    groups = {
        str(key): (
            _kind(str(group.get("group_name", ""))),
            tuple(int(rank) for rank in group.get("global_ranks") or ()),
        )
        for key, group in _mapping(data.get("parallel_group_info")).items()
        if isinstance(group, dict)
    }
    world = whole(arguments.get("world_size"))
    if world is None:
        world = next((len(ranks) for kind, ranks in groups.values() if kind == "world"), None)
    facts = {} if (rank := whole(arguments.get("rank"))) is None else {"rank": str(rank)}
    layout = Layout(degrees=degrees, world_size=world, groups=groups) if degrees or groups else None
    return Observation(kind="profile", source=file.path, format="profiler_metadata.json", layout=layout, facts=facts)


def read_communication_group(file: File) -> Observation:
    """Groups of a cluster: their ranks, and their kinds where the analysis knew them."""
    data = _mapping(file.json())
    groups = {}
    for group in data.get("comm_group_parallel_info") or ():
        ranks = tuple(sorted(int(rank) for rank in group.get("rank_set") or ()))
        for key in ("group_id", "group_name"):
            if group.get(key):
                groups[str(group[key])] = (_kind(str(group.get("pg_name") or "")), ranks)
    for kind in ("collective", "p2p"):
        for ranks in data.get(kind) or ():
            groups.setdefault(f"{kind} {ranks}", ("", tuple(int(rank) for rank in ranks)))
    if not groups:
        raise SpecError(f"{file.path}: no communication group in it.")
    layout = Layout(groups=groups)
    return Observation(kind="cluster summary", source=file.path, format="communication_group.json", layout=layout)


def read_profiler_info(file: File) -> Observation:
    """Rank, versions and profiling level."""
    data = _mapping(file.json())
    found = re.search(r"profiler_info_(\d+)", file.name)
    rank = found[1] if found else data.get("rank_id")
    level = re.search(r'_?profiler_level"\s*:\s*"?\w*?(Level\d|LEVEL\d|\d)\b', file.head, re.I)
    facts = {key: str(data[key]) for key in _VERSIONS if data.get(key)}
    if rank is not None and whole(str(rank)) is not None:
        facts["rank"] = str(rank)
    if level:
        facts["level"] = level[1][-1]
    return Observation(kind="profile", source=file.path, format="profiler_info.json", facts=facts)


def read_flops_summary(file: File) -> Observation:
    """FLOP of a step and utilisation, as printed."""
    data = _mapping(file.json())
    facts = {
        "flop": f"{float(data.get('FLOPs', 0.0)) * 1e6:.6g}",
        "flop_per_s": f"{float(data.get('FLOPS', 0.0)) * 1e9:.6g}",
        "utilization_percent": str(data.get("FLOPS_Utilization", "")),
    }
    return Observation(kind="profile", source=file.path, format="flops_summary.json", facts=facts)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _kind(name: str) -> str:
    """Kind of a group: torch_npu writes it, MindSpore its own group names such as ``tp-0-1-2-3``."""
    plain = name.lower()
    known = re.match(r"(default_group|dp_cp|embd|[a-z]*?(?:tp|pp|dp|cp|ep|sp|mp))(?![a-z])", plain)
    return "world" if plain in ("default_group", "hccl_world_group") else known[1] if known else plain
