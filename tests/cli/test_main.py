"""The group of commands: help, exit codes, errors in one place, lazy imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.cli import main
from planner.errors import PlannerError, ValidationError
from tests.cli.runner import run


def test_help_lists_every_command_and_the_exit_codes() -> None:
    answer = run("--help")
    assert answer.code == 0
    for name in main.COMMANDS:
        assert f" {name} " in answer.out
    assert "0 ok; 2 bad input; 3 nothing fits, or predicted out of memory;" in answer.out
    assert "planner suggest --params 70B --cards 64" in answer.out


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_help_of_each_command_has_a_worked_example_and_fits_80_columns(name: str) -> None:
    answer = run(f"{name} --help")
    assert answer.code == 0
    assert "Examples:" in answer.out
    assert f"planner {name}" in answer.out.split("Examples:")[1]
    assert max(map(len, answer.lines)) <= 80


def test_examples_of_the_help_are_accepted_by_the_parser() -> None:
    """Every example in an epilog names only options that exist."""
    for name in main.COMMANDS:
        command = main.load_command(name)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        examples = [line for line in command.epilog.splitlines() if line.startswith("planner ")]
        assert examples, name
        for line in examples:
            words = line.split()
            assert words[1] == name
            assert {word for word in words if word.startswith("--")} <= known, line


def test_without_arguments_the_help_is_shown_and_the_code_is_two() -> None:
    answer = run("")
    assert answer.code == 2
    assert "Usage: planner" in answer.out + answer.err


def test_version() -> None:
    from planner import __version__

    assert run("--version").lines == [f"planner {__version__}"]


def raising(error: BaseException):  # noqa: ANN201
    def search(*args: object, **kwargs: object) -> None:
        raise error

    return search


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PlannerError("tp=6 is wrong."), 2, "Error: tp=6 is wrong.\n"),
        (ValidationError("stage 3 died."), 4, "Error: stage 3 died.\n"),
        (KeyboardInterrupt(), 130, "stopped.\n"),
        (
            ZeroDivisionError("x / 0"),
            70,
            "Error: internal error (ZeroDivisionError: x / 0). This is a fault of planner, please report it; "
            "--debug shows where.\n",
        ),
    ],
)
def test_every_kind_of_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr("planner.search.suggest.search", raising(error))
    answer = run("suggest --params 8B --cards 8")
    assert (answer.code, answer.out, answer.err) == (code, "", message)


@pytest.mark.parametrize("command", ["--debug suggest --params 8B --cards 8", "suggest --params 8B --cards 8 --debug"])
def test_debug_lets_an_internal_error_through(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("planner.search.suggest.search", raising(ZeroDivisionError("x / 0")))
    with pytest.raises(ZeroDivisionError, match="x / 0"):
        run(command)


HEAVY = ("mindspore", "mindformers", "ortools", "networkx", "scipy", "plotly", "pandas", "ruamel", "rich")


def test_suggest_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from planner.cli.main import app\n"
        "try:\n"
        "    app(['suggest', '--params', '70B', '--cards', '64'], prog_name='planner')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_importing_the_package_imports_none_of_it() -> None:
    script = (
        "import sys, planner\n"
        "print([name for name in sys.modules if name.startswith('planner.')], 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"


@pytest.mark.parametrize("words", [("models",), ("models", "--json"), ("--help",), ("suggest", "--help")])
def test_output_cut_by_a_pipe_is_no_error(words: tuple[str, ...]) -> None:
    script = "from planner.cli.main import main; main()"
    command = [sys.executable, "-c", script, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_an_error_beside_a_cut_pipe_keeps_its_code() -> None:
    command = [sys.executable, "-c", "from planner.cli.main import main; main()", "check", "/nowhere"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 2


@pytest.mark.parametrize("columns", ["40", "60", "200"])
def test_text_is_at_most_80_columns_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    words = "suggest --params 8B --cards 16 --seq 4096 --top 3"
    usual = run(words).out
    monkeypatch.setenv("COLUMNS", columns)
    assert run(words).out == usual
    assert max(map(len, usual.splitlines())) <= 80
