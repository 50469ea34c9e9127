"""planner calibrate: imports, what it refuses, and the fit it shows.  Measuring itself is in tests/measure."""

import json
import shlex

import pytest

from planner.cluster.load import calibration_file, hardware
from planner.measure import raw
from planner.measure.raw import Facts
from tests.calibrate.test_device import made
from tests.cli import runner

FACTS = Facts(device_target="CPU", device_name="a made-up core", mindspore="2.9.0", host="here", cores=2)


def run(*words):
    """Answer of ``planner <words>``."""
    return runner.run(shlex.join(words))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A raw CSV of the made-up device, and tables of times."""
    rows = []
    for point in made():
        task = {"kind": point.kind, "op": point.op, "dtype": point.dtype, "mode": point.mode, "sizes": point.sizes}
        times = {"best_s": point.best_s, "median_s": point.median_s, "repeats": 9, "load": 0.0}
        rows.append(raw.row_of("2026-12-01T00:00:00+00:00", FACTS, task, times))
    rows.append(raw.row_of("", FACTS, {**task, "op": "flash", "kind": "attention"}, {"unsupported": "no kernel"}))
    raw.append(tmp_path / "raw.csv", rows)
    shapes = [(4096, k, n) for k in (2048, 4096) for n in (1024, 4096, 8192)]
    lines = [f"{m},{k},{n},{1e6 * 2 * m * k * n / 200e12:.3f}" for m, k, n in shapes]
    (tmp_path / "times.csv").write_text("\n".join(["M,K,N,time_us", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_import_of_a_raw_csv(folder):
    done = run("calibrate", "--from", "raw.csv", "--out", "mine.yaml")
    assert done.code == 0, done.err
    assert "a made-up core, MindSpore 2.9.0; profile cpu" in done.out
    assert "Not on this device: graph flash float32" in done.out
    assert "matmul_efficiency" in done.out
    own = calibration_file(folder / "mine.yaml", hardware("cpu"), "mindformers-legacy")
    assert own["matmul_efficiency"] == pytest.approx(0.5, rel=0.03)


def test_an_imported_calibration_changes_answers_and_says_what_it_is(folder):
    assert run("calibrate", "--from", "times.csv", "--hardware", "910b3", "--out", "mine.yaml").code == 0
    question = ("estimate", "--params", "7B", "--tp", "4", "--dp", "2", "--global-batch", "16", "--json")
    plain, mine = run(*question), run(*question, "--calibration", "mine.yaml")
    before, after = (json.loads(done.out) for done in (plain, mine))
    assert after["speed"]["step_s"] > 1.05 * before["speed"]["step_s"]
    assert (after["calibration"]["name"], after["calibration"]["rows"]) == ("mine", 6)
    assert after["calibration"]["constants"]["measured"] == 2
    words = run(*question[:-1], "--calibration", "mine.yaml").out
    assert "2 constants measured; calibrated: attention_efficiency" in " ".join(words.split())


def test_a_log_of_hccl_test_gives_start_and_bus_bandwidth_back(folder):
    """Made with 35 us and a bus bandwidth of 110 GB/s: n / t x 2 (p - 1) / p on 8 ranks."""
    rows = [(n, 35.0 + 1e6 * n * 1.75 / 110e9) for n in (2**20, 2**22, 2**24, 2**26, 2**28, 2**30)]
    lines = [f"{n} | {t:.3f} | {n / t / 1e3:.5f} | success" for n, t in rows]
    (folder / "all_reduce_8npu.log").write_text(
        "mpirun -n 8 ./bin/all_reduce_test -b 1M -e 1G -f 4 -p 8\n"
        "the minbytes is 1048576, maxbytes is 1073741824, iters is 20, warmup_iters is 10\n"
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n" + "\n".join(lines) + "\n"
    )
    done = run("calibrate", "--from", "all_reduce_8npu.log", "--hardware", "910b3", "--out", "hccl.yaml")
    assert "allreduce, 8 ranks: 35 us + size / 62.9 GB/s (bus 110)" in done.out, done.err


def test_show_draws_the_fit(folder):
    run("calibrate", "--from", "raw.csv", "--out", "raw.yaml")
    done = run("calibrate", "show", "raw.yaml")
    assert done.code == 0, done.err
    page = (folder / "raw.html").read_text()
    assert page.count("<svg") >= 2
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<circle") == 2 * 10  # two plots of ten matmuls
    assert "Differs" not in done.out
    text = (folder / "raw.yaml").read_text()
    (folder / "raw.yaml").write_text(text.replace("launch_s: {value: 2.0e-06", "launch_s: {value: 1.9e-06"))
    assert "Differs from a fit to its data: launch_s" in run("calibrate", "show", "raw.yaml").out


def test_show_of_a_shipped_calibration(folder):
    from planner.cluster.load import calibration, data_directory, hardware

    shipped = data_directory("calibration") / "ascend-a2-mindspeed-2.yaml"
    done = run("calibrate", "show", str(shipped), "--html", "page.html")
    assert "steps of published runs" in done.out, done.err
    rows = calibration(hardware("910b3"), "mindspeed", "2").rows
    assert (folder / "page.html").read_text().count("<circle") == 2 * rows


def test_json(folder):
    document = json.loads(run("calibrate", "--from", "raw.csv", "--json").out)
    assert document["constants"]["launch_s"]["value"] == pytest.approx(2e-6)
    assert document["fallbacks"]["dp_exposed"] == "prior"
    assert document["files"] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "TPU"], "--device 'TPU' is not known; legal: auto, CPU, Ascend"),
        (["--minutes", "0"], "--minutes '0'; legal: 0.1 to 1440"),
        (["--minutes", "soon"], "--minutes 'soon'"),
        (["--out", "mine.csv"], "must end in .yaml"),
        (["--out", "raw.csv/mine.yaml"], "is not a folder"),
        (["--from", "nothing.csv"], "no such file"),
        (["--from", "times.csv"], "say it with --hardware"),
        (["--from", "raw.csv", "--hardware", "910b3"], "no such device"),
        (["--from", "bad.csv", "--hardware", "910b3"], "bad.csv: no usable row"),
        (["--from", "fast.csv", "--hardware", "910b3"], "is the unit of 'time_s' right?"),
        (["--from", "words.txt", "--hardware", "910b3"], "words.txt"),
        (["--from", "raw.csv", "--from", "other.csv"], "calibrate devices apart"),
        (["--hosts", "nowhere"], "--hosts nowhere cannot be read"),
        (["--hosts", "hosts", "--device", "CPU"], "need a --port"),
        (["--hosts", "hosts", "--device", "CPU", "--node-rank", "2", "--port", "1"], "there are 2 hosts"),
        (["--hosts", "hosts", "--device", "CPU", "--ranks", "3", "--port", "1"], "multiples of 2"),
        (["--model", "qwen3-32b", "--tp", "7", "--device", "CPU"], "--tp 7 does not divide"),
        (["draw", "mine.yaml"], "legal: nothing, or show FILE"),
        (["show"], "legal: nothing, or show FILE"),
        (["show", "nothing.yaml"], "cannot be read"),
        (["show", "words.txt"], "is no calibration"),
    ],
)
def test_bad_input(folder, monkeypatch, arguments, words):
    from planner.measure import run as runs

    monkeypatch.setattr(runs, "find_python", lambda python: python)
    (folder / "bad.csv").write_text("m,k,n,time_us\n1,2,3,nan\n")
    (folder / "fast.csv").write_text("m,k,n,time_s\n4096,4096,4096,0.000000001\n")
    (folder / "words.txt").write_text("nothing of use\n")
    (folder / "hosts").write_text("first\nsecond\n")
    (folder / "other.csv").write_text((folder / "raw.csv").read_text().replace("2.9.0", "2.10.0"))
    done = run("calibrate", *arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert not (folder / "mine.yaml").exists()


def test_a_calibration_that_exists_is_kept(folder):
    (folder / "mine.yaml").write_text("mine")
    done = run("calibrate", "--from", "raw.csv")
    assert (done.code, "replace it with --force" in done.err) == (2, True)
    assert (folder / "mine.yaml").read_text() == "mine"
    assert run("calibrate", "--from", "raw.csv", "--force").code == 0


def test_a_folder_without_permission(folder, monkeypatch):
    from pathlib import Path

    def refuse(self, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    done = run("calibrate", "--from", "raw.csv")
    assert (done.code, "cannot be written: Permission denied" in done.err) == (2, True)
