import json
import os
import random
from dataclasses import astuple

import pytest

from planner.errors import PlannerError, SpecError
from planner.observe.formats import FORMATS, recognised
from planner.observe.read import read
from planner.observe.tables import header
from planner.observe.text import File


def test_every_sample_is_read_by_one_format_alone(data):
    """No sample may fit two formats, or the order of the table would decide what it means."""
    kinds = (".csv", ".json", ".txt", ".log", ".gz")
    files = [File(path) for path in sorted(data.rglob("*")) if path.suffix in kinds and "tables_head" not in path.name]
    seen = set()
    for file in files:
        fits = [form.name for form in FORMATS if form.fits(file, frozenset(header(file)))]
        assert len(fits) == 1, (file.path.name, fits)
        assert recognised(file).name == fits[0]
        seen.add(fits[0])
    assert len(seen) >= 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (bytes(range(256)) * 20, "is no text"),
        (b"hello\nworld\n", r"unknown format \(first line 'hello'\)\. Known: "),
        (b"Kernel Name,Calls\nx,1\n", "nearest is task_time.csv, of which it lacks kernel_type, task_time"),
        (b"a,b\nx,1\n", "unknown format"),
        (b"Step ID,Name,Type,Duration(us)\n1,a,b,2\n", r"nearest is kernel_details.csv .* lacks start_time\(us\)"),
        (b'{"a": [1, 2', "unknown format"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read(tmp_path / "file")


def test_paths_that_are_not_there(tmp_path):
    with pytest.raises(SpecError, match="does not exist"):
        read(tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path):
    (tmp_path / "a.csv").write_text("m,k,n,time_us\n1,1,1,1\n")
    (tmp_path / "a.csv").chmod(0)
    with pytest.raises(SpecError, match="cannot be read: Permission denied"):
        read(tmp_path / "a.csv")


def samples(data):
    kinds = (".csv", ".json", ".txt", ".log")
    return [path for path in sorted(data.rglob("*")) if path.suffix in kinds and "tables_head" not in path.name]


def outcome(path):
    """What reading gives: records, or the error; anything but a PlannerError is a fault of ours."""
    try:
        found = read(path)
    except PlannerError as error:
        return str(error)
    runs = [astuple(run)[3:] for run in found.runs]
    return repr((found.points, found.steps, found.communication, found.kernels, found.pipelines, runs))


def test_line_ends_of_windows_change_nothing(data, tmp_path):
    for path in samples(data):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert outcome(copy).replace(str(tmp_path), "") == outcome(path).replace(str(path.parent), "")


def test_files_cut_anywhere_are_read_or_refused(data, tmp_path):
    generator = random.Random(12)
    for path in samples(data):
        content = path.read_bytes()
        for _ in range(4):
            at = generator.randrange(len(content))
            for part in (content[:at], content[at:]):
                (tmp_path / path.name).write_bytes(part)
                outcome(tmp_path / path.name)


def mutated(value, generator):
    """A JSON value with one part of a wrong kind."""
    if isinstance(value, dict) and value and generator.random() < 0.93:
        key = generator.choice(sorted(value))
        return {**value, key: mutated(value[key], generator)}
    if isinstance(value, list) and value and generator.random() < 0.93:
        at = generator.randrange(len(value))
        return [*value[:at], mutated(value[at], generator), *value[at + 1 :]]
    return generator.choice([None, [], {}, "x", -1, 1.5, True, [1, 2], {"a": 1}])


def test_json_with_values_of_a_wrong_kind_is_read_or_refused(data, tmp_path):
    generator = random.Random(3)
    for path in (path for path in samples(data) if path.suffix == ".json" and path.stat().st_size < 30_000):
        value = json.loads(path.read_text())
        for _ in range(15):
            (tmp_path / path.name).write_text(json.dumps(mutated(value, generator)))
            outcome(tmp_path / path.name)
