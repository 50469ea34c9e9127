"""The raw CSV: nothing is lost, nothing impossible is believed, a run goes on where it stopped."""

import dataclasses

import pytest

from planner.errors import CalibrationError
from planner.measure import raw
from planner.measure.raw import Facts
from planner.measure.sweep import Task

FACTS = Facts(device_target="CPU", device_name="a core", mindspore="2.9.0", host="here", cores=2)
TASK = Task(kind="matmul", op="matmul", sizes={"m": 8, "k": 4, "n": 2})
OTHER = dataclasses.replace(TASK, sizes={"m": 16, "k": 4, "n": 2})


def row(task=TASK, best=1e-3, **found):
    times = {"best_s": best, "median_s": 1.5 * best, "spread_s": 0.1 * best, "repeats": 9, "load": 0.0, "mark": ""}
    return raw.row_of("2026-12-01T00:00:00+00:00", FACTS, task.to_dict(), times | found)


def written(tmp_path, *rows):
    raw.append(tmp_path / "mine.csv", rows)
    return tmp_path / "mine.csv"


def test_rows_are_read_back(tmp_path):
    path = written(tmp_path, row())
    raw.append(path, [row(OTHER)])
    (first, second) = raw.points(raw.read(path), "mine.csv")
    assert (first.best_s, first.median_s, first.repeats, first.sizes) == (1e-3, 1.5e-3, 9, TASK.sizes)
    assert second.source == "mine.csv, line 3"


def test_the_fastest_row_of_a_task_counts_and_a_calm_one_clears_the_mark(tmp_path):
    path = written(tmp_path, row(best=3e-3), row(best=2e-3, mark="noisy"))
    (point,) = raw.points(raw.read(path), "mine.csv")
    assert (point.best_s, point.mark) == (2e-3, "")
    (doubtful,) = raw.points(raw.read(written(tmp_path / "x", row(mark="noisy"))), "mine.csv")
    assert doubtful.mark == "noisy"


def test_load_by_others_is_a_mark():
    assert (row(load=0.5).mark, row(load=0.05).mark, row(load=0.5, mark="noisy").mark) == ("loaded", "", "noisy")


def test_what_is_open_is_what_has_no_calm_answer():
    tasks = [TASK, OTHER]
    assert raw.open_tasks(tasks, [row()]) == [OTHER]
    assert raw.open_tasks(tasks, [row(mark="noisy")]) == [OTHER]
    assert raw.open_tasks(tasks, [row(mark="noisy")], attempts=2) == tasks
    assert raw.open_tasks(tasks, [row(mark="noisy"), row()], attempts=3) == [OTHER]
    assert raw.open_tasks(tasks, [row(unsupported="no kernel")]) == []  # nor at another size


def test_unsupported_operations_keep_the_devices_words(tmp_path):
    path = written(tmp_path, row(unsupported='no kernel, "at all"'))
    assert raw.unsupported(raw.read(path)) == {"graph matmul float32": 'no kernel, "at all"'}
    assert raw.points(raw.read(path), "") == ()


def test_half_a_line_of_a_killed_run_is_dropped(tmp_path):
    path = written(tmp_path, row(), row(OTHER))
    path.write_text(path.read_text()[:-30])
    assert [found.sizes for found in raw.read(path)] == [TASK.sizes]
    raw.append(path, [row(OTHER)])
    assert [found.sizes for found in raw.read(path)] == [TASK.sizes, OTHER.sizes]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (",0.001,", ",nan,", "line 2: best_s is 'nan'"),
        (",0.001,", ",-1,", "line 2: best_s is '-1'"),
        (",0.001,", ",0.1,", "not above the median"),
        (",0.001,", ",fast,", "best_s is 'fast'"),
        ("k=4", "k=four", "sizes 'k=four"),
        ("when,", "then,", "column 'when' is missing"),
    ],
)
def test_impossible_numbers_are_refused_with_their_line(tmp_path, old, new, words):
    path = written(tmp_path, row())
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CalibrationError, match=words):
        raw.read(path)


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match="cannot be written"):
        raw.append(tmp_path / "file" / "mine.csv", [row()])


def test_measurements_of_another_device_are_told_apart():
    assert "mindspore '2.10.0', not '2.9.0'" in FACTS.differs(dataclasses.replace(FACTS, mindspore="2.10.0"))
    assert FACTS.differs(dataclasses.replace(FACTS, cores=4)) == ""
