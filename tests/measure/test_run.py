"""The parent of benchmark programs, with a made-up program in their place."""

import json
import stat
import sys
import time

import pytest

from planner.errors import CalibrationError, ValidationError
from planner.measure import raw, run
from planner.measure.run import Bench, Ranks
from planner.measure.sweep import Task

TASKS = [Task(kind="matmul", op="matmul", sizes={"m": m, "k": 4, "n": 2}) for m in (1, 2, 3)]
FACTS = {"device_target": "CPU", "device_name": "a core", "mindspore": "2.9.0", "host": "here", "cores": 2}


def program(tmp_path, body, facts=FACTS):
    """An interpreter that runs `body` for each task instead of a benchmark; `say` writes a result line."""
    path = tmp_path / "python"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, time\n"
        "job = json.load(open(sys.argv[-1]))\n"
        "def say(line):\n"
        "    with open(job['results'], 'a') as file: file.write(json.dumps(line) + '\\n')\n"
        f"facts = {facts!r}\n"
        "if facts: say({'facts': facts})\n"
        "for task in job['tasks']:\n"
        "    say({'id': task['id'], 'begun': True})\n"
        "    times = {'best_s': 1e-3 * task['sizes']['m'], 'median_s': 4e-3, 'repeats': 5, 'load': 0.0, 'mark': ''}\n"
        + "".join(f"    {line}\n" for line in body.splitlines())
    )
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def bench(tmp_path, body="say({'id': task['id'], **times})", **options):
    return Bench(python=program(tmp_path, body, **options), device="CPU", csv=tmp_path / "mine.csv")


def test_results_are_kept_as_they_come(tmp_path):
    seen = []
    one = bench(tmp_path)
    told = Bench(python=one.python, device="CPU", csv=one.csv, progress=lambda *words: seen.append(words))
    rows = run.measure(told, TASKS, 30.0)
    assert [point.best_s for point in raw.points(rows, "")] == [1e-3, 2e-3, 3e-3]
    assert [words[1:] for words in seen] == [(0, 3), (1, 3), (2, 3)]
    assert raw.read(one.csv)[2].sizes == TASKS[2].sizes


def test_a_second_run_measures_only_what_is_missing(tmp_path):
    run.measure(bench(tmp_path), TASKS[:2], 30.0)
    rows = run.measure(bench(tmp_path, "assert task['sizes']['m'] == 3\nsay({'id': task['id'], **times})"), TASKS, 30.0)
    assert len(rows) == 3


def test_noisy_points_are_repeated(tmp_path):
    body = "times['mark'] = 'noisy' if task['sizes']['m'] == 2 else ''\nsay({'id': task['id'], **times})"
    rows = run.measure(bench(tmp_path, body), TASKS, 30.0)
    assert [row.sizes["m"] for row in rows] == [1, 2, 3, *[2] * (run.ATTEMPTS - 1)]


def test_a_task_that_kills_the_program_is_listed_and_the_rest_measured(tmp_path):
    body = "if task['sizes']['m'] == 2: os._exit(139)\nsay({'id': task['id'], **times})"
    rows = run.measure(bench(tmp_path, body), [TASKS[1], *TASKS[::2]], 30.0)
    assert [(row.sizes["m"], row.unsupported) for row in rows if row.unsupported] == [
        (2, "the program ended with status 139")
    ]


def test_a_task_that_hangs_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SILENCE_S", 0.5)
    rows = run.measure(bench(tmp_path, "time.sleep(60)"), TASKS[:1], 1.0)
    assert "no answer" in rows[0].unsupported


def test_a_program_that_does_not_start(tmp_path):
    with pytest.raises(ValidationError, match="ended with status 1: ImportError: no such thing"):
        run.measure(bench(tmp_path, "raise ImportError('no such thing')", facts={}), TASKS, 30.0)


def test_measurements_of_another_device_are_not_mixed(tmp_path):
    run.measure(bench(tmp_path), TASKS[:1], 30.0)
    with pytest.raises(CalibrationError, match="was measured with mindspore '2.9.0', not '2.10.0'"):
        run.measure(bench(tmp_path, facts={**FACTS, "mindspore": "2.10.0"}), TASKS, 30.0)


def test_a_rank_that_dies_is_named_and_nothing_is_left_running(tmp_path):
    body = (
        "pid = os.spawnv(os.P_NOWAIT, '/bin/sh', ['sh', '-c', 'exit 0'])\n"
        "open(os.path.join(job['folder'], 'rank_1.pid'), 'w').write(str(pid))\n"
        "import subprocess\n"
        "wait = [sys.executable, '-c', 'import time; time.sleep(60)', job['folder']]\n"
        "rank = subprocess.Popen(wait, start_new_session=True).pid  # as msrun starts its workers\n"
        "open(os.path.join(job['folder'], 'rank_0.pid'), 'w').write(str(rank))\n"
        f"open({str(tmp_path / 'rank')!r}, 'w').write(str(rank))\n"
        f"open({str(tmp_path / 'parent')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    started = time.monotonic()
    with pytest.raises(ValidationError, match="rank 1 died while 'graph matmul float32 k=4 m=1 n=2' was measured"):
        run.measure(bench(tmp_path, body), TASKS, 30.0, Ranks(ranks=2))
    assert time.monotonic() - started < 25.0
    for name in ("parent", "rank"):
        assert not run.is_alive(int((tmp_path / name).read_text())), name


def test_ranks_are_given_all_tasks_and_told_which_are_left(tmp_path):
    body = f"open({str(tmp_path / 'job')!r}, 'w').write(json.dumps(job))\nsay({{'id': task['id'], **times}})"
    run.measure(bench(tmp_path), TASKS[:1], 30.0)
    run.measure(bench(tmp_path, body), TASKS, 5.0, Ranks(ranks=2))
    job = json.loads((tmp_path / "job").read_text())
    assert ([task["id"] for task in job["tasks"]], job["wanted"]) == (
        [t.key for t in TASKS],
        [t.key for t in TASKS[1:]],
    )


def test_a_busy_port_is_refused():
    import socket

    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        with pytest.raises(CalibrationError, match="cannot be used.*choose another with --port"):
            run.check_port(busy.getsockname()[1])
    run.check_port(run.free_port())


def test_no_mindspore_says_which_command_installs_it(tmp_path):
    empty = tmp_path / "python"
    empty.write_text("#!/bin/sh\nexit 1\n")
    empty.chmod(0o755)
    with pytest.raises(ValidationError, match=r"pip install mindspore==2\.9\.0"):
        run.find_python(empty)
    with pytest.raises(ValidationError, match="does not run"):
        run.find_python(tmp_path / "nothing")
    assert run.find_device("CPU") == "CPU"
