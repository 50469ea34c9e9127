"""How fast the search is: ``python -m benchmarks.search``.

Process time counts every thread and, for a command, Python's start and all imports.  Rates are candidates examined
(legality, memory with the least recompute, step time, ranking, balance of the finalists) per second of process time of
one core.  ``--markdown`` prints the table of docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One job to search for, and the process time it may take [s]."""

    name: str
    model: str
    cards: int
    batch: int
    seq: int = 4096
    budget_s: float = 0.0


CASES = (
    Case("70B dense", "Llama-3.1-70B", 64, 256, budget_s=1.0),
    Case("70B dense, 32k tokens", "Llama-3.1-70B", 64, 64, seq=32_768, budget_s=3.0),
    Case("671B MoE", "DeepSeek-V3", 1024, 8192, budget_s=3.0),
    Case("1T MoE", "Kimi-K2", 16_384, 16_384, budget_s=15.0),
)


def measure(case: Case, repeat: int) -> dict[str, float]:
    """Best of several runs inside this process: imports and files are warm."""
    from planner.cluster.load import calibration, hardware
    from planner.cluster.records import Cluster
    from planner.model.load import find
    from planner.model.records import Workload
    from planner.search.suggest import Request, search

    chip = hardware("910b2")
    request = Request(
        model=find(case.model),
        workload=Workload(seq=case.seq, global_batch=case.batch),
        cluster=Cluster(hardware=chip, devices=case.cards),
        calibration=calibration(chip, "mindformers"),
    )
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        result = search(request)
        best = min(best, time.process_time() - begin)
    legal = result.fitting + result.removed["memory"]
    return {
        "examined": result.examined,
        "legal": legal,
        "fitting": result.fitting,
        "search_s": best,
        "per_s": result.examined / best,
        "legal_per_s": legal / best,
        "step_s": float(result.estimates.step_s[0]),
    }


def process(case: Case) -> tuple[float, float]:
    """Process time [s] and peak memory [bytes] of a fresh interpreter that answers the case once; best of three."""
    code = f"from benchmarks.search import CASES, measure; measure(CASES[{CASES.index(case)}], 1)"
    return min(_spent([sys.executable, "-c", code]) for _ in range(3))


def command() -> float:
    """Process time of the main command [s], start and imports included; the best of four."""
    line = [sys.executable, "-c", "from planner.cli.main import main; main()"]
    line += ["suggest", "--params", "70B", "--cards", "64"]
    return min(_spent(line) for _ in range(4))[0]


def _spent(line: list[str]) -> tuple[float, float]:
    """Process time [s] and peak memory [bytes] of a command, byte code cached as after an installation."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    cache = Path(tempfile.gettempdir()) / "planner-byte-code"
    environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(cache)}
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(line)} ended with exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0


def main() -> None:
    """Measure every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each search, the best counts (default 5)")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    arguments = parser.parse_args()
    import numpy as np

    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}, {os.cpu_count()} cores")
    head = (
        "job",
        "cards",
        "examined",
        "legal",
        "fitting",
        "search s",
        "examined/s",
        "process s",
        "budget s",
        "peak MiB",
    )
    rows, examined, seconds = [], 0.0, 0.0
    for case in CASES:
        spent, peak = process(case)
        found = measure(case, arguments.repeat)
        examined, seconds = examined + found["examined"], seconds + found["search_s"]
        rows.append((
            f"{case.name} ({case.model})", f"{case.cards:,}", f"{found['examined']:,}", f"{found['legal']:,}",
            f"{found['fitting']:,}", f"{found['search_s']:.2f}", f"{found['per_s']:,.0f}", f"{spent:.2f}",
            f"{case.budget_s:g}", f"{peak / 2**20:.0f}",
        ))  # fmt: skip
    for row in (head, *([("---",) * len(head)] if arguments.markdown else []), *rows):
        print("| " + " | ".join(row) + " |" if arguments.markdown else "  ".join(row))
    print(f"\nall jobs: {examined / seconds:,.0f} candidates a second and core")
    print(f"planner suggest --params 70B --cards 64: {command():.2f} s of process time")


if __name__ == "__main__":
    main()
