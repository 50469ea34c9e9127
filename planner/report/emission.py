"""What is said after files were written."""

from __future__ import annotations

from collections.abc import Sequence

from planner.dialects.records import EmitResult
from planner.report.text import wrapped

_INDENT = " " * 10


def emission_lines(results: Sequence[EmitResult]) -> list[str]:
    """Files, notes, and what is left to fill in."""
    lines: list[str] = []
    for result in results:
        folder = result.files[0].parent
        names = ", ".join(path.name for path in result.files)
        lines += wrapped(f"Written   {folder}: {names}", _INDENT)
        for note in result.notes:
            lines += wrapped(f"Note      {note}", _INDENT)
    placeholders = list(dict.fromkeys(str(p) for result in results for p in result.placeholders))
    if placeholders:
        lines.append("Fill in before the run:")
        for placeholder in placeholders:
            lines += wrapped(f"  {placeholder}", "    ")
    else:
        lines.append("Nothing is left to fill in.")
    return lines
