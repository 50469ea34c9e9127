"""The strategy table: padding, rows and records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.strategies import Strategies, Strategy, sum_stages
from planner.errors import SpecError


def strategy(pp: int = 2, vpp: int = 1, **changes: object) -> Strategy:
    fields = {
        "dp": 2, "tp": 4, "pp": pp, "vpp": vpp, "micro_batches": 8, "layers": ((3,) * pp,) * vpp,
        "recompute_full": (1,) * pp, "recompute_selective": (0,) * pp,
    }  # fmt: skip
    return Strategy(**{**fields, **changes})  # type: ignore[arg-type]


def test_devices_are_the_product_of_degrees() -> None:
    assert strategy(pp=3, cp=5).devices == 2 * 4 * 3 * 5


def test_layers_per_stage_add_chunks() -> None:
    assert strategy(pp=2, vpp=2, layers=((1, 2), (3, 4))).layers_per_stage == (4, 6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dp": 0}, "dp=0"),
        ({"micro_batches": -1}, "micro_batches=-1"),
        ({"cp_algorithm": "star"}, "legal: ring, ulysses, hybrid"),
        ({"schedule": "dualpipe"}, "legal: gpipe, 1f1b"),
        ({"layers": ((1, 2, 3),)}, "1 chunk(s) of 2 numbers"),
        ({"recompute_full": (1,)}, "recompute_full needs 2 numbers"),
    ],
)
def test_wrong_records_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        strategy(**changes)
    assert said in str(caught.value)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=6))
def test_a_table_gives_back_its_records(shapes: list[tuple[int, int]]) -> None:
    records = [strategy(pp=pp, vpp=vpp) for pp, vpp in shapes]
    table = Strategies.of(records)
    assert [table.row(i) for i in range(len(table))] == records
    assert table.stage_mask_CS.sum(axis=1).tolist() == [pp for pp, _ in shapes]


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=40), st.integers(0, 90))
def test_sums_do_not_depend_on_padding(values: list[float], padding: int) -> None:
    row = np.array([values])
    assert sum_stages(row)[0] == sum_stages(np.pad(row, ((0, 0), (0, padding))))[0]
