"""Entry point: the group of commands, the only place that turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from planner.errors import PlannerError

#: Command name -> module below ``planner.cli`` that defines a function of the same name (dashes as underscores).
COMMANDS: Final = {
    "suggest": "suggest",
    "estimate": "estimate",
    "cards": "cards",
    "explain": "explain",
    "emit": "emit",
    "check": "check",
    "improve": "improve",
    "timeline": "timeline",
    "trace": "trace",
    "dryrun": "dryrun",
    "validate": "validate",
    "goodput": "goodput",
    "scaling": "scaling",
    "compare": "compare",
    "levers": "levers",
    "schedule": "schedule",
    "accuracy": "accuracy",
    "monitor": "monitor",
    "diagnose": "diagnose",
    "collective": "collective",
    "calibrate": "calibrate",
    "fit": "fit",
    "models": "models",
    "hardware": "hardware",
}

EXIT_CODES: Final = """\
Exit codes: 0 ok; 2 bad input; 3 nothing fits, or predicted out of memory;
4 a validation failed; 70 internal error; 130 stopped by Ctrl-C."""

EPILOG: Final = f"""\
Examples:

planner suggest --params 70B --cards 64

planner suggest --model qwen3-30b-a3b --cards 32 --seq 8k --emit out

planner estimate --params 70B --tp 8 --pp 4 --dp 2 --global-batch 128

planner cards --model deepseek-v3

planner estimate --from out/plan.json

{EXIT_CODES}"""

DEBUG: Final = "--debug"
INTERNAL_ERROR: Final = 70
INTERRUPTED: Final = 130
#: What click and rich, and nothing else, exit with when their output is a closed pipe (``| head``): no error of ours.
READER_GONE: Final = 1


class PlannerGroup(TyperGroup):
    """Commands imported when they are called; errors printed in one place."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of ``COMMANDS``."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Command of that name, imported now."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        return load_command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As the base class, with the known names for the "did you mean" of a mistyped one."""
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit with the code of the outcome."""
        del standalone_mode
        words = list(sys.argv[1:] if args is None else args)
        debug = DEBUG in words or bool(os.environ.get("PLANNER_DEBUG"))
        try:
            code = super().main(
                [word for word in words if word != DEBUG], prog_name, complete_var, False, windows_expand_args, **extra
            )
        except PlannerError as error:
            code = report_error(str(error), error.exit_code)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except SystemExit as error:
            if error.code != READER_GONE:
                raise
            code = 0
        except Exception as error:
            if debug and not _is_usage(error):
                raise
            code = report_exception(error)
        if code == INTERRUPTED:
            print("stopped.", file=sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)


def load_command(name: str) -> Any:
    """Import one command and give it as a command object."""
    module = importlib.import_module(f"planner.cli.{COMMANDS[name]}")
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
    function = getattr(module, name.replace("-", "_"))
    holder.command(name, epilog=getattr(function, "epilog", None))(function)
    command = typer.main.get_command(holder)
    command.name = name
    return command


def report_error(message: str, code: int) -> int:
    """Print one message on stderr and hand back the exit code."""
    print(f"Error: {message}", file=sys.stderr)
    return code


def report_exception(error: Exception) -> int:
    """Usage errors exit 2, Ctrl-C 130, anything else is our own fault."""
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if _is_usage(error):
        return report_usage(error)
    return report_error(
        f"internal error ({type(error).__name__}: {error}). This is a fault of planner, please report it; "
        f"{DEBUG} shows where.",
        INTERNAL_ERROR,
    )


def _is_usage(error: Exception) -> bool:
    """Whether the parser raised it; typer brings its own copy of click or uses the installed one."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def report_usage(error: Any) -> int:
    """Print a usage error: the help itself when nothing was asked, else two lines."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message() or "", file=sys.stderr, end="")  # typer has printed it on stdout already
        return 2
    path = context.command_path if context is not None else "planner"
    return report_error(f"{error.format_message()}\nSee '{path} --help'.", 2)


def show_version(value: bool) -> None:
    """Print the version and stop."""
    if value:
        from planner.version import __version__

        print(f"planner {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=PlannerGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
    pretty_exceptions_enable=False,
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
) -> None:
    """Parallel-training plans for MindSpore on Ascend: which strategy, will it fit, how fast, and why."""
    del version, debug


def main() -> None:
    """Run the command line."""
    app(prog_name="planner")
