"""Run the DryRun grid and append to grid.csv after every point; points already recorded are skipped.

    python calibration/dryrun/run_grid.py --python INTERPRETER [--jobs 1] [--only TEXT] [--limit N] [--list]

INTERPRETER has mindspore 2.9.0 and mindformers 1.9.0; this script itself needs the planner's own environment. A layout
that MindFormers refuses goes to failures.csv with its message and is not tried again (--retry tries it again).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from configs import Point, config  # noqa: E402
from points import all_points  # noqa: E402

from planner.errors import ValidationError  # noqa: E402
from planner.validate.compiler.dryrun import DryRunSettings, StageResult, dryrun  # noqa: E402
from planner.validate.compiler.tracker import TERMS  # noqa: E402

GRID = HERE / "grid.csv"
FAILURES = HERE / "failures.csv"
STOP = HERE / "stop"
"""While this file exists no further point is started."""
_SHAPE = [name for name in Point.__dataclass_fields__ if name != "family"]
_MEASURED = ["rank", "peak_bytes", "static_bytes", "peak_with_fragments_bytes", "seconds", "mindspore", "mindformers"]
_TERMS = [f"{name}_bytes" for name in TERMS]
COLUMNS = ["id", "family", "dialect", *_SHAPE, *_MEASURED, *_TERMS, "peak_operator", "date", "note"]
FAILURE_COLUMNS = ["id", "family", "dialect", *_SHAPE, "message", "date"]
_WRITING = threading.Lock()


def point_id(point: Point) -> str:
    """Short stable name of a point: family and a hash of the fields that are not at their default."""
    text = json.dumps(_changed(point), sort_keys=True)
    return f"{point.family}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def main() -> None:
    """Run what is missing."""
    options = _arguments()
    todo = list(_missing(options))
    print(f"{len(todo)} points to run", flush=True)  # noqa: T201
    if options.list:
        for point in todo:
            print(point_id(point), _changes(point))  # noqa: T201
        return
    settings = DryRunSettings(
        python=options.python,
        timeout_s=options.timeout_s,
        exact=True,
        use_cache=False,
        cache=options.cache,
        keep=options.keep,
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda point: _measure(point, settings), todo))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--only", default="", help="run points whose id or changes hold this text")
    parser.add_argument("--timeout-s", type=float, default=1200.0)
    parser.add_argument("--keep", type=Path, default=None, help="folder for the logs and tracker files of every point")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--retry", action="store_true")
    return parser.parse_args()


def _missing(options: argparse.Namespace) -> Iterator[Point]:
    done = _recorded(GRID) | (set() if options.retry else _recorded(FAILURES))
    points = [point for point in all_points() if point_id(point) not in done]
    chosen = [point for point in points if options.only in f"{point_id(point)} {_changes(point)}"]
    yield from chosen[: options.limit]


def _recorded(path: Path) -> set[str]:
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {row["id"] for row in csv.DictReader(file)}


def _changes(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in _changed(point).items())


def _changed(point: Point) -> dict[str, Any]:
    """Fields that differ from the defaults."""
    default = asdict(Point(family=point.family))
    return {name: value for name, value in asdict(point).items() if value != default[name]}


def _measure(point: Point, settings: DryRunSettings) -> None:
    if STOP.exists():
        return
    try:
        keep = settings.keep and settings.keep / point_id(point)
        result = dryrun(config(point), [point.stage], replace(settings, keep=keep)).stages[0]
    except ValidationError as error:
        _append(FAILURES, FAILURE_COLUMNS, _row(point) | {"message": " ".join(str(error).split())[:500]})
        print(f"FAILED {point_id(point)} {_changes(point)}: {error}", flush=True)  # noqa: T201
        return
    _append(GRID, COLUMNS, _row(point) | _figures(result))
    print(f"{point_id(point)} {_changes(point)}: {result.peak_bytes / 2**20:.1f} MiB, {result.seconds} s", flush=True)  # noqa: T201


def _row(point: Point) -> dict[str, Any]:
    row = {
        name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in asdict(point).items()
    }
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    return row | {"id": point_id(point), "dialect": point.dialect, "date": today}


def _figures(result: StageResult) -> dict[str, Any]:
    measured = {name: value for name, value in asdict(result).items() if name in _MEASURED}
    by_term = {f"{name}_bytes": value for name, value in result.terms.items()}
    return measured | by_term | {"peak_operator": result.peak_operator, "note": ""}


def _append(path: Path, columns: list[str], row: dict[str, Any]) -> None:
    with _WRITING:
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
