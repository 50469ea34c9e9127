import json
import sqlite3

import pytest

from planner.errors import SpecError
from planner.observe.read import read


@pytest.fixture
def analysis(data, tmp_path):
    """analysis.db of rank 2, from the rows that the sample keeps of each table."""
    tables = json.loads((data / "a_torchnpu_pp2_dp2/rank_2_analysis_db_tables_head.json").read_text())
    path = tmp_path / "analysis.db"
    connection = sqlite3.connect(path)
    for name, table in tables.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(table['columns'])})")
        marks = ", ".join("?" * len(table["columns"]))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", table["rows"])
    connection.commit()
    connection.close()
    return path


def test_the_same_figures_as_the_text_files(analysis, data):
    text = read(data / "a_torchnpu_pp2_dp2/rank_2_ascend_pt")
    found = read(analysis)
    assert found.steps[0].compute_s == pytest.approx(text.steps[0].compute_s, rel=1e-6)
    assert found.steps[0].invariant_frac < 1e-5
    ops = {(op.name, op.group): op for op in text.communication}
    for op in found.communication:
        assert op.elapse_s == pytest.approx(ops[op.name, op.group].elapse_s, rel=1e-6)
    send = found.communication[0]
    assert (send.op, send.link, send.size_bytes) == ("sendrecv", "HCCS", 8388608.0)


def test_the_unit_is_told_by_the_operators(analysis):
    assert "in us, although documented in ms" in read(analysis).notes[0]
    connection = sqlite3.connect(analysis)
    connection.execute(
        "UPDATE StepTraceTime SET computing = computing / 1000, free = free / 1000, stage = stage / 1000, "
        "communication_not_overlapped = communication_not_overlapped / 1000"
    )
    connection.commit()
    connection.close()
    found = read(analysis)
    assert found.notes == ()
    assert found.steps[0].compute_s == pytest.approx(0.40044826)


def test_damaged_and_foreign_databases(analysis, tmp_path):
    (tmp_path / "cut.db").write_bytes(analysis.read_bytes()[:5000])
    with pytest.raises(SpecError, match="damaged database"):
        read(tmp_path / "cut.db")
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE songs (name)")
    connection.commit()
    connection.close()
    with pytest.raises(SpecError, match="a database without StepTraceTime"):
        read(tmp_path / "other.db")
