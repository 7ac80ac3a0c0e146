"""Options that several subcommands share, and the small things they all do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ptctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from ptctl.recipe import Recipe

RecipeOption = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="Recipe (TOML file, or a directory with recipe.toml).")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a recipe key, such as train.learning_rate=1e-5. Repeatable."
    ),
]
PhaseOption = Annotated[
    str | None,
    typer.Option("--phase", metavar="NAME", help="Phase of the recipe whose settings hold (default: the last)."),
]
PrintConfigOption = Annotated[
    bool, typer.Option("--print-config", help="Print every resolved recipe key with its origin, and stop.")
]
NulOption = Annotated[bool, typer.Option("-0", "--null", help="Paths on standard input are separated by NUL.")]
MaxErrorsOption = Annotated[
    int | None,
    typer.Option("--max-errors", min=0, metavar="N", help="Failed rows allowed (default: anything short of all)."),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="One of table, json, jsonl, csv, md, parquet.")
]
FollowOption = Annotated[
    Path | None,
    typer.Option("--follow", metavar="RUN", help="Follow a run directory until stopped, instead of reading arguments."),
]


def read_recipe(recipe: Path | None, overrides: Sequence[str] | None, *, print_config: bool = False) -> Recipe:
    """Load the recipe; with `print_config` print it and leave."""
    from ptctl.recipe import load_recipe  # pydantic and numpy: `--help` does without them

    loaded = load_recipe(recipe, overrides or ())
    if print_config:
        from ptctl.recipe.show import print_config as show

        typer.echo(show(loaded))
        raise typer.Exit(ExitCode.OK)
    return loaded


def set_option(overrides: list[str] | None, key: str, value: object | None) -> list[str]:
    """A flag that is another name for a recipe key: `-n 8` is `--set sample.num_groups=8`."""
    if value is None:
        return list(overrides or ())
    return [*(overrides or ()), f"{key}={value!r}" if not isinstance(value, str) else f'{key}="{value}"']


def named_or_here(arguments: Sequence[str] | None) -> list[str]:
    """The arguments, or the current directory where there are none and it is a run. Raises UsageError otherwise."""
    if arguments:
        return list(arguments)
    if not Path("recipe.toml").is_file():
        raise UsageError(
            "no dataset is named, and the current directory is no run",
            hint="name run directories, datasets or shards",
        )
    return ["."]


def print_path(path: Path) -> None:
    """Print a committed path on standard output at once, so that the next stage can start."""
    sys.stdout.write(f"{path}\n")
    sys.stdout.flush()


class StopFlag:
    """Set by SIGTERM, SIGUSR1 and SIGINT. The handler only sets a flag; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def install(self) -> StopFlag:
        """Install the handlers (main thread only)."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal_number = number

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal_number is not None
