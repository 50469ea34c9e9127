"""Parameter counts of published models, one row a model; every row says what of it was looked up.

``checked``: ``both`` config and count were seen at ``config_source`` and ``count_source``; ``count`` the publisher's
figure was seen, the sizes were not (a slip in them shows only beyond the rounding); ``config`` the sizes were seen,
no figure was: its ``counted`` is what the planner computes, a golden number and no publisher's. ``config_source`` names
a size that was not seen among others that were.
``published`` is the figure as it was seen, ``exact`` one seen to the unit, ``active`` the publisher's active
parameters; some leave the embedding out (``active_without: embedding``) or both tables (``tables``, likewise
``published_without``). Selection biases of routers are counted unless ``trainable``.
"""

from __future__ import annotations

import json
from collections import Counter
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
PUBLISHED = [row for row in PLANNED if "published" in row]
_UNIT = {"M": 10**6, "B": 10**9, "T": 10**12}


def near(count, published):
    """Equal when rounded to the published digits, give or take one of the last."""
    digits = Decimal(published[:-1])
    step = Decimal(1).scaleb(digits.as_tuple().exponent)
    return abs(Decimal(count) / _UNIT[published[-1]] - digits) <= step


def identity(row):
    return row["name"]


def total(row):
    """Parameters by the planner, counted as the row's figure is."""
    model = from_config(row["config"])
    return parameter_count(model, trainable=row.get("trainable", False), include_mtp=row.get("mtp", False))


@pytest.mark.parametrize("row", PUBLISHED, ids=identity)
def test_the_count_is_the_published_one(row):
    model = from_config(row["config"])
    tables = embedding_parameters(model).total + head_parameters(model).total
    left_out = tables if row.get("published_without") == "tables" else 0
    assert near(total(row) - left_out, row["published"])
    assert total(row) == row.get("exact", total(row))


@pytest.mark.parametrize("row", PLANNED, ids=identity)
def test_the_count_has_not_changed(row):
    assert total(row) == row["counted"]


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
    assert counted.total == row["counted"]
    assert near(counted.total, row["published"]) if "published" in row else row["checked"] == "config"
    if "active" in row:
        tables = 2 * row["config"]["vocab_size"] * row["config"]["hidden_size"] if "active_without" in row else 0
        assert near(counted.active - tables, row["active"])
    with pytest.raises(SpecError, match=f"{counted.total} trainable.*--as FAMILY.*--layers --hidden"):
        from_config(row["config"])


@pytest.mark.parametrize("row", PLANNED, ids=identity)
def test_round_trip(row):
    model = from_config(row["config"])
    assert from_dict(json.loads(json.dumps(to_dict(model)))) == model


@pytest.mark.parametrize("row", ROWS, ids=identity)
def test_a_row_says_what_was_looked_up(row):
    assert row["checked"] in ("both", "config", "count")
    assert ("published" in row) == (row["checked"] != "config")
    assert row["config_source"].startswith("not seen") == (row["checked"] == "count")
    assert row["count_source"].startswith("not seen") == (row["checked"] == "config")
    assert "published" in row or not {"exact", "active"} & row.keys()


def test_how_many_rows_rest_on_what():
    assert Counter(row["checked"] for row in ROWS) == {"both": 40, "config": 16, "count": 18}
    assert sum("exact" in row for row in ROWS) == 6
    partly = [row for row in ROWS if "not seen" in row["config_source"] and row["checked"] != "count"]
    assert len(partly) == 4


def test_sixty_families_and_more_have_a_published_total():
    """Those of this table were looked up; the catalogue's rest on its own sources."""
    looked_up = {row["config"]["model_type"] for row in ROWS if "published" in row}
    catalogued = {entry.config["model_type"] for entry in catalogue() if entry.published}
    assert (len(looked_up), len(looked_up | catalogued)) == (43, 64)
