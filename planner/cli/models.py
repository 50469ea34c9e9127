"""`planner models`: the catalogue, or one model in detail."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import OutputOptions, spread
from planner.cli.output import print_document, print_lines

EPILOG = """Examples:

planner models

planner models qwen3

planner models deepseek-v3 --json"""


@spread(epilog=EPILOG)
def models(
    output: OutputOptions,
    pattern: Annotated[str, typer.Argument(help="Only names that hold this text.", metavar="[TEXT]")] = "",
) -> None:
    """List published models that --model knows, with exact parameter counts."""
    from planner.errors import SpecError
    from planner.model.catalogue import normalised
    from planner.model.load import catalogue, find_entry
    from planner.report.catalogues import model_lines
    from planner.report.documents import models_document

    key = normalised(pattern)
    found = [
        entry for entry in catalogue() if any(key in normalised(name) for name in (entry.name, *entry.aliases, ""))
    ]
    if not found:
        find_entry(pattern)  # raises with the nearest names
        raise SpecError(f"no model holds '{pattern}'.")
    if output.json:
        print_document(models_document(found))
    else:
        print_lines(model_lines(found))
