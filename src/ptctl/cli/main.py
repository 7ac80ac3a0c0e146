"""Entry point: lazy subcommands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from ptctl import __version__
from ptctl.errors import EXIT_CODE_MEANING, ExitCode, PtctlError

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("ptctl.cli.init", "Write a recipe to start from."),
    "run": ("ptctl.cli.run", "Run a whole recipe: warm stage processes that meet on disk."),
    "sample": ("ptctl.cli.sample", "Draw tasks from a pool: pool + history → draws."),
    "rollout": ("ptctl.cli.rollout", "Let the policy act: draws + policy → trajectories."),
    "score": ("ptctl.cli.score", "Verify: trajectories → scores."),
    "train": ("ptctl.cli.train", "Update the policy: scores + policy → next policy."),
    "eval": ("ptctl.cli.evaluate", "Report success by stratum, and gate: scores → report, exit code."),
    "show": ("ptctl.cli.show", "Show a trajectory, readable."),
    "query": ("ptctl.cli.query", "Ask a run in SQL."),
    "check": ("ptctl.cli.check", "Say what is wrong with the files of a run."),
    "tasks": ("ptctl.cli.tasks", "Import task pools."),
    "convert": ("ptctl.cli.convert", "Trajectories of other tools in, and out again."),
    "doctor": ("ptctl.cli.doctor", "Say what this machine can run and enforce."),
}
"""Subcommand → module with a typer `app`, and the help line (so that `--help` imports none of them)."""


# typer carries its own copy of click in some versions and imports click in others; its public names lead to either.
ClickException: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


class LazyGroup(TyperGroup):
    """Imports a subcommand's module when it is called, so that `ptctl eval` never pays for `ptctl train`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the pipeline."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the subcommand. For the group's own help a stand-in with the help line is enough."""
        if cmd_name not in COMMANDS:
            return None
        module_name, help_line = COMMANDS[cmd_name]
        if _is_group_help():
            return TyperCommand(cmd_name, help=help_line)
        command = typer.main.get_command(importlib.import_module(module_name).app)
        command.name = cmd_name
        return command


def _is_group_help() -> bool:
    return not any(argument in COMMANDS for argument in sys.argv[1:])


def _exit_code_table() -> str:
    return "\n".join(f"{code.value:>4}  {meaning}" for code, meaning in EXIT_CODE_MEANING.items())


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Post-training of large language models as Unix filters over Parquet.",
    epilog="\b\nExit codes:\n" + _exit_code_table(),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"ptctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Post-training of large language models as Unix filters: sample | rollout | score | train, and eval."""


def _complain(message: str, hint: str | None) -> None:
    print(f"ptctl: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _complain_usage(error: Any) -> ExitCode:
    """click's own errors: unknown options, missing arguments, bad values. No arguments at all prints the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        context = getattr(error, "ctx", None)
        _complain(error.format_message(), f"{context.command_path} --help" if context is not None else None)
    return ExitCode.USAGE


def _leave(code: int) -> NoReturn:
    """Exit without a second complaint from the interpreter about a closed standard output."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = ExitCode.BROKEN_PIPE
    if code == ExitCode.BROKEN_PIPE:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run_command() -> int:
    command = typer.main.get_command(app)
    if "_PTCTL_COMPLETE" in os.environ:
        command.main(prog_name="ptctl")  # prints completions and exits
    # Not command.main(): it turns a broken pipe into exit code 1 by itself.
    try:
        with command.make_context("ptctl", sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    return ExitCode.OK


def _code_of_os_error(error: OSError) -> ExitCode:
    if isinstance(error, FileNotFoundError):
        return ExitCode.NO_INPUT
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ExitCode.CANNOT_CREATE
    return ExitCode.IO_ERROR


def main() -> NoReturn:
    """Run the command line and leave with its exit code. Anything not listed here is a bug and shows its traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # LC_ALL=C cannot show "…", and must not crash on it
    try:
        code = _run_command()
    except PtctlError as error:
        if error.exit_code == ExitCode.BUG:
            raise
        _complain(str(error), error.hint)
        code = error.exit_code
    except ClickException as error:
        code = _complain_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        code = ExitCode.SIGINT
    except BrokenPipeError:
        code = ExitCode.BROKEN_PIPE
    except OSError as error:
        # A disk that is full or a path without permission is the operator's to mend, not a bug.
        if error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EIO,
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.ENOENT,
        ):
            raise
        _complain(str(error), None)
        code = _code_of_os_error(error)
    _leave(code)
