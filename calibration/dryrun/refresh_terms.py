"""Work out the terms of grid.csv again from kept tracker files, after `planner.validate.compiler.tracker` has changed.

python calibration/dryrun/refresh_terms.py FOLDER      (the folder given to run_grid.py --keep)
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from run_grid import COLUMNS, GRID  # noqa: E402

from planner.validate.compiler.tracker import read_peak, terms  # noqa: E402


def main(kept: Path) -> None:
    """Rewrite the term columns of every row whose files are there."""
    with GRID.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        folder = kept / row["id"] / f"stage-{row['stage']}"
        if folder.exists():
            row.update({f"{name}_bytes": str(value) for name, value in terms(read_peak(folder)).items()})
    with GRID.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
