"""`planner diagnose` and `planner monitor`: answers, pictures, comparison with a plan, bad input."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.cli.runner import run
from tests.cli.test_answers import documented, paths

DATA = Path(__file__).parents[1] / "observe" / "data"
PROFILE = DATA / "a_torchnpu_pp2_dp2"
LOG = DATA / "h_training_logs" / "mindformers_llama2_13b_8npu.log"


def ledger(path: Path, steps: int = 60, **changes: float) -> Path:
    """Steps of 1 s, or of what ``s<step>`` says."""
    generator = np.random.default_rng(5)
    rows = [
        {"step": step, "step_s": changes.get(f"s{step}", 1.0) * (1 + 0.003 * generator.standard_normal())}
        for step in range(1, steps + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("plan") / "out"
    assert run(f"suggest --params 8B --cards 16 --hardware 910b2 --global-batch 64 --pp 2 --emit {out}").code == 0
    return out / "plan.json"


def test_diagnose_says_what_limits_and_draws_it(tmp_path: Path) -> None:
    answer = run(f"diagnose {PROFILE} --svg {tmp_path / 'ranks.svg'}")
    assert answer.code == 0
    assert "Verdict    a step takes 0.810 s; limited by too few micro-batches" in answer.lines
    assert answer.lines[-1] == f"Written   {tmp_path / 'ranks.svg'}"
    assert (tmp_path / "ranks.svg").read_text().startswith("<svg")


def test_diagnose_beside_a_plan_goes_term_by_term(plan: Path) -> None:
    body = run(f"diagnose {PROFILE} --plan {plan} --json").document
    planned = json.loads(plan.read_text())["estimate"]
    terms = {term["name"]: term for term in body["terms"]}
    assert terms["step"]["predicted_s"] == planned["step_s"]
    assert terms["step"]["observed_s"] == body["step_s"]
    shown = ("compute", "exposed communication", "bubble", "data and free")
    assert sum(terms[name]["predicted_s"] for name in shown) == pytest.approx(planned["step_s"])
    pace = max(body["ranks"], key=lambda rank: rank["compute_s"])
    assert sum(terms[name]["observed_s"] for name in shown) == pytest.approx(pace["step_s"])
    assert "Plan       faster than planned" in run(f"diagnose {PROFILE} --plan {plan}").out


def test_a_log_beside_a_plan(plan: Path, tmp_path: Path) -> None:
    high = json.loads(plan.read_text())["estimate"]["step_high_s"]
    slow = ledger(tmp_path / "slow.jsonl", **{f"s{step}": 2.0 * high for step in range(1, 61)})
    assert "slower than planned" in run(f"monitor {slow} --plan {plan}").out
    assert run(f"diagnose {slow} --plan {plan} --json").document["limit"] == "slower than planned"


def test_fields_of_both_documents_are_described(plan: Path, tmp_path: Path) -> None:
    slow = ledger(tmp_path / "l.jsonl", s30=2.0)
    commands = {
        "diagnose": (
            f"diagnose {PROFILE} --plan {plan} --json",
            f"diagnose {DATA / 'g_minddata_cpu29/data_bound'} --json",
            f"diagnose {LOG} --json",
        ),
        "monitor": (f"monitor {slow} --json", f"monitor {LOG} --json"),
    }
    for kind, several in commands.items():
        schema = f"planner/{kind}/1"
        seen = set()
        for command in several:
            body = run(command).document
            assert body["schema"] == schema
            seen |= paths(body)
        patterns = documented()["every document"] + documented()[schema]
        assert [p for p in sorted(seen) if not any(known.fullmatch(p) for known in patterns)] == []
        assert [k.pattern for k in documented()[schema] if not any(k.fullmatch(p) for p in seen)] == []


def test_monitor_of_a_quiet_run(tmp_path: Path) -> None:
    answer = run(f"monitor {ledger(tmp_path / 'quiet.jsonl')}")
    assert answer.code == 0
    assert answer.lines[-1] == "Nothing stands out."


def test_monitor_follows_a_ledger_that_grows(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l.jsonl", 30)
    more = "".join(json.dumps({"step": step, "step_s": 1.0 if step != 33 else 3.0}) + "\n" for step in range(31, 40))

    def write() -> None:
        with path.open("a") as file:
            file.write(more)

    later = threading.Timer(1.0, write)
    later.start()
    answer = run(f"monitor {path} --follow --patience 3")
    later.join()
    assert answer.code == 0
    assert "30 steps" in " ".join(answer.out.split())
    assert answer.out.count("slow step: step 33 takes 3 s") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("diagnose nothing", "nothing does not exist"),
        (f"diagnose {PROFILE} {PROFILE}", "step 13 of rank 0 is there 2 times"),
        ("diagnose {empty}", "is empty"),
        ("diagnose {text}", "unknown format"),
        (f"diagnose {DATA / 'i_hccl_test' / 'doc_sample_8npu_gib.log'}", "tells nothing of a step"),
        (f"diagnose {PROFILE} --svg ranks.png", "must end with .svg"),
        (f"diagnose {LOG} --svg {{folder}}/a.svg", "holds no steps of ranks"),
        (f"diagnose {LOG} --plan {LOG}", "mindformers_llama2_13b_8npu.log"),
        (f"monitor {PROFILE}", "holds no steps of a run"),
        (f"monitor {LOG} --follow --json", "Leave one of them out"),
        (f"monitor {LOG} --patience 3", "with --follow"),
        ("monitor {empty}", "is empty"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(tmp_path: Path, command: str, message: str) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "text").write_text("hello\nworld\n")
    files = {"empty": tmp_path / "empty", "text": tmp_path / "text", "folder": tmp_path}
    answer = run(command.format(**files))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err.replace("\n", " ")
    assert answer.err.startswith("Error: ")
    assert not (tmp_path / "a.svg").exists()
