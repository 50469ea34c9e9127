"""Collectives counted by kind of group, from files in the compiler's format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import ValidationError
from planner.validate.compiler.prepare import Layout
from planner.validate.traffic.volumes import Collective, group_kind, read_collectives, volumes

# 2 stages x 2 dp x 2 cp x 2 tp: rank = ((pp * 2 + dp) * 2 + cp) * 2 + tp
LAYOUT = Layout(
    legacy=False,
    data_parallel=2,
    model_parallel=2,
    context_parallel=2,
    pipeline_stages=2,
    interleave=1,
    micro_batches=2,
    accumulation_steps=1,
    batch_size=1,
    seq=4096,
)


def collective(primitive: str, *ranks: int, size: int = 8) -> Collective:
    return Collective(name="x", primitive=primitive, ranks=ranks, input_bytes=size, output_bytes=2 * size)


@pytest.mark.parametrize(
    ("primitive", "ranks", "kind"),
    [
        ("AllGather", (0, 1), "tp"),
        ("AllGather", (0, 2), "cp"),
        ("ReduceScatter", (1, 5), "dp"),
        ("AllReduce", (0, 2, 4, 6), "dp+cp"),
        ("AllReduce", (0, 1, 4, 5), "dp+tp"),
        ("AllReduce", (0, 8), "pp"),
        ("AllReduce", (3,), "self"),
        ("Send", (0, 8), "pp"),
        ("AlltoAllV", (0, 4), "ep"),
        ("AlltoAll", (0, 2), "cp"),
    ],
)
def test_group_kind(primitive: str, ranks: tuple[int, ...], kind: str) -> None:
    assert group_kind(collective(primitive, *ranks), LAYOUT) == kind


def write(folder: Path) -> None:
    """Two gathers and a send, the graph dumped twice as MindSpore does."""
    head = (
        "index,group,comm_rank,primitive,src_rank,dest_rank,root_rank,input_shape,input_type,output_shape,output_type"
    )
    rows = [
        ('"1"', '"0 1"', '"AllGather"', '"16"', '"32"'),
        ('"2"', '"0 1"', '"AllGather"', '"16"', '"32"'),
        ('"3"', '"0 8"', '"Send"', '"100"', '""'),
    ]
    again = [(f'"{number + 10}"', *row[1:]) for number, row in enumerate(rows, start=1)]
    body = [f'{i},"g",{r},{p},"","","","()","BFloat16","()","BFloat16",{a},{b}' for i, r, p, a, b in rows + again]
    (folder / "comm_execute_order.csv").write_text("\n".join([f"{head},input_size,output_size", *body]))
    names = [f'"{number}","Default/op{number % 10}"' for number in (1, 2, 3, 11, 12, 13)]
    (folder / "execute_order.csv").write_text("\n".join(["index,node_name", *names]))


def test_volumes_of_a_rank(tmp_path: Path) -> None:
    write(tmp_path)
    found = volumes(read_collectives(tmp_path), LAYOUT)
    assert [(v.group, v.primitive, v.count, v.payload_bytes) for v in found] == [
        ("pp", "Send", 1, 100),
        ("tp", "AllGather", 2, 64),
    ]


def test_without_graphs(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="graphs=True"):
        read_collectives(tmp_path)


def test_counts_do_not_depend_on_order() -> None:
    items = [replace(collective("AllReduce", 0, 1), name=str(number)) for number in range(5)] + [
        collective("Send", 0, 8)
    ]
    assert volumes(items, LAYOUT) == volumes(items[::-1], LAYOUT)
