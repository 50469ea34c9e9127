"""Parameter counts of published models against what their publishers say, one row a model.

``exact`` is the total of the published safetensors files (selection biases of routers included unless ``trainable``),
``published`` the rounded figure, ``active`` the publisher's active parameters; some leave the embedding out
(``active_without: embedding``), some embedding and head (``tables``).
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.model import hybrids
from planner.model.fields import Fields
from planner.model.load import catalogue, from_config, from_dict, to_dict
from planner.model.operators import active_parameter_count, embedding_parameters, head_parameters, parameter_count

ROWS = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
PLANNED = [row for row in ROWS if not row.get("hybrid")]
HYBRID = [row for row in ROWS if row.get("hybrid")]
_UNIT = {"M": 10**6, "B": 10**9}


def near(count, published):
    """Equal when rounded to the published digits, give or take one of the last."""
    digits = Decimal(published[:-1])
    step = Decimal(1).scaleb(digits.as_tuple().exponent)
    return abs(Decimal(count) / _UNIT[published[-1]] - digits) <= step


def identity(row):
    return row["name"]


@pytest.mark.parametrize("row", PLANNED, ids=identity)
def test_total(row):
    model = from_config(row["config"])
    total = parameter_count(model, trainable=row.get("trainable", False), include_mtp=row.get("mtp", False))
    assert near(total, row["published"])
    assert total == row.get("exact", total)


@pytest.mark.parametrize("row", [row for row in PLANNED if "active" in row], ids=identity)
def test_active(row):
    model = from_config(row["config"])
    left_out = {
        None: 0,
        "embedding": embedding_parameters(model).total,
        "tables": embedding_parameters(model).total + head_parameters(model).total,
    }[row.get("active_without")]
    assert near(active_parameter_count(model, include_mtp=False) - left_out, row["active"])


@pytest.mark.parametrize("row", HYBRID, ids=identity)
def test_a_hybrid_is_counted_and_its_refusal_names_the_ways_out(row):
    counted = hybrids.count(Fields(row["config"], "config.json"))
    assert near(counted.total, row["published"])
    assert counted.total == row.get("exact", counted.total)
    if "active" in row:
        tables = 2 * row["config"]["vocab_size"] * row["config"]["hidden_size"] if "active_without" in row else 0
        assert near(counted.active - tables, row["active"])
    with pytest.raises(SpecError, match=f"{counted.total} trainable.*--as FAMILY.*--layers --hidden"):
        from_config(row["config"])


@pytest.mark.parametrize("row", PLANNED, ids=identity)
def test_round_trip(row):
    model = from_config(row["config"])
    assert from_dict(json.loads(json.dumps(to_dict(model)))) == model


def test_sixty_families_and_more_have_a_row():
    assert len(ROWS) >= 60
    assert all(row["source"] for row in ROWS)
    families = {row["config"]["model_type"] for row in ROWS} | {entry.config["model_type"] for entry in catalogue()}
    assert len(families) >= 60
