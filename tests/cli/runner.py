"""Run the command line inside the test process."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from planner.cli.main import app


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


def run(command: str) -> Answer:
    """Answer of ``planner <command>``; an exception that leaves the command line fails the test."""
    result = CliRunner().invoke(app, shlex.split(command), prog_name="planner", catch_exceptions=False)
    return Answer(result.exit_code, result.stdout, result.stderr)
